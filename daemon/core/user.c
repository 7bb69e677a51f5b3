/* SPDX-License-Identifier: Apache-2.0 */

/* Totals per uid, for quotas: no uid can hold everything.
 *
 * All of it is derived: sessions name their uids. A record lives while its uid has a session, a
 * dead one in quarantine included. Callers: session.c, quotas, recovery. */

#include <errno.h>
#include <string.h>

#include "daemon/core/state.h"
#include "daemon/core/user.h"

/** The record of a session's uid. */
static struct kvt_user *user_of(const struct kvt_core *core, uint32_t session)
{
	KVT_ASSERT(core->user_of[session] > 0);
	return &core->users[core->user_of[session]];
}

/** The number of a uid's record, 0 if it has none. */
static uint32_t user_find(const struct kvt_core *core, uint32_t uid)
{
	for (uint32_t i = 1; i <= core->n_users; i++)
		if (core->users[i].sessions && core->users[i].uid == uid)
			return i;
	return 0;
}

/** The uid's record, a new one if it has none. */
static uint32_t user_take(struct kvt_core *core, uint32_t uid)
{
	uint32_t id = user_find(core, uid);

	if (id)
		return id;
	for (id = 1; id <= core->n_users; id++)
		if (!core->users[id].sessions)
			break;
	if (id > core->n_users)
		core->n_users = id;
	core->users[id] = (struct kvt_user){ .uid = uid };
	return id;
}

void kvt_user_session(struct kvt_core *core, uint32_t session)
{
	uint32_t id = user_take(core, core->members[session].uid);

	KVT_ASSERT(core->user_of[session] == 0);
	core->user_of[session] = id;
	core->users[id].sessions++;
	if (core->users[id].live++ == 0)
		core->live_users++;
	core->open_sessions++;
}

void kvt_user_session_over(struct kvt_core *core, uint32_t session)
{
	KVT_ASSERT(user_of(core, session)->live > 0 && core->live_users > 0 &&
		   core->open_sessions > 0);
	if (--user_of(core, session)->live == 0)
		core->live_users--;
	core->open_sessions--;
}

void kvt_user_session_gone(struct kvt_core *core, uint32_t session)
{
	KVT_ASSERT(user_of(core, session)->sessions > user_of(core, session)->live);
	user_of(core, session)->sessions--;
	core->user_of[session] = 0;
}

static uint64_t user_pages(const struct kvt_core *core, uint32_t user)
{
	uint64_t sum = 0;

	for (uint32_t i = 1; i <= core->config.max_sessions; i++)
		if (core->user_of[i] == user)
			sum += core->sessions[i].n_private + core->sessions[i].n_quarantined;
	return sum;
}

/** Pages of a lease's path, but for places where it has a private page. */
static uint32_t locked_pages(const struct kvt_lease_record *lease)
{
	uint32_t table = lease->done + lease->n_private;

	return lease->path_pages > table ? lease->path_pages - lease->n_private : lease->done;
}

/** True if a uid's leases lock more pages than `most`. Shared pages count once per lease. */
static bool locks_more(const struct kvt_core *core, uint32_t user, int64_t most)
{
	for (uint32_t i = 1; i <= core->config.max_sessions && most >= 0; i++) {
		if (core->user_of[i] != user)
			continue;
		for (uint32_t id = core->sessions[i].first_lease; id != KVT_NONE && most >= 0;
		     id = core->leases[id].next_lease)
			most -= locked_pages(&core->leases[id]);
	}
	return most < 0;
}

/* The pool beyond uid_pages is a reserve, for uids that hold less than that much in private pages
 * and locked paths together. So no uid can shut others out, be its pages private or published and
 * locked. Private pages of the others are part of the reserve. */
bool kvt_user_may_hold_more(const struct kvt_core *core, uint32_t session, uint32_t n,
			    uint64_t path_pages)
{
	const struct kvt_counters *count = core->count;
	int64_t left = (int64_t)(count->free_pages + count->evictable_pages - path_pages) - n;
	uint32_t user = core->user_of[session];
	int64_t own, others, few;

	if (!core->uid_reserve || core->live_users < 2 || n + path_pages == 0)
		return true;
	own = (int64_t)user_pages(core, user);
	others = (int64_t)(count->private_pages + count->quarantined_pages) - own;
	if (left + others >= core->uid_reserve)
		return true;
	few = kvt_min(core->uid_reserve, core->config.uid_pages);
	return !locks_more(core, user, few - own - n - (int64_t)path_pages);
}

int kvt_user_check_session(const struct kvt_core *core, uint32_t uid)
{
	uint32_t limit = core->config.uid_sessions;

	return limit && core->users[user_find(core, uid)].sessions >= limit ? -EDQUOT : 0;
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
	}
}
