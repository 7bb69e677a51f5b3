/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_LAB_VERIFY_H
#define KVT_LAB_VERIFY_H

/**
 * @file verify.h
 * `kvtlab verify FILE [--json]`: replays an operation log through the oracle.
 *
 * Exit status: 0 log and oracle agree (a log cut in the middle of a record is reported and
 * agrees up to there); 1 they disagree, or the log is damaged;
 * 2 bad usage or no log.
 */
int kvt_verify_main(int argc, char **argv);

#endif
