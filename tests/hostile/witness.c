/* SPDX-License-Identifier: Apache-2.0 */

/* The witness: see witness.h.
 *
 * Inputs: orders over a pipe. Invariant: a wrong byte, an unexpected error or a hang ends the test.
 * Callers: the tests of this folder. */

#include "tests/hostile/witness.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "libclient/wait.h"

enum { PAGE = 16, PROMPT = 300, HELD = 64 };

struct kvt_test_daemon kvt_victim;
static struct kvt_test_child witness;
static uint32_t descriptors; /* the daemon's, with the witness alone */
static uint64_t *longest_ns;  /* of the witness's rounds; shared with it */
static char log_flag[128];

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

static void witness_round(struct kvt_client *client, const struct kvt_pool *pool, uint32_t ns,
			  uint32_t round)
{
	uint32_t keys[PROMPT], reusable;
	struct kvt_seq *seq;
	int error;

	kvt_test_keys(keys, PROMPT, 100 + round % 8);
	error = kvt_seq_begin(client, ns, keys, PROMPT, 16, 0, &seq);
	if (error == -ENOSPC) /* attackers hold all pages: allowed while they live */
		return;
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
}

static void timed_round(struct kvt_client *client, const struct kvt_pool *pool, uint32_t ns,
			uint32_t round)
{
	int64_t start_ns = kvt_client_now_ns();
	uint64_t took_ns;

	witness_round(client, pool, ns, round);
	took_ns = (uint64_t)(kvt_client_now_ns() - start_ns);
	if (took_ns > kvt_load_relaxed(longest_ns))
		kvt_store_relaxed(longest_ns, took_ns);
}

/* Work between orders; answer a request for n rounds when they are done. */
static void witness_run(int pipe, void *context)
{
	struct kvt_client *client = kvt_test_connect(&kvt_victim);
	uint32_t ns = kvt_test_namespace(client, "witness"), keys[HELD], round = 0;
	struct kvt_pool pool;
	struct kvt_seq *held;
	uint64_t wanted;

	kvt_test_equal(kvt_pool_map(client, &pool), 0);
	kvt_test_keys(keys, HELD, 1);
	kvt_test_equal(kvt_seq_begin(client, ns, keys, HELD, 0, 0, &held), 0);
	check_pages(&pool, held, keys, 0, HELD / PAGE, true);
	kvt_test_send(pipe, 1);
	for (;;) {
		struct pollfd fd = { .fd = pipe, .events = POLLIN };

		if (poll(&fd, 1, 0) > 0) {
			if (!kvt_test_receive(pipe, &wanted) || wanted == 0)
				break;
			for (uint64_t i = 0; i < wanted; i++)
				timed_round(client, &pool, ns, round++);
			kvt_test_send(pipe, 2);
		}
		timed_round(client, &pool, ns, round++);
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
	const char *arguments[] = { log_flag, NULL };

	longest_ns = mmap(NULL, sizeof(*longest_ns), PROT_READ | PROT_WRITE,
			  MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	kvt_test_check(longest_ns != MAP_FAILED);
	kvt_test_daemon_prepare(&kvt_victim, config);
	snprintf(log_flag, sizeof(log_flag), "--log_file=%s/operations", kvt_victim.dir);
	kvt_test_daemon_start(&kvt_victim, arguments);
	kvt_test_child_start(&witness, witness_run, NULL);
	kvt_test_expect(witness.pipe, 1);
	work(10);
	settled_alone();
	descriptors = kvt_test_daemon_descriptors(&kvt_victim);
}

uint64_t kvt_witness_longest_ns(void)
{
	uint64_t longest = kvt_load_relaxed(longest_ns);

	kvt_store_relaxed(longest_ns, 0);
	return longest;
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
	kvt_test_daemon_end(&kvt_victim);
}

void kvt_witness_end(bool verify)
{
	kvt_test_send(witness.pipe, 0);
	kvt_test_expect(witness.pipe, 3);
	kvt_test_child_finish(&witness);
	kvt_test_audit(&kvt_victim);
	kvt_test_equal(kvt_test_settled(&kvt_victim).private_pages, 0);
	kvt_test_daemon_stop(&kvt_victim);
	/* Refused entries are in the log, too: the model refuses them for the same reasons. */
	if (verify)
		kvt_test_verify(&kvt_victim);
	kvt_test_daemon_remove(&kvt_victim);
}

struct attacker {
	kvt_attack_fn *attack;
	uint64_t seed;
};

static void attacker_run(int pipe, void *context)
{
	const struct attacker *attacker = context;
	struct kvt_test_random random = { attacker->seed };

	signal(SIGPIPE, SIG_IGN);
	attacker->attack(kvt_test_connect(&kvt_victim), &random);
	kvt_test_send(pipe, 4);
	kvt_test_receive(pipe, &(uint64_t){ 0 }); /* until it is killed */
}

uint64_t kvt_attack(kvt_attack_fn *attack, uint64_t seed)
{
	struct attacker attacker = { attack, seed };
	uint64_t before = kvt_test_settled(&kvt_victim).violations;
	struct kvt_test_child child;

	kvt_test_child_start(&child, attacker_run, &attacker);
	work(20);
	kvt_test_expect(child.pipe, 4);
	work(20);
	kvt_test_child_kill(&child, SIGKILL);
	kvt_witness_check();
	return kvt_test_settled(&kvt_victim).violations - before;
}
