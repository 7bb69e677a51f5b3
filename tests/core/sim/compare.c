/* SPDX-License-Identifier: Apache-2.0 */

/* Compare the core's memory with the oracle's model: each node with its keys and pages, each page,
 * each namespace, the order of recency, and what a client would find by walking the arena.
 * Callers: main.c and tests/core/crash/main.c, every so many steps. */

#include <stdlib.h>
#include <string.h>

#include "kvtrunk_wire_admin.h"
#include "lab/oracle/model.h"
#include "shm/walk.h"
#include "tests/core/sim/sim.h"

static bool differs(struct sim *sim, const char *what, uint32_t id, uint64_t model, uint64_t core)
{
	if (model == core)
		return false;
	sim_fail(sim, "%s of node %u: the model says %llu, the arena %llu", what, id,
		 (unsigned long long)model, (unsigned long long)core);
	return true;
}

static bool compare_sides(struct sim *sim, const struct kvt_arena_view *view,
			  const struct model_node *model, const struct kvt_node *node)
{
	uint32_t n = view->header->n_sides;
	const uint32_t *sides = (const void *)((const char *)view->base +
					       view->header->sections[KVT_SECTION_SIDES].offset);

	for (uint32_t i = 0; i < model->sealed; i++) {
		uint32_t page = view->slot_pages[node->first_slot + i];

		if (memcmp(sim->oracle->pages[page].sides, sides + (size_t)page * n,
			   n * sizeof(*sides)) != 0)
			return sim_fail(sim, "side pages of page %u in node %u differ", page,
					model->id);
	}
	return true;
}

static bool compare_run(struct sim *sim, const struct kvt_arena_view *view,
			const struct model_node *model, const struct kvt_node *node)
{
	size_t words = (size_t)model->n * view->page_size;

	if (memcmp(model->keys, view->slot_keys + (size_t)node->first_slot * view->page_size,
		   words * sizeof(uint32_t)) != 0)
		return sim_fail(sim, "keys of node %u differ", model->id);
	if (memcmp(model->pages, view->slot_pages + node->first_slot,
		   model->sealed * sizeof(uint32_t)) != 0)
		return sim_fail(sim, "pages of node %u differ", model->id);
	return compare_sides(sim, view, model, node);
}

/* Detached, by its own effect or with all roots by RESET. */
static bool is_top(const struct kvt_arena_view *view, const struct kvt_node *node)
{
	return node->flags & KVT_NODE_DETACHED ||
	       (node->flags & KVT_NODE_ROOT && node->epoch != view->header->epoch);
}

static bool compare_node(struct sim *sim, const struct kvt_arena_view *view, uint32_t id)
{
	const struct model_node *model = model_node(sim->oracle, id);
	const struct kvt_node *node = &view->nodes[id];
	bool live = node->flags & KVT_NODE_LIVE;

	if (live != (model != NULL))
		return sim_fail(sim, "node %u: %s in the arena only", id, live ? "in use" : "free");
	if (!live)
		return true;
	if (differs(sim, "generation", id, model->generation, node->generation) ||
	    differs(sim, "parent", id, model->parent, node->parent) ||
	    differs(sim, "start", id, model->start, node->start) ||
	    differs(sim, "pages", id, model->n, node->n_slots) ||
	    differs(sim, "sealed", id, model->sealed, node->sealed) ||
	    differs(sim, "locks", id, model->locks, node->lock_ref) ||
	    differs(sim, "children", id, model->n_children, node->n_children) ||
	    differs(sim, "namespace", id, model->namespace_id, node->namespace_id) ||
	    differs(sim, "root", id, model->root, (node->flags & KVT_NODE_ROOT) != 0) ||
	    differs(sim, "detached", id, model->top, is_top(view, node)))
		return false;
	if (model->root)
		return true;
	if (differs(sim, "uses", id, model->uses, node->uses) ||
	    differs(sim, "priority", id, (uint32_t)model->priority, (uint32_t)node->priority) ||
	    differs(sim, "expiry", id, model->expiry_ns, node->expiry_ns))
		return false;
	return model->n == 0 || compare_run(sim, view, model, node);
}

/* Pages of a dead session may name their lost lease until they reach quarantine. */
static bool compare_page(struct sim *sim, uint32_t page)
{
	const struct model_page *model = &sim->oracle->pages[page];
	bool dying = sim->oracle->sessions[model->session].state == KVT_SESSION_DYING;
	uint32_t state = model->main ? KVT_PAGE_SIDE : model->state;
	struct kvt_admin_page core;

	if (!kvt_core_describe_page(sim->core, page, &core))
		return sim_fail(sim, "page %u cannot be described", page);
	if (core.state != state || core.session != model->session ||
	    (model->state == KVT_PAGE_PRIVATE && !dying && core.lease != model->lease) ||
	    (state == KVT_PAGE_CACHED && core.node != model->node) ||
	    (state == KVT_PAGE_SIDE && core.node != sim->oracle->pages[model->main].node))
		return sim_fail(sim, "page %u: state %u session %u lease %u node %u in the core, "
				"%u %u %u %u in the model", page, core.state, core.session,
				core.lease, core.node, state, model->session, model->lease,
				model->node);
	return true;
}

static bool compare_namespace(struct sim *sim, const struct kvt_arena_view *view, uint32_t id)
{
	const struct model_namespace *model = &sim->oracle->namespaces[id];
	const struct kvt_namespace_record *space = &view->namespaces[id];
	uint32_t root = space->root;
	uint64_t cached = 0, evictable = 0, nodes = 0;

	if (model->used != (space->flags != 0))
		return sim_fail(sim, "namespace %u: used %d in the model, not so in the arena", id,
				model->used);
	if (!model->used)
		return true;
	if (root && is_top(view, &view->nodes[root]))
		root = 0; /* RESET has left it to background work */
	for (uint32_t i = 0; i < sim->oracle->n_live; i++) {
		const struct model_node *node = sim->oracle->nodes[sim->oracle->live[i]];

		if (node->namespace_id != id)
			continue;
		nodes++;
		cached += model_weight(sim->oracle, node, node->sealed);
		evictable += node->locks ? 0 : model_weight(sim->oracle, node, node->sealed);
	}
	evictable += model_count_let(sim->oracle, id);
	if (root != model->root || space->opened != model->opened ||
	    space->nodes != nodes || space->cached_pages != cached ||
	    space->evictable_pages != evictable || space->protected_pages != cached - evictable)
		return sim_fail(sim, "namespace %u: root %u, %u openers, %llu nodes, %llu cached, "
				"%llu evictable in the arena; %u, %u, %llu, %llu, %llu in the "
				"model", id, space->root, space->opened,
				(unsigned long long)space->nodes,
				(unsigned long long)space->cached_pages,
				(unsigned long long)space->evictable_pages, model->root,
				model->opened, (unsigned long long)nodes,
				(unsigned long long)cached, (unsigned long long)evictable);
	return true;
}

static bool tallies_differ(struct sim *sim, const char *what, uint32_t id,
			   const struct kvt_tally *model, const struct kvt_tally *core)
{
	const uint64_t *want = (const void *)model, *got = (const void *)core;

	for (uint32_t i = 0; i < sizeof(*model) / sizeof(*want); i++) {
		if (want[i] == got[i])
			continue;
		sim_fail(sim, "word %u of the tally of %s %u: %llu in the core, %llu in the model",
			 i, what, id, (unsigned long long)got[i], (unsigned long long)want[i]);
		return true;
	}
	return false;
}

static bool compare_tallies(struct sim *sim)
{
	const struct kvt_oracle *o = sim->oracle;
	struct kvt_tally all = { 0 };
	struct kvt_admin_namespace space;

	memcpy(all.refused, o->refused, sizeof(all.refused));
	if (tallies_differ(sim, "instance", 0, &all, kvt_core_tally(sim->core, 0)))
		return false;
	for (uint32_t id = 1; id <= o->config.max_sessions; id++)
		if (tallies_differ(sim, "session", id, &o->sessions[id].tally,
				   kvt_core_tally(sim->core, id)))
			return false;
	for (uint32_t id = 1; id < o->config.max_namespaces; id++)
		if (kvt_core_describe_namespace(sim->core, id, &space) &&
		    tallies_differ(sim, "namespace", id, &o->namespaces[id].tally, &space.tally))
			return false;
	return true;
}

/* The clocks differ, the order must not. */
static bool compare_recency(struct sim *sim, const struct kvt_arena_view *view)
{
	const struct kvt_oracle *o = sim->oracle;

	for (uint32_t i = 0; i < o->n_live; i++) {
		const struct model_node *a = o->nodes[o->live[i]];

		for (uint32_t j = 0; j < i; j++) {
			const struct model_node *b = o->nodes[o->live[j]];
			const struct kvt_node *x = &view->nodes[a->id], *y = &view->nodes[b->id];

			if (a->root || b->root || a->locks || b->locks)
				continue;
			if ((a->touched < b->touched) != (x->touched < y->touched) ||
			    (a->touched > b->touched) != (x->touched > y->touched))
				return sim_fail(sim, "nodes %u and %u were touched in another "
						"order", a->id, b->id);
			if ((a->created < b->created) != (x->created < y->created) ||
			    (a->created > b->created) != (x->created > y->created))
				return sim_fail(sim, "nodes %u and %u were made in another order",
						a->id, b->id);
		}
	}
	return true;
}

/* With nothing in flight, a probe finds exactly what MATCH would. */
static bool compare_probe(struct sim *sim, const struct kvt_arena_view *view)
{
	const struct sim_sequence *q = &sim->sequences[sim_below(sim, SIM_SEQUENCES)];
	uint32_t ps = view->page_size, id = 1 + sim_below(sim, view->max_namespaces - 1);
	uint64_t root_key = sim_root_keys[sim_below(sim, SIM_ROOT_KEYS)];
	const struct model_namespace *space = &sim->oracle->namespaces[id];
	struct kvt_handle handle = { 0 };
	struct model_walk walk = { 0 };
	int error;

	if (!space->used)
		return true;
	error = kvt_walk(view, id, space->digest, root_key, q->keys, q->n, sim->now_ns, &handle,
			 NULL);
	if (error)
		return sim_fail(sim, "a probe of namespace %u answered %d", id, error);
	model_walk(sim->oracle, space->root, 0, root_key, q->keys, q->n / ps, &walk);
	for (uint32_t node = walk.matched_node; node; node = sim->oracle->nodes[node]->parent)
		if (sim->oracle->nodes[node]->expiry_ns <= sim->now_ns)
			return true; /* about to be detached */
	if (handle.positions != walk.matched * ps || handle.node != walk.matched_node)
		return sim_fail(sim, "a probe of %u keys in namespace %u found %u positions at "
				"node %u, the model %u at %u", q->n, id, handle.positions,
				handle.node, walk.matched * ps, walk.matched_node);
	sim->coverage->probes++;
	sim->coverage->probe_hits += walk.matched > 0;
	return true;
}

bool sim_compare(struct sim *sim)
{
	struct kvt_arena_view view;

	if (kvt_arena_view_init(&view, sim->arena, sim->arena_bytes) != KVT_ATTACH_OK)
		return sim_fail(sim, "the arena's header does not pass its own check");
	for (uint32_t id = 1; id < sim->config.max_nodes; id++)
		if (!compare_node(sim, &view, id))
			return false;
	for (uint32_t page = 1; page < sim->config.n_pages; page++)
		if (!compare_page(sim, page))
			return false;
	for (uint32_t id = 1; id < sim->config.max_namespaces; id++)
		if (!compare_namespace(sim, &view, id))
			return false;
	if (!compare_tallies(sim) || !compare_recency(sim, &view))
		return false;
	for (int i = 0; i < 4; i++)
		if (!compare_probe(sim, &view))
			return false;
	return true;
}
