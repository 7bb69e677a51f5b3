/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file main.c
 * kvtlab chaos: inference workers replay requests and check every byte that they reuse, while they
 * and the daemon are killed, stopped, continued, aborted and restarted in an order that a seed
 * decides.
 *
 * Inputs: the options. Invariant: at the end nothing was wrong, lost or leaked; check_counters()
 * and the daemon's audit say so. Caller: lab/main.c.
 */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/exit.h"
#include "base/number.h"
#include "base/option.h"
#include "kvtrunk_client.h"
#include "kvtrunk_wire_admin.h"
#include "lab/chaos/chaos.h"
#include "lab/verify.h"
#include "shm/atomic.h"
#include "shm/clock.h"
#include "shm/size.h"

#define ROUND_SESSIONS 96 /* of one round's trace */
#define ROUND_CONTEXT 8192 /* positions: many operations, yet a small log */
#define PAUSE_LEAST_MS 20
#define PAUSE_MOST_MS 120

static const char usage_text[] =
	"Usage: kvtlab chaos [--seconds N] [--seed S] [--workers N] [--pages N] [--sides LIST]\n"
	"                    [--store N] [--keep]\n"
	"Kills, stops and restarts workers and the daemon under load, and checks everything.\n\n"
	"  --seconds N   how long (60)\n"
	"  --seed S      repeat the choices of an earlier run (random)\n"
	"  --workers N   worker processes (4)\n"
	"  --pages N     pages of the pool (2048): small ones evict\n"
	"  --sides LIST  the daemon's option sides (none): workers publish points\n"
	"  --store N     a kvtstored with N pages of memory, killed and stopped like the rest\n"
	"  --keep        keep the operation log, also after a good run\n\n"
	"Exit status: 0 nothing was wrong, 1 something was, 2 usage.\n";

/* ---- rounds */

static bool load_trace(struct chaos *chaos, uint32_t round)
{
	struct kvt_trace_options options = {
		.format = KVT_TRACE_GENERATE, .sessions = ROUND_SESSIONS, .users = 16,
		.context = ROUND_CONTEXT,
		/* Two rounds share a trace, so that the second one finds it cached. */
		.seed = chaos->seed + round / 2,
	};
	char why[256] = "";

	if (!kvt_trace_load(&options, &chaos->trace, why, sizeof(why)))
		return true;
	chaos_wrong(chaos, "trace: %s", why);
	return false;
}

static void bury_ended(struct chaos *chaos)
{
	struct kvt_replay_crew *crew = &chaos->crew;

	for (uint32_t i = 0; i < chaos->options.workers; i++) {
		struct pollfd ended = { .fd = crew->pidfds[i], .events = POLLIN };

		if (crew->pids[i] && poll(&ended, 1, 0) > 0)
			kvt_replay_crew_bury(crew, i);
	}
	if (crew->n_failed)
		chaos_wrong(chaos, "a worker failed; its own message is above");
}

/* Wait for an event, or for some milliseconds. */
static void wait_a_little(struct chaos *chaos)
{
	uint32_t ms = PAUSE_LEAST_MS + chaos_draw(chaos, PAUSE_MOST_MS - PAUSE_LEAST_MS);
	struct pollfd ended[KVT_REPLAY_MAX_WORKERS];

	for (uint32_t i = 0; i < chaos->options.workers; i++)
		ended[i] = (struct pollfd){ chaos->crew.pids[i] ? chaos->crew.pidfds[i] : -1,
					    POLLIN, 0 };
	poll(ended, chaos->options.workers, (int)ms);
}

static void tally(struct chaos *chaos)
{
	struct kvt_replay_shared *shared = chaos->crew.shared;

	for (uint32_t i = 0; i < chaos->options.workers; i++) {
		chaos->verified_pages += shared->workers[i].verified_pages;
		chaos->pattern_errors += shared->workers[i].pattern_errors;
	}
	for (uint32_t i = 0; i < chaos->trace->n_requests; i++) {
		chaos->requests += shared->slots[i].state == KVT_REPLAY_DONE;
		chaos->lost += shared->slots[i].state == KVT_REPLAY_LOST;
		chaos->refused += shared->slots[i].state == KVT_REPLAY_REFUSED;
	}
	chaos->killed_workers += chaos->crew.n_lost;
	chaos->failed_workers += chaos->crew.n_failed;
}

static void run_round(struct chaos *chaos)
{
	struct kvt_replay_crew *crew = &chaos->crew;
	char why[256];

	if (kvt_replay_crew_create(crew, &chaos->options, chaos->trace,
				   &chaos->socket_path, why, sizeof(why))) {
		chaos_wrong(chaos, "%s", why);
		return;
	}
	fflush(stdout);
	for (uint32_t i = 0; i < chaos->options.workers; i++) {
		if (kvt_replay_crew_start(crew, i, why, sizeof(why)))
			chaos_wrong(chaos, "%s", why);
	}
	while (crew->n_alive) {
		wait_a_little(chaos);
		bury_ended(chaos);
		if (!crew->n_alive)
			break;
		if (kvt_now_ns() >= chaos->end_ns || *chaos->wrong) {
			kvt_store_release(&crew->shared->stop, 1);
			kvt_replay_notify(crew->shared);
			chaos_continue_all(chaos);
		} else if (kvt_load_acquire(&crew->shared->next) >= chaos->trace->n_requests) {
			chaos_continue_all(chaos); /* let the last workers finish */
		} else {
			chaos_act(chaos);
		}
		if (*chaos->wrong) {
			for (uint32_t i = 0; i < chaos->options.workers; i++)
				if (crew->pids[i])
					kill(crew->pids[i], SIGKILL);
		}
	}
	tally(chaos);
	kvt_replay_crew_destroy(crew);
}

/* ---- the end */

/* Check that nothing is locked, private or in quarantine: all pages are free or cached. */
static void check_counters(struct chaos *chaos)
{
	const struct kvt_counters *c = &chaos->after;
	uint64_t pages = chaos->options.n_pages - 1;

	if (c->private_pages || c->quarantined_pages || c->protected_pages || c->live_leases)
		chaos_wrong(chaos, "left behind: %llu private, %llu in quarantine, %llu locked, "
			    "%llu leases", (unsigned long long)c->private_pages,
			    (unsigned long long)c->quarantined_pages,
			    (unsigned long long)c->protected_pages,
			    (unsigned long long)c->live_leases);
	if (c->free_pages + c->cached_pages != pages)
		chaos_wrong(chaos, "%llu pages are free and %llu cached, of %llu",
			    (unsigned long long)c->free_pages,
			    (unsigned long long)c->cached_pages, (unsigned long long)pages);
}

static void check_daemon(struct chaos *chaos)
{
	struct kvt_message_admin settled = { .what = KVT_ADMIN_SETTLED };
	struct kvt_message_admin audit = { .what = KVT_ADMIN_AUDIT };
	struct kvt_options options = KVT_OPTIONS_INIT;
	struct kvt_admin_status status;
	struct kvt_client *client;
	struct kvt_error error;
	char lines[4096] = "";

	options.socket_path = chaos->daemon.socket_path;
	options.flags = KVT_HELLO_OBSERVE;
	if (kvt_client_connect(&client, &options, &error)) {
		chaos_wrong(chaos, "%s", error.text);
		return;
	}
	if (kvt_admin(client, &settled, NULL, 0, &status, sizeof(status)) < 1 ||
	    kvt_admin(client, &audit, NULL, 0, lines, sizeof(lines) - 1) < 0) {
		chaos_wrong(chaos, "%s", kvt_client_error(client)->text);
	} else {
		chaos->after = status.counters;
		chaos->problems = audit.total;
		if (audit.total)
			chaos_wrong(chaos, "audit: %llu problems: %.400s",
				    (unsigned long long)audit.total, lines);
		check_counters(chaos);
	}
	kvt_client_close(client, KVT_IDLE);
}

static void check_log(struct chaos *chaos)
{
	char name[] = "verify", *arguments[] = { name, chaos->log_path, NULL };

	if (kvt_verify_main(2, arguments) != KVT_EXIT_OK)
		chaos_wrong(chaos, "the oracle does not agree with the log");
}

static void print(struct chaos *chaos)
{
	printf("requests        %llu done, %llu lost with their worker, %llu refused; "
	       "%llu operations\n", (unsigned long long)chaos->requests,
	       (unsigned long long)chaos->lost, (unsigned long long)chaos->refused,
	       (unsigned long long)chaos->after.operations);
	printf("done to them   ");
	for (unsigned int i = 0; i < CHAOS_ACTIONS; i++)
		printf("%s %llu %s", i ? "," : "", (unsigned long long)chaos->done[i],
		       chaos_action_name(i));
	printf("\nkilled          %llu worker%s; %llu daemon%s ended, each with a successor\n",
	       (unsigned long long)chaos->killed_workers, kvt_plural(chaos->killed_workers),
	       (unsigned long long)chaos->restarts, kvt_plural(chaos->restarts));
	if (chaos->options.store_pages)
		printf("store           %llu of %llu fetches answered, %llu pages loaded, %llu "
		       "loads cut\n", (unsigned long long)chaos->stored.hits,
		       (unsigned long long)chaos->stored.fetches,
		       (unsigned long long)chaos->stored.loaded_pages,
		       (unsigned long long)chaos->stored.cut_loads);
	printf("reclaim         p50 %.2f ms, p99 %.2f ms, of %u\n",
	       chaos_times_ms(&chaos->reclaim, 0.5), chaos_times_ms(&chaos->reclaim, 0.99),
	       chaos->reclaim.n);
	printf("service gap     p50 %.2f ms, p99 %.2f ms, most %.2f ms, of %u\n",
	       chaos_times_ms(&chaos->gaps, 0.5), chaos_times_ms(&chaos->gaps, 0.99),
	       chaos_times_ms(&chaos->gaps, 1), chaos->gaps.n);
	printf("patterns        %llu pages verified, %llu wrong\n",
	       (unsigned long long)chaos->verified_pages,
	       (unsigned long long)chaos->pattern_errors);
	printf("audit           %llu problem%s; %llu page%s cached, %llu free\n",
	       (unsigned long long)chaos->problems, kvt_plural(chaos->problems),
	       (unsigned long long)chaos->after.cached_pages,
	       kvt_plural(chaos->after.cached_pages),
	       (unsigned long long)chaos->after.free_pages);
}

/* ---- all of it */

static bool start(struct chaos *chaos)
{
	char pages[32], log[160], sides[80], why[512] = "";
	const char *const flags[] = { "--supervise", pages, "--page_size=64", "--page_bytes=512",
				      "--max_private_pages=0", "--max_leases=0",
				      "--log_level=error", log, sides, NULL };
	int rc;

	snprintf(chaos->log_path, sizeof(chaos->log_path), "/tmp/kvtchaos.%d.log", getpid());
	snprintf(pages, sizeof(pages), "--n_pages=%u", chaos->options.n_pages);
	snprintf(sides, sizeof(sides), "--sides=%s", chaos->options.sides);
	snprintf(log, sizeof(log), "--log_file=%s", chaos->log_path);
	rc = kvt_own_daemon_start(&chaos->daemon, chaos->options.daemon, flags, -1, why,
				  sizeof(why));
	if (rc == -EINVAL) {
		fprintf(stderr, "kvtlab chaos: %s\n", why);
		exit(KVT_EXIT_USAGE);
	}
	if (rc) {
		chaos_wrong(chaos, "%s", why);
		return false;
	}
	chaos->socket_path = chaos->daemon.socket_path;
	chaos->pulse = pulse_start(chaos->daemon.socket_path);
	if (chaos->pulse)
		return chaos_start_store(chaos);
	chaos_wrong(chaos, "cannot start a process: %s", strerror(errno));
	return false;
}

static uint64_t number(const char *name, const char *text, uint64_t least, uint64_t most)
{
	uint64_t value;

	if (!kvt_number_parse(text, strlen(text), most, &value) && value >= least)
		return value;
	fprintf(stderr, "kvtlab chaos: --%s takes a number from %llu to %llu, not '%s'\n", name,
		(unsigned long long)least, (unsigned long long)most, text);
	exit(2);
}

static bool parse(struct chaos *chaos, int argc, char **argv, uint64_t *ret_seconds)
{
	static const struct option options[] = {
		{ "seconds", required_argument, NULL, 's' },
		{ "seed", required_argument, NULL, 'S' },
		{ "workers", required_argument, NULL, 'w' },
		{ "pages", required_argument, NULL, 'p' },
		{ "sides", required_argument, NULL, 'd' },
		{ "store", required_argument, NULL, 't' },
		{ "keep", no_argument, NULL, 'k' },
		{ "help", no_argument, NULL, 'h' },
		{ 0 },
	};
	bool keep = false;
	int c;

	optind = 0;
	while ((c = kvt_option_next(argc, argv, options, NULL, "kvtlab chaos --help")) >= 0) {
		if (c == 's')
			*ret_seconds = number("seconds", optarg, 1, 1000000);
		else if (c == 'S')
			chaos->seed = number("seed", optarg, 0, UINT64_MAX);
		else if (c == 'w')
			chaos->options.workers = (uint32_t)number("workers", optarg, 2,
								  KVT_REPLAY_MAX_WORKERS);
		else if (c == 'p')
			chaos->options.n_pages = (uint32_t)number("pages", optarg, 1024, 1u << 24);
		else if (c == 'd')
			chaos->options.sides = optarg;
		else if (c == 't')
			chaos->options.store_pages = (uint32_t)number("store", optarg, 1,
								      1u << 24);
		else if (c == 'k')
			keep = true;
		else {
			if (c == 'h')
				fputs(usage_text, stdout);
			exit(c == 'h' ? 0 : 2);
		}
	}
	if (optind < argc) {
		fprintf(stderr, "kvtlab chaos: unexpected word '%s'; options start with --\n",
			argv[optind]);
		exit(2);
	}
	return keep;
}

int kvt_chaos_main(int argc, char **argv)
{
	struct chaos chaos = { .options = {
		.policy = "lru", .workers = 4, .n_instances = 1, .n_pages = 2048, .page_size = 64,
		.page_bytes = 512, .chunk = 256, .concurrency = 2, .n_namespaces = 2,
		.verify = true,
		.coalesce_ms = 2000, .fetch_ms = 100, .sides = "", .points_every = 1024,
		.points_drop = true,
	} };
	uint64_t seconds = 60;
	bool keep;

	if (getrandom(&chaos.seed, 4, 0) != 4)
		chaos.seed = (uint64_t)getpid();
	keep = parse(&chaos, argc, argv, &seconds);
	chaos.random = kvt_trace_mix(chaos.seed);
	printf("chaos: seed %llu, %llu s, %u worker%s, %u pages\n",
	       (unsigned long long)chaos.seed, (unsigned long long)seconds,
	       chaos.options.workers, kvt_plural(chaos.options.workers), chaos.options.n_pages);
	if (start(&chaos)) {
		chaos.end_ns = kvt_now_ns() + (int64_t)seconds * 1000000000;
		for (uint32_t i = 0; !*chaos.wrong && kvt_now_ns() < chaos.end_ns &&
		     load_trace(&chaos, i); i++) {
			run_round(&chaos);
			kvt_trace_free(chaos.trace);
		}
		chaos_end_store(&chaos);
		if (!pulse_stop(chaos.pulse))
			chaos_wrong(&chaos, "the client that only asks ended by itself");
		if (chaos.pattern_errors)
			chaos_wrong(&chaos, "wrong patterns");
		check_daemon(&chaos);
		print(&chaos);
		fflush(stdout);
	}
	if (chaos.daemon.pid) {
		int ended = kvt_own_daemon_stop(&chaos.daemon);

		if (ended)
			chaos_wrong(&chaos, "the supervisor ended with status %d", ended);
		check_log(&chaos);
	}
	if (*chaos.wrong)
		printf("WRONG: %s\nThe log is %s; repeat the choices with --seed %llu\n",
		       chaos.wrong, chaos.log_path, (unsigned long long)chaos.seed);
	else
		printf("chaos: nothing was wrong, nothing was lost\n");
	if (!*chaos.wrong && !keep)
		unlink(chaos.log_path);
	return *chaos.wrong ? 1 : 0;
}
