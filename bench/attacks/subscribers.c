/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file subscribers.c
 * Attacks with subscriptions to the feed.
 *
 * Inputs: the attack_run of scene.c. Invariant: an attack runs until it is killed. Caller: scene.c,
 * through table.c.
 */
#include "bench/attacks/attack.h"

#define MANY_SUBSCRIBERS 200
#define RECORDS_OF_TURN 1000

/* Read records without a pause, and a snapshot now and then. */
void attack_feed_loop(struct attack_run *run)
{
	struct kvt_client *client = attack_session(run, 8, 1024);
	struct kvt_feed_record record;
	struct kvt_feed *feed;

	if (!client || kvt_feed_open(client, &feed))
		return;
	attack_ready(run);
	for (;;) {
		for (uint32_t i = 0; i < RECORDS_OF_TURN; i++)
			kvt_feed_next(feed, &record);
		kvt_feed_snapshot(feed);
		attack_round(run);
	}
}

/* Subscribe many sessions, and read nothing. */
void attack_feed_many(struct attack_run *run)
{
	struct kvt_client *client;
	struct kvt_feed *feed;

	for (uint32_t i = 0; i < MANY_SUBSCRIBERS; i++) {
		client = attack_session(run, 8, 1024);
		if (client)
			kvt_feed_open(client, &feed);
		attack_round(run);
	}
	attack_ready(run);
	attack_hold();
}

/* Have the feed made and dropped, over and over. */
void attack_feed_again(struct attack_run *run)
{
	struct kvt_client *client = attack_session(run, 8, 1024);
	struct kvt_feed *feed;

	attack_ready(run);
	while (client) {
		if (!kvt_feed_open(client, &feed))
			kvt_feed_close(feed);
		attack_round(run);
	}
}
