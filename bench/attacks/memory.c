/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file memory.c
 * Attacks on the session segment while the daemon reads it.
 *
 * Inputs: the attack_run of scene.c. Invariant: an attack runs until it is killed. Caller: scene.c,
 * through table.c.
 */
#include "bench/attacks/attack.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "libclient/submit.h"
#include "shm/atomic.h"

#define KEYS (1u << 20)
#define AREA_SESSIONS 24u  /* of 8 MiB each */
#define LARGE_SESSIONS 4u  /* of 132 MiB each */

/* Touch the key areas of `most` sessions. Then the oldest one ends, closed or not, before each new
 * one. */
static void hold_areas(struct attack_run *run, uint32_t most)
{
	static struct kvt_client *held[AREA_SESSIONS];

	attack_ready(run);
	for (uint32_t n = 0;; n++) {
		struct kvt_client **client = &held[n % most];

		if (*client && n / most % 2)
			kvt_client_close(*client, KVT_IDLE);
		else if (*client)
			kvt_client_abandon(*client);
		*client = attack_session(run, 4096, UINT32_MAX);
		attack_round(run);
		if (!*client)
			attack_pause();
		else
			memset((*client)->ring.keys, 1,
			       (*client)->ring.header->keys_count * sizeof(uint32_t));
	}
}

void attack_areas(struct attack_run *run)
{
	hold_areas(run, AREA_SESSIONS);
}

void attack_large_areas(struct attack_run *run)
{
	hold_areas(run, LARGE_SESSIONS);
}

void attack_segments(struct attack_run *run)
{
	attack_ready(run);
	for (;;) {
		uint32_t keys = attack_random(3) ? attack_random(KEYS) + 1 : KEYS;
		struct kvt_client *client = attack_session(run, 1u << attack_random(13), keys);

		if (client && attack_random(2))
			kvt_client_close(client, KVT_IDLE);
		else if (client)
			kvt_client_abandon(client);
		attack_round(run);
	}
}

/* ---- fences */

static void *wave(void *argument)
{
	struct kvt_client *client = argument;

	for (;;) {
		kvt_store_release(&client->ring.fences[attack_random(KVT_FENCE_WORDS)].value,
				  (uint64_t)attack_random(1000));
		kvt_client_kick(client);
	}
	return NULL;
}

void attack_fences(struct attack_run *run)
{
	struct kvt_client *client = attack_session(run, 4096, KEYS);
	struct kvt_result results[64];
	uint32_t page;

	if (!client)
		_exit(1);
	attack_ready(run);
	attack_thread(wave, client);
	for (;;) {
		struct kvt_request request = { .op = KVT_OP_FREE, .pages = &page, .n_pages = 1 };
		int n;

		request.fence = (struct kvt_fence){ attack_random(KVT_FENCE_WORDS),
						    attack_random(1100) };
		if (!kvt_alloc(client, 1, &page))
			kvt_submit(client, &request);
		n = kvt_reap(client, results, 0, 64);
		for (int i = 0; i < n; i++)
			kvt_result_release(client, &results[i]);
		attack_round(run);
	}
}
