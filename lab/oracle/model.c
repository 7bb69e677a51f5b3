/* SPDX-License-Identifier: Apache-2.0 */

/* Nodes, pages and walks of the oracle's model.
 *
 * Inputs: the objects of state.h. Invariant: children are found by linear search and page counters
 * by recounting, so nothing here can be stale. Callers: every other file of the oracle; nothing
 * here calls them. */

#include <stdlib.h>
#include <string.h>

#include "lab/oracle/fail.h"
#include "lab/oracle/model.h"

void *oracle_room(void *array, uint32_t *room, uint64_t want, size_t bytes)
{
	uint64_t more = *room ? *room : 8;
	void *grown;

	if (want <= *room)
		return array;
	while (more < want)
		more *= 2;
	grown = realloc(array, more * bytes);
	if (grown)
		*room = (uint32_t)more;
	return grown;
}

struct model_node *model_node(const struct kvt_oracle *o, uint32_t id)
{
	return id && id < o->config.max_nodes ? o->nodes[id] : NULL;
}

uint32_t model_end(const struct model_node *node)
{
	return node->start + node->n;
}

uint32_t model_root(const struct kvt_oracle *o, uint32_t namespace_id)
{
	return o->namespaces[namespace_id].root;
}

/* Take a node. Ids are recycled first in, first out, so the next one is predicted. */
int model_node_take(struct kvt_oracle *o, uint32_t id, struct model_node **ret_node)
{
	struct model_node *node;

	if (o->n_free_ids == 0)
		return oracle_fail(o, "node %u was made, but all %u nodes are in use", id,
				   o->config.max_nodes - 1); /* record 0 is never used */
	TRY(oracle_expect(o, "id of the new node", o->free_ids[o->free_head], id));
	node = calloc(1, sizeof(*node));
	if (!node)
		return oracle_fail(o, "the oracle is out of memory");
	o->free_head = (o->free_head + 1) % o->config.max_nodes;
	o->n_free_ids--;
	node->id = id;
	node->generation = o->generations[id];
	o->remains[id] = (struct model_remains){ .born = node->generation, .left = UINT32_MAX };
	node->expiry_ns = UINT64_MAX;
	node->live_at = o->n_live;
	o->live[o->n_live++] = id;
	o->nodes[id] = node;
	*ret_node = node;
	return 0;
}

void model_node_drop(struct kvt_oracle *o, struct model_node *node, uint32_t heir)
{
	uint32_t id = node->id;
	uint32_t last = o->live[--o->n_live];

	o->live[node->live_at] = last;
	o->nodes[last]->live_at = node->live_at;
	o->nodes[id] = NULL;
	o->generations[id] = node->generation + 1;
	o->remains[id].heir = heir;
	o->free_ids[(o->free_head + o->n_free_ids++) % o->config.max_nodes] = id;
	free(node->keys);
	free(node->pages);
	free(node->children);
	free(node);
}

void model_keep(struct kvt_oracle *o, uint32_t id, uint32_t pages)
{
	if (pages < o->remains[id].left)
		o->remains[id].left = pages;
}

void model_forget_remains(struct kvt_oracle *o)
{
	for (uint32_t id = 1; id < o->config.max_nodes; id++)
		o->remains[id] = (struct model_remains){
			.born = o->nodes[id] ? o->nodes[id]->generation : o->generations[id],
			.left = UINT32_MAX,
		};
}

bool model_node_reserve(struct model_node *node, uint32_t n, uint32_t page_size)
{
	uint32_t *keys, *pages;

	if (n <= node->room)
		return true;
	keys = realloc(node->keys, (size_t)n * page_size * sizeof(*keys));
	if (keys)
		node->keys = keys;
	pages = realloc(node->pages, (size_t)n * sizeof(*pages));
	if (pages)
		node->pages = pages;
	if (!keys || !pages)
		return false;
	node->room = n;
	return true;
}

bool model_child_add(struct model_node *parent, uint32_t child)
{
	uint32_t *children = oracle_room(parent->children, &parent->children_room,
					 parent->n_children + 1ull, sizeof(*children));

	if (!children)
		return false;
	parent->children = children;
	children[parent->n_children++] = child;
	return true;
}

void model_child_remove(struct model_node *parent, uint32_t child)
{
	for (uint32_t i = 0; i < parent->n_children; i++) {
		if (parent->children[i] == child) {
			parent->children[i] = parent->children[--parent->n_children];
			return;
		}
	}
}

void model_page_set(struct kvt_oracle *o, uint32_t page, uint32_t state, uint32_t session,
		    uint32_t lease)
{
	struct model_page *p = &o->pages[page];

	if (p->state == KVT_PAGE_PRIVATE)
		o->sessions[p->session].n_private--;
	if (p->state == KVT_PAGE_QUARANTINE)
		o->sessions[p->session].n_quarantined--;
	o->in_state[p->state]--;
	*p = (struct model_page){ .state = state, .session = session, .lease = lease };
	o->in_state[state]++;
	if (state == KVT_PAGE_PRIVATE)
		o->sessions[session].n_private++;
	if (state == KVT_PAGE_QUARANTINE)
		o->sessions[session].n_quarantined++;
}

void model_page_cache(struct kvt_oracle *o, uint32_t page, uint32_t node)
{
	uint64_t sealer = o->sessions[o->pages[page].session].number;

	model_page_set(o, page, KVT_PAGE_CACHED, 0, 0);
	o->pages[page].node = node;
	o->pages[page].sealer = sealer;
	o->counters.inserted_pages++;
}

static uint32_t model_child_find(const struct kvt_oracle *o, const struct model_node *parent,
				 uint64_t root_key, const uint32_t *keys)
{
	size_t bytes = o->config.page_size * sizeof(*keys);

	for (uint32_t i = 0; i < parent->n_children; i++) {
		const struct model_node *child = o->nodes[parent->children[i]];

		if (parent->root && child->root_key != root_key)
			continue;
		if (child->keys[0] == keys[0] && memcmp(child->keys, keys, bytes) == 0)
			return child->id;
	}
	return 0;
}

void model_walk(const struct kvt_oracle *o, uint32_t from, uint32_t from_pages, uint64_t root_key,
		const uint32_t *keys, uint32_t n_pages, struct model_walk *ret_walk)
{
	uint32_t ps = o->config.page_size;
	size_t bytes = ps * sizeof(*keys);
	struct model_walk walk = { .named = from_pages, .node = from, .pages = from_pages,
				   .matched = from_pages };
	const struct model_node *node = model_node(o, from);
	bool sealed = true;
	uint32_t i = 0;

	if (from_pages > 0)
		walk.matched_node = from;
	while (node && i < n_pages) {
		uint32_t at = walk.pages - node->start;

		if (at == node->n) {
			node = model_node(o, model_child_find(o, node, root_key,
							      keys + (size_t)i * ps));
			continue;
		}
		if (memcmp(node->keys + (size_t)at * ps, keys + (size_t)i * ps, bytes) != 0)
			break;
		sealed = sealed && at < node->sealed;
		walk.pages++;
		walk.node = node->id;
		if (sealed) {
			walk.matched++;
			walk.matched_node = node->id;
		}
		i++;
	}
	*ret_walk = walk;
}

int model_path(struct kvt_oracle *o, uint32_t node)
{
	uint32_t n = 0;

	for (uint32_t id = node; id; id = o->nodes[id]->parent)
		n++;
	o->path = oracle_room(o->path, &o->path_room, n + 1ull, sizeof(*o->path));
	if (!o->path)
		return oracle_fail(o, "the oracle is out of memory");
	o->n_path = n;
	for (uint32_t id = node; id; id = o->nodes[id]->parent)
		o->path[--n] = id;
	return 0;
}

struct model_node *model_covering(const struct kvt_oracle *o, uint32_t node, uint32_t page)
{
	struct model_node *n = model_node(o, node);

	while (n && page < n->start)
		n = model_node(o, n->parent);
	return n;
}

uint32_t model_page_at(const struct kvt_oracle *o, uint32_t node, uint32_t page)
{
	const struct model_node *n = model_covering(o, node, page);

	return n && page - n->start < n->sealed ? n->pages[page - n->start] : 0;
}

uint32_t model_sides(const struct kvt_oracle *o, uint32_t page)
{
	uint32_t n = 0;

	for (uint32_t kind = 0; kind < o->config.n_sides; kind++)
		n += o->pages[page].sides[kind] != 0;
	return n;
}

uint32_t model_weight(const struct kvt_oracle *o, const struct model_node *node, uint32_t pages)
{
	uint32_t sum = 0;

	for (uint32_t i = 0; i < node->sealed && i < pages; i++)
		sum += 1 + model_sides(o, node->pages[i]);
	return sum;
}

/* True if the last of the first n pages of a path have all sides that a reader needs. */
static bool usable(const struct kvt_oracle *o, uint32_t node, uint32_t n)
{
	for (uint32_t kind = 0; kind < o->config.n_sides; kind++)
		for (uint32_t back = 1; back <= n && back <= o->config.side_pages[kind]; back++)
			if (!o->pages[model_page_at(o, node, n - back)].sides[kind])
				return false;
	return true;
}

uint32_t model_usable(const struct kvt_oracle *o, uint32_t node, uint32_t pages)
{
	while (pages > 0 && !usable(o, node, pages))
		pages--;
	return pages;
}

void model_touch(struct kvt_oracle *o, uint32_t node)
{
	o->clock++;
	for (; node; node = o->nodes[node]->parent) {
		o->nodes[node]->touched = o->clock;
		o->nodes[node]->touched_ns = o->run.record->now_ns;
	}
}

/* Lock the path to `node`, up to but without `stop`. */
void model_lock(struct kvt_oracle *o, uint32_t node, uint32_t stop)
{
	for (; node && node != stop; node = o->nodes[node]->parent)
		o->nodes[node]->locks++;
}

void model_unlock(struct kvt_oracle *o, struct model_lease *lease)
{
	uint32_t node = lease->node, up;

	model_hold(o, (uint32_t)(lease - o->leases));
	lease->node = 0;
	model_touch(o, node);
	for (; node; node = up) {
		struct model_node *n = o->nodes[node];

		up = n->parent;
		if (--n->locks == 0 && n->top)
			n->parent = 0;
	}
}

void model_count_use(struct kvt_oracle *o, uint32_t node)
{
	for (; node; node = o->nodes[node]->parent)
		o->nodes[node]->uses++;
}

void model_own(struct kvt_oracle *o, uint32_t node)
{
	for (; node; node = o->nodes[node]->parent)
		o->nodes[node]->own = o->stamp;
}

uint32_t model_first_let(const struct kvt_oracle *o)
{
	uint32_t first = 0;

	for (uint32_t page = 1; page < o->config.n_pages; page++)
		if (o->pages[page].let &&
		    (!first || o->pages[page].let_order < o->pages[first].let_order))
			first = page;
	return first;
}

uint32_t model_count_let(const struct kvt_oracle *o, uint32_t namespace_id)
{
	uint32_t n = 0;

	for (uint32_t page = 1; page < o->config.n_pages; page++) {
		const struct model_page *side = &o->pages[page];

		n += side->let && (!namespace_id || namespace_id ==
				   o->nodes[o->pages[side->main].node]->namespace_id);
	}
	return n;
}

void model_hold(struct kvt_oracle *o, uint32_t lease)
{
	for (uint32_t page = 1; page < o->config.n_pages; page++)
		if (!lease || o->pages[page].let == lease)
			o->pages[page].let = 0;
}

uint64_t model_evictable(const struct kvt_oracle *o)
{
	uint64_t pages = model_count_let(o, 0);

	for (uint32_t i = 0; i < o->n_live; i++) {
		const struct model_node *node = o->nodes[o->live[i]];

		if (node->locks == 0)
			pages += model_weight(o, node, node->sealed);
	}
	return pages;
}

uint32_t model_unlocked_on_path(const struct kvt_oracle *o, uint32_t node, uint32_t pages)
{
	uint32_t sum = 0;

	for (; node; node = o->nodes[node]->parent) {
		const struct model_node *n = o->nodes[node];
		uint32_t covered = pages > n->start ? pages - n->start : 0;

		if (n->locks == 0)
			sum += model_weight(o, n, covered);
	}
	return sum;
}

/* Free a namespace record once no session has it open and the tree has no keys of it. */
void model_namespace_settle(struct kvt_oracle *o, uint32_t namespace_id)
{
	struct model_namespace *ns = &o->namespaces[namespace_id];
	bool named = ns->opened > 0;

	for (uint32_t i = 0; i < o->n_live && !named; i++)
		named = o->nodes[o->live[i]]->namespace_id == namespace_id;
	o->n_namespaces -= ns->used && !named;
	o->n_namespaces += !ns->used && named;
	ns->used = named;
}
