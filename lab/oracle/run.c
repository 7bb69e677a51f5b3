/* SPDX-License-Identifier: Apache-2.0 */

/* Steps shared by operations: refusals, the list that must be answered, free room.
 *
 * Inputs: o->run, the operation under way. Invariant: a step that refuses returns MODEL_REFUSED, a
 * mismatch -EBADMSG. Callers: ops.c, lease.c, wait.c. */

#include <errno.h>

#include "lab/oracle/model.h"

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

int run_fresh_page(struct kvt_oracle *o, uint32_t at, uint32_t *ret_page)
{
	const struct kvt_record *record = o->run.record;
	uint32_t page = at < record->n_list ? record->list[at] : 0;

	if (page == 0 || page >= o->config.n_pages)
		return oracle_fail(o, "list[%u] should be a new page, but the list of %u words "
				   "says %u", at, record->n_list, page);
	if (o->pages[page].state != KVT_PAGE_FREE)
		return oracle_fail(o, "list[%u]: page %u was given out in state %u", at, page,
				   o->pages[page].state);
	*ret_page = page;
	return 0;
}

int run_handle(struct kvt_oracle *o, uint32_t *ret_node)
{
	const struct kvt_sqe *sqe = &o->run.record->sqe;
	uint32_t ps = o->config.page_size;
	const struct model_node *node, *covering;

	if (sqe->node == 0 || sqe->node >= o->config.max_nodes)
		return run_refuse(o, -EINVAL, KVT_REASON_HANDLE_BAD, 0);
	node = model_node(o, sqe->node);
	if (!node || node->generation != sqe->generation || node->detached)
		return run_refuse(o, -ESTALE, KVT_REASON_HANDLE_STALE, 0);
	if (sqe->positions == 0 || sqe->positions % ps)
		return run_refuse(o, -EINVAL, KVT_REASON_HANDLE_BAD, 0);
	covering = model_covering(o, sqe->node, sqe->positions / ps - 1);
	if (!covering || sqe->positions / ps > covering->start + covering->sealed)
		return run_refuse(o, -EINVAL, KVT_REASON_HANDLE_BAD, 0);
	*ret_node = covering->id;
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
	TRY(run_handle(o, ret_node));
	if (o->nodes[*ret_node]->namespace_id != sqe->namespace_id)
		return run_refuse(o, -EINVAL, KVT_REASON_NOT_CONTINUATION, 0);
	*ret_pages = sqe->positions / o->config.page_size;
	return 0;
}

int run_walk(struct kvt_oracle *o, struct model_walk *ret_walk)
{
	const struct kvt_record *record = o->run.record;
	uint32_t at, from;

	TRY(start(o, &at, &from));
	model_walk(o, at, from, record->keys,
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

	for (uint32_t i = 0; i < o->n_live; i++)
		used += o->nodes[o->live[i]]->n;
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

/* Holdings of one uid, and of all others. */
struct sums {
	uint64_t leases, pages; /* pages: private or in quarantine */
	uint64_t others_pages;
	bool others_live;
};

static void sum_uid(const struct kvt_oracle *o, uint32_t uid, struct sums *sums)
{
	*sums = (struct sums){ 0 };
	for (uint32_t i = 1; i <= o->config.max_sessions; i++) {
		const struct model_session *s = &o->sessions[i];

		if (s->state == KVT_SESSION_FREE)
			continue;
		if (s->uid != uid) {
			sums->others_live |= s->state == KVT_SESSION_OPEN ||
					     s->state == KVT_SESSION_CLOSING;
			sums->others_pages += s->n_private + s->n_quarantined;
			continue;
		}
		sums->leases += s->n_leases;
		sums->pages += s->n_private + s->n_quarantined;
	}
}

/* Pages of a uid's leases that are not in private twins; shared ones again for each lease. */
static uint64_t sum_paths(const struct kvt_oracle *o, uint32_t uid)
{
	uint64_t paths = 0;

	for (uint32_t i = 1; i <= o->config.n_leases; i++) {
		const struct model_lease *lease = &o->leases[i];
		uint32_t own = lease->n_table - lease->done, end;

		if (lease->kind == MODEL_LEASE_FREE || o->sessions[lease->session].uid != uid)
			continue;
		end = lease->node ? model_end(o->nodes[lease->node]) : 0;
		paths += end > lease->n_table ? end - own : lease->done;
	}
	return paths;
}

int run_need_lease(struct kvt_oracle *o)
{
	const struct model_session *session = &o->sessions[o->run.record->session];
	struct sums sums;

	sum_uid(o, session->uid, &sums);
	if (o->config.max_leases && session->n_leases >= o->config.max_leases)
		return run_refuse(o, -EDQUOT, KVT_REASON_LIMIT_LEASES, o->config.max_leases);
	if (o->config.uid_leases && sums.leases >= o->config.uid_leases)
		return run_refuse(o, -EDQUOT, KVT_REASON_UID_LEASES, o->config.uid_leases);
	if (o->n_free_leases == 0)
		return run_refuse(o, -ENOSPC, KVT_REASON_LEASES, 0);
	return 0;
}

int run_need_quota(struct kvt_oracle *o, uint64_t pages, uint64_t locked)
{
	const struct model_session *session = &o->sessions[o->run.record->session];
	uint32_t limit = o->config.max_private_pages;
	uint32_t all = o->config.n_pages - 1, reserve, few;
	struct sums sums;

	if (limit && session->n_private + pages > limit)
		return run_refuse(o, -EDQUOT, KVT_REASON_LIMIT_PAGES, limit);
	limit = o->config.uid_pages;
	reserve = limit < all ? all - limit : 0;
	few = reserve < limit ? reserve : limit;
	sum_uid(o, session->uid, &sums);
	if (limit && reserve > 0 && sums.others_live && pages + locked > 0 &&
	    model_available(o) + sums.others_pages < reserve + pages + locked &&
	    sums.pages + sum_paths(o, session->uid) + pages + locked > few)
		return run_refuse(o, -EDQUOT, KVT_REASON_UID_PAGES, limit);
	return 0;
}

int run_need_private(struct kvt_oracle *o, uint32_t n)
{
	uint64_t available = model_available(o);

	TRY(run_need_quota(o, n, 0));
	TRY(run_need_list(o, n));
	if (n > available)
		return run_no_room(o, n, available);
	o->run.need_pages = n;
	return events_follow(o, EVENT_BIT(KVT_EV_TRIM) | EVENT_BIT(KVT_EV_FREE));
}
