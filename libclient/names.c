/* SPDX-License-Identifier: Apache-2.0 */
/* Names and sentences for numbers: attach states, reasons, errnos, operations. Inputs: any number;
 * an unknown one gives "unknown", never NULL. Callers: applications, tools, the library's
 * messages. */

#include "libclient/state.h"
#include "libclient/steps.h"

#include <errno.h>
#include <string.h>

#ifndef KVT_VERSION
#define KVT_VERSION "unknown"
#endif

const char *kvt_version(void)
{
	return KVT_VERSION;
}

const char *kvt_attach_state_name(enum kvt_attach_state state)
{
	switch (state) {
	case KVT_ATTACH_OK:
		return "ok";
	case KVT_ATTACH_NO_SOCKET:
		return "no_socket";
	case KVT_ATTACH_STARTING:
		return "starting";
	case KVT_ATTACH_NO_PERMISSION:
		return "no_permission";
	case KVT_ATTACH_WRONG_VERSION:
		return "wrong_version";
	case KVT_ATTACH_WRONG_LAYOUT:
		return "wrong_layout";
	case KVT_ATTACH_WRONG_GEOMETRY:
		return "wrong_geometry";
	case KVT_ATTACH_CORRUPT:
		return "corrupt";
	case KVT_ATTACH_GONE:
		return "gone";
	case KVT_ATTACH_REFUSED:
		return "refused";
	case KVT_ATTACH_FAILED:
		return "failed";
	}
	return "unknown";
}

static const struct {
	const char *name;
	const char *text;
} reasons[] = {
	[KVT_REASON_NONE] = { "none", "no reason given" },
	[KVT_REASON_ALL_LOCKED] = { "all_locked",
		"not enough pages: all others are private or locked; END or FREE some, or enlarge "
		"the pool" },
	[KVT_REASON_TOO_LARGE] = { "too_large",
		"larger than the whole pool: enlarge the pool or shorten the request" },
	[KVT_REASON_NODES] = { "nodes", "out of tree nodes and all are locked: raise max_nodes" },
	[KVT_REASON_LEASES] = { "leases", "out of lease records: raise total_leases" },
	[KVT_REASON_LIMIT_LEASES] = { "max_leases", "this session is at its max_leases: END some" },
	[KVT_REASON_LIMIT_PAGES] = { "max_private_pages",
		"this session is at its max_private_pages: END or FREE some" },
	[KVT_REASON_SHARE] = { "share",
		"with this the session would have more than its share beside other sessions: wait "
		"until they END or FREE pages, ask for less, or give some back" },
	[KVT_REASON_LIST_SHORT] = { "list_short", "the list is too short for the answer" },
	[KVT_REASON_BAD_OP] = { "bad_op", "unknown operation" },
	[KVT_REASON_BAD_FLAGS] = { "bad_flags",
		"flags that this operation does not take, or not together" },
	[KVT_REASON_BAD_FIELD] = { "bad_field", "a field this operation does not use is not 0" },
	[KVT_REASON_BAD_RANGE] = { "bad_range", "keys or list lie outside the session's areas" },
	[KVT_REASON_BAD_KEYS] = { "bad_keys", "the numbers of keys and pages do not match" },
	[KVT_REASON_KEYS_CHANGED] = { "keys_changed", "the keys changed while they were read" },
	[KVT_REASON_NAMESPACE] = { "namespace", "namespace not opened by this session" },
	[KVT_REASON_HANDLE_STALE] = { "handle_stale",
		"the prefix this handle named is gone: MATCH again" },
	[KVT_REASON_HANDLE_BAD] = { "handle_bad", "no such handle" },
	[KVT_REASON_NOT_CONTINUATION] = { "not_continuation",
		"the start handle is of another namespace, or keys cannot continue there" },
	[KVT_REASON_LEASE_STALE] = { "lease_stale",
		"this lease has ended, or its END waits: BEGIN, or MATCH with LOCK, again" },
	[KVT_REASON_LEASE_FOREIGN] = { "lease_foreign", "this lease belongs to another session" },
	[KVT_REASON_LEASE_KIND] = { "lease_kind",
		"MATCH and LOCK leases take UNLOCK, BEGIN leases take COMMIT, EXTEND, END" },
	[KVT_REASON_PAGE_RANGE] = { "page_range", "no such page" },
	[KVT_REASON_PAGE_FOREIGN] = { "page_foreign", "a page of another session" },
	[KVT_REASON_PAGE_FREE] = { "page_free", "a page that is free" },
	[KVT_REASON_PAGE_CACHED] = { "page_cached", "a page that is already cached" },
	[KVT_REASON_PAGE_LEASED] = { "page_leased", "a page that belongs to a lease" },
	[KVT_REASON_PAGE_NOT_CACHED] = { "page_not_cached", "a page that is not cached" },
	[KVT_REASON_PAGE_TWICE] = { "page_twice", "the same page twice in one list" },
	[KVT_REASON_BEYOND_TABLE] = { "beyond_table", "positions beyond the page table: EXTEND" },
	[KVT_REASON_BEYOND_KEYS] = { "beyond_keys",
		"positions whose keys the daemon does not know" },
	[KVT_REASON_DAMAGED] = { "damaged",
		"a page of the prefix was written after it was sealed: what was computed behind "
		"it is wrong: END, and BEGIN again" },
	[KVT_REASON_DETACHED] = { "detached",
		"the prefix was removed or expired meanwhile: finish with the pages that the "
		"sequence has, or END and BEGIN again to share" },
	[KVT_REASON_EPOCH] = { "epoch",
		"RESET happened after this lease began: finish with the pages that the "
		"sequence has, or END and BEGIN again to share" },
	[KVT_REASON_FENCE] = { "fence", "fence slot out of range" },
	[KVT_REASON_PRIVILEGE] = { "privilege", "needs uid 0, the daemon's uid or admin_group" },
	[KVT_REASON_TTL] = { "ttl", "a TTL needs the TTL flag, and the flag a TTL above 0" },
	[KVT_REASON_CLOSING] = { "closing", "the session is closing" },
	[KVT_REASON_DRAINING] = { "draining", "the daemon is shutting down" },
	[KVT_REASON_DISABLED] = { "disabled", "caching is disabled on this instance" },
	[KVT_REASON_ANNOUNCED] = { "announced",
		"others compute a part of it: a notice follows when it is sealed, then BEGIN "
		"again" },
	[KVT_REASON_DEADLINE] = { "deadline",
		"NO_WAIT needs a deadline (ttl_ms), and a deadline WAIT or NO_WAIT" },
	[KVT_REASON_NAMESPACE_HELD] = { "namespace_held",
		"this session has leases in the namespace, or operations that wait: END and UNLOCK "
		"them, then close it again" },
	[KVT_REASON_FATAL] = { "fatal",
		"two daemons died while they ran it, so it was not run again: find the cause in "
		"the daemon's log (died_in) before you ask again" },
	[KVT_REASON_MEMORY] = { "memory",
		"too little memory is free for it: free some, or raise the daemon's memory limit" },
	[KVT_REASON_SIDE_PLACE] = { "side_place",
		"a side page hangs on a page that this COMMIT leaves cached: name a page of the "
		"sequence in front of `computed`, and a kind that the daemon's option sides has" },
	[KVT_REASON_SLOTS] = { "slots",
		"more pages without a page behind them were announced than there are places: begin "
		"with the keys of as many pages as are available, and COMMIT the others, or wait "
		"until others COMMIT or END" },
	[KVT_REASON_LIMIT_NAMESPACES] = { "max_namespaces",
		"all namespaces are open or locked, or this session has its most open: close some, "
		"or raise max_namespaces" },
};
_Static_assert(sizeof(reasons) / sizeof(reasons[0]) == KVT_REASON_COUNT, "a row for each reason");

static bool is_reason(int reason)
{
	return reason >= 0 && reason < KVT_REASON_COUNT && reasons[reason].name;
}

const char *kvt_reason_name(int reason)
{
	return is_reason(reason) ? reasons[reason].name : "unknown";
}

const char *kvt_reason_text(int reason)
{
	return is_reason(reason) ? reasons[reason].text : "unknown reason";
}

const char *kvt_errno_name(int error)
{
	const char *name = strerrorname_np(error < 0 ? -error : error);

	return name ? name : "unknown";
}

const char *kvt_op_name(int op)
{
#define OP_NAME(NAME, name, takes, flags, list, answer) [KVT_OP_##NAME] = #name,
	static const char *const names[KVT_OP_COUNT] = { KVT_OPS(OP_NAME, , ) };

	return op >= 0 && op < KVT_OP_COUNT ? names[op] : "unknown";
}

#define STEP_NAME(e, n) n,
static const char *const step_names[] = { KVT_CLIENT_STEPS(STEP_NAME) };

/* The steps after an operation are numbered by the operation. */
_Static_assert(KVT_STEP_AFTER_CLOSE - KVT_STEP_AFTER_NOP == KVT_OP_CLOSE, "one step for each op");

const char *kvt_client_step_name(unsigned int step)
{
	return step < KVT_STEP_COUNT ? step_names[step] : NULL;
}

int kvt_client_step_parse(const char *name)
{
	for (unsigned int i = 0; i < KVT_STEP_COUNT; i++)
		if (strcmp(name, step_names[i]) == 0)
			return (int)i;
	return -EINVAL;
}

#ifdef KVT_TEST_STEPS
static kvt_client_step_fn *step_hook;
static void *step_context;

bool kvt_client_step_hook(kvt_client_step_fn *hook, void *context)
{
	step_hook = hook;
	step_context = context;
	return true;
}

void kvt_client_step(struct kvt_client *client, unsigned int step)
{
	if (step_hook)
		step_hook(client, step, step_context);
}
#else
bool kvt_client_step_hook(kvt_client_step_fn *hook, void *context)
{
	(void)hook;
	(void)context;
	return false;
}
#endif
