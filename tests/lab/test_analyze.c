/* SPDX-License-Identifier: Apache-2.0 */
/* Analysis of a batch: counts of hand-made prompts, and pools of many sizes against the simulated
 * pool, which lockstep replays equal.
 *
 * Inputs: a few prompts in a file, and generated traces. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lab/analyze/batch.h"
#include "lab/analyze/stack.h"
#include "lab/replay/private.h"
#include "tests/lib/cases.h"

/* Two documents with one beginning and another one, then the first two again. Pages of 2: (1,2),
 * (3,4) and (9,9) behind it, (7,7). */
static const char prompts[] = "{\"keys\": [1,2,3,4,5]}\n"
			      "{\"keys\": [1,2,9,9,9]}\n"
			      "{\"keys\": [7,7,7]}\n"
			      "{\"keys\": [1,2,3,4,5]}\n"
			      "{\"keys\": [1,2,9,9,9]}\n";

static struct kvt_trace *load(const struct kvt_trace_options *options)
{
	struct kvt_trace *trace = NULL;
	char why[768] = "";

	if (kvt_trace_load(options, &trace, why, sizeof(why)))
		fail_msg("%s", why);
	return trace;
}

static struct kvt_trace *load_text(const char *text)
{
	char path[] = "/tmp/kvt-analyze-XXXXXX";
	struct kvt_trace_options options = { .format = KVT_TRACE_JSONL, .path = path };
	struct kvt_trace *trace;
	int fd = mkstemp(path);

	assert_true(fd >= 0);
	assert_int_equal(write(fd, text, strlen(text)), strlen(text));
	close(fd);
	trace = load(&options);
	unlink(path);
	return trace;
}

TEST(positions_that_differ_are_counted_once)
{
	struct kvt_trace *trace = load_text(prompts);
	struct kvt_batch batch;

	assert_int_equal(kvt_batch_create(&batch, trace, 2, NULL, NULL), 0);
	assert_int_equal(trace->input_positions, 23);
	assert_int_equal(batch.tree.n - 1, 4);
	/* Four pages, and one position behind the last page of each of five prompts. */
	assert_int_equal(batch.unique_positions, 4 * 2 + 5);
	/* All pages but (7,7). */
	assert_int_equal(batch.shared_positions, 3 * 2);
	kvt_batch_free(&batch);
	kvt_trace_free(trace);
}

TEST(one_pass_gives_the_hits_of_each_pool)
{
	/* In 3 or 4 pages (1,2) alone survives from prompt to prompt; 5 hold all. */
	static const uint64_t expected[] = { 6, 6, 10, 10 };
	struct kvt_stack_size sizes[] = { { 3, 0 }, { 4, 0 }, { 5, 0 }, { 100, 0 } };
	struct kvt_trace *trace = load_text(prompts);
	struct kvt_stack_result result;
	struct kvt_batch batch;

	assert_int_equal(kvt_batch_create(&batch, trace, 2, NULL, NULL), 0);
	assert_int_equal(kvt_stack_run(&batch, NULL, 1, sizes, 4, &result), 0);
	for (int i = 0; i < 4; i++)
		assert_int_equal(sizes[i].hit_positions, expected[i]);
	assert_int_equal(result.hit_positions, 10);
	assert_int_equal(result.window_pages, 3);
	assert_int_equal(result.need_pages, 5);
	kvt_batch_free(&batch);
	kvt_trace_free(trace);
}

TEST(depth_first_a_batch_needs_no_more_than_its_longest_prompt)
{
	static const uint32_t expected[] = { 0, 3, 1, 4, 2 };
	struct kvt_stack_size size = { 3, 0 };
	struct kvt_trace *trace = load_text(prompts);
	struct kvt_stack_result result;
	struct kvt_batch batch;
	uint32_t order[5];

	assert_int_equal(kvt_batch_create(&batch, trace, 2, NULL, NULL), 0);
	assert_int_equal(kvt_batch_order(&batch, order), 0);
	assert_memory_equal(order, expected, sizeof(order));
	assert_int_equal(kvt_stack_run(&batch, order, 1, &size, 1, &result), 0);
	assert_int_equal(result.need_pages, 3);
	assert_int_equal(size.hit_positions, 10);
	kvt_batch_free(&batch);
	kvt_trace_free(trace);
}

TEST(requests_that_run_at_once_share_what_they_hold)
{
	/* The second finds both pages of the first, and has two of its own for the rest. */
	struct kvt_stack_size size = { 6, 0 };
	struct kvt_trace *trace = load_text("{\"keys\": [1,2,3,4,5], \"output\": 3}\n"
					    "{\"keys\": [1,2,3,4,5], \"output\": 3}\n");
	struct kvt_stack_result result;
	struct kvt_batch batch;

	assert_int_equal(kvt_batch_create(&batch, trace, 2, NULL, NULL), 0);
	assert_int_equal(kvt_stack_run(&batch, NULL, 2, &size, 1, &result), 0);
	assert_int_equal(result.window_pages, 6);
	assert_int_equal(result.need_pages, 6);
	assert_int_equal(size.hit_positions, 4);
	kvt_batch_free(&batch);
	kvt_trace_free(trace);
}

TEST(the_last_page_of_a_prompt_that_is_all_cached_is_computed_again)
{
	/* Its twin needs a page beside it: 3 for a prompt of 2. */
	struct kvt_stack_size sizes[] = { { 3, 0 }, { 4, 0 } };
	struct kvt_trace *trace = load_text("{\"keys\": [1,2,3,4]}\n{\"keys\": [1,2,3,4]}\n");
	struct kvt_stack_result result;
	struct kvt_batch batch;

	assert_int_equal(kvt_batch_create(&batch, trace, 2, NULL, NULL), 0);
	assert_int_equal(kvt_stack_run(&batch, NULL, 1, sizes, 2, &result), 0);
	assert_int_equal(result.window_pages, 3);
	assert_int_equal(sizes[0].hit_positions, 2);
	assert_int_equal(sizes[1].hit_positions, 2);
	kvt_batch_free(&batch);
	kvt_trace_free(trace);
}

/* ---- against the simulated pool ---- */

static uint64_t simulated(const struct kvt_trace *trace, uint32_t page_size, uint32_t usable)
{
	struct kvt_private_options options = { .page_size = page_size, .usable_pages = usable,
					       .n_pools = 1, .n_namespaces = 1 };
	struct kvt_private_result results[KVT_ROUTERS];

	assert_int_equal(kvt_private_simulate(trace, &options, results, NULL, NULL), 0);
	assert_int_equal(results[KVT_ROUTER_ONE].refused, 0);
	return results[KVT_ROUTER_ONE].hit_positions;
}

static void compare(const struct kvt_trace *trace, uint32_t page_size)
{
	struct kvt_stack_result result;
	struct kvt_stack_size sizes[9];
	struct kvt_batch batch;

	assert_int_equal(kvt_batch_create(&batch, trace, page_size, NULL, NULL), 0);
	assert_int_equal(kvt_stack_run(&batch, NULL, 1, NULL, 0, &result), 0);
	assert_true(result.need_pages > result.window_pages);
	for (uint32_t i = 0; i < 8; i++)
		sizes[i].usable_pages = result.window_pages +
					(result.need_pages - result.window_pages) * i / 7;
	sizes[8].usable_pages = result.need_pages - 2; /* a twin may stand in for one page */
	assert_int_equal(kvt_stack_run(&batch, NULL, 1, sizes, 9, &result), 0);
	for (uint32_t i = 0; i < 9; i++)
		assert_int_equal(sizes[i].hit_positions,
				 simulated(trace, page_size, sizes[i].usable_pages));
	assert_int_equal(sizes[7].hit_positions, result.hit_positions);
	assert_true(sizes[8].hit_positions < result.hit_positions);
	kvt_batch_free(&batch);
}

TEST(each_size_hits_what_a_pool_of_this_size_hits)
{
	for (uint64_t seed = 0; seed < 4; seed++) {
		struct kvt_trace_options options = { .format = KVT_TRACE_GENERATE, .seed = seed,
						     .sessions = 16, .users = 6,
						     .requests = 300 };
		struct kvt_trace *trace = load(&options);

		compare(trace, 64);
		compare(trace, 7);
		kvt_trace_free(trace);
	}
}

TEST(depth_first_nothing_is_computed_twice_in_the_smallest_pool)
{
	struct kvt_trace_options options = { .format = KVT_TRACE_GENERATE, .sessions = 16,
					     .requests = 300 };
	struct kvt_trace *trace = load(&options);
	struct kvt_stack_result as_they_come, result;
	struct kvt_batch batch;
	uint32_t *order = calloc(trace->n_requests, sizeof(*order));

	assert_non_null(order);
	assert_int_equal(kvt_batch_create(&batch, trace, 64, NULL, NULL), 0);
	assert_int_equal(kvt_stack_run(&batch, NULL, 1, NULL, 0, &as_they_come), 0);
	assert_int_equal(kvt_batch_order(&batch, order), 0);
	assert_int_equal(kvt_stack_run(&batch, order, 1, NULL, 0, &result), 0);
	assert_true(result.need_pages <= as_they_come.window_pages + 1);
	assert_true(as_they_come.need_pages > 2 * result.need_pages);
	kvt_batch_free(&batch);
	free(order);
	kvt_trace_free(trace);
}

