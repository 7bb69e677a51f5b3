/* SPDX-License-Identifier: Apache-2.0 */

/* Waiting for an answer: spin, then sleep on the completion descriptor and the control socket,
 * which hangs up when the daemon ends. While the daemon is on the client's CPU, spinning would only
 * keep it from answering, so the client sleeps at once. Else it spins for a round trip, always: how
 * long a sleep took tells nothing, because on a busy host most of it is the wait for a CPU of the
 * client's own. kvt_client_wait() serves all blocking calls (call.c); it takes no answer itself. */

#include <poll.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include "kvtrunk_wire_arena.h"
#include "libclient/client.h"
#include "libclient/control.h"
#include "libclient/fail.h"
#include "libclient/interrupt.h"
#include "libclient/resume.h"
#include "libclient/steps.h"
#include "libclient/wait.h"

#define SPINS_BEFORE_CLOCK 200 /* about as long as a busy daemon takes for a small operation */
#define SPINS_PER_CLOCK 32
#define LOOK_EVERY_NS 1000000 /* how often endless spinning looks at the control socket */
#define LOOK_EVERY_REAPS 256  /* the same for callers that poll kvt_reap() */

/* ---------------------------------------------------------------- control socket */

void kvt_client_take_message(struct kvt_client *client, int bytes)
{
	const struct kvt_message_refused *message = (const void *)client->packet;
	size_t head = offsetof(struct kvt_message_refused, text);

	if (message->head.type != KVT_MSG_GOODBYE)
		return; /* a late answer */
	if ((size_t)bytes > head)
		snprintf(client->farewell, sizeof(client->farewell),
			 "the daemon ended the session: %.*s", (int)((size_t)bytes - head),
			 message->text);
	kvt_client_lost(client, -ECONNRESET, "the daemon ended the session");
}

/* Take what has come on the control socket. */
static void take_messages(struct kvt_client *client)
{
	unsigned int n_fds;
	int rc;

	while (!client->dead && !client->broken_ns && client->control >= 0) {
		rc = kvt_control_receive(client->control, client->packet, KVT_MESSAGE_MAX, NULL,
					 0, &n_fds, 0);
		if (rc == -EAGAIN)
			break;
		if (rc < 0)
			kvt_client_hung_up(client);
		else
			kvt_client_take_message(client, rc);
	}
}

void kvt_client_look(struct kvt_client *client)
{
	KVT_KEEP_ERRNO;

	client->empty_reaps = 0;
	kvt_client_look_for_successor(client);
	take_messages(client);
	if (!kvt_client_has_fences(client) || client->dead)
		return;
	/* The daemon writes it once, when it ends a session for cause, after GOODBYE. */
	if (kvt_load_acquire(&client->ring.header->gone)) {
		take_messages(client);
		if (!client->dead)
			kvt_client_lost(client, -ECONNRESET, "the daemon ended the session");
	} else if (client->arena.base &&
		   kvt_load_acquire(&client->arena.header->state) == KVT_ARENA_GONE) {
		kvt_client_lost(client, -ECONNRESET,
				"the daemon has shut down: connect again when it is back");
	}
}

void kvt_client_look_now_and_then(struct kvt_client *client)
{
	if (++client->empty_reaps >= LOOK_EVERY_REAPS)
		kvt_client_look(client);
}

/* ---------------------------------------------------------------- waiting */

static void start_wait(struct kvt_client *client, struct kvt_wait *wait, int64_t now_ns)
{
	wait->started = true;
	wait->deadline_ns = client->timeout_ns > 0 ? now_ns + client->timeout_ns : INT64_MAX;
	wait->spin_until_ns = client->spin_budget_ns < 0 ? INT64_MAX :
							   now_ns + client->spin_budget_ns;
	wait->look_at_ns = now_ns + LOOK_EVERY_NS;
}

void kvt_client_drain(struct kvt_client *client)
{
	KVT_KEEP_ERRNO;
	uint64_t count;

	while (read(client->completion, &count, sizeof(count)) < 0 && errno == EINTR)
		;
}

/* A successor does not wake us: poll for it. */
static int64_t sleep_until(const struct kvt_client *client, const struct kvt_wait *wait)
{
	int64_t soon_ns;

	if (!client->broken_ns)
		return kvt_interrupt_slice(wait->deadline_ns);
	soon_ns = kvt_now_ns() + KVT_SUCCESSOR_POLL_NS;
	return soon_ns < wait->deadline_ns ? soon_ns : wait->deadline_ns;
}

static void sleep_for_completion(struct kvt_client *client, const struct kvt_wait *wait)
{
	struct pollfd fds[2] = {
		{ .fd = client->completion, .events = POLLIN },
		{ .fd = client->broken_ns ? -1 : client->control, .events = POLLIN },
	};
	KVT_KEEP_ERRNO;
	int64_t left = sleep_until(client, wait), now_ns;
	struct timespec timeout;

	kvt_store_relaxed(&client->ring.header->cq_need_wakeup, 1);
	/* Pairs with the daemon's full fence in kvt_ring_cq_publish(): either we see its tail or
	 * it sees our flag. */
	kvt_fence_full();
	if (kvt_ring_cq_ready(&client->ring) == 0) {
		kvt_client_step(client, KVT_STEP_BEFORE_SLEEP);
		now_ns = kvt_now_ns();
		if (left != INT64_MAX)
			left = left > now_ns ? left - now_ns : 0;
		timeout.tv_sec = left / 1000000000;
		timeout.tv_nsec = left % 1000000000;
		ppoll(fds, 2, left == INT64_MAX ? NULL : &timeout, NULL);
		if (fds[0].revents)
			kvt_client_drain(client);
		if (fds[1].revents || client->broken_ns)
			kvt_client_look(client);
	}
	kvt_store_relaxed(&client->ring.header->cq_need_wakeup, 0);
	client->armed = false;
}

/* No answer at once: start the clock. */
static __attribute__((noinline)) int wait_slowly(struct kvt_client *client,
						 struct kvt_wait *wait)
{
	KVT_ASSERT(client->has_session);
	for (;;) {
		int64_t now_ns = kvt_now_ns();

		if (!wait->started)
			start_wait(client, wait, now_ns);
		if (now_ns >= wait->deadline_ns)
			return kvt_ring_cq_ready(&client->ring) ? 0 : -ETIMEDOUT;
		if (now_ns >= wait->look_at_ns) {
			wait->look_at_ns = now_ns + LOOK_EVERY_NS;
			kvt_client_look(client);
		}
		if (now_ns >= wait->spin_until_ns || kvt_ring_daemon_here(&client->ring)) {
			sleep_for_completion(client, wait);
			if (!kvt_ring_cq_ready(&client->ring) && kvt_client_interrupted())
				return -EINTR;
		}
		for (unsigned int i = 0; i < SPINS_PER_CLOCK; i++) {
			if (kvt_ring_cq_ready(&client->ring))
				return 0;
			kvt_cpu_relax();
		}
		/* Last: answers from before the end still count. */
		if (client->dead)
			return client->dead;
	}
}

int kvt_client_wait(struct kvt_client *client, struct kvt_wait *wait)
{
	unsigned int spins = kvt_ring_daemon_here(&client->ring) ? 1 : SPINS_BEFORE_CLOCK;

	for (unsigned int i = 0; i < spins; i++) {
		if (kvt_ring_cq_ready(&client->ring))
			return 0;
		kvt_cpu_relax();
	}
	return wait_slowly(client, wait);
}
