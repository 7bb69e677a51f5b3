/* SPDX-License-Identifier: Apache-2.0 */

/* Apply each record to the oracle, and learn from it what sessions hold. Inputs: records of the
 * core, through its hook. Invariant: the oracle agrees with each, or the run fails. Callers: the
 * core's hook, hold.c. */

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/core/records.h"
#include "kvtrunk_wire_segment.h"
#include "lab/oracle/model.h"
#include "shm/atomic.h"
#include "tests/core/sim/sim.h"

bool sim_fence_reached(const struct sim *sim, uint32_t session, const struct kvt_sqe *sqe)
{
	const struct sim_session *s = &sim->sessions[session];

	if (sqe->fence_slot >= KVT_FENCE_WORDS || !s->view.fences)
		return true;
	for (uint32_t i = 0; i < s->n_members; i++)
		if (s->words[i][sqe->fence_slot].value < sqe->fence_value)
			return false;
	return s->view.fences[sqe->fence_slot].value >= sqe->fence_value;
}

static bool takes_fence(uint32_t op)
{
	return op == KVT_OP_COMMIT || op == KVT_OP_INSERT || op == KVT_OP_FREE ||
	       op == KVT_OP_UNLOCK || op == KVT_OP_END || op == KVT_OP_CLOSE;
}

static struct sim_lease *find_lease(struct sim_session *s, uint32_t index, uint32_t generation)
{
	for (uint32_t i = 0; i < s->n_leases; i++)
		if (s->leases[i].index == index && s->leases[i].generation == generation)
			return &s->leases[i];
	return NULL;
}

static void learn_lease(struct sim *sim, const struct kvt_record *r, uint32_t kind)
{
	struct sim_session *s = &sim->sessions[r->session];
	struct sim_lease *lease;

	if (s->n_leases == SIM_LEASES) /* forget one: its lease lives until the session ends */
		s->leases[sim_below(sim, SIM_LEASES)] = s->leases[--s->n_leases];
	lease = &s->leases[s->n_leases++];
	memset(lease, 0, offsetof(struct sim_lease, list));
	lease->index = r->cqe.lease;
	lease->generation = r->cqe.lease_generation;
	lease->kind = kind;
	lease->namespace_id = r->sqe.namespace_id;
	lease->sequence = sim->sequence_in_use;
	if (kind == KVT_LEASE_BEGIN) {
		lease->known = r->sqe.positions + r->sqe.n_keys;
		lease->computed = r->cqe.begin.reusable;
		lease->table = (r->sqe.positions + r->sqe.n_keys + r->sqe.arg +
				sim->config.page_size - 1) / sim->config.page_size;
		lease->bare = r->sqe.flags & KVT_F_NO_PAGES;
		if (lease->bare)
			lease->table = r->cqe.begin.reusable / sim->config.page_size;
		sim->coverage->rare[SIM_BARE] += lease->bare;
	} else {
		uint32_t skip = r->sqe.op == KVT_OP_INSERT ? 2 * r->cqe.insert.n_twins : 0;

		lease->n_list = r->n_list - skip;
		memcpy(lease->list, r->list + skip, lease->n_list * sizeof(uint32_t));
	}
}

/* Digest the keys of a path, page by page. */
static void digest_path(struct sim *sim, uint32_t id, uint32_t pages, uint64_t *digests)
{
	struct kvt_oracle *o = sim->oracle;
	uint32_t ps = sim->config.page_size;
	uint64_t digest = 0xcbf29ce484222325;

	if (model_path(o, id) != 0)
		return;
	digest ^= o->nodes[id]->root_key;
	for (uint32_t i = 0; i < o->n_path; i++) {
		const struct model_node *node = o->nodes[o->path[i]];

		for (uint32_t page = 0; page < node->n && node->start + page < pages; page++) {
			for (uint32_t k = 0; k < ps; k++)
				digest = (digest ^ node->keys[page * ps + k]) * 0x100000001b3;
			digests[node->start + page] = digest;
		}
	}
}

/* LOCK with SHORTER must lock a beginning of what its handle named. */
static void check_left(struct sim *sim, const struct kvt_record *r)
{
	static uint64_t digests[SIM_MAX_KEYS];
	uint32_t pages = r->cqe.positions / sim->config.page_size;

	if (r->cqe.result != 0 || !(r->sqe.flags & KVT_F_SHORTER))
		return;
	digest_path(sim, r->cqe.node, pages, digests);
	for (uint32_t i = 0; i < sim->n_handles; i++) {
		const struct sim_handle *h = &sim->handles[i];

		if (h->node == r->sqe.node && h->generation == r->sqe.generation &&
		    h->positions >= r->cqe.positions &&
		    memcmp(h->digests, digests, pages * sizeof(*digests)) != 0)
			sim_fail(sim, "LOCK of node %u:%u locked another path", h->node,
				 h->generation);
	}
}

static void learn_handle(struct sim *sim, const struct kvt_record *r, uint32_t namespace_id,
			 uint32_t sequence)
{
	uint32_t at = sim->n_handles < SIM_HANDLES ? sim->n_handles++ :
						     sim_below(sim, SIM_HANDLES);

	sim->handles[at] = (struct sim_handle){
		.namespace_id = namespace_id,
		.node = r->cqe.node,
		.generation = r->cqe.generation,
		.positions = r->cqe.positions,
		.sequence = sequence,
	};
	digest_path(sim, r->cqe.node, r->cqe.positions / sim->config.page_size,
		    sim->handles[at].digests);
}

/* The next turn of a conversation may begin there. */
static void learn_end(struct sim *sim, const struct kvt_record *r)
{
	const struct sim_lease *lease = find_lease(&sim->sessions[r->session], r->sqe.node,
						   r->sqe.generation);

	if (lease && r->cqe.positions)
		learn_handle(sim, r, lease->namespace_id, lease->sequence);
}

static void lose_page(struct sim_session *s, uint32_t page)
{
	for (uint32_t i = 0; i < s->n_pages; i++) {
		if (s->pages[i] == page) {
			s->pages[i] = s->pages[--s->n_pages];
			return;
		}
	}
}

static bool in_twins(const struct kvt_record *r, uint32_t page)
{
	for (uint32_t i = 0; i < r->cqe.insert.n_twins; i++)
		if (r->list[2 * i] == page)
			return true;
	return false;
}

static bool given_back(const struct kvt_record *r, uint32_t page)
{
	for (uint32_t i = 0; i < r->n_list; i++)
		if (r->list[i] == page)
			return true;
	return false;
}

/* The side pages that a COMMIT took are not the session's any more. */
static void learn_sides(struct sim *sim, const struct kvt_record *r)
{
	uint64_t *rare = sim->coverage->rare;
	uint32_t taken = 0;

	if (!(r->sqe.flags & KVT_F_SIDES))
		return;
	for (uint32_t i = 1; i < r->n_pages; i += 2) {
		if (!r->pages[i] || r->pages[i] == KVT_SIDE_LET || given_back(r, r->pages[i]))
			continue;
		lose_page(&sim->sessions[r->session], r->pages[i]);
		taken++;
	}
	rare[SIM_SIDE_TAKEN] += taken > 0;
	rare[SIM_MANY_TAKEN] += taken > 0 && sim->many;
	rare[SIM_SIDE_TWIN] += r->n_list > 0;
	rare[SIM_SIDE_DROPPED] += r->n_out > 0 && r->n_events == 0;
	rare[SIM_SIDE_LATE] += taken > 0 && r->sqe.arg < r->cqe.commit.next;
}

/* What a successful operation changed for its session. */
static void learn(struct sim *sim, const struct kvt_record *r)
{
	struct sim_session *s = &sim->sessions[r->session];
	struct sim_lease *lease;

	if (r->cqe.node && r->cqe.positions && r->sqe.op != KVT_OP_END)
		learn_handle(sim, r, r->sqe.namespace_id, sim->sequence_in_use);
	switch (r->sqe.op) {
	case KVT_OP_MATCH:
	case KVT_OP_LOCK:
		if (r->cqe.lease)
			learn_lease(sim, r, KVT_LEASE_MATCH);
		break;
	case KVT_OP_BEGIN:
		if (r->cqe.lease)
			learn_lease(sim, r, KVT_LEASE_BEGIN);
		break;
	case KVT_OP_ALLOC:
		memcpy(s->pages + s->n_pages, r->list, r->n_list * sizeof(uint32_t));
		s->n_pages += r->n_list;
		break;
	case KVT_OP_FREE:
		for (uint32_t i = 0; i < r->n_keys; i++)
			lose_page(s, r->keys[i]);
		break;
	case KVT_OP_INSERT:
		for (uint32_t i = 0; i < r->n_pages && r->cqe.insert.inserted; i++)
			if (!in_twins(r, r->pages[i]))
				lose_page(s, r->pages[i]);
		if (r->cqe.lease)
			learn_lease(sim, r, KVT_LEASE_MATCH);
		break;
	case KVT_OP_COMMIT:
		lease = find_lease(s, r->sqe.node, r->sqe.generation);
		if (lease) {
			sim->coverage->rare[SIM_KEYS_CUT] +=
				r->sqe.arg >= lease->computed &&
				lease->known + r->sqe.n_keys > r->cqe.positions;
			sim->coverage->rare[SIM_BARE_SEALED] += lease->bare && r->cqe.commit.sealed;
			lease->known = r->cqe.positions;
			lease->computed = r->cqe.commit.next;
		}
		learn_sides(sim, r);
		break;
	case KVT_OP_EXTEND:
		lease = find_lease(s, r->sqe.node, r->sqe.generation);
		if (lease)
			lease->table += r->n_list + r->n_keys;
		for (uint32_t i = 0; i < r->n_keys; i++)
			lose_page(s, r->keys[i]);
		break;
	case KVT_OP_END:
		learn_end(sim, r);
		break;
	default:
		break;
	}
}

static void count_wait(uint64_t *rare, const struct kvt_record *r)
{
	bool notice = r->cqe.flags & KVT_CQE_ASYNC, done = r->cqe.result == 0;
	bool plain = !notice && r->value != 0 && done;

	rare[SIM_WAIT_NO_PLACE] += (r->cqe.flags & KVT_CQE_NO_PLACE) != 0;
	rare[SIM_WAIT_TAKEOVER] += plain && (r->cqe.flags & KVT_CQE_TAKEOVER);
	rare[SIM_WAIT_DEADLINE] += plain && (r->cqe.flags & KVT_CQE_DEADLINE);
	rare[SIM_WAIT_SEALED] +=
		plain && !(r->cqe.flags & (KVT_CQE_DEADLINE | KVT_CQE_TAKEOVER));
	rare[SIM_WAIT_REFUSED] += r->value != 0 && !done && r->cqe.result != -ECANCELED;
	rare[notice ? SIM_NOTICE_STALE : SIM_WAIT_STALE] +=
		r->value != 0 && r->cqe.reason == KVT_REASON_HANDLE_STALE;
	rare[notice ? SIM_NOTICE_CANCELED : SIM_WAIT_CANCELED] += r->cqe.result == -ECANCELED;
	rare[SIM_NOTICE_SEALED] += notice && done && r->cqe.notice.state == KVT_NOTICE_SEALED;
	rare[SIM_NOTICE_ABANDONED] += notice && done && r->cqe.notice.state == KVT_NOTICE_ABANDONED;
	rare[SIM_NOTICE_DEADLINE] += notice && done && r->cqe.notice.state == KVT_NOTICE_DEADLINE;
}

static bool merged_into(const struct kvt_record *r, uint32_t node)
{
	for (uint32_t i = 0; i < r->n_events; i++)
		if (r->events[i].kind == KVT_EV_MERGE && r->events[i].node == node)
			return true;
	return false;
}

/* True if the record's first new node stands right below a root, under a root key. */
static bool grew_under_root_key(const struct sim *sim, const struct kvt_record *r)
{
	for (uint32_t i = 0; i < r->n_events; i++) {
		const struct model_node *node = model_node(sim->oracle, r->events[i].node);

		if (r->events[i].kind == KVT_EV_NEW)
			return node && node->start == 0 && node->root_key;
	}
	return false;
}

static void count_rare(struct sim *sim, const struct kvt_record *r)
{
	uint64_t *rare = sim->coverage->rare;
	bool ok = r->cqe.result == 0;

	switch (r->sqe.op) {
	case KVT_OP_MATCH:
		rare[SIM_MATCH_BEHIND] +=
			ok && r->sqe.node && r->cqe.match.matched > r->sqe.positions;
		break;
	case KVT_OP_ALLOC:
		rare[SIM_ALLOC_FEWER] += ok && r->n_list < r->sqe.arg;
		break;
	case KVT_OP_COMMIT:
		rare[SIM_NO_LIST] += ok && r->sqe.flags & KVT_F_NO_LIST;
		rare[SIM_ROOT_KEY_LATE] += ok && grew_under_root_key(sim, r);
		rare[SIM_LOOK_ON] += ok && r->cqe.commit.advanced > 0;
		rare[SIM_TAKEN_OVER] += ok && r->cqe.commit.duplicates > 0;
		rare[SIM_KEPT] +=
			ok && r->cqe.commit.duplicates > 0 && (r->sqe.flags & KVT_F_KEEP);
		break;
	case KVT_OP_INSERT:
		rare[SIM_TWINS] += ok && r->cqe.insert.n_twins > 0;
		rare[SIM_TWIN_GIVEN] +=
			ok && r->n_pages > r->cqe.insert.inserted + r->cqe.insert.n_twins;
		rare[SIM_START_HANDLE] += ok && r->sqe.node && r->cqe.insert.inserted > 0;
		break;
	case KVT_OP_BEGIN:
		count_wait(rare, r);
		rare[SIM_ROOT_KEY] += ok && r->root_key && r->cqe.begin.reusable > 0;
		rare[SIM_BEGIN_BEHIND] +=
			ok && r->sqe.node && r->cqe.begin.matched > r->sqe.positions;
		rare[SIM_POINT] += ok && r->cqe.begin.reusable > 0 && sim->config.n_sides > 0;
		rare[SIM_MANY_POINT] += ok && r->cqe.begin.reusable > 0 && sim->many;
		rare[SIM_POINT_SHORT] += ok && r->cqe.begin.reusable > 0 &&
					 sim->config.n_sides > 0 &&
					 r->cqe.begin.reusable + sim->config.page_size <
						 r->cqe.begin.matched;
		rare[SIM_CAPPED] += ok && r->cqe.begin.reusable < r->cqe.begin.matched;
		rare[SIM_SHARED_ANNOUNCE] += ok && r->cqe.begin.announced > 0;
		break;
	case KVT_OP_END:
		rare[SIM_END_DETACHED] += (r->cqe.flags & KVT_CQE_DETACHED) != 0;
		rare[SIM_END_REASON] += ok && r->cqe.reason != 0 &&
					(r->sqe.flags & KVT_F_COMMIT);
		rare[SIM_END_HANDLE] += ok && r->cqe.positions > 0;
		rare[SIM_END_MERGED] += ok && merged_into(r, r->cqe.node);
		break;
	case KVT_OP_LOCK:
		rare[SIM_LOCK_TRIMMED] += ok && r->cqe.positions < r->sqe.positions;
		rare[SIM_LOCK_HEIR] += ok && r->cqe.positions < r->sqe.positions &&
				       !model_node(sim->oracle, r->sqe.node);
		rare[SIM_EDGE_LOCKED] +=
			ok && r->n_events == 0 && r->counters.live_nodes + 1 ==
							  sim->config.max_nodes;
		break;
	case KVT_OP_CLOSE:
		rare[SIM_CLOSE_WAITED] += r->value != 0;
		break;
	default:
		break;
	}
}

static void count(struct sim *sim, const struct kvt_record *r)
{
	struct sim_coverage *c = sim->coverage;
	uint32_t op = r->sqe.op < KVT_OP_COUNT ? r->sqe.op : KVT_OP_COUNT, trimmed = 0;

	c->records++;
	c->kind[r->kind]++;
	for (uint32_t i = 0; i < r->n_events; i++) {
		const struct kvt_event *e = &r->events[i];
		bool whole = e->kind == KVT_EV_TRIM && i + 1 < r->n_events &&
			     r->events[i + 1].kind == KVT_EV_FREE &&
			     r->events[i + 1].node == e->node;

		c->event[e->kind]++;
		c->rare[SIM_SIDE_LET_EVICTED] += e->kind == KVT_EV_SIDE;
		if (e->kind != KVT_EV_TRIM)
			continue;
		c->rare[whole ? SIM_TRIM_WHOLE : SIM_TRIM_PART]++;
		c->rare[SIM_NODE_EVICTION] +=
			r->kind == KVT_REC_OP && (op == KVT_OP_INSERT || op == KVT_OP_COMMIT);
		c->rare[SIM_DETACHED_TRIM] += r->kind == KVT_REC_RECLAIM;
		trimmed += e->n;
	}
	c->rare[SIM_SIDE_TRIMMED] += trimmed > 0 && trimmed < r->n_out;
	c->rare[SIM_MATCH_GAVE] += r->kind == KVT_REC_ADMIN && r->value == KVT_EVICT_LAST;
	c->rare[SIM_MATCH_ENDED] += r->kind == KVT_REC_ADMIN && r->value == KVT_EVICT_ALONE;
	if (r->kind == KVT_REC_DEFER) {
		c->deferred[op] += r->value == 0;
		c->rare[SIM_WAIT_AGAIN] += r->value != 0 && (r->sqe.flags & KVT_F_WAIT);
	}
	if (r->kind != KVT_REC_OP)
		return;
	c->op[op][r->cqe.result == 0 ? KVT_REASON_COUNT : r->cqe.reason]++;
	c->waited[op] += r->value != 0;
	count_rare(sim, r);
}

static void remember(struct sim *sim, const struct kvt_record *r)
{
	struct sim_brief *b = &sim->history[sim->n_history++ % SIM_HISTORY];
	uint32_t n = r->n_events < 12 ? r->n_events : 12;

	b->record = *r;
	if (n)
		memcpy(b->events, r->events, n * sizeof(*b->events));
	n = r->n_list < 12 ? r->n_list : 12;
	if (n)
		memcpy(b->list, r->list, n * sizeof(*b->list));
}

/* What the oracle cannot know: fence words, and the list area. */
static void check_outside(struct sim *sim, const struct kvt_record *r)
{
	const struct sim_session *s = &sim->sessions[r->session];

	if (((const struct kvt_arena_header *)sim->arena)->mutation % 2 == 0)
		sim_fail(sim, "the arena changed while its mutation word was even");
	if (r->kind == KVT_REC_OP && r->cqe.result == 0 && takes_fence(r->sqe.op) &&
	    !sim_fence_reached(sim, r->session, &r->sqe))
		sim_fail(sim, "op %u took effect before its fence (%u, %" PRIu64 ")", r->sqe.op,
			 r->sqe.fence_slot, r->sqe.fence_value);
	if (r->kind == KVT_REC_OP && r->n_list &&
	    memcmp(r->list, s->view.list + r->sqe.list_offset, r->n_list * sizeof(uint32_t)))
		sim_fail(sim, "the list area of session %u does not hold what the record says",
			 r->session);
}

/* What the session's record must contain. */
static void count_progress(struct sim_session *s, const struct kvt_record *r)
{
	bool done = r->kind == KVT_REC_OP;

	s->taken += (done || r->kind == KVT_REC_DEFER) && r->value == 0;
	s->done += done;
	if (done)
		s->last_cqe = r->cqe;
}

void sim_on_record(void *context, const struct kvt_record *r)
{
	struct sim *sim = context;

	if (!sim->mortal)
		sim_observe(sim, r);
	else if (!sim->failed)
		sim_hold(sim, r);
}

/* `before`: side pages that were let go before the operation. */
static void count_let(struct sim *sim, const struct kvt_record *r, uint32_t before)
{
	uint32_t now = model_count_let(sim->oracle, 0);
	bool let = r->sqe.op == KVT_OP_COMMIT && now > before;

	sim->coverage->rare[SIM_SIDE_LET] += let;
	sim->coverage->rare[SIM_MANY_LET] += let && sim->many;
	sim->coverage->rare[SIM_SIDE_LET_REUSED] += r->sqe.op == KVT_OP_BEGIN && r->n_out == 0 &&
						    now < before;
}

/* A BEGIN begins to wait, or for something else. */
static void count_awaited(struct sim *sim, const struct kvt_record *r)
{
	uint64_t token = r->value ? r->value : r->seq;

	for (uint32_t i = 0; i < sim->oracle->n_pending; i++) {
		const struct model_pending *p = &sim->oracle->pending[i];

		if (!p->waits || p->seq != token || !p->for_point)
			continue;
		sim->coverage->rare[SIM_POINT_AWAITED]++;
		sim->coverage->rare[SIM_MANY_AWAITED] += sim->many;
		sim->coverage->rare[SIM_POINT_CACHED] +=
			model_page_at(sim->oracle, sim->oracle->leases[p->awaited].node,
				      p->goal - 1) != 0;
	}
}

/* A BEGIN took effect that had waited for a point. */
static void count_point(struct sim *sim, const struct kvt_record *r)
{
	const struct model_run *run = &sim->oracle->run;

	if (r->sqe.op == KVT_OP_BEGIN && r->cqe.result == 0 && run->waiter.for_point)
		sim->coverage->rare[run->has_now >= run->waiter.goal ? SIM_POINT_MADE :
								       SIM_POINT_GONE]++;
}

void sim_observe(struct sim *sim, const struct kvt_record *r)
{
	struct sim_session *s = &sim->sessions[r->session <= SIM_SESSIONS ? r->session : 0];
	uint32_t n_let;
	char why[700];

	if (sim->failed)
		return;
	n_let = model_count_let(sim->oracle, 0);
	remember(sim, r);
	count(sim, r);
	if (sim->log)
		kvt_oplog_write(sim->log, r); /* an error is final and found at the end */
	if (kvt_oracle_apply(sim->oracle, r, why, sizeof(why))) {
		sim_fail(sim, "oracle: %s", why);
		return;
	}
	if (!sim->mortal)
		check_outside(sim, r);
	count_progress(s, r);
	switch (r->kind) {
	case KVT_REC_OP:
		sim->last_cqe = r->cqe;
		sim->coverage->rare[SIM_OWN_TAKEN] += sim->oracle->run.own_taken > 0;
		count_let(sim, r, n_let);
		count_point(sim, r);
		if (r->value && s->n_waiting)
			s->n_waiting--;
		if (r->cqe.reason == KVT_REASON_ANNOUNCED && r->sqe.ttl_ms)
			s->n_waiting++;
		if (r->sqe.op == KVT_OP_LOCK)
			check_left(sim, r);
		if (r->cqe.result == 0)
			learn(sim, r);
		break;
	case KVT_REC_DEFER:
		count_awaited(sim, r);
		s->n_waiting += r->value == 0;
		break;
	case KVT_REC_ADOPT:
		sim->coverage->rolled_back += r->value != 0;
		break;
	case KVT_REC_SESSION_GONE:
		s->present = s->open = false;
		break;
	default:
		break;
	}
}

void sim_on_complete(void *context, uint32_t session, const struct kvt_cqe *cqe)
{
	struct sim *sim = context;

	sim_settle(sim);
	if (sim->failed)
		return;
	if (memcmp(cqe, &sim->last_cqe, sizeof(*cqe)) != 0)
		sim_fail(sim, "session %u got a completion (seq %" PRIu64 ") that is not the "
			 "last record's (seq %" PRIu64 ")", session, cqe->seq, sim->last_cqe.seq);
	if (cqe->seq <= sim->last_completed || !sim->sessions[session].open)
		sim_fail(sim, "session %u got a completion (seq %" PRIu64 ") %s", session,
			 cqe->seq, sim->sessions[session].open ? "twice" : "after its end");
	sim->last_completed = cqe->seq;
}

#define OP_NAME(NAME, name, takes, flags, list, answer) [KVT_OP_##NAME] = #NAME,
static const char *const op_names[] = { KVT_OPS(OP_NAME, , ) };
static const char *const kind_names[] = { "?", "op", "defer", "session", "sign", "namespace",
					  "lease-lost", "quarantine", "release", "session-gone",
					  "expire", "reclaim", "compact", "admin", "drain",
					  "adopt" };
static const char *const event_names[] = { "?", "ROOT", "NEW", "GROW", "SPLIT", "MERGE", "TRIM",
					   "CUT", "FREE", "DETACH", "RAISE", "SIDE" };

static void print_brief(const struct sim_brief *b, FILE *to)
{
	const struct kvt_record *r = &b->record;
	const struct kvt_sqe *q = &r->sqe;
	const struct kvt_cqe *c = &r->cqe;

	fprintf(to, "%6" PRIu64 " %s s%u value %" PRIu64, r->seq, kind_names[r->kind], r->session,
		r->value);
	if (r->kind == KVT_REC_OP || r->kind == KVT_REC_DEFER || r->kind == KVT_REC_ADMIN)
		fprintf(to, " %s flags %x ns %u keys %u arg %u node %u:%u:%u cap %u fence %u:%"
			PRIu64 " prio %d ttl %u", q->op < KVT_OP_COUNT ? op_names[q->op] : "?",
			q->flags, q->namespace_id, q->n_keys, q->arg, q->node, q->generation,
			q->positions, q->list_capacity, q->fence_slot, q->fence_value,
			q->priority, q->ttl_ms);
	if (r->kind == KVT_REC_OP)
		fprintf(to, "\n         -> %d reason %u flags %x lease %u:%u handle %u:%u:%u "
			"words %u %u %u %u list %u", c->result, c->reason, c->flags, c->lease,
			c->lease_generation, c->node, c->generation, c->positions, c->words[0],
			c->words[1], c->words[2], c->words[3], c->n_list);
	if (r->n_list) {
		fprintf(to, "\n         list");
		for (uint32_t i = 0; i < r->n_list && i < 12; i++)
			fprintf(to, " %u", b->list[i]);
	}
	for (uint32_t i = 0; i < r->n_events && i < 12; i++)
		fprintf(to, "\n         %s node %u other %u n %u", event_names[b->events[i].kind],
			b->events[i].node, b->events[i].other, b->events[i].n);
	fprintf(to, "\n         free %" PRIu64 " private %" PRIu64 " cached %" PRIu64
		" quarantined %" PRIu64 " evictable %" PRIu64 " nodes %" PRIu64 "\n",
		r->counters.free_pages, r->counters.private_pages, r->counters.cached_pages,
		r->counters.quarantined_pages, r->counters.evictable_pages,
		r->counters.live_nodes);
}

void sim_print_history(const struct sim *sim, FILE *to)
{
	uint64_t from = sim->n_history > SIM_HISTORY ? sim->n_history - SIM_HISTORY : 0;

	for (uint64_t i = from; i < sim->n_history; i++)
		print_brief(&sim->history[i % SIM_HISTORY], to);
}

void sim_on_problem(void *context, const char *text)
{
	sim_fail(context, "audit: %s", text);
}
