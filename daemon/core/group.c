/* SPDX-License-Identifier: Apache-2.0 */

/* Groups: processes that hold together what one session holds.
 *
 * The tree and the leases know nothing of them. A member adds its fence words to its session's,
 * and a record that tells a successor who it was. Records are written outside of mutations: one
 * that is half made is not there, because its state is written last, and one whose session is gone
 * does not count, whatever it says. */

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "daemon/core/internal.h"

static bool in_use(const struct kvt_core *core, const struct kvt_member_record *member)
{
	const struct kvt_session_record *session;

	if (member->state == KVT_MEMBER_FREE || member->state > KVT_MEMBER_OVER ||
	    member->session < 1 || member->session > core->config.max_sessions ||
	    member->rank >= KVT_MAX_RANKS)
		return false;
	session = &core->sessions[member->session];
	return session->state != KVT_SESSION_FREE &&
	       session->generation == member->session_generation;
}

const struct kvt_member_record *kvt_core_member(const struct kvt_core *core, uint32_t member)
{
	KVT_ASSERT(member <= core->config.max_members);
	return member && in_use(core, &core->members[member]) ? &core->members[member] : NULL;
}

static uint32_t leader_of(const struct kvt_core *core, uint32_t session)
{
	for (uint32_t i = 1; i <= core->config.max_members; i++)
		if (in_use(core, &core->members[i]) && core->members[i].session == session &&
		    core->members[i].state == KVT_MEMBER_LEADER)
			return i;
	return 0;
}

static void make_place(struct kvt_core *core, struct kvt_member_record *member, uint32_t session,
		       uint32_t rank, uint32_t n_ranks)
{
	member->state = KVT_MEMBER_FREE;
	kvt_fence_signal();
	*member = (struct kvt_member_record){
		.session = session,
		.session_generation = core->sessions[session].generation,
		.rank = rank,
		.n_ranks = n_ranks,
		.generation = member->generation + 1,
	};
}

int kvt_core_group_open(struct kvt_core *core, uint32_t session, uint32_t n_ranks,
			const uint64_t token[2])
{
	uint32_t places[KVT_MAX_RANKS], n = 0;

	KVT_ASSERT(n_ranks >= 2 && n_ranks <= KVT_MAX_RANKS);
	KVT_ASSERT(core->sessions[session].state != KVT_SESSION_FREE);
	if (leader_of(core, session))
		return -EALREADY;
	for (uint32_t i = 1; i <= core->config.max_members && n < n_ranks; i++)
		if (!in_use(core, &core->members[i]))
			places[n++] = i;
	if (n < n_ranks)
		return -ENOSPC;
	/* Rank 0 last: the token is what makes the group. */
	while (n-- > 0) {
		struct kvt_member_record *member = &core->members[places[n]];

		make_place(core, member, session, n, n_ranks);
		if (n == 0) {
			member->secret[0] = token[0];
			member->secret[1] = token[1];
			member->pid = core->sessions[session].pid;
			member->uid = core->sessions[session].uid;
		}
		kvt_fence_signal();
		member->state = n ? KVT_MEMBER_AWAITED : KVT_MEMBER_LEADER;
	}
	return 0;
}

/* Tokens are compared whole, so that the time it takes tells nothing. */
static uint32_t session_of(const struct kvt_core *core, const uint64_t token[2],
			   uint32_t *ret_n_ranks)
{
	for (uint32_t i = 1; i <= core->config.max_members; i++) {
		const struct kvt_member_record *member = &core->members[i];

		if (member->state == KVT_MEMBER_LEADER && in_use(core, member) &&
		    core->sessions[member->session].state == KVT_SESSION_OPEN &&
		    !((member->secret[0] ^ token[0]) | (member->secret[1] ^ token[1]))) {
			*ret_n_ranks = member->n_ranks;
			return member->session;
		}
	}
	return 0;
}

int kvt_core_group_find(const struct kvt_core *core, const uint64_t token[2], uint32_t rank,
			uint32_t *ret_member)
{
	uint32_t n_ranks = 0, session = session_of(core, token, &n_ranks);

	if (!session)
		return -ESTALE;
	if (rank < 1 || rank >= n_ranks)
		return -ERANGE;
	for (uint32_t i = 1; i <= core->config.max_members; i++) {
		const struct kvt_member_record *member = &core->members[i];

		if (!in_use(core, member) || member->session != session || member->rank != rank)
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
	member->secret[0] = peer->secret[0];
	member->secret[1] = peer->secret[1];
	if (peer->label)
		snprintf(member->label, sizeof(member->label), "%s", peer->label);
	kvt_fence_signal();
	member->state = KVT_MEMBER_JOINED;
}

void kvt_core_member_sign(struct kvt_core *core, uint32_t id, uint32_t signs)
{
	struct kvt_member_record *member = &core->members[id];

	if (!in_use(core, member))
		return;
	member->signs |= signs;
	if (member->state == KVT_MEMBER_JOINED)
		member->state = KVT_MEMBER_OVER;
}
