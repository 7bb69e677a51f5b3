/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/daemon.h"
#include "daemon/takeover.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
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

#include "shm/geometry.h"

#define LOCK_POLL_MS 10
#define ANSWER_MS 10000 /* of a daemon that serves */
#define ENDING_MS 10000 /* until a process that was killed has let go of everything */
#define HOLDERS_POLL_MS 100
#define HOLDERS_EXTEND_US 10000000 /* asked anew with each look */
#define FDS_PER_MEMBER 3  /* connection, segment, pidfd */
#define FDS_PER_SESSION 6 /* connection, segment, areas, doorbell, bell, pidfd */
#define FDS_BESIDE 48
#define LISTEN_BACKLOG 256
#define LEAVING_BESIDE 2048 /* of connections that come and go at once: the loop's queue and more */
#define CALIBRATE_NS 200000ull /* a clock read of 50 ns is 0.03 % of that */
#define CLOCK_INTERVAL_US 5
#define COMPACT_AFTER_US 50
#define ORPHAN_AGE_S 600
#define WATCH_QUEUE_NS 30000000000ull
#define TEST_CLOCK_START_NS 1000000000ull

/* ---- limits of the process */

static int raise_nofile(struct kvt_daemon *daemon, char why[KVT_WHY_BYTES])
{
	const struct kvt_config *config = &daemon->config;
	uint64_t need = (uint64_t)config->max_sessions * FDS_PER_SESSION +
			(uint64_t)config->max_members * FDS_PER_MEMBER +
			(uint64_t)config->max_half_open + (uint64_t)config->max_observers +
			FDS_BESIDE;
	struct rlimit limit;
	rlim_t hard;

	getrlimit(RLIMIT_NOFILE, &limit);
	hard = limit.rlim_max;
	if (limit.rlim_cur >= need)
		return 0;
	limit.rlim_cur = need;
	limit.rlim_max = hard > need ? hard : need; /* root may raise that, too */
	if (setrlimit(RLIMIT_NOFILE, &limit) == 0)
		return 0;
	snprintf(why, KVT_WHY_BYTES, "max_sessions=%lld needs %llu descriptors, but the hard "
		 "RLIMIT_NOFILE is %llu: raise it (ulimit -Hn, LimitNOFILE=) or lower "
		 "max_sessions, max_half_open or max_observers", (long long)config->max_sessions,
		 (unsigned long long)need, (unsigned long long)hard);
	return -EMFILE;
}

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

static uint64_t monotonic_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000ull + (uint64_t)now.tv_nsec;
}

struct instant {
	uint64_t ns, cycles;
};

/* Both clocks at one time: of some looks the one in which least time passed. In a single one the
 * scheduler may come between the two, and be away a hundred times as long as is measured. */
static struct instant look_at_clocks(void)
{
	struct instant best = { 0, 0 };
	uint64_t least = UINT64_MAX;

	for (int i = 0; i < 16; i++) {
		struct instant now = { .ns = monotonic_ns(), .cycles = kvt_cycles() };
		uint64_t passed = monotonic_ns() - now.ns;

		if (passed < least) {
			least = passed;
			best = now;
		}
	}
	return best;
}

/* Cycles a microsecond, to within a per cent or so: budgets and histograms need no more. */
static void calibrate(struct kvt_daemon *daemon)
{
	struct instant begin = look_at_clocks(), end;

	do {
		end = look_at_clocks();
	} while (end.ns - begin.ns < CALIBRATE_NS);
	daemon->cycles_per_us = (end.cycles - begin.cycles) * 1000 / (end.ns - begin.ns);
	if (!daemon->cycles_per_us)
		daemon->cycles_per_us = 1;
	daemon->clock_interval = CLOCK_INTERVAL_US * daemon->cycles_per_us;
	daemon->units_per_cycle = (1000ull << 32) / (64 * daemon->cycles_per_us);
}

/* The look-up may go to a directory service, so it is made only when the name is new. */
static void find_admin_group(struct kvt_daemon *daemon)
{
	const char *name = daemon->config.admin_group;

	if (strcmp(daemon->admin_group, name) == 0)
		return;
	strlcpy(daemon->admin_group, name, sizeof(daemon->admin_group));
	if (kvt_peer_group(name, &daemon->admin_gid) != 0)
		kvt_log(KVT_LOG_WARNING, "no_group", "admin_group=\"%s\" effect=\"only uid 0 and "
			"the daemon's uid are privileged\"", name);
}

void kvt_daemon_apply(struct kvt_daemon *daemon)
{
	const struct kvt_config *config = &daemon->config;
	uint64_t settle = COMPACT_AFTER_US * daemon->cycles_per_us;

	kvt_log_set_level(KVT_LOG_ERROR + (int)config->log_level);
	daemon->pool.mps = config->mps;
	daemon->pool.mps_grace_ns = (uint64_t)config->mps_grace_ms * 1000000;
	/* On a single core whoever spins keeps the other from doing what is waited for. */
	if (config->spin_budget_us > 0 && sysconf(_SC_NPROCESSORS_ONLN) == 1)
		daemon->spin_most_cycles = 0;
	else
		daemon->spin_most_cycles = config->spin_budget_us < 0
						   ? UINT64_MAX
						   : (uint64_t)config->spin_budget_us *
							     daemon->cycles_per_us;
	daemon->spin_cycles = daemon->spin_most_cycles;
	daemon->compact_after_cycles = daemon->spin_most_cycles < settle ? daemon->spin_most_cycles
									 : settle;
	find_admin_group(daemon);
}

/* ---- core */

static void read_boot_id(uint64_t boot_id[2])
{
	char text[64] = "", digits[33];
	FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");
	size_t n = 0;

	if (file) {
		if (!fgets(text, sizeof(text), file))
			text[0] = '\0';
		fclose(file);
	}
	for (const char *c = text; *c && n < 32; c++)
		if (*c != '-' && *c != '\n')
			digits[n++] = *c;
	digits[n] = '\0';
	if (n == 32) {
		boot_id[1] = strtoull(digits + 16, NULL, 16);
		digits[16] = '\0';
		boot_id[0] = strtoull(digits, NULL, 16);
	}
}

/* The pool that is to be made. What only the backend can tell comes from it. */
static int plan_pool(struct kvt_daemon *daemon, char why[KVT_WHY_BYTES])
{
	const struct kvt_config *config = &daemon->config;
	struct kvt_pool *pool = &daemon->pool;
	const struct kvt_pool_backend_ops *ops = kvt_pool_backend_find(config->backend);
	struct kvt_pool_plan *plan = &daemon->plan;
	uint64_t free_bytes = 0;
	uint32_t left;
	int error = kvt_pool_plan_shape(config, plan, why);

	if (!error)
		error = kvt_pool_plan_scales(config, plan, why);
	if (error)
		return error;
	pool->n_slabs = plan->n_slabs;
	pool->page_bytes = plan->page_bytes;
	pool->mlock = config->mlock;
	pool->hugepages = config->hugepages;
	pool->devices = config->devices;
	pool->mps = config->mps;
	left = kvt_adopt_n_pages(daemon);
	if (!config->n_pages && config->pool_bytes.percent && !left)
		error = ops->free_bytes(pool, &free_bytes, why, KVT_WHY_BYTES);
	if (!error)
		error = kvt_pool_plan_pages(config, left, free_bytes, plan, why);
	pool->n_pages = plan->n_pages;
	return error;
}

/* Seven eighths: what one uid may have of what all share, uid 0 too. */
static uint32_t uid_share(uint32_t all)
{
	return all - all / 8;
}

/* What one uid may have, and one session with it. A lease takes two tree nodes at most, its own and
 * a root or what a split left: so no uid's leases use up all nodes. */
static void limit_uids(struct kvt_core_config *config)
{
	uint32_t nodes = uid_share(config->max_nodes) / 2;

	config->uid_sessions = uid_share(config->max_sessions);
	config->uid_leases = uid_share(config->n_leases);
	if (config->uid_leases > nodes)
		config->uid_leases = nodes;
	config->uid_namespaces = uid_share(config->max_namespaces);
	config->uid_pages = uid_share(config->n_pages - 1);
	if (!config->max_leases || config->max_leases > config->uid_leases)
		config->max_leases = config->uid_leases;
}

static int plan_core(struct kvt_daemon *daemon, char why[KVT_WHY_BYTES])
{
	const struct kvt_config *from = &daemon->config;
	struct kvt_core_config *to = &daemon->core_config;
	const char *reason = "";
	int error = plan_pool(daemon, why);

	if (error)
		return error;
	to->page_size = (uint32_t)from->page_size;
	to->n_pages = daemon->plan.n_pages;
	to->n_slots = (uint32_t)from->n_slots;
	to->max_nodes = (uint32_t)from->max_nodes;
	to->max_namespaces = (uint32_t)from->max_namespaces;
	to->max_sessions = (uint32_t)from->max_sessions;
	to->max_members = (uint32_t)from->max_members;
	to->n_leases = (uint32_t)from->total_leases;
	to->n_pending = (uint32_t)(from->total_deferred + from->max_sessions);
	to->max_leases = (uint32_t)from->max_leases;
	to->max_private_pages = (uint32_t)from->max_private_pages.value;
	if (from->max_private_pages.percent)
		to->max_private_pages = (uint32_t)((to->n_pages - 1ull) *
						   (uint64_t)from->max_private_pages.value / 100);
	if (from->max_private_pages.value && !to->max_private_pages)
		to->max_private_pages = 1; /* 0 would mean: no limit */
	to->max_op_keys = (uint32_t)from->max_op_keys;
	to->policy = from->policy;
	to->slru_threshold = (uint32_t)from->slru_threshold;
	to->disabled = !from->caching;
	to->coalesce_threshold = (uint32_t)from->coalesce_threshold;
	strlcpy(to->fingerprint, daemon->plan.fingerprint, sizeof(to->fingerprint));
	read_boot_id(to->boot_id);
	if (getrandom(&to->hash_seed, sizeof(to->hash_seed), 0) != sizeof(to->hash_seed) ||
	    getrandom(to->instance, sizeof(to->instance), 0) != sizeof(to->instance)) {
		snprintf(why, KVT_WHY_BYTES, "the kernel gives no random numbers");
		return -EIO;
	}
	error = kvt_core_plan(to, &daemon->sizes, &reason);
	if (error)
		snprintf(why, KVT_WHY_BYTES, "these limits do not work together: %s", reason);
	else
		limit_uids(to);
	return error;
}

static int check_memory(const struct kvt_daemon *daemon, char why[KVT_WHY_BYTES])
{
	const struct kvt_core_sizes *sizes = &daemon->sizes;
	/* Device memory is asked for by the backend. */
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

static int cannot_lock(int error, char why[KVT_WHY_BYTES])
{
	struct rlimit limit;

	getrlimit(RLIMIT_MEMLOCK, &limit);
	snprintf(why, KVT_WHY_BYTES, "cannot lock arena, ledger and scratch: %s; RLIMIT_MEMLOCK is "
		 "%llu: raise it (ulimit -l, LimitMEMLOCK=) or set mlock = no", strerror(-error),
		 (unsigned long long)limit.rlim_cur);
	return error;
}

static int lock_memory(const struct kvt_daemon *daemon, char why[KVT_WHY_BYTES])
{
	if (!daemon->config.mlock)
		return 0;
	if (mlock(daemon->arena.base, daemon->arena.bytes) == 0 &&
	    mlock(daemon->ledger.base, daemon->ledger.bytes) == 0 &&
	    mlock(daemon->scratch, daemon->sizes.scratch_bytes) == 0)
		return 0;
	return cannot_lock(-errno, why);
}

static void end_log(struct kvt_daemon *daemon, const char *why)
{
	daemon->oplog_failed = true;
	kvt_log(KVT_LOG_ERROR, "oplog_failed", "file=\"%s\" why=\"%s\" effect=\"the log ends "
		"here\"", daemon->config.log_file, why);
}

static void write_record(void *context, const struct kvt_record *record)
{
	struct kvt_daemon *daemon = context;

	if (daemon->oplog_failed)
		return;
	daemon->oplog_dirty = true;
	if (kvt_oplog_write(daemon->oplog, record) == 0)
		return;
	daemon->oplog_failed = true;
	kvt_log(KVT_LOG_ERROR, "oplog_failed", "file=\"%s\" seq=%llu effect=\"the log ends here\"",
		daemon->config.log_file, (unsigned long long)record->seq);
}

/* The tail of a log that a successor goes on with. */
static int make_oplog_tail(struct kvt_daemon *daemon, char why[KVT_WHY_BYTES])
{
	int error = kvt_object_create_sealed(&daemon->oplog_tail, "kvtrunk-log",
					     sizeof(struct kvt_oplog_tail));

	if (error)
		snprintf(why, KVT_WHY_BYTES, "no memory for the log's tail: %s", strerror(-error));
	else
		kvt_oplog_keep(daemon->oplog, daemon->oplog_tail.base);
	return error;
}

/* A cache is not given up for its log: where that cannot go on, it ends. */
static int continue_oplog(struct kvt_daemon *daemon, char why[KVT_WHY_BYTES])
{
	const struct kvt_arena_header *arena = daemon->arena.base;
	const struct kvt_object *tail = &daemon->oplog_tail;
	int error = -ESTALE;

	if (tail->bytes < sizeof(struct kvt_oplog_tail))
		snprintf(why, KVT_WHY_BYTES, "the last daemon wrote none");
	else
		error = kvt_oplog_continue(daemon->config.log_file, &daemon->core_config,
					   arena->instance, tail->base, &daemon->oplog, why,
					   KVT_WHY_BYTES);
	if (error == -ENOMEM)
		return error;
	daemon->oplog_failed = error != 0;
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
	return !error && daemon->notify.store ? make_oplog_tail(daemon, why) : error;
}

int kvt_daemon_hand_over_log(struct kvt_daemon *daemon)
{
	int error;

	if (!daemon->oplog || daemon->oplog_failed)
		return 0;
	error = kvt_oplog_flush(daemon->oplog);
	if (error) { /* a full disk: a cache is not given up for its log */
		end_log(daemon, strerror(-error));
		return 0;
	}
	error = kvt_object_create_sealed(&daemon->oplog_tail, "kvtrunk-log",
					 sizeof(struct kvt_oplog_tail));
	if (!error)
		error = kvt_oplog_hand_over(daemon->oplog, daemon->oplog_tail.base);
	if (error)
		kvt_object_destroy(&daemon->oplog_tail);
	if (error != -ESPIPE)
		return error;
	kvt_log(KVT_LOG_WARNING, "oplog_not_handed_over", "file=\"%s\" why=\"it is no regular "
		"file\" effect=\"whoever takes over writes none\"", daemon->config.log_file);
	return 0;
}

static void take_back_log(struct kvt_daemon *daemon)
{
	int error = daemon->oplog_tail.base ? kvt_oplog_take_back(daemon->oplog) : 0;

	if (!error)
		return;
	daemon->oplog_failed = true;
	kvt_log(KVT_LOG_ERROR, "oplog_failed", "file=\"%s\" why=\"who was to take over left it "
		"in disorder: %s\" effect=\"the log ends here\"", daemon->config.log_file,
		strerror(-error));
}

/* The tail was for a takeover, which is over: whoever takes over next gets a new one. */
static void let_go_of_log(struct kvt_daemon *daemon)
{
	if (!daemon->oplog_tail.base || daemon->notify.store)
		return;
	if (daemon->oplog)
		kvt_oplog_let_go(daemon->oplog);
	kvt_object_destroy(&daemon->oplog_tail);
}

/* Everything around the core: `adoption` NULL: a new one, else that of a predecessor. */
static int build_core(struct kvt_daemon *daemon, struct kvt_core_adoption *adoption,
		      char why[KVT_WHY_BYTES])
{
	struct kvt_core_hooks hooks = { .complete = kvt_daemon_complete, .context = daemon };
	int error;

	daemon->scratch = mmap(NULL, daemon->sizes.scratch_bytes, PROT_READ | PROT_WRITE,
			       MAP_PRIVATE | MAP_ANONYMOUS | (adoption ? 0 : MAP_POPULATE), -1, 0);
	if (daemon->scratch == MAP_FAILED) {
		daemon->scratch = NULL;
		snprintf(why, KVT_WHY_BYTES, "no memory for %llu bytes of scratch",
			 (unsigned long long)daemon->sizes.scratch_bytes);
		return -ENOMEM;
	}
	error = lock_memory(daemon, why);
	if (!error && *daemon->config.log_file) {
		error = open_oplog(daemon, adoption != NULL, why);
		hooks.record = write_record;
	}
	if (!error && adoption)
		error = kvt_core_adopt(&daemon->core, &daemon->core_config, daemon->arena.base,
				       daemon->ledger.base, daemon->scratch, &hooks,
				       daemon->now_ns, adoption, why, KVT_WHY_BYTES);
	else if (!error)
		error = kvt_core_init(&daemon->core, &daemon->core_config, daemon->arena.base,
				      daemon->ledger.base, daemon->scratch, &hooks,
				      daemon->now_ns);
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
	kvt_object_forget_name(&daemon->ledger);
	return 0;
}

static void unbuild_core(struct kvt_daemon *daemon)
{
	if (daemon->oplog && kvt_oplog_close(daemon->oplog) != 0)
		kvt_log(KVT_LOG_ERROR, "oplog_failed", "file=\"%s\" effect=\"its end is missing\"",
			daemon->config.log_file);
	daemon->oplog = NULL;
	daemon->oplog_failed = false;
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
	if (!error)
		error = kvt_object_create(&daemon->ledger, prefix, "ledger",
					  daemon->sizes.ledger_bytes, why, KVT_WHY_BYTES);
	return error ? error : build_core(daemon, NULL, why);
}

/* Device memory of a daemon that died is free when the last client lets go of it: they are told and
 * named, and the manager hears that this takes its time. False: asked to end meanwhile. */
static bool await_holders(struct kvt_daemon *daemon, const char *names)
{
	struct pollfd signals = { .fd = daemon->signal_fd, .events = POLLIN };
	struct signalfd_siginfo info;

	kvt_notify_send(&daemon->notify, "EXTEND_TIMEOUT_USEC=%d\nSTATUS=waiting for device memory "
			"of an earlier daemon, held by %s\n", HOLDERS_EXTEND_US, names);
	return poll(&signals, 1, HOLDERS_POLL_MS) <= 0 ||
	       read(daemon->signal_fd, &info, sizeof(info)) != (ssize_t)sizeof(info) ||
	       info.ssi_signo == SIGHUP;
}

static int create_pool(struct kvt_daemon *daemon, char why[KVT_WHY_BYTES])
{
	struct kvt_object_holders holders = { 0 };
	char prefix[KVT_OBJECT_NAME_BYTES], said[sizeof(holders.names)] = "";
	bool free_now = false; /* nobody held anything when there was no memory last */
	int error;

	kvt_object_prefix(prefix, daemon->config.runtime_dir, daemon->config.instance);
	for (;;) {
		error = daemon->pool.ops->create(&daemon->pool, why, KVT_WHY_BYTES);
		if (error != -ENOMEM || daemon->config.backend == KVT_POOL_HOST || free_now)
			return error;
		free_now = !kvt_object_held(prefix, &holders);
		if (free_now) /* the last one may have let go between the two looks */
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

/* ---- a predecessor's */

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
	kvt_adopt_sessions(daemon);
	kvt_log(KVT_LOG_NOTICE, "adopted", "generation=%llu sessions=%u served=%u leases=%u "
		"waiting=%u nodes=%u cached_pages=%llu rolled_back=%s",
		(unsigned long long)adoption.generation, adoption.sessions, daemon->n_served,
		adoption.leases, adoption.waiting, adoption.nodes,
		(unsigned long long)adoption.cached_pages, adoption.rolled_back ? "yes" : "no");
	return 0;
}

/* What a predecessor left, if it is whole and ours; else new, and nothing of the old. */
static int make_cache(struct kvt_daemon *daemon, char why[KVT_WHY_BYTES])
{
	bool left = kvt_parcels_left(&daemon->passed);
	int error;

	if (left && adopt_core(daemon, why) == 0) {
		kvt_adopt_rest(daemon);
		return 0;
	}
	if (daemon->takeover)
		return -ESTALE; /* with its cause: the old one serves on */
	if (left) {
		kvt_log(KVT_LOG_WARNING, "cold_start", "why=\"%s\" effect=\"an empty cache on new "
			"objects; clients of the old one have to connect again\"", why);
		why[0] = '\0';
		if (daemon->arena.base)
			kvt_adopt_say_gone(daemon);
		unbuild_core(daemon);
		kvt_adopt_rest(daemon);
	}
	error = make_pool(daemon, why);
	return error ? error : make_core(daemon, why);
}

static int make_tables(struct kvt_daemon *daemon, char why[KVT_WHY_BYTES])
{
	uint32_t sessions = daemon->core_config.max_sessions;
	uint32_t members = daemon->core_config.max_members;

	daemon->common_places = (uint32_t)daemon->config.total_deferred / 2;
	daemon->own_places = 1 + daemon->common_places / sessions;
	daemon->n_connections = sessions + members + (uint32_t)daemon->config.max_half_open +
				(uint32_t)daemon->config.max_observers;
	daemon->sessions = aligned_alloc(KVT_LINE, (sessions + 1) * sizeof(struct kvt_session));
	daemon->members = calloc(members + 1, sizeof(struct kvt_member));
	daemon->served = calloc(sessions + 1, sizeof(uint32_t));
	daemon->connections = calloc(daemon->n_connections, sizeof(struct kvt_connection));
	daemon->free_connections = calloc(daemon->n_connections, sizeof(uint32_t));
	daemon->message = aligned_alloc(KVT_LINE, KVT_MESSAGE_MAX);
	daemon->answer = aligned_alloc(KVT_LINE, KVT_MESSAGE_MAX);
	if (kvt_shares_init(&daemon->shares, sessions, daemon->cycles_per_us) != 0 ||
	    kvt_half_opens_init(&daemon->half_open,
				(uint32_t)daemon->config.max_half_open) != 0 ||
	    !daemon->sessions || !daemon->members || !daemon->served || !daemon->connections ||
	    !daemon->free_connections || !daemon->message || !daemon->answer) {
		snprintf(why, KVT_WHY_BYTES, "no memory for %u sessions", sessions);
		return -ENOMEM;
	}
	memset(daemon->sessions, 0, (sessions + 1) * sizeof(struct kvt_session));
	for (uint32_t i = 0; i <= sessions; i++) {
		daemon->sessions[i].pidfd = daemon->sessions[i].doorbell = -1;
		daemon->sessions[i].bell = -1;
		daemon->sessions[i].segment.fd = daemon->sessions[i].areas.fd = -1;
	}
	for (uint32_t i = 0; i <= members; i++)
		daemon->members[i].pidfd = daemon->members[i].segment.fd = -1;
	for (uint32_t i = 0; i < daemon->n_connections; i++) {
		daemon->connections[i].fd = -1;
		daemon->free_connections[i] = daemon->n_connections - 1 - i;
	}
	daemon->n_free_connections = daemon->n_connections;
	TAILQ_INIT(&daemon->readable);
	return 0;
}

/* ---- what another daemon may hold */

static bool asked_to_end(void)
{
	sigset_t waiting;

	return sigpending(&waiting) == 0 &&
	       (sigismember(&waiting, SIGTERM) || sigismember(&waiting, SIGINT));
}

/* Take what a daemon holds that is ending just now, as after kill -9: it is free in a moment. Of a
 * live one, or when the wait was in vain: -EADDRINUSE. `holder` is who has it after a refusal. */
static int insist(struct kvt_daemon *daemon, int take(struct kvt_daemon *daemon, char *why),
		  const pid_t *holder, char why[KVT_WHY_BYTES])
{
	int error = take(daemon, why);

	for (int waited_ms = 0; error == -EADDRINUSE && waited_ms < ENDING_MS &&
	     kvt_process_ending(*holder) && !asked_to_end(); waited_ms += LOCK_POLL_MS) {
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

/* Remove a dead daemon's socket file that is in the way. -EADDRINUSE: a process listens there. */
static int clear_socket(struct kvt_daemon *daemon, char *why)
{
	const char *path = daemon->socket_path;
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	struct ucred owner = { 0 };
	socklen_t bytes = sizeof(owner);
	struct stat there;
	int fd, error;

	if (lstat(path, &there) != 0)
		return 0;
	if (!S_ISSOCK(there.st_mode)) {
		snprintf(why, KVT_WHY_BYTES, "socket_path %s exists and is not a socket: remove it "
			 "or choose another", path);
		return -EEXIST;
	}
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return -errno;
	strlcpy(address.sun_path, path, sizeof(address.sun_path));
	error = connect(fd, (struct sockaddr *)&address, sizeof(address)) == 0 ? 0 : -errno;
	if (error == 0)
		getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &owner, &bytes);
	close(fd);
	daemon->socket_holder = owner.pid;
	if (error == -ECONNREFUSED) {
		unlink(path);
		return 0;
	}
	if (error == 0 || error == -EAGAIN)
		snprintf(why, KVT_WHY_BYTES, "socket %s is in use by a live process, pid %d: stop "
			 "it, or choose another socket_path", path, (int)owner.pid);
	else
		snprintf(why, KVT_WHY_BYTES, "socket %s is in use (%s): choose another socket_path",
			 path, strerror(-error));
	return -EADDRINUSE;
}

static int no_group(const char *option, const char *name, char why[KVT_WHY_BYTES])
{
	snprintf(why, KVT_WHY_BYTES, "%s '%s' does not exist: make it (groupadd) or choose another",
		 option, name);
	return -ENOENT;
}

static int own_socket(const struct kvt_daemon *daemon, char why[KVT_WHY_BYTES])
{
	const struct kvt_config *config = &daemon->config;
	gid_t gid;

	if (kvt_peer_group(config->socket_group, &gid) != 0)
		return no_group("socket_group", config->socket_group, why);
	if ((gid != (gid_t)-1 && chown(daemon->socket_path, (uid_t)-1, gid) != 0) ||
	    chmod(daemon->socket_path, (mode_t)config->socket_mode) != 0) {
		int error = -errno;

		snprintf(why, KVT_WHY_BYTES, "cannot set group and mode of %s: %s",
			 daemon->socket_path, strerror(-error));
		return error;
	}
	return 0;
}

static int bind_socket(struct kvt_daemon *daemon, char why[KVT_WHY_BYTES])
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	int error = insist(daemon, clear_socket, &daemon->socket_holder, why);
	mode_t mask;

	if (error)
		return error;
	strlcpy(address.sun_path, daemon->socket_path, sizeof(address.sun_path));
	daemon->listen_fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (daemon->listen_fd < 0)
		return -errno;
	mask = umask(0177); /* nobody gets in before group and mode are right */
	error = bind(daemon->listen_fd, (struct sockaddr *)&address, sizeof(address)) ? -errno : 0;
	umask(mask);
	if (error) {
		snprintf(why, KVT_WHY_BYTES, "cannot bind socket %s: %s", daemon->socket_path,
			 strerror(-error));
		return error;
	}
	daemon->socket_made = true;
	error = own_socket(daemon, why);
	kvt_control_refuse_fds(daemon, daemon->listen_fd); /* before the first connection */
	if (!error && listen(daemon->listen_fd, LISTEN_BACKLOG) != 0)
		error = -errno;
	return error;
}

static int socket_path(const struct kvt_daemon *daemon, char to[108])
{
	const struct kvt_config *config = &daemon->config;
	int n = *config->socket_path ?
			snprintf(to, 108, "%s", config->socket_path) :
			snprintf(to, 108, "%s/%s.sock", config->runtime_dir, config->instance);

	return n < 108 ? 0 : -ENAMETOOLONG; /* config_check() made sure that it fits */
}

static int make_socket(struct kvt_daemon *daemon, char why[KVT_WHY_BYTES])
{
	struct sockaddr_un name = { 0 };
	socklen_t bytes = sizeof(name);
	int error, on = 1;

	if (daemon->listen_fd >= 0) { /* passed by the service manager, or by a predecessor */
		daemon->listen_passed = !daemon->listen_kept;
		kvt_control_refuse_fds(daemon, daemon->listen_fd);
		if (getsockname(daemon->listen_fd, (struct sockaddr *)&name, &bytes) == 0)
			strlcpy(daemon->socket_path, name.sun_path, sizeof(daemon->socket_path));
	} else {
		error = socket_path(daemon, daemon->socket_path);
		if (!error)
			error = bind_socket(daemon, why);
		if (error && !*why)
			snprintf(why, KVT_WHY_BYTES, "cannot listen on %s: %s",
				 daemon->socket_path, strerror(-error));
		if (error)
			return error;
	}
	/* Messages that are sent before we accept carry their sender, too. */
	setsockopt(daemon->listen_fd, SOL_SOCKET, SO_PASSCRED, &on, sizeof(on));
	return 0;
}

/* Not before everything is ours: a connection that is accepted by a process that gives up is lost,
 * and so is one that is greeted by it. */
static void begin_to_listen(struct kvt_daemon *daemon)
{
	/* Whoever asks whose socket it is (SO_PEERCRED) hears of the one that listened last. */
	if (daemon->listen_kept)
		listen(daemon->listen_fd, LISTEN_BACKLOG);
	kvt_control_greet(daemon);
	kvt_loop_accept(&daemon->loop, daemon->listen_fd, kvt_tag(KVT_TAG_ACCEPT, 0, 0));
	if (daemon->listen_kept || daemon->listen_passed) {
		daemon->queue_until_ns = daemon->real_ns + WATCH_QUEUE_NS;
		kvt_daemon_watch_queue(daemon);
	}
}

/* Before anything is made, so that a signal during a long start ends it in order as soon as the
 * loop runs, and leaves nothing. */
static int take_signals(struct kvt_daemon *daemon, char why[KVT_WHY_BYTES])
{
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGHUP);
	sigaddset(&set, SIGUSR2);
	signal(SIGPIPE, SIG_IGN);
	signal(SIGXFSZ, SIG_IGN); /* a log that may not grow further ends, and nothing else */
	sigprocmask(SIG_BLOCK, &set, NULL);
	daemon->signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
	if (daemon->signal_fd >= 0)
		return 0;
	snprintf(why, KVT_WHY_BYTES, "cannot watch signals: %s", strerror(errno));
	return -EIO;
}

/* ---- all of it */

/* How the number of pages came about. */
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
		(unsigned long long)sizes->scratch_bytes, KVT_SEGMENT_BYTES_MAX + 4ull *
			(2ull * core->max_op_keys + core->max_op_keys / core->page_size),
		daemon->pool.ops->name);
	if (*daemon->pool.note)
		kvt_log(KVT_LOG_NOTICE, "pool", "note=\"%s\"", daemon->pool.note);
	kvt_log(KVT_LOG_INFO, "limits", "page_size=%u page_bytes=%llu n_pages=%u n_slots=%u "
		"max_nodes=%u max_namespaces=%u max_sessions=%u max_leases=%u "
		"max_private_pages=%u total_leases=%u uid_sessions=%u uid_leases=%u "
		"uid_namespaces=%u uid_pages=%u nofile=%llu", core->page_size,
		(unsigned long long)daemon->pool.page_bytes, core->n_pages, core->n_slots,
		core->max_nodes, core->max_namespaces, core->max_sessions, core->max_leases,
		core->max_private_pages, core->n_leases, core->uid_sessions, core->uid_leases,
		core->uid_namespaces, core->uid_pages, (unsigned long long)nofile.rlim_cur);
	kvt_log(KVT_LOG_INFO, "loop", "io_uring=%s spin_budget_us=%lld cpu=%lld policy=%s "
		"caching=%s test_clock=%s watchdog_ms=%llu", daemon->loop.mode,
		(long long)daemon->config.spin_budget_us, (long long)daemon->config.cpu,
		kvt_policy_name(core->policy), core->disabled ? "no" : "yes",
		daemon->test_clock ? "yes" : "no",
		(unsigned long long)(daemon->notify.watchdog_ns / 1000000));
	kvt_log(KVT_LOG_NOTICE, "ready", "version=" KVT_VERSION " pid=%d instance=%s socket=\"%s\"",
		(int)getpid(), daemon->config.instance, daemon->socket_path);
}

/* ---- --check-config */

/* Arena and ledger. A running daemon of this instance gives its own back before the next starts. */
static int check_shm(const struct kvt_daemon *daemon, char why[KVT_WHY_BYTES])
{
	const struct kvt_config *config = &daemon->config;
	uint64_t arena = daemon->sizes.arena_bytes, ledger = daemon->sizes.ledger_bytes, back = 0;
	int error;

	if (kvt_lock_held(config->runtime_dir, config->instance))
		back = arena + ledger;
	error = kvt_object_room("arena", arena, 0, back, why, KVT_WHY_BYTES);
	return error ? error : kvt_object_room("ledger", ledger, arena, back, why, KVT_WHY_BYTES);
}

/* Only what a first page tells: mlock() of all of it would take its time. */
static int check_mlock(const struct kvt_daemon *daemon, char why[KVT_WHY_BYTES])
{
	const struct kvt_core_sizes *sizes = &daemon->sizes;
	size_t bytes = sizes->arena_bytes + sizes->ledger_bytes + sizes->scratch_bytes;
	void *base;
	int error = 0;

	if (!daemon->config.mlock)
		return 0;
	base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	/* On fault: the limit is checked, and no page is made. */
	if (base == MAP_FAILED || mlock2(base, bytes, MLOCK_ONFAULT) != 0)
		error = cannot_lock(-errno, why);
	if (base != MAP_FAILED)
		munmap(base, bytes);
	return error;
}

static int check_names(const struct kvt_daemon *daemon, char why[KVT_WHY_BYTES])
{
	const struct kvt_config *config = &daemon->config;
	gid_t gid;

	if (kvt_peer_group(config->socket_group, &gid) != 0)
		return no_group("socket_group", config->socket_group, why);
	if (kvt_peer_group(config->admin_group, &gid) != 0)
		return no_group("admin_group", config->admin_group, why);
	return *config->log_file ? kvt_oplog_check(config->log_file, why, KVT_WHY_BYTES) : 0;
}

int kvt_daemon_check(struct kvt_daemon *daemon, char why[KVT_WHY_BYTES])
{
	int error = raise_nofile(daemon, why);

	if (!error)
		error = pin_to_cpu(daemon, why);
	if (!error)
		error = plan_core(daemon, why);
	if (!error)
		error = check_memory(daemon, why);
	if (!error)
		error = check_shm(daemon, why);
	if (!error)
		error = check_mlock(daemon, why);
	if (!error)
		error = check_names(daemon, why);
	if (!error)
		error = kvt_loop_open(&daemon->loop, 0, why, KVT_WHY_BYTES);
	if (!error)
		kvt_loop_close(&daemon->loop);
	return error;
}

/* ---- the end */

/* Another daemon, or the manager, holds it, too. */
static void forget_lock(struct kvt_daemon *daemon)
{
	if (daemon->lock.fd >= 0)
		close(daemon->lock.fd);
	daemon->lock.fd = -1;
}

static void unmake(struct kvt_daemon *daemon)
{
	for (uint32_t i = 0; daemon->sessions && i <= daemon->core_config.max_sessions; i++)
		if (daemon->sessions[i].used)
			kvt_session_release(daemon, &daemon->sessions[i]);
	/* Before the groups, which would shut theirs down: they may be a successor's. */
	for (uint32_t i = 0; daemon->connections && i < daemon->n_connections; i++) {
		if (daemon->connections[i].fd >= 0)
			close(daemon->connections[i].fd);
		daemon->connections[i].fd = -1;
	}
	for (uint32_t i = 1; daemon->members && i <= daemon->core_config.max_members; i++)
		if (daemon->members[i].session)
			kvt_group_release(daemon, daemon->members[i].session);
	if (daemon->socket_made)
		unlink(daemon->socket_path);
	if (daemon->listen_fd >= 0)
		close(daemon->listen_fd);
	if (daemon->signal_fd >= 0)
		close(daemon->signal_fd);
	unbuild_core(daemon);
	if (daemon->loop.mode)
		kvt_loop_close(&daemon->loop);
	if (daemon->lock_parked)
		forget_lock(daemon);
	else
		kvt_lock_release(&daemon->lock);
	kvt_parcels_close(&daemon->passed);
	kvt_notify_close(&daemon->notify);
	kvt_shares_free(&daemon->shares);
	free(daemon->sessions);
	free(daemon->members);
	free(daemon->served);
	free(daemon->connections);
	free(daemon->free_connections);
	kvt_half_opens_free(&daemon->half_open);
	free(daemon->message);
	free(daemon->answer);
	kvt_closer_forget(&daemon->closer);
}

/* Connections and sessions that are there, and as many again that leave at the same time. */
static int start_closer(struct kvt_daemon *daemon, char why[KVT_WHY_BYTES])
{
	const struct kvt_config *config = &daemon->config;
	uint64_t most = 2ull * (uint64_t)(2 * config->max_sessions + config->max_members +
					  config->max_half_open + config->max_observers) +
			LEAVING_BESIDE;
	int error = kvt_closer_start(&daemon->closer, (uint32_t)most);

	if (error)
		snprintf(why, KVT_WHY_BYTES, "cannot start the process that closes what clients "
			 "shared (/proc/self/exe --closer): %s", strerror(-error));
	return error;
}

/* The lock of a predecessor, or a new one. */
static int take_lock(struct kvt_daemon *daemon, char why[KVT_WHY_BYTES])
{
	const struct kvt_config *config = &daemon->config;
	int made, stale = 0, error, fd;

	if (daemon->lock.fd >= 0)
		return 0;
	fd = kvt_adopt_lock(daemon, &made);
	if (fd < 0)
		return kvt_lock_take(&daemon->lock, config->runtime_dir, config->instance, &stale,
				     why, KVT_WHY_BYTES);
	daemon->lock_parked = true;
	error = kvt_lock_adopt(&daemon->lock, fd, config->runtime_dir, config->instance, made);
	if (!error && !daemon->takeover)
		error = kvt_lock_sign(&daemon->lock);
	if (error && !daemon->takeover) { /* removed, or of other options: it protects nothing */
		close(fd);
		kvt_unpark_lock(daemon, made);
		return kvt_lock_take(&daemon->lock, config->runtime_dir, config->instance, &stale,
				     why, KVT_WHY_BYTES);
	}
	if (error)
		snprintf(why, KVT_WHY_BYTES, "the running daemon is of another instance or "
			 "runtime_dir: start with its options");
	return error;
}

/* Whether the daemon said anything, given a moment; who hung up will not. */
static bool has_answered(int *fd)
{
	struct pollfd answer = { .fd = *fd, .events = POLLIN };
	char byte;

	if (poll(&answer, 1, LOCK_POLL_MS) != 1)
		return false;
	if (recv(*fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) > 0)
		return true;
	close(*fd);
	*fd = -1;
	return false;
}

/* A daemon that handed over and waits for a confirmation answers nobody. If that had come before
 * the one before us died, it ends, and the lock is free, of which nobody tells; else it serves on,
 * and answers. 0: the lock is ours. */
static int await_lock(struct kvt_daemon *daemon, char why[KVT_WHY_BYTES])
{
	int error = socket_path(daemon, daemon->socket_path), fd;

	if (error)
		return error;
	fd = kvt_takeover_hail(daemon->socket_path, why);
	for (int waited_ms = 0; waited_ms < ANSWER_MS; waited_ms += LOCK_POLL_MS) {
		error = take_lock(daemon, why);
		if (error != -EADDRINUSE || has_answered(&fd))
			break;
	}
	if (fd >= 0)
		close(fd);
	return error;
}

/* A manager that starts us again, with the same command, keeps what was taken over. Nobody is to be
 * asked then, unless the one before us died while the daemon that it asked served on: what it had
 * parked is that daemon's. Who holds the lock serves. */
static int look_for_own_cache(struct kvt_daemon *daemon, char why[KVT_WHY_BYTES])
{
	const struct kvt_parcel *kept = kvt_parcels_kept(&daemon->passed);
	char name[KVT_PARCEL_NAME_BYTES];
	int error;

	daemon->takeover = !kept;
	error = kept ? take_lock(daemon, why) : 0;
	if (error == -EADDRINUSE)
		error = await_lock(daemon, why);
	if (error != -EADDRINUSE)
		return error;
	daemon->takeover = true;
	for (; kept; kept = kvt_parcels_kept(&daemon->passed)) {
		strlcpy(name, kept->name, sizeof(name));
		kvt_notify_unpark(&daemon->notify, name);
		kvt_parcels_remove(&daemon->passed, name);
	}
	why[0] = '\0';
	return 0;
}

/* Its own socket comes with the daemon that runs. */
static int no_other_socket(const struct kvt_daemon *daemon, char why[KVT_WHY_BYTES])
{
	if (!daemon->passed.n)
		return 0;
	snprintf(why, KVT_WHY_BYTES, "a socket was passed ('%s'), and whoever connects to it waits "
		 "for this daemon: --takeover is for a service without a socket unit; start "
		 "without it", daemon->passed.at[0].name);
	return -EINVAL;
}

static int ask_for_cache(struct kvt_daemon *daemon, char why[KVT_WHY_BYTES])
{
	int error = no_other_socket(daemon, why);

	if (!error)
		error = socket_path(daemon, daemon->socket_path);
	return error ? error : kvt_takeover_ask(daemon, daemon->socket_path, why);
}

/* From the service manager, or from the daemon that runs. */
static int take_passed(struct kvt_daemon *daemon, char why[KVT_WHY_BYTES])
{
	int error = kvt_notify_passed(&daemon->passed, why, KVT_WHY_BYTES);

	if (!error && daemon->takeover)
		error = look_for_own_cache(daemon, why);
	if (!error && daemon->takeover)
		error = ask_for_cache(daemon, why);
	if (!error)
		error = kvt_parcels_take_listen(&daemon->passed, &daemon->listen_fd,
						&daemon->socket_made, why, KVT_WHY_BYTES);
	daemon->listen_kept = daemon->socket_made;
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
		error = raise_nofile(daemon, why);
	if (!error)
		error = start_closer(daemon, why);
	if (!error)
		error = pin_to_cpu(daemon, why);
	if (!error)
		error = plan_core(daemon, why);
	if (!error)
		error = check_memory(daemon, why);
	if (!error)
		error = insist(daemon, take_lock, &daemon->lock.holder, why);
	if (!error)
		error = kvt_loop_open(&daemon->loop, 0, why, KVT_WHY_BYTES);
	if (error)
		return error;
	calibrate(daemon);
	kvt_daemon_clock(daemon);
	if (daemon->test_clock)
		daemon->now_ns = TEST_CLOCK_START_NS;
	daemon->started_ns = daemon->now_ns;
	kvt_daemon_apply(daemon);
	error = make_tables(daemon, why);
	if (!error)
		error = make_cache(daemon, why);
	if (!error)
		error = make_socket(daemon, why);
	if (!error)
		kvt_loop_poll(&daemon->loop, daemon->signal_fd, POLLIN,
			      kvt_tag(KVT_TAG_SIGNAL, 0, 0));
	return error;
}

/* All of it is ours now, or still the other one's. What a manager is to keep it has before, so that
 * nothing is lost if we die at once: should that be before the other one knows, whoever is started
 * next finds it alive. */
static int end_takeover(struct kvt_daemon *daemon, int error, char why[KVT_WHY_BYTES])
{
	/* A signal during takeover aborts the takeover, not the running daemon. */
	if (!error && asked_to_end()) {
		snprintf(why, KVT_WHY_BYTES, "asked to end before everything was taken up: the "
			 "daemon that has it serves on");
		error = -ECANCELED;
	}
	if (!error) {
		kvt_park_taken(daemon);
		error = kvt_takeover_confirm(daemon);
		if (error)
			snprintf(why, KVT_WHY_BYTES, "the daemon did not wait until everything "
				 "was taken up");
	}
	if (!error) {
		kvt_lock_sign(&daemon->lock);
		daemon->lock_parked = false; /* only by the daemon that had it */
		let_go_of_log(daemon);
		return 0;
	}
	kvt_unpark_all(daemon);
	daemon->socket_made = false;
	forget_lock(daemon);
	return error;
}

int kvt_daemon_start(struct kvt_daemon *daemon, char why[KVT_WHY_BYTES])
{
	int error;

	daemon->listen_fd = daemon->signal_fd = daemon->arena_readonly = -1;
	daemon->takeover_fd = daemon->takeover_pidfd = -1;
	daemon->admin_gid = (gid_t)-1;
	daemon->notify.fd = daemon->lock.fd = daemon->closer.fd = -1;
	daemon->arena.fd = daemon->ledger.fd = daemon->oplog_tail.fd = -1;
	daemon->test_clock = daemon->config.test_clock;
	why[0] = '\0';
	error = make_all(daemon, why);
	if (daemon->takeover)
		error = end_takeover(daemon, error, why);
	if (error) {
		kvt_notify_send(&daemon->notify, "ERRNO=%d\nSTATUS=%s\n", -error, why);
		unmake(daemon);
		return error;
	}
	begin_to_listen(daemon);
	kvt_loop_flush(&daemon->loop);
	if (!daemon->takeover)
		kvt_park_objects(daemon);
	kvt_park_lock(daemon);
	kvt_core_publish(daemon->core, KVT_ARENA_READY);
	report(daemon);
	kvt_notify_tell(&daemon->notify, "READY=1\nMAINPID=%d\n", (int)getpid());
	return 0;
}

/* To everybody, before the sockets go. */
static void say_goodbye(struct kvt_daemon *daemon, int error, const char *why)
{
	for (uint32_t i = 0; i < daemon->n_connections; i++) {
		struct kvt_connection *connection = &daemon->connections[i];

		if (connection->fd < 0)
			continue;
		if (connection->session)
			kvt_session_say_gone(daemon, &daemon->sessions[connection->session], error);
		connection->state = KVT_CONNECTION_OVER; /* a failed send drops nothing now */
		kvt_control_say(daemon, connection, KVT_MSG_GOODBYE, 0, error, why);
	}
}

void kvt_daemon_rebuild(struct kvt_daemon *daemon)
{
	struct kvt_core_hooks hooks = { .complete = kvt_daemon_complete, .context = daemon,
					.record = daemon->oplog ? write_record : NULL };
	char why[KVT_WHY_BYTES] = "";
	int error;

	take_back_log(daemon);
	memset(daemon->scratch, 0, daemon->sizes.scratch_bytes);
	error = kvt_core_adopt(&daemon->core, &daemon->core_config, daemon->arena.base,
			       daemon->ledger.base, daemon->scratch, &hooks, daemon->now_ns, NULL,
			       why, sizeof(why));
	if (error) { /* the other one broke it: nothing of it may be served */
		kvt_log(KVT_LOG_ERROR, "cache_lost", "error=%d why=\"%s\" effect=\"this daemon "
			"ends, and its clients are told\" cure=\"start kvtrunkd again, without "
			"--takeover: it begins with an empty cache\"", -error, why);
		kvt_adopt_say_gone(daemon);
		say_goodbye(daemon, -ECONNRESET, "the cache was damaged by a daemon that was to "
			    "take over and failed: connect again when kvtrunkd is started anew");
		unmake(daemon);
		exit(EXIT_FAILURE);
	}
	let_go_of_log(daemon);
	daemon->counters = kvt_core_counters(daemon->core);
	kvt_adopt_views(daemon);
	kvt_core_publish(daemon->core, KVT_ARENA_READY);
}

void kvt_daemon_stop(struct kvt_daemon *daemon)
{
	const struct kvt_counters *counters = daemon->counters;

	kvt_unpark_all(daemon);
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

/* Every effect so far is whole, and nothing that a client sees says that we are gone. */
void kvt_daemon_leave(struct kvt_daemon *daemon)
{
	kvt_log(KVT_LOG_NOTICE, "left", "operations=%llu leases=%llu sessions=%llu parked=%u",
		(unsigned long long)daemon->counters->operations,
		(unsigned long long)daemon->counters->live_leases,
		(unsigned long long)daemon->counters->live_sessions, daemon->n_parked);
	daemon->socket_made = false;
	if (daemon->handed_over)
		forget_lock(daemon);
	for (uint32_t i = 0; i <= daemon->core_config.max_sessions; i++)
		daemon->sessions[i].parked = false; /* released here, not there */
	for (uint32_t i = 1; i <= daemon->core_config.max_members; i++)
		daemon->members[i].parked = false;
	unmake(daemon);
}
