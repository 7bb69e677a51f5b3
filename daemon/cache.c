/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file cache.c
 * The cache at the start: pool, core, operation log. It is recovered whole from what the keeper
 * stored, or made new.
 */
#include "daemon/cache.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <bsd/string.h>

#include "daemon/core/ledger.h"
#include "daemon/log/operations.h"
#include "daemon/prepare.h"
#include "daemon/serve/adopt.h"
#include "daemon/serve/turn.h"
#include "daemon/setup/memory.h"
#include "daemon/setup/pool_backend.h"
#include "shm/assert.h"
#include "shm/limit.h"
#include "shm/map.h"

#define HOLDERS_POLL_MS 100
#define HOLDERS_EXTEND_US 10000000 /* requested again with each poll */
#define ORPHAN_AGE_S 600

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
	error = kvt_oplog_open(daemon->config.log_file, &daemon->core_config, &daemon->oplog, why,
			       KVT_WHY_BYTES);
	error = kvt_daemon_named(daemon, error);
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

void kvt_daemon_unmake_cache(struct kvt_daemon *daemon)
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
	kvt_daemon_unmake_cache(daemon);
	kvt_adopt_rest(daemon);
}

int kvt_daemon_make_cache(struct kvt_daemon *daemon, char why[KVT_WHY_BYTES])
{
	bool left = kvt_fdstore_has_cache(&daemon->kept.passed);
	struct kvt_starts starts = { 0 };
	int error, failed;

	KVT_ASSERT(daemon->lock.fd >= 0);
	KVT_ASSERT(!daemon->core && daemon->arena.fd < 0 && daemon->ledger.fd < 0);
	error = failed = left ? adopt_core(daemon, why) : -ENOENT;

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
