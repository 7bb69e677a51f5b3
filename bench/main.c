/* SPDX-License-Identifier: Apache-2.0 */

/* kvtbench: options, the choice of parts, targets and trees.
 *
 * Inputs: the command line. Invariant: the attacks run before this process is bound to a core.
 * Caller: kvtlab bench executes it. */

#include "base/option.h"
#include "bench/attacks/attack.h"
#include "bench/bench.h"
#include "shm/stdio.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum part {
	PART_NOP = 1u << 0,
	PART_MATCH = 1u << 1,
	PART_PROBE = 1u << 2,
	PART_CYCLE = 1u << 3,
	PART_THROUGHPUT = 1u << 4,
	PART_HAMMER = 1u << 5,
	PART_RECLAIM = 1u << 6,
	PART_UNIX = 1u << 7,
	PART_EVICT = 1u << 8,
	PART_ARENA = 1u << 9,
	PART_NODES = 1u << 10,
	PART_SCENARIOS = 1u << 11,
	PART_REBUILD = 1u << 12,
	PART_ASLEEP = 1u << 13,
	PART_ATTACKS = 1u << 14,
	PART_CROWD = 1u << 15,
	PART_MEMORY = 1u << 16,
	PART_SALTS = 1u << 17,
	PART_SIDES = 1u << 18,
	PART_FEED = 1u << 19,
	PART_STORES = 1u << 20,
};
/* Parts that run only by name. */
#define PARTS_APART (PART_SCENARIOS | PART_ATTACKS | PART_CROWD)
#define PARTS_ON_TREES                                                                            \
	(PART_NOP | PART_MATCH | PART_PROBE | PART_CYCLE | PART_THROUGHPUT | PART_HAMMER |        \
	 PART_RECLAIM | PART_NODES)

static const struct {
	const char *name;
	unsigned int part;
	const char *help;
} parts[] = {
	{ "nop", PART_NOP, "empty round trip" },
	{ "match", PART_MATCH, "MATCH+LOCK and UNLOCK, 64 to 131,072 keys" },
	{ "probe", PART_PROBE, "reading the tree without the daemon" },
	{ "cycle", PART_CYCLE, "BEGIN + COMMIT + END, 4,096 cached + 727 new" },
	{ "sides", PART_SIDES, "the cycle with side pages, and without (in this process)" },
	{ "feed", PART_FEED, "the cycle with a subscriber, and without (in this process)" },
	{ "stores", PART_STORES, "a store's fetches, loads and copies, beside memcpy()" },
	{ "throughput", PART_THROUGHPUT, "1 to 8 clients, batches of 1 to 32" },
	{ "hammer", PART_HAMMER, "4,096-key matches beside 131,072-key ones" },
	{ "reclaim", PART_RECLAIM, "pages of a killed client back to FREE" },
	{ "asleep", PART_ASLEEP, "commits of a sleeping daemon, waited for and not" },
	{ "salts", PART_SALTS, "sequences of new salts: root keys, namespaces" },
	{ "unix", PART_UNIX, "a unix socket's round trip, for comparison" },
	{ "evict", PART_EVICT, "eviction, every policy, 1 K to 300 K leaves (in this process)" },
	{ "arena", PART_ARENA, "bytes of metadata per position" },
	{ "memory", PART_MEMORY, "resident bytes of a daemon per position" },
	{ "rebuild", PART_REBUILD, "a successor recovers from a dead daemon" },
	{ "nodes", PART_NODES, "nodes per matched path after a replay" },
	{ "flat-radix", PART_SCENARIOS, "the flat-versus-radix table (not part of the default)" },
	{ "attacks", PART_ATTACKS, "an innocent client beside attackers (not in the default)" },
	{ "crowd", PART_CROWD, "1 to 32 clients, ways to spin, priorities (not in the default)" },
};
#define N_PARTS (sizeof(parts) / sizeof(parts[0]))

static void usage(void)
{
	fputs("Usage: kvtbench [options] [PART...]\n"
	      "Measures kvtrunk, each figure beside its own floor. JSON lines on stdout,\n"
	      "the table of aims on stderr.\n\n"
	      "  --quick            fewer samples, a part of the trace\n"
	      "  --tree WHICH       fresh, replayed or both (default)\n"
	      "  --core             call the state machine in this process, without daemon\n"
	      "  --daemon PROGRAM   kvtrunkd to run (default: beside this program)\n"
	      "  --data DIRECTORY   traces (default: $KVT_DATA, then ../shared/data)\n"
	      "  --attack NAME      of the attacks only this one\n\n"
	      "Parts (default: all but flat-radix, attacks and crowd):\n", stdout);
	for (unsigned int i = 0; i < N_PARTS; i++)
		printf("  %-12s %s\n", parts[i].name, parts[i].help);
}

static unsigned int parse_part(const char *name)
{
	for (unsigned int i = 0; i < N_PARTS; i++) {
		if (!strcmp(name, parts[i].name))
			return parts[i].part;
	}
	fprintf(stderr, "kvtbench: there is no part '%s'; kvtbench --help lists them\n", name);
	exit(2);
}

static const char *attack_named(const char *name)
{
	for (unsigned int i = 0; i < n_attacks; i++)
		if (!strcmp(name, attacks[i].name))
			return name;
	fprintf(stderr, "kvtbench: there is no attack '%s'; the part attacks runs and names "
		"all\n", name);
	exit(2);
}

/* The first core that is allowed for the clients, the last one for the daemon. */
static void choose_cpus(struct bench_options *options)
{
	cpu_set_t set;

	if (sched_getaffinity(0, sizeof(set), &set))
		return;
	for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
		if (!CPU_ISSET((unsigned int)cpu, &set))
			continue;
		if (options->client_cpu < 0)
			options->client_cpu = cpu;
		options->daemon_cpu = cpu;
	}
}

static unsigned int parse(int argc, char **argv, struct bench_options *options)
{
	static const struct option longs[] = {
		{ "quick", no_argument, NULL, 'q' },
		{ "tree", required_argument, NULL, 't' },
		{ "core", no_argument, NULL, 'c' },
		{ "daemon", required_argument, NULL, 'd' },
		{ "data", required_argument, NULL, 'a' },
		{ "attack", required_argument, NULL, 'A' },
		{ "help", no_argument, NULL, 'h' },
		{ NULL, 0, NULL, 0 },
	};
	unsigned int wanted = 0;
	struct stat there;
	int c;

	while ((c = kvt_option_next(argc, argv, longs, NULL, "kvtbench --help")) >= 0) {
		switch (c) {
		case 'q':
			options->quick = true;
			break;
		case 't':
			options->fresh = !strcmp(optarg, "fresh") || !strcmp(optarg, "both");
			options->replayed = !strcmp(optarg, "replayed") || !strcmp(optarg, "both");
			break;
		case 'c':
			options->core = true;
			break;
		case 'd':
			options->daemon = optarg;
			break;
		case 'a':
			options->data = optarg;
			if (stat(optarg, &there) == 0 && !S_ISDIR(there.st_mode))
				errno = ENOTDIR;
			else if (access(optarg, R_OK | X_OK) == 0)
				break;
			fprintf(stderr, "kvtbench: --data %s: %s; without it a trace is "
				"generated\n", optarg, strerror(errno));
			exit(2);
		case 'A':
			options->attack = attack_named(optarg);
			break;
		case 'h':
			usage();
			exit(0);
		default: /* and that was said */
			exit(2);
		}
	}
	if (!options->fresh && !options->replayed) {
		fprintf(stderr, "kvtbench: --tree takes fresh, replayed or both\n");
		exit(2);
	}
	while (optind < argc)
		wanted |= parse_part(argv[optind++]);
	return wanted ? wanted : ~(unsigned int)PARTS_APART;
}

static void run_on_tree(const struct bench_options *options, unsigned int wanted, bool replayed)
{
	struct bench_target target = { .spin_us = -1 };
	struct bench_tree tree;

	bench_target_open(&target, options, BENCH_POSITIONS / BENCH_PAGE_SIZE + 1);
	if (replayed)
		bench_tree_replayed(&target, &tree);
	else
		bench_tree_fresh(&target, &tree);
	if (wanted & PART_NOP && !replayed)
		bench_nop(&target);
	if (wanted & PART_MATCH)
		bench_match(&target, &tree);
	if (wanted & PART_PROBE)
		bench_probe(&target, &tree);
	if (wanted & PART_THROUGHPUT)
		bench_throughput(&target, &tree);
	if (wanted & PART_HAMMER)
		bench_hammer(&target, &tree);
	if (wanted & PART_RECLAIM) {
		bench_reclaim(&target, &tree);
		bench_reclaim_crowd(&target, &tree);
	}
	if (wanted & PART_CYCLE)
		bench_cycle(&target, &tree);
	bench_tree_free(&tree);
	bench_target_close(&target);
}

int main(int argc, char **argv)
{
	struct bench_options options = { .fresh = true, .replayed = true, .client_cpu = -1,
					 .daemon_cpu = -1, .data = getenv("KVT_DATA") };
	unsigned int wanted;
	int rc = 0;

	kvt_stdio_begin("kvtbench");
	choose_cpus(&options);
	wanted = parse(argc, argv, &options);
	if (!options.data)
		options.data = "../shared/data";
	setvbuf(stdout, NULL, _IOLBF, 0);
	if (wanted & PART_SCENARIOS)
		rc = bench_scenarios();
	if (wanted == PART_SCENARIOS)
		return rc;
	bench_clock_init();
	/* These before binding this process to one core. */
	if (wanted & PART_ATTACKS)
		bench_attacks(&options);
	if (wanted & PART_CROWD)
		bench_crowd(&options);
	if (!(wanted & ~(unsigned int)PARTS_APART)) {
		bench_aims_print();
		return rc;
	}
	bench_pin(0, options.client_cpu);
	bench_line("machine", "\"client_cpu\":%d,\"daemon_cpu\":%d,\"page_size\":%u,"
		   "\"pool_positions\":%u,\"target\":\"%s\"", options.client_cpu,
		   options.daemon_cpu, BENCH_PAGE_SIZE, BENCH_POSITIONS,
		   options.core ? "core in this process" : "daemon on its own core, spinning");
	if (wanted & PART_ASLEEP)
		bench_asleep(&options);
	if (wanted & PART_SALTS)
		bench_salts(&options);
	if (wanted & PART_UNIX)
		bench_unix(&options);
	if (wanted & PARTS_ON_TREES & ~(unsigned int)PART_NODES && options.fresh)
		run_on_tree(&options, wanted, false);
	if (wanted & PARTS_ON_TREES & ~(unsigned int)PART_NOP && options.replayed)
		run_on_tree(&options, wanted, true);
	if (wanted & PART_EVICT)
		bench_evict(&options);
	if (wanted & PART_SIDES)
		bench_sides(&options);
	if (wanted & PART_FEED)
		bench_feed(&options);
	if (wanted & PART_STORES)
		bench_stores(&options);
	if (wanted & PART_ARENA)
		bench_arena();
	if (wanted & PART_MEMORY && !options.core)
		bench_memory(&options);
	if (wanted & PART_REBUILD)
		bench_rebuild(&options);
	bench_aims_print();
	return rc;
}
