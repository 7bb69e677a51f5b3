/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_CRASH_H
#define KVT_CRASH_H

/**
 * @file crash.h
 * A core that can be stopped before each of its stores to shared memory.
 *
 * The core is compiled a second time with -fsanitize=thread and linked with runtime.c instead of
 * the sanitizer, which only announces stores to arena and ledger. At each store, memory is what a
 * kill -9 at that instruction would leave. check.c gives a copy to a successor (a core compiled as
 * usual) and compares all its facts with those of the last effect.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/core/core.h"

typedef void crash_store_fn(void *context, void *at, size_t n);

/** Announce stores to these two objects from now on. NULL: stop. */
void crash_watch(const void *a, size_t a_bytes, const void *b, size_t b_bytes,
		 crash_store_fn *store, void *context);

/** kvt_core_adopt() of the successor, which is not instrumented. */
int plain_core_adopt(struct kvt_core **ret_core, const struct kvt_core_config *config, void *arena,
		     void *ledger, void *scratch, const struct kvt_core_hooks *hooks,
		     uint64_t now_ns, struct kvt_core_adoption *ret_adoption, char *why,
		     size_t why_size);

struct crash_check {
	const struct kvt_core_config *config;
	struct kvt_core_sizes sizes;
	const char *arena, *ledger; /* of the core that will die */
	char *arena_copy, *ledger_copy, *scratch; /* of its successor */
	char *arena_last, *ledger_last; /* the facts that a successor found at the last effect */
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

/** Recover from memory as it is now, except `n_old` bytes at `old_at`, which hold `old` (a torn
 * store); none if n_old is 0. Returns false and `why` if the facts are not those of the last
 * effect. */
bool crash_check_now(struct crash_check *check, const void *old_at, const void *old, size_t n_old);

#endif
