/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_SERVE_TURN_H
#define KVT_SERVE_TURN_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/serve/connections.h"
#include "kvtrunk_wire_counts.h"

struct kvt_daemon;
struct kvt_cqe;

/** State that a turn leaves to the next one. Changed by turn.c. */
struct kvt_turn {
	uint64_t stamp;                /* begin of this turn, cycles */
	uint64_t idle_since;           /* begin of idleness, cycles; 0 = not idle */
	uint64_t woken_cycles;         /* time spent on waking clients for their answers */
	uint64_t stalled_since_ns;     /* time since a ring waits for room in its CQ; 0 = none */
	uint64_t compact_after_cycles; /* idle time before compaction; options.c sets it */
	bool compact_due;              /* nodes may wait for compaction; others set it, too */
	uint32_t cold_next, cool_next; /* places in kvt_sessions.served to look at next */
	uint64_t control_after[KVT_CONNECTION_STATES]; /* cycles before which no message is taken */
};

#define KVT_OP_KINDS 32
#define KVT_PATH_SAMPLES 1024

struct kvt_daemon_stats {
	uint64_t sleeps, spins, turns;
	uint64_t op_count[KVT_OP_KINDS];
	uint64_t op_histogram[KVT_OP_KINDS][KVT_HISTOGRAM_BUCKETS];
	uint64_t op_cycles[KVT_OP_KINDS];
	uint8_t path_nodes[KVT_PATH_SAMPLES]; /* of recent BEGINs, 255 = that or more */
	uint32_t n_path_nodes;
	uint64_t refused, accepted;
};

void kvt_daemon_run(struct kvt_daemon *daemon);
/** Core hook: a deferred operation took effect. */
void kvt_daemon_complete(void *context, uint32_t session, const struct kvt_cqe *cqe);

#endif
