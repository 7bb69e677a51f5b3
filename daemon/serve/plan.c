/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file plan.c
 * Sizes and limits of pool and core, from the options and from a stored arena. Makes nothing.
 * Called by start.c, and by admin.c before an upgrade.
 */

#include "daemon/serve/plan.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include <bsd/string.h>

#include "daemon/core/core.h"
#include "daemon/serve/state.h"
#include "daemon/setup/command.h"
#include "daemon/setup/pool_backend.h"
#include "kvtrunk_wire_arena.h"

#define DEFERRED_MAX 16384u /* deferred operations, beside one for each session */

/* Read the pool's page count from the stored arena. 0: nothing was stored. */
static uint32_t stored_pages(const struct kvt_daemon *daemon)
{
	const struct kvt_fdstore *passed = &daemon->kept.passed;
	uint32_t n_pages = 0;

	for (uint32_t i = 0; i < passed->n; i++)
		if (passed->at[i].fd >= 0 && strcmp(passed->at[i].name, "arena") == 0 &&
		    pread(passed->at[i].fd, &n_pages, sizeof(n_pages),
			  offsetof(struct kvt_arena_header, n_pages)) != sizeof(n_pages))
			n_pages = 0;
	return n_pages;
}

static void read_boot_id(uint64_t boot_id[2])
{
	char text[64] = "", digits[33];
	FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");
	size_t n = 0;

	if (file) {
		if (!fgets(text, sizeof(text), file))
			text[0] = '\0';
		fclose(file);
	}
	for (const char *c = text; *c && n < 32; c++)
		if (*c != '-' && *c != '\n')
			digits[n++] = *c;
	digits[n] = '\0';
	if (n == 32) {
		boot_id[1] = strtoull(digits + 16, NULL, 16);
		digits[16] = '\0';
		boot_id[0] = strtoull(digits, NULL, 16);
	}
}

/* Plan the pool. The backend tells how much memory is free. */
static int plan_pool(struct kvt_daemon *daemon, char why[KVT_WHY_BYTES])
{
	const struct kvt_config *config = &daemon->config;
	struct kvt_pool *pool = &daemon->pool;
	const struct kvt_pool_backend_ops *ops = kvt_pool_backend_find(config->backend);
	struct kvt_pool_plan *plan = &daemon->plan;
	uint64_t free_bytes = 0;
	uint32_t left;
	int error = kvt_pool_plan_shape(config, plan, why);

	if (!error)
		error = kvt_pool_plan_scales(config, plan, why);
	if (error)
		return error;
	pool->n_slabs = plan->n_slabs;
	pool->page_bytes = plan->page_bytes;
	pool->mlock = config->mlock;
	pool->hugepages = config->hugepages;
	pool->devices = config->devices;
	pool->mps = config->mps;
	left = stored_pages(daemon);
	if (!config->n_pages && config->pool_bytes.percent && !left)
		error = ops->free_bytes(pool, &free_bytes, why, KVT_WHY_BYTES);
	if (!error)
		error = kvt_pool_plan_pages(config, left, free_bytes, plan, why);
	pool->n_pages = plan->n_pages;
	return error;
}

/* The most that one session, or uid for sessions, may have of all: seven eighths. */
static uint32_t most_of(uint32_t all)
{
	return all - all / 8;
}

/* Limit each session, and the sessions of each uid. A lease takes at most two tree nodes, its own
 * and a root or the rest of a split. Where nodes are fewer than pages, the leases of one session
 * must not use them up. */
static void limit_shares(struct kvt_core_config *config)
{
	uint32_t most = most_of(config->n_leases), nodes = config->max_nodes / 3;

	if (config->max_nodes < config->n_pages && nodes < most)
		most = nodes;
	config->uid_sessions = most_of(config->max_sessions);
	config->max_opened = most_of(config->max_namespaces);
	if (config->max_private_pages)
		config->reserve_pages = config->n_pages - 1 - most_of(config->n_pages - 1);
	if (!config->max_leases || config->max_leases > most)
		config->max_leases = most;
}

int kvt_daemon_plan(struct kvt_daemon *daemon, char why[KVT_WHY_BYTES])
{
	const struct kvt_config *from = &daemon->config;
	struct kvt_core_config *to = &daemon->core_config;
	const char *reason = "";
	int error = plan_pool(daemon, why);

	if (error)
		return error;
	to->page_size = (uint32_t)from->page_size;
	to->n_pages = daemon->plan.n_pages;
	error = kvt_config_limits(from, to, why);
	if (error)
		return error;
	to->max_nodes = (uint32_t)from->max_nodes;
	to->max_namespaces = (uint32_t)from->max_namespaces;
	to->max_sessions = (uint32_t)from->max_sessions;
	to->max_members = (uint32_t)from->max_members;
	to->n_leases = (uint32_t)from->total_leases;
	to->n_pending = (to->n_leases < DEFERRED_MAX ? to->n_leases : DEFERRED_MAX) +
			to->max_sessions;
	to->max_leases = (uint32_t)from->max_leases;
	to->max_private_pages = (uint32_t)from->max_private_pages.value;
	if (from->max_private_pages.percent)
		to->max_private_pages = (uint32_t)((to->n_pages - 1ull) *
						   (uint64_t)from->max_private_pages.value / 100);
	to->soft_private = from->max_private_pages.percent;
	if (from->max_private_pages.value && !to->max_private_pages)
		to->max_private_pages = 1; /* 0 means no limit */
	to->max_op_keys = (uint32_t)from->max_op_keys;
	to->policy = from->policy;
	to->slru_threshold = (uint32_t)from->slru_threshold;
	to->disabled = !from->caching;
	to->coalesce_threshold = (uint32_t)from->coalesce_threshold;
	to->patience_ns = (uint64_t)from->coalesce_patience_ms * 1000000;
	to->n_sides = daemon->plan.n_sides;
	memcpy(to->side_pages, daemon->plan.side_pages, sizeof(to->side_pages));
	strlcpy(to->fingerprint, daemon->plan.fingerprint, sizeof(to->fingerprint));
	read_boot_id(to->boot_id);
	if (getrandom(&to->hash_seed, sizeof(to->hash_seed), 0) != sizeof(to->hash_seed) ||
	    getrandom(to->instance, sizeof(to->instance), 0) != sizeof(to->instance)) {
		snprintf(why, KVT_WHY_BYTES, "the kernel gives no random numbers");
		return -EIO;
	}
	error = kvt_core_plan(to, &daemon->sizes, &reason);
	if (error)
		snprintf(why, KVT_WHY_BYTES, "these limits do not work together: %s", reason);
	else
		limit_shares(to);
	return error;
}

int kvt_daemon_plan_successor(const struct kvt_daemon *daemon, char why[KVT_WHY_BYTES])
{
	struct kvt_daemon *next = calloc(1, sizeof(*next)); /* too large for the stack */
	struct kvt_stored arena = { .fd = daemon->arena.fd, .name = "arena" };
	int error;

	if (!next) {
		snprintf(why, KVT_WHY_BYTES, "no memory to read the options");
		return -ENOMEM;
	}
	next->kept.passed = (struct kvt_fdstore){ .at = &arena, .n = 1 };
	error = kvt_config_parse(&next->config, daemon->argc, daemon->argv, why) < 0 ? -EINVAL : 0;
	if (!error)
		error = kvt_daemon_plan(next, why);
	if (!error && (next->sizes.arena_bytes != daemon->arena.bytes ||
		       next->config.backend != daemon->config.backend)) {
		snprintf(why, KVT_WHY_BYTES, "the arena has %llu bytes, but these options want "
			 "%llu", (unsigned long long)daemon->arena.bytes,
			 (unsigned long long)next->sizes.arena_bytes);
		error = -ESTALE;
	}
	if (!error)
		error = kvt_core_adoptable(&next->core_config, daemon->arena.base,
					   daemon->ledger.base, why, KVT_WHY_BYTES);
	free(next);
	return error;
}
