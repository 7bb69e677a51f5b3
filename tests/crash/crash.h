/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_CRASH_H
#define KVT_CRASH_H

/**
 * @file crash.h
 * A core that can be stopped before each of its stores to shared memory.
 *
 * The core is compiled a second time with -fsanitize=thread and linked with a runtime of our own
 * (runtime.c) instead of the sanitizer's: it does nothing but announce stores to arena and ledger.
 * At each of them the memory is what a kill -9 at that instruction would leave. check.c gives a
 * copy of it to a successor (a core compiled as usual) and compares all facts that it finds with
 * those of the last effect.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/core/core.h"

typedef void crash_store_fn(void *context, void *at, size_t n);

/** Announce stores to these two objects from now on; store NULL: no more. */
void crash_watch(const void *a, size_t a_bytes, const void *b, size_t b_bytes,
		 crash_store_fn *store, void *context);

/** The successor's kvt_core_adopt(), which is not instrumented. */
int plain_core_adopt(struct kvt_core **ret_core, const struct kvt_core_config *config, void *arena,
		     void *ledger, void *scratch, const struct kvt_core_hooks *hooks,
		     uint64_t now_ns, struct kvt_core_adoption *ret_adoption, char *why,
		     size_t why_size);

struct crash_check {
	const struct kvt_core_config *config;
	struct kvt_core_sizes sizes;
	const char *arena, *ledger; /* of the core that is going to die */
	char *arena_copy, *ledger_copy, *scratch; /* of its successor */
	char *arena_last, *ledger_last; /* what a successor made of the last effect */
	uint64_t mutation;  /* at the last effect */
	bool known;         /* there is a last effect */
	uint64_t now_ns;
	uint64_t n_checks, n_rolled_back;
	bool failed;
	char why[512];
};

bool crash_check_init(struct crash_check *check, const struct kvt_core_config *config,
		      const void *arena, const void *ledger);
void crash_check_free(struct crash_check *check);

/** A successor takes over from memory as it is now, but for `n_old` bytes at `old_at`, which hold
 * `old` (a store that was torn); none if n_old is 0. False, and `why`, if its facts are not those
 * of the last effect. */
bool crash_check_now(struct crash_check *check, const void *old_at, const void *old, size_t n_old);

#endif
