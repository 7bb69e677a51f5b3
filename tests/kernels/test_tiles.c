/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Emulated tiles, which test the amx_bf16 path without AMX, against real ones: equal bits of one
 * product of tiles, and of whole results.
 *
 * Inputs: random bits in tiles, and batches. Needs AMX; skips without it.
 */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/kernels/support.h"

#if defined(__x86_64__)

#include "kernels/tiles.h"
#include "tests/kernels/amx_emulated.h"

struct product {
	float c[16][16];
	uint16_t a[16][32];
	uint16_t b[16][32];
} __attribute__((aligned(64)));

/* bf16: any bits, small whole numbers, numbers near the least normal one, or near the largest. */
static uint16_t half_random(struct random *random, uint32_t kind)
{
	uint32_t bits = random_below(random, 65536);

	switch (kind) {
	case 0:
		return (uint16_t)bits;
	case 1:
		return (uint16_t)(0x3f80 + (bits & 0x80ff));
	case 2:
		return (uint16_t)(0x1f80 + (bits & 0x80ff));
	default:
		return (uint16_t)(0x5f00 + (bits & 0x80ff));
	}
}

static void real_dot(struct product *product)
{
	struct tile_config config = { .palette = 1 };

	for (int i = 0; i < 8; i++) {
		config.rows[i] = 16;
		config.row_bytes[i] = 64;
	}
	tile_config_load(&config);
	tile_load(0, product->c, 64);
	tile_load(4, product->a, 64);
	tile_load(6, product->b, 64);
	tile_dot(0, 4, 6);
	tile_store(0, product->c, 64);
	tile_release();
}

static bool is_nan(float value)
{
	return value != value;
}

static void products_test(uint32_t kind)
{
	struct random random = { 40 + kind };

	case_begin("one product of tiles, kind %u: equal bits, real and emulated", kind);
	for (int round = 0; round < 300; round++) {
		struct product real, emulated;

		for (int i = 0; i < 16 * 16; i++) {
			uint32_t low = random_below(&random, 65536);
			uint32_t bits = (uint32_t)half_random(&random, kind) << 16 | low;

			memcpy(&real.c[i / 16][i % 16], &bits, sizeof bits);
		}
		for (int i = 0; i < 16 * 32; i++) {
			real.a[i / 32][i % 32] = half_random(&random, kind);
			real.b[i / 32][i % 32] = half_random(&random, kind);
		}
		emulated = real;
		real_dot(&real);
		amx_emulated_dot(emulated.c, (const uint16_t(*)[32])emulated.a,
				 (const uint16_t(*)[32])emulated.b);
		for (int i = 0; i < 16 * 16; i++) {
			float x = real.c[i / 16][i % 16], y = emulated.c[i / 16][i % 16];

			if (memcmp(&x, &y, sizeof x) != 0 && !(is_nan(x) && is_nan(y)))
				case_fail(__FILE__, __LINE__, "element %d is %a, emulated %a", i,
					  (double)x, (double)y);
		}
	}
}

/* The same batch on both; keep the result of real tiles. */
static void both_run(const struct kvt_attn_prefill *prefill, struct random *random, void *context)
{
	struct kvt_attn_context *const *both = context;
	uint64_t n = 0;
	size_t bytes;
	void *real;

	for (uint32_t i = 0; i < prefill->n_sequences; i++)
		n += prefill->sequences[i].n_queries;
	bytes = n * prefill->n_q_heads * prefill->kv.head_dim * type_bytes(prefill->out_type);
	real = malloc(bytes);
	EXPECT_EQUAL(kvt_attn_append_prefill(both[0], prefill, NULL), 0);
	memcpy(real, prefill->out, bytes);
	memset(prefill->out, 0xff, bytes);
	EXPECT_EQUAL(kvt_attn_append_prefill(both[1], prefill, NULL), 0);
	EXPECT(memcmp(real, prefill->out, bytes) == 0);
	free(real);
}

static double any_error(const struct scene *scene, uint32_t out_type, void *context)
{
	(void)scene, (void)out_type, (void)context;
	return 0.1;
}

int main(void)
{
	struct kvt_attn_context *both[2] = { context_for(KVT_ATTN_ISA_AMX_BF16, 2, 0),
					     context_for(ISA_AMX_EMULATED, 2, 0) };
	uint32_t seed = random_seed();

	if (!both[0]) {
		case_begin("real tiles");
		case_skip("this CPU or its kernel has no AMX");
		return cases_end();
	}
	for (uint32_t kind = 0; kind < 4; kind++)
		products_test(kind);
	for (uint32_t i = 0; i < random_cases(100); i++)
		random_test("amx_bf16, real and emulated", seed + i, both_run, any_error, both);
	kvt_attn_close(both[0]);
	kvt_attn_close(both[1]);
	return cases_end();
}

#else

int main(void)
{
	case_begin("real tiles");
	case_skip("they are of x86-64");
	return cases_end();
}

#endif
