/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file attacks.c
 * What an innocent client notices of each attack: its throughput and its operations' times alone,
 * beside the attack and after it, in the same run.
 */
#include "bench/bench.h"

#include <stdio.h>
#include <string.h>

#include "bench/attacks/attack.h"

#define PHASE_NS 1500000000u
#define QUICK_NS 400000000u
#define LEAST_CYCLES 100
#define MOST_P99_NS 5e6

static const char *const phase_names[ATTACK_PHASES] = { "alone", "setup", "beside", "after" };

static void emit(const struct attack *attack, const struct attack_result *result)
{
	for (int i = 0; i < ATTACK_PHASES; i++) {
		const struct attack_figures *at = &result->at[i];

		bench_line("attack", "\"attack\":\"%s\",\"phase\":\"%s\",\"cycles_per_s\":%.0f,"
			   "\"p50_ns\":%llu,\"p99_ns\":%llu,\"max_ns\":%llu,"
			   "\"newcomer_max_ns\":%llu,\"errors\":%llu,\"wrong\":%llu,"
			   "\"rounds\":%u,\"uids\":%d,\"failed\":%s", attack->name, phase_names[i],
			   at->cycles_per_s, (unsigned long long)at->p50,
			   (unsigned long long)at->p99, (unsigned long long)at->max,
			   (unsigned long long)at->newcomer_max, (unsigned long long)at->errors,
			   (unsigned long long)at->wrong, result->rounds, result->same_uid ? 1 : 2,
			   result->failed ? "true" : "false");
	}
}

static void judge(const struct attack *attack, const struct attack_result *result)
{
	const struct attack_figures *beside = &result->at[ATTACK_BESIDE];
	/* Before and after it: what else this machine does is the same for both. */
	double alone = (result->at[ATTACK_ALONE].cycles_per_s +
			result->at[ATTACK_AFTER].cycles_per_s) / 2;
	char figure[80];

	snprintf(figure, sizeof(figure), "%s: throughput beside it / without", attack->name);
	bench_aim(figure, alone > 0 ? beside->cycles_per_s / alone : 0, "", 0.5, true);
	snprintf(figure, sizeof(figure), "%s: p99 of an operation beside it", attack->name);
	bench_aim(figure, (beside->cycles ? (double)beside->p99 : (double)beside->max) / 1e6, "ms",
		  MOST_P99_NS / 1e6, false);
}

static void explain(const struct attack *attack, const struct attack_result *result)
{
	const struct attack_figures *alone = &result->at[ATTACK_ALONE];
	const struct attack_figures *beside = &result->at[ATTACK_BESIDE];
	uint64_t max = beside->max, newcomer = beside->newcomer_max;

	if (result->at[ATTACK_SETUP].max > max)
		max = result->at[ATTACK_SETUP].max;
	if (result->at[ATTACK_SETUP].newcomer_max > newcomer)
		newcomer = result->at[ATTACK_SETUP].newcomer_max;
	fprintf(stderr, "%-18s %8.0f %8.0f %8.0f %9.3f %9.3f %9.1f %9.1f %6llu  %s%s\n",
		attack->name, alone->cycles_per_s, beside->cycles_per_s,
		result->at[ATTACK_AFTER].cycles_per_s, (double)alone->p99 / 1e6,
		(double)beside->p99 / 1e6, (double)max / 1e6, (double)newcomer / 1e6,
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
					.cycles = LEAST_CYCLES };
	struct attack_result result;

	fprintf(stderr, "%-18s %26s %19s %9s %9s\n%-18s %8s %8s %8s %9s %9s %9s %9s %6s\n", "",
		"cycles/s of the innocent", "ms of an operation", "", "newcomer", "attack", "alone",
		"beside", "after", "p99 alone", "beside", "max", "max", "errors");
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
