/* SPDX-License-Identifier: Apache-2.0 */

/* Steps shared by operations: refusals, the list that must be answered, free room.
 *
 * Inputs: o->run, the operation under way. Invariant: a step that refuses returns MODEL_REFUSED, a
 * mismatch -EBADMSG. Callers: ops.c, lease.c, wait.c. */

#include <errno.h>

#include "kvtrunk_wire_control.h"
#include "lab/oracle/events.h"
#include "lab/oracle/fail.h"
#include "lab/oracle/model.h"
#include "lab/oracle/run.h"

int run_refuse(struct kvt_oracle *o, int result, uint32_t reason, uint64_t number)
{
	struct kvt_cqe *want = &o->run.want;

	want->result = result;
	want->reason = (uint16_t)reason;
	want->refused.number = number > UINT32_MAX ? UINT32_MAX : (uint32_t)number;
	return MODEL_REFUSED;
}

int run_no_room(struct kvt_oracle *o, uint32_t n, uint64_t available)
{
	o->run.want.refused.needed = n;
	return run_refuse(o, -ENOSPC,
			  n > o->config.n_pages - 1 ? KVT_REASON_TOO_LARGE :
						      KVT_REASON_ALL_LOCKED,
			  available);
}

int run_need_list(struct kvt_oracle *o, uint64_t words)
{
	if (words > o->run.record->sqe.list_capacity)
		return run_refuse(o, -ENOBUFS, KVT_REASON_LIST_SHORT, words);
	return 0;
}

int run_want(struct kvt_oracle *o, uint32_t word)
{
	struct model_run *run = &o->run;

	run->want_list = oracle_room(run->want_list, &run->want_room, run->n_want + 1ull,
				     sizeof(*run->want_list));
	if (!run->want_list)
		return oracle_fail(o, "the oracle is out of memory");
	run->want_list[run->n_want++] = word;
	return 0;
}

int run_want_path(struct kvt_oracle *o, uint32_t node, uint32_t n)
{
	TRY(model_path(o, node));
	for (uint32_t i = 0; i < o->n_path; i++) {
		const struct model_node *at = o->nodes[o->path[i]];

		for (uint32_t page = at->start; page < model_end(at) && page < n; page++)
			TRY(run_want(o, at->pages[page - at->start]));
	}
	return 0;
}

void run_want_handle(struct kvt_oracle *o, uint32_t node, uint64_t positions)
{
	struct kvt_cqe *want = &o->run.want;

	want->node = node;
	want->generation = node ? o->nodes[node]->generation : 0;
	want->positions = (uint32_t)positions;
}

uint64_t model_available(const struct kvt_oracle *o)
{
	return o->in_state[KVT_PAGE_FREE] + model_evictable(o);
}

/* Find the END of the record's session that waits for a lease. */
static bool ends(const struct kvt_oracle *o, uint32_t lease, uint64_t *ret_keys)
{
	bool found = false;

	*ret_keys = o->leases[lease].known;
	for (uint32_t i = 0; i < o->n_pending; i++) {
		const struct model_pending *p = &o->pending[i];

		if (p->waits || p->lease != lease || p->session != o->run.record->session)
			continue;
		found |= p->sqe.op == KVT_OP_END;
		*ret_keys += p->sqe.n_keys;
	}
	return found;
}

/* Return the place in the table of a lease from which on its pages may be taken. */
static uint32_t first_spare(const struct kvt_oracle *o, uint32_t index)
{
	const struct model_lease *lease = &o->leases[index];
	uint64_t keys;

	if (lease->kind != MODEL_LEASE_BEGIN || !ends(o, index, &keys))
		return UINT32_MAX;
	keys = (keys + o->config.page_size - 1) / o->config.page_size;
	return keys < lease->done ? lease->done : (uint32_t)keys;
}

/* Count the pages that the session may take from its leases that end. */
static uint64_t own_pages(const struct kvt_oracle *o)
{
	uint64_t n = 0;

	for (uint32_t i = 1; i <= o->config.n_leases; i++) {
		uint32_t from = first_spare(o, i), table = o->leases[i].n_table;

		if (from != UINT32_MAX)
			n += o->leases[i].n_kept + (from < table ? table - from : 0);
	}
	return n;
}

/* Take a page from a lease that ends: the last of its table, or a kept one. */
static int own_page(struct kvt_oracle *o, uint32_t page)
{
	uint32_t index = o->pages[page].lease;
	struct model_lease *lease = &o->leases[index];
	uint32_t from = index ? first_spare(o, index) : UINT32_MAX;

	if (o->pages[page].state != KVT_PAGE_PRIVATE || from == UINT32_MAX)
		return oracle_fail(o, "page %u was taken in state %u from lease %u, which does not "
				   "end", page, o->pages[page].state, index);
	if (o->pages[page].kept) {
		lease->n_kept--;
		return 0;
	}
	for (uint32_t i = from; i < lease->n_table; i++) {
		if (lease->table[i] != page)
			continue;
		lease->table[i] = lease->table[--lease->n_table];
		return 0;
	}
	return oracle_fail(o, "page %u was taken from lease %u, which may seal it", page, index);
}

int run_fresh_page(struct kvt_oracle *o, uint32_t at, uint32_t *ret_page)
{
	const struct kvt_record *record = o->run.record;
	uint32_t page = at < record->n_list ? record->list[at] : 0;

	if (page == 0 || page >= o->config.n_pages)
		return oracle_fail(o, "list[%u] should be a new page, but the list of %u words "
				   "says %u", at, record->n_list, page);
	if (o->run.own_taken < o->run.own) {
		o->run.own_taken++;
		TRY(own_page(o, page));
	} else if (o->pages[page].state != KVT_PAGE_FREE) {
		return oracle_fail(o, "list[%u]: page %u was given out in state %u", at, page,
				   o->pages[page].state);
	}
	*ret_page = page;
	return 0;
}

/* Find the node that has what is left of a handle. 0: nothing is, or its id was reused. */
static uint32_t find_left(const struct kvt_oracle *o, uint32_t id, uint32_t generation,
			  uint32_t *pages)
{
	const struct model_node *node = model_node(o, id);
	uint32_t now = node ? node->generation : o->generations[id];
	bool older = generation != now;

	if (generation < o->remains[id].born || generation > now || (!node && !older))
		return 0;
	for (; id; older = true) {
		if (older && *pages > o->remains[id].left)
			*pages = o->remains[id].left;
		if (model_node(o, id))
			return *pages ? id : 0;
		id = o->remains[id].heir;
	}
	return 0;
}

int run_handle(struct kvt_oracle *o, uint32_t *ret_node, uint32_t *ret_pages)
{
	const struct kvt_sqe *sqe = &o->run.record->sqe;
	uint32_t ps = o->config.page_size;
	bool shorter = sqe->op == KVT_OP_LOCK && sqe->flags & KVT_F_SHORTER;
	uint32_t id = sqe->node, pages = sqe->positions / ps;
	const struct model_node *node, *covering;

	if (id == 0 || id >= o->config.max_nodes)
		return run_refuse(o, -EINVAL, KVT_REASON_HANDLE_BAD, 0);
	if (shorter && pages > 0)
		id = find_left(o, id, sqe->generation, &pages);
	node = model_node(o, id);
	if (!node || (!shorter && node->generation != sqe->generation) || node->detached)
		return run_refuse(o, -ESTALE, KVT_REASON_HANDLE_STALE, 0);
	if (pages == 0 || sqe->positions % ps)
		return run_refuse(o, -EINVAL, KVT_REASON_HANDLE_BAD, 0);
	covering = model_covering(o, id, pages - 1);
	if (!covering || pages > covering->start + covering->sealed)
		return run_refuse(o, -EINVAL, KVT_REASON_HANDLE_BAD, 0);
	*ret_node = covering->id;
	*ret_pages = pages;
	return 0;
}

/* Find where the entry's keys begin. */
static int start(struct kvt_oracle *o, uint32_t *ret_node, uint32_t *ret_pages)
{
	const struct kvt_sqe *sqe = &o->run.record->sqe;

	*ret_node = model_root(o, sqe->namespace_id);
	*ret_pages = 0;
	if (o->config.disabled)
		return 0;
	if (sqe->node == 0) {
		if (sqe->generation || sqe->positions)
			return run_refuse(o, -EINVAL, KVT_REASON_HANDLE_BAD, 0);
		return 0;
	}
	TRY(run_handle(o, ret_node, ret_pages));
	if (o->nodes[*ret_node]->namespace_id != sqe->namespace_id)
		return run_refuse(o, -EINVAL, KVT_REASON_NOT_CONTINUATION, 0);
	return 0;
}

int run_walk(struct kvt_oracle *o, struct model_walk *ret_walk)
{
	const struct kvt_record *record = o->run.record;
	uint32_t at, from;

	TRY(start(o, &at, &from));
	model_walk(o, at, from, record->root_key, record->keys,
		   o->config.disabled ? 0 : record->sqe.n_keys / o->config.page_size, ret_walk);
	return 0;
}

int run_check_path(struct kvt_oracle *o)
{
	struct model_run *run = &o->run;
	const struct model_node *end = model_node(o, run->cursor);

	TRY(oracle_expect(o, "pages that stand on the operation's path", run->target,
			  run->reached));
	return oracle_expect(o, "end of the path's last node", run->target,
			     end ? model_end(end) : 0);
}

/* True if the tree's page slots may run out. That needs places without a page: a reader, short of
 * nodes, locked an edge whose announced tail has lost its writer. */
static bool slots_may_be_short(const struct kvt_oracle *o)
{
	const struct model_run *run = &o->run;
	uint64_t used = 0, free_pages = o->in_state[KVT_PAGE_FREE];
	uint64_t evicts = run->need_pages > free_pages ? run->need_pages - free_pages : 0;
	uint64_t sides = 0;

	for (uint32_t i = 0; i < o->n_live; i++) {
		const struct model_node *node = o->nodes[o->live[i]];

		used += node->n;
		sides += model_weight(o, node, node->sealed) - node->sealed;
	}
	evicts -= evicts < sides ? evicts : sides; /* they may be the victims, and have no slot */
	return run->target > run->reached &&
	       used + run->target - run->reached > o->config.n_pages - 1 + evicts;
}

int run_need_nodes(struct kvt_oracle *o, uint64_t most_nodes)
{
	const struct kvt_cqe *got = &o->run.record->cqe;
	uint64_t can = o->n_free_ids;

	o->run.most_nodes = most_nodes;
	if (got->reason != KVT_REASON_NODES) /* END says so with result 0 */
		return 0;
	for (uint32_t i = 0; i < o->n_live; i++) {
		const struct model_node *node = o->nodes[o->live[i]];

		can += !node->root && !node->locks && node->own != o->stamp;
	}
	if (can >= most_nodes && !slots_may_be_short(o))
		return oracle_fail(o, "-ENOSPC nodes, though %llu are evictable and %llu suffice",
				   (unsigned long long)can, (unsigned long long)most_nodes);
	return run_refuse(o, -ENOSPC, KVT_REASON_NODES, 0);
}

/* Pages of a session's leases that are not in private twins; shared ones again for each lease. */
static uint64_t sum_paths(const struct kvt_oracle *o, uint32_t session)
{
	uint64_t paths = 0;

	for (uint32_t i = 1; i <= o->config.n_leases; i++) {
		const struct model_lease *lease = &o->leases[i];
		uint32_t own = lease->n_table - lease->done, end;

		if (lease->kind == MODEL_LEASE_FREE || lease->session != session)
			continue;
		end = lease->node ? model_end(o->nodes[lease->node]) : 0;
		paths += end > lease->n_table ? end - own : lease->done;
	}
	return paths;
}

int run_need_lease(struct kvt_oracle *o)
{
	const struct model_session *session = &o->sessions[o->run.record->session];

	if (o->config.max_leases && session->n_leases >= o->config.max_leases)
		return run_refuse(o, -EDQUOT, KVT_REASON_LIMIT_LEASES, o->config.max_leases);
	if (o->n_free_leases == 0)
		return run_refuse(o, -ENOSPC, KVT_REASON_LEASES, 0);
	return 0;
}

static bool is_alone(const struct kvt_oracle *o)
{
	uint32_t live = 0;

	for (uint32_t i = 1; i <= o->config.max_sessions; i++)
		live += o->sessions[i].state == KVT_SESSION_OPEN ||
			o->sessions[i].state == KVT_SESSION_CLOSING;
	return live < 2;
}

/* True if the session would take from the reserve, and hold more than that. */
static bool beyond_reserve(const struct kvt_oracle *o, uint64_t pages, uint64_t locked)
{
	uint32_t session = o->run.record->session, reserve = o->config.reserve_pages;
	uint64_t wanted = pages + locked, available = model_available(o);

	return wanted > 0 && pages + locked <= available && !is_alone(o) &&
	       available - wanted < reserve &&
	       o->sessions[session].n_private + sum_paths(o, session) + wanted > reserve;
}

/* Return the most private pages that the session may have; UINT64_MAX if all. A share is what
 * it is of the pool, of what the session has or could have. */
static uint64_t private_limit(const struct kvt_oracle *o, uint64_t locked)
{
	const struct model_session *session = &o->sessions[o->run.record->session];
	uint64_t limit = o->config.max_private_pages, reach;

	if (!limit || !o->config.soft_private)
		return limit ? limit : UINT64_MAX;
	reach = session->n_private + model_available(o) - locked;
	return is_alone(o) ? UINT64_MAX : reach * limit / (o->config.n_pages - 1);
}

static bool beyond_limit(const struct kvt_oracle *o, uint64_t pages, uint64_t locked)
{
	const struct model_session *session = &o->sessions[o->run.record->session];

	if (pages == 0 || (o->config.soft_private && pages + locked > model_available(o)))
		return false; /* nothing to refuse, or -ENOSPC instead */
	return session->n_private + pages > private_limit(o, locked);
}

int run_need_quota(struct kvt_oracle *o, uint64_t pages, uint64_t locked)
{
	const struct model_session *session = &o->sessions[o->run.record->session];
	uint32_t limit = o->config.max_private_pages;

	if (beyond_limit(o, pages, locked) && session->n_private + pages > limit)
		return run_refuse(o, -EDQUOT, KVT_REASON_LIMIT_PAGES, limit);
	if (beyond_limit(o, pages, locked))
		return run_refuse(o, -EDQUOT, KVT_REASON_SHARE,
				  (uint32_t)private_limit(o, locked));
	if (beyond_reserve(o, pages, locked))
		return run_refuse(o, -EDQUOT, KVT_REASON_SHARE,
				  o->config.n_pages - 1 - o->config.reserve_pages);
	return 0;
}

void run_take_own(struct kvt_oracle *o, uint64_t n, uint64_t locked)
{
	uint64_t own;

	o->run.own = 0;
	if (!(o->run.record->sqe.flags & KVT_F_OWN_STREAM) ||
	    (n <= o->in_state[KVT_PAGE_FREE] && !beyond_limit(o, n, locked) &&
	     !beyond_reserve(o, n, locked)))
		return;
	own = own_pages(o);
	o->run.own = (uint32_t)(own < n ? own : n);
}

/* Return why a page may not be in the list, KVT_REASON_NONE if it may. `twin` is accepted. */
static uint32_t page_problem(const struct kvt_oracle *o, const uint32_t *pages, uint32_t i,
			     const uint32_t *twins, uint32_t n_twins)
{
	const struct model_page *page;

	if (i < n_twins && pages[i] == twins[i])
		return KVT_REASON_NONE;
	if (pages[i] == 0 || pages[i] >= o->config.n_pages)
		return KVT_REASON_PAGE_RANGE;
	for (uint32_t j = 0; j < i; j++)
		if (pages[j] == pages[i] && !(j < n_twins && pages[j] == twins[j]))
			return KVT_REASON_PAGE_TWICE;
	page = &o->pages[pages[i]];
	if (page->state == KVT_PAGE_FREE)
		return KVT_REASON_PAGE_FREE;
	if (page->state == KVT_PAGE_CACHED)
		return KVT_REASON_PAGE_CACHED;
	if (page->state != KVT_PAGE_PRIVATE || page->session != o->run.record->session)
		return KVT_REASON_PAGE_FOREIGN;
	return page->lease ? KVT_REASON_PAGE_LEASED : KVT_REASON_NONE;
}

int run_need_pages(struct kvt_oracle *o, const uint32_t *pages, uint32_t n, const uint32_t *twins,
		   uint32_t n_twins)
{
	for (uint32_t i = 0; i < n; i++) {
		uint32_t reason = page_problem(o, pages, i, twins, n_twins);

		if (reason)
			return run_refuse(o, -EINVAL, reason, 0);
	}
	return 0;
}

bool run_may_have(struct kvt_oracle *o, uint32_t n, uint64_t locked)
{
	run_take_own(o, n, locked);
	n -= o->run.own;
	return n + locked <= model_available(o) && !beyond_limit(o, n, locked) &&
	       !beyond_reserve(o, n, locked);
}

int run_need_private(struct kvt_oracle *o, uint32_t n)
{
	uint64_t available;

	run_take_own(o, n, 0);
	available = model_available(o) + o->run.own;
	TRY(run_need_quota(o, n - o->run.own, 0));
	TRY(run_need_list(o, n));
	if (n > available)
		return run_no_room(o, n, available);
	o->run.need_pages = n - o->run.own;
	return events_follow(o, EVENT_BIT(KVT_EV_TRIM) | EVENT_BIT(KVT_EV_FREE));
}
