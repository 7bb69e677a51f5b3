/* SPDX-License-Identifier: Apache-2.0 */

/**
 * @file main.c
 * kvtstored: keeps copies of what the kvtrunkd of a host cache in memory of its own, and loads them
 * back when a client of any lacks them.
 *
 * A thread serves each instance. Its turn takes the feed, serves peers, then has pages loaded and
 * copied by the workers, so a FETCH waits for no page. Without work it sleeps until a job ends, and
 * polls the feed: 1 ms after records came, doubling to 20 ms. The main thread takes signals, drives
 * the helper, and takes what it and the file have read.
 */
#include <errno.h>
#include <glob.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/exit.h"
#include "base/number.h"
#include "base/option.h"
#include "base/path.h"
#include "daemon/keep/backoff.h"
#include "kvtrunk_wire_control.h"
#include "shm/atomic.h"
#include "shm/clock.h"
#include "shm/commit.h"
#include "shm/limit.h"
#include "shm/size.h"
#include "shm/stdio.h"
#include "store/bench.h"
#include "store/device.h"
#include "store/serve.h"
#include "store/why.h"

#define HELP "kvtstored --help"
#define DEFAULT_RAM_BYTES (4ull << 30)
#define DEFAULT_MIN_POSITIONS 256u
#define DEFAULT_QUEUE_PAGES 4096u
#define DEFAULT_LOAD_PERCENT 12u
#define DEFAULT_HELPER_WAIT_MS 4u
#define DEFAULT_HELPER_BATCH_BYTES (16ull << 20)
#define DEFAULT_HELPER_AGAIN_S 600u
#define HELPER_QUEUE_PAGES 4096u
#define DEFAULT_FILE_DEPTH 32u
#define DEFAULT_STOP_S 60u
#define LEAST_SCRUB_BYTES (1ull << 20) /* a second: a round of 100 GiB in a day */
#define DEFAULT_WORKERS 2u
#define POLL_MOST_MS 20
#define SCRUB_POLL_MS 5
#define RECONNECT_MS 100
#define UNSERVED_MOST_NS 30000000000ull /* between attempts, of an instance among others */
#define LOOK_NS 10000000000ull          /* between looks for daemons that came */
#define HOST_MOST_MS 100                /* until the main thread looks at signals again */

/* `stopping` is of the main thread. `hurry`: a second signal ends what an orderly stop writes. */
static volatile sig_atomic_t stopping, hurry;
static bool serving; /* an instance is; atomic */

static void on_signal(int number)
{
	/* Until then there is nothing to write. */
	if (!kvt_load_relaxed(&serving)) {
		signal(number, SIG_DFL);
		raise(number);
	}
	hurry = stopping;
	stopping = 1;
}

static void usage(FILE *to)
{
	fprintf(to, "usage: kvtstored [--socket PATH]... [--ram-bytes SIZE] [--max-age SECONDS]\n"
		"                 [--min-positions N] [--queue-pages N] [--load-percent N]\n"
		"                 [--workers N] [--scrub SIZE]\n"
		"                 [--file PATH --file-bytes SIZE [--file-write-bytes SIZE]\n"
		"                 [--file-depth N] [--stop-seconds N]]\n"
		"                 [--helper COMMAND [--helper-wait-ms N]\n"
		"                 [--helper-batch-bytes SIZE] [--helper-write-bytes SIZE]\n"
		"                 [--helper-again-seconds N]]\n\n"
		"  --socket PATH      of kvtrunkd; default: $KVTRUNK_SOCKET, then\n"
		"                     " KVT_DEFAULT_SOCKET ". The store's own socket is\n"
		"                     beside it, with .store instead of .sock. Repeated: one\n"
		"                     store for all these instances, %u at most. Or a\n"
		"                     pattern, as '/run/kvtrunk/*.sock': also for those that\n"
		"                     come later\n"
		"  --ram-bytes SIZE   memory for copies, as 64G; default: 4G\n"
		"  --max-age SECONDS  do not find what was copied longer ago; default: no limit\n"
		"  --min-positions N  load no fewer at once; default: %u\n"
		"  --queue-pages N    pages that wait to be copied; default: %u\n"
		"  --load-percent N   share of the pool in all loads together; default: %u\n"
		"  --workers N        threads that copy pages, 64 at most; default: %u\n"
		"  --scrub SIZE       read so many bytes of each pool again in a second, and\n"
		"                     withdraw pages that were written after they were sealed;\n"
		"                     --ram-bytes 0 does nothing else; default: none\n"
		"  --file PATH        keep pages that leave the memory in this file, on a local\n"
		"                     disk; they are there after a restart\n"
		"  --file-bytes SIZE  its size. Allocated at start\n"
		"  --file-write-bytes SIZE\n"
		"                     write no more in a second; default: no limit. What came\n"
		"                     back is written first\n"
		"  --file-depth N     reads in flight, and as many writes; default: %u\n"
		"  --stop-seconds N   most time to write the memory to the file at the end;\n"
		"                     default: %u\n"
		"  --helper COMMAND   keep pages in a distributed store, too, by this process:\n"
		"                     \"python3 -m kvtrunk.store mooncake\", or redis\n"
		"  --helper-wait-ms N\n"
		"                     time of it to say what it has; default: %u\n"
		"  --helper-batch-bytes SIZE\n"
		"                     most that it moves in one call; default: 16M\n"
		"  --helper-write-bytes SIZE\n"
		"                     write no more there in a second; default: no limit.\n"
		"                     What came back is written first\n"
		"  --helper-again-seconds N\n"
		"                     ask as often whether it still has what is used here, and\n"
		"                     write again what it lost; default: %u\n"
		"  --bench            measure memory, and the disk of --file, which is made and\n"
		"                     removed; serve nothing\n"
		"  --help, --version\n", KVT_STORE_INSTANCES, DEFAULT_MIN_POSITIONS,
		DEFAULT_QUEUE_PAGES, DEFAULT_LOAD_PERCENT, DEFAULT_WORKERS, DEFAULT_FILE_DEPTH,
		DEFAULT_STOP_S, DEFAULT_HELPER_WAIT_MS, DEFAULT_HELPER_AGAIN_S);
}

/* Read "64G" or "64GiB". */
static bool parse_size(const char *text, uint64_t *ret_bytes)
{
	size_t n = strspn(text, "0123456789");
	unsigned int shift;

	if (kvt_size_unit(text + n, &shift) != 0 ||
	    kvt_number_parse(text, n, UINT64_MAX >> (shift + 8), ret_bytes) != 0)
		return false;
	*ret_bytes <<= shift;
	return *ret_bytes > 0;
}

static bool parse_count(const char *text, uint64_t most, uint32_t *ret_count)
{
	uint64_t value;

	if (kvt_number_parse(text, strlen(text), most, &value) != 0 || value == 0)
		return false;
	*ret_count = (uint32_t)value;
	return true;
}

static bool is_pattern(const char *socket)
{
	return strpbrk(socket, "*?[") != NULL;
}

/* Read the value of an option. Returns what is allowed, if it is something else. */
static const char *parse_value(struct kvt_store_options *options, int option, const char *text)
{
	uint32_t ms;

	switch (option) {
	case 's':
		if (options->n_sockets == KVT_STORE_INSTANCES)
			return "16 of them";
		for (uint32_t i = 0; i < options->n_sockets; i++)
			if (strcmp(options->sockets[i], text) == 0)
				return "each once";
		options->sockets[options->n_sockets++] = text;
		options->several |= options->n_sockets > 1 || is_pattern(text);
		return *text ? NULL : "a path";
	case 'r':
		options->ram_bytes = 0;
		return strcmp(text, "0") == 0 || parse_size(text, &options->ram_bytes) ? NULL :
		       "0, or a size as 512M or 64G; no share (%)";
	case 'c':
		return parse_size(text, &options->scrub_rate) &&
		       options->scrub_rate >= LEAST_SCRUB_BYTES ? NULL :
		       "a size from 1M on, as 500M; no share (%)";
	case 'o':
		return parse_count(text, INT32_MAX, &options->max_age_s) ? NULL :
		       "1 to 2147483647 seconds";
	case 'm':
		return parse_count(text, KVT_INDEX_MAX, &options->min_positions) ? NULL :
		       "1 to 1073741824";
	case 'q':
		return parse_count(text, KVT_INDEX_MAX, &options->queue_pages) ? NULL :
		       "1 to 1073741824";
	case 'l':
		return parse_count(text, 100, &options->load_percent) ? NULL : "1 to 100";
	case 'k':
		return parse_count(text, KVT_WORKERS_MOST, &options->n_workers) ? NULL :
		       "1 to 64";
	case 'f':
		options->file.path = text;
		return *text ? NULL : "a path";
	case 'b':
		return parse_size(text, &options->file.bytes) ? NULL :
		       "a size above 0, as 512G or 2T; no share (%)";
	case 'a':
		return parse_size(text, &options->file.write_bytes) ? NULL :
		       "a size above 0, as 100M; no share (%)";
	case 'd':
		return parse_count(text, KVT_FILE_DEPTH_MOST, &options->file.depth) ? NULL :
		       "1 to 64";
	case 't':
		return parse_count(text, 86400, &options->stop_s) ? NULL : "1 to 86400";
	case 'x':
		options->remote.command = text;
		return *text ? NULL : "a command";
	case 'w':
		if (!parse_count(text, 60000, &ms))
			return "1 to 60000";
		options->remote.wait_ns = ms * 1000000ull;
		return NULL;
	case 'z':
		return parse_size(text, &options->remote.write_bytes) ? NULL :
		       "a size above 0, as 100M; no share (%)";
	case 'i':
		return parse_count(text, 86400, &options->remote.again_s) ? NULL : "1 to 86400";
	default:
		return parse_size(text, &options->remote.batch_bytes) ? NULL :
		       "a size above 0, as 16M; no share (%)";
	}
}

/* Refuse options that do nothing beside the others. */
static bool misplaced(const struct kvt_store_options *options, bool bench)
{
	static const struct kvt_option_need rows[] = {
		{ "file-write-bytes", "file", NULL },
		{ "file-depth", "file", NULL },
		{ "stop-seconds", "file", NULL },
		{ "helper-wait-ms", "helper", NULL },
		{ "helper-batch-bytes", "helper", NULL },
		{ "helper-write-bytes", "helper", NULL },
		{ "helper-again-seconds", "helper", NULL },
		{ 0 },
	};
	static const char *const of_pages[] = { "max-age", "min-positions", "queue-pages",
						"load-percent", NULL };
	static const char *const of_service[] = {
		"socket", "ram-bytes", "max-age", "min-positions", "queue-pages", "load-percent",
		"scrub", "file-write-bytes", "stop-seconds", "helper", NULL,
	};
	const char *name;

	if (kvt_option_lacks(rows, HELP))
		return true;
	name = bench ? kvt_option_given(of_service) : NULL;
	if (name)
		fprintf(stderr, "kvtstored: --bench serves nothing: leave out --%s\n", name);
	if (name || options->ram_bytes)
		return name;
	name = kvt_option_given(of_pages);
	if (name)
		fprintf(stderr, "kvtstored: --ram-bytes 0 keeps no page: leave out --%s\n", name);
	return name;
}

static const struct option words[] = {
	{ "socket", required_argument, NULL, 's' },
	{ "ram-bytes", required_argument, NULL, 'r' },
	{ "max-age", required_argument, NULL, 'o' },
	{ "min-positions", required_argument, NULL, 'm' },
	{ "queue-pages", required_argument, NULL, 'q' },
	{ "load-percent", required_argument, NULL, 'l' },
	{ "workers", required_argument, NULL, 'k' },
	{ "scrub", required_argument, NULL, 'c' },
	{ "sibling", required_argument, NULL, 'g' }, /* gone */
	{ "file", required_argument, NULL, 'f' },
	{ "file-bytes", required_argument, NULL, 'b' },
	{ "file-admit", required_argument, NULL, 'u' }, /* gone */
	{ "file-write-bytes", required_argument, NULL, 'a' },
	{ "file-depth", required_argument, NULL, 'd' },
	{ "stop-seconds", required_argument, NULL, 't' },
	{ "helper", required_argument, NULL, 'x' },
	{ "helper-wait-ms", required_argument, NULL, 'w' },
	{ "helper-batch-bytes", required_argument, NULL, 'y' },
	{ "helper-write-bytes", required_argument, NULL, 'z' },
	{ "helper-again-seconds", required_argument, NULL, 'i' },
	{ "bench", no_argument, NULL, 'n' },
	{ "help", no_argument, NULL, 'h' },
	{ "version", no_argument, NULL, 'v' },
	{ NULL, 0, NULL, 0 },
};

/* Read the options. -1: continue; else the exit code. */
static int parse_options(struct kvt_store_options *options, int argc, char **argv)
{
	const char *allowed;
	bool bench = false;
	int option;

	while ((option = kvt_option_next(argc, argv, words, "socket", HELP)) != -1) {
		switch (option) {
		case 'h':
			if (kvt_option_word(argc, argv))
				return KVT_EXIT_USAGE;
			usage(stdout);
			return KVT_EXIT_OK;
		case 'v':
			if (kvt_option_word(argc, argv))
				return KVT_EXIT_USAGE;
			printf("kvtstored %s%s\n", kvt_version(), kvt_commit);
			return KVT_EXIT_OK;
		case 'n':
			bench = true;
			break;
		case 'g':
		case 'u':
			fputs(option == 'g' ? "kvtstored: --sibling is no more: one store serves "
			      "all instances: repeat --socket\n" : "kvtstored: --file-admit is no "
			      "more: all is written, what came back first: limit it with "
			      "--file-write-bytes\n", stderr);
			return KVT_EXIT_USAGE;
		case '?':
			return KVT_EXIT_USAGE;
		default:
			allowed = parse_value(options, option, optarg);
			if (!allowed)
				break;
			fprintf(stderr, "kvtstored: --%s cannot be '%s'; allowed: %s\n",
				kvt_option_name(), optarg, allowed);
			return KVT_EXIT_USAGE;
		}
	}
	if (kvt_option_rest(argc, argv))
		return KVT_EXIT_USAGE;
	if (!options->file.path != !options->file.bytes) {
		fprintf(stderr, "kvtstored: --file and --file-bytes need each other\n");
		return KVT_EXIT_USAGE;
	}
	if (!options->ram_bytes && (!options->scrub_rate || options->file.path ||
				    options->remote.command)) {
		fprintf(stderr, "kvtstored: --ram-bytes 0 keeps no page: it is for --scrub alone, "
			"without --file and --helper\n");
		return KVT_EXIT_USAGE;
	}
	return misplaced(options, bench) ? KVT_EXIT_USAGE :
	       bench ? kvt_store_bench(&options->file, options->n_workers) : -1;
}

/* Count an event of an instance, and tell the main thread. */
static void count(struct kvt_host *host, uint32_t *counter)
{
	pthread_mutex_lock(&host->making);
	kvt_store_release(counter, *counter + 1);
	pthread_mutex_unlock(&host->making);
	kvt_store_wake(host->wake);
}

/* ---- an instance */

/* Drop all pages if the cache was reset here, or notice that they were dropped elsewhere. */
static void drop_reset(struct kvt_store *store)
{
	uint64_t file_pages;
	uint32_t pages;

	kvt_store_notice(store);
	if (!store->reset)
		return;
	kvt_tier_lock(store->tier);
	pages = store->tier->index.n_found;
	file_pages = kvt_file_count(store->host->file).pages;
	kvt_tier_unlock(store->tier);
	kvt_store_drop(store);
	kvt_store_say(store, "the cache was reset: %u page%s of memory and %llu of a file are "
		      "dropped", pages, kvt_plural(pages), (unsigned long long)file_pages);
}

static void say_serving(const struct kvt_server *server)
{
	const struct kvt_store *store = server->store;
	const struct kvt_host *host = store->host;
	struct kvt_file_counts file;
	uint32_t n;

	kvt_tier_lock(store->tier);
	n = store->tier->index.n_entries;
	file = kvt_file_count(host->file);
	kvt_tier_unlock(store->tier);
	if (!host->options.ram_bytes)
		kvt_store_say(store, "serving at %s, no page is kept", server->name.path);
	else if (!host->file)
		kvt_store_say(store, "serving at %s, %u page%s of memory", server->name.path, n,
			      kvt_plural(n));
	else
		kvt_store_say(store, "serving at %s, %u page%s of memory, %llu of %llu page%s in "
			      "%s",
			      server->name.path, n, kvt_plural(n), (unsigned long long)file.pages,
			      (unsigned long long)file.room_pages, kvt_plural(file.room_pages),
			      host->options.file.path);
}

/* The daemon is there, for the first time or again. */
static int begin_session(struct kvt_server *server, const uint64_t before[2])
{
	struct kvt_store *store = server->store;
	struct kvt_error why;
	uint32_t pages;
	int rc;

	drop_reset(store);
	if (server->listener < 0) {
		rc = kvt_server_open(server, store, &why);
		if (rc == 0) {
			kvt_store_relaxed(&serving, true);
			say_serving(server);
		} else {
			kvt_store_say(store, "%s", why.text);
			store->unserved = why;
		}
		return rc == 0 ? 0 : -EINVAL;
	}
	kvt_tier_lock(store->tier);
	pages = store->tier->index.n_found;
	kvt_tier_unlock(store->tier);
	kvt_store_say(store, "connected again; %u page%s kept", pages, kvt_plural(pages));
	if (memcmp(before, store->instance, sizeof(store->instance)) != 0)
		kvt_server_drop_peers(server);
	return 0;
}

/* Connect, if the daemon is there. -EINVAL: it is one that this store cannot serve. -EDOM: none is,
 * with these options. */
static int connect_once(struct kvt_server *server)
{
	struct kvt_store *store = server->store;
	uint64_t before[2] = { store->instance[0], store->instance[1] };
	struct kvt_error why = { .code = 0 };
	int rc = kvt_store_connect(store, &why);

	if (rc != 0) {
		if (strcmp(why.text, store->unserved.text) != 0)
			kvt_store_say(store, "%s", why.text);
		store->unserved = why;
		return rc;
	}
	store->unserved.text[0] = '\0';
	kvt_add_full(&store->host->n_sessions, 1);
	return begin_session(server, before);
}

/* End the session, once what was found in its pool is withdrawn: copies outlive it. */
static void disconnect(struct kvt_store *store)
{
	while (store->withdrawal.open)
		kvt_store_withdraw(store);
	kvt_store_disconnect(store);
}

/* Follow the feed. Returns how many records came, 0 also without a daemon. */
static int follow(struct kvt_store *store)
{
	int rc = kvt_store_follow(store);

	drop_reset(store);
	if (rc >= 0)
		return rc;
	if (rc == -ETIMEDOUT || rc == -EOVERFLOW)
		return 0;
	kvt_store_say(store, "the daemon is gone: %s", kvt_client_error(store->client)->text);
	disconnect(store);
	if (!store->client)
		kvt_add_full(&store->host->n_sessions, -1);
	return 0;
}

/* Load pages. Returns true if there were any. */
static bool load(struct kvt_store *store)
{
	uint32_t n = 0;

	while (n < 2 * store->jobs_most && kvt_load_turn(store))
		n++;
	return n > 0;
}

/* Do what is due with a daemon. Returns true if there was something. */
static bool turn(struct kvt_store *store)
{
	bool busy;

	kvt_jobs_look(&store->jobs);
	busy = load(store);
	busy |= kvt_store_copy(store);
	if (store->damage.n_pieces || store->withdrawal.open)
		kvt_store_withdraw(store);
	busy |= store->withdrawal.open;
	if (busy && (store->host->remote || store->host->file))
		kvt_store_wake(store->host->wake);
	return busy;
}

/* Serve peers until the next attempt to connect, or until the store stops. */
static void wait_for_daemon(struct kvt_server *server, uint32_t failures)
{
	struct kvt_store *store = server->store;
	struct pollfd wake = { .fd = store->wake, .events = POLLIN };
	uint64_t now = (uint64_t)kvt_now_ns(), until = now + RECONNECT_MS * 1000000ull;

	if (store->host->options.several)
		until = now + kvt_backoff_ns(failures, RECONNECT_MS * 1000000ull,
					     UNSERVED_MOST_NS);
	for (; now < until && !kvt_load_relaxed(&store->host->stopping);
	     now = (uint64_t)kvt_now_ns()) {
		int ms = (int)((until - now) / 1000000) + 1;

		if (server->listener < 0) {
			poll(&wake, 1, ms);
			continue;
		}
		kvt_server_wait(server, ms);
		kvt_server_turn(server);
	}
}

/* Serve an instance. Returns EXIT_SUCCESS when the store stops. */
static int serve_until_stopped(struct kvt_server *server)
{
	struct kvt_store *store = server->store;
	uint32_t failures = 0;
	int wait_ms = 1;

	while (!kvt_load_relaxed(&store->host->stopping)) {
		bool busy = false;

		if (!store->client) {
			int rc = connect_once(server);

			if (!store->tried)
				count(store->host, rc == 0 ? &store->host->n_connected :
							     &store->host->n_tried);
			store->tried = true;
			if (rc == -EDOM)
				return KVT_EXIT_USAGE;
			if (rc == -EINVAL && !store->host->options.several)
				return EXIT_FAILURE;
			failures = rc == 0 ? 0 : failures + 1;
			wait_ms = 0;
			if (rc != 0)
				wait_for_daemon(server, failures);
			continue;
		}
		kvt_store_relaxed(&store->waits, store->loads.first || server->parked ||
						 store->known.n_queued > 0);
		busy |= kvt_server_wait(server, wait_ms);
		busy |= follow(store) > 0;
		kvt_server_turn(server);
		kvt_store_pin(store);
		if (store->client)
			busy |= turn(store);
		if (kvt_store_broken(store))
			break;
		wait_ms = busy ? 0 : store->loads.first ? 1 : wait_ms < 1 ? 1 :
			  wait_ms < POLL_MOST_MS / 2 ? 2 * wait_ms : POLL_MOST_MS;
		if (store->host->options.scrub_rate && wait_ms > SCRUB_POLL_MS)
			wait_ms = SCRUB_POLL_MS;
	}
	if (!kvt_store_broken(store))
		return EXIT_SUCCESS;
	kvt_add_full(&store->host->n_sessions, -1);
	kvt_store_say(store, "the CUDA driver failed while copying: %s: start the store again",
		      kvt_store_broken(store));
	return EXIT_FAILURE;
}

/* ---- the host */

/* An instance and its thread. */
struct side {
	struct kvt_store store;
	struct kvt_server server;
	char path[108]; /* of the daemon's socket */
	pthread_t thread;
	bool running;
	int status;
};

/* The state of the main thread. */
struct all {
	struct kvt_host host;
	struct side sides[KVT_STORE_INSTANCES];
	uint32_t n_sides; /* some may not run: their socket has another store */
	bool full;        /* it was said that there are more */
};

static void *serve_side(void *self)
{
	struct side *side = self;
	struct kvt_host *host = side->store.host;

	side->status = serve_until_stopped(&side->server);
	/* Without its thread an instance's socket has no answer. */
	if (side->status != EXIT_SUCCESS)
		kvt_server_close(&side->server);
	count(host, &host->n_ended);
	return NULL;
}

/* Serve the instance of a daemon's socket, by a thread. The name of the store's socket is taken
 * first, before much is done in vain. */
static int add_side(struct all *all, const char *socket, struct kvt_error *why)
{
	const char *slash = strrchr(socket, '/'), *name = slash ? slash + 1 : socket;
	size_t n = strlen(name), end = n > 5 && strcmp(name + n - 5, ".sock") == 0 ? n - 5 : n;
	struct side *side = &all->sides[all->n_sides];
	char path[KVT_STORE_PATH_BYTES];
	int rc;

	if (strlen(socket) >= sizeof(side->path) || kvt_store_path(socket, path) != 0)
		return kvt_store_fail(why, -ENAMETOOLONG, "the path of the daemon's socket is too "
				      "long");
	snprintf(side->path, sizeof(side->path), "%s", socket);
	side->server = (struct kvt_server){ .listener = -1, .epoll = -1 };
	side->store = (struct kvt_store){ .host = &all->host, .tier = &all->host.tier,
					  .daemon_path = side->path,
					  .wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK) };
	side->store.jobs = (struct kvt_jobs){ .workers = &all->host.workers,
					      .wake = side->store.wake };
	snprintf(side->store.name, sizeof(side->store.name), "%.*s", (int)end, name);
	all->n_sides++;
	rc = side->store.wake < 0 ? -errno : kvt_server_take(&side->server, path, why);
	side->server.store = &side->store;
	if (rc == 0)
		rc = kvt_store_thread(&side->thread, serve_side, side);
	side->running = rc == 0;
	if (rc != 0 && !why->code)
		return kvt_store_fail(why, rc, "cannot serve %s: %s", socket,
				      rc == -EAGAIN ? KVT_THREAD_CURE : kvt_limit_text(-rc));
	if (rc == 0)
		kvt_store_release(&all->host.n_instances, all->host.n_instances + 1);
	return rc;
}

static bool is_known(const struct all *all, const char *socket)
{
	for (uint32_t i = 0; i < all->n_sides; i++)
		if (strcmp(all->sides[i].path, socket) == 0)
			return true;
	return false;
}

/* Add the daemons of a pattern that are new. */
static void look(struct all *all, const char *pattern)
{
	glob_t found;

	if (glob(pattern, 0, NULL, &found) != 0)
		return;
	for (size_t i = 0; i < found.gl_pathc; i++) {
		struct kvt_error why = { .code = 0 };

		if (is_known(all, found.gl_pathv[i]))
			continue;
		if (all->n_sides == KVT_STORE_INSTANCES) {
			if (!all->full)
				fprintf(stderr, "kvtstored: %s and more are not served: one store "
					"has %u instances at most\n", found.gl_pathv[i],
					KVT_STORE_INSTANCES);
			all->full = true;
			break;
		}
		if (add_side(all, found.gl_pathv[i], &why) != 0)
			fprintf(stderr, "kvtstored: %s\n", why.text);
	}
	globfree(&found);
}

static void look_for_more(struct all *all)
{
	const struct kvt_store_options *options = &all->host.options;

	for (uint32_t i = 0; i < options->n_sockets; i++)
		if (is_pattern(options->sockets[i]))
			look(all, options->sockets[i]);
}

/* Add all that there are now. */
static int add_sides(struct all *all, struct kvt_error *why)
{
	const struct kvt_store_options *options = &all->host.options;
	int rc = 0;

	all->host.wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (all->host.wake < 0)
		return kvt_store_fail(why, -errno, "cannot make an eventfd: %s",
				      kvt_limit_text(errno));
	for (uint32_t i = 0; i < options->n_sockets && rc == 0; i++)
		if (!is_pattern(options->sockets[i]) && !is_known(all, options->sockets[i]))
			rc = add_side(all, options->sockets[i], why);
	if (rc == 0)
		look_for_more(all);
	if (rc == 0 && all->n_sides == 0)
		rc = kvt_store_fail(why, -ENOENT, "there is no daemon's socket at %s: start "
				    "kvtrunkd first, or name its socket with --socket",
				    options->sockets[0]);
	return rc;
}

/* Wait until a daemon is there. False: none is. */
static bool await_first(const struct kvt_host *host)
{
	struct pollfd wake = { .fd = host->wake, .events = POLLIN };
	uint32_t n = host->n_instances;

	while (kvt_load_acquire(&host->n_connected) == 0 && kvt_load_acquire(&host->n_tried) < n &&
	       kvt_load_acquire(&host->n_ended) < n) {
		uint64_t wakes;

		if (poll(&wake, 1, -1) > 0 && read(host->wake, &wakes, sizeof(wakes)) < 0)
			continue;
	}
	return kvt_load_acquire(&host->n_connected) > 0;
}

static int watch(const struct kvt_host *host)
{
	struct epoll_event event = { .events = EPOLLIN };
	int epoll = epoll_create1(EPOLL_CLOEXEC), rc;

	rc = epoll < 0 ? -1 : epoll_ctl(epoll, EPOLL_CTL_ADD, host->wake, &event);
	for (uint32_t i = 0; i < host->tier.n_below && rc == 0; i++)
		rc = epoll_ctl(epoll, EPOLL_CTL_ADD, host->tier.below[i].fd, &event);
	return rc == 0 ? epoll : -errno;
}

/* Drive the helper, and take what it and the file have read. Returns true if there was any. */
static bool drive_below(struct kvt_host *host)
{
	bool busy;

	kvt_tier_lock(&host->tier);
	/* A helper shares all of the memory. */
	busy = kvt_load_acquire(&host->filled) && kvt_remote_turn(host->remote);
	kvt_tier_unlock(&host->tier);
	while (kvt_tier_arrivals(&host->tier))
		busy = true;
	return busy;
}

/* Until a signal, or until no instance is served. */
static void drive_until_stopped(struct all *all)
{
	struct kvt_host *host = &all->host;
	struct epoll_event events[4];
	uint64_t looked_ns = (uint64_t)kvt_now_ns();
	int epoll = watch(host);
	bool busy = false;

	while (epoll >= 0 && !stopping && kvt_load_acquire(&host->n_ended) < host->n_instances) {
		int most_ms = host->remote ? POLL_MOST_MS : HOST_MOST_MS;
		uint64_t wakes;

		epoll_wait(epoll, events, 4, busy ? 0 : most_ms);
		busy = read(host->wake, &wakes, sizeof(wakes)) > 0;
		busy |= drive_below(host);
		for (uint32_t i = 0; i < all->n_sides && busy; i++)
			if (kvt_load_relaxed(&all->sides[i].store.waits))
				kvt_store_wake(all->sides[i].store.wake);
		if ((uint64_t)kvt_now_ns() - looked_ns < LOOK_NS)
			continue;
		looked_ns = (uint64_t)kvt_now_ns();
		look_for_more(all);
	}
	if (epoll < 0)
		fprintf(stderr, "kvtstored: cannot wait for the file: %s\n",
			kvt_limit_text(-epoll));
	else
		close(epoll);
}

/* End all threads. Returns EXIT_SUCCESS if all served until then. */
static int stop_threads(struct all *all)
{
	int status = EXIT_SUCCESS;

	kvt_store_relaxed(&all->host.stopping, true);
	for (uint32_t i = 0; i < all->n_sides; i++) {
		struct side *side = &all->sides[i];

		if (!side->running)
			continue;
		kvt_store_wake(side->store.wake);
		pthread_join(side->thread, NULL);
		status = side->status ? side->status : status;
	}
	return status;
}

/* End sessions and tiers. A session whose pages may still be written stays open until the process
 * ends. */
static void release(struct all *all)
{
	bool broken = false;

	for (uint32_t i = 0; i < all->n_sides; i++) {
		struct side *side = &all->sides[i];

		kvt_server_close(&side->server);
		if (kvt_store_broken(&side->store))
			broken = true;
		else if (side->store.client)
			disconnect(&side->store);
	}
	if (all->host.has_filler)
		pthread_join(all->host.filler, NULL);
	kvt_file_close(all->host.file, &hurry, all->host.options.stop_s);
	kvt_remote_close(all->host.remote);
	if (broken)
		return;
	kvt_workers_stop(&all->host.workers);
	for (uint32_t i = 0; i < all->n_sides; i++)
		kvt_device_close(all->sides[i].store.device);
	kvt_tier_destroy(&all->host.tier);
}

/* Status of a start that failed before it looked for a daemon. */
static int status_of(int error)
{
	return error == -ENAMETOOLONG ? KVT_EXIT_USAGE :
	       error == -ENOENT	      ? KVT_EXIT_CONNECT : EXIT_FAILURE;
}

/* Status of a start that found no daemon to serve: what the host lacks may be there next time. */
static int status_unserved(const struct all *all)
{
	static const int lacking[] = { EMFILE, ENFILE, EAGAIN, EIO, ENODEV, EEXIST };

	for (uint32_t i = 0; i < all->n_sides; i++)
		for (size_t j = 0; j < sizeof(lacking) / sizeof(lacking[0]); j++)
			if (all->sides[i].store.unserved.code == -lacking[j])
				return EXIT_FAILURE;
	return KVT_EXIT_CONNECT;
}

static int run(struct all *all)
{
	struct sigaction action = { .sa_handler = on_signal };
	struct kvt_error why = { .code = 0 };
	int status = EXIT_SUCCESS, stopped, rc;

	sigaction(SIGTERM, &action, NULL);
	sigaction(SIGINT, &action, NULL);
	sigaction(SIGHUP, &action, NULL); /* of a terminal that is closed */
	rc = kvt_workers_start(&all->host.workers, all->host.options.n_workers);
	rc = rc == 0 ? add_sides(all, &why) :
	     kvt_store_fail(&why, rc, "cannot start %u thread%s: %s, or make --workers smaller",
			    all->host.options.n_workers,
			    kvt_plural(all->host.options.n_workers), KVT_THREAD_CURE);
	if (rc != 0)
		fprintf(stderr, "kvtstored: %s\n", why.text);
	else if (await_first(&all->host))
		drive_until_stopped(all);
	else
		status = KVT_EXIT_CONNECT;
	stopped = stop_threads(all);
	if (rc != 0)
		status = status_of(rc);
	else if (status != EXIT_SUCCESS)
		status = status_unserved(all);
	release(all);
	return stopped == KVT_EXIT_USAGE || status == EXIT_SUCCESS ? stopped : status;
}

int main(int argc, char **argv)
{
	static struct all all = {
		.host.making = PTHREAD_MUTEX_INITIALIZER,
		.host.workers = KVT_WORKERS_INIT,
		.host.options = {
			.ram_bytes = DEFAULT_RAM_BYTES,
			.min_positions = DEFAULT_MIN_POSITIONS,
			.queue_pages = DEFAULT_QUEUE_PAGES,
			.load_percent = DEFAULT_LOAD_PERCENT,
			.n_workers = DEFAULT_WORKERS,
			.file.depth = DEFAULT_FILE_DEPTH,
			.stop_s = DEFAULT_STOP_S,
			.remote.wait_ns = DEFAULT_HELPER_WAIT_MS * 1000000ull,
			.remote.batch_bytes = DEFAULT_HELPER_BATCH_BYTES,
			.remote.queue_pages = HELPER_QUEUE_PAGES,
			.remote.again_s = DEFAULT_HELPER_AGAIN_S,
		},
	};
	struct kvt_store_options *options = &all.host.options;
	int status;

	kvt_stdio_begin("kvtstored");
	status = parse_options(options, argc, argv);
	if (status >= 0)
		return status;
	all.host.started_ns = (uint64_t)kvt_now_ns();
	if (options->n_sockets == 0 && kvt_daemon_path_empty(NULL))
		return KVT_EXIT_USAGE;
	if (options->n_sockets == 0)
		options->sockets[options->n_sockets++] = kvt_daemon_path(NULL);
	signal(SIGPIPE, SIG_IGN);
	signal(SIGXFSZ, SIG_IGN); /* EFBIG, which is told, instead of an end without a word */
	return run(&all);
}
