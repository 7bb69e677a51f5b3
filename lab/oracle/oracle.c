/* SPDX-License-Identifier: Apache-2.0 */

/* The oracle: created, fed one record at a time, destroyed. The files below, each
 * calling only lower ones:
 *
 *     oracle.c   one record
 *     ops.c      the operations             session.c  sessions, background
 *     lease.c    BEGIN COMMIT EXTEND END    wait.c     BEGINs that wait
 *     run.c      refusals, wanted lists     events.c   NEW SPLIT TRIM ...    check.c  recounting
 *     model.c    nodes, pages, walks
 *
 * Inputs: the records of a log, in order. Invariant: after a mismatch the model is not used any
 * more. Callers: kvtlab verify, the simulation, the unit tests. */

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lab/oracle/check.h"
#include "lab/oracle/fail.h"
#include "lab/oracle/ops.h"
#include "lab/oracle/session.h"
#include "lab/oracle/wait.h"

static bool allocate(struct kvt_oracle *o)
{
	const struct kvt_core_config *c = &o->config;

	o->nodes = calloc(c->max_nodes, sizeof(*o->nodes));
	o->live = calloc(c->max_nodes, sizeof(*o->live));
	o->free_ids = calloc(c->max_nodes, sizeof(*o->free_ids));
	o->generations = calloc(c->max_nodes, sizeof(*o->generations));
	o->remains = calloc(c->max_nodes, sizeof(*o->remains));
	o->pages = calloc(c->n_pages, sizeof(*o->pages));
	o->leases = calloc(c->n_leases + 1ull, sizeof(*o->leases));
	o->free_leases = calloc(c->n_leases, sizeof(*o->free_leases));
	o->sessions = calloc(c->max_sessions + 1ull, sizeof(*o->sessions));
	o->namespaces = calloc(c->max_namespaces + 1ull, sizeof(*o->namespaces));
	if (!o->nodes || !o->live || !o->free_ids || !o->generations || !o->remains || !o->pages ||
	    !o->leases || !o->free_leases || !o->sessions || !o->namespaces)
		return false;
	for (uint32_t i = 0; i <= c->max_sessions; i++) {
		o->sessions[i].opened = calloc(c->max_namespaces + 1ull, 1);
		if (!o->sessions[i].opened)
			return false;
	}
	return true;
}

struct kvt_oracle *kvt_oracle_create(const struct kvt_core_config *config)
{
	struct kvt_oracle *o = calloc(1, sizeof(*o));

	if (!o)
		return NULL;
	o->config = *config;
	o->epoch = 1;
	if (!allocate(o)) {
		kvt_oracle_destroy(o);
		return NULL;
	}
	for (uint32_t id = 1; id < config->max_nodes; id++)
		o->free_ids[o->n_free_ids++] = id;
	for (uint32_t i = 1; i <= config->n_leases; i++)
		o->free_leases[o->n_free_leases++] = i;
	o->pages[0].state = KVT_PAGE_SCRATCH;
	o->in_state[KVT_PAGE_SCRATCH] = 1;
	o->in_state[KVT_PAGE_FREE] = config->n_pages - 1;
	return o;
}

void kvt_oracle_destroy(struct kvt_oracle *o)
{
	if (!o)
		return;
	for (uint32_t id = 0; o->nodes && id < o->config.max_nodes; id++) {
		if (!o->nodes[id])
			continue;
		free(o->nodes[id]->keys);
		free(o->nodes[id]->pages);
		free(o->nodes[id]->children);
		free(o->nodes[id]);
	}
	for (uint32_t i = 0; o->leases && i <= o->config.n_leases; i++)
		free(o->leases[i].table);
	for (uint32_t i = 0; o->sessions && i <= o->config.max_sessions; i++)
		free(o->sessions[i].opened);
	free(o->nodes);
	free(o->live);
	free(o->free_ids);
	free(o->generations);
	free(o->remains);
	free(o->pages);
	free(o->leases);
	free(o->free_leases);
	free(o->sessions);
	free(o->namespaces);
	free(o->pending);
	free(o->run.want_list);
	free(o->scratch);
	free(o->path);
	free(o);
}

static void run_begin(struct kvt_oracle *o, const struct kvt_record *record)
{
	uint32_t *list = o->run.want_list, room = o->run.want_room;

	o->run = (struct model_run){
		.record = record,
		.want_list = list,
		.want_room = room,
		.split_at = UINT32_MAX,
		.expiry_ns = UINT64_MAX,
		.tick = ++o->clock,
	};
	o->stamp++;
}

static int apply(struct kvt_oracle *o, const struct kvt_record *record)
{
	TRY(oracle_expect(o, "seq", o->seq + 1, record->seq));
	o->seq = record->seq;
	TRY(wait_check_order(o));
	switch (record->kind) {
	case KVT_REC_OP:
		TRY(ops_apply(o));
		break;
	case KVT_REC_DEFER:
		TRY(ops_defer(o));
		break;
	case KVT_REC_ADMIN:
		TRY(admin_apply(o));
		break;
	default:
		TRY(session_apply(o));
		break;
	}
	TRY(check_settled(o));
	return check_counters(o);
}

int kvt_oracle_apply(struct kvt_oracle *oracle, const struct kvt_record *record, char *why,
		     size_t why_bytes)
{
	char what[512] = "";
	int result;

	oracle->why = what;
	oracle->why_bytes = sizeof(what);
	run_begin(oracle, record);
	result = apply(oracle, record);
	if (result > 0)
		result = -EBADMSG;
	if (result < 0)
		snprintf(why, why_bytes, "seq %llu, record kind %u, session %u, op %u: %s",
			 (unsigned long long)record->seq, record->kind, record->session,
			 record->sqe.op, what);
	oracle->why = NULL;
	oracle->why_bytes = 0;
	return result;
}

int kvt_oracle_path_keys(const struct kvt_oracle *oracle, uint32_t node, uint32_t positions,
			 uint32_t *ret_keys)
{
	uint32_t ps = oracle->config.page_size;
	const struct model_node *at = model_node(oracle, node);

	if (positions == 0)
		return 0;
	if (!at || positions > (uint64_t)model_end(at) * ps)
		return -ENOENT;
	for (; at; at = model_node(oracle, at->parent)) {
		uint64_t from = (uint64_t)at->start * ps;
		uint64_t n = positions > from ? positions - from : 0;

		if (n > (uint64_t)at->n * ps)
			n = (uint64_t)at->n * ps;
		if (n)
			memcpy(ret_keys + from, at->keys, n * sizeof(*ret_keys));
	}
	return 0;
}
