/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_TESTS_WITNESS_H
#define KVT_TESTS_WITNESS_H

/**
 * @file witness.h
 * A well-behaved client that works while others attack: it holds a sequence with content and
 * serves shared prompts in a loop, checking every byte that it reuses.
 */

#include "tests/lib/harness.h"

extern struct kvt_test_daemon kvt_victim; /* the daemon under attack */

/** Start the daemon and the witness. */
void kvt_witness_start(const char *config);
/** Call after the attackers' end. Waits until only the witness is left; checks that every page is
 * back, that the daemon holds no more descriptors than before, and the audit; then runs more
 * rounds. */
void kvt_witness_check(void);
/** Let the witness work until it fails, to test that it can. Ends witness and daemon. */
void kvt_witness_must_fail(void);
/** Finish the witness, stop the daemon, and let the model check its operation log. */
void kvt_witness_end(bool verify);

/** An attack, and what must hold beside it. */
struct kvt_attack {
	const char *holds;
	void (*attack)(struct kvt_client *client, struct kvt_test_random *random);
	uint64_t first_seed, last_seed;
	uint64_t violations; /* so many entries are refused as such: the attack arrived */
};
/** Run each attack as a test, under one daemon: in a process of its own beside the witness, for
 * each seed, and then kvt_witness_check(). `verify`: the model checks the log. Returns the number
 * of failures. */
int kvt_attacks_run(const struct kvt_attack *attacks, unsigned int n, const char *config,
		    bool verify);

#endif
