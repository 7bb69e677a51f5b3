/* SPDX-License-Identifier: Apache-2.0 */

/* daemon/core/order.c: the heap, compared with a naive list. */

#include "tests/core/world.h"

TEST(the_heap_agrees_with_a_sorted_list)
{
	enum { NODES = 200 };

	for (uint64_t seed = 1; seed <= 8; seed++) {
		struct world *w = world_new((struct kvt_core_config){
			.page_size = 1, .n_pages = 400, .max_nodes = NODES,
			.policy = KVT_POLICY_LFU });
		struct kvt_core *core = w->core;
		uint64_t random = seed;

		for (int step = 0; step < 4000; step++) {
			uint32_t id = 1 + next_random(&random) % (NODES - 1), best = KVT_NONE;
			struct kvt_node *node = &core->nodes[id];

			if (node->heap_at && next_random(&random) % 3 == 0) {
				kvt_heap_remove(core, &core->heap, id);
				assert_int_equal(node->heap_at, 0);
			} else {
				node->uses = next_random(&random) % 6;
				node->touched = (uint64_t)step + 1;
				kvt_heap_update(core, &core->heap, id);
			}
			for (uint32_t i = 1; i < NODES; i++) {
				const struct kvt_node *n = &core->nodes[i], *b = &core->nodes[best];

				if (n->heap_at &&
				    (best == KVT_NONE || n->uses < b->uses ||
				     (n->uses == b->uses && n->touched < b->touched)))
					best = i;
			}
			if (best == KVT_NONE)
				assert_int_equal(core->heap.count, 0);
			else
				assert_int_equal(core->heap.nodes[0], best);
		}
		while (core->heap.count > 0)
			kvt_heap_remove(core, &core->heap, core->heap.nodes[core->heap.count / 2]);
		world_free(w);
	}
}
