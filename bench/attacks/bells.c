/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file bells.c
 * Attacks on wake-ups between daemon and client.
 *
 * Inputs: the attack_run of scene.c. Invariant: an attack runs until it is killed. Caller: scene.c,
 * through table.c.
 */
#include "bench/attacks/attack.h"

#include <sys/eventfd.h>

static void *ring_one(void *argument)
{
	for (;;)
		eventfd_write(((struct kvt_client *)argument)->doorbell, 1);
	return NULL;
}

void attack_doorbells(struct attack_run *run)
{
	struct kvt_client *client = NULL;

	for (int i = 0; i < 4; i++) {
		client = attack_session(run, 8, 1024);
		if (!client)
			break;
		if (i < 3)
			attack_thread(ring_one, client);
	}
	attack_ready(run);
	while (client) {
		eventfd_write(client->doorbell, 1);
		attack_round(run);
	}
}
