/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "base/connect.h"
#include "kvtrunk_wire_admin.h"
#include "lab/script/engine.h"
#include "shm/clock.h"

#define TIMEOUT_NS 60000000000ll /* of one question, so that no script hangs */
#define CLIENTS_AT_ONCE (KVT_MESSAGE_MAX / sizeof(struct kvt_admin_client))
/* Turns from the daemon's backlog to a session: accept, HELLO, and one spare. Each question takes
 * at least one. */
#define CONNECT_TURNS 4

int kvt_script_observe_open(struct kvt_script *script, struct kvt_error *error)
{
	struct kvt_options options = KVT_OPTIONS_INIT;

	options.socket_path = script->socket_path;
	options.label = "kvtlab script";
	options.flags = KVT_HELLO_OBSERVE;
	options.connect_wait_ns = -1;
	options.timeout_ns = TIMEOUT_NS;
	return kvt_connect_aloud("kvtlab script", &options, &script->observer, error);
}

static void observe_close(struct kvt_script *script)
{
	if (script->observer)
		kvt_client_abandon(script->observer);
	script->observer = NULL;
}

static int ask_once(struct kvt_script *script, uint32_t what, uint64_t argument, uint64_t cursor,
		    void *ret_records, size_t bytes, struct kvt_message_admin *ret_answer)
{
	struct kvt_message_admin request = { .what = what, .argument = argument,
					     .cursor = cursor };
	int rc;

	if (!script->observer && kvt_script_observe_open(script, NULL))
		return -ECONNRESET;
	rc = kvt_admin(script->observer, &request, NULL, 0, ret_records, bytes);
	if (ret_answer)
		*ret_answer = request;
	if (rc == -ECONNRESET || rc == -ETIMEDOUT)
		observe_close(script);
	return rc;
}

/* Ask, reconnecting once: the daemon may have been restarted since the last line. */
static int ask(struct kvt_script *script, uint32_t what, uint64_t argument, uint64_t cursor,
	       void *ret_records, size_t bytes, struct kvt_message_admin *ret_answer)
{
	int rc = ask_once(script, what, argument, cursor, ret_records, bytes, ret_answer);

	if (rc == -ECONNRESET)
		rc = ask_once(script, what, argument, cursor, ret_records, bytes, ret_answer);
	return rc;
}

int kvt_script_admin(struct kvt_script *script, uint32_t what, uint64_t argument,
		     void *ret_records, size_t bytes, struct kvt_message_admin *ret_answer)
{
	return ask(script, what, argument, 0, ret_records, bytes, ret_answer);
}

int kvt_script_settled(struct kvt_script *script, struct kvt_admin_status *ret_status)
{
	int rc = ask(script, KVT_ADMIN_SETTLED, 0, 0, ret_status, sizeof(*ret_status), NULL);

	return rc < 0 ? rc : rc == 1 ? 0 : -EPROTO;
}

/* Find a session of a process, any if the number is 0. 1 and its signs, or 0. Numbers are recycled,
 * so the process must match, unless the daemon does not know it (another PID namespace). */
static int find_client(struct kvt_script *script, uint32_t session, int pid, uint32_t *ret_signs)
{
	struct kvt_admin_client clients[CLIENTS_AT_ONCE];
	struct kvt_message_admin answer = { .cursor = 0 };
	int n;

	do {
		n = ask(script, KVT_ADMIN_CLIENTS, 0, answer.cursor, clients, sizeof(clients),
			&answer);
		for (int i = 0; i < n; i++) {
			if (clients[i].rank || (session && clients[i].session != session))
				continue;
			if (clients[i].pid != pid && !(session && clients[i].pid == 0))
				continue;
			*ret_signs = clients[i].signs;
			return 1;
		}
	} while (n >= 0 && answer.cursor);
	return n < 0 ? n : 0;
}

int kvt_script_ended(struct kvt_script *script, uint32_t session, int pid, bool exited)
{
	int64_t give_up_ns = kvt_now_ns() + TIMEOUT_NS;
	uint32_t signs = 0;
	int rc = find_client(script, session, pid, &signs);

	if (rc > 0)
		rc = ask(script, KVT_ADMIN_ENDED, session, 0, NULL, 0, NULL) < 0 ? -ECONNRESET : 1;
	/* A dropped session ends long before its process. Poll until the daemon has seen the
	 * exit. */
	while (rc > 0 && exited) {
		rc = find_client(script, session, pid, &signs);
		if (signs & KVT_SIGN_EXITED)
			break;
		if (kvt_now_ns() > give_up_ns)
			return -ETIMEDOUT;
		sched_yield();
	}
	return rc < 0 ? rc : 0;
}

int kvt_script_forgotten(struct kvt_script *script, int pid)
{
	int64_t give_up_ns = kvt_now_ns() + TIMEOUT_NS;
	unsigned int unseen = 0;
	uint32_t signs;

	while (unseen < CONNECT_TURNS) {
		int rc = find_client(script, 0, pid, &signs);

		if (rc < 0)
			return rc;
		unseen = rc ? 0 : unseen + 1;
		if (kvt_now_ns() > give_up_ns)
			return -ETIMEDOUT;
	}
	return 0;
}
