/* SPDX-License-Identifier: Apache-2.0 */

/* Tallies of sessions and namespaces. */

#include "daemon/core/records.h"
#include "daemon/core/tally.h"
#include "daemon/core/undo.h"
#include "shm/assert.h"

void kvt_tally_clear(struct kvt_core *core, struct kvt_tally *tally)
{
	kvt_save(core, tally, sizeof(*tally));
	*tally = (struct kvt_tally){ 0 };
}

static void add_begun(struct kvt_core *core, struct kvt_tally *tally, uint32_t positions,
		      uint32_t hits)
{
	kvt_save(core, &tally->input_positions, 2 * sizeof(uint64_t));
	tally->input_positions += positions;
	tally->hit_positions += hits;
}

void kvt_tally_begun(struct kvt_core *core, uint32_t session, uint32_t namespace_id,
		     uint32_t positions, uint32_t hits, uint32_t shared)
{
	core->count->input_positions += positions;
	core->count->hit_positions += hits;
	core->count->shared_hit_positions += shared;
	add_begun(core, kvt_tally_session(core, session), positions, hits);
	add_begun(core, kvt_tally_namespace(core, namespace_id), positions, hits);
}

static void add(struct kvt_core *core, uint64_t *count, uint32_t n)
{
	kvt_save(core, count, sizeof(*count));
	*count += n;
}

void kvt_tally_sealed(struct kvt_core *core, uint32_t session, uint32_t namespace_id, uint32_t n)
{
	KVT_ASSERT(namespace_id > 0 && namespace_id < core->config.max_namespaces);
	add(core, &kvt_tally_session(core, session)->inserted_pages, n);
	add(core, &kvt_tally_namespace(core, namespace_id)->inserted_pages, n);
}

/** The namespace of an operation, 0 if it names none. The lease of an END may be gone. */
static uint32_t namespace_of(const struct kvt_core *core, const struct kvt_sqe *sqe)
{
	uint32_t takes = kvt_op_takes(sqe->op);

	if (takes & KVT_TAKES_NAMESPACE)
		return sqe->namespace_id;
	return takes & KVT_TAKES_LEASE && sqe->op != KVT_OP_END ?
		       core->leases[sqe->node].namespace_id : 0;
}

void kvt_tally_refused(struct kvt_core *core, uint32_t session, const struct kvt_sqe *sqe,
		       enum kvt_reason reason)
{
	uint32_t row = kvt_refusal_of(reason), id;

	if (row == KVT_REFUSAL_COUNT)
		return;
	id = sqe ? namespace_of(core, sqe) : 0;
	core->count->refusals++;
	add(core, &kvt_tally_session(core, 0)->refused[row], 1);
	add(core, &kvt_tally_session(core, session)->refused[row], 1);
	if (id > 0)
		add(core, &kvt_tally_namespace(core, id)->refused[row], 1);
}
