/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_LAB_REPLAY_REPLAY_H
#define KVT_LAB_REPLAY_REPLAY_H

/**
 * @file replay.h
 * kvtlab replay: a trace through real worker processes.
 *
 * The parent loads the trace, starts (or finds) a daemon, forks the workers and watches them.
 * One shared anonymous mapping holds the owner of each request and all measurements. It stays
 * valid if a worker is killed at any instruction.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "kvtrunk_wire_counts.h"
#include "kvtrunk_wire_store.h"
#include "lab/replay/private.h"
#include "lab/trace/trace.h"
#include "shm/clock.h"

#define KVT_REPLAY_MAX_WORKERS 64u
#define KVT_REPLAY_MAX_INSTANCES 16u /* that one store serves */
#define KVT_REPLAY_MAX_CONCURRENCY 64u
#define KVT_REPLAY_MAX_NODES 1024u /* of the histogram of nodes per path */

struct kvt_replay_options {
	struct kvt_trace_options trace;
	const char *socket_path; /* NULL: a daemon of our own */
	const char *daemon;      /* program */
	const char *policy;
	const char *sides;       /* of our own daemon; NULL: none */
	const char *served_path; /* NULL: none */
	FILE *served;            /* that file, open */
	const char *log_path;
	uint32_t workers;
	uint32_t n_instances; /* daemons; worker w has number w mod n_instances */
	uint32_t n_pages;   /* of each, page 0 included */
	uint32_t page_size;
	uint32_t page_bytes; /* 0: a word for each position */
	uint32_t store_pages; /* of stores beside our own daemons, in all; 0: none */
	uint32_t store_file_pages; /* of a file below each store's memory, in all; 0: none */
	uint32_t store_write_bytes; /* most that a store writes to its file a second; 0: any */
	bool asks_store; /* workers ask the store before they compute */
	uint32_t fetch_ms;    /* a store may take so long to answer */
	uint32_t chunk;      /* positions between two COMMITs */
	uint32_t concurrency; /* requests in flight in one worker */
	uint32_t kills;
	uint32_t coalesce_ms; /* longest wait of a BEGIN for others' pages; 0: none */
	uint32_t prefill_rate; /* positions that the device computes in a second; 0: no pause */
	uint32_t n_namespaces;
	uint32_t points_every; /* positions between two points on the way; 0: none */
	double time_scale; /* 0: as fast as possible; 1: as recorded; 60: an hour in a minute */
	bool points_all;  /* a point at each page */
	bool points_drop; /* the reused point, if its side pages outnumber the pages since */
	bool private_stores; /* one for each instance */
	bool lockstep;
	bool disabled;
	bool force_miss;
	bool verify;
	bool simulate; /* private pools */
	bool json;
	bool quiet;
	bool progress; /* also if stderr is no terminal */
};

enum kvt_replay_op {
	KVT_REPLAY_BEGIN = 0,
	KVT_REPLAY_COMMIT = 1,
	KVT_REPLAY_EXTEND = 2,
	KVT_REPLAY_END = 3,
	KVT_REPLAY_FIRST = 4, /* not an operation: from the request to its first token */
	KVT_REPLAY_BURST = 5, /* the same, only of bursts */
	KVT_REPLAY_OPS = 6,
};

/* Latencies with 16 steps to each power of two: 6 % resolution, no sorting. */
#define KVT_LATENCY_BUCKETS (44 * 16)
struct kvt_latency {
	uint64_t n;
	uint64_t max_ns;
	uint32_t buckets[KVT_LATENCY_BUCKETS];
};
void kvt_latency_add(struct kvt_latency *latency, uint64_t ns);
void kvt_latency_merge(struct kvt_latency *into, const struct kvt_latency *from);
/** Return the upper edge, in microseconds, of the bucket that holds this part of all samples. */
double kvt_latency_us(const struct kvt_latency *latency, double part);

enum kvt_replay_state {
	KVT_REPLAY_PENDING = 0,
	KVT_REPLAY_CLAIMED = 1,
	KVT_REPLAY_DONE = 2,
	KVT_REPLAY_REFUSED = 3,
	KVT_REPLAY_LOST = 4, /* its worker died */
};

struct kvt_replay_slot {
	uint32_t owner; /* worker + 1; set once, by compare and swap */
	uint32_t state; /* enum kvt_replay_state */
	uint64_t begin_seq, end_seq; /* 0: not (yet) */
	uint32_t hit;   /* positions */
	uint32_t fallback;
};

/** Measurements of one worker, which alone writes here. */
struct kvt_replay_worker {
	uint32_t alive;
	uint32_t session;
	uint32_t failed; /* ended on an error, which it printed */
	uint32_t reserved;
	uint64_t pattern_errors;
	uint64_t verified_pages;
	uint64_t look_on_positions;
	uint64_t computed_positions;
	uint64_t duplicates;
	uint64_t stale_commits;
	uint64_t matched_positions; /* of which BEGIN reused those in front of a point */
	uint64_t without_point;     /* requests that published none for want of pages */
	uint64_t cut_short; /* answers cut for want of pages */
	struct kvt_latency latency[KVT_REPLAY_OPS];
	uint32_t path_nodes[KVT_REPLAY_MAX_NODES];
} __attribute__((aligned(128)));

struct kvt_replay_shared {
	uint32_t next __attribute__((aligned(128))); /* no request before it is unclaimed */
	uint32_t progress __attribute__((aligned(128))); /* futex: rises with each change */
	uint32_t waiters;
	uint32_t done; /* settled requests */
	uint32_t stop;
	uint32_t gate; /* requests from this one on wait for a kill */
	uint64_t start_ns;
	uint64_t device_free_ns __attribute__((aligned(128))); /* the device is busy until then */
	struct kvt_replay_worker workers[KVT_REPLAY_MAX_WORKERS];
	struct kvt_replay_slot slots[]; /* by request */
};

/** Wake all that wait for a change. */
void kvt_replay_notify(struct kvt_replay_shared *shared);
/** Settle a request. Final. */
void kvt_replay_settle(struct kvt_replay_shared *shared, uint32_t index, uint32_t state);
/** Wait until `progress` is no longer `seen`; at most `timeout_ns` (0: no limit). */
void kvt_replay_wait(struct kvt_replay_shared *shared, uint32_t seen, int64_t timeout_ns);
static inline void kvt_replay_raise(uint64_t *most, uint64_t value)
{
	if (value > *most)
		*most = value;
}

/** Run worker `number`. Does not return. */
__attribute__((noreturn)) void kvt_replay_work(const struct kvt_replay_options *options,
					       const struct kvt_trace *trace,
					       const char *socket_path,
					       struct kvt_replay_shared *shared, uint32_t number);

/** The parent's view of its workers. */
struct kvt_replay_crew {
	const struct kvt_replay_options *options;
	const struct kvt_trace *trace;
	const char *const *socket_paths; /* of the instances */
	struct kvt_replay_shared *shared; /* NULL: not created */
	size_t shared_bytes;
	pid_t pids[KVT_REPLAY_MAX_WORKERS]; /* 0: not running */
	int pidfds[KVT_REPLAY_MAX_WORKERS];
	uint32_t n_alive;
	uint32_t n_lost;   /* killed workers */
	uint32_t n_failed; /* ended on an error */
};

/** Create the mapping, without workers. The arguments must outlive the crew. -ENOMEM with `why`. */
int kvt_replay_crew_create(struct kvt_replay_crew *crew, const struct kvt_replay_options *options,
			   const struct kvt_trace *trace, const char *const *socket_paths,
			   char *why, size_t why_bytes);
/** Start worker `number`, which must not be running. -errno of fork with `why`. */
int kvt_replay_crew_start(struct kvt_replay_crew *crew, uint32_t number, char *why,
			  size_t why_bytes);
/** Reap a worker that ended or was just killed. Its claimed requests count as lost. */
void kvt_replay_crew_bury(struct kvt_replay_crew *crew, uint32_t number);
/** Set the gate behind the next kill: half an interval after it is due, however late it comes. */
void kvt_replay_crew_gate(struct kvt_replay_crew *crew, uint32_t n_killed);
/** Return the youngest worker with a request under way, KVT_TRACE_NONE if there is none. */
uint32_t kvt_replay_crew_busy(const struct kvt_replay_crew *crew);
/** Unmap. No worker may be running. */
void kvt_replay_crew_destroy(struct kvt_replay_crew *crew);

/** The final report. */
struct kvt_replay_report {
	const struct kvt_replay_options *options;
	const struct kvt_trace *trace;
	const struct kvt_replay_shared *shared;
	double seconds;
	uint32_t page_size, n_sides;
	uint32_t n_pages; /* of all instances, and a scratch page */
	struct kvt_counters before, after, peak;
	uint64_t refused[KVT_REFUSAL_COUNT]; /* attempts, BEGINs and others */
	struct kvt_store_status store; /* that of --socket: what it did meanwhile, for all */
	uint32_t workers_lost, workers_failed;
	uint64_t problems; /* found by the final audit */
	char first_problem[256];
	bool simulated;
	struct kvt_private_result private[KVT_ROUTERS];
};

void kvt_replay_print(const struct kvt_replay_report *report);
/** Write and close the file of --served. 0 or negative errno. */
int kvt_replay_write_served(const struct kvt_replay_report *report);
/** True if nothing was wrong and a request was served; decides the exit code. */
bool kvt_replay_good(const struct kvt_replay_report *report);

/** Run kvtlab replay. Returns an enum kvt_exit. */
int kvt_replay_main(int argc, char **argv);

#endif
