/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file stores.c
 * Stores beside an innocent client: one that copies without a pause, and one that is stopped while
 * it loads. The innocent client finds their socket and asks them, too.
 *
 * Inputs: the attack_run of scene.c. Invariant: an attack runs until it is killed. Caller: scene.c,
 * through table.c.
 */
#include "bench/attacks/attack.h"

#include <signal.h>
#include <stdlib.h>

#include "kvtrunk_wire_store.h"
#include "lab/store.h"

#define PROMPT 8192u       /* positions that are published at once */
#define QUEUE_MOST 1024u   /* pages that wait for the store: more would only be dropped */
#define LOADS 64u
#define LOADS_SEEN 52u     /* that are open: the first may have ended by then */
#define LOADS_LEAST 40u    /* that are open when the store has stopped */
#define LOADS_FEWER 4u     /* that satisfy after each try: schedulers differ */
#define LOAD_POSITIONS 2048u
#define LOOKS 1000u        /* at the loads that have begun */

static bool start(const struct attack_run *run, struct kvt_own_store *store, const char *ram)
{
	const char *flags[] = { "--ram-bytes", ram, "--load-percent", "60", NULL };
	char why[512];

	return kvt_own_store_start(store, run->store_program, &run->socket_path, 1, flags, -1, why,
				   sizeof(why)) == 0;
}

/* Wait until the store has copied what was published, but for `most` pages. */
static bool await_copies(const struct kvt_own_store *store, uint64_t most)
{
	struct kvt_store_status status;

	do {
		attack_pause();
		if (kvt_own_store_status(store, &status) != 0)
			return false;
	} while (status.queued_pages > most);
	return true;
}

/* Publish new prompts as fast as the store copies them. */
void attack_store_copies(struct attack_run *run)
{
	struct kvt_client *client = attack_session(run, 8, PROMPT);
	struct kvt_own_store store;
	uint32_t space, first = 0;

	if (!client || !start(run, &store, "64M"))
		return;
	space = attack_namespace(client, 1);
	attack_ready(run);
	for (; await_copies(&store, QUEUE_MOST); first += PROMPT) {
		attack_cache(client, space, first, 1, PROMPT);
		attack_round(run);
	}
}

struct asking {
	struct kvt_client *client;
	uint32_t space;
};

/* Ask for a prompt's pages. The answer does not matter. */
static void ask(const struct asking *asking, uint32_t first)
{
	uint32_t keys[LOAD_POSITIONS];
	struct kvt_request begin = { .op = KVT_OP_BEGIN, .namespace_id = asking->space,
				     .keys = keys, .n_keys = LOAD_POSITIONS };
	struct kvt_fetched fetched;

	for (uint32_t i = 0; i < LOAD_POSITIONS; i++)
		keys[i] = first + i;
	while (kvt_fetch(asking->client, &begin) == 0)
		attack_pause();
	while (kvt_fetch_poll(asking->client, &fetched) > 0)
		continue;
}

static void publish(const struct asking *asking, uint32_t from, uint32_t to, uint32_t n)
{
	for (uint32_t first = from; first < to; first += n)
		attack_cache(asking->client, asking->space, first, 1, n);
}

/* Stop the store while it loads what was asked for while it was stopped. False: fewer than `least`
 * loads are open. */
static bool stop_in_loads(const struct asking *asking, const struct kvt_own_store *store,
			  uint32_t least)
{
	struct kvt_counters now = { 0 };

	kill(store->pid, SIGSTOP);
	for (uint32_t i = 0; i < LOADS; i++)
		ask(&asking[i], i * LOAD_POSITIONS);
	kill(store->pid, SIGCONT);
	for (uint32_t i = 0; i < LOOKS && now.live_leases < LOADS_SEEN; i++)
		if (kvt_stats(asking->client, &now) != 0)
			return false;
	kill(store->pid, SIGSTOP);
	return kvt_stats(asking->client, &now) == 0 && now.live_leases >= least;
}

/* Have the store load many prompts, and stop it before they are there. */
void attack_store_stopped(struct attack_run *run)
{
	uint32_t least = LOADS_LEAST + LOADS_FEWER;
	uint32_t all = LOADS * LOAD_POSITIONS, pool = ATTACK_PAGES * ATTACK_PAGE_SIZE;
	struct asking asking[LOADS];
	struct kvt_own_store store;

	if (!start(run, &store, "160M"))
		return;
	for (uint32_t i = 0; i < LOADS; i++) {
		asking[i].client = attack_session(run, 8, PROMPT);
		if (!asking[i].client)
			return;
		asking[i].space = attack_namespace(asking[i].client, 1);
		ask(&asking[i], all); /* connects to the store */
	}
	publish(asking, 0, all, LOAD_POSITIONS);
	if (!await_copies(&store, 0))
		return;
	do {
		kill(store.pid, SIGCONT);
		await_copies(&store, 0);
		/* Evicts all of them. */
		publish(asking, 2 * all, 2 * all + pool + pool / 4, PROMPT);
		least -= LOADS_FEWER;
	} while (least > 0 && !stop_in_loads(asking, &store, least));
	attack_round(run);
	attack_ready(run);
	attack_hold();
}
