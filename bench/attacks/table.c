/* SPDX-License-Identifier: Apache-2.0 */
/** @file table.c: every attack, a row each, and all at once. */
#include "bench/attacks/attack.h"

#define MANY_NODES "--max_nodes=65536"
#define OLD_KERNEL "--test_old_kernel=yes"
#define LARGE_AREAS "--max_op_keys=16777216"

const struct attack attacks[] = {
	{ "linger-session", "a session sends TCP sockets that take 8 s to close",
	  ATTACK_TOGETHER, 8, NULL, attack_linger_session },
	{ "linger-half-open", "the same before HELLO",
	  0, 8, NULL, attack_linger_half_open },
	{ "linger-close", "the same, queued when the connection is closed",
	  0, 8, NULL, attack_linger_close },
	{ "memory-descriptor", "a memfd of 512 MiB, sent as its last reference",
	  0, 2, NULL, attack_memory_descriptor },
	{ "old-linger-session", "linger-session where the kernel cannot refuse descriptors",
	  0, 3, OLD_KERNEL, attack_linger_session },
	{ "old-linger-half-open", "linger-half-open there",
	  0, 3, OLD_KERNEL, attack_linger_half_open },
	{ "old-linger-close", "linger-close there",
	  0, 3, OLD_KERNEL, attack_linger_close },
	{ "old-memory-descriptor", "memory-descriptor there",
	  0, 2, OLD_KERNEL, attack_memory_descriptor },
	{ "notify-descriptors", "such sockets to the supervisor's notify socket",
	  ATTACK_SUPERVISE, 8, NULL, attack_notify_descriptors },
	{ "bell-punched", "reads its bell into a page of a memfd that is hole-punched",
	  0, 4, NULL, attack_bell_punched },
	{ "bell-hung", "reads bell and control socket into pages that never come",
	  ATTACK_FAULTS, 50, NULL, attack_bell_hung },
	{ "watch-own", "300,000 epoll watches on a file of its own: the floor of the next three",
	  ATTACK_FLOOR, 5, NULL, attack_watch_own },
	{ "watch-bell", "300,000 epoll watches on its bell",
	  0, 5, NULL, attack_watch_bell },
	{ "watch-doorbell", "300,000 epoll watches on its doorbell",
	  0, 5, NULL, attack_watch_doorbell },
	{ "watch-control", "300,000 epoll watches on its control socket",
	  0, 5, NULL, attack_watch_control },
	{ "doorbells", "four sessions ring their doorbells without end",
	  ATTACK_TOGETHER, 10000, NULL, attack_doorbells },
	{ "punch-areas", "punches holes into its key and list areas while it submits",
	  ATTACK_TOGETHER, 50, NULL, attack_punch_areas },
	{ "punch-large", "the same with areas as large as an operator of long prompts allows",
	  0, 20, LARGE_AREAS, attack_punch_areas },
	{ "punch-rings", "the same with header, rings and fence words",
	  0, 50, NULL, attack_punch_rings },
	{ "areas", "the largest areas in as many sessions as it gets, every page touched",
	  0, 4, NULL, attack_areas },
	{ "segments", "sessions with segments of every size come and go",
	  ATTACK_TOGETHER, 50, NULL, attack_segments },
	{ "fences", "raises and lowers fence words while frees wait for them",
	  ATTACK_TOGETHER, 200, NULL, attack_fences },
	{ "nodes-flood", "16 observers list the nodes without end",
	  ATTACK_TOGETHER, 100, MANY_NODES, attack_nodes_flood },
	{ "status-flood", "the same with STATUS beside thousands of leases",
	  ATTACK_TOGETHER, 100, NULL, attack_status_flood },
	{ "clients-flood", "the same with CLIENTS",
	  ATTACK_TOGETHER, 100, NULL, attack_clients_flood },
	{ "observers", "as many observers as it gets",
	  0, 100, NULL, attack_observers },
	{ "slow-reader", "asks and does not read the answers",
	  ATTACK_TOGETHER, 100, NULL, attack_slow_reader },
	{ "connections", "connects and hangs up without end",
	  ATTACK_TOGETHER, 1000, NULL, attack_connections },
	{ "backlog", "takes each place of the socket's queue as soon as it is free",
	  0, 1000, NULL, attack_backlog },
	{ "half-open", "thousands of connections without HELLO",
	  ATTACK_TOGETHER, 3000, NULL, attack_half_open },
	{ "sessions", "as many sessions as it gets",
	  0, 260, NULL, attack_sessions },
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
	{ "lock-file", "flock(LOCK_SH) on what it can open while the daemon is killed",
	  ATTACK_SUPERVISE | ATTACK_KILL, 1, NULL, attack_lock_file },
	{ "notify-flood", "floods the notify socket of the supervisor",
	  ATTACK_SUPERVISE, 40000, NULL, attack_notify_flood },
	{ "metrics-idle", "64 idle connections to kvtmetricsd",
	  ATTACK_METRICS, 64, NULL, attack_metrics_idle },
	{ "together", "most of these at once",
	  0, 200, MANY_NODES, attack_together },
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
