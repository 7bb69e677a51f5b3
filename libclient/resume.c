/* SPDX-License-Identifier: Apache-2.0 */
/* Reconnect to the successor of a daemon.
 *
 * A daemon's end hangs the control socket up. With a keeper (kvt_info.kept) the client then sends
 * HELLO again, with the secret of its session, until a successor answers. Invariant: rings, fence
 * words, doorbell and completion descriptor stay the same. Callers: wait.c and ops.c, after a
 * hang-up. */

#include "libclient/client.h"
#include "libclient/fail.h"
#include "libclient/interrupt.h"
#include "libclient/resume.h"
#include "libclient/steps.h"
#include "libclient/welcome.h"
#include "shm/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Enough for a daemon that is busy recovering, and not too long for a caller that only polls. */
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
	client->broken_ns = kvt_now_ns();
	client->tried_ns = 0;
}

/* Replace an observer's arena: the successor is another instance. */
static int change_arena(struct kvt_client *client, struct welcome *welcome,
			struct kvt_error *error)
{
	struct kvt_client_parts parts = { .control = -1 };
	int rc = kvt_welcome_map_arena(welcome, &parts, error);

	if (rc != 0)
		return rc;
	if (client->arena.bytes)
		kvt_arena_detach(&client->arena);
	client->arena = parts.arena;
	return 0;
}

/* Check that the daemon continues our session. -ESTALE: it started cold. */
static int check_resumed(struct kvt_client *client, struct welcome *welcome,
			 struct kvt_error *error)
{
	const struct kvt_message_welcome *message = &welcome->message;
	bool same = memcmp(message->instance, client->info.instance,
			   sizeof(message->instance)) == 0;

	if (kvt_client_has_fences(client) && (!same || message->session != client->info.session ||
					      !(message->flags & KVT_WELCOME_RESUMED))) {
		kvt_error_set(error, -ESTALE, 0, "the daemon started with an empty cache: this "
			      "session is lost: close the handle and connect again");
		return -ESTALE;
	}
	return same ? 0 : change_arena(client, welcome, error);
}

/* Send one HELLO to the client's socket. 0: connected. -EAGAIN: no answer yet. Else the session is
 * lost, and `error` says why. */
static int resume(struct kvt_client *client, int64_t deadline_ns, struct kvt_error *error)
{
	KVT_KEEP_ERRNO;
	struct welcome welcome = { .n_fds = 0 };
	int control = client->greeting, rc = 0;

	/* At most one HELLO is outstanding: a second one would look like a closed session to a
	 * successor that reads both late. */
	client->greeting = -1;
	if (control < 0)
		rc = kvt_hello_send(client->path, &client->hello, deadline_ns, &control, error);
	if (rc == 0) {
		rc = kvt_welcome_receive(control, deadline_ns, &welcome, error);
		if (rc == -ETIMEDOUT || rc == -EINTR)
			client->greeting = control;
		else if (rc != 0)
			close(control);
		else
			kvt_client_step(NULL, KVT_STEP_WELCOMED);
	}
	if (rc == -ENOENT || rc == -ECONNREFUSED || rc == -ECONNRESET || rc == -ETIMEDOUT ||
	    rc == -EINTR || rc == -ESHUTDOWN)
		return -EAGAIN;
	if (rc != 0)
		return rc;
	rc = check_resumed(client, &welcome, error);
	if (rc == 0) {
		bool visible = client->info.arena_visible;

		/* Keep the number that kvt_client_control_fd() returned. */
		if (dup3(control, client->control, O_CLOEXEC) < 0)
			rc = -errno;
		kvt_welcome_info(&client->info, &welcome.message, visible);
	}
	close(control);
	kvt_welcome_close(&welcome);
	return rc;
}

/* True if neither the daemon nor its keeper has the other end of our completion descriptor: there
 * can be no successor that continues the session. */
static bool is_abandoned(const struct kvt_client *client)
{
	struct pollfd bell = { .fd = client->completion };

	return poll(&bell, 1, 0) == 1 && bell.revents & POLLHUP;
}

static void look_once(struct kvt_client *client, int64_t now_ns, int64_t deadline_ns)
{
	struct kvt_error error = { .code = 0 };
	int rc;

	KVT_ASSERT(client->broken_ns && !client->dead);
	client->tried_ns = now_ns;
	rc = resume(client, deadline_ns, &error);
	if (rc == 0)
		client->broken_ns = 0;
	else if (rc != -EAGAIN)
		kvt_client_lost(client, rc == -EINVAL ? -ESTALE : rc, error.text);
	else if (is_abandoned(client))
		kvt_client_lost(client, -ECONNRESET, "the daemon and its keeper are gone: connect "
				"again when they are back");
	else if (now_ns - client->broken_ns >= client->resume_ns)
		kvt_client_lost(client, -ECONNRESET, "the daemon is gone, and no successor came");
}

void kvt_client_look_for_successor(struct kvt_client *client)
{
	int64_t now_ns;

	if (!client->broken_ns || client->dead)
		return;
	now_ns = kvt_now_ns();
	if (now_ns - client->tried_ns >= KVT_SUCCESSOR_POLL_NS)
		look_once(client, now_ns, now_ns + ANSWER_NS);
}

int kvt_client_await_successor(struct kvt_client *client, int64_t deadline_ns)
{
	const struct timespec pause = { .tv_nsec = KVT_SUCCESSOR_POLL_NS };

	while (client->broken_ns && !client->dead) {
		int64_t now_ns = kvt_now_ns();

		if (now_ns >= deadline_ns)
			return -ETIMEDOUT;
		look_once(client, now_ns, deadline_ns - now_ns > ANSWER_NS ? now_ns + ANSWER_NS :
									    deadline_ns);
		if (client->broken_ns && !client->dead)
			nanosleep(&pause, NULL);
		if (kvt_client_interrupted())
			return -EINTR;
	}
	return client->dead;
}
