/* SPDX-License-Identifier: Apache-2.0 */

/* Two rings of work that the tree leaves for idle turns. */

#include "daemon/core/backlog.h"
#include "daemon/core/state.h"

/* ---- tops of detached subtrees */

void kvt_detached_queue(struct kvt_core *core, uint32_t top)
{
	struct kvt_node *node = kvt_node_at(core, top);

	KVT_ASSERT((node->flags & (KVT_NODE_LIVE | KVT_NODE_DETACHED)) ==
		   (KVT_NODE_LIVE | KVT_NODE_DETACHED));
	if (node->flags & KVT_NODE_QUEUED) {
		if (core->detached[core->detached_head] == top)
			core->reclaim_again = true;
		return;
	}
	KVT_ASSERT(core->detached_count < core->config.max_nodes);
	KVT_SET(node->flags, node->flags | KVT_NODE_QUEUED);
	core->detached[(core->detached_head + core->detached_count++) % core->config.max_nodes] =
		top;
	core->count->detached_pending++;
}

void kvt_detached_forget(struct kvt_core *core, uint32_t place)
{
	uint32_t size = core->config.max_nodes;

	KVT_ASSERT(place < core->detached_count && core->count->detached_pending > 0);
	for (uint32_t i = place; i > 0; i--)
		core->detached[(core->detached_head + i) % size] =
			core->detached[(core->detached_head + i - 1) % size];
	core->detached_head = (core->detached_head + 1) % size;
	core->detached_count--;
	core->count->detached_pending--;
	if (place == 0) {
		core->reclaim_cursor = KVT_NONE;
		core->reclaim_again = false;
	}
}

/* The node is unlinked from its siblings already: the cursor starts over at the first leaf, and
 * passes quickly what it passes again. */
void kvt_reclaim_skip(struct kvt_core *core, uint32_t id)
{
	if (core->reclaim_cursor == id)
		core->reclaim_cursor = KVT_NONE;
	if (!(core->nodes[id].flags & KVT_NODE_QUEUED))
		return;
	for (uint32_t i = 0; i < core->detached_count; i++) {
		if (core->detached[(core->detached_head + i) % core->config.max_nodes] == id) {
			kvt_detached_forget(core, i);
			return;
		}
	}
}

/* ---- nodes that may join their parents */

void kvt_compact_note(struct kvt_core *core, uint32_t id)
{
	uint32_t size = core->config.max_nodes, at;

	if (core->nodes[id].flags & KVT_NODE_ROOT || core->compact_count == size)
		return;
	at = core->compact_head + core->compact_count;
	at = at < size ? at : at - size; /* cheaper than a division */
	KVT_ASSERT(at < size);
	if (core->compact_count && core->compact[at ? at - 1 : size - 1] == id)
		return;
	core->compact[at] = id;
	core->compact_count++;
}
