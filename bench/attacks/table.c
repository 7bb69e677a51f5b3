/* SPDX-License-Identifier: Apache-2.0 */
/** @file table.c: every attack, a row each, and all at once. */
#include "bench/attacks/attack.h"

#define MANY_NODES "--max_nodes=65536"
#define MANY_NAMESPACES "--max_namespaces=65536"
#define LARGE_AREAS "--max_op_keys=16777216"

const struct attack attacks[] = {
	{ "doorbells", "four sessions ring their doorbells without end",
	  ATTACK_TOGETHER, 10000, NULL, attack_doorbells },
	{ "areas", "the largest areas in sessions that come and go, every page touched",
	  0, 50, NULL, attack_areas },
	{ "large-areas", "the same where an operator allows long prompts",
	  0, 20, LARGE_AREAS, attack_large_areas },
	{ "segments", "sessions with segments of every size come and go",
	  ATTACK_TOGETHER, 50, NULL, attack_segments },
	{ "fences", "raises and lowers fence words while frees wait for them",
	  ATTACK_TOGETHER, 200, NULL, attack_fences },
	{ "namespaces-flood", "eight observers list the namespaces without end",
	  ATTACK_TOGETHER, 100, MANY_NAMESPACES, attack_namespaces_flood },
	{ "status-flood", "the same with STATUS beside thousands of leases",
	  ATTACK_TOGETHER, 100, NULL, attack_status_flood },
	{ "clients-flood", "the same with CLIENTS",
	  ATTACK_TOGETHER, 100, NULL, attack_clients_flood },
	{ "observers", "as many observers as it gets",
	  ATTACK_TAKES, 100, NULL, attack_observers },
	{ "slow-reader", "asks and does not read the answers",
	  ATTACK_TOGETHER, 100, NULL, attack_slow_reader },
	{ "connections", "connects and hangs up without end",
	  ATTACK_TOGETHER, 1000, NULL, attack_connections },
	{ "backlog", "takes each place of the socket's queue as soon as it is free",
	  0, 1000, NULL, attack_backlog },
	{ "half-open", "thousands of connections without HELLO",
	  ATTACK_TOGETHER, 3000, NULL, attack_half_open },
	{ "sessions", "as many sessions as it gets",
	  ATTACK_TAKES, 260, NULL, attack_sessions },
	{ "leases", "as many leases as it gets",
	  0, 5000, NULL, attack_leases },
	{ "namespaces", "as many namespaces as it gets",
	  0, 5000, NULL, attack_namespaces },
	{ "nodes", "a lease on a node of its own, as often as it gets one",
	  0, 5000, NULL, attack_nodes },
	{ "pages", "as many private pages as it gets",
	  0, 500, NULL, attack_pages },
	{ "locks", "publishes as many pages as it gets and locks them",
	  0, 100, NULL, attack_locks },
	{ "queues", "100 sessions with full queues of 131,072-key MATCHes",
	  ATTACK_TOGETHER, 200, NULL, attack_queues },
	{ "feed-loop", "a subscriber of the feed in a tight loop, with snapshots",
	  ATTACK_TOGETHER, 100, NULL, attack_feed_loop },
	{ "feed-many", "200 subscribers that never read",
	  0, 200, NULL, attack_feed_many },
	{ "feed-again", "subscribes and unsubscribes without end",
	  ATTACK_TOGETHER, 100, NULL, attack_feed_again },
	{ "store-copies", "a store copies new prompts without a pause",
	  ATTACK_STORE, 50, NULL, attack_store_copies },
	{ "store-stopped", "a store is stopped in the middle of 64 loads",
	  ATTACK_STORE, 1, "--page_bytes=16384", attack_store_stopped },
	{ "metrics-idle", "64 idle connections to kvtmetricsd",
	  ATTACK_METRICS, 64, NULL, attack_metrics_idle },
	{ "together", "most of these at once",
	  ATTACK_TAKES, 200, MANY_NODES, attack_together },
};
const unsigned int n_attacks = sizeof(attacks) / sizeof(attacks[0]);

void attack_together(struct attack_run *run)
{
	for (unsigned int i = 0; i < n_attacks; i++) {
		if (!(attacks[i].needs & ATTACK_TOGETHER) || attack_fork())
			continue;
		attacks[i].run(run);
		attack_hold();
	}
	attack_hold();
}
