/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file act.c
 * The actions of a chaos round on the daemon and on workers.
 *
 * Inputs: the seed's choices and the options. Invariant: when an action returns, the daemon serves
 * again, or the first error is recorded. Stopped workers stay so until chaos_continue_all().
 * Caller: main.c.
 */
#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "kvtrunk_client.h"
#include "kvtrunk_wire_admin.h"
#include "kvtrunk_wire_store.h"
#include "shm/atomic.h"
#include "lab/chaos/chaos.h"

/* Out of 100. */
static const struct {
	const char *name;
	uint32_t weight;
} actions[CHAOS_ACTIONS] = {
	[CHAOS_KILL_WORKER] = { "kill worker", 24 },
	[CHAOS_STOP_WORKER] = { "stop worker", 14 },
	[CHAOS_CONTINUE_WORKER] = { "continue worker", 14 },
	[CHAOS_KILL_DAEMON] = { "kill daemon", 16 },
	[CHAOS_ABORT_DAEMON] = { "abort daemon", 4 },
	[CHAOS_STOP_DAEMON] = { "stop daemon", 6 },
	[CHAOS_STOP_KILL] = { "stop, kill daemon", 4 },
	[CHAOS_UPGRADE] = { "restart daemon", 8 },
	[CHAOS_KILL_BOTH] = { "kill both", 6 },
	[CHAOS_KILL_STARTING] = { "kill twice", 4 },
	/* Drawn beside these, if there is a store. */
	[CHAOS_KILL_STORE] = { "kill store", 0 },
	[CHAOS_STOP_STORE] = { "stop store", 0 },
	[CHAOS_CONTINUE_STORE] = { "continue store", 0 },
};

const char *chaos_action_name(enum chaos_action action)
{
	return actions[action].name;
}

static void pause_ms(uint32_t ms)
{
	struct timespec wait = { .tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000l };

	nanosleep(&wait, NULL);
}

/* ---- the daemon behind its supervisor */

/* Find the daemon that follows `old`. It is returned as soon as it was forked; await_service()
 * waits for its first answer. */
static pid_t await_successor(struct chaos *chaos, pid_t old)
{
	for (;;) {
		pid_t pid = kvt_supervised_daemon(chaos->daemon.pid);

		if (pid && pid != old)
			return pid;
		if (kill(chaos->daemon.pid, 0)) {
			chaos_wrong(chaos, "the supervisor is gone");
			return 0;
		}
		sched_yield();
	}
}

static bool await_end(pid_t pid)
{
	int pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
	struct pollfd poll_fd = { .fd = pidfd, .events = POLLIN };

	if (pidfd < 0)
		return errno == ESRCH;
	while (poll(&poll_fd, 1, -1) < 0 && errno == EINTR)
		;
	close(pidfd);
	return true;
}

/* Wait until the daemon serves after `old` was disturbed at `from_ns`. */
static bool await_service(struct chaos *chaos, pid_t old, int64_t from_ns)
{
	if (old && !await_successor(chaos, old))
		return false;
	if (!pulse_await(chaos->pulse)) {
		chaos_wrong(chaos, "the client that only asks got no answer any more");
		return false;
	}
	chaos_times_add(&chaos->gaps, pulse_longest_ns(chaos->pulse, from_ns));
	chaos->restarts++;
	return true;
}

static bool end_daemon(struct chaos *chaos, int signal_number, bool stop_first)
{
	pid_t pid = kvt_supervised_daemon(chaos->daemon.pid);
	int64_t from_ns = kvt_now_ns();

	if (!pid)
		return true; /* a start is under way */
	if (stop_first) {
		kill(pid, SIGSTOP);
		pause_ms(1 + chaos_draw(chaos, 10));
	}
	kill(pid, signal_number);
	if (stop_first)
		kill(pid, SIGCONT);
	return await_end(pid) && await_service(chaos, pid, from_ns);
}

static bool stop_daemon(struct chaos *chaos)
{
	pid_t pid = kvt_supervised_daemon(chaos->daemon.pid);

	if (!pid)
		return true;
	kill(pid, SIGSTOP);
	pause_ms(1 + chaos_draw(chaos, 30));
	kill(pid, SIGCONT);
	return pulse_await(chaos->pulse);
}

static bool upgrade(struct chaos *chaos)
{
	pid_t pid = kvt_supervised_daemon(chaos->daemon.pid);
	int64_t from_ns = kvt_now_ns();

	if (!pid)
		return true;
	kill(chaos->daemon.pid, SIGUSR2);
	return await_end(pid) && await_service(chaos, pid, from_ns);
}

static bool kill_starting(struct chaos *chaos)
{
	pid_t first = kvt_supervised_daemon(chaos->daemon.pid), second;
	int64_t from_ns = kvt_now_ns();

	if (!first)
		return true;
	kill(first, SIGKILL);
	second = await_successor(chaos, first);
	if (!second)
		return false;
	/* Let the kill hit any point between exec and the first turn. */
	for (uint32_t i = chaos_draw(chaos, 2000); i > 0; i--)
		sched_yield();
	kill(second, SIGKILL);
	return await_service(chaos, second, from_ns);
}

/* ---- workers */

static uint32_t some_worker(struct chaos *chaos, bool stopped)
{
	uint32_t n = chaos->options.workers, at = chaos_draw(chaos, n);

	for (uint32_t i = 0; i < n; i++, at = (at + 1) % n) {
		if (chaos->crew.pids[at] && chaos->stopped[at] == stopped)
			return at;
	}
	return KVT_TRACE_NONE;
}

/* Find the generation of a worker's session. 1, or 0 if it has ended: its number may be that of
 * another worker by now. */
static int find_session(struct kvt_client *client, uint32_t session, pid_t pid,
			uint32_t *ret_generation)
{
	struct kvt_message_admin request = { .what = KVT_ADMIN_CLIENTS };
	struct kvt_admin_client clients[32];
	int n;

	do {
		n = kvt_admin(client, &request, NULL, 0, clients, sizeof(clients));
		for (int i = 0; i < n; i++)
			if (!clients[i].rank && clients[i].session == session &&
			    clients[i].pid == pid) {
				*ret_generation = clients[i].generation;
				return 1;
			}
	} while (n >= 0 && request.cursor);
	return n < 0 ? n : 0;
}

/* Wait until the daemon, which must be serving, holds nothing of a worker's session any more. */
static bool await_reclaim(struct chaos *chaos, uint32_t session, pid_t pid, int64_t from_ns)
{
	struct kvt_message_admin request = { .what = KVT_ADMIN_ENDED };
	struct kvt_options options = KVT_OPTIONS_INIT;
	struct kvt_client *client;
	struct kvt_error error;
	uint32_t generation;
	int rc;

	options.socket_path = chaos->daemon.socket_path;
	options.flags = KVT_HELLO_OBSERVE;
	rc = kvt_client_connect(&client, &options, &error);
	if (rc) {
		chaos_wrong(chaos, "an observer cannot connect: %s", error.text);
		return false;
	}
	rc = find_session(client, session, pid, &generation);
	if (rc > 0) {
		request.argument = session | (uint64_t)generation << 32;
		rc = kvt_admin(client, &request, NULL, 0, NULL, 0);
	}
	if (rc < 0)
		chaos_wrong(chaos, "waiting for the end of session %u: %s", session,
			    kvt_client_error(client)->text);
	else
		chaos_times_add(&chaos->reclaim, kvt_now_ns() - from_ns);
	kvt_client_close(client, KVT_IDLE);
	return rc >= 0;
}

static bool restart_worker(struct chaos *chaos, uint32_t worker)
{
	char why[256];

	chaos->stopped[worker] = false;
	kvt_replay_crew_bury(&chaos->crew, worker);
	fflush(stdout);
	if (kvt_replay_crew_start(&chaos->crew, worker, why, sizeof(why))) {
		chaos_wrong(chaos, "%s", why);
		return false;
	}
	return true;
}

static uint32_t victim(struct chaos *chaos)
{
	uint32_t worker = chaos_draw(chaos, 4) ? kvt_replay_crew_busy(&chaos->crew)
					       : KVT_TRACE_NONE;

	return worker == KVT_TRACE_NONE ? some_worker(chaos, false) : worker;
}

static bool kill_worker(struct chaos *chaos)
{
	uint32_t worker = victim(chaos), session;
	int64_t from_ns;
	pid_t pid;

	if (worker == KVT_TRACE_NONE)
		return true;
	session = kvt_load_acquire(&chaos->crew.shared->workers[worker].session);
	pid = chaos->crew.pids[worker];
	kill(pid, SIGKILL);
	await_end(pid);
	from_ns = kvt_now_ns();
	if (session && !await_reclaim(chaos, session, pid, from_ns))
		return false;
	kvt_store_release(&chaos->crew.shared->workers[worker].session, 0);
	return restart_worker(chaos, worker);
}

static bool kill_both(struct chaos *chaos)
{
	pid_t pid = kvt_supervised_daemon(chaos->daemon.pid);
	uint32_t workers[2] = { victim(chaos), some_worker(chaos, false) };
	int64_t from_ns = kvt_now_ns();

	if (!pid)
		return true;
	kill(pid, SIGKILL);
	for (unsigned int i = 0; i < 2; i++) {
		if (workers[i] == KVT_TRACE_NONE || (i && workers[i] == workers[0]))
			continue;
		kill(chaos->crew.pids[workers[i]], SIGKILL);
		if (!restart_worker(chaos, workers[i]))
			return false;
	}
	return await_end(pid) && await_service(chaos, pid, from_ns);
}

static void stop_worker(struct chaos *chaos)
{
	uint32_t worker = some_worker(chaos, false), running = 0;

	for (uint32_t i = 0; i < chaos->options.workers; i++)
		running += chaos->crew.pids[i] && !chaos->stopped[i];
	if (worker == KVT_TRACE_NONE || running < 2)
		return;
	kill(chaos->crew.pids[worker], SIGSTOP);
	chaos->stopped[worker] = true;
}

static void continue_worker(struct chaos *chaos)
{
	uint32_t worker = some_worker(chaos, true);

	if (worker == KVT_TRACE_NONE)
		return;
	kill(chaos->crew.pids[worker], SIGCONT);
	chaos->stopped[worker] = false;
}

void chaos_continue_all(struct chaos *chaos)
{
	for (uint32_t i = 0; i < chaos->options.workers; i++) {
		if (chaos->crew.pids[i] && chaos->stopped[i])
			kill(chaos->crew.pids[i], SIGCONT);
		chaos->stopped[i] = false;
	}
}

/* ---- the store */

bool chaos_start_store(struct chaos *chaos)
{
	char program[4096], ram[48], least[48], why[512] = "";
	const char *const flags[] = { ram, least, "--load-percent=50", NULL };

	chaos->options.asks_store = chaos->options.store_pages > 0;
	if (!chaos->options.store_pages)
		return true;
	snprintf(ram, sizeof(ram), "--ram-bytes=%llu",
		 (unsigned long long)chaos->options.store_pages * chaos->options.page_bytes);
	snprintf(least, sizeof(least), "--min-positions=%u", chaos->options.page_size);
	kvt_own_store_program(chaos->options.daemon, program, sizeof(program));
	if (kvt_own_store_start(&chaos->store, program, &chaos->socket_path, 1, flags, -1, why,
				sizeof(why)) == 0)
		return true;
	chaos_wrong(chaos, "the store: %s", why);
	return false;
}

void chaos_end_store(struct chaos *chaos)
{
	struct kvt_store_status status;

	if (chaos->store.pid <= 0)
		return;
	kill(chaos->store.pid, SIGCONT);
	chaos->store_stopped = false;
	if (kvt_own_store_status(&chaos->store, &status) != 0) {
		chaos_wrong(chaos, "the store ended by itself");
	} else {
		chaos->stored.fetches += status.fetches;
		chaos->stored.hits += status.hits;
		chaos->stored.loaded_pages += status.loaded_pages;
		chaos->stored.cut_loads += status.cut_loads;
	}
	kvt_own_store_stop(&chaos->store);
}

static bool kill_store(struct chaos *chaos)
{
	chaos_end_store(chaos);
	return !*chaos->wrong && chaos_start_store(chaos);
}

static void stop_store(struct chaos *chaos, bool stop)
{
	kill(chaos->store.pid, stop ? SIGSTOP : SIGCONT);
	chaos->store_stopped = stop;
}

/* ---- one of them */

static bool act(struct chaos *chaos, enum chaos_action action)
{
	switch (action) {
	case CHAOS_KILL_WORKER:
		return kill_worker(chaos);
	case CHAOS_STOP_WORKER:
		stop_worker(chaos);
		return true;
	case CHAOS_CONTINUE_WORKER:
		continue_worker(chaos);
		return true;
	case CHAOS_KILL_DAEMON:
		return end_daemon(chaos, SIGKILL, false);
	case CHAOS_ABORT_DAEMON:
		return end_daemon(chaos, SIGABRT, false);
	case CHAOS_STOP_DAEMON:
		return stop_daemon(chaos);
	case CHAOS_STOP_KILL:
		return end_daemon(chaos, SIGKILL, true);
	case CHAOS_UPGRADE:
		return upgrade(chaos);
	case CHAOS_KILL_BOTH:
		return kill_both(chaos);
	case CHAOS_KILL_STARTING:
		return kill_starting(chaos);
	case CHAOS_KILL_STORE:
		return kill_store(chaos);
	case CHAOS_STOP_STORE:
	case CHAOS_CONTINUE_STORE:
		stop_store(chaos, action == CHAOS_STOP_STORE);
		return true;
	case CHAOS_ACTIONS:
		break;
	}
	return true;
}

bool chaos_act(struct chaos *chaos)
{
	uint32_t drawn = chaos_draw(chaos, 100), action = 0;

	if (chaos->store.pid > 0 && chaos_draw(chaos, 4) == 0)
		action = drawn < 30 ? CHAOS_KILL_STORE :
			 chaos->store_stopped ? CHAOS_CONTINUE_STORE : CHAOS_STOP_STORE;
	else
		while (drawn >= actions[action].weight)
			drawn -= actions[action++].weight;
	chaos->done[action]++;
	if (act(chaos, action) && !*chaos->wrong)
		return true;
	chaos_wrong(chaos, "after: %s", actions[action].name);
	return false;
}
