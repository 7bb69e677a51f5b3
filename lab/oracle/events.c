/* SPDX-License-Identifier: Apache-2.0 */

/* Follows the structural events of a record.
 *
 * Where runs lie and when they merge is the core's choice. NEW, GROW, SPLIT and MERGE are followed,
 * after a check that they are allowed there. TRIM is predicted: victim, order and pages must be
 * those that the policy names.
 *
 * Inputs: the record's events, the running operation. Invariant: the model's tree equals the core's
 * after each event. Callers: ops.c, lease.c, session.c. */

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "kvtrunk_wire_arena.h"
#include "lab/oracle/events.h"
#include "lab/oracle/fail.h"
#include "lab/oracle/model.h"

static int need_node(struct kvt_oracle *o, const char *what, uint32_t id,
		     struct model_node **ret_node)
{
	*ret_node = model_node(o, id);
	if (!*ret_node)
		return oracle_fail(o, "%s event names node %u, which is not in use", what, id);
	return 0;
}

static int follow_root(struct kvt_oracle *o, const struct kvt_event *event)
{
	struct model_run *run = &o->run;
	struct model_node *node;
	uint32_t ns = event->other;

	if (ns != run->record->sqe.namespace_id &&
	    !(run->record->sqe.op == KVT_OP_COMMIT || run->record->sqe.op == KVT_OP_END))
		return oracle_fail(o, "ROOT for namespace %u, the operation is in %u", ns,
				   run->record->sqe.namespace_id);
	if (ns >= o->config.max_namespaces + 1 || !o->namespaces[ns].used ||
	    o->namespaces[ns].root)
		return oracle_fail(o, "ROOT for namespace %u, which cannot get one", ns);
	if (run->target == 0)
		return oracle_fail(o, "ROOT without anything to store");
	TRY(model_node_take(o, event->node, &node));
	node->root = true;
	node->namespace_id = ns;
	node->own = o->stamp;
	o->namespaces[ns].root = node->id;
	run->cursor = node->id;
	return 0;
}

static int take_keys(struct kvt_oracle *o, struct model_node *node, uint32_t n)
{
	struct model_run *run = &o->run;
	uint32_t ps = o->config.page_size;
	uint32_t from = run->reached - run->base;

	if (n == 0 || n > run->target || run->reached > run->target - n)
		return oracle_fail(o, "%u new pages behind page %u, but the path shall have %u", n,
				   run->reached, run->target);
	if (!model_node_reserve(node, node->n + n, ps))
		return oracle_fail(o, "the oracle is out of memory");
	memcpy(node->keys + (size_t)node->n * ps, run->keys + (size_t)from * ps,
	       (size_t)n * ps * sizeof(*node->keys));
	node->n += n;
	run->reached += n;
	return 0;
}

static int follow_new(struct kvt_oracle *o, const struct kvt_event *event)
{
	struct model_run *run = &o->run;
	struct model_node *parent, *node;
	uint32_t ps = o->config.page_size;

	TRY(need_node(o, "NEW", event->other, &parent));
	TRY(oracle_expect(o, "parent of the new node", run->cursor, event->other));
	TRY(oracle_expect(o, "page behind which the new node goes", model_end(parent),
			  run->reached));
	TRY(model_node_take(o, event->node, &node));
	node->parent = parent->id;
	node->namespace_id = parent->namespace_id;
	node->root_key = parent->root ? run->root_key : parent->root_key;
	node->start = model_end(parent);
	node->priority = run->priority;
	node->expiry_ns = run->expiry_ns;
	node->created = node->touched = run->tick;
	node->touched_ns = run->record->now_ns;
	node->own = o->stamp;
	TRY(take_keys(o, node, event->n));
	for (uint32_t i = 0; i < parent->n_children; i++) {
		const struct model_node *other = o->nodes[parent->children[i]];

		if (other->root_key == node->root_key &&
		    memcmp(other->keys, node->keys, ps * sizeof(*node->keys)) == 0)
			return oracle_fail(o, "NEW node %u repeats the first page of its sibling "
					   "%u", node->id, parent->children[i]);
	}
	if (!model_child_add(parent, node->id))
		return oracle_fail(o, "the oracle is out of memory");
	run->cursor = node->id;
	return 0;
}

static int follow_grow(struct kvt_oracle *o, const struct kvt_event *event)
{
	struct model_run *run = &o->run;
	struct model_node *node;

	TRY(need_node(o, "GROW", event->node, &node));
	TRY(oracle_expect(o, "node that may grow", run->grow_node, event->node));
	TRY(oracle_expect(o, "end of the path that grows", run->cursor, event->node));
	if (node->locks != 1 || node->n_children || node->root)
		return oracle_fail(o, "GROW of node %u with %u locks and %u children", node->id,
				   node->locks, node->n_children);
	return take_keys(o, node, event->n);
}

/* Split `lower` after `n` pages. The upper part becomes a new node; the lower part keeps its id. */
static int split(struct kvt_oracle *o, struct model_node *lower, uint32_t upper_id, uint32_t n)
{
	struct model_node *parent = model_node(o, lower->parent), *upper;
	uint32_t ps = o->config.page_size;

	TRY(model_node_take(o, upper_id, &upper));
	if (!model_node_reserve(upper, n, ps) || !model_child_add(upper, lower->id))
		return oracle_fail(o, "the oracle is out of memory");
	upper->parent = lower->parent;
	upper->namespace_id = lower->namespace_id;
	upper->root_key = lower->root_key;
	upper->start = lower->start;
	upper->n = n;
	upper->sealed = lower->sealed < n ? lower->sealed : n;
	upper->locks = lower->locks;
	upper->uses = lower->uses;
	upper->priority = lower->priority;
	upper->touched = lower->touched;
	upper->touched_ns = lower->touched_ns;
	upper->created = lower->created;
	upper->expiry_ns = lower->expiry_ns;
	upper->own = lower->own;
	upper->detached = lower->detached;
	upper->why = lower->why;
	memcpy(upper->keys, lower->keys, (size_t)n * ps * sizeof(*upper->keys));
	memcpy(upper->pages, lower->pages, n * sizeof(*upper->pages));
	for (uint32_t i = 0; i < upper->sealed; i++)
		o->pages[upper->pages[i]].node = upper->id;
	model_child_remove(parent, lower->id);
	model_child_add(parent, upper->id);
	lower->parent = upper->id;
	lower->start += n;
	lower->n -= n;
	lower->sealed -= upper->sealed;
	memmove(lower->keys, lower->keys + (size_t)n * ps,
		(size_t)lower->n * ps * sizeof(*lower->keys));
	memmove(lower->pages, lower->pages + n, lower->n * sizeof(*lower->pages));
	return 0;
}

static int follow_split(struct kvt_oracle *o, const struct kvt_event *event)
{
	struct model_run *run = &o->run;
	struct model_node *lower;

	TRY(need_node(o, "SPLIT", event->node, &lower));
	if (lower->root || lower->detached || event->n == 0 || event->n >= lower->n)
		return oracle_fail(o, "SPLIT of node %u with %u pages at %u", lower->id, lower->n,
				   event->n);
	TRY(oracle_expect(o, "node to split", run->cursor, lower->id));
	TRY(oracle_expect(o, "page at which to split", run->split_at, lower->start + event->n));
	TRY(split(o, lower, event->other, event->n));
	o->counters.split_nodes++;
	lower->own = 0; /* below the split is off the operation's path */
	run->cursor = event->other;
	run->split_at = UINT32_MAX;
	return 0;
}

static bool same_class(const struct kvt_oracle *o, const struct model_node *upper,
		       const struct model_node *lower)
{
	uint32_t threshold = o->config.slru_threshold;
	bool touched = upper->locks > 0 || upper->touched == lower->touched;

	switch (o->config.policy) {
	case KVT_POLICY_SLRU:
		return touched && (upper->uses == lower->uses ||
				   (upper->uses >= threshold && lower->uses >= threshold));
	case KVT_POLICY_LFU:
		return touched && upper->uses == lower->uses;
	case KVT_POLICY_FIFO:
	case KVT_POLICY_FILO:
		return upper->created == lower->created;
	default:
		return touched;
	}
}

static int follow_merge(struct kvt_oracle *o, const struct kvt_event *event)
{
	struct model_node *lower, *upper, *parent;
	uint32_t ps = o->config.page_size;

	TRY(need_node(o, "MERGE", event->node, &lower));
	TRY(need_node(o, "MERGE", event->other, &upper));
	if (lower->parent != upper->id || upper->n_children != 1 || upper->root || lower->root)
		return oracle_fail(o, "MERGE of node %u into %u, which is not its only child",
				   upper->id, lower->id);
	if (upper->locks != lower->locks || upper->sealed != upper->n ||
	    upper->priority != lower->priority || upper->expiry_ns != lower->expiry_ns ||
	    !same_class(o, upper, lower))
		return oracle_fail(o, "MERGE of node %u into %u, which differ", upper->id,
				   lower->id);
	parent = model_node(o, upper->parent);
	if (!model_node_reserve(lower, upper->n + lower->n, ps))
		return oracle_fail(o, "the oracle is out of memory");
	memmove(lower->keys + (size_t)upper->n * ps, lower->keys,
		(size_t)lower->n * ps * sizeof(*lower->keys));
	memcpy(lower->keys, upper->keys, (size_t)upper->n * ps * sizeof(*lower->keys));
	memmove(lower->pages + upper->n, lower->pages, lower->n * sizeof(*lower->pages));
	memcpy(lower->pages, upper->pages, upper->n * sizeof(*lower->pages));
	for (uint32_t i = 0; i < upper->n; i++)
		o->pages[upper->pages[i]].node = lower->id;
	if (o->run.kept_node == upper->id)
		o->run.kept_node = lower->id;
	lower->n += upper->n;
	lower->sealed += upper->n;
	lower->start = upper->start;
	lower->created = upper->created;
	lower->uses = upper->uses > lower->uses ? upper->uses : lower->uses;
	lower->parent = upper->parent;
	lower->top = upper->top;
	if (parent && !upper->top) {
		model_child_remove(parent, upper->id);
		model_child_add(parent, lower->id);
	}
	model_node_drop(o, upper, lower->id);
	o->counters.merged_nodes++;
	return 0;
}

/* Compute the pair of numbers by which the policy orders victims, smallest first. */
static void policy_key(const struct kvt_oracle *o, const struct model_node *node, uint64_t *ret_1,
		       uint64_t *ret_2)
{
	*ret_1 = 0;
	*ret_2 = node->touched;
	switch (o->config.policy) {
	case KVT_POLICY_SLRU:
		*ret_1 = node->uses >= o->config.slru_threshold;
		break;
	case KVT_POLICY_LFU:
		*ret_1 = node->uses;
		break;
	case KVT_POLICY_FIFO:
		*ret_2 = node->created;
		break;
	case KVT_POLICY_FILO:
		*ret_2 = UINT64_MAX - node->created;
		break;
	case KVT_POLICY_MRU:
		*ret_2 = UINT64_MAX - node->touched;
		break;
	case KVT_POLICY_PRIORITY:
		*ret_1 = (uint64_t)((int64_t)node->priority - INT32_MIN);
		break;
	default:
		break;
	}
}

/* True for the operation's own path, unless its pages are to go. */
static bool stays(const struct kvt_oracle *o, const struct model_node *node)
{
	return node->own == o->stamp && !o->run.path_alone;
}

static bool is_candidate(const struct kvt_oracle *o, const struct model_node *node)
{
	return !node->root && !node->locks && !node->n_children && node->own != o->stamp;
}

/* Find the namespace that is farthest above its limit, of those with a candidate. Returns 0 if none
 * is above one. */
static uint32_t farthest_above(const struct kvt_oracle *o, uint64_t *ret_excess)
{
	uint32_t farthest = 0;

	*ret_excess = 0;
	for (uint32_t ns = 1; ns < o->config.max_namespaces; ns++) {
		uint64_t cached = 0, limit = o->namespaces[ns].limit;
		bool any = false;

		for (uint32_t i = 0; limit && i < o->n_live; i++) {
			const struct model_node *node = o->nodes[o->live[i]];

			if (node->namespace_id != ns)
				continue;
			cached += model_weight(o, node, node->sealed);
			any |= is_candidate(o, node) && !node->detached;
		}
		if (any && cached > limit && cached - limit > *ret_excess) {
			farthest = ns;
			*ret_excess = cached - limit;
		}
	}
	return farthest;
}

/* Find the policy's choice off the operation's own path, 0 if there is none, and whether there is
 * an unlocked detached leaf. Above its limit a namespace goes first: `*ret_excess` is how far, 0 if
 * none is. */
static uint32_t choice(const struct kvt_oracle *o, bool *ret_any_detached, uint64_t *ret_excess)
{
	uint64_t best_1 = UINT64_MAX, best_2 = UINT64_MAX;
	uint32_t best = 0, above = farthest_above(o, ret_excess);

	*ret_any_detached = false;
	for (uint32_t i = 0; i < o->n_live; i++) {
		const struct model_node *node = o->nodes[o->live[i]];
		uint64_t key_1, key_2;

		if (!is_candidate(o, node))
			continue;
		if (node->detached) {
			*ret_any_detached = true;
			continue;
		}
		if (above && node->namespace_id != above)
			continue;
		policy_key(o, node, &key_1, &key_2);
		if (!best || key_1 < best_1 || (key_1 == best_1 && key_2 < best_2)) {
			best = node->id;
			best_1 = key_1;
			best_2 = key_2;
		}
	}
	return best;
}

/* Find the leaf at the end of the operation's own path, 0 if something continues it. */
static uint32_t path_leaf(const struct kvt_oracle *o)
{
	for (uint32_t i = 0; i < o->n_live; i++) {
		const struct model_node *node = o->nodes[o->live[i]];

		if (node->own == o->stamp && !node->root && !node->locks && !node->n_children)
			return node->id;
	}
	return 0;
}

/* Find the next victim: an unlocked detached leaf if there is one, else the policy's choice. 0:
 * nothing can be evicted. What makes room for a BEGIN takes that one's path after all else. */
static uint32_t victim(struct kvt_oracle *o, bool *ret_any_detached, uint64_t *ret_excess)
{
	uint32_t best;

	*ret_any_detached = false;
	*ret_excess = 0;
	if (o->run.path_alone)
		return path_leaf(o);
	best = choice(o, ret_any_detached, ret_excess);
	if (best || *ret_any_detached || o->run.record->kind != KVT_REC_ADMIN)
		return best;
	o->stamp++;
	return choice(o, ret_any_detached, ret_excess);
}

/* Check the amount: exactly the missing pages, at most those above a limit (0: there is none), or a
 * whole node where nodes are missing. */
static int trim_amount(struct kvt_oracle *o, const struct model_node *node, uint32_t n,
		       uint64_t excess)
{
	struct model_run *run = &o->run;
	uint64_t missing = run->need_pages > o->in_state[KVT_PAGE_FREE] ?
				   run->need_pages - o->in_state[KVT_PAGE_FREE] : 0;
	uint64_t freed = 0;
	uint32_t want = 0;

	while (want < node->sealed && freed < (excess && excess < missing ? excess : missing))
		freed += 1 + model_sides(o, node->pages[node->sealed - ++want]);

	if (n == node->sealed && o->n_free_ids < run->most_nodes)
		return 0;
	if (run->record->kind == KVT_REC_RECLAIM)
		return n >= 1 && n <= node->sealed ? 0 : oracle_fail(o, "RECLAIM of %u pages", n);
	if (missing == 0)
		return oracle_fail(o, "TRIM of %u pages from node %u: neither pages nor nodes are "
				   "missing (%llu free, %llu needed)", n, node->id,
				   (unsigned long long)o->in_state[KVT_PAGE_FREE],
				   (unsigned long long)run->need_pages);
	return oracle_expect(o, "pages trimmed from the victim", want, n);
}

/* The counter for pages that a node loses, by what detached it. */
static uint64_t *count_of(struct kvt_oracle *o, const struct model_node *node)
{
	switch (node->detached ? node->why : 0) {
	case KVT_NODE_EXPIRED:
		return &o->counters.expired_pages;
	case KVT_NODE_REMOVED:
		return &o->counters.removed_pages;
	case KVT_NODE_RESET:
		return &o->counters.reset_pages;
	default:
		return &o->counters.evicted_pages;
	}
}

int events_page_out(struct kvt_oracle *o, uint32_t page)
{
	struct model_run *run = &o->run;

	if (run->out >= run->record->n_out)
		return oracle_fail(o, "page %u should have left the cache", page);
	TRY(oracle_expect(o, "page that left the cache", page, run->record->out[run->out++]));
	model_page_set(o, page, KVT_PAGE_FREE, 0, 0);
	return 0;
}

/* Check that no side page that was let go should have gone before a victim, which is trimmed for
 * want of pages. */
static int trim_order(struct kvt_oracle *o, const struct model_node *node, uint32_t n)
{
	uint32_t side = model_first_let(o);

	if (!side || node->detached || o->pages[side].let_at >= node->touched ||
	    (n == node->sealed && o->n_free_ids < o->run.most_nodes))
		return 0;
	return oracle_fail(o, "victim %u, though side page %u was let go before its last use",
			   node->id, side);
}

/* Follow the eviction of a side page that was let go. */
static int follow_side(struct kvt_oracle *o, const struct kvt_event *event)
{
	struct model_run *run = &o->run;
	uint32_t page = model_first_let(o), main = o->pages[page].main, best;
	uint64_t excess;
	bool any_detached;

	TRY(oracle_expect(o, "side page to evict", page, event->other));
	TRY(oracle_expect(o, "node of the side page", o->pages[main].node, event->node));
	best = choice(o, &any_detached, &excess);
	if (any_detached || excess || (best && o->nodes[best]->touched <= o->pages[page].let_at))
		return oracle_fail(o, "side page %u was evicted before victim %u", page, best);
	if (run->need_pages <= o->in_state[KVT_PAGE_FREE])
		return oracle_fail(o, "side page %u was evicted, and no page is missing", page);
	for (uint32_t kind = 0; kind < o->config.n_sides; kind++)
		if (o->pages[main].sides[kind] == page)
			o->pages[main].sides[kind] = 0;
	run->evicted++;
	o->counters.evicted_pages++;
	return events_page_out(o, page);
}

static int follow_trim(struct kvt_oracle *o, const struct kvt_event *event)
{
	struct model_run *run = &o->run;
	struct model_node *node;
	uint32_t best, before = run->out;
	uint64_t excess;
	bool any_detached;

	TRY(need_node(o, "TRIM", event->node, &node));
	best = victim(o, &any_detached, &excess);
	if (node->root || node->locks || node->n_children || stays(o, node))
		return oracle_fail(o, "TRIM of node %u: root %d, %u locks, %u children, own %d",
				   node->id, node->root, node->locks, node->n_children,
				   node->own == o->stamp);
	if (run->record->kind == KVT_REC_RECLAIM && !node->detached)
		return oracle_fail(o, "RECLAIM of node %u, which is not detached", node->id);
	if (!node->detached) {
		if (any_detached)
			return oracle_fail(o, "victim %u, though detached pages are left",
					   node->id);
		TRY(oracle_expect(o, "victim", best, node->id));
	}
	TRY(trim_amount(o, node, event->n, node->detached ? 0 : excess));
	if (!excess && !run->path_alone)
		TRY(trim_order(o, node, event->n));
	if (!node->detached)
		o->counters.victim_age_ns = run->record->now_ns - node->touched_ns;
	for (uint32_t i = 0; i < event->n; i++) {
		uint32_t page = node->pages[--node->sealed], sides[KVT_MAX_SIDES];

		memcpy(sides, o->pages[page].sides, sizeof(sides));
		TRY(events_page_out(o, page));
		for (uint32_t kind = 0; kind < o->config.n_sides; kind++)
			if (sides[kind])
				TRY(events_page_out(o, sides[kind]));
	}
	node->n = node->sealed;
	node->generation++;
	model_keep(o, node->id, model_end(node));
	run->evicted += run->out - before;
	*count_of(o, node) += run->out - before;
	return 0;
}

static int follow_cut(struct kvt_oracle *o, const struct kvt_event *event)
{
	struct model_node *node;

	TRY(need_node(o, "CUT", event->node, &node));
	if (node->locks || node->n_children)
		return oracle_fail(o, "CUT of node %u with %u locks and %u children", node->id,
				   node->locks, node->n_children);
	TRY(oracle_expect(o, "unsealed pages that are cut", node->n - node->sealed, event->n));
	node->n = node->sealed;
	return 0;
}

static int follow_free(struct kvt_oracle *o, const struct kvt_event *event)
{
	struct model_node *node, *parent;
	uint32_t ns;

	TRY(need_node(o, "FREE", event->node, &node));
	if (node->n || node->locks || node->n_children || stays(o, node))
		return oracle_fail(o, "FREE of node %u with %u pages, %u locks, %u children",
				   node->id, node->n, node->locks, node->n_children);
	ns = node->namespace_id;
	parent = node->top ? NULL : model_node(o, node->parent);
	if (parent)
		model_child_remove(parent, node->id);
	if (node->root && o->namespaces[ns].root == node->id)
		o->namespaces[ns].root = 0;
	model_keep(o, node->id, node->start);
	model_node_drop(o, node, parent ? parent->id : 0);
	model_namespace_settle(o, ns);
	return 0;
}

static void mark_detached(struct kvt_oracle *o, struct model_node *node, uint32_t why)
{
	node->detached = true;
	node->why = why;
	for (uint32_t i = 0; i < node->n_children; i++)
		mark_detached(o, o->nodes[node->children[i]], why);
}

/* Detach a node. Leases below it still hold the pages above it in their page tables, so the way up
 * stays until their last lock is released. */
void model_detach(struct kvt_oracle *o, struct model_node *node, uint32_t why)
{
	struct model_node *parent;

	parent = model_node(o, node->parent);
	if (parent)
		model_child_remove(parent, node->id);
	if (node->root)
		o->namespaces[node->namespace_id].root = 0;
	if (node->locks == 0)
		node->parent = 0;
	node->top = true;
	mark_detached(o, node, why);
}

static int follow_detach(struct kvt_oracle *o, const struct kvt_event *event)
{
	const struct kvt_record *record = o->run.record;
	struct model_node *node;
	uint32_t why = KVT_NODE_REMOVED;

	if (record->kind == KVT_REC_EXPIRE)
		why = KVT_NODE_EXPIRED;
	else if (record->kind == KVT_REC_ADMIN && record->session)
		why = KVT_NODE_MADE_ROOM;
	TRY(need_node(o, "DETACH", event->node, &node));
	if (node->detached)
		return oracle_fail(o, "DETACH of node %u, which is detached already", node->id);
	if (record->sqe.op == KVT_OP_REMOVE) {
		node->damaged = record->sqe.flags & KVT_F_DAMAGED;
		o->counters.damaged_pages += node->damaged;
		o->run.want.remove.lock_ref = node->locks;
	}
	model_detach(o, node, why);
	return 0;
}

/* Follow a raised generation: readers may have seen the node in an undone effect (ABA). */
static int follow_raise(struct kvt_oracle *o, const struct kvt_event *event)
{
	struct model_node *node = model_node(o, event->node);
	uint32_t *generation;

	if (event->node == 0 || event->node >= o->config.max_nodes)
		return oracle_fail(o, "no such node: %u", event->node);
	generation = node ? &node->generation : &o->generations[event->node];
	if (event->other <= *generation)
		return oracle_fail(o, "the generation of node %u goes from %u to %u", event->node,
				   *generation, event->other);
	*generation = event->other;
	return 0;
}

static int follow(struct kvt_oracle *o, const struct kvt_event *event)
{
	switch (event->kind) {
	case KVT_EV_ROOT:
		return follow_root(o, event);
	case KVT_EV_NEW:
		return follow_new(o, event);
	case KVT_EV_GROW:
		return follow_grow(o, event);
	case KVT_EV_SPLIT:
		return follow_split(o, event);
	case KVT_EV_MERGE:
		return follow_merge(o, event);
	case KVT_EV_TRIM:
		return follow_trim(o, event);
	case KVT_EV_SIDE:
		return follow_side(o, event);
	case KVT_EV_CUT:
		return follow_cut(o, event);
	case KVT_EV_FREE:
		return follow_free(o, event);
	case KVT_EV_DETACH:
		return follow_detach(o, event);
	case KVT_EV_RAISE:
		return follow_raise(o, event);
	default:
		return oracle_fail(o, "unknown event kind %u", event->kind);
	}
}

int events_follow(struct kvt_oracle *o, uint32_t mask)
{
	struct model_run *run = &o->run;

	if (mask & EVENT_BIT(KVT_EV_TRIM))
		mask |= EVENT_BIT(KVT_EV_SIDE);
	while (run->event < run->record->n_events) {
		const struct kvt_event *event = &run->record->events[run->event];

		if (event->kind >= KVT_EV_KINDS || !(mask & EVENT_BIT(event->kind)))
			break;
		run->event++;
		TRY(follow(o, event));
	}
	return 0;
}

int events_done(struct kvt_oracle *o)
{
	const struct kvt_record *record = o->run.record;

	if (o->run.event < record->n_events)
		return oracle_fail(o, "event %u of %u (kind %u, node %u) has no cause",
				   o->run.event, record->n_events,
				   record->events[o->run.event].kind,
				   record->events[o->run.event].node);
	return oracle_expect(o, "pages that left the cache", o->run.out, record->n_out);
}
