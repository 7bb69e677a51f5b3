/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file start.c
 * Start and stop of the daemon: lock, cache (cache.c), socket, and the reverse.
 *
 * Inputs are a checked configuration and what the keeper stored. Only the lock holder makes or
 * recovers a cache. A cache is recovered whole or made new; a trial fails instead of starting cold.
 * Connections are accepted only once everything is made. On failure all of it is undone. Called by
 * main.c.
 */

#include "kvtrunk_wire_segment.h"
#include "daemon/start.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <bsd/string.h>

#include "daemon/cache.h"
#include "daemon/core/core.h"
#include "daemon/prepare.h"
#include "daemon/serve/accept.h"
#include "daemon/serve/adopt.h"
#include "daemon/serve/clock.h"
#include "daemon/serve/connection.h"
#include "daemon/serve/host.h"
#include "daemon/serve/member.h"
#include "daemon/serve/options.h"
#include "daemon/serve/session.h"
#include "daemon/serve/socket.h"
#include "daemon/serve/stored.h"
#include "daemon/serve/turn.h"
#include "daemon/setup/pool_backend.h"
#include "kvtrunk_wire_arena.h"
#include "shm/clock.h"
#include "shm/geometry.h"

#define LOCK_POLL_MS 10
#define ENDING_MS 10000 /* longest wait for a killed process to release its files */
#define UNKNOWN_MS 2000 /* the same, if it is not known which process has them */
#define CALIBRATE_NS 200000ull /* a clock read of 50 ns is 0.03 % of that */
#define CLOCK_INTERVAL_US 5
#define TEST_CLOCK_START_NS 1000000000ull

/* ---- clock */

struct instant {
	uint64_t ns, cycles;
};

/* Read both clocks at one time: the tightest of 16 pairs, because preemption between the two reads
 * may last a hundred times as long as the calibration. */
static struct instant look_at_clocks(void)
{
	struct instant best = { 0, 0 };
	uint64_t least = UINT64_MAX;

	for (int i = 0; i < 16; i++) {
		struct instant now = { .ns = kvt_now_ns(), .cycles = kvt_cycles() };
		uint64_t passed = kvt_now_ns() - now.ns;

		if (passed < least) {
			least = passed;
			best = now;
		}
	}
	return best;
}

/* Measure cycles per microsecond, to about one per cent, for budgets and histograms. */
static void calibrate(struct kvt_daemon *daemon)
{
	struct instant begin = look_at_clocks(), end;

	do {
		end = look_at_clocks();
	} while (end.ns - begin.ns < CALIBRATE_NS);
	daemon->clock.cycles_per_us = (end.cycles - begin.cycles) * 1000 / (end.ns - begin.ns);
	if (!daemon->clock.cycles_per_us)
		daemon->clock.cycles_per_us = 1;
	daemon->clock.interval = CLOCK_INTERVAL_US * daemon->clock.cycles_per_us;
	daemon->clock.units_per_cycle = (1000ull << 32) / (64 * daemon->clock.cycles_per_us);
}

/* ---- tables */

static int make_tables(struct kvt_daemon *daemon, char why[KVT_WHY_BYTES])
{
	uint32_t sessions = daemon->core_config.max_sessions;
	uint32_t members = kvt_core_members(&daemon->core_config);

	daemon->sessions.common_places = (daemon->core_config.n_pending - sessions) / 2;
	daemon->sessions.own_places = 1 + daemon->sessions.common_places / sessions;
	daemon->connections.n_slots = members + KVT_HALF_OPEN_MAX + KVT_OBSERVERS_MAX;
	daemon->sessions.slots = aligned_alloc(KVT_LINE,
					       (sessions + 1) * sizeof(struct kvt_session));
	daemon->members = calloc(members + 1, sizeof(struct kvt_member));
	daemon->sessions.served = calloc(sessions + 1, sizeof(uint32_t));
	daemon->connections.slots = calloc(daemon->connections.n_slots,
					   sizeof(struct kvt_connection));
	daemon->connections.free = calloc(daemon->connections.n_slots, sizeof(uint32_t));
	daemon->sessions.leaving = calloc(sessions, sizeof(*daemon->sessions.leaving));
	daemon->message = aligned_alloc(KVT_LINE, KVT_MESSAGE_MAX);
	daemon->answer = aligned_alloc(KVT_LINE, KVT_MESSAGE_MAX);
	kvt_shares_init(&daemon->shares, daemon->clock.cycles_per_us);
	if (!daemon->sessions.slots || !daemon->members || !daemon->sessions.served ||
	    !daemon->connections.slots ||
	    !daemon->connections.free || !daemon->sessions.leaving || !daemon->message ||
		    !daemon->answer) {
		snprintf(why, KVT_WHY_BYTES, "no memory for %u sessions", sessions);
		return -ENOMEM;
	}
	for (uint32_t i = 0; i <= sessions; i++)
		daemon->sessions.slots[i] = KVT_SESSION_NONE;
	for (uint32_t i = 0; i <= members; i++)
		daemon->members[i] = (struct kvt_member){ .index = i, .pidfd = -1,
							  .segment.fd = -1 };
	for (uint32_t i = 0; i < daemon->connections.n_slots; i++) {
		daemon->connections.slots[i].fd = -1;
		daemon->connections.free[i] = daemon->connections.n_slots - 1 - i;
	}
	daemon->connections.n_free = daemon->connections.n_slots;
	TAILQ_INIT(&daemon->connections.half_open);
	for (uint32_t i = 0; i < KVT_CONNECTION_STATES; i++)
		TAILQ_INIT(&daemon->connections.readable[i]);
	return 0;
}

/* ---- lock and socket of another daemon */

static bool asked_to_end(void)
{
	sigset_t waiting;

	return sigpending(&waiting) == 0 &&
	       (sigismember(&waiting, SIGTERM) || sigismember(&waiting, SIGINT));
}

/* True if waiting may help: the holder lets leases end, is exiting, as after kill -9, or is
 * unknown. The io_uring of a dead daemon holds its socket for a moment longer, with the clients in
 * its queue. */
static bool may_end(pid_t holder, int drain_ms, int waited_ms)
{
	if (drain_ms > 0 || kvt_process_ending(holder))
		return waited_ms - drain_ms < ENDING_MS;
	return holder == 0 && waited_ms < UNKNOWN_MS;
}

/* Retry `take` while that may help. -EADDRINUSE: the holder lives, or the wait timed out. *holder:
 * its pid after a refusal, 0 if unknown. */
static int insist(struct kvt_daemon *daemon, int take(struct kvt_daemon *daemon, char *why),
		  const pid_t *holder, char why[KVT_WHY_BYTES])
{
	int error = take(daemon, why);

	for (int waited_ms = 0; error == -EADDRINUSE &&
	     may_end(*holder, daemon->lock.drain_ms, waited_ms) && !asked_to_end();
	     waited_ms += LOCK_POLL_MS) {
		if (waited_ms == 0)
			kvt_log(KVT_LOG_INFO, "waits", "why=\"%s\"", why);
		poll(NULL, 0, LOCK_POLL_MS);
		error = take(daemon, why);
	}
	if (!error)
		why[0] = '\0';
	else if (error == -EADDRINUSE && kvt_process_ending(*holder))
		strlcat(why, "; that process has ended, and what it held is kept by its supervisor "
			"or service manager", KVT_WHY_BYTES);
	return error;
}

/* ---- socket */

static int make_socket(struct kvt_daemon *daemon, char why[KVT_WHY_BYTES])
{
	const struct kvt_config *config = &daemon->config;
	int error;

	if (kvt_peer_group(config->socket_group, &daemon->listener.gid) != 0)
		return kvt_daemon_no_group("socket_group", config->socket_group, why);
	if (daemon->listener.fd >= 0) { /* passed by the service manager, or by a predecessor */
		daemon->listener.passed = !daemon->kept.has_socket;
		kvt_socket_passed(daemon);
		return 0;
	}
	error = kvt_daemon_socket_path(config, daemon->listener.path);
	if (!error)
		error = insist(daemon, kvt_socket_bind, &daemon->listener.holder, why);
	if (error && !*why)
		snprintf(why, KVT_WHY_BYTES, "cannot listen on %s: %s", daemon->listener.path,
			 strerror(-error));
	return kvt_daemon_named(daemon, error);
}

/* Start to listen, once everything is made: a connection that a failing start accepted is lost.
 * Returns a negative errno with `why` if the host refuses to accept. */
static int begin_to_listen(struct kvt_daemon *daemon, char why[KVT_WHY_BYTES])
{
	/* A stored or passed socket listens already. listen() again sets our queue length and makes
	 * SO_PEERCRED name this process. */
	if (daemon->kept.has_socket || daemon->listener.passed)
		listen(daemon->listener.fd, KVT_LISTEN_BACKLOG);
	kvt_accept_event(daemon);
	kvt_accept_some(daemon);
	if (!daemon->refused)
		return 0;
	snprintf(why, KVT_WHY_BYTES, "the host refuses %s", daemon->refused);
	return -EPERM;
}

/* Block signals before anything is made, so that one during a long start ends the daemon cleanly
 * as soon as the loop runs. */
static int take_signals(struct kvt_daemon *daemon, char why[KVT_WHY_BYTES])
{
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGHUP);
	sigaddset(&set, SIGUSR2);
	signal(SIGPIPE, SIG_IGN);
	signal(SIGXFSZ, SIG_IGN); /* a log at its size limit ends; the daemon does not */
	signal(SIGCHLD, SIG_DFL); /* ignored by a parent, it would lose the ends of children */
	sigprocmask(SIG_BLOCK, &set, NULL);
	daemon->timers.signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
	if (daemon->timers.signal_fd >= 0)
		return 0;
	snprintf(why, KVT_WHY_BYTES, "cannot watch signals: %s", strerror(errno));
	return -EIO;
}

/* Make what feeds the watchdog: see timers.c. */
static int make_pulse(struct kvt_daemon *daemon, char why[KVT_WHY_BYTES])
{
	if (!daemon->notify.watchdog_ns)
		return 0;
	daemon->timers.pulse_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (daemon->timers.pulse_fd < 0) {
		snprintf(why, KVT_WHY_BYTES, "cannot make an eventfd: %s", strerror(errno));
		return -EMFILE;
	}
	kvt_loop_poll(&daemon->loop, daemon->timers.pulse_fd, POLLIN, kvt_tag(KVT_TAG_PULSE, 0, 0));
	return 0;
}

/* ---- start */

/* Log how the number of pages was computed. */
static void report_pool(const struct kvt_daemon *daemon)
{
	const struct kvt_pool_plan *plan = &daemon->plan;
	const struct kvt_pool_geometry *geometry = &plan->geometry;

	if (geometry->n_layers)
		kvt_log(KVT_LOG_INFO, "geometry", "n_layers=%u n_kv_heads=%u head_dim=%u "
			"kv_type=%s element_bytes=%u kv_layout=%s kv_order=%s page_size=%u "
			"page_bytes=%llu fingerprint=\"%s\"", geometry->n_layers,
			geometry->n_kv_heads, geometry->head_dim, kvt_element_name(geometry->type),
			kvt_element_bytes(geometry->type), kvt_page_layout_name(geometry->layout),
			kvt_page_order_name(geometry->order), plan->page_size,
			(unsigned long long)plan->page_bytes, plan->fingerprint);
	if (plan->budget_bytes)
		kvt_log(KVT_LOG_INFO, "budget", "slab_bytes=%llu of_free_bytes=%llu "
			"page_bytes=%llu n_pages=%u positions=%llu n_slabs=%u",
			(unsigned long long)plan->budget_bytes,
			(unsigned long long)plan->free_bytes, (unsigned long long)plan->page_bytes,
			plan->n_pages, (plan->n_pages - 1ull) * plan->page_size,
			daemon->pool.n_slabs);
}

static void report(const struct kvt_daemon *daemon)
{
	const struct kvt_core_config *core = &daemon->core_config;
	const struct kvt_core_sizes *sizes = &daemon->sizes;
	struct rlimit nofile;

	getrlimit(RLIMIT_NOFILE, &nofile);
	report_pool(daemon);
	kvt_log(KVT_LOG_INFO, "memory", "pool=%llu slabs=%u arena=%llu ledger=%llu scratch=%llu "
		"per_session_at_most=%llu backend=%s", (unsigned long long)daemon->pool.bytes,
		daemon->pool.n_slabs, (unsigned long long)sizes->arena_bytes,
		(unsigned long long)sizes->ledger_bytes,
		(unsigned long long)sizes->scratch_bytes,
		KVT_SEGMENT_BYTES_MAX + sizeof(struct kvt_mirror) + 4ull *
			(2ull * core->max_op_keys + core->max_op_keys / core->page_size),
		daemon->pool.ops->name);
	if (*daemon->config.note)
		kvt_log(KVT_LOG_NOTICE, "options", "note=\"%s\"", daemon->config.note);
	if (*daemon->pool.note)
		kvt_log(KVT_LOG_NOTICE, "pool", "note=\"%s\"", daemon->pool.note);
	kvt_log(KVT_LOG_INFO, "limits", "page_size=%u page_bytes=%llu n_pages=%u n_slots=%u "
		"max_nodes=%u max_namespaces=%u max_sessions=%u max_leases=%u "
		"max_private_pages=%u total_leases=%u reserve_pages=%u "
		"max_opened=%u uid_sessions=%u nofile=%llu", core->page_size,
		(unsigned long long)daemon->pool.page_bytes, core->n_pages, core->n_slots,
		core->max_nodes, core->max_namespaces, core->max_sessions, core->max_leases,
		core->max_private_pages, core->n_leases, core->reserve_pages,
		core->max_opened, core->uid_sessions, (unsigned long long)nofile.rlim_cur);
	kvt_log(KVT_LOG_INFO, "loop", "event_loop=%s spin_budget_us=%lld cpu=%lld policy=%s "
		"caching=%s test_clock=%s watchdog_ms=%llu", daemon->loop.mode,
		(long long)daemon->config.spin_budget_us, (long long)daemon->config.cpu,
		kvt_policy_name(core->policy), core->disabled ? "no" : "yes",
		daemon->clock.is_test ? "yes" : "no",
		(unsigned long long)(daemon->notify.watchdog_ns / 1000000));
	kvt_log(KVT_LOG_NOTICE, "ready", "version=" KVT_VERSION " pid=%d instance=%s socket=\"%s\"",
		(int)getpid(), daemon->config.instance, daemon->listener.path);
}

/* ---- the end */

/* Close the lock without releasing it: the keeper holds it, too. */
static void forget_lock(struct kvt_daemon *daemon)
{
	if (daemon->lock.fd >= 0)
		close(daemon->lock.fd);
	daemon->lock.fd = -1;
}

static void unmake(struct kvt_daemon *daemon)
{
	for (uint32_t i = 0; daemon->sessions.slots && i <= daemon->core_config.max_sessions; i++)
		if (daemon->sessions.slots[i].members)
			kvt_session_release(daemon, &daemon->sessions.slots[i]);
	for (uint32_t i = 0; daemon->connections.slots && i < daemon->connections.n_slots; i++) {
		if (daemon->connections.slots[i].fd >= 0)
			close(daemon->connections.slots[i].fd);
		daemon->connections.slots[i].fd = -1;
	}
	kvt_socket_unlink(daemon);
	if (daemon->listener.name_fd >= 0)
		close(daemon->listener.name_fd);
	if (daemon->listener.fd >= 0)
		close(daemon->listener.fd);
	if (daemon->timers.signal_fd >= 0)
		close(daemon->timers.signal_fd);
	if (daemon->timers.pulse_fd >= 0)
		close(daemon->timers.pulse_fd);
	kvt_daemon_unmake_cache(daemon);
	if (daemon->loop.mode)
		kvt_loop_close(&daemon->loop);
	if (daemon->kept.has_lock)
		forget_lock(daemon);
	else
		kvt_lock_release(&daemon->lock);
	kvt_fdstore_close(&daemon->kept.passed);
	kvt_notify_close(&daemon->notify);
	free(daemon->sessions.slots);
	free(daemon->members);
	free(daemon->sessions.served);
	free(daemon->connections.slots);
	free(daemon->connections.free);
	while (daemon->sessions.n_leaving)
		kvt_object_destroy(&daemon->sessions.leaving[--daemon->sessions.n_leaving]);
	free(daemon->sessions.leaving);
	free(daemon->message);
	free(daemon->answer);
}

/* Leave stored descriptors and files to a successor when they are closed here. */
static void disown(struct kvt_daemon *daemon)
{
	daemon->listener.made = false;
	for (uint32_t i = 1; daemon->members && i <= kvt_core_members(&daemon->core_config); i++)
		daemon->members[i].kept = false;
}

/* Take a new lock. If its holder lives and has no socket, say why that may be. */
static int take_new_lock(struct kvt_daemon *daemon, char why[KVT_WHY_BYTES])
{
	const struct kvt_config *config = &daemon->config;
	char path[KVT_SOCKET_PATH_BYTES], text[256];
	struct stat there;
	int stale = 0, error;

	error = kvt_lock_take(&daemon->lock, config->runtime_dir, config->instance, &stale, why,
			      KVT_WHY_BYTES);
	if (error == -EADDRINUSE && kvt_daemon_socket_path(config, path) == 0 &&
	    lstat(path, &there) != 0) {
		snprintf(text, sizeof(text), "; it has no socket %s: it starts or stops; if it "
			 "does neither, kill -HUP %d makes it again", path,
			 (int)daemon->lock.holder);
		strlcat(why, text, KVT_WHY_BYTES);
	}
	return error;
}

/* Take the lock: a stored one, or a new one. */
static int take_lock(struct kvt_daemon *daemon, char why[KVT_WHY_BYTES])
{
	const struct kvt_config *config = &daemon->config;
	int made, error, fd;

	if (daemon->lock.fd >= 0)
		return 0;
	fd = kvt_fdstore_take_lock(&daemon->kept.passed, &made);
	if (fd < 0)
		return take_new_lock(daemon, why);
	daemon->kept.has_lock = true;
	error = kvt_lock_adopt(&daemon->lock, fd, config->runtime_dir, config->instance, made);
	if (!error)
		error = kvt_lock_sign(&daemon->lock);
	if (error) { /* its file was removed, or other options: it protects nothing */
		close(fd);
		kvt_forget_lock(daemon, made);
		return take_new_lock(daemon, why);
	}
	return 0;
}

static int take_passed(struct kvt_daemon *daemon, char why[KVT_WHY_BYTES])
{
	int error = kvt_notify_passed(&daemon->kept.passed, why, KVT_WHY_BYTES);

	if (!error && kvt_fdstore_has_cache(&daemon->kept.passed) && !daemon->notify.store) {
		snprintf(why, KVT_WHY_BYTES, "a cache was passed, and no keeper takes what belongs "
			 "to it from now on: set FDSTORE= beside FileDescriptorStoreMax=");
		error = -EINVAL;
	}
	if (!error)
		error = kvt_fdstore_take_listen(&daemon->kept.passed, &daemon->listener.fd,
						&daemon->listener.made, daemon->listener.file, why,
						KVT_WHY_BYTES);
	daemon->kept.has_socket = daemon->listener.made;
	return error;
}

static int make_all(struct kvt_daemon *daemon, char why[KVT_WHY_BYTES])
{
	int error;

	error = kvt_notify_open(&daemon->notify, why, KVT_WHY_BYTES);
	if (!error)
		error = take_signals(daemon, why);
	if (!error)
		error = take_passed(daemon, why);
	if (!error)
		error = kvt_daemon_prepare(daemon, why);
	/* Beside a cache to recover: that is worth more than a group, or a log. */
	if (!error && !kvt_fdstore_has_cache(&daemon->kept.passed))
		error = kvt_daemon_check_names(daemon, why);
	if (!error)
		error = kvt_daemon_named(daemon,
					 insist(daemon, take_lock, &daemon->lock.holder, why));
	if (!error)
		error = kvt_host_try(why);
	if (!error)
		error = kvt_daemon_open_loop(daemon, why);
	if (!error)
		error = make_pulse(daemon, why);
	if (error)
		return error;
	calibrate(daemon);
	kvt_daemon_clock(daemon);
	if (daemon->clock.is_test)
		daemon->clock.now_ns = TEST_CLOCK_START_NS;
	daemon->started_ns = daemon->clock.now_ns;
	kvt_daemon_apply(daemon);
	error = make_tables(daemon, why);
	if (!error)
		error = kvt_daemon_make_cache(daemon, why);
	if (!error)
		error = make_socket(daemon, why);
	if (!error)
		kvt_loop_poll(&daemon->loop, daemon->timers.signal_fd, POLLIN,
			      kvt_tag(KVT_TAG_SIGNAL, 0, 0));
	return error;
}

static void init(struct kvt_daemon *daemon)
{
	daemon->listener.fd = daemon->timers.signal_fd = daemon->timers.pulse_fd =
		daemon->arena_readonly = -1;
	daemon->listener.name_fd = -1;
	daemon->admin_gid = (gid_t)-1;
	daemon->notify.fd = daemon->lock.fd = -1;
	daemon->arena.fd = daemon->ledger.fd = daemon->oplog_tail.fd = -1;
	daemon->clock.is_test = daemon->config.test_clock;
}

int kvt_daemon_start(struct kvt_daemon *daemon, char why[KVT_WHY_BYTES])
{
	int error;

	init(daemon);
	why[0] = '\0';
	error = make_all(daemon, why);
	if (!error)
		error = begin_to_listen(daemon, why);
	if (error) {
		kvt_notify_send(&daemon->notify, "ERRNO=%d\nSTATUS=%s\n", -error, why);
		if (daemon->adopted)
			disown(daemon);
		unmake(daemon);
		return error;
	}
	kvt_loop_flush(&daemon->loop);
	kvt_keep_instance(daemon);
	kvt_socket_watch(daemon);
	kvt_core_publish(daemon->core, KVT_ARENA_READY);
	if (!daemon->notify.store)
		kvt_log(KVT_LOG_NOTICE, "no_keeper", "effect=\"a restart begins with an empty "
			"cache\" cure=\"kvtrunkd --supervise, or a service manager that stores "
			"descriptors\"");
	report(daemon);
	kvt_notify_tell(&daemon->notify, "READY=1\nMAINPID=%d\n", (int)getpid());
	return 0;
}

/* Send GOODBYE to all clients before their sockets close. */
static void say_goodbye(struct kvt_daemon *daemon, int error, const char *why)
{
	for (uint32_t i = 0; i < daemon->connections.n_slots; i++) {
		struct kvt_connection *connection = &daemon->connections.slots[i];

		if (connection->fd < 0)
			continue;
		connection->state = KVT_CONNECTION_OVER;
		kvt_connection_goodbye(daemon, connection, error, why);
		if (connection->member)
			kvt_session_say_gone(daemon, connection->member, error);
	}
}

void kvt_daemon_stop(struct kvt_daemon *daemon)
{
	const struct kvt_counters *counters = daemon->counters;

	kvt_forget_all(daemon);
	kvt_core_publish(daemon->core, KVT_ARENA_GONE);
	say_goodbye(daemon, -ESHUTDOWN, "the daemon was stopped");
	kvt_log(KVT_LOG_NOTICE, "stopped", "operations=%llu leases_left=%llu sessions_left=%llu "
		"turns=%llu sleeps=%llu log_lines_dropped=%llu",
		(unsigned long long)counters->operations,
		(unsigned long long)counters->live_leases,
		(unsigned long long)counters->live_sessions,
		(unsigned long long)daemon->stats.turns, (unsigned long long)daemon->stats.sleeps,
		(unsigned long long)kvt_log_dropped());
	unmake(daemon);
}

/* Between two turns every effect is complete. Publishes nothing, so clients keep waiting. */
void kvt_daemon_leave(struct kvt_daemon *daemon)
{
	kvt_log(KVT_LOG_NOTICE, "left", "operations=%llu leases=%llu sessions=%llu kept=%u",
		(unsigned long long)daemon->counters->operations,
		(unsigned long long)daemon->counters->live_leases,
		(unsigned long long)daemon->counters->live_sessions, daemon->kept.n);
	kvt_core_leave(daemon->core);
	disown(daemon);
	unmake(daemon);
}
