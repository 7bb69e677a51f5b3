/* SPDX-License-Identifier: Apache-2.0 */
/* Calls that probe first and send only the keys that the tree lacks. Their answers are compared
 * with those of a client that cannot read the tree and sends all keys. Both share a core in this
 * process.
 *
 * Inputs: what is cached and announced, and handles that go stale before their entry is taken. */

#include "kvtrunk_sequences.h"
#include "shm/clock.h"
#include "tests/lib/cases.h"
#include "tests/lib/inprocess.h"

enum { PS = 16, N_PAGES = 513, CACHED = 2048, MORE = 512, KEYS = CACHED + MORE };

/* `mine` reads the tree, `blind` does not. */
struct world {
	struct inside inside;
	struct kvt_client *mine, *blind;
	uint32_t ns, blind_ns;
	uint32_t keys[KEYS];
};

static struct world world;
static bool over; /* threads of a test end */

static void cache_keys(void)
{
	uint32_t pages[CACHED / PS];
	struct kvt_result result;

	assert_int_equal(kvt_alloc(world.mine, CACHED / PS, pages), 0);
	assert_int_equal(kvt_insert(world.mine, world.ns, world.keys, CACHED, pages,
				    (struct kvt_handle){ 0, 0, 0 }, KVT_IDLE, 0, &result), 0);
	kvt_result_release(world.mine, &result);
}

static int setup(void **state)
{
	struct kvt_core_config config = { .page_size = PS, .n_pages = N_PAGES, .hash_seed = 7 };

	inside_init(&world.inside, &config);
	inside_start(&world.inside);
	world.mine = inside_connect(&world.inside, 0, 0, 16384, 4096, 20000);
	world.blind = inside_connect(&world.inside, 0, 0, 16384, 4096, 20000);
	world.blind->arena.base = NULL;
	world.ns = inside_namespace(&world.inside, world.mine, 1);
	world.blind_ns = inside_namespace(&world.inside, world.blind, 1);
	for (uint32_t i = 0; i < KEYS; i++)
		world.keys[i] = 1 + i;
	cache_keys();
	return 0;
}

static int teardown(void **state)
{
	inside_close(&world.inside, world.mine);
	inside_close(&world.inside, world.blind);
	assert_int_equal(inside_counters(&world.inside).violations, 0);
	inside_end(&world.inside);
	return 0;
}

/* The entry that `mine` submitted last. */
static const struct kvt_sqe *last_entry(void)
{
	const struct kvt_ring_end *end = &world.mine->ring;

	return &end->sq[(end->sq_tail - 1) & end->sq_mask];
}

static void evict(uint32_t n_pages)
{
	pthread_mutex_lock(&world.inside.lock);
	kvt_core_evict(world.inside.core, n_pages, world.inside.now_ns);
	pthread_mutex_unlock(&world.inside.lock);
}

static void reset(void)
{
	pthread_mutex_lock(&world.inside.lock);
	kvt_core_reset(world.inside.core, world.inside.now_ns);
	kvt_core_wake(world.inside.core, world.inside.now_ns);
	pthread_mutex_unlock(&world.inside.lock);
}

static void match(struct kvt_client *client, const uint32_t *keys, uint32_t n, uint32_t flags,
		  struct kvt_result *ret_result)
{
	uint32_t ns = client == world.mine ? world.ns : world.blind_ns;

	assert_int_equal(kvt_match(client, ns, keys, n, flags, ret_result), 0);
}

static void let_go(struct kvt_client *client, struct kvt_result *result)
{
	if (result->lease.index)
		assert_int_equal(kvt_unlock(client, result->lease, KVT_IDLE), 0);
	kvt_result_release(client, result);
}

/* Both clients must get the same answer. `expected`: positions that `mine` names by a handle. */
static void match_alike(const uint32_t *keys, uint32_t n, uint32_t expected, uint32_t flags)
{
	struct kvt_result a, b;

	match(world.blind, keys, n, flags, &b);
	match(world.mine, keys, n, flags, &a);
	assert_int_equal(last_entry()->positions, expected);
	assert_int_equal(last_entry()->n_keys, n - expected);
	assert_int_equal(a.matched, b.matched);
	assert_int_equal(a.announced, b.announced);
	assert_int_equal(a.handle.node, b.handle.node);
	assert_int_equal(a.handle.generation, b.handle.generation);
	assert_int_equal(a.handle.positions, b.handle.positions);
	assert_int_equal(a.n_pages, b.n_pages);
	if (b.n_pages)
		assert_memory_equal(a.pages, b.pages, b.n_pages * sizeof(*b.pages));
	let_go(world.mine, &a);
	let_go(world.blind, &b);
}

TEST_WITH(a_match_sends_only_keys_that_the_tree_lacks, setup, teardown)
{
	uint32_t other[KEYS];

	for (uint32_t flags = 0; flags <= KVT_F_LOCK; flags += KVT_F_LOCK) {
		match_alike(world.keys, CACHED, CACHED, flags);
		match_alike(world.keys, KEYS, CACHED, flags);
		match_alike(world.keys, CACHED - 1, CACHED - PS, flags);
		memcpy(other, world.keys, sizeof(other));
		other[1000] = 0;
		match_alike(other, CACHED, 1000 / PS * PS, flags);
		other[3] = 0;
		match_alike(other, CACHED, 0, flags);
	}
}

TEST_WITH(a_short_match_sends_all_keys, setup, teardown)
{
	match_alike(world.keys, KVT_PROBE_KEYS - 1, 0, KVT_F_LOCK);
	match_alike(world.keys, KVT_PROBE_KEYS, KVT_PROBE_KEYS, KVT_F_LOCK);
}

TEST_WITH(a_match_behind_a_probe_counts_what_others_announced, setup, teardown)
{
	struct kvt_result result;
	struct kvt_seq *seq;

	assert_int_equal(kvt_seq_begin(world.mine, world.ns, world.keys, KEYS, 0, 0, &seq), 0);
	match_alike(world.keys, KEYS, CACHED, 0);
	match(world.mine, world.keys, KEYS - PS, KVT_F_LOCK, &result);
	assert_int_equal(result.matched, CACHED);
	assert_int_equal(result.announced, MORE - PS);
	let_go(world.mine, &result);
	assert_int_equal(kvt_seq_end(seq, 0, NULL, 0, KVT_IDLE, 0), 0);
}

/* ---------------------------------------------------------------- stale handles */

struct caller {
	pthread_t thread;
	struct kvt_result result;
	struct kvt_seq *seq;
	int rc;
};

static void *call_match(void *context)
{
	struct caller *caller = context;

	caller->rc = kvt_match(world.mine, world.ns, world.keys, KEYS, KVT_F_LOCK,
			       &caller->result);
	return NULL;
}

/* Run a call until its entry lies in the ring of a daemon that does not look. */
static void call_unseen(struct caller *caller, void *(*body)(void *))
{
	const uint32_t *tail = &world.mine->ring.header->sq_tail;
	uint32_t before = kvt_load_acquire(tail);

	inside_pause(&world.inside, true);
	assert_int_equal(pthread_create(&caller->thread, NULL, body, caller), 0);
	while (kvt_load_acquire(tail) == before)
		sched_yield();
}

static void answer(struct caller *caller)
{
	inside_pause(&world.inside, false);
	assert_int_equal(pthread_join(caller->thread, NULL), 0);
}

TEST_WITH(a_match_whose_handle_goes_stale_sends_all_keys, setup, teardown)
{
	struct caller caller = { .rc = 1 };

	call_unseen(&caller, call_match);
	assert_int_equal(last_entry()->positions, CACHED);
	evict(2);
	answer(&caller);
	assert_int_equal(caller.rc, 0);
	assert_int_equal(last_entry()->positions, 0);
	assert_int_equal(last_entry()->n_keys, KEYS);
	assert_int_equal(caller.result.matched, CACHED - 2 * PS);
	assert_int_equal(caller.result.n_pages, CACHED / PS - 2);
	let_go(world.mine, &caller.result);
}

TEST_WITH(a_match_whose_prefix_is_reset_finds_nothing, setup, teardown)
{
	struct caller caller = { .rc = 1 };

	call_unseen(&caller, call_match);
	reset();
	answer(&caller);
	assert_int_equal(caller.rc, 0);
	assert_int_equal(caller.result.matched, 0);
	let_go(world.mine, &caller.result);
}

TEST_WITH(a_submitted_match_with_a_stale_handle_is_refused, setup, teardown)
{
	struct kvt_request request = { .op = KVT_OP_MATCH, .flags = KVT_F_LOCK,
				       .namespace_id = world.ns, .keys = world.keys + CACHED,
				       .n_keys = MORE };
	uint32_t matched, evicted, other;
	struct kvt_result result;

	assert_int_equal(kvt_probe(world.mine, world.ns, world.keys, KEYS, &request.handle,
				   &matched), 0);
	assert_int_equal(matched, CACHED);
	assert_int_equal(kvt_call(world.mine, &request, &result), 0);
	assert_int_equal(result.matched, CACHED);
	let_go(world.mine, &result);
	other = inside_namespace(&world.inside, world.mine, 2);
	request.namespace_id = other;
	assert_int_equal(kvt_call(world.mine, &request, &result), -EINVAL);
	assert_int_equal(kvt_client_error(world.mine)->reason, KVT_REASON_NOT_CONTINUATION);
	request.namespace_id = world.ns;
	assert_int_equal(kvt_evict(world.mine, 1, &evicted), 0);
	assert_int_equal(kvt_call(world.mine, &request, &result), -ESTALE);
	assert_int_equal(kvt_client_error(world.mine)->reason, KVT_REASON_HANDLE_STALE);
}

/* ---------------------------------------------------------------- BEGIN */

static struct kvt_seq *begin(struct kvt_client *client, const uint32_t *keys, uint32_t n,
			     uint32_t flags)
{
	uint32_t ns = client == world.mine ? world.ns : world.blind_ns;
	struct kvt_seq *seq;

	assert_int_equal(kvt_seq_begin(client, ns, keys, n, 20, flags, &seq), 0);
	return seq;
}

/* Begin with both clients, one after the other: same answer, same counters, same tree. */
static void begin_alike(const uint32_t *keys, uint32_t n, uint32_t expected, uint32_t flags)
{
	struct kvt_counters before = inside_counters(&world.inside), middle, after;
	uint32_t matched, reusable, announced, n_pages, cached[N_PAGES], n_mine;
	struct kvt_seq *seq = begin(world.blind, keys, n, flags);
	const uint32_t *pages = kvt_seq_pages(seq, &n_pages);

	matched = kvt_seq_matched(seq);
	reusable = kvt_seq_reusable(seq);
	announced = kvt_seq_announced(seq);
	memcpy(cached, pages, n_pages * sizeof(*pages));
	assert_int_equal(kvt_seq_end(seq, 0, NULL, 0, KVT_IDLE, 0), 0);
	middle = inside_counters(&world.inside);
	seq = begin(world.mine, keys, n, flags);
	assert_int_equal(last_entry()->positions, expected);
	assert_int_equal(last_entry()->n_keys, n - expected);
	assert_int_equal(kvt_seq_matched(seq), matched);
	assert_int_equal(kvt_seq_reusable(seq), reusable);
	assert_int_equal(kvt_seq_announced(seq), announced);
	assert_int_equal(kvt_seq_known(seq), n);
	pages = kvt_seq_pages(seq, &n_mine);
	assert_int_equal(n_mine, n_pages);
	assert_memory_equal(pages, cached, reusable / PS * sizeof(*pages));
	assert_int_equal(kvt_seq_end(seq, 0, NULL, 0, KVT_IDLE, 0), 0);
	after = inside_counters(&world.inside);
	assert_int_equal(after.input_positions - middle.input_positions,
			 middle.input_positions - before.input_positions);
	assert_int_equal(after.hit_positions - middle.hit_positions,
			 middle.hit_positions - before.hit_positions);
	assert_int_equal(after.operations - middle.operations,
			 middle.operations - before.operations);
}

TEST_WITH(a_begin_sends_only_keys_that_the_tree_lacks, setup, teardown)
{
	uint32_t other[KEYS];

	memcpy(other, world.keys, sizeof(other));
	other[1000] = 0;
	begin_alike(world.keys, CACHED, CACHED, 0);
	begin_alike(world.keys, CACHED, CACHED, KVT_F_FULL);
	begin_alike(world.keys, CACHED, CACHED, KVT_F_FORCE_MISS);
	begin_alike(world.keys, KEYS, CACHED, 0);
	begin_alike(world.keys, KEYS - 7, CACHED, 0);
	begin_alike(other, CACHED, 1000 / PS * PS, 0);
	begin_alike(world.keys, KVT_PROBE_KEYS - 1, 0, 0);
}

TEST_WITH(what_a_begin_behind_a_handle_commits_is_found, setup, teardown)
{
	struct kvt_result result;
	struct kvt_seq *seq = begin(world.mine, world.keys, KEYS - 5, 0);
	uint32_t found;

	assert_int_equal(last_entry()->positions, CACHED);
	assert_int_equal(kvt_seq_end(seq, KEYS, world.keys + KEYS - 5, 5, KVT_IDLE, 0), 0);
	match(world.blind, world.keys, KEYS, 0, &result);
	found = result.matched;
	let_go(world.blind, &result);
	assert_int_equal(found, KEYS);
}

static void *call_begin(void *context)
{
	struct caller *caller = context;

	caller->rc = kvt_seq_begin(world.mine, world.ns, world.keys, KEYS, 0, 0, &caller->seq);
	return NULL;
}

TEST_WITH(a_begin_whose_handle_goes_stale_sends_all_keys, setup, teardown)
{
	struct caller caller = { .rc = 1 };

	call_unseen(&caller, call_begin);
	assert_int_equal(last_entry()->positions, CACHED);
	evict(2);
	answer(&caller);
	assert_int_equal(caller.rc, 0);
	assert_int_equal(last_entry()->n_keys, KEYS);
	assert_int_equal(kvt_seq_matched(caller.seq), CACHED - 2 * PS);
	assert_int_equal(kvt_seq_end(caller.seq, KEYS, NULL, 0, KVT_IDLE, 0), 0);
}

/* The lease that it waits for is of an older epoch after the reset, so it is ready, and the prefix
 * that its handle names is gone. */
TEST_WITH(a_begin_whose_handle_goes_stale_while_it_waits_sends_all_keys, setup, teardown)
{
	struct kvt_seq *first = begin(world.blind, world.keys, KEYS, 0);
	struct caller caller = { .rc = 1 };
	int64_t begun_ns = kvt_now_ns(), waited_ms;

	world.mine->begin_wait_ns = 30000000000ll;
	assert_int_equal(pthread_create(&caller.thread, NULL, call_begin, &caller), 0);
	while (inside_counters(&world.inside).waits == 0)
		sched_yield();
	reset();
	assert_int_equal(pthread_join(caller.thread, NULL), 0);
	assert_int_equal(caller.rc, 0);
	assert_int_equal(last_entry()->positions, 0);
	waited_ms = (kvt_now_ns() - begun_ns) / 1000000;
	assert_in_range(last_entry()->ttl_ms, waited_ms < 30000 ? 30000 - waited_ms : 1, 30000);
	assert_int_equal(kvt_seq_matched(caller.seq), 0);
	assert_int_equal(kvt_seq_end(caller.seq, KEYS, NULL, 0, KVT_IDLE, 0), 0);
	assert_int_equal(kvt_seq_end(first, 0, NULL, 0, KVT_IDLE, 0), -ESTALE);
}

/* ---------------------------------------------------------------- the next turn */

/* The entry that `client` submitted last, or the one before it. */
static const struct kvt_sqe *entry_of(const struct kvt_client *client, uint32_t before)
{
	const struct kvt_ring_end *end = &client->ring;

	return &end->sq[(end->sq_tail - 1 - before) & end->sq_mask];
}

/* Run a turn of `n` keys, all computed. Returns the handle that its END gives. */
static struct kvt_handle turn(struct kvt_client *client, uint32_t n)
{
	struct kvt_seq *seq = begin(client, world.keys, n, 0);
	struct kvt_handle handle;

	assert_int_equal(kvt_seq_end_handle(seq, n, NULL, 0, KVT_IDLE, 0, &handle), 0);
	return handle;
}

static struct kvt_seq *next_turn(struct kvt_client *client, struct kvt_handle start, uint32_t n)
{
	uint32_t ns = client == world.mine ? world.ns : world.blind_ns;
	struct kvt_seq *seq;

	assert_int_equal(kvt_seq_continue(client, ns, start, world.keys, n, 20, 0, &seq), 0);
	return seq;
}

static void end(struct kvt_seq *seq)
{
	assert_int_equal(kvt_seq_end(seq, 0, NULL, 0, KVT_IDLE, 0), 0);
}

TEST_WITH(a_next_turn_sends_only_its_own_keys, setup, teardown)
{
	struct kvt_client *clients[] = { world.mine, world.blind };

	for (uint32_t i = 0; i < 2; i++) {
		uint32_t old = CACHED + (i + 1) * 100, known = old / PS * PS;
		struct kvt_handle handle = turn(clients[i], old);
		struct kvt_seq *seq;

		assert_int_equal(handle.positions, known);
		seq = next_turn(clients[i], handle, KEYS);
		assert_int_equal(entry_of(clients[i], 0)->positions, known);
		assert_int_equal(entry_of(clients[i], 0)->n_keys, KEYS - known);
		assert_int_equal(kvt_seq_matched(seq), known);
		assert_int_equal(kvt_seq_known(seq), KEYS);
		end(seq);
	}
}

TEST_WITH(a_next_turn_of_a_short_conversation_is_short, setup, teardown)
{
	struct kvt_handle handle = turn(world.mine, 100);
	struct kvt_seq *seq = next_turn(world.mine, handle, 200);

	assert_int_equal(handle.positions, 96);
	assert_int_equal(last_entry()->n_keys, 104);
	assert_int_equal(kvt_seq_matched(seq), 192);
	end(seq);
}

/* A turn as long as its handle: one position is left to compute. */
TEST_WITH(a_turn_without_keys_of_its_own_begins, setup, teardown)
{
	struct kvt_seq *seq = next_turn(world.mine, turn(world.mine, CACHED), CACHED);

	assert_int_equal(last_entry()->n_keys, 0);
	assert_int_equal(kvt_seq_matched(seq), CACHED);
	assert_int_equal(kvt_seq_reusable(seq), CACHED - PS);
	end(seq);
}

TEST_WITH(a_next_turn_behind_a_stale_handle_finds_what_is_left, setup, teardown)
{
	struct kvt_handle handle = turn(world.mine, CACHED);
	struct kvt_seq *seq;

	evict(2);
	seq = next_turn(world.mine, handle, KEYS);
	assert_int_equal(entry_of(world.mine, 1)->positions, CACHED);
	assert_int_equal(last_entry()->positions, CACHED - 2 * PS);
	assert_int_equal(kvt_seq_matched(seq), CACHED - 2 * PS);
	end(seq);
	seq = next_turn(world.blind, handle, KEYS);
	assert_int_equal(entry_of(world.blind, 1)->positions, CACHED);
	assert_int_equal(entry_of(world.blind, 0)->positions, 0);
	assert_int_equal(entry_of(world.blind, 0)->n_keys, KEYS);
	assert_int_equal(kvt_seq_matched(seq), CACHED - 2 * PS);
	end(seq);
}

TEST_WITH(a_next_turn_with_fewer_keys_than_its_handle_sends_all, setup, teardown)
{
	struct kvt_seq *seq = next_turn(world.mine, turn(world.mine, CACHED), CACHED / 4);

	assert_int_equal(last_entry()->positions, 0);
	assert_int_equal(kvt_seq_matched(seq), CACHED / 4);
	end(seq);
}

TEST_WITH(a_next_turn_in_another_namespace_is_refused, setup, teardown)
{
	uint32_t other = inside_namespace(&world.inside, world.mine, 2);
	struct kvt_handle handle = turn(world.mine, CACHED);
	struct kvt_seq *seq = NULL;

	assert_int_equal(kvt_seq_continue(world.mine, other, handle, world.keys, KEYS, 0, 0, &seq),
			 -EINVAL);
	assert_int_equal(kvt_client_error(world.mine)->reason, KVT_REASON_NOT_CONTINUATION);
	assert_null(seq);
}

TEST_WITH(a_sequence_that_leaves_nothing_ends_without_a_handle, setup, teardown)
{
	struct kvt_handle handle = turn(world.mine, PS - 1);
	struct kvt_seq *seq = begin(world.mine, world.keys, CACHED, 0);

	assert_int_equal(handle.node + handle.generation + handle.positions, 0);
	reset();
	handle.positions = 1;
	assert_int_equal(kvt_seq_end_handle(seq, 0, NULL, 0, KVT_IDLE, 0, &handle), -ESTALE);
	assert_int_equal(handle.positions, 0);
	handle.positions = 1;
	assert_int_equal(kvt_seq_end_handle(NULL, 0, NULL, 0, KVT_IDLE, 0, &handle), 0);
	assert_int_equal(handle.positions, 0);
}

/* ---------------------------------------------------------------- counters */

TEST_WITH(counters_read_are_those_that_the_daemon_answers, setup, teardown)
{
	struct kvt_counters asked, read;

	assert_int_equal(kvt_stats(world.mine, &asked), 0);
	assert_int_equal(kvt_counters_read(world.mine, &read), 0);
	asked.operations = read.operations; /* STATS itself counts when it is answered */
	assert_memory_equal(&read, &asked, sizeof(read));
	assert_int_equal(kvt_counters_read(world.blind, &read), -ENOTSUP);
}

TEST_WITH(counters_inside_an_operation_are_not_read, setup, teardown)
{
	struct kvt_arena_header *arena = world.inside.arena;
	struct kvt_counters read;

	arena->mutation++;
	assert_int_equal(kvt_counters_read(world.mine, &read), -EAGAIN);
	arena->mutation++;
	assert_int_equal(kvt_counters_read(world.mine, &read), 0);
}

static void *allocate_and_free(void *context)
{
	uint32_t pages[7], n = 0;

	(void)context;
	for (; !kvt_load_acquire(&over); n = n % 7 + 1) {
		assert_int_equal(kvt_alloc(world.blind, n, pages), 0);
		assert_int_equal(kvt_free(world.blind, pages, n, KVT_IDLE), 0);
	}
	return NULL;
}

TEST_WITH(counters_read_while_they_change_agree, setup, teardown)
{
	struct kvt_counters counters = { 0 };
	uint32_t private = 0, free_only = 0;
	pthread_t thread;

	over = false;
	assert_int_equal(pthread_create(&thread, NULL, allocate_and_free, NULL), 0);
	while (private == 0 || free_only == 0 || private + free_only < 20000) {
		int rc = kvt_counters_read(world.mine, &counters);

		if (rc == -EAGAIN)
			continue;
		assert_int_equal(rc, 0);
		assert_int_equal(counters.free_pages + counters.private_pages +
					 counters.cached_pages + counters.quarantined_pages,
				 N_PAGES - 1);
		if (counters.private_pages)
			private++;
		else
			free_only++;
	}
	kvt_store_release(&over, true);
	assert_int_equal(pthread_join(thread, NULL), 0);
}

/* ---------------------------------------------------------------- a race */

enum { ROUNDS = 300 };

static uint32_t content[N_PAGES]; /* of each page: its place in the prompt, from 1 */

/* Evict pages of the prompt and compute them again. */
static void *evict_and_compute(void *context)
{
	(void)context;
	for (uint32_t n = 1; !kvt_load_acquire(&over); n = n % 7 + 1) {
		struct kvt_seq *seq;
		const uint32_t *pages;
		uint32_t evicted;

		assert_int_equal(kvt_evict(world.blind, n, &evicted), 0);
		seq = begin(world.blind, world.keys, CACHED, 0);
		pages = kvt_seq_pages(seq, NULL);
		for (uint32_t i = kvt_seq_reusable(seq) / PS; i < CACHED / PS; i++)
			kvt_store_relaxed(&content[pages[i]], i + 1);
		assert_int_equal(kvt_seq_end(seq, CACHED, NULL, 0, KVT_IDLE, 0), 0);
	}
	return NULL;
}

/* BEGIN, look at what is reused, spoil what is to be computed, END. */
static void begin_and_look(void)
{
	struct kvt_seq *seq = begin(world.mine, world.keys, KEYS, 0);
	uint32_t reusable = kvt_seq_reusable(seq) / PS;
	const uint32_t *pages = kvt_seq_pages(seq, NULL);

	for (uint32_t i = 0; i < reusable; i++)
		assert_int_equal(kvt_load_relaxed(&content[pages[i]]), i + 1);
	for (uint32_t i = reusable; i < KEYS / PS; i++)
		kvt_store_relaxed(&content[pages[i]], UINT32_MAX);
	assert_int_equal(kvt_seq_end(seq, 0, NULL, 0, KVT_IDLE, 0), 0);
}

/* Whatever becomes of a handle between its probe and its BEGIN: a page that is reused has what
 * belongs there. */
TEST_WITH(begins_race_with_evictions, setup, teardown)
{
	uint32_t rounds = 0, entries = 0, from, evicted;
	pthread_t thread;

	world.mine->begin_wait_ns = -1;
	world.blind->begin_wait_ns = -1;
	assert_int_equal(kvt_evict(world.mine, CACHED / PS, &evicted), 0);
	assert_int_equal(evicted, CACHED / PS);
	over = false;
	from = world.mine->ring.sq_tail;
	assert_int_equal(pthread_create(&thread, NULL, evict_and_compute, NULL), 0);
	/* Until more was sent than a BEGIN and an END each: a handle went stale. */
	while (rounds < ROUNDS || entries == 2 * rounds) {
		begin_and_look();
		rounds++;
		entries = world.mine->ring.sq_tail - from;
	}
	kvt_store_release(&over, true);
	assert_int_equal(pthread_join(thread, NULL), 0);
	print_message("%u handles of %u went stale\n", entries - 2 * rounds, rounds);
}
