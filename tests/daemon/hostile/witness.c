/* SPDX-License-Identifier: Apache-2.0 */

/* The witness: see witness.h.
 *
 * Inputs: orders over a pipe. Invariant: a wrong byte, an unexpected error or a hang ends the test.
 * Callers: the tests of this folder. */

#include "tests/daemon/hostile/witness.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/lib/cases.h"

enum { PAGE = 16, PROMPT = 300, HELD = 64, REFUSED_MS = 1 };

struct kvt_test_daemon kvt_victim;
static struct kvt_test_child witness;
static uint32_t descriptors; /* the daemon's, with the witness alone */

static void check_pages(const struct kvt_pool *pool, struct kvt_seq *seq, const uint32_t *keys,
			uint32_t from, uint32_t to, bool fill)
{
	uint32_t n;
	const uint32_t *pages = kvt_seq_pages(seq, &n);

	for (uint32_t i = from; i < to; i++) {
		if (fill)
			kvt_test_page_fill(pool, PAGE, pages[i], 'w', keys, i);
		else if (!kvt_test_page_right(pool, PAGE, pages[i], 'w', keys, i))
			kvt_test_fail("witness: page %u shows something else", pages[i]);
	}
}

/* False: attackers hold all pages, which they may while they live. */
static bool witness_round(struct kvt_client *client, const struct kvt_pool *pool, uint32_t ns,
			  uint32_t round)
{
	uint32_t keys[PROMPT], reusable;
	struct kvt_seq *seq;
	int error;

	kvt_test_keys(keys, PROMPT, 100 + round % 8);
	error = kvt_seq_begin(client, ns, keys, PROMPT, 16, 0, &seq);
	if (error == -ENOSPC)
		return false;
	if (error != 0)
		kvt_test_fail("witness: begin: %s", kvt_client_error(client)->text);
	reusable = kvt_seq_reusable(seq) / PAGE;
	check_pages(pool, seq, keys, 0, reusable, false);
	check_pages(pool, seq, keys, reusable, PROMPT / PAGE, true);
	error = kvt_seq_commit(seq, PROMPT, NULL, 0, KVT_IDLE, 0);
	if (error == 0)
		check_pages(pool, seq, keys, 0, PROMPT / PAGE, false);
	else if (error != -ESTALE) /* reset and remove are open to privileged attackers */
		kvt_test_fail("witness: commit: %s", kvt_client_error(client)->text);
	kvt_test_equal(kvt_seq_end(seq, 0, NULL, 0, KVT_IDLE, 0), 0);
	return true;
}

/* Work between orders; answer a request for n rounds when they are done. */
static void witness_run(int pipe, void *context)
{
	struct kvt_client *client = kvt_test_connect(&kvt_victim);
	uint32_t ns = kvt_test_namespace(client, "witness"), keys[HELD], round = 0;
	struct kvt_pool pool;
	struct kvt_seq *held;
	uint64_t wanted;
	bool served = true;

	kvt_test_equal(kvt_pool_map(client, &pool), 0);
	kvt_test_keys(keys, HELD, 1);
	kvt_test_equal(kvt_seq_begin(client, ns, keys, HELD, 0, 0, &held), 0);
	check_pages(&pool, held, keys, 0, HELD / PAGE, true);
	kvt_test_send(pipe, 1);
	for (;;) {
		struct pollfd fd = { .fd = pipe, .events = POLLIN };

		if (poll(&fd, 1, served ? 0 : REFUSED_MS) > 0) {
			if (!kvt_test_receive(pipe, &wanted) || wanted == 0)
				break;
			for (uint64_t i = 0; i < wanted; i++)
				witness_round(client, &pool, ns, round++);
			kvt_test_send(pipe, 2);
		}
		served = witness_round(client, &pool, ns, round++);
		check_pages(&pool, held, keys, 0, HELD / PAGE, false);
	}
	kvt_test_equal(kvt_seq_end(held, 0, NULL, 0, KVT_IDLE, 0), 0);
	kvt_test_equal(kvt_client_close(client, KVT_IDLE), 0);
	kvt_test_send(pipe, 3);
}

static struct kvt_counters settled_alone(void)
{
	struct kvt_counters counters;

	kvt_test_until(&kvt_victim, counters,
		       counters.live_sessions == 1 && counters.quarantined_pages == 0);
	return counters;
}

/* Make the witness do `rounds` more and wait for them. Ends the test if it fails or hangs (by the
 * runner's limit). */
static void work(uint32_t rounds)
{
	uint64_t word = 0;

	kvt_test_send(witness.pipe, rounds);
	if (!kvt_test_receive(witness.pipe, &word) || word != 2)
		kvt_test_fail("the witness failed");
}

void kvt_witness_start(const char *config)
{
	kvt_test_daemon_begin_logged(&kvt_victim, config, false);
	kvt_test_child_start(&witness, witness_run, NULL);
	kvt_test_expect(witness.pipe, 1);
	work(10);
	settled_alone();
	descriptors = kvt_test_daemon_descriptors(&kvt_victim);
}

void kvt_witness_check(void)
{
	struct kvt_counters counters = settled_alone();

	kvt_test_equal(counters.free_pages + counters.cached_pages + counters.private_pages, 4095);
	kvt_test_audit(&kvt_victim);
	work(50);
	settled_alone();
	/* The observer that asked may still be open: retry. */
	for (uint32_t asked = 0; kvt_test_daemon_descriptors(&kvt_victim) > descriptors; asked++) {
		if (asked == 10000) {
			kvt_test_daemon_print_descriptors(&kvt_victim);
			kvt_test_fail("the daemon holds more than %u descriptors", descriptors);
		}
		settled_alone();
	}
}

void kvt_witness_must_fail(void)
{
	uint64_t word;

	kvt_test_check(!kvt_test_receive(witness.pipe, &word)); /* the witness ended by itself */
	kvt_test_check(kvt_test_child_kill(&witness, SIGKILL) != 0);
	kvt_victim.logged = false;
	kvt_test_daemon_end(&kvt_victim);
}

void kvt_witness_end(bool verify)
{
	kvt_test_send(witness.pipe, 0);
	kvt_test_expect(witness.pipe, 3);
	kvt_test_child_finish(&witness);
	kvt_test_audit(&kvt_victim);
	kvt_test_equal(kvt_test_settled(&kvt_victim).private_pages, 0);
	/* Refused entries are in the log, too: the model refuses them for the same reasons. */
	kvt_victim.logged = verify;
	kvt_test_daemon_end(&kvt_victim);
}

static uint64_t attack_seed;

static void attacker_run(int pipe, void *context)
{
	const struct kvt_attack *attack = context;
	struct kvt_test_random random = { attack_seed };

	signal(SIGPIPE, SIG_IGN);
	attack->attack(kvt_test_connect(&kvt_victim), &random);
	kvt_test_send(pipe, 4);
	kvt_test_receive(pipe, &(uint64_t){ 0 }); /* until it is killed */
}

static void attack_run(void **state)
{
	const struct kvt_attack *attack = *state;

	for (attack_seed = attack->first_seed; attack_seed <= attack->last_seed; attack_seed++) {
		uint64_t before = kvt_test_settled(&kvt_victim).violations;
		struct kvt_test_child child;

		kvt_test_child_start(&child, attacker_run, *state);
		work(20);
		kvt_test_expect(child.pipe, 4);
		work(20);
		kvt_test_child_kill(&child, SIGKILL);
		kvt_witness_check();
		kvt_test_check(kvt_test_settled(&kvt_victim).violations - before >=
			       attack->violations);
	}
}

static const char *victim_config;
static bool verifies;

static int start_victim(void **state)
{
	kvt_witness_start(victim_config);
	return 0;
}

static int end_victim(void **state)
{
	kvt_witness_end(verifies);
	return 0;
}

int kvt_attacks_run(const struct kvt_attack *attacks, unsigned int n, const char *config,
		    bool verify)
{
	struct CMUnitTest tests[16];

	kvt_test_check(n <= sizeof(tests) / sizeof(tests[0]));
	victim_config = config;
	verifies = verify;
	for (unsigned int i = 0; i < n; i++)
		tests[i] = (struct CMUnitTest){ .name = attacks[i].holds, .test_func = attack_run,
						.initial_state = (void *)(uintptr_t)&attacks[i] };
	return _cmocka_run_group_tests("attacks", tests, n, start_victim, end_victim);
}
