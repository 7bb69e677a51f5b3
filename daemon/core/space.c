/* SPDX-License-Identifier: Apache-2.0 */

/* Namespaces: a record is in use while a session has it open or a node names it. */

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "daemon/core/core.h"
#include "daemon/core/effect.h"
#include "daemon/core/leaf.h"
#include "daemon/core/records.h"
#include "daemon/core/space.h"
#include "daemon/core/state.h"
#include "daemon/core/tally.h"
#include "daemon/core/undo.h"

static uint32_t find_namespace(const struct kvt_core *core, const uint64_t digest[2],
			       uint32_t *ret_free)
{
	*ret_free = 0;
	for (uint32_t i = 1; i < core->config.max_namespaces; i++) {
		const struct kvt_namespace_record *space = &core->namespaces[i];

		if (!space->flags) {
			if (!*ret_free)
				*ret_free = i;
		} else if (space->digest[0] == digest[0] && space->digest[1] == digest[1]) {
			return i;
		}
	}
	return 0;
}

/** The limit that the configuration has for a namespace: by digest or label, or that of all. */
static uint32_t limit_of(const struct kvt_core *core, uint32_t id)
{
	const uint64_t *digest = core->namespaces[id].digest;
	const struct kvt_core_config *c = &core->config;
	char text[33];

	snprintf(text, sizeof(text), "%016llx%016llx", (unsigned long long)digest[0],
		 (unsigned long long)digest[1]);
	for (uint32_t i = 0; i < c->n_space_limits; i++)
		if (strcmp(c->space_limits[i].name, text) == 0 ||
		    strcmp(c->space_limits[i].name, core->labels[id]) == 0)
			return c->space_limits[i].pages;
	return c->space_pages;
}

static uint64_t record_value(const struct kvt_core *core, uint32_t id)
{
	return (uint64_t)core->namespaces[id].limit << 32 | id;
}

void kvt_spaces_limit(struct kvt_core *core)
{
	bool changed = false;

	for (uint32_t id = 1; id < core->config.max_namespaces; id++) {
		struct kvt_namespace_record *space = &core->namespaces[id];
		uint32_t limit = space->flags ? limit_of(core, id) : space->limit;

		if (space->limit == limit)
			continue;
		kvt_record_start(core);
		kvt_mutation_begin(core);
		kvt_save(core, space, sizeof(*space));
		space->limit = limit;
		kvt_record_emit(core, KVT_REC_NAMESPACE, 0, record_value(core, id));
		kvt_mutation_end(core);
		changed = true;
	}
	if (changed)
		kvt_limits_changed(core);
}

static void make_namespace(struct kvt_core *core, uint32_t id, const uint64_t digest[2],
			   const char *label)
{
	struct kvt_namespace_record *space = &core->namespaces[id];

	KVT_ASSERT(!(space->flags & KVT_NAMESPACE_USED) && space->nodes == 0);
	KVT_ASSERT(id > 0 && id < core->config.max_namespaces);
	kvt_save(core, space, sizeof(*space));
	KVT_SET(space->root, KVT_NONE);
	KVT_SET(space->digest[0], digest[0]);
	KVT_SET(space->digest[1], digest[1]);
	space->flags = KVT_NAMESPACE_USED;
	space->opened = 0;
	space->generation = 0;
	space->cached_pages = space->evictable_pages = space->protected_pages = 0;
	snprintf(core->labels[id], KVT_LABEL_BYTES, "%s", label ? label : "");
	space->limit = limit_of(core, id);
	kvt_tally_clear(core, kvt_tally_namespace(core, id));
	core->count->live_namespaces++;
}

void kvt_space_free(struct kvt_core *core, uint32_t id)
{
	struct kvt_namespace_record *space = &core->namespaces[id];

	KVT_ASSERT(space->opened == 0 && space->nodes == 0);
	KVT_ASSERT(space->flags & KVT_NAMESPACE_USED && space->root == KVT_NONE);
	KVT_ASSERT(space->cached_pages == 0 && space->protected_pages == 0);
	kvt_save(core, space, sizeof(*space));
	space->flags = 0;
	core->count->live_namespaces--;
}

/** True if a session has as many namespaces open as it may. */
static bool at_limit(const struct kvt_core *core, uint32_t session)
{
	const uint64_t *bits = core->opened + (size_t)session * core->opened_words;
	uint32_t n = 0;

	for (uint32_t word = 0; word < core->opened_words; word++)
		n += (uint32_t)__builtin_popcountll(bits[word]);
	return core->config.max_opened && n >= core->config.max_opened;
}

bool kvt_space_victim(const struct kvt_core *core, uint32_t session, const uint64_t digest[2],
		      uint32_t *ret_root)
{
	uint32_t place, oldest = KVT_NONE;

	if (session == 0 || find_namespace(core, digest, &place) || place ||
	    at_limit(core, session))
		return false;
	for (uint32_t i = 1; i < core->config.max_namespaces; i++) {
		const struct kvt_namespace_record *space = &core->namespaces[i];
		uint32_t root = space->flags ? kvt_root_of(core, i) : KVT_NONE;

		/* A LOCK of a handle needs no open namespace, but locks sealed pages. */
		if (!space->flags || space->opened || space->protected_pages)
			continue;
		if (root == KVT_NONE) {
			*ret_root = KVT_NONE;
			return true;
		}
		if (oldest == KVT_NONE || core->nodes[root].touched < core->nodes[oldest].touched)
			oldest = root;
	}
	*ret_root = oldest;
	return oldest != KVT_NONE;
}

/** Count an opening that is refused. Returns `error`. */
static int refuse_namespace(struct kvt_core *core, uint32_t session, const uint32_t digest[4],
			    uint64_t now_ns, int error)
{
	core->now_ns = now_ns;
	kvt_record_start(core);
	kvt_mutation_begin(core);
	kvt_tally_refused(core, session, NULL, KVT_REASON_LIMIT_NAMESPACES);
	core->record.keys = digest;
	core->record.n_keys = 4;
	kvt_record_emit(core, KVT_REC_NAMESPACE, session, 0);
	kvt_mutation_end(core);
	return error;
}

int kvt_core_namespace_open(struct kvt_core *core, uint32_t session, const uint64_t digest[2],
			    const char *label, uint64_t now_ns, uint32_t *ret_namespace)
{
	uint64_t *bits = core->opened + (size_t)session * core->opened_words;
	uint32_t place, id = find_namespace(core, digest, &place);
	uint32_t words[4] = { (uint32_t)digest[0], (uint32_t)(digest[0] >> 32),
			      (uint32_t)digest[1], (uint32_t)(digest[1] >> 32) };

	if (!id && session == 0)
		return -ENOENT;
	if (session == 0 || (id && kvt_bit_get(bits, id))) {
		*ret_namespace = id;
		return 0;
	}
	if (at_limit(core, session))
		return refuse_namespace(core, session, words, now_ns, -EDQUOT);
	if (!id && !place)
		return refuse_namespace(core, session, words, now_ns, -ENOSPC);
	core->now_ns = now_ns;
	kvt_record_start(core);
	kvt_mutation_begin(core);
	if (!id) {
		id = place;
		make_namespace(core, id, digest, label);
	}
	core->namespaces[id].opened++;
	KVT_ASSERT(core->namespaces[id].opened <= core->config.max_sessions);
	kvt_save(core, &bits[id / 64], sizeof(*bits));
	kvt_bit_set(bits, id);
	core->record.keys = words;
	core->record.n_keys = 4;
	kvt_record_emit(core, KVT_REC_NAMESPACE, session, record_value(core, id));
	kvt_mutation_end(core);
	*ret_namespace = id;
	return 0;
}

int kvt_core_namespace_renew(struct kvt_core *core, uint32_t session, uint32_t id, uint32_t seen,
			     uint32_t *ret_generation)
{
	struct kvt_namespace_record *space;

	if (session == 0 || id == 0 || id >= core->config.max_namespaces ||
	    !kvt_bit_get(core->opened + (size_t)session * core->opened_words, id))
		return -EINVAL;
	space = &core->namespaces[id];
	KVT_ASSERT(space->flags & KVT_NAMESPACE_USED && space->opened > 0);
	if (space->generation <= seen) {
		if (space->generation == UINT32_MAX)
			return -EOVERFLOW;
		kvt_mutation_begin(core);
		kvt_save(core, space, sizeof(*space));
		space->generation++;
		kvt_mutation_end(core);
	}
	*ret_generation = space->generation;
	return 0;
}

static uint32_t lease_space(const struct kvt_core *core, const struct kvt_lease_record *lease)
{
	return lease->node == KVT_NONE ? lease->namespace_id :
					 core->nodes[lease->node].namespace_id;
}

uint32_t kvt_space_held(const struct kvt_core *core, uint32_t session, uint32_t namespace_id)
{
	const struct kvt_session_record *record = &core->sessions[session];
	uint32_t n = 0, id;

	for (id = record->first_lease; id != KVT_NONE; id = core->leases[id].next_lease)
		n += lease_space(core, &core->leases[id]) == namespace_id;
	for (id = record->first_pending; id != KVT_NONE; id = core->pending[id].next)
		n += core->pending[id].sqe.namespace_id == namespace_id;
	for (id = record->n_waiters ? core->first_waiter : KVT_NONE; id != KVT_NONE;
	     id = core->pending[id].next)
		n += core->pending[id].session == session &&
		     core->pending[id].sqe.namespace_id == namespace_id;
	return n;
}

void kvt_space_close(struct kvt_core *core, uint32_t session, uint32_t namespace_id)
{
	uint64_t *bits = core->opened + (size_t)session * core->opened_words;
	struct kvt_namespace_record *space = &core->namespaces[namespace_id];

	KVT_ASSERT(kvt_bit_get(bits, namespace_id) && space->opened > 0);
	kvt_save(core, &bits[namespace_id / 64], sizeof(*bits));
	kvt_bit_clear(bits, namespace_id);
	if (--space->opened == 0 && space->nodes == 0)
		kvt_space_free(core, namespace_id);
}

void kvt_spaces_close(struct kvt_core *core, uint32_t session)
{
	const uint64_t *bits = core->opened + (size_t)session * core->opened_words;

	for (uint32_t i = 1; i < core->config.max_namespaces; i++)
		if (kvt_bit_get(bits, i))
			kvt_space_close(core, session, i);
}
