/* SPDX-License-Identifier: Apache-2.0 */

/* The flat-versus-radix scenarios and the long image scenario, through the core. */

#include "tests/unit/core_world.h"

#include <stdlib.h>

#define BLOCK 4

/* ---- a flat cache of hash-chained blocks: the i-th block of a prompt is found by the hash of all
 * keys up to its end; the least recently used block goes first, whatever follows it. A prompt's
 * blocks are used first to last. */

struct flat {
	uint64_t hash[256];
	uint64_t used[256];
	bool held[256]; /* by the request that is being served */
	uint32_t room;
	uint32_t n;
	uint64_t clock;
};

static uint64_t chain(uint64_t hash, const uint32_t *keys)
{
	for (uint32_t i = 0; i < BLOCK; i++)
		hash = (hash ^ keys[i]) * 0x100000001b3ull + 1;
	return hash;
}

static uint32_t flat_find(const struct flat *flat, uint64_t hash)
{
	for (uint32_t i = 0; i < flat->n; i++)
		if (flat->hash[i] == hash)
			return i;
	return UINT32_MAX;
}

/** A block for a new hash: a free one or the least recently used that nobody holds. */
static uint32_t flat_take(struct flat *flat)
{
	uint32_t best = UINT32_MAX;

	if (flat->n < flat->room)
		return flat->n++;
	for (uint32_t i = 0; i < flat->n; i++)
		if (!flat->held[i] && (best == UINT32_MAX || flat->used[i] < flat->used[best]))
			best = i;
	return best;
}

/** Serve one prompt; returns the cached positions. A prompt that does not fit is not served. */
static uint32_t flat_serve(struct flat *flat, struct keys prompt)
{
	uint32_t blocks = prompt.n / BLOCK, hit = 0, at;
	uint64_t hash = 1;
	bool matching = true;

	if (blocks > flat->room)
		return 0;
	memset(flat->held, 0, sizeof(flat->held));
	for (uint32_t i = 0; i < blocks; i++) {
		hash = chain(hash, prompt.at + i * BLOCK);
		at = flat_find(flat, hash);
		matching = matching && at != UINT32_MAX;
		hit += matching;
		if (at != UINT32_MAX)
			flat->held[at] = true;
	}
	hash = 1;
	for (uint32_t i = 0; i < blocks; i++) {
		hash = chain(hash, prompt.at + i * BLOCK);
		at = flat_find(flat, hash);
		if (at == UINT32_MAX)
			at = flat_take(flat);
		assert_int_not_equal(at, UINT32_MAX);
		flat->hash[at] = hash;
		flat->held[at] = true;
		flat->used[at] = ++flat->clock;
	}
	return hit * BLOCK;
}

/* ---- workloads: prompts in order */

struct load {
	const char *name;
	struct keys prompts[128];
	uint32_t n;
	uint32_t cached, positions; /* published, with room for everything */
};

static void add(struct load *load, struct keys prompt)
{
	assert_in_range(load->n, 0, 127);
	load->prompts[load->n++] = prompt;
}

/** `n` prompts of a common head and an own tail. */
static void add_group(struct load *load, uint32_t group, uint32_t n, uint32_t common, uint32_t own)
{
	for (uint32_t i = 0; i < n; i++) {
		uint32_t first = group * 100000 + 1000 + load->n * 100;

		add(load, join(range(group * 100000 + 1, group * 100000 + common),
			       range(first, first + own - 1)));
	}
}

static void make_loads(struct load loads[5])
{
	struct load *branching = &loads[2];

	memset(loads, 0, 5 * sizeof(*loads));
	loads[0] = (struct load){ .name = "shared prefix", .cached = 112, .positions = 192 };
	add_group(&loads[0], 1, 8, 16, 8);
	loads[1] = (struct load){ .name = "high reuse", .cached = 552, .positions = 672 };
	add_group(&loads[1], 1, 24, 24, 4);
	/* A conversation of four turns, and six that leave it after the first one. */
	*branching = (struct load){ .name = "branching conversation", .cached = 168,
				    .positions = 256 };
	for (uint32_t turn = 0; turn < 4; turn++)
		add(branching, range(1, 16 + 8 * turn));
	for (uint32_t branch = 0; branch < 6; branch++)
		add(branching, join(range(1, 16), range(1000 + 100 * branch, 1007 + 100 * branch)));
	loads[3] = (struct load){ .name = "several prefix groups", .cached = 320,
				  .positions = 576 };
	for (uint32_t round = 0; round < 6; round++)
		for (uint32_t group = 1; group <= 4; group++)
			add_group(&loads[3], group, 1, 16, 8);
	loads[4] = (struct load){ .name = "no reuse", .cached = 0, .positions = 192 };
	for (uint32_t i = 0; i < 8; i++)
		add(&loads[4], range(1000 * i + 1, 1000 * i + 24));
}

static uint32_t serve_flat(const struct load *load, uint32_t room)
{
	struct flat *flat = calloc(1, sizeof(*flat));
	uint32_t cached = 0;

	flat->room = room;
	for (uint32_t i = 0; i < load->n; i++)
		cached += flat_serve(flat, load->prompts[i]);
	free(flat);
	return cached;
}

static uint32_t serve_radix(const struct load *load, uint32_t room)
{
	struct kvt_core_config config = { .page_size = BLOCK, .n_pages = room + 1 };
	struct world *w;
	struct client *a;
	uint32_t ns, cached = 0;

	config.max_nodes = 256;
	w = world_new(config);
	a = client_new(w);
	ns = space_open(a, "ns");
	for (uint32_t i = 0; i < load->n; i++) {
		struct seq *seq = begin(a, ns, load->prompts[i], 0, 0);

		if (seq->a.result < 0)
			continue;
		cached += seq->a.matched;
		expect_ok(commit(seq, load->prompts[i].n, NO_KEYS, 0));
		expect_ok(end(seq));
	}
	/* world_free() would take the prompts with it: they belong to the caller's world. */
	world_leave(w);
	return cached;
}

static uint32_t positions_of(const struct load *load)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < load->n; i++)
		n += load->prompts[i].n;
	return n;
}

static void flat_and_radix_agree_with_room_for_everything(void **state)
{
	struct load loads[5];

	(void)state;
	make_loads(loads);
	print_message("%-24s %9s %7s %7s %7s\n", "scenario", "positions", "flat", "radix", "rate");
	for (int i = 0; i < 5; i++) {
		const struct load *load = &loads[i];
		uint32_t flat = serve_flat(load, 250), radix = serve_radix(load, 250);

		print_message("%-24s %9u %7u %7u %6.1f%%\n", load->name, positions_of(load), flat,
			      radix, 100.0 * radix / positions_of(load));
		assert_int_equal(positions_of(load), load->positions);
		assert_int_equal(flat, load->cached);
		assert_int_equal(radix, load->cached);
	}
	keys_free();
}

/* Prompts of 8 blocks: the head of a group, one of its six continuations, and a question of their
 * own, which is never asked again. */
static void under_pressure_radix_is_never_below_flat(void **state)
{
	struct load load = { .name = "eviction pressure" };
	uint64_t random = 5;
	bool above = false;

	(void)state;
	for (uint32_t i = 0; i < 96; i++) {
		uint32_t group = 1 + next_random(&random) % 3, leaf = next_random(&random) % 6;
		uint32_t first = group * 1000 + 100 * (leaf + 1);

		add(&load, join(join(range(group * 1000 + 1, group * 1000 + 20),
				     range(first, first + 7)),
				range(100000 + 10 * i, 100003 + 10 * i)));
	}
	print_message("%-24s %7s %7s\n", "room for blocks", "flat", "radix");
	for (uint32_t room = 8; room <= 72; room += 4) {
		uint32_t flat = serve_flat(&load, room), radix = serve_radix(&load, room);

		print_message("%-24u %6.1f%% %6.1f%%\n", room, 100.0 * flat / positions_of(&load),
			      100.0 * radix / positions_of(&load));
		assert_true(radix >= flat);
		above = above || radix > flat;
	}
	assert_true(above);
	keys_free();
}

/* What the published row compares: eight blocks for both, prompts of eight blocks in turns. */
static void with_eight_blocks_both_hit_nothing(void **state)
{
	struct load load = { .name = "eviction pressure" };

	(void)state;
	for (uint32_t i = 0; i < 24; i++)
		add_group(&load, 1 + i % 3, 1, 16, 16);
	assert_int_equal(serve_flat(&load, 8), 0);
	assert_int_equal(serve_radix(&load, 8), 0);
	keys_free();
}

/* ---- one long image scenario */

#define TEXT 100
#define IMAGE_1 1024
#define IMAGE_2 768
#define IMAGE_3 896
#define CHUNK 512

/** An image's positions: five keys of its identity in turns, top bits 11. */
static struct keys image(uint32_t identity, uint32_t positions)
{
	struct keys all = NO_KEYS, five = NO_KEYS;

	for (uint32_t i = 0; i < 5; i++) {
		uint32_t digest = identity * 40503u + i * 2654435u;

		five = join(five, K(0xc0000000u | (digest & 0x3fffffff)));
	}
	while (all.n < positions)
		all = join(all, five);
	return head(all, positions);
}

static struct keys request(int third)
{
	struct keys keys = join(range(1, TEXT), image(1, IMAGE_1));

	return join(keys, third ? image(3, IMAGE_3) : image(2, IMAGE_2));
}

/** Compute a whole request in chunks that end at `ends`; each chunk asks what it can reuse. */
static void run_alone(struct client *a, uint32_t ns, struct keys keys, const uint32_t *ends,
		      uint32_t n_ends)
{
	struct world *w = a->world;
	uint32_t at = 0;

	for (uint32_t i = 0; i < n_ends; i++) {
		struct seq *seq = begin(a, ns, head(keys, ends[i]), 0, 0);

		assert_int_equal(seq->a.reusable, at / w->ps * w->ps);
		expect_ok(commit(seq, ends[i], NO_KEYS, i + 1 < n_ends ? KVT_F_CHUNKED : 0));
		assert_int_equal(seq->a.next, ends[i]);
		expect_ok(end(seq));
		at = ends[i];
	}
}

static void image_first_request_and_the_second_after_it(uint32_t ps, const uint32_t *ends,
							uint32_t n_ends)
{
	struct world *w = world_new((struct kvt_core_config){
		.page_size = ps, .n_pages = 8000 / ps, .max_nodes = 200 });
	struct client *a = client_new(w), *b = client_new(w);
	uint32_t ns = space_open(a, "ns"), common = (TEXT + IMAGE_1) / ps * ps;
	struct keys one = request(0), two = request(1);
	struct seq *seq;

	space_open(b, "ns");
	w->quick = true;
	assert_int_equal(one.n, 1892);
	run_alone(a, ns, one, ends, n_ends);
	seq = begin(b, ns, two, 0, 0);
	assert_int_equal(seq->a.matched, common);
	assert_int_equal(two.n - seq->a.reusable, ps == 1 ? 896 : 900);
	expect_ok(commit(seq, two.n, NO_KEYS, 0));
	expect_ok(end(seq));
	world_compact(w);
	world_audit(w);
	assert_int_equal(counters(w)->cached_pages, one.n / ps + two.n / ps - common / ps);
	assert_int_equal(path_length(a, ns, one), 2); /* a trunk and two branches */
	assert_int_equal(path_length(a, ns, two), 2);
	assert_int_equal(path_length(a, ns, head(one, common)), 1);
	assert_int_equal(counters(w)->live_nodes, 4);
	assert_int_equal(counters(w)->locked_nodes, 0);
	world_free(w);
}

/** The third request begins while the first is being computed, and takes over what it seals. */
static void image_third_request_meanwhile(uint32_t ps, const uint32_t *ends, uint32_t n_ends,
					  uint32_t begin_at, uint32_t look_at)
{
	struct world *w = world_new((struct kvt_core_config){
		.page_size = ps, .n_pages = 8000 / ps, .max_nodes = 200 });
	struct client *a = client_new(w), *b = client_new(w);
	uint32_t ns = space_open(a, "ns"), common = (TEXT + IMAGE_1) / ps * ps, i = 0;
	struct keys one = request(0), three = request(1);
	struct seq *first, *third;
	uint32_t from;

	space_open(b, "ns");
	w->quick = true;
	first = begin(a, ns, one, 0, 0);
	for (; i < n_ends && ends[i] <= begin_at; i++)
		expect_ok(commit(first, ends[i], NO_KEYS, KVT_F_CHUNKED));
	third = begin(b, ns, three, 0, 0);
	from = begin_at / ps * ps;
	assert_int_equal(third->a.reusable, from);
	assert_int_equal(third->a.announced, common - from);
	for (; i < n_ends && ends[i] <= look_at; i++)
		expect_ok(commit(first, ends[i], NO_KEYS, KVT_F_CHUNKED));
	expect_ok(commit(third, from, NO_KEYS, KVT_F_CHUNKED));
	assert_int_equal(third->a.next, common);
	assert_int_equal(third->a.advanced, common - from);
	for (; i < n_ends; i++)
		expect_ok(commit(first, ends[i], NO_KEYS, i + 1 < n_ends ? KVT_F_CHUNKED : 0));
	expect_ok(commit(third, three.n, NO_KEYS, 0));
	expect_ok(end(first));
	expect_ok(end(third));
	world_compact(w);
	world_audit(w);
	assert_int_equal(counters(w)->live_nodes, 4);
	assert_int_equal(counters(w)->locked_nodes, 0);
	assert_int_equal(counters(w)->private_pages, 0);
	expect_matched(a, ns, one, one.n / ps * ps);
	expect_matched(a, ns, three, three.n / ps * ps);
	world_free(w);
}

static const uint32_t plain_chunks[] = { 512, 1024, 1536, 1892 };
/* A bidirectional region is not cut: a chunk ends where a region does. */
static const uint32_t region_chunks[] = { TEXT, TEXT + IMAGE_1, 1892 };

static void image_chunks_hit_what_earlier_chunks_left(void **state)
{
	(void)state;
	image_first_request_and_the_second_after_it(1, plain_chunks, 4);
	image_first_request_and_the_second_after_it(16, plain_chunks, 4);
}

static void image_chunks_cut_at_region_ends(void **state)
{
	(void)state;
	image_first_request_and_the_second_after_it(1, region_chunks, 3);
	image_first_request_and_the_second_after_it(16, region_chunks, 3);
}

static void image_a_request_takes_over_what_another_computes(void **state)
{
	(void)state;
	image_third_request_meanwhile(1, plain_chunks, 4, 1024, 1536);
	image_third_request_meanwhile(16, plain_chunks, 4, 1024, 1536);
}

static void image_takes_over_whole_regions(void **state)
{
	(void)state;
	image_third_request_meanwhile(1, region_chunks, 3, TEXT, TEXT + IMAGE_1);
	image_third_request_meanwhile(16, region_chunks, 3, TEXT, TEXT + IMAGE_1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(flat_and_radix_agree_with_room_for_everything),
		CASE(under_pressure_radix_is_never_below_flat),
		CASE(with_eight_blocks_both_hit_nothing),
		CASE(image_chunks_hit_what_earlier_chunks_left),
		CASE(image_chunks_cut_at_region_ends),
		CASE(image_a_request_takes_over_what_another_computes),
		CASE(image_takes_over_whole_regions),
	};

	return RUN_CASES(tests);
}
