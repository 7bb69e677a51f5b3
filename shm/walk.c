/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The lock-free walk (walk.h). Callers: kvt_probe(), tests. The arena is untrusted and changes
 * meanwhile: every index is compared with its bound before use, every loop is bounded, and what
 * was read counts only after its version or generation was read again.
 */

#include "kvtrunk_client.h"
#include "shm/walk.h"

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>

#include "kvtrunk_wire_arena.h"
#include "shm/atomic.h"
#include "shm/racy.h"

/* Tests include this file and change the tree between any two of its looks. */
#ifndef KVT_WALK_BETWEEN
#define KVT_WALK_BETWEEN() ((void)0)
#endif

/* Probes before a miss. The index is at most half full, so runs are short; this bounds a torn or
 * hostile one. */
#define PROBES_MAX 4096u

/* A node's fields for readers, of one version. */
struct snapshot {
	uint32_t node;
	uint32_t version;
	uint32_t generation;
	uint32_t parent;
	uint32_t first_slot;
	uint32_t n_slots;
	uint32_t sealed;
	uint32_t start;
	uint32_t flags;
	uint32_t namespace_id;
	uint64_t expiry_ns;
	uint64_t root_key;
};

enum outcome {
	OUTCOME_RACE = -1, /* something changed under us */
	OUTCOME_END = 0,   /* no such child */
	OUTCOME_STEP = 1,  /* one node further */
};

struct walk {
	const struct kvt_arena_view *view;
	const uint32_t *keys;
	uint32_t n_pages;
	uint32_t namespace_id;
	uint64_t root_key;
	uint64_t now_ns;
	struct snapshot at; /* where we are */
	uint32_t matched;   /* pages */
};

static bool snapshot_begin(const struct kvt_arena_view *view, uint32_t id, struct snapshot *s)
{
	const struct kvt_node *node = &view->nodes[id];

	s->node = id;
	/* Pairs with the owner's release of the even version after its last field. */
	s->version = kvt_load_acquire(&node->version);
	if (s->version & 1)
		return false;
	KVT_WALK_BETWEEN();
	s->generation = kvt_load_relaxed(&node->generation);
	s->parent = kvt_load_relaxed(&node->parent);
	s->first_slot = kvt_load_relaxed(&node->first_slot);
	s->n_slots = kvt_load_relaxed(&node->n_slots);
	/* Pairs with the release of a seal, which raises it without a new version: the keys and the
	 * page below it are there. */
	s->sealed = kvt_load_acquire(&node->sealed);
	KVT_WALK_BETWEEN();
	s->start = kvt_load_relaxed(&node->start);
	s->flags = kvt_load_relaxed(&node->flags);
	s->namespace_id = kvt_load_relaxed(&node->namespace_id);
	s->expiry_ns = kvt_load_relaxed(&node->expiry_ns);
	s->root_key = s->flags & KVT_NODE_KEYED ? kvt_load_relaxed(&view->root_keys[id]) : 0;
	KVT_WALK_BETWEEN();
	return true;
}

/* True if neither the node nor a key of its run changed since snapshot_begin(). */
static bool snapshot_holds(const struct kvt_arena_view *view, const struct snapshot *s)
{
	/* Pairs with the owner's release fence behind the odd version: a reader of a new field or
	 * key sees the new version too. */
	kvt_fence_acquire();
	return kvt_load_relaxed(&view->nodes[s->node].version) == s->version;
}

/* True if the previous node still names the same prefix: splits keep it so; freeing, trimming and
 * merging do not. Its version does not matter: locks and children change it. */
static bool still_there(const struct kvt_arena_view *view, const struct snapshot *s)
{
	kvt_fence_acquire(); /* behind the reads of the child's snapshot */
	return kvt_load_relaxed(&view->nodes[s->node].generation) == s->generation;
}

static bool run_in_bounds(const struct kvt_arena_view *view, const struct snapshot *s)
{
	return s->sealed <= s->n_slots && s->n_slots <= view->n_slots &&
	       s->first_slot <= view->n_slots - s->n_slots;
}

/* The root key of the children of where we are. */
static uint64_t root_key_below(const struct walk *walk)
{
	return walk->at.flags & KVT_NODE_ROOT ? walk->root_key : 0;
}

/* Try one candidate of the index. OUTCOME_END: it is another child (or of another node). */
static enum outcome try_child(struct walk *walk, uint32_t id)
{
	const struct kvt_arena_view *view = walk->view;
	uint32_t page_size = view->page_size, left = walk->n_pages - walk->matched, n;
	const uint32_t *keys = walk->keys + (size_t)walk->matched * page_size, *run;
	struct snapshot s;
	bool expired;

	if (id == KVT_NONE || id >= view->max_nodes)
		return OUTCOME_END;
	if (!snapshot_begin(view, id, &s))
		return OUTCOME_RACE;
	if (s.parent != walk->at.node || !(s.flags & KVT_NODE_LIVE) ||
	    s.flags & (KVT_NODE_DETACHED | KVT_NODE_ROOT) || !run_in_bounds(view, &s) ||
	    s.start != walk->matched || s.namespace_id != walk->namespace_id ||
	    s.root_key != root_key_below(walk))
		return snapshot_holds(view, &s) ? OUTCOME_END : OUTCOME_RACE;
	run = view->slot_keys + (size_t)s.first_slot * page_size;
	n = kvt_racy_equal_pages(keys, run, s.sealed < left ? s.sealed : left, page_size);
	KVT_WALK_BETWEEN();
	if (!snapshot_holds(view, &s))
		return OUTCOME_RACE;
	KVT_WALK_BETWEEN();
	if (!still_there(view, &walk->at))
		return OUTCOME_RACE;
	if (n == 0)
		return OUTCOME_END;
	expired = s.expiry_ns != UINT64_MAX && s.expiry_ns <= walk->now_ns;
	if (expired)
		return OUTCOME_END;
	walk->at = s;
	walk->matched += n;
	return OUTCOME_STEP;
}

/* Go to the child that continues the keys. */
static enum outcome step(struct walk *walk)
{
	const struct kvt_arena_view *view = walk->view;
	uint32_t mask = view->n_buckets - 1, tag, probes;

	tag = kvt_racy_tag(view->hash_seed ^ root_key_below(walk), walk->at.node,
			   walk->keys + (size_t)walk->matched * view->page_size, view->page_size);
	probes = view->n_buckets < PROBES_MAX ? view->n_buckets : PROBES_MAX;
	for (uint32_t i = 0; i < probes; i++) {
		/* Pairs with the owner's release of the bucket: the child's fields before it. */
		kvt_bucket bucket = kvt_load_acquire(&view->buckets[(tag + i) & mask]);
		enum outcome outcome;

		KVT_WALK_BETWEEN();
		if (bucket == 0)
			break;
		if (bucket >> 32 != tag)
			continue;
		outcome = try_child(walk, (uint32_t)bucket);
		if (outcome != OUTCOME_END)
			return outcome;
	}
	return OUTCOME_END;
}

/* Walk from the root until no child matches. */
static enum outcome walk_once(struct walk *walk, uint32_t root, uint32_t *nodes)
{
	if (!snapshot_begin(walk->view, root, &walk->at))
		return OUTCOME_RACE;
	if (!snapshot_holds(walk->view, &walk->at))
		return OUTCOME_RACE;
	walk->matched = 0;
	if (!(walk->at.flags & KVT_NODE_LIVE) || !(walk->at.flags & KVT_NODE_ROOT) ||
	    walk->at.flags & KVT_NODE_DETACHED || walk->at.namespace_id != walk->namespace_id)
		return OUTCOME_RACE; /* the record named it a moment ago */
	while (walk->matched < walk->n_pages) {
		enum outcome outcome = step(walk);

		if (outcome == OUTCOME_RACE)
			return OUTCOME_RACE;
		if (outcome == OUTCOME_END)
			break;
		(*nodes)++;
		/* Inside an edge, or at its last sealed page: the walk ends. */
		if (walk->matched < walk->at.start + walk->at.n_slots)
			break;
	}
	return OUTCOME_END;
}

static bool digest_is(const struct kvt_namespace_record *record, const uint64_t digest[2])
{
	return kvt_load_relaxed(&record->digest[0]) == digest[0] &&
	       kvt_load_relaxed(&record->digest[1]) == digest[1];
}

/* RESET raises the epoch first: older nodes never match again. */
static bool is_stale(const struct kvt_arena_view *view, uint32_t root)
{
	/* Pairs with the owner's release: a reader that knows of the RESET sees its epoch. */
	uint64_t epoch = kvt_load_acquire(&view->header->epoch);

	return kvt_load_relaxed(&view->nodes[root].epoch) != epoch;
}

int kvt_walk(const struct kvt_arena_view *view, uint32_t namespace_id, const uint64_t digest[2],
	     uint64_t root_key, const uint32_t *keys, uint32_t n_keys, uint64_t now_ns,
	     struct kvt_handle *ret_handle, struct kvt_walk_effort *ret_effort)
{
	const struct kvt_namespace_record *record;
	struct walk walk = {
		.view = view,
		.keys = keys,
		.n_pages = n_keys / view->page_size,
		.namespace_id = namespace_id,
		.root_key = root_key,
		.now_ns = now_ns,
	};
	struct kvt_walk_effort effort = { 0, 0 };
	enum outcome outcome = OUTCOME_RACE;

	if (namespace_id >= view->max_namespaces)
		return -EINVAL;
	record = &view->namespaces[namespace_id];
	for (; effort.restarts < KVT_WALK_RESTARTS; effort.restarts++) {
		/* Pairs with the owner's release of the root: the record's digest before it. */
		uint32_t root = kvt_load_acquire(&record->root);

		KVT_WALK_BETWEEN();
		if (!digest_is(record, digest))
			return -ENOENT;
		walk.at = (struct snapshot){ .node = KVT_NONE };
		walk.matched = 0;
		effort.nodes = 0;
		if (root == KVT_NONE || root >= view->max_nodes || walk.n_pages == 0 ||
		    is_stale(view, root))
			outcome = OUTCOME_END;
		else
			outcome = walk_once(&walk, root, &effort.nodes);
		KVT_WALK_BETWEEN();
		kvt_fence_acquire(); /* all reads above, before the second read of the digest */
		if (!digest_is(record, digest))
			return -ENOENT;
		if (outcome == OUTCOME_END)
			break;
	}
	if (ret_effort)
		*ret_effort = effort;
	if (outcome != OUTCOME_END)
		return -EAGAIN;
	*ret_handle = (struct kvt_handle){ 0, 0, 0 };
	if (walk.matched)
		*ret_handle = (struct kvt_handle){ walk.at.node, walk.at.generation,
						   walk.matched * view->page_size };
	return 0;
}
