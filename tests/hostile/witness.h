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
/** Return its longest round since the last call. */
uint64_t kvt_witness_longest_ns(void);
/** Call after the attackers' end. Waits until only the witness is left; checks that every page is
 * back, that the daemon holds no more descriptors than before, and the audit; then runs more
 * rounds. */
void kvt_witness_check(void);
/** Let the witness work until it fails, to test that it can. Ends witness and daemon. */
void kvt_witness_must_fail(void);
/** Finish the witness, stop the daemon, and let the model check its operation log. */
void kvt_witness_end(bool verify);

/** Run an attack in a process of its own beside the witness, kill the attacker when it has done,
 * call kvt_witness_check(). Returns the number of entries that the daemon refused as violations, to
 * prove that the attack arrived. */
typedef void kvt_attack_fn(struct kvt_client *client, struct kvt_test_random *random);
uint64_t kvt_attack(kvt_attack_fn *attack, uint64_t seed);

#endif
