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

#include "shm/atomic.h"

#define PAGE 4096ul
#define KEYS (1u << 20)
#define MATCHED (1u << 17)
#define AREA_SESSIONS 24u /* of 32 MiB each */

struct hole {
	char *base;
	size_t bytes;
};

static void *punch(void *argument)
{
	const struct hole *hole = argument;

	for (;;) {
		madvise(hole->base, hole->bytes, MADV_POPULATE_WRITE);
		madvise(hole->base, hole->bytes, MADV_REMOVE);
	}
	return NULL;
}

static struct hole hole_of(const void *from, uint64_t words)
{
	uintptr_t begin = ((uintptr_t)from + PAGE - 1) & ~(PAGE - 1);
	uintptr_t end = ((uintptr_t)from + words * sizeof(uint32_t)) & ~(PAGE - 1);

	return (struct hole){ (char *)begin, end - begin };
}

/* Open a session with the largest areas, and say where they are. */
static struct kvt_client *open_wide(const struct attack_run *run, struct hole holes[3],
				    uint32_t *ret_namespace)
{
	struct kvt_client *client = attack_session(run, 64, UINT32_MAX);

	if (!client)
		attack_hold();
	*ret_namespace = attack_namespace(client, 1);
	holes[0] = hole_of(client->ring.keys, client->ring.header->keys_count);
	holes[1] = hole_of(client->ring.list, client->ring.header->list_count);
	holes[2] = (struct hole){ (char *)client->ring.header, 4 * PAGE };
	return client;
}

/* Punch holes under MATCHes. A prompt of zeros is cached, and punched pages read as zeros: each
 * MATCH reads all of it, and the daemon faults on every page. */
static void submit(struct attack_run *run, int n_holes)
{
	static struct hole holes[3];
	struct kvt_sqe match = { .op = KVT_OP_MATCH, .fence_slot = KVT_FENCE_IDLE,
				 .n_keys = MATCHED };
	struct kvt_client *client = open_wide(run, holes, &match.namespace_id);

	attack_cache(client, match.namespace_id, 0, 0, MATCHED);
	attack_ready(run);
	for (int i = 0; i < n_holes; i++)
		attack_thread(punch, &holes[i]);
	for (uint32_t round = 0;; round++) {
		match.keys_offset = round % 8 * MATCHED;
		if (attack_feed(client, &match) < 0) /* the threads continue with the new one */
			client = open_wide(run, holes, &match.namespace_id);
		attack_round(run);
		attack_pause();
	}
}

void attack_punch_areas(struct attack_run *run)
{
	submit(run, 2);
}

void attack_punch_rings(struct attack_run *run)
{
	submit(run, 3);
}

void attack_areas(struct attack_run *run)
{
	struct kvt_client *client;
	uint32_t held = 0;

	attack_ready(run);
	for (;;) {
		client = held < AREA_SESSIONS ? attack_session(run, 4096, UINT32_MAX) : NULL;
		attack_round(run);
		if (!client) {
			attack_pause();
			continue;
		}
		held++;
		memset(client->ring.keys, 1, client->ring.header->keys_count * sizeof(uint32_t));
	}
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
