/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file start.c
 * Start and stop of the daemon: lock, cache, socket, recovery, checks, and the reverse.
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
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include <bsd/string.h>

#include "daemon/serve/accept.h"
#include "daemon/serve/adopt.h"
#include "daemon/serve/clock.h"
#include "daemon/serve/connection.h"
#include "daemon/serve/host.h"
#include "daemon/serve/options.h"
#include "daemon/serve/plan.h"
#include "daemon/serve/session.h"
#include "daemon/serve/socket.h"
#include "daemon/serve/stored.h"
#include "daemon/serve/turn.h"
#include "daemon/setup/memory.h"
#include "shm/clock.h"
#include "shm/geometry.h"
#include "shm/limit.h"
#include "shm/map.h"

#define LOCK_POLL_MS 10
#define ENDING_MS 10000 /* longest wait for a killed process to release its files */
#define UNKNOWN_MS 2000 /* the same, if it is not known which process has them */
#define HOLDERS_POLL_MS 100
#define HOLDERS_EXTEND_US 10000000 /* requested again with each poll */
#define CALIBRATE_NS 200000ull /* a clock read of 50 ns is 0.03 % of that */
#define CLOCK_INTERVAL_US 5
#define ORPHAN_AGE_S 600
#define TEST_CLOCK_START_NS 1000000000ull
#define POLLS_BESIDE 8 /* socket, signals, keeper */

/* ---- what options name */

/* Make the error of a path that an option gives that of a bad option: another try does not help.
 * Not beside a cache to recover, which a service manager drops when it does not try again. */
static int named(const struct kvt_daemon *daemon, int error)
{
	static const int wrong[] = { ENOENT, ENOTDIR, EISDIR, EEXIST, EACCES, ELOOP, ENAMETOOLONG };

	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
		if (error == -wrong[i] && !kvt_fdstore_has_cache(&daemon->kept.passed))
			return -EINVAL;
	return error;
}

/* ---- limits of the process */

static int pin_to_cpu(const struct kvt_daemon *daemon, char why[KVT_WHY_BYTES])
{
	int64_t cpu = daemon->config.cpu;
	cpu_set_t set;
	int error;

	if (cpu < 0)
		return 0;
	CPU_ZERO(&set);
	if (cpu < CPU_SETSIZE)
		CPU_SET((size_t)cpu, &set);
	if (sched_setaffinity(0, sizeof(set), &set) == 0)
		return 0;
	error = -errno;
	snprintf(why, KVT_WHY_BYTES, "cannot run on cpu %lld: %s; it must exist (%ld here) and be "
		 "in the process's cpuset", (long long)cpu, strerror(-error),
		 sysconf(_SC_NPROCESSORS_CONF));
	return error;
}

/* Open the event loop. It polls each connection, member and session, and a few more. */
static int open_loop(struct kvt_daemon *daemon, char why[KVT_WHY_BYTES])
{
	const struct kvt_config *config = &daemon->config;
	uint64_t room = KVT_HALF_OPEN_MAX + KVT_OBSERVERS_MAX +
			3 * (uint64_t)config->max_sessions + 2 * (uint64_t)config->max_members +
			POLLS_BESIDE;
	enum kvt_loop_way first = KVT_LOOP_IO_URING, last = KVT_LOOP_EPOLL;
	char reason[KVT_WHY_BYTES];
	int error;

	if (config->event_loop == KVT_EVENT_LOOP_IO_URING)
		last = KVT_LOOP_IO_URING_PLAIN;
	else if (config->event_loop == KVT_EVENT_LOOP_EPOLL)
		first = KVT_LOOP_EPOLL;
	error = kvt_loop_open(&daemon->loop, first, last, (uint32_t)room, reason, sizeof(reason));
	if (error)
		strlcpy(why, reason, KVT_WHY_BYTES);
	else if (*reason)
		kvt_log(KVT_LOG_NOTICE, "no_io_uring", "why=\"%s\" effect=\"epoll instead: while "
			"busy, new connections and control messages wait up to 50 us longer\"",
			reason);
	return error;
}

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

/* ---- core */

static int check_memory(const struct kvt_daemon *daemon, char why[KVT_WHY_BYTES])
{
	const struct kvt_core_sizes *sizes = &daemon->sizes;
	/* The backend checks device memory. */
	uint64_t slabs = daemon->config.backend == KVT_POOL_HOST ? daemon->plan.n_slabs : 0;
	uint64_t pool = slabs * (daemon->plan.n_pages * daemon->plan.page_bytes);
	uint64_t rest = sizes->arena_bytes + sizes->ledger_bytes + sizes->scratch_bytes;
	uint64_t limit = kvt_memory_limit_bytes();

	if (pool + rest <= limit)
		return 0;
	snprintf(why, KVT_WHY_BYTES, "more memory is needed than the %llu bytes this process can "
		 "have: pool %llu, arena %llu, ledger %llu, scratch %llu: lower n_pages (%u), "
		 "pool_bytes or the size of a page, or raise the memory limit",
		 (unsigned long long)limit,
		 (unsigned long long)pool, (unsigned long long)sizes->arena_bytes,
		 (unsigned long long)sizes->ledger_bytes, (unsigned long long)sizes->scratch_bytes,
		 daemon->core_config.n_pages);
	return -ENOMEM;
}

static int lock_memory(const struct kvt_daemon *daemon, char why[KVT_WHY_BYTES])
{
	if (!daemon->config.mlock)
		return 0;
	if (mlock(daemon->arena.base, daemon->arena.bytes) == 0 &&
	    mlock(daemon->ledger.base, daemon->ledger.bytes) == 0 &&
	    mlock(daemon->scratch, daemon->sizes.scratch_bytes) == 0)
		return 0;
	return kvt_memory_not_locked(-errno, why, KVT_WHY_BYTES);
}

/* End the log: a successor must not continue it, because effects are missing. */
static void end_log(struct kvt_daemon *daemon, int error)
{
	daemon->oplog_error = error;
	if (daemon->oplog_tail.bytes >= sizeof(struct kvt_oplog_tail))
		kvt_oplog_end(daemon->oplog_tail.base);
}

static void write_record(void *context, const struct kvt_record *record)
{
	struct kvt_daemon *daemon = context;

	int error;

	if (daemon->oplog_error)
		return;
	daemon->oplog_dirty = true;
	error = kvt_oplog_write(daemon->oplog, record);
	if (!error)
		return;
	end_log(daemon, error);
	kvt_log(KVT_LOG_ERROR, "oplog_failed", "file=\"%s\" seq=%llu why=\"%s\" effect=\"the log "
		"ends here\"", daemon->config.log_file, (unsigned long long)record->seq,
		strerror(-error));
}

/* Make the tail of a log that a successor can continue. */
static int make_oplog_tail(struct kvt_daemon *daemon, char why[KVT_WHY_BYTES])
{
	int error = kvt_object_create_sealed(&daemon->oplog_tail, "kvtrunk-log",
					     sizeof(struct kvt_oplog_tail));

	if (error)
		snprintf(why, KVT_WHY_BYTES, "no memory for the log's tail: %s",
			 kvt_limit_text(-error));
	else
		kvt_oplog_keep(daemon->oplog, daemon->oplog_tail.base);
	return error;
}

/* Continue the predecessor's log. If that fails, the log ends and the cache stays; but a trial
 * fails, and leaves a log that had not ended to the program before it. */
static int continue_oplog(struct kvt_daemon *daemon, char why[KVT_WHY_BYTES])
{
	const struct kvt_arena_header *arena = daemon->arena.base;
	const struct kvt_object *tail = &daemon->oplog_tail;
	bool there = tail->bytes >= sizeof(struct kvt_oplog_tail);
	int error = -ESTALE;

	if (!there)
		snprintf(why, KVT_WHY_BYTES, "the last daemon wrote none");
	else
		error = kvt_oplog_continue(daemon->config.log_file, &daemon->core_config,
					   arena->instance, tail->base, &daemon->oplog, why,
					   KVT_WHY_BYTES);
	if (error == -ENOMEM || (error && there && daemon->notify.upgrade.trial &&
				 !kvt_oplog_ended(tail->base)))
		return error;
	if (error)
		end_log(daemon, error);
	if (error)
		kvt_log(KVT_LOG_ERROR, "oplog_failed", "file=\"%s\" why=\"%s\" effect=\"there is "
			"no log from here on\"", daemon->config.log_file, why);
	why[0] = '\0';
	return 0;
}

static int open_oplog(struct kvt_daemon *daemon, bool adopting, char why[KVT_WHY_BYTES])
{
	int error;

	if (adopting)
		return continue_oplog(daemon, why);
	error = named(daemon, kvt_oplog_open(daemon->config.log_file, &daemon->core_config,
					     &daemon->oplog, why, KVT_WHY_BYTES));
	return !error && daemon->notify.store ? make_oplog_tail(daemon, why) : error;
}

/* Make the core and its log. `adoption`: a predecessor's objects; NULL: start cold. */
static int build_core(struct kvt_daemon *daemon, struct kvt_core_adoption *adoption,
		      char why[KVT_WHY_BYTES])
{
	struct kvt_core_hooks hooks = { .complete = kvt_daemon_complete, .context = daemon };
	int error;

	daemon->scratch = kvt_map(daemon->sizes.scratch_bytes, PROT_READ | PROT_WRITE,
				  MAP_PRIVATE | MAP_ANONYMOUS, -1);
	if (!daemon->scratch) {
		snprintf(why, KVT_WHY_BYTES, "no memory for %llu bytes of scratch",
			 (unsigned long long)daemon->sizes.scratch_bytes);
		return -ENOMEM;
	}
	kvt_map_huge(daemon->scratch, daemon->sizes.scratch_hot_bytes);
	error = lock_memory(daemon, why);
	if (!error && *daemon->config.log_file) {
		error = open_oplog(daemon, adoption != NULL, why);
		hooks.record = write_record;
	} else if (!error && adoption) {
		end_log(daemon, -ENODATA); /* if the predecessor wrote one */
	}
	if (!error && adoption)
		error = kvt_core_adopt(&daemon->core, &daemon->core_config, daemon->arena.base,
				       daemon->ledger.base, daemon->scratch, &hooks,
				       daemon->clock.now_ns, adoption, why, KVT_WHY_BYTES);
	else if (!error)
		error = kvt_core_init(&daemon->core, &daemon->core_config, daemon->arena.base,
				      daemon->ledger.base, daemon->scratch, &hooks,
				      daemon->clock.now_ns);
	if (error && !*why)
		snprintf(why, KVT_WHY_BYTES, "cannot build the cache: %s", strerror(-error));
	if (error)
		return error;
	daemon->counters = kvt_core_counters(daemon->core);
	daemon->arena_readonly = kvt_object_open_readonly(&daemon->arena);
	if (daemon->arena_readonly < 0) {
		snprintf(why, KVT_WHY_BYTES, "cannot open the arena for reading: %s",
			 strerror(-daemon->arena_readonly));
		return daemon->arena_readonly;
	}
	kvt_object_forget_name(&daemon->arena);
	return 0;
}

static void unbuild_core(struct kvt_daemon *daemon)
{
	int error = daemon->oplog ? kvt_oplog_close(daemon->oplog) : 0;

	if (error)
		kvt_log(KVT_LOG_ERROR, "oplog_failed", "file=\"%s\" why=\"%s\" effect=\"its end is "
			"missing\"", daemon->config.log_file, strerror(-error));
	daemon->oplog = NULL;
	daemon->oplog_error = 0;
	kvt_feed_drop(daemon);
	kvt_object_destroy(&daemon->oplog_tail);
	if (daemon->arena_readonly >= 0)
		close(daemon->arena_readonly);
	daemon->arena_readonly = -1;
	if (daemon->scratch)
		munmap(daemon->scratch, daemon->sizes.scratch_bytes);
	daemon->scratch = NULL;
	daemon->core = NULL;
	kvt_object_destroy(&daemon->arena);
	kvt_object_destroy(&daemon->ledger);
	if (daemon->pool.ops)
		daemon->pool.ops->destroy(&daemon->pool);
	daemon->pool.ops = NULL;
}

static int make_core(struct kvt_daemon *daemon, char why[KVT_WHY_BYTES])
{
	char prefix[KVT_OBJECT_NAME_BYTES];
	int error, old;

	kvt_object_prefix(prefix, daemon->config.runtime_dir, daemon->config.instance);
	old = kvt_object_clean(prefix);
	if (old)
		kvt_log(KVT_LOG_NOTICE, "leftovers_removed", "objects=%d why=\"a daemon of this "
			"instance died while it started\"", old);
	old = kvt_object_clean_orphans(KVT_OBJECT_PREFIX, ORPHAN_AGE_S);
	if (old)
		kvt_log(KVT_LOG_NOTICE, "orphans_removed", "objects=%d why=\"daemons of other "
			"instances died and were not started again\"", old);
	error = kvt_object_create(&daemon->arena, prefix, "arena", daemon->sizes.arena_bytes, why,
				  KVT_WHY_BYTES);
	if (error)
		return error;
	error = kvt_object_create_private(&daemon->ledger, "kvtrunk-ledger",
					  daemon->sizes.ledger_bytes);
	if (error)
		snprintf(why, KVT_WHY_BYTES, "no memory for the ledger: %s",
			 kvt_limit_text(-error));
	return error ? error : build_core(daemon, NULL, why);
}

/* Wait for clients that still map device memory of a dead daemon. Names them to the manager and
 * extends its timeout. False: a signal asks to end. */
static bool await_holders(struct kvt_daemon *daemon, const char *names)
{
	struct pollfd signals = { .fd = daemon->timers.signal_fd, .events = POLLIN };
	struct signalfd_siginfo info;

	kvt_notify_send(&daemon->notify, "EXTEND_TIMEOUT_USEC=%d\nSTATUS=waiting for device memory "
			"of an earlier daemon, held by %s\n", HOLDERS_EXTEND_US, names);
	return poll(&signals, 1, HOLDERS_POLL_MS) <= 0 ||
	       read(daemon->timers.signal_fd, &info, sizeof(info)) != (ssize_t)sizeof(info) ||
	       info.ssi_signo == SIGHUP;
}

static int create_pool(struct kvt_daemon *daemon, char why[KVT_WHY_BYTES])
{
	struct kvt_object_holders holders = { 0 };
	char prefix[KVT_OBJECT_NAME_BYTES], said[sizeof(holders.names)] = "";
	bool free_now = false; /* there were no holders after the last -ENOMEM */
	int error;

	kvt_object_prefix(prefix, daemon->config.runtime_dir, daemon->config.instance);
	for (;;) {
		error = daemon->pool.ops->create(&daemon->pool, why, KVT_WHY_BYTES);
		if (error != -ENOMEM || daemon->config.backend == KVT_POOL_HOST || free_now)
			return error;
		free_now = !kvt_object_held(prefix, &holders);
		if (free_now) /* the last holder may have exited after create() failed */
			continue;
		if (strcmp(holders.names, said) != 0)
			kvt_log(KVT_LOG_WARNING, "waits_for_memory", "holders=\"%s\" error=\"%s\" "
				"cure=\"these clients of an earlier daemon of this instance still "
				"map its pool: they close it or end, or are ended\"", holders.names,
				why);
		strlcpy(said, holders.names, sizeof(said));
		if (!await_holders(daemon, holders.names)) {
			snprintf(why, KVT_WHY_BYTES, "asked to end while clients of an earlier "
				 "daemon still held device memory: %s", holders.names);
			return -ECANCELED;
		}
	}
}

static int make_pool(struct kvt_daemon *daemon, char why[KVT_WHY_BYTES])
{
	int error;

	daemon->pool.ops = kvt_pool_backend_find(daemon->config.backend);
	error = create_pool(daemon, why);
	if (error)
		daemon->pool.ops = NULL;
	else
		why[0] = '\0';
	return error;
}

/* ---- recovery */

static void log_death(const struct kvt_core_adoption *adoption)
{
	char what[64];
	uint32_t deaths = kvt_core_died_in(adoption->died_in, what, sizeof(what));

	if (deaths)
		kvt_log(KVT_LOG_WARNING, "died_in", "what=\"%s\" deaths=%u effect=\"%s\"", what,
			deaths, deaths < KVT_FATAL_DEATHS ? "it is run again" :
			"it is answered with an error, and not run again");
}

static int adopt_core(struct kvt_daemon *daemon, char why[KVT_WHY_BYTES])
{
	struct kvt_core_adoption adoption = { 0 };
	int error;

	daemon->pool.ops = kvt_pool_backend_find(daemon->config.backend);
	error = kvt_adopt_objects(daemon, why);
	if (!error)
		error = build_core(daemon, &adoption, why);
	if (error)
		return error;
	daemon->adopted = true;
	memcpy(daemon->core_config.instance, kvt_core_arena(daemon->core)->instance,
	       sizeof(daemon->core_config.instance));
	error = kvt_adopt_sessions(daemon, why);
	if (error)
		return error;
	kvt_log(KVT_LOG_NOTICE, "adopted", "generation=%llu sessions=%u served=%u leases=%u "
		"waiting=%u nodes=%u cached_pages=%llu rolled_back=%s",
		(unsigned long long)adoption.generation, adoption.sessions,
		daemon->sessions.n_served, adoption.leases, adoption.waiting, adoption.nodes,
		(unsigned long long)adoption.cached_pages, adoption.rolled_back ? "yes" : "no");
	log_death(&adoption);
	return 0;
}

static enum kvt_cold_cause cold_cause(const struct kvt_daemon *daemon, bool left, int error)
{
	if (!left)
		return daemon->kept.has_lock || daemon->kept.has_socket ? KVT_COLD_DROPPED :
									  KVT_COLD_FIRST;
	return error == -EUCLEAN ? KVT_COLD_DAMAGED :
	       error == -ESTALE	 ? KVT_COLD_CHANGED :
				   KVT_COLD_FAILED;
}

/* Drop a stored cache that cannot be recovered. */
static void drop_cache(struct kvt_daemon *daemon, struct kvt_starts *ret_starts,
		       char why[KVT_WHY_BYTES])
{
	kvt_log(KVT_LOG_WARNING, "cold_start", "why=\"%s\" effect=\"an empty cache on new "
		"objects; clients of the old one have to connect again\"", why);
	why[0] = '\0';
	*ret_starts = kvt_core_starts_of(daemon->arena.base, daemon->arena.bytes,
					 daemon->ledger.base, daemon->ledger.bytes);
	if (daemon->arena.base)
		kvt_adopt_say_gone(daemon);
	unbuild_core(daemon);
	kvt_adopt_rest(daemon);
}

/* Recover the stored cache if it is complete and matches; else drop it and make a new one. */
static int make_cache(struct kvt_daemon *daemon, char why[KVT_WHY_BYTES])
{
	bool left = kvt_fdstore_has_cache(&daemon->kept.passed);
	struct kvt_starts starts = { 0 };
	int error = left ? adopt_core(daemon, why) : -ENOENT, failed = error;

	if (!error) {
		kvt_adopt_rest(daemon);
		return 0;
	}
	if (daemon->notify.upgrade.trial) {
		if (!left)
			snprintf(why, KVT_WHY_BYTES, "no cache was passed to recover");
		return -ESTALE;
	}
	if (left)
		drop_cache(daemon, &starts, why);
	error = make_pool(daemon, why);
	if (!error)
		error = make_core(daemon, why);
	if (!error)
		kvt_core_count_start(daemon->core, &starts, cold_cause(daemon, left, failed));
	return error;
}

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

static int socket_path(const struct kvt_config *config, char to[108])
{
	int n = *config->socket_path ?
			snprintf(to, 108, "%s", config->socket_path) :
			snprintf(to, 108, "%s/%s.sock", config->runtime_dir, config->instance);

	return n < 108 ? 0 : -ENAMETOOLONG; /* config_check() has checked that it fits */
}

static int no_group(const char *option, const char *name, char why[KVT_WHY_BYTES])
{
	snprintf(why, KVT_WHY_BYTES, "%s '%s' does not exist: make it (groupadd) or choose another",
		 option, name);
	return -EINVAL;
}

static int make_socket(struct kvt_daemon *daemon, char why[KVT_WHY_BYTES])
{
	const struct kvt_config *config = &daemon->config;
	int error;

	if (kvt_peer_group(config->socket_group, &daemon->listener.gid) != 0)
		return no_group("socket_group", config->socket_group, why);
	if (daemon->listener.fd >= 0) { /* passed by the service manager, or by a predecessor */
		daemon->listener.passed = !daemon->kept.has_socket;
		kvt_socket_passed(daemon);
		return 0;
	}
	error = socket_path(config, daemon->listener.path);
	if (!error)
		error = insist(daemon, kvt_socket_bind, &daemon->listener.holder, why);
	if (error && !*why)
		snprintf(why, KVT_WHY_BYTES, "cannot listen on %s: %s", daemon->listener.path,
			 strerror(-error));
	return named(daemon, error);
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

/* ---- --check-config */

static int check_pool(struct kvt_daemon *daemon, char why[KVT_WHY_BYTES])
{
	const struct kvt_config *config = &daemon->config;

	return kvt_pool_backend_find(config->backend)->check(&daemon->pool,
		kvt_lock_held(config->runtime_dir, config->instance), why, KVT_WHY_BYTES);
}

/* Check room for the arena. A running daemon of this instance frees its own first. */
static int check_shm(const struct kvt_daemon *daemon, char why[KVT_WHY_BYTES])
{
	const struct kvt_config *config = &daemon->config;
	uint64_t arena = daemon->sizes.arena_bytes;
	bool running = kvt_lock_held(config->runtime_dir, config->instance);

	return kvt_object_room(arena, running ? arena : 0, why, KVT_WHY_BYTES);
}

/* Check mlock() on one mapping without populating it: locking all of it would take long. */
static int check_mlock(const struct kvt_daemon *daemon, char why[KVT_WHY_BYTES])
{
	const struct kvt_core_sizes *sizes = &daemon->sizes;
	bool host = daemon->config.backend == KVT_POOL_HOST;
	size_t pool = daemon->plan.n_slabs * (daemon->plan.n_pages * daemon->plan.page_bytes);
	size_t bytes = sizes->arena_bytes + sizes->ledger_bytes + sizes->scratch_bytes +
		       (host ? pool : 0);
	void *base;
	int error = 0;

	if (!daemon->config.mlock)
		return 0;
	base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	/* MLOCK_ONFAULT checks the limit and allocates no page. */
	if (base == MAP_FAILED || mlock2(base, bytes, MLOCK_ONFAULT) != 0)
		error = kvt_memory_not_locked(-errno, why, KVT_WHY_BYTES);
	if (base != MAP_FAILED)
		munmap(base, bytes);
	return error;
}

/* Check what options name, as far as that can be told beforehand. The start does so, too, before it
 * makes anything. */
static int check_names(const struct kvt_daemon *daemon, char why[KVT_WHY_BYTES])
{
	const struct kvt_config *config = &daemon->config;
	int error = 0;
	gid_t gid;

	if (kvt_peer_group(config->socket_group, &gid) != 0)
		return no_group("socket_group", config->socket_group, why);
	if (kvt_peer_group(config->admin_group, &gid) != 0)
		return no_group("admin_group", config->admin_group, why);
	if (*config->log_file)
		error = kvt_oplog_check(config->log_file, why, KVT_WHY_BYTES);
	return named(daemon, error);
}

/* Check the places of lock and socket, which a start makes. A running instance has them. */
static int check_places(const struct kvt_daemon *daemon, char why[KVT_WHY_BYTES])
{
	const struct kvt_config *config = &daemon->config;
	char path[108];
	int error;

	if (kvt_lock_held(config->runtime_dir, config->instance))
		return 0;
	/* Who checks may be another user than the daemon's. */
	error = kvt_lock_check(config->runtime_dir, config->instance, why, KVT_WHY_BYTES);
	if (!error || error == -EACCES)
		error = socket_path(config, path);
	if (!error)
		error = kvt_socket_check(path, *config->socket_path, why);
	return error == -EACCES ? 0 : named(daemon, error);
}

int kvt_daemon_check(struct kvt_daemon *daemon, char why[KVT_WHY_BYTES])
{
	int error = kvt_daemon_raise_nofile(daemon, why) < 0 ? -EMFILE : 0;

	if (!error)
		error = pin_to_cpu(daemon, why);
	if (!error)
		error = named(daemon, kvt_daemon_plan(daemon, why));
	if (!error)
		error = check_memory(daemon, why);
	if (!error)
		error = check_pool(daemon, why);
	if (!error)
		error = check_shm(daemon, why);
	if (!error)
		error = check_mlock(daemon, why);
	if (!error)
		error = check_names(daemon, why);
	if (!error)
		error = check_places(daemon, why);
	if (!error)
		error = kvt_host_try(why);
	if (!error)
		error = open_loop(daemon, why);
	if (!error)
		kvt_loop_close(&daemon->loop);
	return error;
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
	unbuild_core(daemon);
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
	char path[108], text[256];
	struct stat there;
	int stale = 0, error;

	error = kvt_lock_take(&daemon->lock, config->runtime_dir, config->instance, &stale, why,
			      KVT_WHY_BYTES);
	if (error == -EADDRINUSE && socket_path(config, path) == 0 && lstat(path, &there) != 0) {
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
		error = kvt_daemon_raise_nofile(daemon, why) < 0 ? -EMFILE : 0;
	if (!error)
		error = pin_to_cpu(daemon, why);
	if (!error)
		error = named(daemon, kvt_daemon_plan(daemon, why));
	if (!error)
		error = check_memory(daemon, why);
	/* Beside a cache to recover: that is worth more than a group, or a log. */
	if (!error && !kvt_fdstore_has_cache(&daemon->kept.passed))
		error = check_names(daemon, why);
	if (!error)
		error = named(daemon, insist(daemon, take_lock, &daemon->lock.holder, why));
	if (!error)
		error = kvt_host_try(why);
	if (!error)
		error = open_loop(daemon, why);
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
		error = make_cache(daemon, why);
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
