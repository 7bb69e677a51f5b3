/* SPDX-License-Identifier: Apache-2.0 */

/* The processes of a session.
 *
 * Tree and leases are independent of them. Rank 0 comes and goes with its session (session.c). Each
 * further rank of a group adds its fence words to the session's. Records identify the processes
 * after a restart. They are written outside of mutations, their state last, so a half-made one is
 * invalid; so is one whose session has ended. Callers: the daemon when a group opens, when ranks
 * join and when processes leave. */

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "daemon/core/core.h"
#include "daemon/core/records.h"
#include "daemon/core/state.h"
#include "kvtrunk_wire_control.h"
#include "kvtrunk_wire_segment.h"

static bool in_use(const struct kvt_core *core, const struct kvt_member_record *member)
{
	const struct kvt_session_record *session;

	if (member->state == KVT_MEMBER_FREE || member->state > KVT_MEMBER_JOINED ||
	    member->session < 1 || member->session > core->config.max_sessions ||
	    member->rank >= KVT_MAX_RANKS)
		return false;
	session = &core->sessions[member->session];
	return session->state != KVT_SESSION_FREE && session->generation == member->generation;
}

const struct kvt_member_record *kvt_core_member(const struct kvt_core *core, uint32_t member)
{
	KVT_ASSERT(member <= kvt_core_members(&core->config));
	return member && in_use(core, &core->members[member]) ? &core->members[member] : NULL;
}

/** Find the token of a session's group. It is every further rank's secret. */
static void find_token(const struct kvt_core *core, uint32_t session, uint64_t ret_token[2])
{
	uint32_t i = core->config.max_sessions + 1;

	while (!in_use(core, &core->members[i]) || core->members[i].session != session)
		i++;
	KVT_ASSERT(i <= kvt_core_members(&core->config) && core->members[i].rank > 0);
	memcpy(ret_token, core->members[i].secret, sizeof(core->members[i].secret));
}

static void make_place(struct kvt_core *core, struct kvt_member_record *member, uint32_t session,
		       uint32_t rank, uint32_t n_ranks, const uint64_t token[2])
{
	member->state = KVT_MEMBER_FREE;
	kvt_fence_signal();
	*member = (struct kvt_member_record){
		.session = session,
		.generation = core->sessions[session].generation,
		.rank = rank,
		.n_ranks = n_ranks,
		.secret = { token[0], token[1] },
	};
	kvt_fence_signal();
	member->state = KVT_MEMBER_AWAITED;
}

int kvt_core_group_open(struct kvt_core *core, uint32_t session, uint32_t n_ranks,
			uint64_t token[2])
{
	struct kvt_member_record *first = &core->members[session];
	uint32_t places[KVT_MAX_RANKS] = { 0 }, n = 1, taken = 0;

	KVT_ASSERT(n_ranks >= 2 && n_ranks <= KVT_MAX_RANKS && in_use(core, first));
	KVT_ASSERT(session > 0 && session <= core->config.max_sessions && first->rank == 0);
	if (first->n_ranks && first->n_ranks != n_ranks)
		return -EALREADY;
	if (first->n_ranks) {
		find_token(core, session, token);
		return 0;
	}
	if (kvt_core_group_find(core, token, 0, NULL) != -ESTALE)
		return -EEXIST;
	for (uint32_t i = 1; i <= kvt_core_members(&core->config); i++) {
		struct kvt_member_record *member = &core->members[i];

		if (member->rank && member->session == session) /* a predecessor half made it */
			member->state = KVT_MEMBER_FREE;
		taken += in_use(core, member) && member->n_ranks;
		if (i > core->config.max_sessions && !in_use(core, member) && n < n_ranks)
			places[n++] = i;
	}
	if (taken + n_ranks > core->config.max_members)
		return -ENOSPC;
	KVT_ASSERT(n == n_ranks);
	for (uint32_t rank = 1; rank < n_ranks; rank++)
		make_place(core, &core->members[places[rank]], session, rank, n_ranks, token);
	kvt_fence_signal();
	first->n_ranks = n_ranks;
	return 0;
}

int kvt_core_group_find(const struct kvt_core *core, const uint64_t token[2], uint32_t rank,
			uint32_t *ret_member)
{
	for (uint32_t i = core->config.max_sessions + 1; i <= kvt_core_members(&core->config);
	     i++) {
		const struct kvt_member_record *member = &core->members[i];

		/* Tokens are compared whole, so that the time it takes tells nothing. */
		if (!in_use(core, member) ||
		    core->sessions[member->session].state != KVT_SESSION_OPEN ||
		    ((member->secret[0] ^ token[0]) | (member->secret[1] ^ token[1])))
			continue;
		if (rank < 1 || rank >= member->n_ranks)
			return -ERANGE;
		if (member->rank != rank)
			continue;
		if (member->state != KVT_MEMBER_AWAITED)
			return -EEXIST;
		*ret_member = i;
		return 0;
	}
	return -ESTALE;
}

void kvt_core_member_attach(struct kvt_core *core, uint32_t member,
			    const struct kvt_fence_word *fences)
{
	struct kvt_fence_group *group = &core->groups[core->members[member].session];

	KVT_ASSERT(group->n < KVT_MAX_RANKS - 1);
	KVT_ASSERT(fences && member > core->config.max_sessions);
	group->words[group->n++] = fences;
}

void kvt_core_member_join(struct kvt_core *core, uint32_t id, const struct kvt_core_peer *peer,
			  const struct kvt_fence_word *fences)
{
	struct kvt_member_record *member = &core->members[id];

	KVT_ASSERT(in_use(core, member) && member->state == KVT_MEMBER_AWAITED);
	kvt_core_member_attach(core, id, fences);
	member->pid = peer->pid;
	member->uid = peer->uid;
	member->start_time = peer->start_time;
	if (peer->label)
		snprintf(member->label, sizeof(member->label), "%s", peer->label);
	kvt_fence_signal();
	member->state = KVT_MEMBER_JOINED;
}

void kvt_core_member_sign(struct kvt_core *core, uint32_t id, uint32_t signs)
{
	KVT_ASSERT(id > 0 && id <= kvt_core_members(&core->config));
	if (in_use(core, &core->members[id]))
		core->members[id].signs |= signs;
}
