/* SPDX-License-Identifier: Apache-2.0 */
/* A minimum length (kvt_request.min_positions): one position less shares nothing, that many do. Two
 * clients of a core in this process. */

#include "kvtrunk_sequences.h"
#include "tests/lib/cases.h"
#include "tests/lib/inprocess.h"

enum { PS = 4, N_PAGES = 65, MIN = 12 };

static struct inside inside;
static struct kvt_client *writer, *reader;
static uint32_t keys[32];

static int setup(void **state)
{
	struct kvt_core_config config = { .page_size = PS, .n_pages = N_PAGES, .hash_seed = 7 };

	inside_start_pair(&inside, &config, &writer, &reader);
	for (uint32_t i = 0; i < 32; i++)
		keys[i] = 1 + i;
	return 0;
}

static int teardown(void **state)
{
	inside_end_pair(&inside, writer, reader);
	return 0;
}

static struct kvt_seq *begin(struct kvt_client *client, uint32_t n_keys, uint32_t min_positions)
{
	const struct kvt_request request = {
		.namespace_id = inside_namespace(&inside, client, 1),
		.keys = keys,
		.n_keys = n_keys,
		.arg = 4,
		.min_positions = min_positions,
	};
	struct kvt_seq *seq;

	assert_int_equal(kvt_seq_start(client, &request, &seq), 0);
	return seq;
}

/* Compute all keys of a prompt. Returns the pages that it published. */
static uint32_t published(uint32_t n_keys, uint32_t min_positions)
{
	struct kvt_seq *seq = begin(writer, n_keys, min_positions);
	uint64_t before = inside_counters(&inside).cached_pages;

	assert_int_equal(kvt_seq_commit(seq, n_keys, NULL, 0, KVT_IDLE, 0), 0);
	assert_int_equal(kvt_seq_end(seq, 0, NULL, 0, KVT_IDLE, 0), 0);
	return (uint32_t)(inside_counters(&inside).cached_pages - before);
}

static uint32_t reused(uint32_t n_keys, uint32_t min_positions)
{
	struct kvt_seq *seq = begin(reader, n_keys, min_positions);
	uint32_t positions = kvt_seq_reusable(seq);

	assert_int_equal(kvt_seq_end(seq, 0, NULL, 0, KVT_IDLE, 0), 0);
	return positions;
}

TEST_WITH(a_prompt_below_the_minimum_neither_publishes_nor_reads, setup, teardown)
{
	assert_int_equal(published(MIN - 1, MIN), 0);
	assert_int_equal(published(MIN - 1, 0), 2);
	assert_int_equal(reused(MIN - 1, MIN), 0);
	assert_int_equal(reused(MIN - 1, 0), 8);
}

TEST_WITH(a_prompt_as_long_as_the_minimum_publishes_and_reads, setup, teardown)
{
	assert_int_equal(published(MIN, MIN), 3);
	assert_int_equal(reused(MIN, MIN), 8); /* a position is left to compute */
	assert_int_equal(reused(MIN + 1, MIN), MIN);
}

TEST_WITH(a_match_below_the_minimum_is_not_reused, setup, teardown)
{
	assert_int_equal(published(MIN, 0), 3);
	assert_int_equal(reused(MIN + 2 * PS, MIN + 1), 0);
	assert_int_equal(reused(MIN + 2 * PS, MIN), MIN);
}
