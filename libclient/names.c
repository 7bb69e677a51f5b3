/* SPDX-License-Identifier: Apache-2.0 */
#include "libclient/client.h"

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

#define REASON_NAME(e, n, t) n,
#define REASON_TEXT(e, n, t) t,
static const char *const reason_names[] = { KVT_REASONS(REASON_NAME) };
/* NOLINTNEXTLINE(bugprone-suspicious-missing-comma): long texts are several literals. */
static const char *const reason_texts[] = { KVT_REASONS(REASON_TEXT) };

const char *kvt_reason_name(int reason)
{
	return reason >= 0 && reason < KVT_REASON_COUNT ? reason_names[reason] : "unknown";
}

const char *kvt_reason_text(int reason)
{
	return reason >= 0 && reason < KVT_REASON_COUNT ? reason_texts[reason] :
							  "unknown reason";
}

const char *kvt_errno_name(int error)
{
	const char *name = strerrorname_np(error < 0 ? -error : error);

	return name ? name : "unknown";
}

const char *kvt_op_name(int op)
{
	static const char *const names[KVT_OP_COUNT] = {
		[KVT_OP_NOP] = "nop",       [KVT_OP_MATCH] = "match",
		[KVT_OP_LOCK] = "lock",     [KVT_OP_UNLOCK] = "unlock",
		[KVT_OP_ALLOC] = "alloc",   [KVT_OP_FREE] = "free",
		[KVT_OP_INSERT] = "insert", [KVT_OP_BEGIN] = "begin",
		[KVT_OP_COMMIT] = "commit", [KVT_OP_EXTEND] = "extend",
		[KVT_OP_END] = "end",       [KVT_OP_REMOVE] = "remove",
		[KVT_OP_PAGE] = "page",     [KVT_OP_EVICT] = "evict",
		[KVT_OP_RESET] = "reset",   [KVT_OP_STATS] = "stats",
		[KVT_OP_AUDIT] = "audit",   [KVT_OP_CLOSE] = "close",
	};

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
