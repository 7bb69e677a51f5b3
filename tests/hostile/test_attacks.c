/* SPDX-License-Identifier: Apache-2.0 */
/* Each attack of bench/attacks beside a client that keeps the rules: it gets every byte right, is
 * refused nothing and never waits for long, and afterwards nothing is left of the attacker.
 *
 *     test_attacks [NAME...]     only these; default: all
 *     test_attacks -NAME...      all but these */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "bench/attacks/attack.h"
#include "tests/lib/harness.h"

#define MOST_WAIT_NS 1000000000u
#define CYCLES 400

static void play(void **state)
{
	const struct attack *attack = *state;
	char daemon[600];
	const struct attack_options options = { .daemon = daemon, .daemon_cpu = -1,
						.client_cpu = -1, .cycles = CYCLES };
	struct attack_result result;

	snprintf(daemon, sizeof(daemon), "%s/kvtrunkd", kvt_test_build());
	attack_play(attack, &options, &result);
	if (result.skipped) {
		print_message("skip: %s: %s\n", attack->name, result.why);
		skip();
	}
	print_message("%s: %u rounds%s\n", attack->name, result.rounds,
		      result.same_uid ? ", not as another uid: this needs root" : "");
	for (int i = 0; i < ATTACK_PHASES; i++) {
		const struct attack_figures *at = &result.at[i];
		uint64_t longest = at->max > at->newcomer_max ? at->max : at->newcomer_max;

		print_message("    %6llu cycles, longest wait %llu ms\n",
			      (unsigned long long)at->cycles,
			      (unsigned long long)longest / 1000000);
		if (longest > MOST_WAIT_NS)
			fail_msg("an operation took too long");
	}
	if (result.failed)
		fail_msg("%s", result.why);
}

static bool wanted(const char *name, int argc, char **argv)
{
	for (int i = 1; i < argc; i++)
		if (!strcmp(name, argv[i] + (argv[i][0] == '-')))
			return argv[i][0] != '-';
	return argc < 2 || argv[1][0] == '-';
}

int main(int argc, char **argv)
{
	struct CMUnitTest tests[64];
	unsigned int n = 0;

	for (unsigned int i = 0; i < n_attacks; i++)
		if (wanted(attacks[i].name, argc, argv))
			tests[n++] = (struct CMUnitTest){ .name = attacks[i].name,
							  .test_func = play,
							  .initial_state = (void *)(uintptr_t)
									   &attacks[i] };
	return _cmocka_run_group_tests("attacks", tests, n, NULL, NULL);
}
