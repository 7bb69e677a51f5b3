/* SPDX-License-Identifier: Apache-2.0 */

/* kvtlab replay: options, the daemon, the parent's loop over its workers, the final audit.
 *
 * Inputs: the command line. Invariant: whatever fails, workers and a daemon of our own are ended
 * before the return. Caller: lab/main.c. */

#include "kvtrunk_wire_admin.h"
#include "lab/replay/replay.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/exit.h"
#include "base/progress.h"
#include "lab/replay/host.h"
#include "lab/trace/options.h"
#include "shm/atomic.h"
#include "shm/clock.h"

#define COMMAND "replay"
#define usage_error(...) kvt_usage_error(COMMAND, __VA_ARGS__)
#define LOOK_EVERY_MS 25 /* samples of the pool, progress bar */
#define DEFAULT_POSITIONS (1u << 20)

struct replay {
	struct kvt_replay_options options;
	struct kvt_trace *trace;
	struct kvt_replay_host host;
	struct kvt_replay_crew crew;
	uint32_t n_killed;
	struct kvt_progress_line line;
	struct kvt_replay_report report;
};

static volatile sig_atomic_t interrupted;

static void on_interrupt(int signal_number)
{
	(void)signal_number;
	interrupted = 1;
}

/* ---- options ---- */

static const char usage_text[] =
	"Usage: kvtlab replay FILE [options]\n"
	"       kvtlab replay --format generate [options]\n"
	"Replays a request trace through worker processes that share one daemon.\n\n"
	KVT_TRACE_USAGE
	"  --workers N         worker processes (4)\n"
	"  --socket PATH       this daemon, and its store; default: start one of our own\n"
	"  --pages N           pages of our own daemon, the scratch page included\n"
	"                      (as many as hold 1 Mi positions)\n"
	"  --page-size N       positions per page of our own daemon (64)\n"
	"  --policy P          lru, slru, lfu, fifo, filo, mru or priority (lru)\n"
	"  --log FILE          our own daemon writes its operation log, for kvtlab verify\n"
	"  --chunk N           positions computed between two COMMITs (512)\n"
	"  --concurrency N     requests in flight in each worker (1)\n"
	"  --kill N            kill so many workers on the way\n"
	"  --json              one JSON object instead of the table\n"
	"  --quiet             show no progress\n"
	"  --help-all          the other options, too\n";

static const char more_usage[] =
	KVT_TRACE_MORE_USAGE
	"  --page-bytes N      bytes per page of our own daemon (8 a position)\n"
	"  --daemon PROGRAM    kvtrunkd to start (default: beside kvtlab)\n"
	"  --disabled          our own daemon caches nothing\n"
	"  --store N           a kvtstored with N pages of memory beside our own daemon\n"
	"  --store-file N      and a file of N pages in /var/tmp\n"
	"  --store-write-bytes N\n"
	"                      it writes no more in a second\n"
	"  --instances N       N daemons of our own; worker w is at number w mod N (1)\n"
	"  --private-stores    a kvtstored for each, with a part of the memory (one for all)\n"
	"  --namespaces N      spread sessions over so many namespaces (1)\n"
	"  --time-scale X      keep to the trace's times, X times as fast; 0: no pauses (0)\n"
	"  --lockstep          one request at a time, request i by worker i mod N, and with\n"
	"                      --store all that it computed is copied before the next\n"
	"  --force-miss        reuse nothing, compute and publish everything\n"
	"  --coalesce MS       a BEGIN waits so long for what other workers compute (0: not)\n"
	"  --prefill-rate N    positions a second that one device computes for all workers\n"
	"                      together (0: as fast as patterns are written)\n"
	"  --sides W0,W1,...   our own daemon's pages have sides; workers publish points\n"
	"  --points-every N    also a point every N positions of what is computed (0: not)\n"
	"  --points-all        a point at each page, to compare\n"
	"  --points-drop       drop the point that was reused if it takes more pages than the\n"
	"                      positions computed since\n"
	"  --served FILE       write 'B index line hit' and 'E index line' in the daemon's order\n"
	"  --write-trace FILE  write the trace (generate) in the agent format, and stop\n"
	"  --no-verify         do not look at the pattern of reused pages\n"
	"  --no-private        do not simulate private pools\n"
	"  --progress          show progress at once, and every second if stderr is no terminal\n";

enum option_code {
	OPT_WORKERS = KVT_TRACE_OPTION_END, OPT_SOCKET, OPT_DAEMON, OPT_PAGES,
	OPT_PAGE_SIZE, OPT_PAGE_BYTES, OPT_POLICY, OPT_DISABLED, OPT_LOG, OPT_NAMESPACES, OPT_CHUNK,
	OPT_CONCURRENCY, OPT_TIME_SCALE, OPT_LOCKSTEP, OPT_FORCE_MISS, OPT_KILL, OPT_SERVED,
	OPT_WRITE, OPT_VERIFY, OPT_NO_VERIFY, OPT_NO_PRIVATE, OPT_JSON, OPT_QUIET, OPT_HELP,
	OPT_COALESCE, OPT_PREFILL, OPT_PROGRESS, OPT_HELP_ALL, OPT_SIDES, OPT_POINTS_EVERY,
	OPT_POINTS_ALL, OPT_POINTS_DROP, OPT_STORE, OPT_STORE_FILE, OPT_STORE_WRITES, OPT_INSTANCES,
	OPT_PRIVATE_STORES,
};

static const struct option long_options[] = {
	KVT_TRACE_LONG_OPTIONS,
	{ "workers", required_argument, NULL, OPT_WORKERS },
	{ "socket", required_argument, NULL, OPT_SOCKET },
	{ "daemon", required_argument, NULL, OPT_DAEMON },
	{ "pages", required_argument, NULL, OPT_PAGES },
	{ "page-size", required_argument, NULL, OPT_PAGE_SIZE },
	{ "page-bytes", required_argument, NULL, OPT_PAGE_BYTES },
	{ "policy", required_argument, NULL, OPT_POLICY },
	{ "store", required_argument, NULL, OPT_STORE },
	{ "store-file", required_argument, NULL, OPT_STORE_FILE },
	{ "store-write-bytes", required_argument, NULL, OPT_STORE_WRITES },
	{ "instances", required_argument, NULL, OPT_INSTANCES },
	{ "private-stores", no_argument, NULL, OPT_PRIVATE_STORES },
	{ "disabled", no_argument, NULL, OPT_DISABLED },
	{ "log", required_argument, NULL, OPT_LOG },
	{ "namespaces", required_argument, NULL, OPT_NAMESPACES },
	{ "chunk", required_argument, NULL, OPT_CHUNK },
	{ "concurrency", required_argument, NULL, OPT_CONCURRENCY },
	{ "time-scale", required_argument, NULL, OPT_TIME_SCALE },
	{ "lockstep", no_argument, NULL, OPT_LOCKSTEP },
	{ "force-miss", no_argument, NULL, OPT_FORCE_MISS },
	{ "kill", required_argument, NULL, OPT_KILL },
	{ "coalesce", required_argument, NULL, OPT_COALESCE },
	{ "prefill-rate", required_argument, NULL, OPT_PREFILL },
	{ "sides", required_argument, NULL, OPT_SIDES },
	{ "points-every", required_argument, NULL, OPT_POINTS_EVERY },
	{ "points-all", no_argument, NULL, OPT_POINTS_ALL },
	{ "points-drop", no_argument, NULL, OPT_POINTS_DROP },
	{ "served", required_argument, NULL, OPT_SERVED },
	{ "write-trace", required_argument, NULL, OPT_WRITE },
	{ "verify", no_argument, NULL, OPT_VERIFY },
	{ "no-verify", no_argument, NULL, OPT_NO_VERIFY },
	{ "no-private", no_argument, NULL, OPT_NO_PRIVATE },
	{ "json", no_argument, NULL, OPT_JSON },
	{ "progress", no_argument, NULL, OPT_PROGRESS },
	{ "quiet", no_argument, NULL, OPT_QUIET },
	{ "help", no_argument, NULL, OPT_HELP },
	{ "help-all", no_argument, NULL, OPT_HELP_ALL },
	{ NULL, 0, NULL, 0 },
};

static bool set_number(struct kvt_replay_options *options, int code, const char *text)
{
	const struct kvt_number_option rows[] = {
		{ OPT_WORKERS, "workers", &options->workers, 1, KVT_REPLAY_MAX_WORKERS },
		{ OPT_PAGES, "pages", &options->n_pages, 2, 1u << 30 },
		{ OPT_PAGE_SIZE, "page-size", &options->page_size, 1, KVT_MAX_PAGE_SIZE },
		{ OPT_PAGE_BYTES, "page-bytes", &options->page_bytes, 8, 1u << 30 },
		{ OPT_STORE, "store", &options->store_pages, 1, 1u << 30 },
		{ OPT_STORE_FILE, "store-file", &options->store_file_pages, 1, 1u << 30 },
		{ OPT_STORE_WRITES, "store-write-bytes", &options->store_write_bytes, 1,
		  UINT32_MAX },
		{ OPT_INSTANCES, "instances", &options->n_instances, 1, KVT_REPLAY_MAX_INSTANCES },
		{ OPT_NAMESPACES, "namespaces", &options->n_namespaces, 1, 4096 },
		{ OPT_CHUNK, "chunk", &options->chunk, 1, 1u << 30 },
		{ OPT_CONCURRENCY, "concurrency", &options->concurrency, 1,
		  KVT_REPLAY_MAX_CONCURRENCY },
		{ OPT_KILL, "kill", &options->kills, 0, KVT_REPLAY_MAX_WORKERS },
		{ OPT_COALESCE, "coalesce", &options->coalesce_ms, 0, UINT32_MAX },
		{ OPT_POINTS_EVERY, "points-every", &options->points_every, 0, 1u << 30 },
		{ OPT_PREFILL, "prefill-rate", &options->prefill_rate, 0, UINT32_MAX },
	};

	return kvt_number_option_set(COMMAND, rows, sizeof(rows) / sizeof(rows[0]), code, text) ||
	       kvt_trace_option_set(COMMAND, &options->trace, code, text);
}

static bool set_flag(struct kvt_replay_options *options, int code)
{
	const struct {
		int code;
		bool *flag, value;
	} rows[] = {
		{ OPT_DISABLED, &options->disabled, true },
		{ OPT_POINTS_ALL, &options->points_all, true },
		{ OPT_POINTS_DROP, &options->points_drop, true },
		{ OPT_LOCKSTEP, &options->lockstep, true },
		{ OPT_PRIVATE_STORES, &options->private_stores, true },
		{ OPT_FORCE_MISS, &options->force_miss, true },
		{ OPT_VERIFY, &options->verify, true },
		{ OPT_NO_VERIFY, &options->verify, false },
		{ OPT_NO_PRIVATE, &options->simulate, false },
		{ OPT_JSON, &options->json, true },
		{ OPT_PROGRESS, &options->progress, true },
		{ OPT_QUIET, &options->quiet, true },
	};

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
		if (rows[i].code == code) {
			*rows[i].flag = rows[i].value;
			return true;
		}
	return false;
}

static void set_text(struct kvt_replay_options *options, int code, const char *text,
		     const char **ret_write)
{
	const struct {
		int code;
		const char **text;
	} rows[] = {
		{ OPT_SOCKET, &options->socket_path },
		{ OPT_DAEMON, &options->daemon },
		{ OPT_POLICY, &options->policy },
		{ OPT_SIDES, &options->sides },
		{ OPT_LOG, &options->log_path },
		{ OPT_SERVED, &options->served_path },
		{ OPT_WRITE, ret_write },
	};
	char *end;

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
		if (rows[i].code == code) {
			*rows[i].text = text;
			return;
		}
	switch (code) {
	case OPT_TIME_SCALE:
		options->time_scale = strtod(text, &end);
		if (*end || end == text || !(options->time_scale >= 0) ||
		    options->time_scale > 1e9)
			usage_error("--time-scale takes a factor that is not negative, not '%s'",
				    text);
		break;
	case OPT_HELP:
	case OPT_HELP_ALL:
		fputs(usage_text, stdout);
		if (code == OPT_HELP_ALL)
			fputs(more_usage, stdout);
		exit(KVT_EXIT_OK);
	default: /* and that was said */
		exit(KVT_EXIT_USAGE);
	}
}

/* Refuse options of daemons and stores of our own beside one that runs. */
static void check_own(const struct kvt_replay_options *options)
{
	static const char *const own[] = { "pages", "page-size", "page-bytes", "policy", "log",
					   "disabled", "sides", "daemon", "store", "store-file",
					   "store-write-bytes", "instances", "private-stores",
					   NULL };
	const char *name = options->socket_path ? kvt_option_given(own) : NULL;

	if (name)
		usage_error("--%s is for daemons of our own, and --socket names one that runs: "
			    "keep one", name);
}

/* Refuse options that do nothing beside the others. */
static void check_vain(const struct kvt_replay_options *options, bool writes)
{
	static const struct kvt_option_need rows[] = {
		{ "store-file", "store", NULL },
		{ "store-write-bytes", "store-file", NULL },
		{ "private-stores", "store", NULL },
		{ "points-every", "sides", "socket" }, /* see check_sides() */
		{ "points-all", "sides", "socket" },
		{ "points-drop", "sides", "socket" },
		{ 0 },
	};
	static const char *const paced[] = { "time-scale", "concurrency", NULL };
	static const char *const measured[] = {
		"workers", "socket", "daemon", "pages", "page-size", "page-bytes", "policy",
		"disabled", "store", "instances", "log", "namespaces", "chunk", "concurrency",
		"time-scale", "lockstep", "force-miss", "kill", "coalesce", "prefill-rate", "sides",
		"served", "verify", "no-verify", "no-private", "json", NULL,
	};
	const char *name;

	if (kvt_option_lacks(rows, "kvtlab replay --help-all"))
		exit(KVT_EXIT_USAGE);
	name = options->lockstep ? kvt_option_given(paced) : NULL;
	if (name)
		usage_error("--lockstep is one request at a time without pauses: leave out --%s",
			    name);
	name = writes ? kvt_option_given(measured) : NULL;
	if (name)
		usage_error("--write-trace writes the trace and stops: leave out --%s", name);
}

static void check(struct kvt_replay_options *options, bool writes)
{
	check_own(options);
	check_vain(options, writes);
	if (options->page_bytes % 8)
		usage_error("--page-bytes must be a multiple of 8, not %u", options->page_bytes);
	if (options->kills >= options->workers)
		usage_error("--kill %u would leave no worker of %u", options->kills,
			    options->workers);
	if (options->n_instances > 1 && (options->log_path || options->served_path))
		usage_error("--log and --served tell one daemon's order: leave out --instances");
	if (options->workers % options->n_instances)
		usage_error("--workers %u cannot be spread evenly over --instances %u",
			    options->workers, options->n_instances);
	if (options->private_stores && options->store_pages < options->n_instances)
		usage_error("--private-stores divides the pages of --store N: at least one for "
			    "each of %u instances", options->n_instances);
	if (!options->n_pages)
		options->n_pages = DEFAULT_POSITIONS / options->page_size + 1;
	if (!options->page_bytes)
		options->page_bytes = options->page_size * 8;
}

/* Read the options. `ret_write`, `ret_written`: the file of --write-trace, NULL without one. */
static void parse(int argc, char **argv, struct kvt_replay_options *options,
		  const char **ret_write, FILE **ret_written)
{
	int c;

	optind = 0;
	while ((c = kvt_option_next(argc, argv, long_options, NULL,
				    "kvtlab replay --help-all")) >= 0) {
		if (!set_number(options, c, optarg) && !set_flag(options, c))
			set_text(options, c, optarg, ret_write);
	}
	kvt_trace_option_file(COMMAND, &options->trace, argc, argv);
	check(options, *ret_write);
	if (*ret_write && options->trace.bursts > 1)
		usage_error("--write-trace cannot write down --bursts");
	if (*ret_write)
		*ret_written = kvt_output_option_open(COMMAND, "write-trace", *ret_write);
	if (options->served_path)
		options->served = kvt_output_option_open(COMMAND, "served", options->served_path);
}

/* ---- the instances ---- */

static int sample(struct replay *replay)
{
	struct kvt_counters *peak = &replay->report.peak, now;
	uint64_t refused[KVT_REFUSAL_COUNT];
	int rc = kvt_replay_host_count(&replay->host, KVT_ADMIN_STATUS, &now, refused);

	if (rc)
		return rc;
	kvt_replay_raise(&peak->free_pages, now.free_pages);
	kvt_replay_raise(&peak->private_pages, now.private_pages);
	kvt_replay_raise(&peak->cached_pages, now.cached_pages);
	kvt_replay_raise(&peak->quarantined_pages, now.quarantined_pages);
	kvt_replay_raise(&peak->evictable_pages, now.evictable_pages);
	kvt_replay_raise(&peak->protected_pages, now.protected_pages);
	return 0;
}

/* Compare the counters once reclaim is done, then audit every invariant. */
static int audit(struct replay *replay)
{
	struct kvt_replay_report *report = &replay->report;
	uint64_t before[KVT_REFUSAL_COUNT];
	int rc;

	memcpy(before, report->refused, sizeof(before));
	rc = kvt_replay_host_count(&replay->host, KVT_ADMIN_SETTLED, &report->after,
				   report->refused);
	for (uint32_t row = 0; row < KVT_REFUSAL_COUNT; row++)
		report->refused[row] -= before[row];
	return rc ? rc : kvt_replay_host_audit(&replay->host, report);
}

/* ---- workers ---- */

static int start_crew(struct replay *replay)
{
	char why[256] = "";
	int rc = kvt_replay_crew_create(&replay->crew, &replay->options, replay->trace,
					replay->host.socket_paths, why, sizeof(why));

	replay->report.shared = replay->crew.shared;
	fflush(stdout);
	for (uint32_t i = 0; !rc && i < replay->options.workers; i++)
		rc = kvt_replay_crew_start(&replay->crew, i, why, sizeof(why));
	if (rc) {
		fprintf(stderr, "kvtlab replay: %s\n", why);
		if (replay->crew.shared)
			kvt_store_release(&replay->crew.shared->stop, 1);
	}
	return rc;
}

/* Kill a worker when one is due. Kills are spread evenly over the trace, each in the middle of a
 * request. If all requests in front of the gate are done, any live worker will do. */
static void maybe_kill(struct replay *replay)
{
	struct kvt_replay_shared *shared = replay->crew.shared;
	uint64_t done = kvt_load_relaxed(&shared->done), n = replay->trace->n_requests;
	uint32_t kills = replay->options.kills, victim;
	bool last_chance = done >= kvt_load_relaxed(&shared->gate);

	if (replay->n_killed == kills ||
	    (!last_chance && done * (kills + 1) < n * (replay->n_killed + 1)))
		return;
	victim = kvt_replay_crew_busy(&replay->crew);
	for (uint32_t i = 0; victim == KVT_TRACE_NONE && last_chance &&
	     i < replay->options.workers; i++) {
		if (replay->crew.pids[i])
			victim = i;
	}
	if (victim == KVT_TRACE_NONE)
		return;
	kill(replay->crew.pids[victim], SIGKILL);
	kvt_replay_crew_bury(&replay->crew, victim);
	kvt_replay_crew_gate(&replay->crew, ++replay->n_killed);
}

/* Format the remaining time at the rate so far. */
static const char *time_left(double seconds, uint32_t done, uint32_t n, char *to, size_t bytes)
{
	if (!done)
		snprintf(to, bytes, "?");
	else
		snprintf(to, bytes, "%.0f s", seconds / done * (n - done));
	return to;
}

static void draw(struct replay *replay, bool last)
{
	uint32_t done = kvt_load_relaxed(&replay->crew.shared->done), n = replay->trace->n_requests;
	double seconds = kvt_progress_seconds(&replay->line);
	uint32_t part = n ? (uint32_t)(30ull * done / n) : 30;
	char bar[31], left[32];

	if (replay->options.quiet ||
	    (last ? !replay->line.shown : !kvt_progress_due(&replay->line)))
		return;
	memset(bar, ' ', sizeof(bar));
	memset(bar, '=', part);
	bar[30] = 0;
	kvt_progress_print(&replay->line, "[%s] %u/%u requests, %.0f s, %.0f/s, %s left", bar, done,
			   n, seconds, seconds > 0 ? done / seconds : 0.0,
			   time_left(seconds, done, n, left, sizeof(left)));
	if (last)
		kvt_progress_end(&replay->line);
}

static int watch(struct replay *replay)
{
	struct kvt_replay_crew *crew = &replay->crew;
	struct pollfd fds[KVT_REPLAY_MAX_WORKERS];
	int rc = 0;

	kvt_progress_begin(&replay->line, replay->options.progress);
	while (crew->n_alive) {
		for (uint32_t i = 0; i < replay->options.workers; i++)
			fds[i] = (struct pollfd){ crew->pids[i] ? crew->pidfds[i] : -1, POLLIN, 0 };
		poll(fds, replay->options.workers, LOOK_EVERY_MS);
		for (uint32_t i = 0; i < replay->options.workers; i++) {
			if (crew->pids[i] && fds[i].revents)
				kvt_replay_crew_bury(crew, i);
		}
		maybe_kill(replay);
		if (!rc)
			rc = sample(replay);
		if (rc || interrupted) {
			kvt_store_release(&crew->shared->stop, 1);
			kvt_replay_notify(crew->shared);
		}
		draw(replay, false);
	}
	draw(replay, true);
	return rc;
}

/* ---- all of it ---- */

/* Load the trace. */
static int load(struct replay *replay)
{
	struct kvt_replay_options *options = &replay->options;
	char why[768] = "";
	int rc;

	kvt_progress_begin(&replay->line, options->progress);
	options->trace.progress = options->quiet ? NULL : &replay->line;
	rc = kvt_trace_load(&options->trace, &replay->trace, why, sizeof(why));
	kvt_progress_end(&replay->line);
	if (rc)
		fprintf(stderr, "kvtlab replay: %s\n", why);
	return rc;
}

static bool keep_simulating(void *context, uint32_t done)
{
	struct replay *replay = context;

	if (!replay->options.quiet && kvt_progress_due(&replay->line))
		kvt_progress_print(&replay->line, "simulation: %u/%u requests", done,
				   replay->trace->n_requests);
	return !interrupted;
}

static int simulate(struct replay *replay)
{
	struct kvt_private_options options = {
		.page_size = replay->report.page_size,
		.usable_pages = replay->report.n_pages - 1,
		.n_pools = replay->options.n_instances > 1 ? replay->options.n_instances :
								replay->options.workers,
		.n_namespaces = replay->options.n_namespaces,
	};
	int rc;

	if (!replay->options.simulate || replay->report.n_sides) /* it knows no points */
		return 0;
	kvt_progress_begin(&replay->line, replay->options.progress);
	rc = kvt_private_simulate(replay->trace, &options, replay->report.private, keep_simulating,
				  replay);
	kvt_progress_end(&replay->line);
	if (rc && rc != -ECANCELED)
		fprintf(stderr, "kvtlab replay: simulation: %s\n", strerror(-rc));
	replay->report.simulated = !rc;
	return rc;
}

/* Refuse points of a daemon that runs, and has no side pages. False: refused. */
static bool check_sides(const struct replay *replay)
{
	static const char *const points[] = { "points-every", "points-all", "points-drop", NULL };
	const char *name = replay->report.n_sides ? NULL : kvt_option_given(points);

	if (name)
		fprintf(stderr, "kvtlab replay: --%s needs pages with sides, and the daemon has "
			"none: its option sides\n", name);
	return !name;
}

static int run(struct replay *replay)
{
	uint64_t most = (uint64_t)replay->trace->max_input + replay->trace->max_output + 64;
	int rc = kvt_replay_host_start(&replay->host, &replay->options, most);

	if (!rc)
		rc = kvt_replay_host_open(&replay->host, &replay->report);
	if (rc)
		return rc == -EINVAL ? KVT_EXIT_USAGE : KVT_EXIT_CONNECT;
	if (!check_sides(replay))
		return KVT_EXIT_USAGE;
	replay->options.asks_store = replay->options.socket_path ?
				     kvt_replay_host_find_store(&replay->host) :
				     replay->options.store_pages > 0;
	rc = kvt_replay_host_count(&replay->host, KVT_ADMIN_STATUS, &replay->report.before,
				   replay->report.refused);
	if (!rc)
		rc = start_crew(replay);
	if (replay->crew.shared) {
		if (watch(replay))
			rc = -EIO;
		replay->report.seconds = (double)(kvt_now_ns() -
						  (int64_t)replay->crew.shared->start_ns) / 1e9;
	}
	if (kvt_replay_host_end_stores(&replay->host, &replay->report.store))
		rc = -EIO;
	if (!rc)
		rc = audit(replay);
	replay->report.workers_lost = replay->crew.n_lost;
	replay->report.workers_failed = replay->crew.n_failed;
	if (rc)
		return KVT_EXIT_PROBLEM;
	simulate(replay);
	if (!replay->options.json && !replay->options.quiet && replay->trace->texts)
		printf(KVT_TRACE_TEXTS, "replay");
	kvt_replay_print(&replay->report);
	fflush(stdout);
	kvt_trace_say_unread(replay->trace);
	if (replay->options.served_path) {
		rc = kvt_replay_write_served(&replay->report);
		if (rc) {
			fprintf(stderr, "kvtlab replay: %s: %s\n", replay->options.served_path,
				strerror(-rc));
			return KVT_EXIT_PROBLEM;
		}
	}
	return kvt_replay_good(&replay->report) ? KVT_EXIT_OK : KVT_EXIT_PROBLEM;
}

static void defaults(struct kvt_replay_options *options)
{
	*options = (struct kvt_replay_options){
		.policy = "lru", .workers = 4, .n_instances = 1, .page_size = 64,
		.chunk = 512, .concurrency = 1,
		.n_namespaces = 1, .verify = true, .simulate = true, .fetch_ms = 60000,
		.trace = { .format = KVT_TRACE_ANY },
	};
}

int kvt_replay_main(int argc, char **argv)
{
	struct sigaction action = { .sa_handler = on_interrupt };
	const char *write_path = NULL;
	FILE *written = NULL;
	struct replay replay = { 0 };
	int rc, ended;

	defaults(&replay.options);
	parse(argc, argv, &replay.options, &write_path, &written);
	if (load(&replay))
		return KVT_EXIT_USAGE;
	if (written) {
		rc = kvt_trace_write(replay.trace, written);
		if (rc)
			fprintf(stderr, "kvtlab replay: %s: %s\n", write_path, strerror(-rc));
		kvt_trace_free(replay.trace);
		return rc ? KVT_EXIT_PROBLEM : KVT_EXIT_OK;
	}
	replay.report.options = &replay.options;
	replay.report.trace = replay.trace;
	sigaction(SIGINT, &action, NULL);
	sigaction(SIGTERM, &action, NULL);
	rc = run(&replay);
	ended = kvt_replay_host_stop(&replay.host);
	if (ended && rc == KVT_EXIT_OK) {
		fprintf(stderr, "kvtlab replay: the daemon ended with status %d\n", ended);
		rc = KVT_EXIT_PROBLEM;
	}
	kvt_replay_crew_destroy(&replay.crew);
	kvt_trace_free(replay.trace);
	return rc;
}
