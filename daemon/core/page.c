/* SPDX-License-Identifier: Apache-2.0 */

/* Pages. Each is in exactly one state, and in one list: free, a lease's, a session's loose or
 * quarantined pages; a cached one is in a slot instead. The caller saves what it changes for undo.
 * Callers: leases, ALLOC and FREE, sealing and trimming, the end of a session. */

#include "daemon/core/page.h"
#include "daemon/core/records.h"
#include "daemon/core/state.h"

uint32_t kvt_page_take(struct kvt_core *core, uint32_t session, uint32_t lease)
{
	uint32_t page = core->free_page;

	KVT_ASSERT(page != KVT_NONE);
	KVT_ASSERT(core->pages[page].state == KVT_PAGE_FREE);
	KVT_ASSERT(core->count->free_pages > 0 && session > 0 &&
		   session <= core->config.max_sessions);
	core->free_page = core->owners[page].next;
	/* In this order: pages that a lease takes are in no undo log, and are found by its name. */
	core->owners[page].lease = lease;
	kvt_fence_signal();
	core->owners[page].session = session;
	core->owners[page].next = core->owners[page].prev = KVT_NONE;
	core->pages[page].state = KVT_PAGE_PRIVATE;
	core->count->free_pages--;
	core->count->private_pages++;
	core->sessions[session].n_private++;
	core->effort.pages_moved++;
	return page;
}

void kvt_page_release(struct kvt_core *core, uint32_t page)
{
	struct kvt_owner_record *owner = &core->owners[page];

	KVT_ASSERT(page != KVT_NONE && owner->session > 0);
	if (core->pages[page].state == KVT_PAGE_PRIVATE) {
		KVT_ASSERT(core->sessions[owner->session].n_private > 0);
		core->count->private_pages--;
		core->sessions[owner->session].n_private--;
	} else {
		KVT_ASSERT(core->pages[page].state == KVT_PAGE_QUARANTINE);
		KVT_ASSERT(core->sessions[owner->session].n_quarantined > 0);
		core->count->quarantined_pages--;
		core->sessions[owner->session].n_quarantined--;
	}
	core->pages[page].state = KVT_PAGE_FREE;
	*owner = (struct kvt_owner_record){ .next = core->free_page };
	core->free_page = page;
	core->count->free_pages++;
	core->effort.pages_moved++;
}

void kvt_page_cache(struct kvt_core *core, uint32_t page, uint32_t slot, uint32_t parent)
{
	struct kvt_session_record *session = &core->sessions[core->owners[page].session];

	KVT_ASSERT(core->pages[page].state == KVT_PAGE_PRIVATE);
	KVT_ASSERT(session->n_private > 0 && core->owners[page].next == KVT_NONE);
	KVT_ASSERT(slot < core->config.n_slots && (slot != KVT_NONE || core->n_sides > 0));
	session->n_private--;
	core->owners[page] = (struct kvt_owner_record){ 0 };
	core->pages[page] = (struct kvt_page_record){ slot, KVT_PAGE_CACHED, session->sealer,
						      parent, 0 };
	if (slot != KVT_NONE)
		core->slot_pages[slot] = page;
	core->count->private_pages--;
	core->count->cached_pages++;
	core->count->inserted_pages++;
	if (core->change) {
		KVT_ASSERT(core->n_in < core->config.n_pages);
		core->in[core->n_in++] = page;
	}
	core->effort.pages_moved++;
}

void kvt_page_uncache(struct kvt_core *core, uint32_t page)
{
	KVT_ASSERT(core->pages[page].state == KVT_PAGE_CACHED);
	KVT_ASSERT(core->pages[page].slot != KVT_NONE || core->n_sides > 0);
	KVT_ASSERT(core->n_out < core->config.n_pages);
	/* Not sealer and parent, which no undo log has: they are there if this is rolled back. */
	core->pages[page].slot = KVT_NONE;
	core->pages[page].state = KVT_PAGE_FREE;
	core->owners[page] = (struct kvt_owner_record){ .next = core->free_page };
	core->free_page = page;
	core->count->cached_pages--;
	core->count->free_pages++;
	core->out[core->n_out++] = page;
	core->effort.pages_moved++;
}

static uint32_t *list_head(struct kvt_core *core, uint32_t session, uint32_t page)
{
	struct kvt_session_record *record = &core->sessions[session];

	return core->pages[page].state == KVT_PAGE_QUARANTINE ? &record->first_quarantined :
								&record->first_page;
}

void kvt_loose_add(struct kvt_core *core, uint32_t session, uint32_t page)
{
	uint32_t *head = list_head(core, session, page);
	struct kvt_owner_record *owner = &core->owners[page];

	KVT_ASSERT(core->pages[page].state == KVT_PAGE_PRIVATE ||
		   core->pages[page].state == KVT_PAGE_QUARANTINE);
	KVT_ASSERT(*head == KVT_NONE || core->owners[*head].prev == KVT_NONE);
	owner->session = session;
	owner->lease = KVT_NONE;
	owner->prev = KVT_NONE;
	owner->next = *head;
	if (*head != KVT_NONE)
		core->owners[*head].prev = page;
	*head = page;
}

void kvt_loose_remove(struct kvt_core *core, uint32_t session, uint32_t page)
{
	uint32_t *head = list_head(core, session, page);
	struct kvt_owner_record *owner = &core->owners[page];

	KVT_ASSERT(owner->session == session && owner->lease == KVT_NONE);
	KVT_ASSERT(owner->prev != KVT_NONE || *head == page);
	if (owner->prev != KVT_NONE)
		core->owners[owner->prev].next = owner->next;
	else
		*head = owner->next;
	if (owner->next != KVT_NONE)
		core->owners[owner->next].prev = owner->prev;
	owner->next = KVT_NONE;
	owner->prev = KVT_NONE;
}

static enum kvt_reason page_problem(const struct kvt_core *core, uint32_t session, uint32_t page)
{
	if (page == 0 || page >= core->config.n_pages)
		return KVT_REASON_PAGE_RANGE;
	if (kvt_bit_get(core->page_mark, page))
		return KVT_REASON_PAGE_TWICE;
	switch (core->pages[page].state) {
	case KVT_PAGE_FREE:
		return KVT_REASON_PAGE_FREE;
	case KVT_PAGE_CACHED:
		return KVT_REASON_PAGE_CACHED;
	case KVT_PAGE_PRIVATE:
		if (core->owners[page].session != session)
			return KVT_REASON_PAGE_FOREIGN;
		if (core->owners[page].lease != KVT_NONE)
			return KVT_REASON_PAGE_LEASED;
		return KVT_REASON_NONE;
	default:
		return KVT_REASON_PAGE_FOREIGN;
	}
}

int kvt_pages_judge(struct kvt_core *core, uint32_t session, uint32_t n, const uint32_t *twins,
		    uint32_t n_twins)
{
	enum kvt_reason reason = KVT_REASON_NONE;
	uint32_t i;

	KVT_ASSERT(n <= core->config.max_op_keys && n_twins <= n);
	for (i = 0; i < n; i++) {
		uint32_t page = core->op_pages[i];

		if (i < n_twins && page == twins[i])
			continue;
		reason = page_problem(core, session, page);
		if (reason != KVT_REASON_NONE)
			break;
		kvt_bit_set(core->page_mark, page);
	}
	while (i-- > 0)
		if (core->op_pages[i] < core->config.n_pages)
			kvt_bit_clear(core->page_mark, core->op_pages[i]);
	return (int)reason;
}

int kvt_pages_check(struct kvt_core *core, uint32_t session, const uint32_t *pages, uint32_t n,
		    const uint32_t *twins, uint32_t n_twins)
{
	KVT_ASSERT(n <= core->config.max_op_keys);
	kvt_racy_copy(core->op_pages, pages, n);
	return kvt_pages_judge(core, session, n, twins, n_twins);
}
