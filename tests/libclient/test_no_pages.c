/* SPDX-License-Identifier: Apache-2.0 */
/* Sequences without pages (KVT_F_NO_PAGES): EXTEND gives them, and commits bring the keys that had
 * no slot. Two clients of a core in this process. */

#include "kvtrunk_sequences.h"
#include "tests/lib/cases.h"
#include "tests/lib/inprocess.h"

enum { PS = 4, N_PAGES = 65, HALF = N_PAGES / 2 * PS };

static struct inside inside;
static struct kvt_client *writer, *reader;
static uint32_t keys[2 * HALF];

static int setup(void **state)
{
	struct kvt_core_config config = { .page_size = PS, .n_pages = N_PAGES, .hash_seed = 7 };

	inside_start_pair(&inside, &config, &writer, &reader);
	for (uint32_t i = 0; i < 2 * HALF; i++)
		keys[i] = 1 + i;
	return 0;
}

static int teardown(void **state)
{
	inside_end_pair(&inside, writer, reader);
	return 0;
}

static struct kvt_request request(struct kvt_client *client, uint32_t n_keys)
{
	return (struct kvt_request){
		.flags = KVT_F_NO_PAGES,
		.namespace_id = inside_namespace(&inside, client, 1),
		.keys = keys,
		.n_keys = n_keys,
	};
}

static struct kvt_seq *begin(struct kvt_client *client, uint32_t n_keys)
{
	const struct kvt_request wanted = request(client, n_keys);
	struct kvt_seq *seq;

	assert_int_equal(kvt_seq_start(client, &wanted, &seq), 0);
	assert_int_equal(kvt_seq_known(seq), n_keys);
	return seq;
}

static uint32_t n_pages(const struct kvt_seq *seq)
{
	uint32_t n;

	kvt_seq_pages(seq, &n);
	return n;
}

/* Positions that a BEGIN of so many keys would reuse. */
static uint32_t reused(uint32_t n_keys)
{
	struct kvt_seq *seq = begin(reader, n_keys);
	uint32_t positions = kvt_seq_reusable(seq);

	assert_int_equal(n_pages(seq), positions / PS);
	assert_int_equal(kvt_seq_end(seq, 0, NULL, 0, KVT_IDLE, 0), 0);
	return positions;
}

TEST_WITH(a_sequence_without_pages_gets_them_by_extend, setup, teardown)
{
	struct kvt_seq *seq = begin(writer, 8);

	assert_int_equal(n_pages(seq), 0);
	assert_int_equal(inside_counters(&inside).private_pages, 0);
	assert_int_equal(kvt_seq_extend(seq, 8), 0);
	assert_int_equal(kvt_seq_commit(seq, 8, NULL, 0, KVT_IDLE, 0), 0);
	assert_int_equal(kvt_seq_end(seq, 0, NULL, 0, KVT_IDLE, 0), 0);
	assert_int_equal(reused(12), 8);
}

TEST_WITH(commits_bring_the_keys_of_a_prompt_of_half_the_pool, setup, teardown)
{
	struct kvt_seq *seq = begin(writer, HALF);

	for (uint32_t done = 0; done < HALF; done += 8 * PS) {
		assert_int_equal(kvt_seq_extend(seq, 8 * PS), 0);
		assert_int_equal(kvt_seq_commit(seq, done + 8 * PS, NULL, 0, KVT_IDLE, 0), 0);
	}
	assert_int_equal(kvt_seq_known(seq), HALF);
	assert_int_equal(kvt_seq_end(seq, 0, NULL, 0, KVT_IDLE, 0), 0);
	assert_int_equal(reused(HALF + 1), HALF);
}

TEST_WITH(asynchronous_commits_and_an_end_bring_them_too, setup, teardown)
{
	struct kvt_seq *seq = begin(writer, HALF);

	assert_int_equal(kvt_seq_extend(seq, HALF), 0);
	assert_int_equal(kvt_seq_commit_async(seq, HALF / 2, NULL, 0, KVT_IDLE, 0), 0);
	assert_int_equal(kvt_seq_settle(seq), 0);
	assert_int_equal(kvt_seq_end(seq, HALF, NULL, 0, KVT_IDLE, 0), 0);
	assert_int_equal(reused(HALF + 1), HALF);
}

/* Nothing but what is cached has a slot then: all of that is reused, its last page, too. */
TEST_WITH(one_that_can_announce_nothing_reuses_all_that_is_cached, setup, teardown)
{
	struct kvt_seq *first = begin(writer, 16), *others, *seq;

	assert_int_equal(kvt_seq_extend(first, 16), 0);
	assert_int_equal(kvt_seq_end(first, 16, NULL, 0, KVT_IDLE, 0), 0);
	for (uint32_t i = 0; i < HALF; i++)
		keys[i] += 1000;
	others = begin(reader, HALF); /* takes all slots */
	for (uint32_t i = 0; i < HALF; i++)
		keys[i] -= 1000;
	seq = begin(writer, HALF);
	assert_int_equal(kvt_seq_reusable(seq), 16);
	assert_int_equal(kvt_seq_end(others, 0, NULL, 0, KVT_IDLE, 0), 0);
	assert_int_equal(kvt_seq_extend(seq, HALF - 16), 0);
	assert_int_equal(kvt_seq_commit(seq, HALF, NULL, 0, KVT_IDLE, 0), 0);
	assert_int_equal(kvt_seq_end(seq, 0, NULL, 0, KVT_IDLE, 0), 0);
	assert_int_equal(reused(HALF + 1), HALF);
}

/* A scheduler's: what the refusal says fits is begun, and the sequence holds the other keys. */
TEST_WITH(a_submitted_begin_of_fewer_keys_is_given_the_others, setup, teardown)
{
	struct kvt_request wanted = request(writer, HALF);
	struct kvt_result answer;
	struct kvt_seq *seq;

	wanted.op = KVT_OP_BEGIN;
	for (;;) {
		assert_int_equal(kvt_submit(writer, &wanted), 0);
		assert_int_equal(kvt_reap(writer, &answer, 1, 1), 1);
		if (answer.error == 0)
			break;
		assert_int_equal(answer.error, -ENOSPC);
		assert_int_equal(answer.reason, KVT_REASON_SLOTS);
		assert_true(answer.available * PS < wanted.n_keys);
		wanted.n_keys = answer.available * PS;
		wanted.flags |= KVT_F_FULL;
	}
	assert_true(wanted.n_keys < HALF);
	assert_int_equal(kvt_seq_adopt(writer, &answer, wanted.n_keys, &seq), 0);
	assert_int_equal(kvt_seq_hold(seq, keys + wanted.n_keys, HALF - wanted.n_keys), 0);
	assert_int_equal(kvt_seq_known(seq), HALF);
	assert_int_equal(kvt_seq_extend(seq, HALF), 0);
	assert_int_equal(kvt_seq_commit(seq, HALF, NULL, 0, KVT_IDLE, 0), 0);
	assert_int_equal(kvt_seq_end(seq, 0, NULL, 0, KVT_IDLE, 0), 0);
	assert_int_equal(kvt_seq_hold(seq, keys, 1), -EINVAL);
	assert_int_equal(reused(HALF + 1), HALF);
}

TEST_WITH(extra_positions_are_pages_and_refused, setup, teardown)
{
	struct kvt_request wanted = request(writer, 8);
	struct kvt_seq *seq;

	wanted.arg = 4;
	assert_int_equal(kvt_seq_start(writer, &wanted, &seq), -EINVAL);
	assert_int_equal(kvt_client_error(writer)->reason, KVT_REASON_BAD_FIELD);
}
