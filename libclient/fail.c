/* SPDX-License-Identifier: Apache-2.0 */

/* Errors of a client: failed calls, and the end of its session. */

#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

#include "kvtrunk_operations.h"
#include "libclient/client.h"
#include "libclient/fail.h"
#include "shm/size.h"

int kvt_client_fail(struct kvt_client *client, int code, int reason, const char *format, ...)
{
	va_list arguments;

	client->error.attach_state = client->dead ? KVT_ATTACH_GONE : KVT_ATTACH_OK;
	client->error.code = code;
	client->error.reason = reason;
	client->error.available = client->error.needed = 0;
	va_start(arguments, format);
	vsnprintf(client->error.text, sizeof(client->error.text), format, arguments);
	va_end(arguments);
	return code;
}

static int fail_result(struct kvt_client *client, const struct kvt_result *result)
{
	const char *op = kvt_op_name((int)result->op), *name = kvt_errno_name(result->error);
	const char *text = kvt_reason_text((int)result->reason);
	int reason = (int)result->reason;

	if (result->error == -ENOSPC && result->needed)
		return kvt_client_fail(client, result->error, reason,
				       "%s: %s: %s (%u page%s needed, %u available)", op, name,
				       text, result->needed, kvt_plural(result->needed),
				       result->available);
	if (result->error == -ENOBUFS || result->error == -EDQUOT)
		return kvt_client_fail(client, result->error, reason, "%s: %s: %s (%s %u)", op,
				       name, text, result->error == -EDQUOT ? "limit" : "needs",
				       result->needed);
	return kvt_client_fail(client, result->error, reason, "%s: %s: %s", op, name, text);
}

int kvt_client_fail_result(struct kvt_client *client, const struct kvt_result *result)
{
	fail_result(client, result);
	client->error.available = result->available;
	client->error.needed = result->needed;
	return result->error;
}

void kvt_client_lost(struct kvt_client *client, int code, const char *why)
{
	KVT_ASSERT(code < 0);
	if (client->dead)
		return;
	client->dead = code;
	if (client->greeting >= 0) /* do not resume with a successor */
		close(client->greeting);
	client->greeting = -1;
	if (!client->farewell[0])
		snprintf(client->farewell, sizeof(client->farewell), "%s", why);
}

int kvt_client_lost_error(struct kvt_client *client)
{
	return kvt_client_fail(client, client->dead, 0, "session lost: %s", client->farewell);
}

void kvt_client_check_fork(const struct kvt_client *client)
{
	if (getpid() != client->pid) /* the page is private: the parent's is unchanged */
		*(volatile uint32_t *)(uintptr_t)client->alive = 0;
}

int kvt_client_unusable(struct kvt_client *client)
{
	if (!client || client->magic != KVT_CLIENT_MAGIC)
		return -EINVAL; /* closed or invalid: no place for a text */
	if (kvt_client_forked(client))
		return kvt_client_fail(client, -ECHILD, 0,
				       "the client is the parent process's: connect in this one");
	return kvt_client_lost_error(client);
}

int kvt_client_awake(struct kvt_client *client)
{
	if (!client->suspended)
		return 0;
	return kvt_client_fail(client, -ENXIO, 0,
			       "the client is suspended, and has no pool to read or write: "
			       "kvt_client_resume() first");
}

const struct kvt_error *kvt_client_error(const struct kvt_client *client)
{
	return &client->error;
}
