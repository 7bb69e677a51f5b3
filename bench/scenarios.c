/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file scenarios.c
 * The flat-versus-radix table: small prompts in blocks of 4 through kvtrunk's core and through a
 * flat cache of hash-chained blocks.
 *
 * Inputs: workloads made here, with published figures. Invariants: with room for everything both
 * cache the same; with little room the tree, which evicts ends before beginnings, is never worse.
 * Caller: main.c.
 */
#include "bench/bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lab/replay/private.h"

#define BLOCK 4u
#define MAX_PROMPT 64u
#define MAX_PROMPTS 64u

/* Prompts are made of pieces: piece p gives keys p * 1000, p * 1000 + 1, ... */
struct prompt {
	uint32_t keys[MAX_PROMPT];
	uint32_t n;
};

struct workload {
	const char *name;
	struct prompt prompts[MAX_PROMPTS];
	uint32_t n;
	uint32_t published_cached; /* expected with unlimited room */
	uint32_t published_prompt;
};

static void add_piece(struct prompt *prompt, uint32_t piece, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		prompt->keys[prompt->n++] = piece * 1000 + i;
}

/* Make `groups` system prompts of `shared` positions, each asked `rounds` times with `own` new
 * ones; groups take turns. */
static void grouped(struct workload *workload, uint32_t groups, uint32_t rounds, uint32_t shared,
		    uint32_t own)
{
	for (uint32_t round = 0; round < rounds; round++) {
		for (uint32_t group = 0; group < groups; group++) {
			struct prompt *prompt = &workload->prompts[workload->n++];

			add_piece(prompt, 1 + group, shared);
			add_piece(prompt, 99 + workload->n, own);
		}
	}
}

/* Make a conversation that forks: a start of 16, two answers of 8 each, two continuations of each,
 * then one more turn on the first and one more fork at the start. */
static void branching(struct workload *workload)
{
	static const uint8_t paths[8][3] = {
		{ 0, 0, 0 }, { 1, 0, 0 }, { 2, 0, 0 }, { 1, 3, 0 },
		{ 1, 4, 0 }, { 2, 5, 0 }, { 2, 6, 0 }, { 1, 7, 0 },
	};

	for (unsigned int i = 0; i < 8; i++) {
		struct prompt *prompt = &workload->prompts[workload->n++];

		add_piece(prompt, 1, 16);
		for (unsigned int j = 0; j < 2 && paths[i][j]; j++)
			add_piece(prompt, 10u + paths[i][j], 8);
	}
	add_piece(&workload->prompts[workload->n], 1, 16);
	add_piece(&workload->prompts[workload->n++], 30, 16);
}

/* Serve each prompt by a lease of its own: begun, computed, ended. */
static uint32_t serve_radix(const struct workload *workload, uint32_t room)
{
	struct bench_options options = { .core = true };
	struct bench_target target = { 0 };
	uint32_t cached = 0, reusable;

	target.config.page_size = BLOCK;
	target.config.max_op_keys = 1024;
	bench_target_open(&target, &options, room + 1);
	for (uint32_t i = 0; i < workload->n; i++) {
		const struct prompt *prompt = &workload->prompts[i];

		reusable = 0;
		if (bench_cache(&target, prompt->keys, prompt->n, 0, &reusable, NULL))
			cached += reusable;
	}
	bench_target_close(&target);
	return cached;
}

static uint32_t serve_flat(const struct workload *workload, uint32_t room)
{
	struct kvt_flat *flat = kvt_flat_create(BLOCK, room);
	uint32_t total = 0, cached;

	if (!flat)
		bench_die("out of memory");
	for (uint32_t i = 0; i < workload->n; i++) {
		const struct prompt *prompt = &workload->prompts[i];

		cached = 0;
		kvt_flat_serve(flat, prompt->keys, prompt->n, &cached);
		/* One position is always computed, as with the tree. */
		if (cached == prompt->n)
			cached -= BLOCK;
		total += cached;
	}
	kvt_flat_destroy(flat);
	return total;
}

static uint32_t positions(const struct workload *workload)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < workload->n; i++)
		n += workload->prompts[i].n;
	return n;
}

static int compare_unlimited(void)
{
	static struct workload workloads[] = {
		{ .name = "shared prefix", .published_cached = 112, .published_prompt = 192 },
		{ .name = "high reuse", .published_cached = 552, .published_prompt = 672 },
		{ .name = "branching conversation", .published_cached = 168,
		  .published_prompt = 256 },
		{ .name = "several prefix groups", .published_cached = 320,
		  .published_prompt = 576 },
		{ .name = "no reuse", .published_cached = 0, .published_prompt = 192 },
	};
	int wrong = 0;

	grouped(&workloads[0], 1, 8, 16, 8);
	grouped(&workloads[1], 1, 24, 24, 4);
	branching(&workloads[2]);
	grouped(&workloads[3], 4, 6, 16, 8);
	grouped(&workloads[4], 8, 1, 16, 8);
	fprintf(stderr, "%-26s %12s %12s %12s\n", "unlimited room", "radix", "flat", "published");
	for (unsigned int i = 0; i < sizeof(workloads) / sizeof(workloads[0]); i++) {
		struct workload *workload = &workloads[i];
		uint32_t n = positions(workload), radix = serve_radix(workload, 4096);
		uint32_t flat = serve_flat(workload, 0);
		bool good = radix == flat && radix == workload->published_cached &&
			    n == workload->published_prompt;

		wrong |= !good;
		bench_line("flat_radix", "\"workload\":\"%s\",\"prompt\":%u,\"radix\":%u,"
			   "\"flat\":%u,\"published\":\"%u/%u\",\"equal\":%s", workload->name, n,
			   radix, flat, workload->published_cached, workload->published_prompt,
			   good ? "true" : "false");
		fprintf(stderr, "%-26s %8u/%-4u %7u/%-4u %7u/%-4u%s\n", workload->name, radix, n,
			flat, n, workload->published_cached, workload->published_prompt,
			good ? "" : "  DIFFERS");
	}
	return wrong;
}

/* Make eight system prompts of uneven popularity, never one twice in three: with room for little
 * more than one prompt no cache can hit. */
static void skewed(struct workload *workload, uint32_t rounds)
{
	uint32_t last = UINT32_MAX, before = UINT32_MAX, group;
	uint64_t source = 1;

	while (workload->n < rounds) {
		double unit = (double)(kvt_trace_mix(source++) >> 11) / 9007199254740992.0;

		group = (uint32_t)(unit * unit * 8);
		if (group == last || group == before)
			continue;
		before = last;
		last = group;
		add_piece(&workload->prompts[workload->n], 1 + group, 16);
		add_piece(&workload->prompts[workload->n], 100 + workload->n, 8);
		workload->n++;
	}
}

static int compare_pressure(void)
{
	struct workload workload = { .name = "eviction pressure" };
	bool never_below = true, somewhere_above = false, zero = true;
	uint32_t n, radix, flat;

	skewed(&workload, 60);
	n = positions(&workload);
	fprintf(stderr, "\n%-26s %12s %12s\n", "eviction pressure: blocks", "radix", "flat");
	for (uint32_t room = 8; room <= 72; room += 4) {
		radix = serve_radix(&workload, room);
		flat = serve_flat(&workload, room);
		never_below &= radix >= flat;
		somewhere_above |= radix > flat;
		if (room == 8)
			zero = !radix && !flat;
		bench_line("flat_radix_pressure", "\"blocks\":%u,\"prompt\":%u,\"radix\":%u,"
			   "\"flat\":%u", room, n, radix, flat);
		fprintf(stderr, "%-26u %7u %3.0f%% %7u %3.0f%%\n", room, radix, 100.0 * radix / n,
			flat, 100.0 * flat / n);
	}
	bench_line("flat_radix_verdict", "\"both_zero_at_8\":%s,\"never_below\":%s,"
		   "\"somewhere_above\":%s", zero ? "true" : "false",
		   never_below ? "true" : "false", somewhere_above ? "true" : "false");
	return !(never_below && somewhere_above && zero);
}

int bench_scenarios(void)
{
	int wrong = compare_unlimited();

	return compare_pressure() | wrong;
}
