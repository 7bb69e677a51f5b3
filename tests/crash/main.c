/* SPDX-License-Identifier: Apache-2.0 */

/* kvtcrash: the simulation with a core that is killed before every store that it makes. Nothing is
 * lost by it: each time a successor takes over a copy of what memory holds, and the core that was
 * to die goes on. */

#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/crash/crash.h"
#include "tests/sim/sim.h"

#define TORN_MOST 512 /* bytes of the largest store that one instruction of the source makes */

struct options {
	uint64_t seed, seeds, steps, seconds;
};

struct killer {
	struct sim *sim;
	struct crash_check check;
	uint64_t stores, torn;
	bool inside; /* a check runs */
	/* The last store, if it was of more than a word. */
	char *wide_at;
	size_t wide_bytes;
	char wide_old[TORN_MOST];
};

static void give_up(struct killer *killer, const char *when)
{
	sim_fail(killer->sim, "killed %s store %" PRIu64 ": %s", when, killer->stores,
		 killer->check.why);
}

/* A store of several words may have happened in part. */
static void tear_last_store(struct killer *killer)
{
	for (size_t done = 8; done < killer->wide_bytes; done += 8) {
		killer->torn++;
		if (!crash_check_now(&killer->check, killer->wide_at + done,
				     killer->wide_old + done, killer->wide_bytes - done))
			give_up(killer, "within");
	}
	killer->wide_bytes = 0;
}

static void on_store(void *context, void *at, size_t n)
{
	struct killer *killer = context;

	if (killer->inside || killer->sim->failed)
		return;
	killer->inside = true;
	killer->check.now_ns = killer->sim->now_ns;
	tear_last_store(killer);
	killer->stores++;
	if (!killer->sim->failed && !crash_check_now(&killer->check, NULL, NULL, 0))
		give_up(killer, "before");
	if (n > 8 && n <= TORN_MOST) {
		killer->wide_at = at;
		killer->wide_bytes = n;
		memcpy(killer->wide_old, at, n);
	}
	killer->inside = false;
}

static uint64_t now_s(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec;
}

static bool one_seed(struct sim *sim, struct killer *killer, uint64_t steps)
{
	memset(&killer->check, 0, sizeof(killer->check));
	killer->sim = sim;
	if (sim_create(sim) &&
	    !crash_check_init(&killer->check, &sim->config, sim->arena, sim->ledger))
		sim_fail(sim, "out of memory");
	crash_watch(sim->arena, killer->check.sizes.arena_bytes, sim->ledger,
		    killer->check.sizes.ledger_bytes, on_store, killer);
	for (sim->step = 1; sim->step <= steps && !sim->failed; sim->step++) {
		sim_operate(sim);
		killer->wide_bytes = 0;
	}
	crash_watch(NULL, 0, NULL, 0, NULL, NULL);
	if (sim->failed) {
		sim_print_history(sim, stderr);
		fprintf(stderr, "FAILED: seed %" PRIu64 ", step %" PRIu64 ": %s\n", sim->seed,
			sim->step - 1, sim->why);
	}
	return !sim->failed;
}

static void usage(FILE *to)
{
	fprintf(to, "usage: kvtcrash [--seed N] [--seeds N] [--steps N] [--seconds N]\n"
		    "Kills the core before every store of every step of a simulation and lets a\n"
		    "successor take over: its facts must be those before or after the effect.\n"
		    "Exit status: 0 they are, 1 they are not, 2 bad usage\n");
}

static bool parse(int argc, char **argv, struct options *o)
{
	static const struct option options[] = {
		{ "seed", required_argument, NULL, 's' },
		{ "seeds", required_argument, NULL, 'n' },
		{ "steps", required_argument, NULL, 't' },
		{ "seconds", required_argument, NULL, 'e' },
		{ "help", no_argument, NULL, 'h' },
		{ NULL, 0, NULL, 0 },
	};
	int c;

	while ((c = getopt_long(argc, argv, "", options, NULL)) != -1) {
		uint64_t *number = c == 's' ? &o->seed : c == 'n' ? &o->seeds :
				   c == 't' ? &o->steps : c == 'e' ? &o->seconds : NULL;

		if (!number) {
			usage(c == 'h' ? stdout : stderr);
			exit(c == 'h' ? 0 : 2);
		}
		*number = strtoull(optarg, NULL, 10);
	}
	return optind == argc;
}

int main(int argc, char **argv)
{
	struct options o = { .seed = 1, .seeds = 1, .steps = 300, .seconds = UINT64_MAX };
	static struct sim_coverage coverage;
	uint64_t start = now_s(), checks = 0, rolled_back = 0, done = 0;
	struct killer *killer = calloc(1, sizeof(*killer));
	bool ok = true;

	if (!parse(argc, argv, &o) || !killer) {
		usage(stderr);
		return 2;
	}
	for (; ok && done < o.seeds && now_s() - start < o.seconds; done++) {
		struct sim *sim = calloc(1, sizeof(*sim));

		if (!sim)
			return 2;
		sim->seed = o.seed + done;
		sim->tiny = true;
		sim->coverage = &coverage;
		ok = one_seed(sim, killer, o.steps);
		checks += killer->check.n_checks;
		rolled_back += killer->check.n_rolled_back;
		crash_check_free(&killer->check);
		sim_destroy(sim);
		free(sim);
	}
	printf("kvtcrash: %s: %" PRIu64 " seeds of %" PRIu64 " steps, %" PRIu64 " stores and %"
	       PRIu64 " places inside of them, %" PRIu64 " successors, %" PRIu64 " rolled back\n",
	       ok ? "agreed" : "FAILED", done, o.steps, killer->stores, killer->torn, checks,
	       rolled_back);
	free(killer);
	return ok ? 0 : 1;
}
