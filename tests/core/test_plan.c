/* SPDX-License-Identifier: Apache-2.0 */

/* daemon/core/plan.c: sizes, layout and the first state. Configurations go in; sections must not
 * overlap, and equal inputs give equal bytes. */

#include "kvtrunk_wire.h"
#include "tests/core/world.h"

#include <stdlib.h>

TEST(limits_outside_their_range_are_refused_with_a_sentence)
{
	const struct kvt_core_config good = { .page_size = 16, .n_pages = 100 };
	static const struct { size_t at; uint32_t value; } bad[] = {
#define BAD(field_, value_) { offsetof(struct kvt_core_config, field_), value_ }
		BAD(page_size, 0), BAD(page_size, 4097), BAD(page_size, 0x80000000u),
		BAD(n_pages, 0), BAD(n_pages, 1),
		BAD(n_pages, 0x40000001u), BAD(n_slots, 50), BAD(n_slots, 100),
		BAD(n_slots, 0x80000001u), BAD(max_nodes, 7), BAD(max_nodes, 0x40000001u),
		BAD(max_namespaces, 1), BAD(max_namespaces, (1u << 20) + 1),
		BAD(max_sessions, 65536), BAD(n_leases, (1u << 24) + 1),
		BAD(n_pending, (1u << 24) + 1), BAD(max_op_keys, 0x80000001u),
		BAD(policy, KVT_POLICY_COUNT), BAD(policy, UINT32_MAX),
	};

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		struct kvt_core_config config = good;
		struct kvt_core_sizes sizes = { .arena_bytes = 1 };
		const char *why = NULL;

		memcpy((char *)&config + bad[i].at, &bad[i].value, sizeof(uint32_t));
		assert_int_equal(kvt_core_plan(&config, &sizes, &why), -EINVAL);
		assert_non_null(why);
		assert_true(strlen(why) > 20 || strcmp(why, "unknown eviction policy") == 0);
		assert_int_equal(sizes.arena_bytes, 1); /* untouched on failure */
		config = good;
		memcpy((char *)&config + bad[i].at, &bad[i].value, sizeof(uint32_t));
		assert_int_equal(kvt_core_plan(&config, &sizes, NULL), -EINVAL);
	}
}

TEST(defaults_are_filled_in)
{
	struct kvt_core_config config = { .page_size = 64, .n_pages = 16384 };
	struct kvt_core_sizes sizes;

	assert_int_equal(kvt_core_plan(&config, &sizes, NULL), 0);
	assert_int_equal(config.n_slots, 16384 + 1024 + 1);
	assert_int_equal(config.max_nodes, 4096);
	assert_int_equal(config.max_namespaces, 4096);
	assert_int_equal(config.slru_threshold, 2);
	assert_true(config.max_sessions && config.n_leases && config.n_pending);
	config = (struct kvt_core_config){ .page_size = 1, .n_pages = 2 };
	assert_int_equal(kvt_core_plan(&config, &sizes, NULL), 0);
	assert_int_equal(config.max_nodes, 64);
	assert_true(config.n_slots > config.n_pages);
	config = (struct kvt_core_config){ .page_size = 1, .n_pages = 512 };
	assert_int_equal(kvt_core_plan(&config, &sizes, NULL), 0);
	assert_int_equal(config.max_nodes, 512 + 512); /* runs and roots of 512 namespaces */
}

static void check_sections(const struct kvt_section *sections, uint32_t n, uint64_t header,
			   uint64_t object)
{
	uint64_t end = header;

	for (uint32_t i = 0; i < n; i++) {
		assert_int_equal(sections[i].id, i);
		assert_int_equal(sections[i].offset % KVT_LINE, 0);
		assert_true(sections[i].offset >= end);
		assert_int_equal(sections[i].bytes,
				 sections[i].count * sections[i].entry_bytes);
		end = sections[i].offset + sections[i].bytes;
	}
	assert_true(end <= object);
	assert_true(object - end < KVT_LINE);
}

/* For sizes of every kind, sections lie in order, inside the object, and share no line. */
TEST(sections_lie_behind_each_other)
{
	uint64_t random = 9;

	for (int round = 0; round < 60; round++) {
		struct world *w = world_new((struct kvt_core_config){
			.page_size = 1u << next_random(&random) % 9,
			.n_pages = 2 + next_random(&random) % 300,
			.max_nodes = 8 + next_random(&random) % 200,
			.max_namespaces = 2 + next_random(&random) % 100,
			.max_sessions = 1 + next_random(&random) % 9,
			.n_leases = 1 + next_random(&random) % 50,
			.n_pending = 1 + next_random(&random) % 50,
			.max_op_keys = 1 + next_random(&random) % 3000 });
		const struct kvt_arena_header *arena = kvt_core_arena(w->core);
		const struct kvt_ledger_header *ledger = kvt_core_ledger(w->core);

		assert_int_equal(arena->object_bytes, w->sizes.arena_bytes);
		assert_int_equal(ledger->object_bytes, w->sizes.ledger_bytes);
		check_sections(arena->sections, KVT_ARENA_SECTIONS, sizeof(*arena),
			       arena->object_bytes);
		check_sections(ledger->sections, KVT_LEDGER_SECTIONS, sizeof(*ledger),
			       ledger->object_bytes);
		assert_int_equal(arena->n_buckets & (arena->n_buckets - 1), 0);
		assert_true(arena->n_buckets >= 2 * w->config.max_nodes);
		world_free(w);
	}
}

TEST(a_new_core_is_empty_and_has_its_identity)
{
	struct world *w = world_new((struct kvt_core_config){
		.page_size = 4, .n_pages = 33, .hash_seed = 77, .instance = { 5, 6 },
		.boot_id = { 7, 8 }, .fingerprint = "model-x", .policy = KVT_POLICY_LFU });
	const struct kvt_arena_header *arena = kvt_core_arena(w->core);

	assert_int_equal(arena->magic, KVT_ARENA_MAGIC);
	assert_int_equal(arena->layout, kvt_abi_layout());
	assert_int_equal(arena->abi, KVT_ABI);
	assert_int_equal(arena->hash_seed, 77);
	assert_int_equal(arena->instance[1], 6);
	assert_int_equal(arena->epoch, 1);
	assert_int_equal(arena->state, KVT_ARENA_READY); /* the harness publishes it */
	assert_int_equal(arena->policy, KVT_POLICY_LFU);
	assert_string_equal(arena->fingerprint, "model-x");
	assert_int_equal(kvt_core_ledger(w->core)->magic, KVT_LEDGER_MAGIC);
	assert_int_equal(kvt_core_ledger(w->core)->boot_id[0], 7);
	assert_int_equal(counters(w)->free_pages, 32);
	assert_int_equal(w->core->pages[0].state, KVT_PAGE_SCRATCH);
	expect_pages(w, 0, 0, 0);
}

/* The same calls on the same configuration give the same state, byte for byte. */
TEST(the_same_calls_give_the_same_bytes)
{
	struct world *worlds[2];

	for (int i = 0; i < 2; i++) {
		struct world *w = worlds[i] = world_small(2, 90);
		struct client *a = client_new(w);
		uint32_t ns = space_open(a, "ns");
		uint64_t random = 31;

		for (int step = 0; step < 400; step++) {
			uint32_t keys[12], n = next_random(&random) % 12;
			struct seq *seq;

			for (uint32_t k = 0; k < n; k++)
				keys[k] = next_random(&random) % 2;
			seq = begin(a, ns, (struct keys){ keys, n }, step % 5, 0);
			commit(seq, n, NO_KEYS, 0);
			end(seq);
			kvt_core_work(w->core, 9, true, w->now_ns);
			if (step % 50 == 0)
				keys_free();
		}
	}
	assert_memory_equal(worlds[0]->arena, worlds[1]->arena, worlds[0]->sizes.arena_bytes);
	assert_memory_equal(worlds[0]->ledger, worlds[1]->ledger, worlds[0]->sizes.ledger_bytes);
	world_leave(worlds[0]);
	world_free(worlds[1]);
}
