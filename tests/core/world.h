/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_TESTS_CORE_WORLD_H
#define KVT_TESTS_CORE_WORLD_H

/**
 * @file world.h
 * A core in this process with pretended clients, for tests that read like a list of cases.
 *
 * A `struct client` has keys, list and fence words of its own, like a session segment. A `struct
 * seq` is one of its sequences, from BEGIN to END. Each call runs one operation, then checks that
 * the audit is clean, that the counters add up, and that a refused operation left arena and ledger
 * unchanged, byte for byte.
 *
 * A page has pretended content: the digest of all keys up to its end, under its namespace. Insert
 * and commit write it; lock, begin and look-on compare it. So a page at a wrong place fails the
 * test at that operation.
 */

#include <errno.h>
#include <stdbool.h>
#include <string.h>

#include "daemon/core/backlog.h"
#include "daemon/core/compact.h"
#include "daemon/core/core.h"
#include "daemon/core/detach.h"
#include "daemon/core/effect.h"
#include "daemon/core/entry.h"
#include "daemon/core/evict.h"
#include "daemon/core/grow.h"
#include "daemon/core/index.h"
#include "daemon/core/lease.h"
#include "daemon/core/op.h"
#include "daemon/core/order.h"
#include "daemon/core/page.h"
#include "daemon/core/pending.h"
#include "daemon/core/plan.h"
#include "daemon/core/run.h"
#include "daemon/core/session.h"
#include "daemon/core/slots.h"
#include "daemon/core/space.h"
#include "daemon/core/state.h"
#include "daemon/core/tree.h"
#include "daemon/core/undo.h"
#include "daemon/core/wait.h"
#include "daemon/core/walk.h"
#include "tests/lib/cases.h"

struct kvt_core_adoption;

#define WORLD_CLIENTS 8

/** A run of keys. */
struct keys {
	const uint32_t *at;
	uint32_t n;
};

#define K(...)                                                                                    \
	((struct keys){ (const uint32_t[]){ __VA_ARGS__ },                                        \
			sizeof((const uint32_t[]){ __VA_ARGS__ }) / sizeof(uint32_t) })
#define NO_KEYS ((struct keys){ NULL, 0 })

/** These results live until the next world_free(). */
struct keys range(uint32_t first, uint32_t last); /* both included */
struct keys repeat(uint32_t key, uint32_t n);
struct keys join(struct keys a, struct keys b);
struct keys head(struct keys keys, uint32_t n);
struct keys after(struct keys keys, uint32_t n);

struct handle {
	uint32_t node;
	uint32_t generation;
	uint32_t positions;
};

/** A completion under the names of the table of operations. What an operation does not answer is
 * 0. */
struct answer {
	int result;
	enum kvt_reason reason;
	uint32_t number; /* of a refusal */
	bool deferred;   /* it waits for its fence: nothing else here is set */
	struct handle handle;
	uint32_t lease, lease_generation;
	uint32_t matched, announced, usable, reusable, existed, inserted, evicted, n_twins;
	uint32_t next, advanced, sealed, duplicates, freed, n_list;
	uint32_t state, owner, sealer, lock_ref, problems;
	struct kvt_cqe cqe;
	uint32_t *list; /* in the client's list area: valid until its next operation */
};

struct client {
	struct world *world;
	uint32_t session;
	uint32_t *keys;
	uint32_t *list;
	uint64_t keys_count, list_count;
	struct kvt_fence_word *fences;
	uint32_t list_capacity; /* offered with the next operation; UINT32_MAX: all */
	uint8_t fence_slot;     /* of the next operation that takes one */
	uint64_t fence_value;
	int32_t priority; /* of the next INSERT */
	uint32_t ttl_ms;
	uint32_t n_notices; /* that came */
};

struct world {
	struct world *next;
	struct kvt_core_config config;
	struct kvt_core_sizes sizes;
	struct kvt_core *core;
	void *arena, *ledger, *scratch;
	void *arena_before, *ledger_before;
	uint64_t now_ns;
	uint32_t ps;
	bool quick; /* no audit after each step: for large worlds, which call world_audit() */
	struct client clients[WORLD_CLIENTS];
	uint32_t n_clients;
	uint64_t *content; /* by page */
	uint32_t read; /* digest of all arrays of all records */
	uint32_t n_done; /* deferred operations that took effect */
	struct kvt_cqe done[64];
};

/** A sequence: a BEGIN lease and what its owner knows about it. */
struct seq {
	struct client *client;
	struct answer a; /* of the last operation on it */
	uint32_t lease, generation;
	uint32_t space;
	uint32_t *keys; /* all known keys */
	uint32_t n_keys;
	uint32_t *table;
	uint32_t n_table;
	uint32_t valid; /* leading table entries with content */
	bool keep;
};

/** Create a world. Zeros in the configuration become small defaults. */
struct world *world_new(struct kvt_core_config config);
void world_free(struct world *world);
/** Free the worlds that a test has left, after it. */
int world_end(void **state);
#undef TEST
#define TEST(name) TEST_WITH(name, NULL, world_end)
void world_leave(struct world *world); /* free the world; keys stay */
void keys_free(void);
/** page_size and n_pages with everything else small. */
struct world *world_small(uint32_t page_size, uint32_t n_pages);
/** Attach all views to a successor that recovers from this daemon's memory. Returns 0, or the
 * refusal: then the world keeps its old core. */
int world_adopt(struct world *world, struct kvt_core_adoption *ret_adoption, char *why,
		size_t why_size);
void world_audit(struct world *world);
uint32_t world_problems(struct world *world); /* audit without an assertion */
void world_settle(struct world *world);       /* background work until none is left */
const struct kvt_counters *counters(const struct world *world);
/** Pages without operations in flight: free, private, cached, quarantined, evictable, protected. */
void expect_pages(const struct world *world, uint64_t cached, uint64_t private_pages,
		  uint64_t protected_pages);

struct client *client_new(struct world *world);
struct client *client_of(struct world *world, uint32_t uid);
uint32_t space_open(struct client *client, const char *name);
/** Report signs of a session's end, then do background work. */
void client_dies(struct client *client, uint32_t signs);

void fence(struct client *client, uint8_t slot, uint64_t value);
void raise_fence(struct client *client, uint8_t slot, uint64_t value);

/** Run one raw entry. */
struct answer submit(struct client *client, const struct kvt_sqe *sqe);

struct answer match(struct client *client, uint32_t space, struct keys keys);
struct answer match_flags(struct client *client, uint32_t space, struct keys keys,
			  uint16_t flags);
struct answer match_lock(struct client *client, uint32_t space, struct keys keys);
struct answer lock(struct client *client, struct handle handle);
struct answer unlock(struct client *client, struct answer lease);
struct answer alloc(struct client *client, uint32_t n);
struct answer alloc_flags(struct client *client, uint32_t n, uint16_t flags);
struct answer give(struct client *client, const uint32_t *pages, uint32_t n); /* FREE */
/** ALLOC, INSERT, and FREE of the duplicates. */
struct answer insert(struct client *client, uint32_t space, struct keys keys);
struct answer insert_flags(struct client *client, uint32_t space, struct keys keys,
			   uint16_t flags);
struct answer evict(struct client *client, uint32_t n);
struct answer reset(struct client *client);
struct answer remove_prefix(struct client *client, uint32_t space, struct keys keys);
struct answer page_of(struct client *client, uint32_t page);
struct answer close_session(struct client *client);

/** BEGIN, with any answer. */
struct seq *begin(struct client *client, uint32_t space, struct keys keys, uint32_t extra,
		  uint16_t flags);
struct answer commit(struct seq *seq, uint32_t computed, struct keys generated, uint16_t flags);
struct answer extend(struct seq *seq, uint32_t n);
struct answer end(struct seq *seq);
struct answer end_commit(struct seq *seq, uint32_t computed, struct keys generated,
			 uint16_t flags);

#define expect_ok(answer_) expect_ok_at(answer_, __FILE__, __LINE__)
#define expect_refused(answer_, error_, reason_)                                                  \
	expect_refused_at(answer_, error_, reason_, __FILE__, __LINE__)
#define expect_matched(client_, space_, keys_, n_)                                                \
	assert_int_equal(match_flags(client_, space_, keys_, KVT_F_NO_TOUCH).matched, n_)
void expect_ok_at(struct answer answer, const char *file, int line);
void expect_refused_at(struct answer answer, int error, enum kvt_reason reason, const char *file,
		       int line);

const struct kvt_node *node_at(const struct world *world, uint32_t node);
/** Nodes on the path of a match, roots left out. */
uint32_t path_length(struct client *client, uint32_t space, struct keys keys);

/** A small generator: a seed names a run. */
static inline uint32_t next_random(uint64_t *state)
{
	*state = *state * 6364136223846793005ull + 1442695040888963407ull;
	return (uint32_t)(*state >> 33);
}

#endif
