/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_VERIFY_H
#define KVT_VERIFY_H

/**
 * @file verify.h
 * `kvtctl verify FILE [--json]`: replays an operation log through the oracle.
 *
 * Exit status: 0 the log and the oracle agree, to the end of the log (a log that ends in the middle
 * of a record is said to, and agrees as far as it goes); 1 they disagree, or the log is damaged;
 * 2 bad usage, or no log there.
 */
int kvt_verify_main(int argc, char **argv);

#endif
