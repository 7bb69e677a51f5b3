/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file shares.c
 * Attacks on limited resources: one client takes all it can get.
 *
 * Inputs: the attack_run of scene.c. Invariant: an attack runs until it is killed. Caller: scene.c,
 * through table.c.
 */
#include "bench/attacks/attack.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MOST_SESSIONS 300
#define QUEUES 100
#define LONG_KEYS 131072u

struct holder {
	struct attack_run *run;
	struct kvt_client *clients[MOST_SESSIONS];
	uint32_t namespaces[MOST_SESSIONS];
	uint32_t n;
};

/* Open one more session. False: refused, after a short pause. */
static bool hold_session(struct holder *holder, uint32_t sq_entries, uint32_t keys)
{
	struct kvt_client *client = holder->n < MOST_SESSIONS ?
				    attack_session(holder->run, sq_entries, keys) : NULL;

	attack_round(holder->run);
	if (!client) {
		attack_pause();
		return false;
	}
	holder->namespaces[holder->n] = attack_namespace(client, 1);
	holder->clients[holder->n++] = client;
	return true;
}

void attack_sessions(struct attack_run *run)
{
	static struct holder holder;

	holder.run = run;
	while (hold_session(&holder, 8, 1024))
		continue;
	attack_ready(run);
	for (;;)
		hold_session(&holder, 8, 1024);
}

/* Exhaust one resource: take what a session gets until it is refused, then retry for ever. */
static void take_all(struct attack_run *run,
		     bool (*take)(struct kvt_client *client, uint32_t namespace_id))
{
	struct kvt_client *client = attack_session(run, 64, 4096);
	uint32_t namespace_id = client ? attack_namespace(client, 1) : 0;

	if (!client)
		return;
	while (take(client, namespace_id))
		attack_round(run);
	attack_ready(run);
	for (;;) {
		if (!take(client, namespace_id))
			attack_pause();
		attack_round(run);
	}
}

static bool take_lease(struct kvt_client *client, uint32_t namespace_id)
{
	uint32_t keys[ATTACK_PAGE_SIZE];
	struct kvt_result result;

	for (uint32_t i = 0; i < ATTACK_PAGE_SIZE; i++)
		keys[i] = 1 + i;
	if (kvt_match(client, namespace_id, keys, ATTACK_PAGE_SIZE, KVT_F_LOCK, &result))
		return false;
	kvt_result_release(client, &result);
	if (result.matched)
		return true;
	return attack_cache(client, namespace_id, 1, 1, ATTACK_PAGE_SIZE);
}

void attack_leases(struct attack_run *run)
{
	take_all(run, take_lease);
}

static bool take_namespace(struct kvt_client *client, uint32_t namespace_id)
{
	static uint64_t number;

	(void)namespace_id;
	return attack_namespace(client, ++number) != 0;
}

void attack_namespaces(struct attack_run *run)
{
	take_all(run, take_namespace);
}

static bool take_node(struct kvt_client *client, uint32_t namespace_id)
{
	static uint32_t number;
	uint32_t keys[ATTACK_PAGE_SIZE] = { ++number };
	struct kvt_seq *seq;

	return !kvt_seq_begin(client, namespace_id, keys, ATTACK_PAGE_SIZE, 0, 0, &seq);
}

void attack_nodes(struct attack_run *run)
{
	take_all(run, take_node);
}

static bool take_pages(struct kvt_client *client, uint32_t namespace_id)
{
	uint32_t pages[256];

	(void)namespace_id;
	return !kvt_alloc(client, 256, pages) || !kvt_alloc(client, 1, pages);
}

void attack_pages(struct attack_run *run)
{
	take_all(run, take_pages);
}

/* Publish pages and lock them for good. */
static bool take_locks(struct kvt_client *client, uint32_t namespace_id)
{
	static uint32_t number;
	uint32_t keys[64 * ATTACK_PAGE_SIZE] = { ++number }, n = 64 * ATTACK_PAGE_SIZE;
	struct kvt_seq *seq;

	if (kvt_seq_begin(client, namespace_id, keys, n, 0, 0, &seq)) {
		n = ATTACK_PAGE_SIZE;
		if (kvt_seq_begin(client, namespace_id, keys, n, 0, 0, &seq))
			return false;
	}
	return !kvt_seq_commit(seq, n, NULL, 0, KVT_IDLE, 0);
}

void attack_locks(struct attack_run *run)
{
	take_all(run, take_locks);
}

/* The keys stay in the areas: copying them would cost the attacker more than the daemon. */
void attack_queues(struct attack_run *run)
{
	static struct holder holder;
	struct kvt_sqe match = { .op = KVT_OP_MATCH, .fence_slot = KVT_FENCE_IDLE,
				 .n_keys = LONG_KEYS };

	holder.run = run;
	while (holder.n < QUEUES && hold_session(&holder, 64, LONG_KEYS)) {
		if (holder.n == 1)
			attack_cache(holder.clients[0], holder.namespaces[0], 1, 1, LONG_KEYS);
		for (uint32_t i = 0; i < LONG_KEYS; i++)
			holder.clients[holder.n - 1]->ring.keys[i] = 1 + i;
	}
	attack_ready(run);
	for (uint32_t i = 0; holder.n; i = (i + 1) % holder.n) {
		match.namespace_id = holder.namespaces[i];
		attack_feed(holder.clients[i], &match);
		attack_round(run);
		if (i == 0)
			attack_pause();
	}
}
