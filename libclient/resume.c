/* SPDX-License-Identifier: Apache-2.0 */
#include "libclient/client.h"

#include <errno.h>
#include <string.h>
#include <time.h>

/* A daemon that died, and its successor.
 *
 * Where the daemon's state is kept (kvt_info.kept) its end is nothing that a caller sees: usually
 * even the control socket lives on in the service manager's hands. What is here is for connections
 * that did not: observers, and sessions of a daemon with park_connections = no. They say HELLO
 * again, with the secret of their session, until a successor answers. Rings, fence words, doorbell
 * and completion descriptor stay as they are. */

/* Long enough for a daemon that is busy adopting, short enough for who only wants to look. */
#define ANSWER_NS 1000000000ll

void kvt_client_hung_up(struct kvt_client *client)
{
	if (client->dead || client->broken_ns)
		return;
	if (kvt_client_has_fences(client) && kvt_load_acquire(&client->ring.header->gone)) {
		kvt_client_lost(client, -ECONNRESET, "the daemon ended the session");
		return;
	}
	if (!client->path || !client->info.kept || client->hello.flags & KVT_HELLO_NO_RESUME) {
		kvt_client_lost(client, -ECONNRESET,
				"the daemon is gone: connect again when it is back");
		return;
	}
	client->broken_ns = kvt_client_now_ns();
	client->tried_ns = 0;
}

static void look_once(struct kvt_client *client, int64_t now_ns, int64_t deadline_ns)
{
	struct kvt_error error = { .code = 0 };
	int rc;

	client->tried_ns = now_ns;
	rc = kvt_client_resume(client, deadline_ns, &error);
	if (rc == 0)
		client->broken_ns = 0;
	else if (rc != -EAGAIN)
		kvt_client_lost(client, rc == -EINVAL ? -ESTALE : rc, error.text);
	else if (now_ns - client->broken_ns >= client->resume_ns)
		kvt_client_lost(client, -ECONNRESET, "the daemon is gone, and no successor came");
}

void kvt_client_look_for_successor(struct kvt_client *client)
{
	int64_t now_ns;

	if (!client->broken_ns || client->dead)
		return;
	now_ns = kvt_client_now_ns();
	if (now_ns - client->tried_ns >= KVT_SUCCESSOR_POLL_NS)
		look_once(client, now_ns, now_ns + ANSWER_NS);
}

int kvt_client_await_successor(struct kvt_client *client, int64_t deadline_ns)
{
	const struct timespec pause = { .tv_nsec = KVT_SUCCESSOR_POLL_NS };

	while (client->broken_ns && !client->dead) {
		int64_t now_ns = kvt_client_now_ns();

		if (now_ns >= deadline_ns)
			return -ETIMEDOUT;
		look_once(client, now_ns, deadline_ns - now_ns > ANSWER_NS ? now_ns + ANSWER_NS :
									    deadline_ns);
		if (client->broken_ns && !client->dead)
			nanosleep(&pause, NULL);
	}
	return client->dead;
}
