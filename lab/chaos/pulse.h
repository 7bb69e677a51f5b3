/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_CHAOS_PULSE_H
#define KVT_CHAOS_PULSE_H

/**
 * @file pulse.h
 * A client that asks without a break. The time between two answers is the outage.
 */

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define PULSE_GAPS 4096u
#define PULSE_PAUSE_NS 100000
#define PULSE_GAP_LEAST_NS 500000 /* shorter gaps are the pause and the scheduler's */

struct pulse_gap {
	int64_t from_ns; /* the last answer before the gap */
	int64_t to_ns;   /* the first answer after it */
};

/** Shared with the asking process. */
struct pulse {
	uint64_t answers;
	int64_t last_ns; /* of the last answer */
	uint32_t n_gaps; /* release: gaps[] below it are complete; the oldest are overwritten */
	uint32_t stop;
	uint32_t failed; /* it ended on an error, which it printed */
	struct pulse_gap gaps[PULSE_GAPS];
	pid_t pid;
};

/** Start the client. NULL: no memory or no process. */
struct pulse *pulse_start(const char *socket_path);
/** Return the longest gap that overlaps the time since `from_ns`. */
int64_t pulse_longest_ns(const struct pulse *pulse, int64_t from_ns);
/** Wait for the answer to a question that was asked after this call. False: the client ended. */
bool pulse_await(struct pulse *pulse);
/** Stop the client. Returns false if it had failed. */
bool pulse_stop(struct pulse *pulse);

#endif
