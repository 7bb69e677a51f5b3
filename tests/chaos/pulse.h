/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_CHAOS_PULSE_H
#define KVT_CHAOS_PULSE_H

/**
 * @file pulse.h
 * A client that does nothing but ask: how long nobody answers is how long there was no service.
 */

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define PULSE_GAPS 4096u
#define PULSE_GAP_LEAST_NS 200000 /* shorter pauses are the scheduler's */

struct pulse_gap {
	int64_t from_ns; /* the last answer before it */
	int64_t to_ns;   /* the first one after it */
};

/** Shared with the process that asks. */
struct pulse {
	uint64_t answers;
	int64_t last_ns; /* of the last answer */
	uint32_t n_gaps; /* release: gaps[] below it are complete; the oldest are overwritten */
	uint32_t stop;
	uint32_t failed; /* it ended for a reason of its own, which it printed */
	struct pulse_gap gaps[PULSE_GAPS];
	pid_t pid;
};

/** Start it. NULL: no memory or no process. */
struct pulse *pulse_start(const char *socket_path);
/** The longest pause that overlaps the time from `from_ns` on. */
int64_t pulse_longest_ns(const struct pulse *pulse, int64_t from_ns);
/** Wait until it got an answer to a question that it asked after now. False: it is gone. */
bool pulse_await(struct pulse *pulse);
/** End it. Returns whether it was well to the end. */
bool pulse_stop(struct pulse *pulse);

#endif
