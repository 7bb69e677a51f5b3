/* SPDX-License-Identifier: Apache-2.0 */

/* kvtcrash: the simulation, with the core stopped before each of its stores.
 *
 * Two modes. Checking: a successor recovers from a copy of memory before every store, then the core
 * continues. Killing: the core dies at a random store, and its successor continues the run. Inputs:
 * seeds and steps on the command line. Invariant: no effect is lost or half done. Callers:
 * tests/core/list. */

#include <getopt.h>
#include <inttypes.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/core/records.h"
#include "shm/clock.h"
#include "tests/core/crash/crash.h"
#include "tests/core/sim/sim.h"

#define TORN_MOST 512 /* bytes of the largest store that one instruction makes */

struct options {
	uint64_t seed, seeds, steps, seconds;
	bool lives, covered;
};

struct killer {
	struct sim *sim;
	struct crash_check check;
	uint64_t stores, torn;
	bool inside; /* a check runs */
	uint64_t kill_at, killed; /* stores until death (0: never), deaths */
	uint64_t heirs;           /* of these, during recovery */
	uint64_t died_in; /* the ledger's `running` at the last death that was not an heir's */
	jmp_buf death;
	/* The last store, if longer than a word. */
	char *wide_at;
	size_t wide_bytes;
	char wide_old[TORN_MOST];
};

static void give_up(struct killer *killer, const char *when)
{
	sim_fail(killer->sim, "killed %s store %" PRIu64 ": %s", when, killer->stores,
		 killer->check.why);
}

/* A store of several words may be half done. */
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
	sim_feed_inside(killer->sim);
	if (!killer->sim->failed && !crash_check_now(&killer->check, NULL, NULL, 0))
		give_up(killer, "before");
	if (n > 8 && n <= TORN_MOST) {
		killer->wide_at = at;
		killer->wide_bytes = n;
		memcpy(killer->wide_old, at, n);
	}
	killer->inside = false;
}

/* Killing: this store is the last one, and memory stays as it is then. A store of several words may
 * be half done. */
static void on_store_of_mortal(void *context, void *at, size_t n)
{
	struct killer *killer = context;

	killer->stores++;
	sim_feed_inside(killer->sim);
	if (killer->kill_at == 0 || --killer->kill_at > 0) {
		killer->wide_bytes = n > 8 && n <= TORN_MOST ? n : 0;
		killer->wide_at = at;
		if (killer->wide_bytes)
			memcpy(killer->wide_old, at, n);
		return;
	}
	if (killer->wide_bytes && sim_chance(killer->sim, 500)) {
		size_t done = 8 * sim_below(killer->sim, (uint32_t)killer->wide_bytes / 8);

		memcpy(killer->wide_at + done, killer->wide_old + done,
		       killer->wide_bytes - done);
		killer->torn++;
	}
	longjmp(killer->death, 1);
}

/* Check that nothing ran that had killed enough. An heir dies with what its predecessor left. */
static void note_death(struct sim *sim, struct killer *killer)
{
	uint64_t running = ((const struct kvt_ledger_header *)sim->ledger)->running;

	killer->killed++;
	if (running >> 60 != KVT_RUNNING_ENTRY && running >> 60 != KVT_RUNNING_DEFERRED)
		return;
	if ((running >> 56 & 15) > KVT_FATAL_DEATHS)
		sim_fail(sim, "%u daemons died in one operation", (uint32_t)(running >> 56 & 15));
	killer->died_in = running;
}

/* Check that the death was charged to the entry, however many heirs died meanwhile. */
static void check_charge(struct sim *sim, struct killer *killer)
{
	uint64_t running = killer->died_in;
	const struct kvt_session_record *session =
		kvt_core_session(sim->core, (uint32_t)(running >> 32) & 0xffff);

	killer->died_in = 0;
	if (running >> 60 != KVT_RUNNING_ENTRY || session->sq_taken != (uint32_t)running)
		return;
	if (session->fatal_entry != session->sq_taken || session->deaths != (running >> 56 & 15))
		sim_fail(sim, "%u daemons died in an entry, and %u were counted",
			 (uint32_t)(running >> 56 & 15), session->deaths);
}

static void mortal_step(struct sim *sim, struct killer *killer)
{
	killer->wide_bytes = 0;
	killer->kill_at = sim_chance(sim, 30) ? 1 + sim_below(sim, sim_chance(sim, 500) ? 40 : 600)
					      : 0;
	if (setjmp(killer->death) == 0) {
		sim_operate(sim);
		sim_settle(sim);
	} else {
		note_death(sim, killer);
		/* A successor may die as well, and returns here. */
		killer->wide_bytes = 0;
		killer->kill_at = sim_chance(sim, 300) ? 1 + sim_below(sim, 2000) : 0;
		killer->heirs += killer->kill_at != 0;
		sim_killed(sim);
		killer->heirs -= killer->kill_at != 0; /* it lived */
		if (!sim->failed)
			check_charge(sim, killer);
	}
	killer->kill_at = 0;
	if (!sim->failed)
		sim_feed_step(sim);
	if (!sim->failed)
		sim_check_progress(sim);
	if (!sim->failed && sim->step % 61 == 0)
		sim_compare(sim);
}

static bool one_life(struct sim *sim, struct killer *killer, uint64_t steps)
{
	struct kvt_core_sizes sizes;
	char why[512];

	killer->sim = sim;
	sim->mortal = true;
	if (sim_create(sim) && kvt_core_plan(&sim->config, &sizes, NULL) == 0)
		crash_watch(sim->arena, sizes.arena_bytes, sim->ledger, sizes.ledger_bytes,
			    on_store_of_mortal, killer);
	for (sim->step = 1; sim->step <= steps && !sim->failed; sim->step++) {
		mortal_step(sim, killer);
		if (sim->step % 257 == 0 && !sim->failed &&
		    kvt_oracle_check(sim->oracle, why, sizeof(why)))
			sim_fail(sim, "oracle's own check: %s", why);
	}
	if (!sim->failed && sim_compare(sim))
		sim_drain(sim);
	sim_settle(sim);
	crash_watch(NULL, 0, NULL, 0, NULL, NULL);
	return !sim->failed;
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
		if (!sim->failed)
			sim_feed_step(sim);
	}
	crash_watch(NULL, 0, NULL, 0, NULL, NULL);
	crash_check_free(&killer->check);
	return !sim->failed;
}

static void usage(FILE *to)
{
	fprintf(to, "usage: kvtcrash [--lives] [--require-coverage] [--seed N] [--seeds N]\n"
		    "                [--steps N] [--seconds N]\n"
		    "Kills the core before every store of every step of a simulation and lets a\n"
		    "successor take over a copy: its facts must be those of the last effect.\n"
		    "With --lives it dies now and then, and its successor continues.\n"
		    "With KVTSIM_FOCUS=1 what concerns side pages happens often, and must with\n"
		    "--require-coverage.\n"
		    "Exit status: 0 they are, 1 they are not, 2 bad usage\n");
}

static bool parse(int argc, char **argv, struct options *o)
{
	static const struct option options[] = {
		{ "seed", required_argument, NULL, 's' },
		{ "seeds", required_argument, NULL, 'n' },
		{ "steps", required_argument, NULL, 't' },
		{ "seconds", required_argument, NULL, 'e' },
		{ "lives", no_argument, NULL, 'l' },
		{ "require-coverage", no_argument, NULL, 'r' },
		{ "help", no_argument, NULL, 'h' },
		{ NULL, 0, NULL, 0 },
	};
	int c;

	while ((c = getopt_long(argc, argv, "", options, NULL)) != -1) {
		uint64_t *number = c == 's' ? &o->seed : c == 'n' ? &o->seeds :
				   c == 't' ? &o->steps : c == 'e' ? &o->seconds : NULL;

		if (c == 'l' || c == 'r') {
			*(c == 'l' ? &o->lives : &o->covered) = true;
			continue;
		}
		if (!number) {
			usage(c == 'h' ? stdout : stderr);
			exit(c == 'h' ? 0 : 2);
		}
		*number = strtoull(optarg, NULL, 10);
	}
	return optind == argc;
}

/* True if what KVTSIM_FOCUS is for happened, with many kinds of side pages, too. */
static bool covered(const struct sim_coverage *coverage)
{
	static const uint8_t needed[] = { SIM_BARE, SIM_SIDE_LET, SIM_SIDE_LET_EVICTED,
					  SIM_POINT_AWAITED, SIM_MANY_TAKEN, SIM_MANY_POINT,
					  SIM_MANY_LET };

	for (size_t i = 0; i < sizeof(needed); i++) {
		if (coverage->rare[needed[i]] > 0)
			continue;
		fprintf(stderr, "never happened: %s; choose other seeds\n",
			sim_rare_names[needed[i]]);
		return false;
	}
	return true;
}

int main(int argc, char **argv)
{
	struct options o = { .seed = 1, .seeds = 1, .steps = 300, .seconds = UINT64_MAX };
	static struct sim_coverage coverage;
	int64_t began_ns = kvt_now_ns();
	uint64_t checks = 0, rolled_back = 0, done = 0, fatal = 0;
	struct killer *killer = calloc(1, sizeof(*killer));
	bool ok = true;

	if (!parse(argc, argv, &o) || !killer) {
		usage(stderr);
		return 2;
	}
	for (; ok && done < o.seeds &&
	       (uint64_t)(kvt_now_ns() - began_ns) / 1000000000 < o.seconds; done++) {
		struct sim *sim = calloc(1, sizeof(*sim));

		if (!sim)
			return 2;
		sim->seed = o.seed + done;
		sim->tiny = !o.lives || done % 4 == 0;
		sim->steady = !o.lives; /* limits that changed are no facts of the last effect */
		sim->coverage = &coverage;
		ok = o.lives ? one_life(sim, killer, o.steps) : one_seed(sim, killer, o.steps);
		if (!ok) {
			sim_print_history(sim, stderr);
			fprintf(stderr, "FAILED: seed %" PRIu64 ", step %" PRIu64 ": %s\n",
				sim->seed, sim->step - 1, sim->why);
		}
		checks += killer->check.n_checks;
		rolled_back += killer->check.n_rolled_back;
		sim_destroy(sim);
		free(sim);
	}
	ok = ok && (!o.covered || covered(&coverage));
	for (uint32_t op = 0; op <= KVT_OP_COUNT; op++)
		fatal += coverage.op[op][KVT_REASON_FATAL];
	if (o.lives)
		printf("kvtcrash: %s: %" PRIu64 " seeds of %" PRIu64 " steps, %" PRIu64 " stores, %"
		       PRIu64 " deaths, %" PRIu64 " of them inside an effect, which was rolled "
		       "back, %" PRIu64 " of successors that were about to take over; %" PRIu64
		       " operations refused that had killed two\n",
		       ok ? "agreed" : "FAILED", done, o.steps, killer->stores, killer->killed,
		       coverage.rolled_back, killer->heirs, fatal);
	else
		printf("kvtcrash: %s: %" PRIu64 " seeds of %" PRIu64 " steps, %" PRIu64
		       " stores and %" PRIu64 " places inside of them, %" PRIu64
		       " successors, %" PRIu64 " after a rollback\n",
		       ok ? "agreed" : "FAILED", done, o.steps, killer->stores, killer->torn,
		       checks, rolled_back);
	free(killer);
	return ok ? 0 : 1;
}
