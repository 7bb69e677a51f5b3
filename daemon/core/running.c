/* SPDX-License-Identifier: Apache-2.0 */

/* Work that the daemon died in, and requests that are refused for it.
 *
 * Inputs: the ledger's `running` word, as a dead daemon left it; digests of requests on control
 * sockets. Invariant: after KVT_FATAL_DEATHS deaths in it, nothing runs that can be refused.
 * Callers: recovery (adopt.c), and the daemon around each request. Entries and deferred operations
 * note themselves in run.c. */

#include <stdio.h>

#include "daemon/core/core.h"
#include "daemon/core/running.h"
#include "daemon/core/state.h"
#include "kvtrunk_wire_admin.h"

#define KIND(running) ((uint32_t)((running) >> 60))
#define DEATHS(running) ((uint32_t)((running) >> 56) & 15)
#define WHAT(running) ((uint32_t)((running) >> 48) & 0xff)
#define SESSION(running) ((uint32_t)((running) >> 32) & 0xffff)
#define NUMBER(running) ((uint32_t)(running))
#define NO_DEATHS (~(15ull << 56))

/* ---- requests */

/** The place in `fatal` of a request, or the one to use for it: of the fewest deaths. */
static uint64_t *fatal_place(struct kvt_core *core, uint64_t running)
{
	uint64_t *fatal = core->ledger->fatal;

	for (int i = 0; i < 2; i++)
		if ((fatal[i] & NO_DEATHS) == (running & NO_DEATHS))
			return &fatal[i];
	return DEATHS(fatal[0]) <= DEATHS(fatal[1]) ? &fatal[0] : &fatal[1];
}

static uint32_t request_deaths(struct kvt_core *core, uint64_t running)
{
	uint64_t fatal = *fatal_place(core, running);

	return (fatal & NO_DEATHS) == (running & NO_DEATHS) ? DEATHS(fatal) : 0;
}

bool kvt_core_request_begin(struct kvt_core *core, uint32_t what, uint64_t digest)
{
	uint64_t running = kvt_running_word(KVT_RUNNING_REQUEST, 0, what,
					    (uint32_t)(digest >> 32), (uint32_t)digest);
	uint32_t deaths = request_deaths(core, running);

	if (deaths >= KVT_FATAL_DEATHS)
		return false;
	kvt_running_begin(core, running + ((uint64_t)deaths << 56));
	return true;
}

void kvt_core_request_end(struct kvt_core *core)
{
	uint64_t running = core->ledger->running;

	if (request_deaths(core, running))
		kvt_store_relaxed(fatal_place(core, running), 0);
	kvt_running_end(core, 0);
}

void kvt_core_leave(struct kvt_core *core)
{
	kvt_running_begin(core, (uint64_t)KVT_RUNNING_LEFT << 60);
}

/* ---- recovery */

/** Returns false if the entry took effect, so it is not run again. */
static bool charge_entry(struct kvt_core *core, uint64_t running)
{
	uint32_t id = SESSION(running);
	struct kvt_session_record *session = &core->sessions[id];

	if (id > core->config.max_sessions || session->sq_taken != NUMBER(running))
		return false;
	session->fatal_entry = NUMBER(running);
	session->deaths = DEATHS(running);
	return true;
}

/** Likewise. */
static bool charge_deferred(struct kvt_core *core, uint64_t running)
{
	uint32_t id = NUMBER(running);

	if (id > core->config.n_pending || core->pending[id].session != SESSION(running))
		return false;
	core->pending[id].deaths = DEATHS(running);
	return true;
}

uint64_t kvt_running_charge(struct kvt_core *core)
{
	uint64_t running = core->ledger->running;
	bool charged = true;

	switch ((enum kvt_running)KIND(running)) {
	case KVT_RUNNING_ENTRY:
		charged = charge_entry(core, running);
		break;
	case KVT_RUNNING_DEFERRED:
		charged = charge_deferred(core, running);
		break;
	case KVT_RUNNING_REQUEST:
		kvt_store_relaxed(fatal_place(core, running), running);
		break;
	case KVT_RUNNING_LEFT:
		KVT_SET(core->ledger->fatal[0], 0);
		KVT_SET(core->ledger->fatal[1], 0);
		break;
	case KVT_RUNNING_WORK:
		break;
	}
	kvt_running_end(core, 0);
	return charged ? running : 0;
}

/* ---- for the log */

#define OP_NAME(NAME, name, takes, flags, list, answer) [KVT_OP_##NAME] = #NAME,
static const char *const op_names[] = { KVT_OPS(OP_NAME, , ) };
static const char *const admin_names[] = {
	[KVT_ADMIN_STATUS] = "STATUS", [KVT_ADMIN_CLIENTS] = "CLIENTS",
	[KVT_ADMIN_NAMESPACES] = "NAMESPACES", [KVT_ADMIN_PAGE] = "PAGE",
	[KVT_ADMIN_AUDIT] = "AUDIT", [KVT_ADMIN_EVICT] = "EVICT",
	[KVT_ADMIN_REMOVE] = "REMOVE", [KVT_ADMIN_RESET] = "RESET", [KVT_ADMIN_FENCE] = "FENCE",
	[KVT_ADMIN_TICK] = "TICK", [KVT_ADMIN_SETTLED] = "SETTLED", [KVT_ADMIN_ENDED] = "ENDED",
	[KVT_ADMIN_UPGRADE] = "UPGRADE", [KVT_ADMIN_CONFIG] = "CONFIG",
};
static const char *const message_names[] = {
	[KVT_MSG_HELLO] = "HELLO", [KVT_MSG_NAMESPACE] = "NAMESPACE", [KVT_MSG_GROUP] = "GROUP",
	[KVT_MSG_RENEW] = "RENEW", [KVT_MSG_FEED] = "FEED",
};
static const char *const work_names[] = {
	[KVT_WORK_EXPIRE] = "the expiry of a node",
	[KVT_WORK_SESSION] = "taking down a session",
	[KVT_WORK_STALE] = "detaching what RESET left",
	[KVT_WORK_RECLAIM] = "reclaiming detached nodes",
	[KVT_WORK_COMPACT] = "compaction",
};

/** The name at a place of a table that may have gaps. */
static const char *name_at(const char *const *names, size_t n, uint32_t at)
{
	return at < n && names[at] ? names[at] : "an unknown one";
}
#define NAME(names, at) name_at(names, sizeof(names) / sizeof(*(names)), at)

uint32_t kvt_core_died_in(uint64_t died_in, char *text, size_t size)
{
	uint32_t what = WHAT(died_in);

	switch ((enum kvt_running)KIND(died_in)) {
	case KVT_RUNNING_ENTRY:
		snprintf(text, size, "%s of session %u", NAME(op_names, what), SESSION(died_in));
		break;
	case KVT_RUNNING_DEFERRED:
		snprintf(text, size, "%s of session %u, deferred", NAME(op_names, what),
			 SESSION(died_in));
		break;
	case KVT_RUNNING_REQUEST:
		if (what & KVT_RUNNING_ADMIN)
			snprintf(text, size, "an administrator's %s",
				 NAME(admin_names, what & ~KVT_RUNNING_ADMIN));
		else
			snprintf(text, size, "%s on a control socket", NAME(message_names, what));
		break;
	case KVT_RUNNING_WORK:
		snprintf(text, size, "background work: %s", NAME(work_names, what));
		break;
	default:
		snprintf(text, size, "nothing");
		return 0;
	}
	return DEATHS(died_in);
}
