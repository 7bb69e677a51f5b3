/* SPDX-License-Identifier: Apache-2.0 */
/* Traces: what the readers make of a file, the order of requests, and their keys. Simulated caches
 * are checked with hand-made traces whose answers can be counted.
 *
 * Inputs: small files in each format. Invariant: counts by hand. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lab/replay/private.h"
#include "lab/trace/trace.h"
#include "lab/trace/context.h"
#include "tests/lib/cases.h"

static char path[64];

static void write_file(const char *text)
{
	FILE *file;
	int fd;

	strcpy(path, "/tmp/kvt-trace-XXXXXX");
	fd = mkstemp(path);
	assert_true(fd >= 0);
	file = fdopen(fd, "w");
	assert_non_null(file);
	fputs(text, file);
	assert_int_equal(fclose(file), 0);
}

static int load_with(const struct kvt_trace_options *options, const char *text,
		     struct kvt_trace **ret_trace, char *why)
{
	int rc;

	write_file(text);
	rc = kvt_trace_load(options, ret_trace, why, 1024);
	unlink(path);
	return rc;
}

static int load(uint32_t format, const char *text, uint32_t users, struct kvt_trace **ret_trace,
		char *why)
{
	struct kvt_trace_options options = { .format = format, .path = path,
					     .users = format == KVT_TRACE_AGENT ? users : 0 };

	return load_with(&options, text, ret_trace, why);
}

static struct kvt_trace *load_good(uint32_t format, const char *text, uint32_t users)
{
	struct kvt_trace *trace = NULL;
	char why[1024] = "";

	if (load(format, text, users, &trace, why))
		fail_msg("%s", why);
	return trace;
}

#define AGENT(s, t, in, tt, r)                                                                     \
	"{\"s\":" #s ",\"a\":null,\"t\":" #t ",\"in\":" #in ",\"out\":10,\"tt\":" #tt              \
	",\"st\":0,\"r\":" r "}\n"

TEST(requests_of_users_come_in_the_order_of_their_capped_times)
{
	/* Session 1 has a pause of 5,000 s, which counts as 600; sessions 2 and 3 fit into it. */
	struct kvt_trace *trace = load_good(KVT_TRACE_AGENT,
					    AGENT(1, 0, 64, 0, "[[1,1]]")
					    AGENT(1, 5000, 64, 0, "[[1,1]]")
					    AGENT(2, 7, 64, 0, "[[1,1]]")
					    AGENT(2, 307, 64, 0, "[[1,1]]")
					    AGENT(3, 0, 64, 0, "[[1,1]]")
					    AGENT(3, 1000, 64, 0, "[[1,1]]"), 2);
	static const uint32_t lines[] = { 0, 2, 3, 4, 1, 5 };
	static const uint64_t seconds[] = { 0, 0, 300, 300, 600, 900 };
	static const uint32_t previous[] = { KVT_TRACE_NONE, KVT_TRACE_NONE, 1, 2, 0, 3 };

	assert_int_equal(trace->n_requests, 6);
	for (unsigned int i = 0; i < 6; i++) {
		assert_int_equal(trace->requests[i].line, lines[i]);
		assert_int_equal(trace->requests[i].at_us, seconds[i] * 1000000);
		assert_int_equal(trace->requests[i].previous, previous[i]);
	}
	kvt_trace_free(trace);
}

TEST(requests_of_a_session_are_sorted_by_time)
{
	struct kvt_trace *trace = load_good(KVT_TRACE_AGENT,
					    AGENT(1, 20, 64, 0, "[[1,1]]")
					    AGENT(1, 10, 128, 0, "[[1,2]]"), 1);

	assert_int_equal(trace->requests[0].line, 1);
	assert_int_equal(trace->requests[1].line, 0);
	kvt_trace_free(trace);
}

static uint32_t equal_keys(const struct kvt_trace *trace, uint32_t a, uint32_t b)
{
	const struct kvt_trace_request *x = &trace->requests[a], *y = &trace->requests[b];
	uint32_t keys_x[4096], keys_y[4096], n = 0;

	kvt_trace_keys(trace, x, 0, x->input, keys_x);
	kvt_trace_keys(trace, y, 0, y->input, keys_y);
	for (uint32_t i = 0; i < x->input; i++)
		assert_int_equal(keys_x[i] >> 31, 0);
	while (n < x->input && n < y->input && keys_x[n] == keys_y[n])
		n++;
	return n;
}

TEST(equal_prefixes_give_equal_keys_and_nothing_else_does)
{
	struct kvt_trace *trace = load_good(KVT_TRACE_AGENT,
					    AGENT(1, 0, 330, 100, "[[1,5]]")
					    AGENT(1, 1, 450, 100, "[[1,4],[9,3]]")
					    AGENT(2, 2, 330, 100, "[[1,5]]")
					    AGENT(2, 3, 330, 101, "[[1,5]]")
					    AGENT(2, 4, 330, 0, "[[1,5]]")
					    AGENT(2, 5, 330, 100, "[[1,5]]"), 1);

	assert_int_equal(equal_keys(trace, 0, 1), 4 * 64); /* ids agree for four blocks */
	assert_int_equal(equal_keys(trace, 0, 2), 100);    /* another session: only the head */
	assert_int_equal(equal_keys(trace, 2, 3), 0);      /* another head */
	assert_int_equal(equal_keys(trace, 2, 4), 0);      /* no head */
	assert_int_equal(equal_keys(trace, 2, 5), 320);    /* tails are each request's own */
	for (uint32_t a = 0; a < 6; a++) {
		for (uint32_t b = 0; b < 6; b++) {
			uint32_t common = kvt_trace_common(trace, &trace->requests[a],
							   &trace->requests[b]);

			if (a != b)
				assert_true(common <= equal_keys(trace, a, b));
		}
	}
	assert_int_equal(kvt_trace_common(trace, &trace->requests[0], &trace->requests[1]), 256);
	assert_int_equal(kvt_trace_common(trace, &trace->requests[0], &trace->requests[2]), 100);
	kvt_trace_free(trace);
}

TEST(keys_can_be_had_in_pieces)
{
	struct kvt_trace *trace = load_good(KVT_TRACE_AGENT,
					    AGENT(1, 0, 450, 100, "[[1,4],[9,3]]"), 1);
	const struct kvt_trace_request *request = &trace->requests[0];
	uint32_t whole[450], piece[450];

	kvt_trace_keys(trace, request, 0, 450, whole);
	for (uint32_t from = 0; from < 450; from += 37) {
		for (uint32_t to = from; to <= 450; to += 29) {
			kvt_trace_keys(trace, request, from, to, piece);
			assert_memory_equal(piece, whole + from, (to - from) * 4);
		}
	}
	kvt_trace_free(trace);
}

TEST(mooncake_ids_are_global_and_stand_for_512_positions)
{
	struct kvt_trace *trace = load_good(KVT_TRACE_MOONCAKE,
		"{\"timestamp\":0,\"input_length\":1030,\"hash_ids\":[0,1,2]}\n"
		"{\"timestamp\":5,\"input_length\":1100,\"hash_ids\":[0,1,3]}\n"
		"{\"timestamp\":9,\"input_length\":1100,\"hash_ids\":[0,1,2]}\n",
		1);

	assert_int_equal(equal_keys(trace, 0, 1), 1024);
	assert_int_equal(equal_keys(trace, 0, 2), 1030);
	assert_int_equal(trace->requests[1].at_us, 5000);
	assert_int_equal(trace->requests[1].previous, KVT_TRACE_NONE);
	kvt_trace_free(trace);
}

/* Two prompts that share 32 of 100 positions, two blocks of 16. */
#define SMALL_BLOCKS "{\"input_length\":100,\"hash_ids\":[7,8,1,2,3,4,5]}\n" \
		     "{\"input_length\":100,\"hash_ids\":[7,8,9,10,11,12]}\n"

TEST(ids_that_do_not_fit_the_length_are_refused)
{
	static const struct {
		uint32_t format, block;
		const char *text, *expected;
	} cases[] = {
		{ KVT_TRACE_MOONCAKE, 0, SMALL_BLOCKS, "7 ids for 100 positions "
		  "(\"input_length\"): with 512 an id they are 0 or 1; --block-size 16 would "
		  "fit" },
		{ KVT_TRACE_MOONCAKE, 32, SMALL_BLOCKS, "3 or 4; --block-size 16" },
		{ KVT_TRACE_MOONCAKE, 0, "{\"input_length\":1024,\"hash_ids\":[]}\n", "2 or 3" },
		{ KVT_TRACE_MOONCAKE, 0, "{\"input_length\":0,\"hash_ids\":[1]}\n", "0 or 1" },
		{ KVT_TRACE_AGENT, 0, AGENT(1, 0, 330, 100, "[[1,5],[9,4]]"), "\"r\" has 9 ids" },
		{ KVT_TRACE_AGENT, 128, AGENT(1, 0, 330, 100, "[[1,5]]"), "--block-size 64" },
	};

	for (unsigned int i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct kvt_trace_options options = { .format = cases[i].format, .path = path,
						     .block = cases[i].block };
		struct kvt_trace *trace;
		char why[1024] = "";

		assert_int_equal(load_with(&options, cases[i].text, &trace, why), -EINVAL);
		if (!strstr(why, cases[i].expected))
			fail_msg("'%s' does not say '%s'", why, cases[i].expected);
	}
}

TEST(ids_stand_for_blocks_of_the_given_size)
{
	struct kvt_trace_options options = { .format = KVT_TRACE_MOONCAKE, .path = path,
					     .block = 16 };
	struct kvt_trace *trace;
	char why[1024] = "";

	if (load_with(&options, SMALL_BLOCKS, &trace, why))
		fail_msg("%s", why);
	assert_int_equal(equal_keys(trace, 0, 1), 32);
	kvt_trace_free(trace);
}

TEST(a_refused_line_shows_a_right_one)
{
	static const uint32_t formats[] = { KVT_TRACE_MOONCAKE, KVT_TRACE_AGENT,
					    KVT_TRACE_JSONL };

	for (unsigned int i = 0; i < 3; i++) {
		struct kvt_trace *trace;
		char why[1024] = "", line[512], *shown;

		assert_int_equal(load(formats[i], "{\"b\":1}\n", 1, &trace, why), -EINVAL);
		shown = strstr(why, "this format: ");
		assert_non_null(shown);
		snprintf(line, sizeof(line), "%s", shown + strlen("this format: "));
		line[strcspn(line, "}") + 1] = 0;
		kvt_trace_free(load_good(formats[i], line, 1));
	}
}

TEST(jsonl_takes_keys_and_text)
{
	struct kvt_trace *trace = load_good(KVT_TRACE_JSONL,
		"{\"keys\":[7,8,[100,3]],\"output\":4,\"session\":\"x\"}\n"
		"{\"text\":\"abc\"}\n{\"turns\":[\"a\",\"bd\"]}\n", 1);
	uint32_t keys[5];

	kvt_trace_keys(trace, &trace->requests[0], 0, 5, keys);
	assert_memory_equal(keys, ((const uint32_t[]){ 7, 8, 100, 101, 102 }), sizeof(keys));
	assert_int_equal(equal_keys(trace, 1, 2), 2);
	kvt_trace_free(trace);
}

/* Load a file without saying its format. */
static struct kvt_trace *load_any(const char *text)
{
	return load_good(KVT_TRACE_ANY, text, 1);
}

TEST(the_format_is_that_of_the_first_object)
{
	static const struct {
		const char *text;
		uint32_t format, block;
	} cases[] = {
		{ "\n{\"input_length\":3,\"hash_ids\":[1]}", KVT_TRACE_MOONCAKE, 512 },
		{ AGENT(1, 0, 64, 0, "[[1,1]]"), KVT_TRACE_AGENT, 64 },
		{ "{\"prompt\":\"a\"}", KVT_TRACE_JSONL, 1 },
	};

	for (unsigned int i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct kvt_trace *trace = load_any(cases[i].text);

		assert_int_equal(trace->n_requests, 1);
		assert_int_equal(trace->format, cases[i].format);
		assert_int_equal(trace->block, cases[i].block);
		kvt_trace_free(trace);
	}
}

TEST(a_file_of_no_format_is_shown_a_line_of_each)
{
	struct kvt_trace *trace;
	char why[1024] = "";

	assert_int_equal(load(KVT_TRACE_ANY, "id,prompt\n", 1, &trace, why), -EINVAL);
	assert_non_null(strstr(why, ":1: not a JSON object"));
	assert_non_null(strstr(why, "\nmooncake: {"));
	assert_non_null(strstr(why, "\nagent: {"));
	assert_non_null(strstr(why, "\njsonl: {"));
	/* Later objects must be of the first one's format. */
	assert_int_equal(load(KVT_TRACE_ANY, "{\"prompt\":\"a\"}\n\n{\"b\":1}", 1, &trace, why),
			 -EINVAL);
	assert_non_null(strstr(why, ":3: needs \"keys\""));
	assert_null(strstr(why, "mooncake"));
}

TEST(objects_may_stand_in_one_array_and_on_several_lines)
{
	struct kvt_trace *trace = load_any("[{\"prompt\":\n\"a{\\\"[\"},\n"
					   " {\"prompt\":\"a{}\"}]\n");

	assert_int_equal(trace->n_requests, 2);
	assert_int_equal(trace->requests[0].input, 4);
	assert_int_equal(trace->requests[1].line, 2);
	assert_int_equal(equal_keys(trace, 0, 1), 2);
	kvt_trace_free(trace);
}

TEST(a_recorded_conversation_has_a_request_for_each_answer)
{
	struct kvt_trace *trace = load_any("{\"conversations\":["
		"{\"from\":\"human\",\"value\":\"ask\"},{\"from\":\"gpt\",\"value\":\"ok\"},"
		"{\"from\":\"human\",\"value\":\"more\"},{\"from\":\"gpt\",\"value\":\"end\"}]}");
	uint32_t keys[12];

	/* A key for each message, then its bytes. */
	assert_int_equal(trace->n_requests, 2);
	assert_int_equal(trace->requests[0].input, 4);
	assert_int_equal(trace->requests[0].output, 3);
	assert_int_equal(trace->requests[1].input, 4 + 3 + 5);
	assert_int_equal(trace->requests[1].output, 4);
	assert_int_equal(trace->requests[0].session, trace->requests[1].session);
	assert_int_equal(equal_keys(trace, 0, 1), 4);
	assert_int_equal(kvt_trace_common(trace, &trace->requests[0], &trace->requests[1]), 4);
	kvt_trace_keys(trace, &trace->requests[1], 0, 12, keys);
	assert_memory_equal(keys, ((const uint32_t[]){ 257, 'a', 's', 'k', 258, 'o', 'k', 257, 'm',
						       'o', 'r', 'e' }), sizeof(keys));
	kvt_trace_free(trace);
}

TEST(messages_that_wait_for_an_answer_are_one_request)
{
	/* As an API gets them, and as a line of a batch; tools stand in front. */
	struct kvt_trace *trace = load_any("{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},"
		"{\"role\":\"assistant\",\"content\":\"b\"},{\"role\":\"user\",\"content\":"
		"[{\"type\":\"text\",\"text\":\"cd\"}]}],\"max_tokens\":9}"
		"{\"body\":{\"tools\":[1],\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}}");

	assert_int_equal(trace->n_requests, 2);
	assert_int_equal(trace->requests[0].input, 2 + 2 + 3);
	assert_int_equal(trace->requests[0].output, 9);
	assert_int_equal(trace->requests[1].input, 3 + 2);
	kvt_trace_free(trace);
}

TEST(bad_lines_are_named)
{
	static const struct {
		uint32_t format;
		const char *text, *expected;
	} cases[] = {
		{ KVT_TRACE_AGENT, "{\n", ":1: not JSON" },
		{ KVT_TRACE_AGENT, "[1]\n", "not a JSON object" },
		{ KVT_TRACE_AGENT, AGENT(1, 0, 64, 0, "[[1,1]]") "{\"s\":1}\n", ":2: \"in\"" },
		{ KVT_TRACE_AGENT, "{\"s\":1,\"in\":-4,\"r\":[]}\n", "\"in\" must be an integer" },
		{ KVT_TRACE_AGENT, "{\"s\":1,\"in\":4,\"r\":[[1]]}\n", "pairs [first, count]" },
		{ KVT_TRACE_AGENT, "{\"s\":1,\"in\":4,\"r\":[[1,4294967295]]}\n", "\"r\"" },
		{ KVT_TRACE_MOONCAKE, "{\"input_length\":4}\n", "\"hash_ids\"" },
		{ KVT_TRACE_MOONCAKE, "{\"input_length\":4,\"hash_ids\":[-1]}\n", "\"hash_ids\"" },
		{ KVT_TRACE_JSONL, "{\"a\":1}\n", "\"keys\"" },
		{ KVT_TRACE_JSONL, "{\"prompt\":[\"a\"]}\n", "holds several prompts" },
		{ KVT_TRACE_JSONL, "{\"messages\":[{\"role\":\"user\"},1]}\n", "\"role\" and" },
		{ KVT_TRACE_JSONL, "{\"messages\":[]}\n", "holds no request" },
		{ KVT_TRACE_JSONL, "{\"messages\":[{\"role\":\"user\",\"content\":"
		  "[{\"image\":1}]}]}\n", "images" },
		{ KVT_TRACE_JSONL, "[{\"prompt\":\"a\"}\n", "ends inside its array" },
		{ KVT_TRACE_JSONL, "\n \n", "holds no request" },
	};

	for (unsigned int i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct kvt_trace *trace = NULL;
		char why[1024] = "";

		assert_int_equal(load(cases[i].format, cases[i].text, 1, &trace, why), -EINVAL);
		assert_null(trace);
		if (!strstr(why, cases[i].expected))
			fail_msg("'%s' does not say '%s'", why, cases[i].expected);
	}
}

TEST(a_missing_file_is_named)
{
	struct kvt_trace_options options = { .format = KVT_TRACE_AGENT, .path = "/none/such" };
	struct kvt_trace *trace;
	char why[1024] = "";

	assert_int_equal(kvt_trace_load(&options, &trace, why, sizeof(why)), -ENOENT);
	assert_non_null(strstr(why, "/none/such"));
}

TEST(a_context_computes_only_what_is_new)
{
	struct kvt_trace *trace = load_good(KVT_TRACE_AGENT,
					    AGENT(1, 0, 330, 100, "[[1,5]]")
					    AGENT(1, 1, 450, 100, "[[1,4],[9,3]]"), 1);
	struct kvt_context grown = { 0 }, fresh = { 0 }, other = { 0 };
	uint32_t kept;

	assert_int_equal(kvt_context_load(&grown, trace, &trace->requests[0], 0, true, &kept), 0);
	assert_int_equal(kept, 0);
	assert_int_equal(grown.n, 340);
	assert_int_equal(kvt_context_load(&grown, trace, &trace->requests[1], 0, true, &kept), 0);
	assert_int_equal(kept, 256);
	assert_int_equal(kvt_context_load(&fresh, trace, &trace->requests[1], 0, true, NULL), 0);
	assert_memory_equal(grown.keys, fresh.keys, fresh.n * sizeof(*fresh.keys));
	assert_memory_equal(grown.words, fresh.words, fresh.n * sizeof(*fresh.words));
	/* Words depend on the namespace from the first position on. */
	assert_int_equal(kvt_context_load(&other, trace, &trace->requests[1], 1, true, NULL), 0);
	for (uint32_t i = 0; i < other.n; i++)
		assert_true(other.words[i] != fresh.words[i]);
	kvt_context_free(&grown);
	kvt_context_free(&fresh);
	kvt_context_free(&other);
	kvt_trace_free(trace);
}

TEST(the_generator_is_deterministic_and_has_the_shape)
{
	struct kvt_trace_options options = { .format = KVT_TRACE_GENERATE, .seed = 5,
					     .sessions = 20 };
	struct kvt_trace *a, *b, *c;
	uint64_t longer = 0, continued = 0;
	char why[1024];

	assert_int_equal(kvt_trace_load(&options, &a, why, sizeof(why)), 0);
	assert_int_equal(kvt_trace_load(&options, &b, why, sizeof(why)), 0);
	options.seed = 6;
	assert_int_equal(kvt_trace_load(&options, &c, why, sizeof(why)), 0);
	assert_int_equal(a->n_requests, b->n_requests);
	assert_memory_equal(a->requests, b->requests, a->n_requests * sizeof(*a->requests));
	assert_memory_equal(a->runs, b->runs, a->n_runs * sizeof(*a->runs));
	assert_true(a->n_requests != c->n_requests || a->input_positions != c->input_positions);
	for (uint32_t i = 0; i < a->n_requests; i++) {
		const struct kvt_trace_request *request = &a->requests[i];

		if (request->previous == KVT_TRACE_NONE)
			continue;
		longer++;
		continued += kvt_trace_common(a, request, &a->requests[request->previous]) * 2 >
			     request->input;
	}
	assert_true(continued * 2 > longer); /* conversations grow by appending */
	kvt_trace_free(a);
	kvt_trace_free(b);
	kvt_trace_free(c);
}

TEST(a_written_trace_reads_back)
{
	struct kvt_trace_options options = { .format = KVT_TRACE_GENERATE, .sessions = 6 };
	struct kvt_trace *generated, *read;
	char why[1024] = "";

	assert_int_equal(kvt_trace_load(&options, &generated, why, sizeof(why)), 0);
	write_file("");
	assert_int_equal(kvt_trace_write(generated, fopen(path, "w")), 0);
	options = (struct kvt_trace_options){ .format = KVT_TRACE_AGENT, .path = path };
	assert_int_equal(kvt_trace_load(&options, &read, why, sizeof(why)), 0);
	unlink(path);
	assert_int_equal(read->n_requests, generated->n_requests);
	assert_int_equal(read->input_positions, generated->input_positions);
	kvt_trace_free(generated);
	kvt_trace_free(read);
}

/* ---- simulated caches ---- */

TEST(private_pools_hit_what_can_be_counted)
{
	/* Two sessions with the same head of 128, then their own 64, asked twice each. */
	struct kvt_trace *trace = load_good(KVT_TRACE_AGENT,
					    AGENT(1, 0, 200, 128, "[[1,3]]")
					    AGENT(1, 1, 200, 128, "[[1,3]]")
					    AGENT(2, 0, 200, 128, "[[1,3]]")
					    AGENT(2, 1, 200, 128, "[[1,3]]"), 1);
	struct kvt_private_options options = { .page_size = 64, .usable_pages = 64, .n_pools = 2,
					       .n_namespaces = 1 };
	struct kvt_private_result results[KVT_ROUTERS];

	assert_int_equal(kvt_private_simulate(trace, &options, results, NULL, NULL), 0);
	assert_int_equal(results[KVT_ROUTER_ONE].input_positions, 800);
	assert_int_equal(results[KVT_ROUTER_ONE].hit_positions, 192 + 128 + 192);
	/* Round robin: requests 0 and 2 in one pool, 1 and 3 in the other: only heads are found. */
	assert_int_equal(results[KVT_ROUTER_ROUND_ROBIN].hit_positions, 128 + 128);
	assert_int_equal(results[KVT_ROUTER_STICKY].hit_positions, 192 + 192);
	options.n_namespaces = 2; /* sessions apart: the head is not shared */
	assert_int_equal(kvt_private_simulate(trace, &options, results, NULL, NULL), 0);
	assert_int_equal(results[KVT_ROUTER_ONE].hit_positions, 192 + 192);
	kvt_trace_free(trace);
}

TEST(a_small_pool_refuses_and_evicts_from_the_end_of_the_oldest)
{
	/* 200 + 10 positions are 4 pages. With 5 pages, the second session's 3 own or shared pages
	 * push out the last page of the first, then the third request finds two of three. */
	struct kvt_trace *trace = load_good(KVT_TRACE_AGENT,
					    AGENT(1, 0, 200, 0, "[[1,3]]")
					    AGENT(2, 0, 130, 0, "[[1,2]]")
					    AGENT(1, 9, 200, 0, "[[1,3]]")
					    AGENT(3, 0, 700, 0, "[[1,10]]"), 1);
	struct kvt_private_options options = { .page_size = 64, .usable_pages = 5, .n_pools = 1,
					       .n_namespaces = 1 };
	struct kvt_private_result results[KVT_ROUTERS];

	/* One user: session 1 twice, then 2, then 3. */
	assert_int_equal(kvt_private_simulate(trace, &options, results, NULL, NULL), 0);
	assert_int_equal(results[0].hit_positions, 192);
	assert_int_equal(results[0].refused, 1); /* 700 positions never fit 5 pages */
	assert_int_equal(results[0].evictions, 1); /* 3 cached + 3 needed - 5 */
	kvt_trace_free(trace);
}

static uint32_t serve(struct kvt_flat *flat, uint32_t first, uint32_t n)
{
	uint32_t keys[64], cached = 0;

	for (uint32_t i = 0; i < n; i++)
		keys[i] = i < 4 ? i : first + i; /* the first block is shared */
	assert_int_equal(kvt_flat_serve(flat, keys, n, &cached), 0);
	return cached;
}

TEST(a_flat_cache_loses_beginnings_first)
{
	struct kvt_flat *flat = kvt_flat_create(4, 4);
	uint32_t keys[64] = { 0 }, cached;

	assert_int_equal(serve(flat, 100, 12), 0);
	assert_int_equal(serve(flat, 100, 12), 12);
	assert_int_equal(serve(flat, 200, 12), 4); /* pushes out one block of the first */
	assert_int_equal(serve(flat, 100, 12), 4); /* its second: the third is of no use */
	assert_int_equal(kvt_flat_serve(flat, keys, 64, &cached), -ENOSPC);
	kvt_flat_destroy(flat);
}
