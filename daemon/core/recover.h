/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_CORE_RECOVER_H
#define KVT_CORE_RECOVER_H

/**
 * @file recover.h
 * Recovery from a dead daemon's arena and ledger: undo its open mutation (rollback.c), recompute
 * what is derived (rebuild.c), continue (adopt.c).
 *
 * The facts are not trusted: each index is compared with its bound before it is followed.
 */

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>

#include "daemon/core/state.h"

/** Why recovery is refused: the caller's buffer. */
struct kvt_why {
	char *text;
	size_t size;
};

/** Format the contradiction. Returns -EUCLEAN. */
static inline int __attribute__((format(printf, 2, 3))) kvt_unclean(struct kvt_why *why,
								    const char *format, ...)
{
	va_list args;

	if (why->size > 0) {
		va_start(args, format);
		vsnprintf(why->text, why->size, format, args);
		va_end(args);
	}
	return -EUCLEAN;
}

/** Undo the mutation that the last daemon died in. -EUCLEAN: the log is damaged, nothing changed.
 * Adds a RAISE event for each generation that it bumps. */
int kvt_undo_roll_back(struct kvt_core *core, struct kvt_why *why);

/** Recompute everything derived from the primary facts, and check these. -EUCLEAN: they contradict
 * each other, and the core is of no use. */
int kvt_rebuild(struct kvt_core *core, struct kvt_why *why);

#endif
