/* SPDX-License-Identifier: Apache-2.0 */

/* Read access for the rest of the daemon: records for tools, counters and headers. */

#include <string.h>

#include "daemon/core/core.h"
#include "daemon/core/ledger.h"
#include "daemon/core/records.h"
#include "daemon/core/slots.h"
#include "daemon/core/state.h"
#include "daemon/core/tally.h"
#include "daemon/core/tree.h"
#include "kvtrunk_wire_admin.h"

const struct kvt_counters *kvt_core_counters(const struct kvt_core *core)
{
	return core->count;
}

const struct kvt_arena_header *kvt_core_arena(const struct kvt_core *core)
{
	return core->arena;
}

const struct kvt_ledger_header *kvt_core_ledger(const struct kvt_core *core)
{
	return core->ledger;
}

const struct kvt_tally *kvt_core_tally(const struct kvt_core *core, uint32_t session)
{
	KVT_ASSERT(session <= core->config.max_sessions);
	return kvt_tally_session(core, session);
}

struct kvt_starts kvt_core_starts(const struct kvt_core *core)
{
	struct kvt_starts starts = core->ledger->starts;

	starts.adopted += core->arena->generation - 1;
	return starts;
}

void kvt_core_count_start(struct kvt_core *core, const struct kvt_starts *before,
			  enum kvt_cold_cause cause)
{
	KVT_ASSERT(core->arena->generation == 1 && cause < KVT_COLD_COUNT);
	core->ledger->starts = *before;
	core->ledger->starts.cold[cause]++;
}

const struct kvt_core_effort *kvt_core_effort(const struct kvt_core *core)
{
	return &core->effort;
}

bool kvt_core_describe_namespace(const struct kvt_core *core, uint32_t id,
				 struct kvt_admin_namespace *ret_namespace)
{
	const struct kvt_namespace_record *space = &core->namespaces[id];

	if (id == 0 || id >= core->config.max_namespaces || !space->flags)
		return false;
	*ret_namespace = (struct kvt_admin_namespace){
		.namespace_id = id,
		.root = kvt_root_of(core, id),
		.opened = space->opened,
		.generation = space->generation,
		.digest = { space->digest[0], space->digest[1] },
		.cached_pages = space->cached_pages,
		.evictable_pages = space->evictable_pages,
		.protected_pages = space->protected_pages,
		.nodes = space->nodes,
		.limit = space->limit,
	};
	memcpy(ret_namespace->label, core->labels[id], KVT_LABEL_BYTES);
	ret_namespace->tally = *kvt_tally_namespace(core, id);
	return true;
}

void kvt_core_page_root(const struct kvt_core *core, uint32_t page, uint32_t *ret_namespace,
			uint64_t *ret_root_key)
{
	const struct kvt_page_record *record = &core->pages[page];
	uint32_t id = kvt_slots_node_of(&core->slots, record->slot);

	KVT_ASSERT(record->state == KVT_PAGE_CACHED && core->nodes[id].start == 0);
	*ret_namespace = core->nodes[id].namespace_id;
	*ret_root_key = kvt_root_key_of(core, id);
}

bool kvt_core_page_ends(const struct kvt_core *core, uint32_t page)
{
	uint32_t slot = core->pages[page].slot;

	KVT_ASSERT(core->pages[page].state == KVT_PAGE_CACHED && slot != KVT_NONE);
	return core->expiry.count > 0 &&
	       core->nodes[kvt_slots_node_of(&core->slots, slot)].expiry_ns != KVT_NEVER;
}

bool kvt_core_describe_page(const struct kvt_core *core, uint32_t page,
			    struct kvt_admin_page *ret_page)
{
	const struct kvt_page_record *record, *main;
	const struct kvt_node *node;

	if (page >= core->config.n_pages)
		return false;
	record = &core->pages[page];
	*ret_page = (struct kvt_admin_page){
		.page = page,
		.state = record->state,
		.session = core->owners[page].session,
		.lease = core->owners[page].lease,
	};
	if (record->state != KVT_PAGE_CACHED)
		return true;
	main = record;
	if (record->slot == KVT_NONE) {
		ret_page->state = KVT_PAGE_SIDE;
		main = &core->pages[record->parent];
	}
	ret_page->node = kvt_slots_node_of(&core->slots, main->slot);
	node = kvt_node_at(core, ret_page->node);
	KVT_ASSERT(kvt_node_live(core, ret_page->node));
	KVT_ASSERT(main->slot - node->first_slot < node->sealed);
	ret_page->generation = node->generation;
	ret_page->position = (node->start + main->slot - node->first_slot) * core->ps;
	ret_page->lock_ref = node->lock_ref;
	return true;
}

void kvt_core_describe_leases(const struct kvt_core *core, uint64_t now_ns,
			      struct kvt_admin_status *status)
{
	const struct kvt_lease_record *oldest = NULL;

	status->oldest_lease = status->oldest_lease_session = 0;
	status->oldest_lease_age_ns = 0;
	for (uint32_t i = 1; i <= core->config.max_sessions; i++) {
		uint32_t id = core->sessions[i].last_lease;

		if (id == KVT_NONE || (oldest && oldest->ticket < core->leases[id].ticket))
			continue;
		oldest = &core->leases[id];
		status->oldest_lease = id;
		status->oldest_lease_session = i;
		status->oldest_lease_age_ns = now_ns - oldest->begun_ns;
	}
	status->stale_locks = core->count->live_leases - core->epoch_leases + core->cut_leases;
}
