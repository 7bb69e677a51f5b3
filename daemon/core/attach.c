/* SPDX-License-Identifier: Apache-2.0 */

/* Side pages of a COMMIT (attach.h).
 *
 * Input is a private copy of the entry's pairs, core->op_sides. Invariants: a path's lock protects
 * its side pages, too; a side page leaves before its main page, or may be evicted before it, only
 * if the lease that says so is the only one that can need it. Caller: lease.c. */

#include <errno.h>

#include "daemon/core/attach.h"
#include "daemon/core/page.h"
#include "daemon/core/side.h"
#include "daemon/core/slots.h"
#include "daemon/core/state.h"
#include "daemon/core/tree.h"
#include "daemon/core/undo.h"
#include "daemon/core/undo_records.h"

/** True if a pair brings a page. The others drop what is in their place, or let it go. */
static bool brings(uint32_t page)
{
	return page != KVT_NONE && page != KVT_SIDE_LET;
}

int kvt_attach_check(struct kvt_core *core, struct kvt_op_context *op,
		     const struct kvt_lease_record *lease, uint32_t cached)
{
	uint32_t given = 0;
	int reason;

	core->record.pages = core->op_sides;
	core->record.n_pages = 2 * op->n_sides;
	for (uint32_t i = 0; i < op->n_sides; i++) {
		uint32_t place = core->op_sides[2 * i], page = core->op_sides[2 * i + 1];

		if (KVT_SIDE_INDEX(place) >= cached || KVT_SIDE_KIND(place) >= core->n_sides)
			return kvt_refuse(op, -EINVAL, KVT_REASON_SIDE_PLACE, lease->computed);
		if (brings(page))
			core->op_pages[given++] = page;
	}
	reason = kvt_pages_judge(core, op->session, given, NULL, 0);
	if (reason)
		return kvt_refuse(op, -EINVAL, (enum kvt_reason)reason, lease->computed);
	if (given > op->sqe->list_capacity)
		return kvt_refuse(op, -ENOBUFS, KVT_REASON_LIST_SHORT, given);
	return 0;
}

/** The first page of a lease's path that no other lease crosses, and behind which no other branch
 * begins. */
static uint32_t alone_from(const struct kvt_core *core, const struct kvt_lease_record *lease)
{
	uint32_t own_children = 0;

	for (uint32_t id = lease->node; id != KVT_NONE; id = core->nodes[id].parent) {
		const struct kvt_node *node = kvt_node_at(core, id);

		if (node->lock_ref > 1 || node->n_children > own_children)
			return node->start + node->n_slots;
		own_children = 1;
	}
	return 0;
}

/** Let a side page go, if there is one that is held, and no other lease crosses its node. */
static void let_go(struct kvt_core *core, const struct kvt_lease_record *lease, uint32_t node,
		   uint32_t page)
{
	if (page != KVT_NONE && core->nodes[node].lock_ref == 1 && !kvt_side_is_let(core, page))
		kvt_side_let(core, node, page, (uint32_t)(lease - core->leases));
}

void kvt_attach(struct kvt_core *core, struct kvt_op_context *op,
		const struct kvt_lease_record *lease)
{
	uint32_t *list = op->view->list + op->sqe->list_offset;
	uint32_t alone = alone_from(core, lease), given = 0;

	for (uint32_t i = 0; i < op->n_sides; i++)
		given += brings(core->op_sides[2 * i + 1]);
	kvt_save_pages(core, op->session, core->op_pages, given);
	kvt_path_pages(core, lease->node, lease->done, core->path_list);
	for (uint32_t i = 0; i < op->n_sides; i++) {
		uint32_t place = core->op_sides[2 * i], page = core->op_sides[2 * i + 1];
		uint32_t index = KVT_SIDE_INDEX(place), kind = KVT_SIDE_KIND(place), node, main;

		if (index >= lease->done) { /* caching is disabled */
			if (brings(page))
				list[op->cqe->n_list++] = page;
			continue;
		}
		main = core->path_list[index];
		node = kvt_slots_node_of(&core->slots, core->pages[main].slot);
		if (page == KVT_NONE) {
			if (index >= alone)
				kvt_side_drop(core, node, index - core->nodes[node].start, kind);
		} else if (page == KVT_SIDE_LET) {
			let_go(core, lease, node, kvt_sides_of(core, main)[kind]);
		} else if (kvt_sides_of(core, main)[kind] == KVT_NONE) {
			kvt_loose_remove(core, op->session, page);
			kvt_side_attach(core, node, index - core->nodes[node].start, kind, page);
		} else {
			list[op->cqe->n_list++] = page;
		}
	}
}
