/* SPDX-License-Identifier: Apache-2.0 */

/* Hold back records of an unfinished mutation: if the core is killed inside it, they are
 * dropped. */

#include <stdlib.h>
#include <string.h>

#include "daemon/core/records.h"
#include "tests/core/sim/sim.h"

static const void *copied(struct sim *sim, const void *array, size_t bytes)
{
	void *copy;

	if (!array || bytes == 0)
		return NULL;
	copy = malloc(bytes);
	if (!copy)
		sim_fail(sim, "out of memory");
	else
		memcpy(copy, array, bytes);
	return copy;
}

static void forget(struct kvt_record *r)
{
	free((void *)(uintptr_t)r->keys);
	free((void *)(uintptr_t)r->pages);
	free((void *)(uintptr_t)r->list);
	free((void *)(uintptr_t)r->events);
	free((void *)(uintptr_t)r->out);
}

static uint64_t mutation(const struct sim *sim)
{
	return ((const struct kvt_arena_header *)sim->arena)->mutation;
}

void sim_hold(struct sim *sim, const struct kvt_record *record)
{
	struct kvt_record *r;

	if (sim->n_held && sim->held_mutation != mutation(sim))
		sim_settle(sim);
	if (sim->n_held == SIM_HELD) {
		sim_fail(sim, "more than %d records of one mutation", SIM_HELD);
		return;
	}
	sim->held_mutation = mutation(sim);
	r = &sim->held[sim->n_held++];
	*r = *record;
	r->keys = copied(sim, r->keys, r->n_keys * sizeof(uint32_t));
	r->pages = copied(sim, r->pages, r->n_pages * sizeof(uint32_t));
	r->list = copied(sim, r->list, r->n_list * sizeof(uint32_t));
	r->events = copied(sim, r->events, r->n_events * sizeof(*r->events));
	r->out = copied(sim, r->out, r->n_out * sizeof(uint32_t));
}

void sim_settle(struct sim *sim)
{
	for (uint32_t i = 0; i < sim->n_held; i++) {
		sim_observe(sim, &sim->held[i]);
		forget(&sim->held[i]);
	}
	sim->n_held = 0;
}

/* Set what the simulation believes about a session to what became true. */
static void learn_session(struct sim *sim, uint32_t id)
{
	const struct kvt_session_record *record = kvt_core_session(sim->core, id);
	struct sim_session *s = &sim->sessions[id];

	s->signs = record->signs;
	s->present = record->state != KVT_SESSION_FREE;
	s->closing = record->state == KVT_SESSION_CLOSING;
	s->open = s->view.fences &&
		  (record->state == KVT_SESSION_OPEN || record->state == KVT_SESSION_CLOSING);
	if (!s->open)
		sim_view_free(s);
}

void sim_killed(struct sim *sim)
{
	if (sim->n_held && sim->held_mutation != mutation(sim))
		sim_settle(sim);
	for (uint32_t i = 0; i < sim->n_held; i++)
		forget(&sim->held[i]);
	sim->n_held = 0;
	sim_restart(sim);
	sim_settle(sim);
	for (uint32_t i = 1; i <= sim->config.max_sessions && !sim->failed; i++) {
		learn_session(sim, i);
		/* It was opened, but its client never learns of it. */
		if (sim->sessions[i].present && !sim->sessions[i].open)
			kvt_core_session_sign(sim->core, i, KVT_SIGN_HANGUP | KVT_SIGN_EXITED,
					      sim->now_ns);
	}
	sim_settle(sim);
}

/* The fate of each entry, as a successor reads it in the session's record. */
void sim_check_progress(struct sim *sim)
{
	for (uint32_t i = 1; i <= sim->config.max_sessions; i++) {
		const struct kvt_session_record *record = kvt_core_session(sim->core, i);
		const struct sim_session *s = &sim->sessions[i];
		const struct kvt_cqe *last = &record->last_cqe[(record->cq_done - 1) & 1];

		if (record->state != KVT_SESSION_OPEN && record->state != KVT_SESSION_CLOSING)
			continue;
		if (record->sq_taken != s->taken || record->cq_done != s->done) {
			sim_fail(sim, "session %u says that %u entries were taken and %u "
				 "completed: %u and %u were", i, record->sq_taken, record->cq_done,
				 s->taken, s->done);
			return;
		}
		if (s->done && memcmp(last, &s->last_cqe, sizeof(*last)) != 0)
			sim_fail(sim, "session %u has another last completion (seq %llu) than "
				 "the last one (seq %llu)", i, (unsigned long long)last->seq,
				 (unsigned long long)s->last_cqe.seq);
	}
}
