/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file timers.c
 * Work that is due by time: expiry, status, watchdog, drain; and signals.
 *
 * Each timer returns when it is due next; daemon->timers.next_ns is the least. Code that makes
 * something due earlier lowers next_timer_ns itself. Called by turn.c.
 */

#include "daemon/serve/timers.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/core/core.h"
#include "daemon/serve/accept.h"
#include "daemon/serve/control.h"
#include "daemon/serve/options.h"
#include "daemon/serve/refused.h"
#include "daemon/serve/session.h"
#include "daemon/serve/socket.h"
#include "daemon/serve/state.h"
#include "daemon/setup/command.h"
#include "kvtrunk_wire_arena.h"
#include "shm/assert.h"
#include "shm/clock.h"
#include "shm/size.h"

#define STATUS_INTERVAL_NS 2000000000ull
#define OWED_INTERVAL_NS 10000000ull /* between retries after the manager's queue was full */
#define EXPIRY_BUDGET 4096u

static uint64_t earlier(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

/* Expire what is due on the cache's clock. A test clock moves by requests, which expire too. */
static uint64_t run_expiry(struct kvt_daemon *daemon)
{
	uint64_t due = kvt_core_next_expiry_ns(daemon->core);

	if (daemon->clock.is_test)
		return UINT64_MAX;
	if (due <= daemon->clock.now_ns) {
		kvt_core_work(daemon->core, EXPIRY_BUDGET, false, daemon->clock.now_ns);
		due = kvt_core_next_expiry_ns(daemon->core);
		due = due > daemon->clock.now_ns ? due : daemon->clock.now_ns;
	}
	return due;
}

static uint64_t ask_quiet_again(struct kvt_daemon *daemon)
{
	uint64_t next = UINT64_MAX;

	for (uint32_t i = 1; i <= daemon->core_config.max_sessions &&
	     daemon->sessions.n_dying; i++) {
		const struct kvt_session *session = &daemon->sessions.slots[i];

		if (!session->dying || session->quiet || !session->quiet_again_ns)
			continue;
		if (session->quiet_again_ns <= daemon->clock.real_ns)
			daemon->sessions.sweep_due = true;
		else
			next = earlier(next, session->quiet_again_ns);
	}
	return next;
}

/* Send STATUS if it changed: the manager forwards each to all its subscribers. */
static void send_status(struct kvt_daemon *daemon)
{
	const struct kvt_counters *count = daemon->counters;
	uint64_t hit = count->hit_positions, input = count->input_positions;
	char text[sizeof(daemon->timers.status_text)], rate[16] = "-"; /* of nothing */

	if (input)
		snprintf(rate, sizeof(rate), "%.1f %%", 100.0 * (double)hit / (double)input);
	snprintf(text, sizeof(text),
		 "%s%llu session%s, %llu lease%s; %llu of %u pages cached, %llu quarantined; "
		 "hit rate %s", daemon->draining ? "stopping: " : "",
		 (unsigned long long)count->live_sessions, kvt_plural(count->live_sessions),
		 (unsigned long long)count->live_leases, kvt_plural(count->live_leases),
		 (unsigned long long)count->cached_pages, daemon->core_config.n_pages - 1,
		 (unsigned long long)count->quarantined_pages, rate);
	if (strcmp(text, daemon->timers.status_text) != 0 &&
	    kvt_notify_send(&daemon->notify, "STATUS=%s\n", text))
		memcpy(daemon->timers.status_text, text, sizeof(text));
}

void kvt_timers_pulse(struct kvt_daemon *daemon)
{
	uint64_t count;

	if (read(daemon->timers.pulse_fd, &count, sizeof(count)) == sizeof(count))
		kvt_notify_send(&daemon->notify, "WATCHDOG=1\n");
	else
		kvt_host_refuses(daemon, "read", errno);
	kvt_loop_poll(&daemon->loop, daemon->timers.pulse_fd, POLLIN, kvt_tag(KVT_TAG_PULSE, 0, 0));
}

/* Send the watchdog's food through the event loop: a loop that reports no events must starve it. */
static void pulse(struct kvt_daemon *daemon)
{
	const uint64_t one = 1;

	if (write(daemon->timers.pulse_fd, &one, sizeof(one)) < 0 && errno != EAGAIN)
		kvt_host_refuses(daemon, "write", errno);
}

static uint64_t feed_manager(struct kvt_daemon *daemon)
{
	uint64_t half = daemon->notify.watchdog_ns / 2, next = UINT64_MAX;

	if (daemon->notify.fd < 0)
		return UINT64_MAX;
	if (kvt_notify_owes(&daemon->notify))
		next = daemon->clock.real_ns + OWED_INTERVAL_NS;
	if (daemon->clock.real_ns >= daemon->timers.status_at_ns) {
		send_status(daemon);
		daemon->sessions.look_due |= daemon->adopted;
		daemon->sessions.sweep_due |= daemon->adopted;
		daemon->timers.status_at_ns = daemon->clock.real_ns + STATUS_INTERVAL_NS;
	}
	if (half && daemon->clock.real_ns >= daemon->timers.watchdog_at_ns) {
		pulse(daemon);
		daemon->timers.watchdog_at_ns = daemon->clock.real_ns + half;
	}
	next = earlier(next, daemon->timers.status_at_ns);
	return half ? earlier(next, daemon->timers.watchdog_at_ns) : next;
}

void kvt_timers_run(struct kvt_daemon *daemon)
{
	uint64_t next = kvt_control_end_half_open(daemon);

	next = earlier(next, kvt_accept_again(daemon));
	next = earlier(next, kvt_log_flush(&daemon->client_log, daemon->clock.real_ns));
	next = earlier(next, run_expiry(daemon));
	next = earlier(next, ask_quiet_again(daemon));
	next = earlier(next, feed_manager(daemon));
	next = earlier(next, kvt_socket_due(daemon));
	if (daemon->draining) {
		if (daemon->clock.real_ns >= daemon->timers.drain_until_ns)
			daemon->over = true;
		next = earlier(next, daemon->timers.drain_until_ns);
	}
	daemon->timers.next_ns = next;
	kvt_loop_flush(&daemon->loop);
}

/* ---- signals */

/* Stop listening. Queued connections are accepted and get ESHUTDOWN instead of a reset. A passed
 * socket stays open: its queue is the successor's. */
static void stop_listening(struct kvt_daemon *daemon)
{
	kvt_accept_stop(daemon);
	daemon->timers.next_ns = 0;
	if (daemon->listener.passed || daemon->listener.fd < 0)
		return;
	kvt_socket_unlink(daemon);
	shutdown(daemon->listener.fd, SHUT_RDWR); /* the queue grows no more */
	kvt_accept_rest(daemon, daemon->listener.fd);
	close(daemon->listener.fd);
	daemon->listener.fd = -1;
}

static void begin_drain(struct kvt_daemon *daemon, int signal)
{
	KVT_ASSERT(!daemon->draining);
	kvt_log(KVT_LOG_NOTICE, "stopping", "signal=%s leases=%llu drain_ms=%lld",
		signal == SIGINT ? "SIGINT" : "SIGTERM",
		(unsigned long long)daemon->counters->live_leases,
		(long long)daemon->config.drain_ms);
	daemon->draining = true;
	daemon->timers.drain_until_ns =
		daemon->clock.real_ns + (uint64_t)daemon->config.drain_ms * 1000000;
	kvt_core_drain(daemon->core, true, daemon->clock.now_ns);
	kvt_core_publish(daemon->core, KVT_ARENA_DRAINING);
	stop_listening(daemon);
	kvt_lock_drain(&daemon->lock, 1 + (int)daemon->config.drain_ms);
	kvt_notify_tell(&daemon->notify, "STOPPING=1\n");
	send_status(daemon);
}

static void reload(struct kvt_daemon *daemon)
{
	char why[KVT_WHY_BYTES], changed[KVT_WHY_BYTES], fixed[KVT_WHY_BYTES];
	struct kvt_config fresh;
	int command;

	kvt_notify_tell(&daemon->notify, "RELOADING=1\nMONOTONIC_USEC=%lld\n",
			(long long)kvt_now_ns() / 1000);
	command = kvt_config_parse(&fresh, daemon->argc, daemon->argv, why);
	if (command < 0) {
		kvt_log(KVT_LOG_ERROR, "reload_failed", "why=\"%s\" effect=\"the old options "
			"stay\"", why);
	} else {
		kvt_config_reload(&daemon->config, &fresh, changed, fixed);
		kvt_daemon_apply(daemon);
		kvt_log(KVT_LOG_NOTICE, "reloaded", "changed=\"%s\" need_restart=\"%s\"", changed,
			fixed);
	}
	kvt_socket_look(daemon);
	kvt_notify_tell(&daemon->notify, "READY=1\n");
	daemon->timers.next_ns = 0;
}

/* Exit after this turn and leave everything to the successor that the keeper starts. */
static void leave(struct kvt_daemon *daemon)
{
	if (!daemon->notify.store) {
		kvt_log(KVT_LOG_WARNING, "not_left", "signal=SIGUSR2 why=\"no keeper holds this "
			"daemon's descriptors\" cure=\"kvtrunkd --supervise, or "
			"FileDescriptorStoreMax= and Environment=FDSTORE=\"");
		return;
	}
	daemon->keep = daemon->over = true;
}

void kvt_signal_handle(struct kvt_daemon *daemon)
{
	struct signalfd_siginfo info;
	ssize_t n;

	while ((n = read(daemon->timers.signal_fd, &info, sizeof(info))) == sizeof(info)) {
		if (info.ssi_signo == SIGHUP)
			reload(daemon);
		else if (info.ssi_signo == SIGUSR2)
			leave(daemon);
		else if (daemon->draining)
			daemon->over = true; /* second signal: end the drain */
		else
			begin_drain(daemon, (int)info.ssi_signo);
	}
	if (n < 0)
		kvt_host_refuses(daemon, "read", errno);
	kvt_loop_poll(&daemon->loop, daemon->timers.signal_fd, POLLIN, kvt_tag(KVT_TAG_SIGNAL, 0,
									       0));
}
