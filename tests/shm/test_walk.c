/* SPDX-License-Identifier: Apache-2.0 */
/* shm/walk.c against the core: alone, with the tree changing between any two of its looks, and on
 * arenas full of garbage.
 *
 * The walk is compiled into this program with a call between its looks. There, real operations on
 * the same thread change the tree at random. So every interleaving that two processors could
 * produce at these places is repeatable by its seed. MATCH follows each change, so the truth is
 * known at every moment of the walk. A probe must not report more than the maximum meanwhile.
 *
 * Inputs: seeds. */
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static void between(void);
#define KVT_WALK_BETWEEN() between()
#include "shm/walk.c"

#include "daemon/core/core.h"
#include "daemon/core/view.h"
#include "tests/lib/cases.h"
#include "tests/lib/zeroed.h"

enum { PS = 2, N_PAGES = 40, SYMBOLS = 3, DEPTH = 10, LIST = 256 };

struct world {
	struct kvt_core *core;
	void *arena, *ledger, *scratch;
	struct kvt_arena_view view;
	uint32_t keys[2 + DEPTH * PS + DEPTH];
	uint32_t list[LIST];
	struct kvt_fence_word fences[KVT_FENCE_WORDS];
	uint32_t session, ns[2];
	uint64_t digests[2][2];
	uint64_t now_ns, seed;
	struct kvt_lease held[4];
	uint32_t n_held;
	struct kvt_cqe cqe;
	/* The walk that is on its way. */
	bool watching;
	uint32_t query[DEPTH * PS], query_keys, query_tree, most;
	uint32_t change_one_in;
	uint64_t changes;
};

static struct world w;

static uint32_t random_below(uint32_t n)
{
	w.seed = w.seed * 6364136223846793005ull + 1442695040888963407ull;
	return (uint32_t)(w.seed >> 33) % n;
}

static void no_completion(void *context, uint32_t session, const struct kvt_cqe *cqe)
{
	fail();
}

static int setup(void **state)
{
	struct kvt_core_config config = { .page_size = PS, .n_pages = N_PAGES, .hash_seed = 9,
					  .max_nodes = N_PAGES + 3 };
	struct kvt_core_hooks hooks = { .complete = no_completion };
	struct kvt_core_peer peer = { .pid = 1, .label = "walk", .privileged = true };
	struct kvt_core_view view;
	struct kvt_core_sizes sizes;
	const char *why;

	memset(&w, 0, sizeof(w));
	w.seed = 1;
	w.now_ns = 1000;
	assert_int_equal(kvt_core_plan(&config, &sizes, &why), 0);
	w.arena = zeroed(sizes.arena_bytes);
	w.ledger = zeroed(sizes.ledger_bytes);
	w.scratch = zeroed(sizes.scratch_bytes);
	assert_int_equal(kvt_core_init(&w.core, &config, w.arena, w.ledger, w.scratch, &hooks,
				       w.now_ns), 0);
	kvt_core_publish(w.core, KVT_ARENA_READY);
	assert_int_equal(kvt_arena_view_init(&w.view, w.arena, sizes.arena_bytes), KVT_ATTACH_OK);
	view = (struct kvt_core_view){ w.keys, sizeof(w.keys) / 4, w.list, LIST, w.fences };
	assert_int_equal(kvt_core_session_open(w.core, &peer, &view, w.now_ns, &w.session), 0);
	for (uint64_t i = 0; i < 2; i++) {
		w.digests[i][0] = 100 + i;
		assert_int_equal(kvt_core_namespace_open(w.core, w.session, w.digests[i], "w",
							 w.now_ns, &w.ns[i]), 0);
	}
	return 0;
}

static int teardown(void **state)
{
	free(w.arena);
	free(w.ledger);
	free(w.scratch);
	return 0;
}

/* ---------------------------------------------------------------- operations */

/* Trees: two namespaces, and two more roots in the first. */
enum { TREES = 4 };
static const uint64_t root_keys[TREES] = { 0, 0, 5, 5ull << 32 };

static uint32_t ns_of(uint32_t tree)
{
	return w.ns[tree == 1];
}

static int execute(struct kvt_sqe sqe)
{
	assert_true(kvt_core_execute(w.core, w.session, &sqe, w.now_ns, &w.cqe));
	return w.cqe.result;
}

/* Put a tree's root key, if it has one, and keys into the key area. Returns the flags for that. */
static uint16_t put_keys(uint32_t tree, const uint32_t *keys, uint32_t n_keys)
{
	uint16_t flags = root_keys[tree] ? KVT_F_ROOT_KEY : 0;
	uint32_t head = kvt_root_key_words(flags);

	memcpy(w.keys, &root_keys[tree], head * 4);
	memcpy(w.keys + head, keys, n_keys * 4);
	return flags;
}

static int begin(uint32_t tree, const uint32_t *keys, uint32_t n_keys, struct kvt_lease *ret_lease)
{
	uint16_t flags = put_keys(tree, keys, n_keys);
	int rc;

	rc = execute((struct kvt_sqe){ .op = KVT_OP_BEGIN, .flags = KVT_F_FULL | flags,
				       .namespace_id = ns_of(tree), .n_keys = n_keys,
				       .list_capacity = LIST });
	*ret_lease = (struct kvt_lease){ w.cqe.lease, w.cqe.lease_generation };
	return rc;
}

static int commit(struct kvt_lease lease, uint32_t computed)
{
	return execute((struct kvt_sqe){ .op = KVT_OP_COMMIT, .node = lease.index,
					 .generation = lease.generation, .arg = computed,
					 .fence_slot = KVT_FENCE_IDLE, .list_capacity = LIST });
}

static int end(struct kvt_lease lease)
{
	return execute((struct kvt_sqe){ .op = KVT_OP_END, .node = lease.index,
					 .generation = lease.generation,
					 .fence_slot = KVT_FENCE_IDLE });
}

static uint32_t match(uint32_t tree, const uint32_t *keys, uint32_t n_keys)
{
	uint16_t flags = KVT_F_NO_TOUCH | put_keys(tree, keys, n_keys);

	assert_int_equal(execute((struct kvt_sqe){ .op = KVT_OP_MATCH, .flags = flags,
						   .namespace_id = ns_of(tree),
						   .n_keys = n_keys }), 0);
	return w.cqe.match.matched;
}

/* Keys of few symbols, so that prefixes overlap much. */
static uint32_t random_keys(uint32_t *keys)
{
	uint32_t pages = 1 + random_below(DEPTH);

	for (uint32_t i = 0; i < pages; i++) {
		uint32_t symbol = random_below(SYMBOLS);

		for (uint32_t j = 0; j < PS; j++)
			keys[i * PS + j] = symbol;
	}
	return pages * PS;
}

static void insert_with_ttl(uint32_t tree, const uint32_t *keys, uint32_t n_keys)
{
	uint32_t n = n_keys / PS, pages_at = n_keys + 2;
	uint16_t flags;

	if (execute((struct kvt_sqe){ .op = KVT_OP_ALLOC, .arg = n, .list_capacity = LIST }) != 0)
		return;
	flags = KVT_F_TTL | put_keys(tree, keys, n_keys);
	memcpy(w.keys + pages_at, w.list, n * 4);
	if (execute((struct kvt_sqe){ .op = KVT_OP_INSERT, .namespace_id = ns_of(tree),
				      .n_keys = n_keys, .arg = pages_at,
				      .fence_slot = KVT_FENCE_IDLE, .flags = flags,
				      .ttl_ms = 1 + random_below(3),
				      .list_capacity = LIST }) == 0) {
		uint32_t duplicates = w.cqe.insert.n_twins;

		for (uint32_t i = 0; i < duplicates; i++)
			w.keys[i] = w.list[2 * i];
		n = duplicates;
	} else {
		memmove(w.keys, w.keys + pages_at, n * 4);
	}
	assert_int_equal(execute((struct kvt_sqe){ .op = KVT_OP_FREE, .n_keys = n,
						   .fence_slot = KVT_FENCE_IDLE }), 0);
}

static void change_leases(uint32_t tree, const uint32_t *keys, uint32_t n_keys)
{
	struct kvt_lease lease;

	if (w.n_held < 4 && random_below(2)) {
		if (begin(tree, keys, n_keys, &lease) == 0)
			w.held[w.n_held++] = lease;
	} else if (w.n_held && random_below(2)) {
		commit(w.held[random_below(w.n_held)], random_below(DEPTH * PS));
	} else if (w.n_held) {
		uint32_t which = random_below(w.n_held);

		end(w.held[which]);
		w.held[which] = w.held[--w.n_held];
	}
}

/* One random change of the tree. */
static void change(void)
{
	uint32_t keys[DEPTH * PS], n_keys = random_keys(keys), tree = random_below(TREES);
	struct kvt_lease lease;
	uint16_t flags;

	w.changes++;
	switch (random_below(16)) {
	case 0:
	case 1:
	case 2:
		execute((struct kvt_sqe){ .op = KVT_OP_EVICT, .arg = 1 + random_below(20) });
		break;
	case 3:
		flags = put_keys(tree, keys, n_keys);
		execute((struct kvt_sqe){ .op = KVT_OP_REMOVE, .namespace_id = ns_of(tree),
					  .flags = flags, .n_keys = random_below(n_keys) });
		break;
	case 4:
		if (random_below(4) == 0)
			execute((struct kvt_sqe){ .op = KVT_OP_RESET });
		break;
	case 5:
		w.now_ns += random_below(2000000);
		insert_with_ttl(tree, keys, n_keys);
		break;
	case 6:
	case 7:
	case 8:
	case 9:
		change_leases(tree, keys, n_keys);
		break;
	case 10:
		kvt_core_work(w.core, 1 + random_below(20), true, w.now_ns);
		break;
	default:
		if (begin(tree, keys, n_keys, &lease) != 0)
			break;
		commit(lease, n_keys);
		end(lease);
	}
}

static void note_truth(void)
{
	uint32_t matched = match(w.query_tree, w.query, w.query_keys);

	if (matched > w.most)
		w.most = matched;
}

static void between(void)
{
	uint32_t n;

	if (!w.watching || random_below(w.change_one_in))
		return;
	/* Now and then enough of them to recycle node ids, first in, first out. */
	n = 1 + (random_below(8) ? random_below(3) : random_below(60));
	for (; n > 0; n--) {
		change();
		note_truth();
	}
}

static int walk_now(uint32_t tree, const uint32_t *keys, uint32_t n_keys,
		    struct kvt_handle *ret_handle, struct kvt_walk_effort *ret_effort)
{
	return kvt_walk(&w.view, ns_of(tree), w.digests[tree == 1], root_keys[tree], keys, n_keys,
			w.now_ns, ret_handle, ret_effort);
}

/* ---------------------------------------------------------------- tests */

TEST_WITH(a_walk_alone_reports_what_match_reports, setup, teardown)
{
	struct kvt_walk_effort effort;
	struct kvt_handle handle;
	uint64_t found = 0;

	for (uint32_t i = 0; i < 30000; i++) {
		uint32_t tree = random_below(TREES), matched;

		change();
		w.query_keys = random_keys(w.query) - random_below(PS);
		matched = match(tree, w.query, w.query_keys);
		assert_int_equal(walk_now(tree, w.query, w.query_keys, &handle, &effort), 0);
		assert_int_equal(handle.positions, matched);
		assert_int_equal(handle.node, matched ? w.cqe.node : 0);
		assert_int_equal(handle.generation, matched ? w.cqe.generation : 0);
		assert_int_equal(effort.restarts, 0);
		found += matched;
	}
	assert_true(found > 10000);
}

static void watch(uint32_t rounds, uint32_t change_one_in)
{
	uint64_t found = 0, raced = 0, short_of = 0;

	w.change_one_in = change_one_in;
	for (uint32_t i = 0; i < rounds; i++) {
		uint64_t before = w.changes;
		struct kvt_handle handle;
		int rc;

		change();
		w.query_keys = random_keys(w.query);
		w.query_tree = random_below(TREES);
		w.most = 0;
		note_truth();
		w.watching = true;
		rc = walk_now(w.query_tree, w.query, w.query_keys, &handle, NULL);
		w.watching = false;
		raced += w.changes > before + 1;
		if (rc == -EAGAIN)
			continue;
		assert_int_equal(rc, 0);
		if (handle.positions > w.most)
			fail_msg("round %u: a probe reports %u positions, at most %u were there", i,
				 handle.positions, w.most);
		found += handle.positions > 0;
		short_of += handle.positions < w.most;
	}
	assert_true(found > rounds / 20 && raced > rounds / 20);
	assert_true(short_of > 0); /* else nothing raced at the right places */
}

TEST_WITH(a_walk_never_reports_more_than_was_there, setup, teardown)
{
	watch(20000, 2);
	watch(40000, 8);
	watch(60000, 25);
}

TEST_WITH(a_namespace_record_of_another_is_noticed, setup, teardown)
{
	const uint64_t other[2] = { 1, 2 };
	struct kvt_handle handle = { 7, 7, 7 };
	uint32_t keys[PS] = { 0 };

	assert_int_equal(kvt_walk(&w.view, w.ns[0], other, 0, keys, PS, 0, &handle, NULL), -ENOENT);
	assert_int_equal(kvt_walk(&w.view, w.view.max_namespaces, other, 0, keys, PS, 0, &handle,
				  NULL), -EINVAL);
	assert_int_equal(kvt_walk(&w.view, UINT32_MAX, other, 0, keys, PS, 0, &handle, NULL),
			 -EINVAL);
	assert_int_equal(handle.node, 7);
	assert_int_equal(walk_now(0, keys, PS, &handle, NULL), 0);
	assert_int_equal(handle.positions, 0);
}

TEST_WITH(a_node_with_a_ttl_ends_the_walk_where_the_clock_is_unknown, setup, teardown)
{
	const uint32_t keys[4] = { 1, 1, 2, 2 };
	struct kvt_handle handle;

	insert_with_ttl(0, keys, 4);
	assert_int_equal(walk_now(0, keys, 4, &handle, NULL), 0);
	assert_int_equal(handle.positions, 4);
	assert_int_equal(kvt_walk(&w.view, w.ns[0], w.digests[0], 0, keys, 4, UINT64_MAX, &handle,
				  NULL), 0);
	assert_int_equal(handle.positions, 0);
	/* An expired node is gone for readers before the daemon has noticed. */
	w.now_ns += 10000000;
	assert_int_equal(walk_now(0, keys, 4, &handle, NULL), 0);
	assert_int_equal(handle.positions, 0);
}

/* A node that never stops changing: a reader gives up. */
TEST_WITH(a_writer_that_stands_still_does_not_hold_a_reader, setup, teardown)
{
	const uint32_t keys[2] = { 1, 1 };
	struct kvt_walk_effort effort;
	struct kvt_handle handle;
	struct kvt_lease lease;

	assert_int_equal(begin(0, keys, 2, &lease), 0);
	assert_int_equal(commit(lease, 2), 0);
	assert_int_equal(walk_now(0, keys, 2, &handle, &effort), 0);
	assert_int_equal(handle.positions, 2);
	((struct kvt_node *)(uintptr_t)w.view.nodes)[handle.node].version++;
	assert_int_equal(walk_now(0, keys, 2, &handle, &effort), -EAGAIN);
	assert_int_equal(effort.restarts, KVT_WALK_RESTARTS);
}

/* Plausible words: indices in and out of range, flags, counts. */
static uint64_t plausible(void)
{
	switch (random_below(6)) {
	case 0:
		return random_below(8);
	case 1:
		return random_below(64);
	case 2:
		return (uint64_t)random_below(UINT32_MAX) << 32 | random_below(64);
	case 3:
		return 0x0000000200000002ull;
	case 4:
		return 0;
	default:
		return w.seed;
	}
}

TEST_WITH(garbage_in_an_arena_never_leads_outside, setup, teardown)
{
	struct kvt_arena_header *header = w.arena;
	struct kvt_namespace_record *record;
	uint64_t *words = (uint64_t *)(header + 1);
	uint64_t n = (header->object_bytes - sizeof(*header)) / 8, found = 0;
	uint32_t keys[DEPTH * PS];
	struct kvt_handle handle;

	record = (struct kvt_namespace_record *)(uintptr_t)&w.view.namespaces[w.ns[0]];
	for (uint32_t round = 0; round < 300; round++) {
		/* A real tree, damaged at random places, more in every round. */
		for (uint32_t i = 0; i < 20; i++)
			change();
		for (uint32_t i = 0; i < 1 + round * 4; i++)
			words[random_below((uint32_t)n)] = plausible();
		record->digest[0] = w.digests[0][0];
		record->digest[1] = w.digests[0][1];
		for (uint32_t i = 0; i < 200; i++) {
			uint32_t n_keys = random_keys(keys);

			record->root = 1 + random_below(40);
			handle = (struct kvt_handle){ 0, 0, 0 };
			if (walk_now(0, keys, n_keys, &handle, NULL) == 0)
				found += handle.positions;
			assert_true(handle.positions <= n_keys);
		}
		teardown(NULL); /* the core is not asked about garbage */
		setup(NULL);
		w.seed = round + 2;
		header = w.arena;
		words = (uint64_t *)(header + 1);
		record = (struct kvt_namespace_record *)(uintptr_t)&w.view.namespaces[w.ns[0]];
	}
	assert_true(found > 0);
}
