/* SPDX-License-Identifier: Apache-2.0 */

/* kvtsim: many seeds, one after the other. A failure prints the command that repeats it. Inputs:
 * command line only; all else follows from the seed. */

#include <getopt.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shm/clock.h"
#include "tests/core/sim/sim.h"

struct options {
	uint64_t seed, seeds, steps;
	uint64_t seconds; /* 0: no limit */
	bool verbose, coverage, require_coverage;
	const char *log; /* operation log of the last seed */
};

static struct sim *running; /* for the signal handler */
static uint64_t running_steps;

static void print_failure(const struct sim *sim, FILE *to)
{
	const struct kvt_core_config *c = &sim->config;

	sim_print_history(sim, to);
	fprintf(to, "config: page_size %u, pages %u, slots %u, nodes %u, namespaces %u, sessions "
		"%u, leases %u, pending %u, max_leases %u, max_private %u, policy %s, slru %u, "
		"kinds of sides %u (%u %u %u ...)%s\n",
		c->page_size, c->n_pages, c->n_slots, c->max_nodes, c->max_namespaces,
		c->max_sessions, c->n_leases, c->n_pending, c->max_leases, c->max_private_pages,
		kvt_policy_name(c->policy), c->slru_threshold, c->n_sides, c->side_pages[0],
		c->side_pages[1], c->side_pages[2], c->disabled ? ", disabled" : "");
	fprintf(to, "FAILED: seed %" PRIu64 ", step %" PRIu64 ": %s\n", sim->seed, sim->step,
		sim->why);
	fprintf(to, "repeat: kvtsim --seed %" PRIu64 " --steps %" PRIu64 "\n", sim->seed,
		running_steps);
}

/* An assertion of the core failed: print the seed and step, then abort. */
static void on_abort(int number)
{
	signal(number, SIG_DFL);
	if (running) {
		snprintf(running->why, sizeof(running->why), "signal %d (%s)", number,
			 strsignal(number));
		print_failure(running, stderr);
	}
	raise(number);
}

static bool one_seed(struct sim *sim, uint64_t steps, const char *log)
{
	char why[512];

	running = sim;
	running_steps = steps;
	sim_create(sim);
	if (log && !sim->failed &&
	    kvt_oplog_open(log, &sim->config, &sim->log, why, sizeof(why)))
		sim_fail(sim, "%s", why);
	for (sim->step = 1; sim->step <= steps && !sim->failed; sim->step++) {
		sim_operate(sim);
		if (!sim->failed)
			sim_feed_step(sim);
		if (!sim->failed && kvt_core_arena(sim->core)->mutation % 2)
			sim_fail(sim, "the mutation word stayed odd");
		if (!sim->failed && !kvt_core_counters_ok(sim->core))
			sim_fail(sim, "counters do not add up");
		if (sim->step % 37 == 0 && !sim->failed)
			sim_check_progress(sim);
		if (sim->step % 331 == 0 && !sim->failed)
			kvt_core_audit(sim->core, sim_on_problem, sim);
		if (sim->step % 509 == 0 && !sim->failed)
			sim_compare(sim);
		if (sim->step % 257 == 0 && !sim->failed &&
		    kvt_oracle_check(sim->oracle, why, sizeof(why)))
			sim_fail(sim, "oracle's own check: %s", why);
	}
	if (!sim->failed)
		kvt_core_audit(sim->core, sim_on_problem, sim);
	if (!sim->failed && sim_compare(sim))
		sim_drain(sim);
	if (!sim->failed)
		kvt_core_audit(sim->core, sim_on_problem, sim);
	if (sim->log && kvt_oplog_close(sim->log))
		sim_fail(sim, "the operation log could not be written");
	if (sim->failed)
		print_failure(sim, stderr);
	sim->coverage->steps += sim->step - 1;
	sim->coverage->seeds++;
	running = NULL;
	return !sim->failed;
}

static uint64_t seconds_since(int64_t began_ns)
{
	return (uint64_t)(kvt_now_ns() - began_ns) / 1000000000;
}

static void usage(FILE *to)
{
	fprintf(to,
		"usage: kvtsim [OPTION...]\n"
		"Drives the core with random operations and checks it against the oracle.\n"
		"  --seed N             first seed (1)\n"
		"  --seeds N            how many seeds (1)\n"
		"  --steps N            steps of each seed (20000)\n"
		"  --seconds N          start no seed after this time\n"
		"  --log FILE           write the last seed's operation log (kvtlab verify)\n"
		"  --coverage           print what happened how often\n"
		"  --require-coverage   fail if something on the list never happened\n"
		"  --verbose            a line for each seed, and the last records of the last\n"
		"Exit status: 0 agreed, 1 a disagreement or missing coverage, 2 bad usage\n");
}

static bool parse_number(const char *text, uint64_t *ret)
{
	char *end;

	*ret = strtoull(text, &end, 10);
	if (*text && !*end && *text != '-')
		return true;
	fprintf(stderr, "kvtsim: not a number: %s\n", text);
	return false;
}

static bool parse(int argc, char **argv, struct options *o)
{
	static const struct option options[] = {
		{ "seed", required_argument, NULL, 's' },
		{ "seeds", required_argument, NULL, 'n' },
		{ "steps", required_argument, NULL, 't' },
		{ "seconds", required_argument, NULL, 'e' },
		{ "log", required_argument, NULL, 'l' },
		{ "coverage", no_argument, NULL, 'c' },
		{ "require-coverage", no_argument, NULL, 'r' },
		{ "verbose", no_argument, NULL, 'v' },
		{ "help", no_argument, NULL, 'h' },
		{ 0 },
	};
	int c;

	while ((c = getopt_long(argc, argv, "", options, NULL)) != -1) {
		uint64_t *number = c == 's' ? &o->seed : c == 'n' ? &o->seeds :
				   c == 't' ? &o->steps : c == 'e' ? &o->seconds : NULL;
		bool *flag = c == 'c' ? &o->coverage : c == 'r' ? &o->require_coverage :
			     c == 'v' ? &o->verbose : NULL;

		if (c == 'h') {
			usage(stdout);
			exit(0);
		}
		if (c == 'l')
			o->log = optarg;
		else if (flag)
			*flag = true;
		else if (!number || !parse_number(optarg, number))
			return false;
	}
	return optind == argc;
}

int main(int argc, char **argv)
{
	struct options o = { .seed = 1, .seeds = 1, .steps = 20000 };
	struct sim_coverage *coverage = calloc(1, sizeof(*coverage));
	struct sim *sim = malloc(sizeof(*sim));
	int64_t began_ns = kvt_now_ns();
	bool good = true;

	if (!parse(argc, argv, &o) || !coverage || !sim) {
		usage(stderr);
		return 2;
	}
	signal(SIGABRT, on_abort);
	signal(SIGSEGV, on_abort);
	for (uint64_t i = 0; i < o.seeds && good; i++) {
		if (o.seconds && seconds_since(began_ns) >= o.seconds)
			break;
		memset(sim, 0, sizeof(*sim));
		sim->seed = o.seed + i;
		sim->coverage = coverage;
		good = one_seed(sim, o.steps, o.log);
		if (o.verbose && good && i + 1 == o.seeds)
			sim_print_history(sim, stdout);
		if (o.verbose)
			printf("seed %" PRIu64 ": %" PRIu64 " records so far\n", sim->seed,
			       coverage->records);
		sim_destroy(sim);
	}
	if (o.coverage || !good)
		sim_coverage_print(coverage, stdout);
	if (good && o.require_coverage && sim_coverage_missing(coverage, stderr))
		good = false;
	printf("kvtsim: %s: %" PRIu64 " steps, %" PRIu64 " records, %" PRIu64 " seeds, %" PRIu64
	       " s\n", good ? "agreed" : "FAILED", coverage->steps, coverage->records,
	       coverage->seeds, seconds_since(began_ns));
	free(sim);
	free(coverage);
	return good ? 0 : 1;
}
