/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file salts.c
 * What a short sequence costs whose salt is new, as a root key and as a namespace.
 *
 * Inputs: the options. Invariant: figures and floor are measured in turns; no sequence finds keys,
 * though those with a salt all have the same.
 * Caller: main.c.
 */
#include "bench/bench.h"

#define SALT_KEYS BENCH_PAGE_SIZE

static void sequence(struct bench_target *target, uint32_t namespace_id, uint64_t root_key,
		     const uint32_t *keys)
{
	const struct kvt_request begin = { .namespace_id = namespace_id, .root_key = root_key,
					   .keys = keys, .n_keys = SALT_KEYS };
	struct kvt_client *client = target->client;
	struct kvt_seq *seq;

	if (kvt_seq_start(client, &begin, &seq))
		bench_die("salts: %s", kvt_client_error(client)->text);
	if (kvt_seq_reusable(seq))
		bench_die("salts: found what is under another one");
	if (kvt_seq_commit(seq, SALT_KEYS, NULL, 0, KVT_IDLE, 0) ||
	    kvt_seq_end(seq, 0, NULL, 0, KVT_IDLE, 0))
		bench_die("salts: %s", kvt_client_error(client)->text);
}

static void in_namespace(struct bench_target *target, uint64_t salt, const uint32_t *keys)
{
	const uint64_t digest[2] = { salt, 1 };
	uint32_t number;

	if (kvt_namespace_open(target->client, digest, "salt", &number))
		bench_die("salts: %s", kvt_client_error(target->client)->text);
	sequence(target, number, 0, keys);
	if (kvt_namespace_close(target->client, number))
		bench_die("salts: %s", kvt_client_error(target->client)->text);
}

static double emit(const char *kind, struct bench_samples *value, struct bench_summary floor)
{
	struct bench_result line = { .name = "salt", .kind = kind, .keys = SALT_KEYS,
				     .floor = floor,
				     .floor_is = "such a sequence of other keys, without a salt" };

	line.value = bench_samples_take(value);
	bench_emit(&line);
	return line.value.p50 / floor.p50;
}

void bench_salts(const struct bench_options *options)
{
	struct bench_samples plain = { 0 }, root = { 0 }, space = { 0 };
	struct bench_target target = { .spin_us = BENCH_SPIN_DEFAULT };
	uint32_t keys[SALT_KEYS], others[SALT_KEYS], n = options->quick ? 300 : 2000;
	struct bench_summary floor;
	double ratio;

	if (options->core)
		return;
	bench_target_open(&target, options, BENCH_POSITIONS / BENCH_PAGE_SIZE + 1);
	bench_new_keys(keys, SALT_KEYS);
	for (uint64_t salt = 1; salt <= n; salt++) {
		uint64_t t0, t1, t2, t3;

		bench_new_keys(others, SALT_KEYS);
		t0 = bench_ticks();
		sequence(&target, target.namespace_id, 0, others);
		t1 = bench_ticks();
		sequence(&target, target.namespace_id, salt, keys);
		t2 = bench_ticks();
		in_namespace(&target, salt, keys);
		t3 = bench_ticks();
		bench_samples_add(&plain, t1 - t0);
		bench_samples_add(&root, t2 - t1);
		bench_samples_add(&space, t3 - t2);
	}
	bench_target_close(&target);
	floor = bench_samples_take(&plain);
	ratio = emit("root key", &root, floor);
	bench_aim("a sequence under a new root key, beside one without", ratio, "x", 1.1, false);
	emit("namespace", &space, floor);
}
