/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_BASE_EXIT_H
#define KVT_BASE_EXIT_H

/** @file exit.h: exit codes of the programs. */

enum kvt_exit {
	KVT_EXIT_OK = 0,
	KVT_EXIT_PROBLEM = 1, /* a problem was found, or the daemon refused */
	KVT_EXIT_USAGE = 2,
	KVT_EXIT_CONNECT = 3, /* no daemon, or an unusable one */
};

#endif
