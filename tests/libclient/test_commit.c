/* SPDX-License-Identifier: Apache-2.0 */
/* Commits in flight (kvt_seq_commit_async()): what they change, when the caller sees it, and what
 * they leave alone. Two clients of a core in this process; no page may be lost or shared by
 * mistake. */

#include "kvtrunk_pool.h"
#include "kvtrunk_sequences.h"
#include "tests/lib/cases.h"
#include "tests/lib/inprocess.h"

enum { PS = 4, N_PAGES = 65, KEYS = 33, TABLE = 9 };

/* `mine` commits without waiting; `other` computes the same keys. */
struct world {
	struct inside inside;
	struct kvt_client *mine, *other;
	uint32_t ns, other_ns;
	uint32_t keys[64];
};

static struct world world;

static void open_world(uint32_t sq, uint32_t cq, uint64_t list)
{
	struct kvt_core_config config = { .page_size = PS, .n_pages = N_PAGES, .hash_seed = 7 };

	inside_init(&world.inside, &config);
	inside_start(&world.inside);
	world.mine = inside_connect(&world.inside, sq, cq, 0, list, 20000);
	world.other = inside_connect(&world.inside, 0, 0, 0, 0, 20000);
	world.ns = inside_namespace(&world.inside, world.mine, 1);
	world.other_ns = inside_namespace(&world.inside, world.other, 1);
	for (uint32_t i = 0; i < 64; i++)
		world.keys[i] = 1 + i;
}

static void close_world(void)
{
	if (world.mine)
		inside_close(&world.inside, world.mine);
	inside_close(&world.inside, world.other);
	inside_end(&world.inside);
}

static int setup(void **state)
{
	open_world(0, 0, 0);
	return 0;
}

static int teardown(void **state)
{
	close_world();
	return 0;
}

static struct kvt_seq *begin(struct kvt_client *client)
{
	uint32_t ns = client == world.mine ? world.ns : world.other_ns;
	struct kvt_seq *seq;

	assert_int_equal(kvt_seq_begin(client, ns, world.keys, KEYS, 3, 0, &seq), 0);
	return seq;
}

static void end(struct kvt_seq *seq)
{
	assert_int_equal(kvt_seq_end(seq, 0, NULL, 0, KVT_IDLE, 0), 0);
}

static int commit(struct kvt_seq *seq, uint32_t computed)
{
	return kvt_seq_commit_async(seq, computed, NULL, 0, KVT_IDLE, KVT_F_CHUNKED);
}

static int commit_behind(struct kvt_seq *seq, uint32_t computed, uint64_t value)
{
	return kvt_seq_commit_async(seq, computed, NULL, 0, (struct kvt_fence){ 1, value },
				    KVT_F_CHUNKED);
}

static void copy_table(const struct kvt_seq *seq, uint32_t *ret_table)
{
	uint32_t n;

	memcpy(ret_table, kvt_seq_pages(seq, &n), TABLE * sizeof(*ret_table));
	assert_int_equal(n, TABLE);
}

/* Compare the daemon's record of a page. */
static void check_page(uint32_t page, uint32_t state, const struct kvt_client *owner)
{
	struct kvt_request request = { .op = KVT_OP_PAGE, .arg = page };
	struct kvt_result result;

	assert_int_equal(kvt_call(world.other, &request, &result), 0);
	assert_int_equal(result.state, state);
	if (owner)
		assert_int_equal(result.owner, inside_session_of(&world.inside, owner)->session);
}

/* Run the daemon until `n` positions of the keys are cached. */
static void await_cached(uint32_t n)
{
	struct kvt_result result;

	do
		assert_int_equal(kvt_match(world.other, world.other_ns, world.keys, KEYS,
					   KVT_F_NO_TOUCH, &result), 0);
	while (result.matched < n);
	assert_int_equal(result.matched, n);
}

/* Take answers from the ring, by a call that concerns no sequence. */
static void take_answers(uint32_t left)
{
	struct kvt_counters counters;

	do
		assert_int_equal(kvt_stats(world.mine, &counters), 0);
	while (world.mine->n_flying > left);
}

TEST_WITH(a_commit_does_not_wait_for_a_daemon_that_is_away, setup, teardown)
{
	struct kvt_seq *seq = begin(world.mine);
	const uint32_t *pages = kvt_seq_pages(seq, NULL);
	uint32_t table[TABLE], now[TABLE];

	copy_table(seq, table);
	inside_pause(&world.inside, true);
	assert_int_equal(commit(seq, 8), 0);
	assert_int_equal(kvt_seq_next(seq), 8);
	assert_int_equal(commit(seq, 12), 0);
	assert_int_equal(kvt_seq_next(seq), 12);
	assert_int_equal(kvt_seq_poll(seq), 2);
	assert_ptr_equal(kvt_seq_pages(seq, NULL), pages);
	copy_table(seq, now);
	assert_memory_equal(now, table, sizeof(table));
	inside_pause(&world.inside, false);
	assert_int_equal(kvt_seq_settle(seq), 0);
	assert_int_equal(kvt_seq_poll(seq), 0);
	assert_int_equal(kvt_seq_next(seq), 12);
	copy_table(seq, now);
	assert_memory_equal(now, table, sizeof(table));
	await_cached(12);
	end(seq);
}

TEST_WITH(a_commit_wakes_a_daemon_that_sleeps, setup, teardown)
{
	struct kvt_ring_end *ring = &world.mine->ring;
	struct kvt_seq *seq;

	for (uint32_t i = 0; i < 20; i++) {
		seq = begin(world.mine);
		while (!kvt_load_relaxed(&ring->header->sq_need_wakeup))
			kvt_cpu_relax();
		assert_int_equal(commit(seq, 8), 0);
		while (inside_counters(&world.inside).cached_pages != 2)
			kvt_cpu_relax();
		end(seq);
		assert_int_equal(kvt_remove(world.mine, world.ns, NULL, 0), 0);
		while (inside_counters(&world.inside).cached_pages)
			kvt_cpu_relax();
	}
}

TEST_WITH(what_others_computed_is_seen_in_a_call_on_the_sequence_only, setup, teardown)
{
	struct kvt_seq *seq = begin(world.mine), *others = begin(world.other);
	uint32_t before[TABLE], theirs[TABLE], now[TABLE];

	copy_table(seq, before);
	assert_int_equal(kvt_seq_commit(others, 16, NULL, 0, KVT_IDLE, KVT_F_CHUNKED), 0);
	copy_table(others, theirs);
	assert_int_equal(commit(seq, 8), 0);
	take_answers(0);
	assert_int_equal(kvt_seq_next(seq), 8);
	copy_table(seq, now);
	assert_memory_equal(now, before, sizeof(before));
	/* The table in use still names pages of this sequence: duplicates, and pages that it may be
	 * writing meanwhile. */
	for (uint32_t i = 0; i < TABLE; i++)
		check_page(before[i], KVT_PAGE_PRIVATE, world.mine);
	assert_int_equal(kvt_seq_poll(seq), 0);
	assert_int_equal(kvt_seq_next(seq), 16);
	copy_table(seq, now);
	assert_memory_equal(now, theirs, 4 * sizeof(*now));
	assert_memory_equal(now + 4, before + 4, (TABLE - 4) * sizeof(*now));
	for (uint32_t i = 0; i < 4; i++)
		check_page(before[i], KVT_PAGE_PRIVATE, world.mine);
	/* A plain commit frees its own duplicates, not the ones kept. */
	assert_int_equal(kvt_seq_commit(others, 24, NULL, 0, KVT_IDLE, KVT_F_CHUNKED), 0);
	assert_int_equal(kvt_seq_commit(seq, 20, NULL, 0, KVT_IDLE, KVT_F_CHUNKED), 0);
	assert_int_equal(kvt_seq_next(seq), 24);
	for (uint32_t i = 0; i < 4; i++)
		check_page(before[i], KVT_PAGE_PRIVATE, world.mine);
	check_page(before[4], KVT_PAGE_FREE, NULL);
	check_page(before[5], KVT_PAGE_FREE, NULL);
	end(seq);
	for (uint32_t i = 0; i < 4; i++)
		check_page(before[i], KVT_PAGE_FREE, NULL);
	end(others);
}

/* Others sealed 20 positions. 10 is inside a page; 14 is already past; 26 continues behind the jump
 * with what was computed through the old table. */
static void go_past(bool answer_is_there)
{
	struct kvt_seq *seq = begin(world.mine), *others = begin(world.other);
	uint32_t before[TABLE], theirs[TABLE], now[TABLE];

	copy_table(seq, before);
	assert_int_equal(kvt_seq_commit(others, 20, NULL, 0, KVT_IDLE, KVT_F_CHUNKED), 0);
	copy_table(others, theirs);
	inside_pause(&world.inside, !answer_is_there);
	assert_int_equal(commit(seq, 10), 0);
	if (answer_is_there)
		take_answers(0);
	inside_pause(&world.inside, true);
	assert_int_equal(kvt_seq_next(seq), 10);
	assert_int_equal(commit(seq, 14), 0);
	assert_int_equal(kvt_seq_next(seq), answer_is_there ? 20 : 14);
	assert_int_equal(commit(seq, 26), 0);
	assert_int_equal(kvt_seq_next(seq), 26);
	inside_pause(&world.inside, false);
	assert_int_equal(kvt_seq_settle(seq), 0);
	assert_int_equal(kvt_seq_next(seq), 26);
	copy_table(seq, now);
	assert_memory_equal(now, theirs, 5 * sizeof(*now));
	assert_memory_equal(now + 5, before + 5, (TABLE - 5) * sizeof(*now));
	check_page(before[5], KVT_PAGE_CACHED, NULL);
	check_page(before[6], KVT_PAGE_PRIVATE, world.mine);
	for (uint32_t i = 0; i < 5; i++)
		check_page(before[i], KVT_PAGE_PRIVATE, world.mine);
	await_cached(24);
	end(seq);
	end(others);
	assert_int_equal(kvt_remove(world.mine, world.ns, NULL, 0), 0);
}

TEST_WITH(a_commit_that_a_jump_went_past_changes_nothing, setup, teardown)
{
	go_past(true);
	go_past(false);
}

TEST_WITH(commits_take_effect_in_order_at_their_fences_and_extend_passes, setup, teardown)
{
	struct kvt_seq *seq = begin(world.mine);
	uint32_t before[TABLE], n;
	const uint32_t *pages;

	copy_table(seq, before);
	assert_int_equal(commit_behind(seq, 8, 1), 0);
	assert_int_equal(commit_behind(seq, 16, 2), 0);
	assert_int_equal(commit(seq, 24), 0); /* its fence is reached, older ones are not */
	assert_int_equal(kvt_seq_extend(seq, PS + 1), 0);
	pages = kvt_seq_pages(seq, &n);
	assert_int_equal(n, TABLE + 2);
	assert_memory_equal(pages, before, sizeof(before));
	assert_int_equal(kvt_seq_next(seq), 24);
	assert_int_equal(kvt_seq_poll(seq), 3);
	await_cached(0);
	assert_int_equal(kvt_fence_raise(world.mine, 1, 1), 0);
	await_cached(8);
	while (kvt_seq_poll(seq) != 2)
		;
	assert_int_equal(kvt_seq_next(seq), 24);
	assert_int_equal(kvt_fence_raise(world.mine, 1, 2), 0);
	assert_int_equal(kvt_seq_settle(seq), 0);
	await_cached(24);
	pages = kvt_seq_pages(seq, &n);
	assert_int_equal(n, TABLE + 2);
	assert_memory_equal(pages, before, sizeof(before));
	end(seq);
}

TEST_WITH(extend_waits_when_an_answer_could_not_hold_the_table, setup, teardown)
{
	struct kvt_seq *seq;

	close_world();
	open_world(0, 0, 128); /* the list is too small for a longer table */
	seq = begin(world.mine);
	assert_int_equal(commit_behind(seq, 8, 1), 0);
	kvt_client_set_timeout(world.mine, 2000000);
	assert_int_equal(kvt_seq_extend(seq, 1), -ETIMEDOUT);
	kvt_client_set_timeout(world.mine, 0);
	assert_int_equal(inside_counters(&world.inside).private_pages, TABLE);
	assert_int_equal(kvt_fence_raise(world.mine, 1, 1), 0);
	assert_int_equal(kvt_seq_extend(seq, 1), 0);
	assert_int_equal(kvt_seq_poll(seq), 0);
	assert_int_equal(kvt_seq_next(seq), 8);
	end(seq);
}

/* The answer to a commit in flight has a shorter table than the sequence by now. */
TEST_WITH(pages_of_a_stock_lengthen_a_table_at_once, setup, teardown)
{
	struct kvt_seq *seq = begin(world.mine);
	uint32_t expected[TABLE + 3], n;
	const uint32_t *pages;

	copy_table(seq, expected);
	assert_int_equal(kvt_alloc(world.mine, 3, expected + TABLE), 0);
	assert_int_equal(commit_behind(seq, 8, 1), 0);
	assert_int_equal(kvt_seq_extend_pages(seq, expected + TABLE, 2), 0);
	pages = kvt_seq_pages(seq, &n);
	assert_int_equal(n, TABLE + 2);
	assert_memory_equal(pages, expected, n * sizeof(*pages));
	assert_int_equal(kvt_fence_raise(world.mine, 1, 1), 0);
	await_cached(8);
	assert_int_equal(kvt_seq_extend_pages(seq, expected + TABLE + 2, 1), 0); /* not taken yet */
	assert_int_equal(kvt_seq_settle(seq), 0);
	assert_int_equal(commit(seq, KEYS), 0);
	pages = kvt_seq_pages(seq, &n);
	assert_int_equal(n, TABLE + 3);
	assert_memory_equal(pages, expected, sizeof(expected));
	for (uint32_t i = 0; i < 3; i++)
		check_page(expected[TABLE + i], KVT_PAGE_PRIVATE, world.mine);
	assert_int_equal(kvt_free(world.mine, expected + TABLE, 3, KVT_IDLE), -EINVAL);
	end(seq);
	assert_int_equal(inside_counters(&world.inside).private_pages, 0);
}

TEST_WITH(pages_that_are_not_of_the_stock_are_refused_by_the_next_commit_on_them, setup, teardown)
{
	struct kvt_seq *seq = begin(world.mine);
	uint32_t stock[2], keys[2 * PS] = { 0 };

	assert_int_equal(kvt_alloc(world.mine, 2, stock), 0);
	assert_int_equal(kvt_seq_extend_pages(seq, stock, 0), 0);
	assert_int_equal(kvt_seq_extend_pages(seq, (uint32_t[]){ stock[0], stock[0] }, 2), 0);
	assert_int_equal(kvt_seq_commit(seq, KEYS + PS, keys, PS, KVT_IDLE, 0), -EINVAL);
	end(seq);
	assert_int_equal(kvt_free(world.mine, stock, 2, KVT_IDLE), 0); /* still here */

	close_world();
	open_world(0, 0, 128); /* the list is too small for a longer table */
	seq = begin(world.mine);
	assert_int_equal(kvt_alloc(world.mine, 1, stock), 0);
	assert_int_equal(commit_behind(seq, 8, 1), 0);
	assert_int_equal(kvt_seq_extend_pages(seq, stock, 1), -EAGAIN);
	assert_int_equal(kvt_fence_raise(world.mine, 1, 1), 0);
	assert_int_equal(kvt_seq_settle(seq), 0);
	assert_int_equal(kvt_seq_extend_pages(seq, stock, 1), 0);
	end(seq);
}

TEST_WITH(a_failure_is_told_once_by_the_next_call_that_commits, setup, teardown)
{
	struct kvt_seq *seq = begin(world.mine);

	assert_int_equal(commit(seq, 4), 0);
	assert_int_equal(kvt_seq_settle(seq), 0);
	/* Reported by poll. Later ones in flight fail silently. */
	inside_pause(&world.inside, true);
	for (uint32_t i = 2; i <= 4; i++)
		assert_int_equal(commit(seq, 40 + 4 * i), 0);
	inside_pause(&world.inside, false);
	take_answers(0);
	assert_int_equal(kvt_seq_next(seq), 56);
	assert_int_equal(kvt_seq_extend(seq, 1), 0);
	assert_int_equal(kvt_seq_poll(seq), -EINVAL);
	assert_int_equal(kvt_client_error(world.mine)->reason, KVT_REASON_BEYOND_TABLE);
	assert_non_null(strstr(kvt_client_error(world.mine)->text, "asynchronous"));
	assert_int_equal(kvt_seq_next(seq), 4); /* no more keys are claimed */
	assert_int_equal(kvt_seq_poll(seq), 0);
	assert_int_equal(kvt_seq_settle(seq), 0);
	/* Reported by settle, commit, and the next async commit. None of them submits then. */
	assert_int_equal(commit(seq, 48), 0);
	assert_int_equal(kvt_seq_settle(seq), -EINVAL);
	assert_int_equal(commit(seq, 48), 0);
	assert_int_equal(kvt_seq_commit(seq, 8, NULL, 0, KVT_IDLE, 0), -EINVAL);
	assert_int_equal(kvt_seq_next(seq), 4);
	assert_int_equal(kvt_seq_commit(seq, 8, NULL, 0, KVT_IDLE, 0), 0);
	assert_int_equal(commit(seq, 48), 0);
	take_answers(0);
	assert_int_equal(commit(seq, 12), -EINVAL);
	assert_int_equal(kvt_seq_poll(seq), 0);
	/* Two fail while the first is reported: the second belongs to the same report. */
	inside_pause(&world.inside, true);
	assert_int_equal(commit_behind(seq, 48, 1), 0);
	assert_int_equal(commit_behind(seq, 52, 2), 0);
	inside_pause(&world.inside, false);
	assert_int_equal(kvt_fence_raise(world.mine, 1, 1), 0);
	while (seq->n_ahead > 1)
		take_answers(1);
	assert_int_equal(kvt_seq_poll(seq), -EINVAL);
	assert_int_equal(kvt_fence_raise(world.mine, 1, 2), 0);
	assert_int_equal(kvt_seq_settle(seq), 0);
	/* Reported by END, if not before. */
	assert_int_equal(commit(seq, 48), 0);
	assert_int_equal(kvt_seq_end(seq, 0, NULL, 0, KVT_IDLE, 0), -EINVAL);
	assert_int_equal(inside_counters(&world.inside).private_pages, 0);
	seq = begin(world.mine);
	assert_int_equal(kvt_seq_commit_async(seq, 64, NULL, 0, KVT_IDLE, 0), 0);
	assert_int_equal(kvt_seq_settle(seq), -EINVAL);
	assert_int_equal(kvt_client_error(world.mine)->reason, KVT_REASON_BEYOND_TABLE);
	/* The first error is reported, whatever the later ones. */
	inside_pause(&world.inside, true);
	assert_int_equal(commit(seq, 64), 0);
	assert_int_equal(commit(seq, 35), 0);
	inside_pause(&world.inside, false);
	assert_int_equal(kvt_seq_settle(seq), -EINVAL);
	assert_int_equal(kvt_client_error(world.mine)->reason, KVT_REASON_BEYOND_TABLE);
	assert_int_equal(kvt_seq_commit_async(seq, 4, NULL, 0, KVT_IDLE, KVT_F_FULL), 0);
	assert_int_equal(kvt_seq_settle(seq), -EINVAL);
	assert_int_equal(kvt_client_error(world.mine)->reason, KVT_REASON_BAD_FLAGS);
	assert_int_equal(kvt_seq_commit_async(seq, 4, NULL, 0, (struct kvt_fence){ 999, 1 }, 0),
			 -EINVAL);
	end(seq);
	assert_int_equal(kvt_seq_commit_async(NULL, 4, NULL, 0, KVT_IDLE, 0), -EINVAL);
	assert_int_equal(kvt_seq_commit_async(seq, 4, NULL, 0, KVT_IDLE, 0), -EINVAL);
	assert_int_equal(kvt_seq_poll(seq), -EINVAL);
	assert_int_equal(kvt_seq_settle(seq), -EINVAL);
}

/* Prefill like an engine, with the prefix removed in the middle. */
static void prefill_alone(bool async, bool by_reset)
{
	struct kvt_seq *seq = begin(world.mine);
	uint32_t before[TABLE], now[TABLE], at, n, rounds = 0, refused = 0;

	copy_table(seq, before);
	while ((at = kvt_seq_next(seq)) < KEYS) {
		uint32_t to = at + 8 < KEYS ? at + 8 : KEYS;
		int rc;

		assert_true(++rounds <= (KEYS + 7) / 8);
		if (at == 16) {
			assert_int_equal(kvt_seq_settle(seq), 0);
			assert_int_equal(by_reset ? kvt_reset(world.other) :
						    kvt_remove(world.other, world.other_ns,
							       world.keys, 4), 0);
		}
		rc = async ? commit(seq, to) : kvt_seq_commit(seq, to, NULL, 0, KVT_IDLE, 0);
		assert_true(rc == 0 || (rc == -ESTALE && at >= 16));
		refused += rc != 0;
		assert_int_equal(kvt_seq_next(seq), to);
	}
	assert_int_equal(kvt_seq_settle(seq), async && !refused ? -ESTALE : 0);
	assert_int_equal(kvt_seq_next(seq), KEYS); /* not back to what was published */
	copy_table(seq, now);
	assert_memory_equal(now, before, sizeof(now));
	for (uint32_t i = 4; i < TABLE; i++)
		check_page(now[i], KVT_PAGE_PRIVATE, world.mine);
	/* Decode continues, too. What does not fit is refused as before. */
	assert_int_equal(kvt_seq_extend(seq, PS), 0);
	kvt_seq_pages(seq, &n);
	assert_int_equal(n, TABLE + 1);
	assert_int_equal(kvt_seq_commit(seq, 36, world.keys + KEYS, 3, KVT_IDLE, 0), -ESTALE);
	assert_non_null(strstr(kvt_client_error(world.mine)->text, "BEGIN again"));
	assert_int_equal(commit(seq, 41), -EINVAL);
	assert_int_equal(commit(seq, 40), -ESTALE);
	assert_int_equal(kvt_seq_next(seq), 40);
	assert_int_equal(kvt_seq_poll(seq), 0);
	assert_int_equal(kvt_seq_end(seq, 40, NULL, 0, KVT_IDLE, 0), -ESTALE);
	assert_int_equal(inside_counters(&world.inside).private_pages, 0);
	await_cached(0);
}

TEST_WITH(prefill_continues_when_nothing_is_shared_any_more, setup, teardown)
{
	for (int how = 0; how < 4; how++)
		prefill_alone(how & 1, how & 2);
}

/* Each commit brings the key of the token just sampled. Its KV is not computed, and its position
 * may lie beyond the table. */
TEST_WITH(keys_of_sampled_tokens_are_held_back_until_they_have_a_place, setup, teardown)
{
	struct kvt_result result;

	for (int async = 0; async < 2; async++) {
		struct kvt_seq *seq = begin(world.mine);
		uint32_t n;

		for (uint32_t at = KEYS; at < 44; at++) {
			kvt_seq_pages(seq, &n);
			if (at > n * PS)
				assert_int_equal(kvt_seq_extend(seq, 1), 0);
			assert_int_equal(kvt_seq_known(seq), at);
			if (async)
				assert_int_equal(kvt_seq_commit_async(seq, at, world.keys + at, 1,
								      KVT_IDLE, 0), 0);
			else
				assert_int_equal(kvt_seq_commit(seq, at, world.keys + at, 1,
								KVT_IDLE, 0), 0);
		}
		assert_int_equal(kvt_seq_settle(seq), 0);
		assert_int_equal(kvt_seq_known(seq), 44);
		/* A refused commit takes none of its keys. */
		assert_int_equal(kvt_seq_commit(seq, 46, world.keys + 44, 1, KVT_IDLE, 0),
				 -EINVAL);
		assert_int_equal(kvt_seq_known(seq), 44);
		/* A commit that publishes nothing keeps its keys for later. */
		assert_int_equal(kvt_seq_commit(seq, 4, world.keys + 44, 1, KVT_IDLE, 0), 0);
		assert_int_equal(kvt_seq_known(seq), 45);
		assert_int_equal(kvt_seq_end(seq, 44, world.keys + 45, 1, KVT_IDLE, 0), 0);
		assert_int_equal(kvt_match(world.other, world.other_ns, world.keys, 48, 0,
					   &result), 0);
		assert_int_equal(result.matched, 44);
		assert_int_equal(kvt_reset(world.mine), 0);
	}
}

/* After a failure the caller must give the keys in flight, and those behind them, again. */
TEST_WITH(keys_of_failed_commits_are_given_again, setup, teardown)
{
	struct kvt_seq *seq = begin(world.mine);
	struct kvt_result result;

	inside_pause(&world.inside, true);
	assert_int_equal(kvt_seq_commit_async(seq, KEYS, NULL, 0, KVT_IDLE, 0), 0);
	assert_int_equal(kvt_seq_commit_async(seq, 34, world.keys + 33, 1, KVT_IDLE, KVT_F_FULL),
			 0);
	assert_int_equal(kvt_seq_commit_async(seq, 35, world.keys + 34, 3, KVT_IDLE, 0), 0);
	assert_int_equal(kvt_seq_known(seq), 37);
	inside_pause(&world.inside, false);
	assert_int_equal(kvt_seq_settle(seq), -EINVAL);
	assert_int_equal(kvt_seq_next(seq), KEYS);
	assert_int_equal(kvt_seq_known(seq), KEYS);
	assert_int_equal(kvt_seq_end(seq, 36, world.keys + KEYS, 4, KVT_IDLE, 0), 0);
	assert_int_equal(kvt_match(world.other, world.other_ns, world.keys, 40, 0, &result), 0);
	assert_int_equal(result.matched, 36);
}

TEST_WITH(generated_keys_follow_each_other_in_flight, setup, teardown)
{
	struct kvt_seq *seq = begin(world.mine);
	struct kvt_result result;

	inside_pause(&world.inside, true);
	assert_int_equal(kvt_seq_commit_async(seq, KEYS, NULL, 0, KVT_IDLE, 0), 0);
	for (uint32_t i = KEYS; i < 36; i++) /* copied: the caller's may change at once */
		assert_int_equal(kvt_seq_commit_async(seq, i + 1, &(uint32_t){ world.keys[i] }, 1,
						      KVT_IDLE, 0), 0);
	inside_pause(&world.inside, false);
	assert_int_equal(kvt_seq_settle(seq), 0);
	assert_int_equal(kvt_match(world.other, world.other_ns, world.keys, 40, 0, &result), 0);
	assert_int_equal(result.matched, 36);
	end(seq);
}

TEST_WITH(a_full_ring_is_said_and_recovers, setup, teardown)
{
	struct kvt_result results[4];
	struct kvt_seq *seq, *second;
	uint32_t n = 0;

	close_world();
	open_world(4, 8, 0);
	seq = begin(world.mine);
	second = begin(world.mine);
	inside_pause(&world.inside, true);
	while (commit(seq, 4 * (n + 1)) == 0)
		n++;
	assert_int_equal(n, 4);
	assert_int_equal(commit(seq, 20), -EAGAIN);
	assert_int_equal(commit(second, 4), -EAGAIN);
	assert_int_equal(kvt_seq_next(seq), 16);
	assert_int_equal(kvt_seq_poll(seq), 4);
	inside_pause(&world.inside, false);
	assert_int_equal(kvt_seq_settle(seq), 0);
	assert_int_equal(commit(seq, 20), 0);
	/* kvt_reap() neither waits longer for these nor returns them. */
	assert_int_equal(kvt_reap(world.mine, results, 1, 4), 0);
	assert_int_equal(seq->n_ahead, 0);
	assert_int_equal(kvt_seq_poll(seq), 0);
	/* Answers not taken yet use no slot: more commits than slots are possible. */
	for (n = 0; n < 100; n++) {
		assert_int_equal(commit(second, 20), 0);
		take_answers(0);
	}
	await_cached(20);
	end(second);
	end(seq);
}

TEST_WITH(deadlines_and_commits_in_flight, setup, teardown)
{
	struct kvt_seq *seq = begin(world.mine);
	uint32_t n;

	assert_int_equal(commit_behind(seq, 8, 1), 0);
	kvt_client_set_timeout(world.mine, 2000000);
	assert_int_equal(kvt_seq_settle(seq), -ETIMEDOUT);
	assert_int_equal(kvt_seq_commit(seq, 12, NULL, 0, KVT_IDLE, 0), -ETIMEDOUT);
	assert_int_equal(kvt_seq_poll(seq), 1); /* the second was not even submitted */
	inside_pause(&world.inside, true);
	assert_int_equal(kvt_seq_extend(seq, 2 * PS), -ETIMEDOUT);
	assert_int_equal(commit(seq, 12), -EAGAIN); /* the table's length is not known yet */
	assert_non_null(strstr(kvt_client_error(world.mine)->text, "settle"));
	inside_pause(&world.inside, false);
	kvt_client_set_timeout(world.mine, 0);
	assert_int_equal(kvt_fence_raise(world.mine, 1, 1), 0);
	assert_int_equal(kvt_seq_settle(seq), 0);
	kvt_seq_pages(seq, &n);
	assert_int_equal(n, TABLE + 2);
	assert_int_equal(kvt_seq_next(seq), 8);
	assert_int_equal(commit(seq, 12), 0);
	assert_int_equal(kvt_seq_settle(seq), 0);
	assert_int_equal(kvt_seq_next(seq), 12);
	end(seq);
}

TEST_WITH(an_end_comes_after_the_commits_in_flight, setup, teardown)
{
	struct kvt_seq *seq = begin(world.mine);
	struct kvt_counters counters;

	inside_pause(&world.inside, true);
	assert_int_equal(commit(seq, 8), 0);
	inside_pause(&world.inside, false);
	assert_int_equal(kvt_seq_end(seq, 16, NULL, 0, KVT_IDLE, 0), 0);
	await_cached(16);
	/* If an END gives up on its fence, the library frees everything. */
	assert_int_equal(kvt_remove(world.mine, world.ns, NULL, 0), 0);
	seq = begin(world.mine);
	assert_int_equal(commit_behind(seq, 8, 1), 0);
	assert_int_equal(commit_behind(seq, 16, 1), 0);
	kvt_client_set_timeout(world.mine, 2000000);
	assert_int_equal(kvt_seq_end(seq, 0, NULL, 0, KVT_IDLE, 0), -ETIMEDOUT);
	kvt_client_set_timeout(world.mine, 0);
	assert_int_equal(inside_counters(&world.inside).private_pages, TABLE);
	/* The handle may be reused before the answers come. */
	assert_int_equal(kvt_seq_begin(world.mine, world.ns, world.keys + 40, 8, 0, 0, &seq), 0);
	assert_int_equal(kvt_fence_raise(world.mine, 1, 1), 0);
	take_answers(0);
	assert_int_equal(kvt_seq_poll(seq), 0);
	assert_int_equal(kvt_seq_next(seq), 0);
	end(seq);
	await_cached(16);
	counters = inside_counters(&world.inside);
	assert_int_equal(counters.private_pages + counters.live_leases, 0);
}

TEST_WITH(closing_waits_for_them_and_a_crash_does_not, setup, teardown)
{
	struct kvt_seq *seq = begin(world.mine);

	inside_pause(&world.inside, true);
	assert_int_equal(commit(seq, 8), 0);
	inside_pause(&world.inside, false);
	inside_close(&world.inside, world.mine);
	await_cached(8);
	world.mine = inside_connect(&world.inside, 0, 0, 0, 0, 20000);
	world.ns = inside_namespace(&world.inside, world.mine, 1);
	seq = begin(world.mine);
	assert_int_equal(commit_behind(seq, 16, 1), 0);
	kvt_client_abandon(world.mine);
	inside_forget(&world.inside, world.mine);
	world.mine = NULL;
	await_cached(8);
	assert_int_equal(inside_counters(&world.inside).private_pages, 0);
}

TEST_WITH(the_end_of_the_daemon_is_told, setup, teardown)
{
	struct kvt_seq *seq = begin(world.mine);
	int rc;

	inside_pause(&world.inside, true);
	assert_int_equal(commit(seq, 8), 0);
	inside_hang_up(&world.inside, world.mine);
	do
		rc = kvt_seq_poll(seq);
	while (rc == 1);
	assert_int_equal(rc, -ECONNRESET);
	assert_int_equal(kvt_seq_settle(seq), -ECONNRESET);
	assert_int_equal(commit(seq, 8), -ECONNRESET);
	assert_int_equal(kvt_seq_end(seq, 0, NULL, 0, KVT_IDLE, 0), -ECONNRESET);
	assert_int_equal(kvt_client_close(world.mine, KVT_IDLE), -ECONNRESET);
	inside_pause(&world.inside, false);
	inside_forget(&world.inside, world.mine);
	world.mine = NULL;
}

/* The successor has lost the session: computing continues, nothing is published. */
TEST_WITH(prefill_continues_when_the_daemon_started_cold, setup, teardown)
{
	struct kvt_seq *seq = begin(world.mine);

	kvt_client_lost(world.mine, -ESTALE, "started cold: connect again");
	for (uint32_t at = 0; at < KEYS; at = kvt_seq_next(seq)) {
		uint32_t to = at + 8 < KEYS ? at + 8 : KEYS;

		assert_int_equal(at % 16 ? commit(seq, to) :
					   kvt_seq_commit(seq, to, NULL, 0, KVT_IDLE, 0), -ESTALE);
		assert_int_equal(kvt_seq_next(seq), to);
		assert_non_null(strstr(kvt_client_error(world.mine)->text, "connect again"));
		assert_int_equal(kvt_client_error(world.mine)->attach_state, KVT_ATTACH_GONE);
	}
	assert_int_equal(kvt_seq_end(seq, KEYS, NULL, 0, KVT_IDLE, 0), -ESTALE);
	assert_int_equal(kvt_client_close(world.mine, KVT_IDLE), -ESTALE);
	inside_forget(&world.inside, world.mine);
	world.mine = NULL;
}

/* The caller's own loop sleeps on the completion descriptor. */
TEST_WITH(an_armed_caller_is_woken, setup, teardown)
{
	struct pollfd fd = { .fd = kvt_client_completion_fd(world.mine), .events = POLLIN };
	struct kvt_seq *seq = begin(world.mine);

	assert_int_equal(commit_behind(seq, 8, 1), 0);
	assert_int_equal(kvt_client_arm(world.mine), 0);
	assert_int_equal(kvt_fence_raise(world.mine, 1, 1), 0);
	assert_int_equal(poll(&fd, 1, -1), 1);
	assert_int_equal(kvt_seq_poll(seq), 0);
	end(seq);
}

/* ---- ends and begins that are not waited for */

TEST_WITH(an_end_that_is_not_waited_for_publishes_and_frees, setup, teardown)
{
	struct kvt_seq *seq = begin(world.mine);

	inside_pause(&world.inside, true); /* no answer can come meanwhile */
	assert_int_equal(commit(seq, 8), 0);
	assert_int_equal(kvt_seq_end_async(seq, 16, NULL, 0, KVT_IDLE, 0), 0);
	assert_int_equal(kvt_seq_end_async(seq, 0, NULL, 0, KVT_IDLE, 0), -EINVAL);
	assert_int_equal(kvt_seq_end_async(NULL, 0, NULL, 0, KVT_IDLE, 0), 0);
	inside_pause(&world.inside, false);
	await_cached(16);
	while (inside_counters(&world.inside).live_leases)
		;
	assert_int_equal(inside_counters(&world.inside).cached_pages, 4);
	seq = begin(world.mine); /* the handle, recycled, has nothing of before */
	assert_int_equal(kvt_seq_next(seq), 16);
	assert_int_equal(kvt_seq_poll(seq), 0);
	end(seq);
}

TEST_WITH(an_end_that_is_not_waited_for_keeps_its_pages_up_to_its_fence, setup, teardown)
{
	struct kvt_seq *seq = begin(world.mine);
	const struct kvt_fence fence = { 1, 1 };

	assert_int_equal(kvt_seq_end_async(seq, 8, NULL, 0, fence, 0), 0);
	assert_int_equal(kvt_call(world.mine, &(struct kvt_request){ .op = KVT_OP_NOP },
				  &(struct kvt_result){ 0 }), 0);
	assert_int_equal(inside_counters(&world.inside).private_pages, TABLE);
	assert_int_equal(kvt_fence_raise(world.mine, 1, 1), 0);
	await_cached(8);
}

/* Keys that do not fit: the commit fails, which is not reported, and END ends all the same. */
TEST_WITH(an_end_that_is_not_waited_for_ends_with_a_bad_commit, setup, teardown)
{
	struct kvt_seq *seq = begin(world.mine);

	assert_int_equal(kvt_seq_end_async(seq, 1000, NULL, 0, KVT_IDLE, 0), 0);
	while (inside_counters(&world.inside).live_leases)
		;
	assert_int_equal(inside_counters(&world.inside).cached_pages, 0);
}

TEST(an_end_without_room_changes_nothing)
{
	struct kvt_request nop = { .op = KVT_OP_NOP };
	struct kvt_result results[64];
	struct kvt_seq *seq;
	int n = 0, rc;

	open_world(4, 8, 0);
	seq = begin(world.mine);
	inside_pause(&world.inside, true);
	while (kvt_submit(world.mine, &nop) == 0)
		n++;
	while ((rc = kvt_seq_end_async(seq, 0, NULL, 0, KVT_IDLE, 0)) == 0)
		fail_msg("room for an END behind %d operations", n);
	assert_int_equal(rc, -EAGAIN);
	inside_pause(&world.inside, false);
	assert_int_equal(kvt_reap(world.mine, results, n, 64), n);
	assert_int_equal(kvt_seq_commit(seq, 8, NULL, 0, KVT_IDLE, 0), 0);
	assert_int_equal(kvt_seq_end_async(seq, 12, NULL, 0, KVT_IDLE, 0), 0);
	await_cached(12);
	close_world();
}

static struct kvt_result reaped(struct kvt_client *client)
{
	struct kvt_result result;

	assert_int_equal(kvt_reap(client, &result, 1, 1), 1);
	return result;
}

TEST_WITH(a_begin_that_was_not_waited_for_becomes_a_sequence, setup, teardown)
{
	struct kvt_request request = { .op = KVT_OP_BEGIN, .namespace_id = world.ns,
				       .keys = world.keys, .n_keys = KEYS, .arg = 3,
				       .flags = KVT_F_NO_WAIT, .ttl_ms = 60000 };
	struct kvt_seq *theirs = begin(world.other), *seq = NULL;
	struct kvt_result answer;
	uint32_t n;

	assert_int_equal(kvt_submit(world.mine, &request), 0);
	answer = reaped(world.mine);
	assert_int_equal(answer.error, -EAGAIN);
	assert_int_equal(kvt_seq_adopt(world.mine, &answer, KEYS, &seq), -EINVAL);
	assert_int_equal(kvt_seq_end(theirs, KEYS, NULL, 0, KVT_IDLE, 0), 0);
	answer = reaped(world.mine);
	assert_int_equal(answer.flags & KVT_CQE_ASYNC, KVT_CQE_ASYNC);
	assert_int_equal(kvt_seq_adopt(world.mine, &answer, KEYS, &seq), -EINVAL);
	assert_int_equal(kvt_submit(world.mine, &request), 0);
	answer = reaped(world.mine);
	assert_int_equal(answer.shared, 32);
	assert_int_equal(kvt_seq_adopt(world.mine, &answer, 4 * TABLE + 1, &seq), -EINVAL);
	assert_int_equal(kvt_seq_adopt(world.mine, &answer, 31, &seq), -EINVAL);
	assert_null(seq);
	assert_int_equal(kvt_seq_adopt(world.mine, &answer, KEYS, &seq), 0);
	assert_int_equal(kvt_seq_reusable(seq), 32);
	assert_int_equal(kvt_seq_shared(seq), 32);
	assert_int_equal(kvt_seq_known(seq), KEYS);
	kvt_seq_pages(seq, &n);
	assert_int_equal(n, TABLE);
	assert_int_equal(kvt_seq_commit(seq, 36, (uint32_t[]){ 7, 8, 9 }, 3, KVT_IDLE, 0), 0);
	assert_int_equal(kvt_seq_end_async(seq, 0, NULL, 0, KVT_IDLE, 0), 0);
	assert_int_equal(kvt_seq_adopt(world.mine, &answer, KEYS, &seq), -EINVAL); /* released */
}

static uint32_t listed(struct kvt_request request)
{
	struct kvt_result result;
	uint32_t n;

	assert_int_equal(kvt_call(world.mine, &request, &result), 0);
	n = result.n_pages;
	kvt_result_release(world.mine, &result);
	return n;
}

static int submit(struct kvt_seq *seq, uint32_t op, uint32_t arg, uint64_t user_data)
{
	const struct kvt_request request = { .op = op, .arg = arg, .user_data = user_data,
					     .fence = KVT_IDLE };

	return kvt_seq_submit(seq, &request);
}

/* Reap one answer, that to `user_data`. */
static int told(uint64_t user_data)
{
	struct kvt_result result;

	assert_int_equal(kvt_reap(world.mine, &result, 1, 1), 1);
	assert_int_equal(result.user_data, user_data);
	kvt_result_release(world.mine, &result);
	return result.error;
}

TEST_WITH(answers_are_told_after_their_sequence_took_them_in, setup, teardown)
{
	struct kvt_seq *seq = begin(world.mine);
	struct kvt_counters counters;
	uint32_t n;

	inside_pause(&world.inside, true);
	assert_int_equal(submit(seq, KVT_OP_COMMIT, 8, 11), 0);
	assert_int_equal(submit(seq, KVT_OP_EXTEND, 2 * PS, 12), 0);
	assert_int_equal(submit(seq, KVT_OP_EXTEND, PS, 13), -EBUSY);
	assert_int_equal(submit(seq, KVT_OP_COMMIT, 12, 13), -EBUSY);
	assert_int_equal(kvt_seq_extend_pages(seq, world.keys, 1), -EAGAIN);
	assert_int_equal(commit(seq, 12), -EAGAIN);
	assert_int_equal(submit(seq, KVT_OP_FREE, 0, 13), -EINVAL);
	assert_int_equal(kvt_seq_next(seq), 8);
	inside_pause(&world.inside, false);
	/* Another call takes both answers. They are not lost. */
	assert_int_equal(kvt_stats(world.mine, &counters), 0);
	assert_int_equal(kvt_seq_poll(seq), 0);
	kvt_seq_pages(seq, &n);
	assert_int_equal(n, TABLE + 2);
	assert_int_equal(told(11), 0);
	assert_int_equal(told(12), 0);
	assert_int_equal(submit(seq, KVT_OP_END, 16, 14), 0);
	assert_int_equal(kvt_seq_poll(seq), -EINVAL); /* the handle is free */
	assert_int_equal(told(14), 0);
	await_cached(16);
	assert_int_equal(inside_counters(&world.inside).live_leases, 0);
}

TEST_WITH(an_end_does_not_lose_the_answers_to_commits_before_it, setup, teardown)
{
	struct kvt_seq *seq = begin(world.mine);

	inside_pause(&world.inside, true);
	assert_int_equal(submit(seq, KVT_OP_COMMIT, 8, 1), 0);
	assert_int_equal(submit(seq, KVT_OP_EXTEND, PS, 2), 0);
	assert_int_equal(submit(seq, KVT_OP_END, 12, 3), 0);
	inside_pause(&world.inside, false);
	for (uint64_t user_data = 1; user_data <= 3; user_data++)
		assert_int_equal(told(user_data), 0);
	await_cached(12);
}

TEST_WITH(a_told_failure_is_in_its_answer_only, setup, teardown)
{
	struct kvt_seq *seq = begin(world.mine);

	assert_int_equal(submit(seq, KVT_OP_COMMIT, KEYS + 1, 1), 0); /* its key is not known */
	assert_int_equal(told(1), -EINVAL);
	assert_int_equal(kvt_seq_poll(seq), 0);
	assert_int_equal(submit(seq, KVT_OP_COMMIT, PS * TABLE + 1, 2), -EINVAL);
	assert_int_equal(submit(seq, KVT_OP_EXTEND, PS * (N_PAGES - 1), 3), 0);
	assert_int_equal(told(3), -ENOSPC);
	assert_int_equal(submit(seq, KVT_OP_COMMIT, 8, 4), 0);
	assert_int_equal(told(4), 0);
	assert_int_equal(kvt_remove(world.other, world.other_ns, world.keys, PS), 0);
	assert_int_equal(submit(seq, KVT_OP_COMMIT, 16, 5), 0);
	assert_int_equal(told(5), -ESTALE);
	assert_int_equal(kvt_seq_poll(seq), 0);
	assert_int_equal(kvt_seq_next(seq), 16);
	assert_int_equal(submit(seq, KVT_OP_COMMIT, 20, 6), -ESTALE);
	assert_int_equal(kvt_seq_next(seq), 20);
	assert_int_equal(kvt_seq_end(seq, 0, NULL, 0, KVT_IDLE, 0), -ESTALE);
}

TEST_WITH(begins_that_wait_leave_room_for_what_ends_their_waits, setup, teardown)
{
	struct kvt_request wait = { .op = KVT_OP_BEGIN, .flags = KVT_F_WAIT, .ttl_ms = 60000,
				    .namespace_id = world.ns, .keys = world.keys, .n_keys = KEYS };
	struct kvt_seq *others = begin(world.other), *seq;
	uint32_t sq = world.mine->ring.sq_mask + 1, n = 0;
	struct kvt_result result;
	int rc;

	assert_int_equal(kvt_seq_begin(world.mine, world.ns, world.keys + 40, 8, 0, 0, &seq), 0);
	while ((rc = kvt_submit(world.mine, &wait)) == 0)
		n++;
	assert_int_equal(rc, -EAGAIN);
	assert_int_equal(n, sq / 2);
	assert_int_equal(commit(seq, 8), 0);
	assert_int_equal(kvt_seq_settle(seq), 0);
	end(seq);
	assert_int_equal(kvt_seq_end(others, KEYS, NULL, 0, KVT_IDLE, 0), 0);
	for (uint32_t i = 0; i < n; i++) {
		assert_int_equal(kvt_reap(world.mine, &result, 1, 1), 1);
		assert_int_equal(result.error, 0);
		assert_int_equal(kvt_seq_adopt(world.mine, &result, KEYS, &seq), 0);
		end(seq);
	}
	assert_int_equal(world.mine->waiting.n, 0);
	assert_int_equal(world.mine->waiting.key_words + world.mine->waiting.list_words, 0);
}

static int asked;

/* Interrupt the second time. */
static int interrupted(void)
{
	return ++asked == 2;
}

TEST_WITH(a_function_ends_calls_that_sleep, setup, teardown)
{
	struct kvt_counters counters;
	struct kvt_seq *seq;

	inside_pause(&world.inside, true);
	kvt_set_interrupted(interrupted);
	for (int i = 0; i < 2; i++) {
		asked = 0;
		assert_int_equal(i == 0 ? kvt_stats(world.mine, &counters) :
				 kvt_seq_begin(world.mine, world.ns, world.keys, KEYS, 0, 0, &seq),
				 -EINTR);
		assert_int_equal(asked, 2);
	}
	kvt_set_interrupted(NULL);
	inside_pause(&world.inside, false);
	/* The late answer brought a lease, which the library gives back. */
	take_answers(0);
	assert_int_equal(inside_counters(&world.inside).live_leases, 0);
	assert_int_equal(inside_counters(&world.inside).private_pages, 0);
}

TEST_WITH(a_list_is_left_out, setup, teardown)
{
	struct kvt_seq *seq = begin(world.mine);
	struct kvt_request request = { .op = KVT_OP_COMMIT, .lease = seq->lease, .arg = 4,
				       .flags = KVT_F_KEEP | KVT_F_NO_LIST, .fence = KVT_IDLE };

	assert_int_equal(listed(request), 0);
	request.flags = KVT_F_KEEP;
	request.arg = 8;
	assert_int_equal(listed(request), TABLE);
	end(seq);
}

TEST_WITH(own_stream_takes_pages_that_wait_for_a_fence, setup, teardown)
{
	struct kvt_request request = { .op = KVT_OP_ALLOC, .arg = N_PAGES - 1,
				       .flags = KVT_F_OWN_STREAM };
	struct kvt_result result;
	struct kvt_seq *seq;

	assert_int_equal(kvt_seq_begin(world.mine, world.ns, NULL, 0, PS, 0, &seq), 0);
	assert_int_equal(kvt_seq_end_async(seq, 0, NULL, 0, (struct kvt_fence){ 1, 1 }, 0), 0);
	request.flags = 0;
	assert_int_equal(kvt_call(world.mine, &request, &(struct kvt_result){ 0 }), -ENOSPC);
	request.flags = KVT_F_OWN_STREAM;
	assert_int_equal(kvt_call(world.mine, &request, &result), 0);
	assert_int_equal(kvt_free(world.mine, result.pages, result.n_pages, KVT_IDLE), 0);
	kvt_result_release(world.mine, &result);
	assert_int_equal(kvt_fence_raise(world.mine, 1, 1), 0);
}

TEST_WITH(alloc_with_shorter_asks_for_no_more_than_the_pool_has, setup, teardown)
{
	struct kvt_request request = { .op = KVT_OP_ALLOC, .arg = UINT32_MAX,
				       .flags = KVT_F_SHORTER };

	assert_int_equal(listed(request), N_PAGES - 1);
	request.flags = 0;
	assert_int_equal(kvt_call(world.mine, &request, &(struct kvt_result){ 0 }), -ENOSPC);
}
