/* SPDX-License-Identifier: Apache-2.0 */

/**
 * @file main.c
 * kvtstored: keeps copies of what a kvtrunkd caches in memory of its own, and loads them back when
 * a client lacks them.
 *
 * One thread serves, and one reads each sibling. A turn takes the feed and what tiers below the
 * memory have read, serves peers, then loads pages and copies pages, of each KVT_STORE_TURN_BYTES
 * or one. So a FETCH waits for that at most. Without work it sleeps, and polls the feed: 1 ms after
 * records came, doubling to 20 ms.
 */
#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shm/commit.h"
#include "shm/stdio.h"
#include "store/device.h"
#include "store/bench.h"
#include "store/serve.h"
#include "tools/store.h"
#include "tools/util.h"

#define DEFAULT_RAM_BYTES (4ull << 30)
#define DEFAULT_MIN_POSITIONS 256u
#define DEFAULT_QUEUE_PAGES 4096u
#define DEFAULT_LOAD_PERCENT 12u
#define DEFAULT_HELPER_WAIT_MS 4u
#define DEFAULT_HELPER_BATCH_BYTES (16ull << 20)
#define HELPER_QUEUE_PAGES 4096u
#define DEFAULT_FILE_DEPTH 32u
#define POLL_MOST_MS 20
#define RECONNECT_MS 100

/* `hurry`: a second signal, which ends what an orderly stop writes. */
static volatile sig_atomic_t stopping, hurry;

static void on_signal(int number)
{
	(void)number;
	hurry = stopping;
	stopping = 1;
}

static void usage(FILE *to)
{
	fprintf(to, "usage: kvtstored [--socket PATH] [--ram-bytes SIZE] [--min-positions N]\n"
		"                 [--queue-pages N] [--load-percent N] [--sibling PATH]...\n"
		"                 [--file PATH --file-bytes SIZE [--file-admit used|all]\n"
		"                 [--file-depth N]]\n"
		"                 [--helper COMMAND [--helper-wait-ms N]\n"
		"                 [--helper-batch-bytes SIZE]]\n\n"
		"  --socket PATH      of kvtrunkd; default: $KVTRUNK_SOCKET, then\n"
		"                     " KVT_DEFAULT_SOCKET ". The store's own socket is\n"
		"                     beside it, with .store instead of .sock\n"
		"  --ram-bytes SIZE   memory for copies, as 64G; default: 4G. Allocated at start\n"
		"  --min-positions N  load no fewer at once; default: %u\n"
		"  --queue-pages N    pages that wait to be copied; default: %u\n"
		"  --load-percent N   share of the pool in all loads together; default: %u\n"
		"  --sibling PATH     load also what this kvtrunkd of the host caches, by its\n"
		"                     socket. May be repeated\n"
		"  --file PATH        keep pages that leave the memory in this file, on a local\n"
		"                     disk; they are there after a restart\n"
		"  --file-bytes SIZE  its size. Allocated at start\n"
		"  --file-admit WHAT  used: pages that were used since they were copied;\n"
		"                     all: also others. Default: used\n"
		"  --file-depth N     reads in flight, and as many writes; default: %u\n"
		"  --helper COMMAND   keep pages in a distributed store, too, by this process:\n"
		"                     \"python3 -m kvtrunk.store mooncake\", or redis\n"
		"  --helper-wait-ms N\n"
		"                     time of it to say what it has; default: %u\n"
		"  --helper-batch-bytes SIZE\n"
		"                     most that it moves in one call; default: 16M\n"
		"  --bench            measure memory, and the disk of --file, which is made and\n"
		"                     removed; serve nothing\n"
		"  --help, --version\n", DEFAULT_MIN_POSITIONS, DEFAULT_QUEUE_PAGES,
		DEFAULT_LOAD_PERCENT, DEFAULT_FILE_DEPTH, DEFAULT_HELPER_WAIT_MS);
}

/* Read "64G". */
static bool parse_size(const char *text, uint64_t *ret_bytes)
{
	static const char units[] = "KMGT";
	size_t n = strlen(text);
	const char *unit = n ? strchr(units, text[n - 1]) : NULL;
	unsigned int shift = unit ? 10 * (unsigned int)(unit - units + 1) : 0;

	if (kvt_number_parse(text, n - !!unit, UINT64_MAX >> (shift + 8), ret_bytes) != 0)
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

/* Read the value of an option. Returns what is allowed, if it is something else. */
static const char *parse_value(struct kvt_store_options *options, int option, const char *text)
{
	uint32_t ms;

	switch (option) {
	case 's':
		options->daemon_path = text;
		return NULL;
	case 'r':
		return parse_size(text, &options->ram_bytes) ? NULL :
		       "a size above 0, as 512M or 64G";
	case 'm':
		return parse_count(text, KVT_INDEX_MAX, &options->min_positions) ? NULL :
		       "1 to 1073741824";
	case 'q':
		return parse_count(text, KVT_INDEX_MAX, &options->queue_pages) ? NULL :
		       "1 to 1073741824";
	case 'l':
		return parse_count(text, 100, &options->load_percent) ? NULL : "1 to 100";
	case 'i':
		if (options->siblings.n == KVT_SIBLINGS_MOST)
			return "15 of them";
		options->siblings.paths[options->siblings.n++] = text;
		return *text ? NULL : "a path";
	case 'f':
		options->file.path = text;
		return *text ? NULL : "a path";
	case 'b':
		return parse_size(text, &options->file.bytes) ? NULL :
		       "a size above 0, as 512G or 2T";
	case 'a':
		options->file.all = strcmp(text, "all") == 0;
		return options->file.all || strcmp(text, "used") == 0 ? NULL : "used, all";
	case 'd':
		return parse_count(text, KVT_FILE_DEPTH_MOST, &options->file.depth) ? NULL :
		       "1 to 64";
	case 'x':
		options->remote.command = text;
		return *text ? NULL : "a command";
	case 'w':
		if (!parse_count(text, 60000, &ms))
			return "1 to 60000";
		options->remote.wait_ns = ms * 1000000ull;
		return NULL;
	default:
		return parse_size(text, &options->remote.batch_bytes) ? NULL :
		       "a size above 0, as 16M";
	}
}

/* Read the options. -1: continue; else the exit code. */
static int parse_options(struct kvt_store_options *options, int argc, char **argv)
{
	static const struct option words[] = {
		{ "socket", required_argument, NULL, 's' },
		{ "ram-bytes", required_argument, NULL, 'r' },
		{ "min-positions", required_argument, NULL, 'm' },
		{ "queue-pages", required_argument, NULL, 'q' },
		{ "load-percent", required_argument, NULL, 'l' },
		{ "sibling", required_argument, NULL, 'i' },
		{ "file", required_argument, NULL, 'f' },
		{ "file-bytes", required_argument, NULL, 'b' },
		{ "file-admit", required_argument, NULL, 'a' },
		{ "file-depth", required_argument, NULL, 'd' },
		{ "helper", required_argument, NULL, 'x' },
		{ "helper-wait-ms", required_argument, NULL, 'w' },
		{ "helper-batch-bytes", required_argument, NULL, 'y' },
		{ "bench", no_argument, NULL, 'n' },
		{ "help", no_argument, NULL, 'h' },
		{ "version", no_argument, NULL, 'v' },
		{ NULL, 0, NULL, 0 },
	};
	const char *allowed;
	bool bench = false;
	int option, at = 0;

	while ((option = getopt_long(argc, argv, "", words, &at)) != -1) {
		switch (option) {
		case 'h':
			usage(stdout);
			return KVT_EXIT_OK;
		case 'v':
			printf("kvtstored %s%s\n", kvt_version(), kvt_commit);
			return KVT_EXIT_OK;
		case 'n':
			bench = true;
			break;
		case '?':
			fputs("kvtstored --help lists the options\n", stderr);
			return KVT_EXIT_USAGE;
		default:
			allowed = parse_value(options, option, optarg);
			if (!allowed)
				break;
			fprintf(stderr, "kvtstored: --%s cannot be '%s'; allowed: %s\n",
				words[at].name, optarg, allowed);
			return KVT_EXIT_USAGE;
		}
	}
	if (optind < argc) {
		fprintf(stderr, "kvtstored: unexpected word '%s'; options start with --\n",
			argv[optind]);
		return KVT_EXIT_USAGE;
	}
	if (!options->file.path != !options->file.bytes) {
		fprintf(stderr, "kvtstored: --file and --file-bytes need each other\n");
		return KVT_EXIT_USAGE;
	}
	return bench ? kvt_store_bench(&options->file) : -1;
}

/* Drop all pages if the cache was reset. */
static void drop_reset(struct kvt_store *store)
{
	if (!store->reset)
		return;
	fprintf(stderr, "kvtstored: the cache was reset: %u pages of memory and %llu of a file are "
		"dropped\n", store->tier.index.n_found,
		(unsigned long long)kvt_file_count(store->file).pages);
	kvt_store_drop(store);
}

/* Connect again, if the daemon is back. -EINVAL: it is one that this store cannot serve. */
static int reconnect(struct kvt_server *server)
{
	struct kvt_store *store = server->store;
	uint64_t before[2] = { store->instance[0], store->instance[1] };
	struct kvt_error why = { .code = 0 };
	int rc = kvt_store_connect(store, &why);

	if (rc != 0) {
		if (strcmp(why.text, store->unserved.text) != 0)
			fprintf(stderr, "kvtstored: %s\n", why.text);
		store->unserved = why;
		return rc;
	}
	store->unserved.text[0] = '\0';
	drop_reset(store);
	fprintf(stderr, "kvtstored: connected again; %u pages are kept\n",
		store->tier.index.n_found);
	if (memcmp(before, store->instance, sizeof(before)) != 0)
		kvt_server_drop_peers(server);
	return 0;
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
	fprintf(stderr, "kvtstored: the daemon is gone: %s\n",
		kvt_client_error(store->client)->text);
	kvt_store_disconnect(store);
	return 0;
}

/* Load pages. Returns true if there were any. */
static bool load(struct kvt_store *store)
{
	uint64_t bytes = 0;

	while (bytes < KVT_STORE_TURN_BYTES && kvt_load_turn(store))
		bytes += store->tier.record_bytes;
	return bytes > 0;
}

static int fail_with_device(const struct kvt_store *store)
{
	fprintf(stderr, "kvtstored: the CUDA driver failed while copying: %s: start the store "
		"again\n", kvt_store_broken(store));
	return EXIT_FAILURE;
}

static int serve_until_stopped(struct kvt_server *server)
{
	struct kvt_store *store = server->store;
	int wait_ms = 1;
	bool busy = false;

	while (!stopping) {
		bool asked = kvt_server_wait(server, busy ? 0 : wait_ms);

		busy = store->client && follow(store) > 0;
		busy |= kvt_remote_turn(store->remote);
		busy |= kvt_tier_arrivals(&store->tier);
		kvt_server_turn(server);
		if (!store->client) {
			if (reconnect(server) == -EINVAL)
				return EXIT_FAILURE;
			wait_ms = store->client ? 1 : RECONNECT_MS;
			busy = false;
			continue;
		}
		busy |= asked;
		busy |= load(store);
		busy |= kvt_store_copy(store);
		if (kvt_store_broken(store))
			return fail_with_device(store);
		wait_ms = busy ? 1 : wait_ms < POLL_MOST_MS / 2 ? 2 * wait_ms : POLL_MOST_MS;
	}
	return EXIT_SUCCESS;
}

static void say_serving(const struct kvt_store *store, const char *path)
{
	struct kvt_file_counts file = kvt_file_count(store->file);

	fprintf(stderr, "kvtstored: serving at %s, %u pages of memory", path,
		store->tier.index.n_entries);
	if (store->file)
		fprintf(stderr, ", %llu of %llu pages in %s", (unsigned long long)file.pages,
			(unsigned long long)file.room_pages, store->options.file.path);
	fputc('\n', stderr);
}

int main(int argc, char **argv)
{
	struct sigaction action = { .sa_handler = on_signal };
	struct kvt_error why = { .code = 0 };
	struct kvt_server server;
	struct kvt_store store = {
		.started_ns = (uint64_t)kvt_now_ns(),
		.options = {
			.ram_bytes = DEFAULT_RAM_BYTES,
			.min_positions = DEFAULT_MIN_POSITIONS,
			.queue_pages = DEFAULT_QUEUE_PAGES,
			.load_percent = DEFAULT_LOAD_PERCENT,
			.file.depth = DEFAULT_FILE_DEPTH,
			.remote.wait_ns = DEFAULT_HELPER_WAIT_MS * 1000000ull,
			.remote.batch_bytes = DEFAULT_HELPER_BATCH_BYTES,
			.remote.queue_pages = HELPER_QUEUE_PAGES,
		},
	};
	char path[KVT_STORE_PATH_BYTES];
	int rc, status;

	kvt_stdio_begin("kvtstored");
	status = parse_options(&store.options, argc, argv);
	if (status >= 0)
		return status;
	store.options.daemon_path = kvt_daemon_path(store.options.daemon_path);
	if (kvt_store_path(store.options.daemon_path, path) != 0) {
		fprintf(stderr, "kvtstored: the path of the daemon's socket is too long\n");
		return KVT_EXIT_USAGE;
	}
	signal(SIGPIPE, SIG_IGN);
	signal(SIGXFSZ, SIG_IGN); /* EFBIG, which is told, instead of an end without a word */
	rc = kvt_server_take(&server, path, &why);
	if (rc == 0)
		rc = kvt_store_connect(&store, &why);
	/* Until here a signal ends it: there is nothing to write. */
	sigaction(SIGTERM, &action, NULL);
	sigaction(SIGINT, &action, NULL);
	if (rc == 0)
		rc = kvt_server_open(&server, &store, &why);
	if (rc != 0) {
		fprintf(stderr, "kvtstored: %s\n", why.text);
		status = KVT_EXIT_CONNECT;
	} else {
		drop_reset(&store);
		say_serving(&store, path);
		status = serve_until_stopped(&server);
	}
	kvt_server_close(&server);
	if (kvt_store_broken(&store))
		return EXIT_FAILURE; /* with its session open */
	if (store.client)
		kvt_store_disconnect(&store);
	kvt_file_close(store.file, &hurry);
	kvt_device_close(store.device);
	kvt_remote_close(store.remote);
	kvt_siblings_close(&store.siblings);
	kvt_tier_destroy(&store.tier);
	return status;
}
