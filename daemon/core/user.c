/* SPDX-License-Identifier: Apache-2.0 */

/* What the sessions of one uid hold together, so that one uid cannot hold everything.
 *
 * All of it is derived: sessions and namespaces name their uids. A record lives as long as its uid
 * has a session, also a dead one whose pages are in quarantine, or made a namespace that is in use.
 * A namespace is counted once, by the uid that made it, until neither a session nor a key needs it:
 * so keys that outlive their session count on. */

#include <errno.h>
#include <string.h>

#include "daemon/core/internal.h"

uint32_t kvt_user_find(const struct kvt_core *core, uint32_t uid)
{
	for (uint32_t i = 1; i <= core->n_users; i++)
		if ((core->users[i].sessions || core->users[i].namespaces) &&
		    core->users[i].uid == uid)
			return i;
	return 0;
}

/** The uid's record, a new one if it has none. */
static uint32_t user_take(struct kvt_core *core, uint32_t uid)
{
	uint32_t id = kvt_user_find(core, uid);

	if (id)
		return id;
	for (id = 1; id <= core->n_users; id++)
		if (!core->users[id].sessions && !core->users[id].namespaces)
			break;
	if (id > core->n_users)
		core->n_users = id;
	core->users[id] = (struct kvt_user){ .uid = uid };
	return id;
}

void kvt_user_session(struct kvt_core *core, uint32_t session)
{
	uint32_t id = user_take(core, core->sessions[session].uid);

	core->user_of[session] = id;
	core->users[id].sessions++;
	if (core->users[id].live++ == 0)
		core->live_users++;
}

void kvt_user_session_over(struct kvt_core *core, uint32_t session)
{
	if (--kvt_user_of(core, session)->live == 0)
		core->live_users--;
}

void kvt_user_session_gone(struct kvt_core *core, uint32_t session)
{
	kvt_user_of(core, session)->sessions--;
	core->user_of[session] = 0;
}

void kvt_user_space(struct kvt_core *core, uint32_t namespace_id, uint32_t uid)
{
	uint32_t id = user_take(core, uid);

	core->makers[namespace_id] = uid;
	core->user_of_space[namespace_id] = id;
	core->users[id].namespaces++;
}

void kvt_user_space_gone(struct kvt_core *core, uint32_t namespace_id)
{
	core->users[core->user_of_space[namespace_id]].namespaces--;
	core->user_of_space[namespace_id] = 0;
}

/** `used` of a limit that is 0 where there is none. */
static bool at_limit(uint64_t used, uint32_t limit)
{
	return limit && used >= limit;
}

int kvt_user_check_session(const struct kvt_core *core, uint32_t uid)
{
	uint32_t sessions = core->users[kvt_user_find(core, uid)].sessions;

	return at_limit(sessions, core->config.uid_sessions) ? -EDQUOT : 0;
}

int kvt_user_check_space(const struct kvt_core *core, uint32_t session)
{
	return at_limit(kvt_user_of(core, session)->namespaces, core->config.uid_namespaces) ?
		       -EDQUOT : 0;
}

void kvt_users_rebuild(struct kvt_core *core)
{
	for (uint32_t i = 1; i <= core->config.max_sessions; i++) {
		const struct kvt_session_record *session = &core->sessions[i];

		if (session->state == KVT_SESSION_FREE)
			continue;
		kvt_user_session(core, i);
		if (session->state == KVT_SESSION_DYING || session->state == KVT_SESSION_DEAD)
			kvt_user_session_over(core, i);
		kvt_user_of(core, i)->leases += session->n_leases;
		kvt_user_of(core, i)->pages += session->n_private + session->n_quarantined;
	}
	for (uint32_t i = 1; i < core->config.max_namespaces; i++)
		if (core->namespaces[i].flags)
			kvt_user_space(core, i, core->makers[i]);
}

bool kvt_user_ok(const struct kvt_core *core, uint32_t id)
{
	const struct kvt_user *user = &core->users[id];
	struct kvt_user sum = { .uid = user->uid };

	for (uint32_t i = 1; i <= core->config.max_sessions; i++) {
		const struct kvt_session_record *session = &core->sessions[i];

		if (core->user_of[i] != id)
			continue;
		if (session->state == KVT_SESSION_FREE || session->uid != user->uid)
			return false;
		sum.sessions++;
		sum.live += session->state == KVT_SESSION_OPEN ||
			    session->state == KVT_SESSION_CLOSING;
		sum.leases += session->n_leases;
		sum.pages += session->n_private + session->n_quarantined;
	}
	for (uint32_t i = 1; i < core->config.max_namespaces; i++)
		sum.namespaces += core->user_of_space[i] == id && core->namespaces[i].flags &&
				  core->makers[i] == user->uid;
	return sum.sessions == user->sessions && sum.live == user->live &&
	       sum.leases == user->leases && sum.namespaces == user->namespaces &&
	       sum.pages == user->pages;
}
