/* SPDX-License-Identifier: Apache-2.0 */
/* Side pages of sequences (libclient/sides.c): a point is found where it was made, and a page that
 * the tree did not take is free after the end, however that comes. Two clients of a core in this
 * process, with two kinds. */

#include "kvtrunk_pool.h"
#include "kvtrunk_sequences.h"
#include "tests/lib/cases.h"
#include "tests/lib/inprocess.h"

enum { PS = 4, N_PAGES = 65, KEYS = 17, TABLE = 5 };

static struct inside inside;
static struct kvt_client *mine, *other;
static uint32_t ns, other_ns, keys[64];

static int setup(void **state)
{
	struct kvt_core_config config = { .page_size = PS, .n_pages = N_PAGES, .hash_seed = 7,
					  .n_sides = 2, .side_pages = { 2, 1 } };

	inside_start_pair(&inside, &config, &mine, &other);
	ns = inside_namespace(&inside, mine, 1);
	other_ns = inside_namespace(&inside, other, 1);
	for (uint32_t i = 0; i < 64; i++)
		keys[i] = 1 + i;
	return 0;
}

static int teardown(void **state)
{
	inside_end_pair(&inside, mine, other);
	return 0;
}

static struct kvt_seq *begin(struct kvt_client *client)
{
	struct kvt_seq *seq;

	assert_int_equal(kvt_seq_begin(client, client == mine ? ns : other_ns, keys, KEYS, 3, 0,
				       &seq), 0);
	return seq;
}

static void commit(struct kvt_seq *seq, uint32_t computed)
{
	assert_int_equal(kvt_seq_commit(seq, computed, NULL, 0, KVT_IDLE, 0), 0);
}

static void end(struct kvt_seq *seq)
{
	assert_int_equal(kvt_seq_end(seq, 0, NULL, 0, KVT_IDLE, 0), 0);
}

/* Attach a point behind page `last`: both kinds. ret_pages: in the order of kvt_seq_sides(). */
static void attach_point(struct kvt_client *client, struct kvt_seq *seq, uint32_t last,
			 uint32_t ret_pages[3])
{
	assert_int_equal(kvt_alloc(client, 3, ret_pages), 0);
	assert_int_equal(kvt_seq_attach(seq, last - 1, 0, ret_pages[0]), 0);
	assert_int_equal(kvt_seq_attach(seq, last, 0, ret_pages[1]), 0);
	assert_int_equal(kvt_seq_attach(seq, last, 1, ret_pages[2]), 0);
}

static void check_sides(const struct kvt_seq *seq, uint32_t kind, const uint32_t *pages,
			uint32_t n)
{
	const uint32_t *sides;
	uint32_t n_sides;

	sides = kvt_seq_sides(seq, kind, &n_sides);
	assert_int_equal(n_sides, n);
	if (n)
		assert_memory_equal(sides, pages, n * sizeof(*pages));
}

/* The pages of no lease and no session, but for what is cached. */
static void await_private(uint32_t n)
{
	struct kvt_counters counters;

	do
		assert_int_equal(kvt_stats(mine, &counters), 0);
	while (counters.private_pages != n || mine->n_flying > 0);
}

TEST_WITH(a_sequence_begins_behind_the_last_point, setup, teardown)
{
	struct kvt_seq *first = begin(mine), *second;
	uint32_t pages[3], table[TABLE], n;

	memcpy(table, kvt_seq_pages(first, NULL), sizeof(table));
	check_sides(first, 0, NULL, 0);
	commit(first, 8);
	attach_point(mine, first, 2, pages);
	commit(first, 16);
	assert_int_equal(kvt_seq_next(first), 16);
	assert_memory_equal(kvt_seq_pages(first, &n), table, sizeof(table));
	assert_int_equal(n, TABLE);
	second = begin(other);
	assert_int_equal(kvt_seq_matched(second), 16);
	assert_int_equal(kvt_seq_reusable(second), 12);
	assert_int_equal(kvt_seq_next(second), 12);
	check_sides(second, 0, pages, 2);
	check_sides(second, 1, pages + 2, 1);
	assert_null(kvt_seq_sides(second, 2, &n));
	end(first);
	end(second);
	await_private(0);
	assert_int_equal(inside_counters(&inside).side_pages, 3);
}

TEST_WITH(pages_that_are_not_taken_stay_readable_until_the_end, setup, teardown)
{
	struct kvt_seq *first = begin(mine), *second = begin(other);
	uint32_t pages[3], twins[3];

	attach_point(mine, first, 3, pages);
	commit(first, 16);
	attach_point(other, second, 3, twins);
	commit(second, 16);
	end(first);
	/* Its table, with 4 duplicates, and its 3 side pages. */
	await_private(TABLE + 3);
	end(second);
	await_private(0);
	first = begin(mine);
	check_sides(first, 0, pages, 2);
	end(first);
}

TEST_WITH(an_end_publishes_with_the_side_pages_attached_for_it, setup, teardown)
{
	struct kvt_seq *seq = begin(mine);
	struct kvt_handle handle;
	uint32_t pages[3];

	attach_point(mine, seq, 3, pages);
	assert_int_equal(kvt_seq_end_handle(seq, 16, NULL, 0, KVT_IDLE, 0, &handle), 0);
	assert_int_equal(handle.positions, 16);
	seq = begin(mine);
	assert_int_equal(kvt_seq_reusable(seq), 16);
	check_sides(seq, 1, pages + 2, 1);
	attach_point(mine, seq, 3, pages);
	end(seq); /* without a last commit: nothing was to be attached */
	await_private(0);
	assert_int_equal(inside_counters(&inside).side_pages, 3);
}

TEST_WITH(commits_in_flight_behind_an_end_free_what_they_do_not_take, setup, teardown)
{
	const struct kvt_fence fence = { 1, 1 };
	struct kvt_seq *first = begin(mine), *second;
	uint32_t pages[3];

	attach_point(mine, first, 3, pages);
	commit(first, 16);
	second = begin(mine);
	attach_point(mine, second, 3, pages);
	assert_int_equal(kvt_seq_commit_async(second, 16, NULL, 0, fence, 0), 0);
	attach_point(mine, second, 3, pages);
	assert_int_equal(kvt_seq_end_async(second, 16, NULL, 0, fence, 0), 0);
	end(first);
	assert_int_equal(inside_counters(&inside).private_pages, 1 + 6);
	assert_int_equal(kvt_fence_raise(mine, 1, 1), 0);
	await_private(0);
	assert_int_equal(inside_counters(&inside).side_pages, 3);
}

TEST_WITH(a_refused_commit_leaves_its_side_pages_to_the_end, setup, teardown)
{
	struct kvt_seq *seq = begin(mine);
	uint32_t pages[3];

	attach_point(mine, seq, 3, pages);
	assert_int_equal(kvt_seq_attach(seq, 0, 1, pages[0]), 0); /* twice */
	assert_int_equal(kvt_seq_commit(seq, 16, NULL, 0, KVT_IDLE, 0), -EINVAL);
	assert_int_equal(kvt_client_error(mine)->reason, KVT_REASON_PAGE_TWICE);
	assert_int_equal(inside_counters(&inside).cached_pages, 0);
	commit(seq, 12); /* without them */
	attach_point(mine, seq, 3, pages); /* in front of nothing that is cached */
	assert_int_equal(kvt_seq_commit_async(seq, 12, NULL, 0, KVT_IDLE, 0), 0);
	assert_int_equal(kvt_seq_settle(seq), -EINVAL);
	assert_int_equal(kvt_client_error(mine)->reason, KVT_REASON_SIDE_PLACE);
	end(seq);
	await_private(0);
	assert_int_equal(inside_counters(&inside).side_pages, 0);
}

TEST_WITH(what_cannot_be_attached_is_refused_at_once, setup, teardown)
{
	struct kvt_seq *seq = begin(mine);

	assert_int_equal(kvt_seq_attach(seq, 0, 2, 1), -EINVAL);
	assert_non_null(strstr(kvt_client_error(mine)->text, "option sides has 2"));
	assert_int_equal(kvt_seq_attach(seq, TABLE, 0, 1), -EINVAL);
	assert_non_null(strstr(kvt_client_error(mine)->text, "extend"));
	assert_int_equal(kvt_seq_attach(seq, 0, 0, N_PAGES), -EINVAL);
	assert_non_null(strstr(kvt_client_error(mine)->text, "ends at 64"));
	mine->info.n_sides = 0;
	assert_int_equal(kvt_seq_attach(seq, 0, 0, 1), -EINVAL);
	assert_non_null(strstr(kvt_client_error(mine)->text, "configuration"));
	mine->info.n_sides = 2;
	assert_int_equal(kvt_seq_attach(NULL, 0, 0, 1), -EINVAL);
	end(seq);
}

TEST_WITH(a_point_is_dropped_unless_others_need_it, setup, teardown)
{
	struct kvt_seq *seq = begin(mine), *second;
	uint32_t pages[3];

	attach_point(mine, seq, 3, pages);
	commit(seq, 16);
	second = begin(other);
	assert_int_equal(kvt_seq_attach(seq, 3, 1, KVT_NONE), 0);
	commit(seq, 16);
	assert_int_equal(inside_counters(&inside).side_pages, 3);
	end(second);
	assert_int_equal(kvt_seq_attach(seq, 3, 1, KVT_NONE), 0);
	commit(seq, 16);
	assert_int_equal(inside_counters(&inside).side_pages, 2);
	end(seq);
	await_private(0);
}

TEST_WITH(a_sequence_lets_go_of_what_it_has_read, setup, teardown)
{
	struct kvt_seq *seq = begin(mine), *second;
	uint32_t pages[3];

	attach_point(mine, seq, 3, pages);
	commit(seq, 16);
	assert_int_equal(kvt_seq_attach(seq, 3, 1, KVT_SIDE_LET), 0);
	assert_int_equal(kvt_seq_attach(seq, 3, 0, KVT_SIDE_LET), 0);
	commit(seq, 16);
	assert_int_equal(inside_counters(&inside).evictable_pages, 2);
	second = begin(other); /* it continues there, so both are held again */
	check_sides(second, 1, pages + 2, 1);
	assert_int_equal(inside_counters(&inside).evictable_pages, 0);
	assert_int_equal(kvt_seq_attach(seq, 3, 1, KVT_SIDE_LET), 0);
	assert_int_equal(kvt_seq_commit(seq, 16, NULL, 0, KVT_IDLE, 0), 0);
	assert_int_equal(inside_counters(&inside).evictable_pages, 0);
	end(second);
	assert_int_equal(kvt_seq_attach(seq, 4, 1, KVT_SIDE_LET), 0);
	assert_int_equal(kvt_seq_commit(seq, 16, NULL, 0, KVT_IDLE, 0), -EINVAL);
	end(seq); /* frees no page of that number */
	await_private(0);
	assert_int_equal(inside_counters(&inside).side_pages, 3);
}

TEST_WITH(a_sequence_that_was_reset_keeps_its_side_pages_until_the_end, setup, teardown)
{
	struct kvt_seq *seq = begin(mine);
	uint32_t pages[3];

	assert_int_equal(kvt_reset(mine), 0);
	attach_point(mine, seq, 2, pages);
	assert_int_equal(kvt_seq_commit(seq, 12, NULL, 0, KVT_IDLE, 0), -ESTALE);
	attach_point(mine, seq, 3, pages);
	assert_int_equal(kvt_seq_commit_async(seq, 16, NULL, 0, KVT_IDLE, 0), -ESTALE);
	assert_int_equal(inside_counters(&inside).private_pages, TABLE + 6);
	assert_int_equal(kvt_seq_end(seq, 16, NULL, 0, KVT_IDLE, 0), -ESTALE);
	await_private(0);
}

TEST_WITH(a_commit_whose_deadline_passed_still_attaches, setup, teardown)
{
	struct kvt_seq *first = begin(other), *seq = begin(mine);
	uint32_t pages[3], twins[3];

	attach_point(other, first, 3, pages);
	attach_point(mine, seq, 3, twins);
	inside_pause(&inside, true);
	kvt_client_set_timeout(mine, 2000000);
	assert_int_equal(kvt_seq_commit(seq, 16, NULL, 0, KVT_IDLE, 0), -ETIMEDOUT);
	assert_int_equal(kvt_seq_end(seq, 0, NULL, 0, KVT_IDLE, 0), -ETIMEDOUT);
	kvt_client_set_timeout(mine, 0);
	inside_pause(&inside, false);
	commit(first, 16);
	end(first);
	await_private(0);
	assert_int_equal(inside_counters(&inside).side_pages, 3);
}

TEST_WITH(an_end_waits_for_room_with_what_it_frees, setup, teardown)
{
	struct kvt_request nop = { .op = KVT_OP_NOP };
	struct kvt_result results[64];
	struct kvt_seq *seq = begin(mine);
	uint32_t pages[3];
	int n = 0;

	attach_point(mine, seq, 3, pages);
	assert_int_equal(kvt_seq_attach(seq, 0, 1, pages[0]), 0);
	assert_int_equal(kvt_seq_commit(seq, 16, NULL, 0, KVT_IDLE, 0), -EINVAL);
	inside_pause(&inside, true);
	while (kvt_submit(mine, &nop) == 0)
		n++;
	assert_int_equal(kvt_seq_end_async(seq, 0, NULL, 0, KVT_IDLE, 0), -EAGAIN);
	inside_pause(&inside, false);
	assert_int_equal(kvt_reap(mine, results, n, 64), n);
	assert_int_equal(kvt_seq_end_async(seq, 0, NULL, 0, KVT_IDLE, 0), 0);
	await_private(0);
}
