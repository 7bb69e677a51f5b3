/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file attacks.c
 * The cost of each attack to an innocent client: its throughput and operations' times alone,
 * beside the attack and after it, in the same run.
 */
#include "bench/bench.h"

#include <stdio.h>
#include <string.h>

#include "bench/attacks/attack.h"

#define PHASE_NS 1500000000u
#define QUICK_NS 400000000u
#define LEAST_CYCLES 100
#define LEAST_VISITS 8
#define MOST_P99_NS 5e6
#define MOST_CONNECT_NS 50e6

static const char *const phase_names[ATTACK_PHASES] = { "alone", "setup", "beside", "after" };

static void emit(const struct attack *attack, const struct attack_result *result)
{
	for (int i = 0; i < ATTACK_PHASES; i++) {
		const struct attack_figures *at = &result->at[i];

		bench_line("attack", "\"attack\":\"%s\",\"phase\":\"%s\",\"cycles_per_s\":%.0f,"
			   "\"p50_ns\":%llu,\"p99_ns\":%llu,\"max_ns\":%llu,"
			   "\"connect_p50_ns\":%llu,\"connect_p99_ns\":%llu,"
			   "\"visits\":%llu,\"visit_max_ns\":%llu,"
			   "\"errors\":%llu,\"wrong\":%llu,"
			   "\"rounds\":%u,\"uids\":%d,\"failed\":%s", attack->name, phase_names[i],
			   at->cycles_per_s, (unsigned long long)at->p50,
			   (unsigned long long)at->p99, (unsigned long long)at->max,
			   (unsigned long long)at->connect_p50,
			   (unsigned long long)at->connect_p99, (unsigned long long)at->visits,
			   (unsigned long long)at->visit_max, (unsigned long long)at->errors,
			   (unsigned long long)at->wrong, result->rounds, result->same_uid ? 1 : 2,
			   result->failed ? "true" : "false");
	}
}

static void judge(const struct attack *attack, const struct attack_result *result)
{
	const struct attack_figures *beside = &result->at[ATTACK_BESIDE];
	/* The mean of before and after: other load of the machine hits both. */
	double alone = (result->at[ATTACK_ALONE].cycles_per_s +
			result->at[ATTACK_AFTER].cycles_per_s) / 2;
	char figure[80];

	snprintf(figure, sizeof(figure), "%s: throughput beside it / without", attack->name);
	bench_aim(figure, alone > 0 ? beside->cycles_per_s / alone : 0, "", 0.5, true);
	snprintf(figure, sizeof(figure), "%s: p99 of an operation beside it", attack->name);
	bench_aim(figure, (beside->cycles ? (double)beside->p99 : (double)beside->max) / 1e6, "ms",
		  MOST_P99_NS / 1e6, false);
	snprintf(figure, sizeof(figure), "%s: p99 of a newcomer's wait beside it", attack->name);
	bench_aim(figure, (double)beside->connect_p99 / 1e6, "ms", MOST_CONNECT_NS / 1e6, false);
}

static void explain(const struct attack *attack, const struct attack_result *result)
{
	const struct attack_figures *alone = &result->at[ATTACK_ALONE];
	const struct attack_figures *beside = &result->at[ATTACK_BESIDE];
	uint64_t max = beside->max, visit = beside->visit_max;

	if (result->at[ATTACK_SETUP].max > max)
		max = result->at[ATTACK_SETUP].max;
	if (result->at[ATTACK_SETUP].visit_max > visit)
		visit = result->at[ATTACK_SETUP].visit_max;
	fprintf(stderr, "%-18s %8.0f %8.0f %8.0f %9.3f %9.3f %9.1f %8.1f %8.1f %8.1f %8.1f %6llu"
		"  %s%s\n",
		attack->name, alone->cycles_per_s, beside->cycles_per_s,
		result->at[ATTACK_AFTER].cycles_per_s, (double)alone->p99 / 1e6,
		(double)beside->p99 / 1e6, (double)max / 1e6, (double)alone->connect_p50 / 1e6,
		(double)beside->connect_p50 / 1e6, (double)beside->connect_p99 / 1e6,
		(double)visit / 1e6,
		(unsigned long long)(beside->errors + result->at[ATTACK_SETUP].errors),
		result->skipped ? "skipped: " : "", result->why);
}

void bench_attacks(const struct bench_options *options)
{
	struct attack_options scene = { .daemon = options->daemon,
					.daemon_cpu = options->daemon_cpu,
					.client_cpu = options->client_cpu,
					.yield = true,
					.ns = options->quick ? QUICK_NS : PHASE_NS,
					.cycles = LEAST_CYCLES,
					.visits = LEAST_VISITS };
	struct attack_result result;

	fprintf(stderr, "%-18s %26s %29s %35s\n%-18s %8s %8s %8s %9s %9s %9s %8s %8s %8s %8s "
		"%6s\n", "", "cycles/s of a session", "ms of its operations",
		"a newcomer's wait, ms, and visit", "attack", "alone", "beside", "after",
		"p99 alone", "beside", "max", "alone", "beside", "p99", "max", "errors");
	for (unsigned int i = 0; i < n_attacks; i++) {
		if (options->attack && strcmp(options->attack, attacks[i].name))
			continue;
		attack_play(&attacks[i], &scene, &result);
		explain(&attacks[i], &result);
		if (result.skipped)
			continue;
		emit(&attacks[i], &result);
		judge(&attacks[i], &result);
	}
}
