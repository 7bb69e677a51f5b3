/* SPDX-License-Identifier: Apache-2.0 */
/* Each attack of bench/attacks beside a client that keeps the rules: its bytes are right, it is
 * refused nothing and never waits for long; afterwards nothing of the attacker has leaked.
 *
 *     test_attacks [NAME...]     only these; default: all
 *     test_attacks -NAME...      all but these
 *     test_attacks --two-uids    attackers have a uid of their own (as root) */
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench/attacks/attack.h"
#include "lab/daemon.h"
#include "tests/lib/cases.h"
#include "tests/lib/harness.h"

#define MOST_WAIT_NS 1000000000u
#define TRIES 5
#define CYCLES 400
#define VISITS 2
#define PATIENCE_MS 60000

static bool two_uids;

/* Print what the innocent client met. Returns its longest wait. */
static uint64_t longest_wait(const struct attack_result *result)
{
	uint64_t all = 0;

	for (int i = 0; i < ATTACK_PHASES; i++) {
		const struct attack_figures *at = &result->at[i];
		uint64_t longest = at->max > at->visit_max ? at->max : at->visit_max;

		print_message("    %6llu cycles, longest wait %llu ms\n",
			      (unsigned long long)at->cycles,
			      (unsigned long long)longest / 1000000);
		all = longest > all ? longest : all;
	}
	return all;
}

/* The host of a virtual machine may stop all of it for longer than MOST_WAIT_NS, but not in each of
 * TRIES runs. */
static void play(void **state)
{
	const struct attack *attack = *state;
	char daemon[600];
	const struct attack_options options = { .daemon = daemon, .daemon_cpu = -1,
						.client_cpu = -1, .cycles = CYCLES,
						.visits = VISITS, .two_uids = two_uids };

	snprintf(daemon, sizeof(daemon), "%s/kvtrunkd", kvt_test_build());
	for (int i = 0; i < TRIES; i++) {
		struct attack_result result;

		attack_play(attack, &options, &result);
		if (result.skipped) {
			kvt_skip(result.why);
		}
		print_message("%s: %u rounds, %d uids\n", attack->name, result.rounds,
			      result.same_uid ? 1 : 2);
		if (result.failed)
			fail_msg("%s", result.why);
		if (longest_wait(&result) <= MOST_WAIT_NS)
			return;
	}
	fail_msg("an operation took too long in each of %d runs", TRIES);
}

/* Start a daemon, send its address, and wait to be killed. */
static void be_killed(int pipe)
{
	const char *const flags[] = { "--pool_bytes=1M", "--n_layers=1", "--n_kv_heads=1",
				      "--head_dim=16", NULL };
	struct kvt_own_daemon daemon;
	char program[600], why[256], byte;

	snprintf(program, sizeof(program), "%s/kvtrunkd", kvt_test_build());
	if (kvt_own_daemon_start(&daemon, program, flags, -1, why, sizeof(why)) != 0)
		kvt_test_fail("%s", why);
	kvt_test_equal(write(pipe, daemon.directory, sizeof(daemon.directory)),
		       sizeof(daemon.directory));
	kvt_test_equal(read(pipe, &byte, 1), 1);
	raise(SIGKILL);
}

static void a_killed_program_leaves_no_directory_of_its_daemon(void **state)
{
	struct inotify_event event = { 0 };
	struct pollfd gone = { .fd = inotify_init1(IN_CLOEXEC), .events = POLLIN };
	char directory[64];
	int ends[2];
	pid_t child;

	kvt_test_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
	child = fork();
	if (child == 0)
		be_killed(ends[1]);
	close(ends[1]);
	kvt_test_equal(recv(ends[0], directory, sizeof(directory), MSG_WAITALL),
		       sizeof(directory));
	kvt_test_check(inotify_add_watch(gone.fd, directory, IN_DELETE_SELF) >= 0);
	kvt_test_equal(write(ends[0], "", 1), 1);
	kvt_test_equal(waitpid(child, NULL, 0), child);
	kvt_test_equal(poll(&gone, 1, PATIENCE_MS), 1);
	kvt_test_equal(read(gone.fd, &event, sizeof(event)), sizeof(event));
	kvt_test_check(event.mask & IN_DELETE_SELF && access(directory, F_OK) != 0);
	close(gone.fd);
	close(ends[0]);
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

	if (argc > 1 && !strcmp(argv[1], "--two-uids")) {
		two_uids = true;
		argc--;
		argv++;
	}
	for (unsigned int i = 0; i < n_attacks; i++)
		if (wanted(attacks[i].name, argc, argv))
			tests[n++] = (struct CMUnitTest){ .name = attacks[i].name,
							  .test_func = play,
							  .initial_state = (void *)(uintptr_t)
									   &attacks[i] };
	if (argc < 2 || argv[1][0] == '-')
		tests[n++] = (struct CMUnitTest)cmocka_unit_test(
			a_killed_program_leaves_no_directory_of_its_daemon);
	return _cmocka_run_group_tests("attacks", tests, n, NULL, NULL);
}
