/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_LAB_CHAOS_CHAOS_H
#define KVT_LAB_CHAOS_CHAOS_H

/**
 * @file chaos.h
 * kvtlab chaos: actions on daemon and workers, and what was measured.
 */

#include <stdbool.h>
#include <stdint.h>

#include "lab/chaos/pulse.h"
#include "lab/daemon.h"
#include "lab/replay/replay.h"
#include "lab/store.h"

enum chaos_action {
	CHAOS_KILL_WORKER = 0,
	CHAOS_STOP_WORKER,
	CHAOS_CONTINUE_WORKER,
	CHAOS_KILL_DAEMON,
	CHAOS_ABORT_DAEMON,
	CHAOS_STOP_DAEMON,    /* for some milliseconds */
	CHAOS_STOP_KILL,      /* the daemon stopped, then killed */
	CHAOS_UPGRADE,        /* an orderly restart under load */
	CHAOS_KILL_BOTH,      /* the daemon, then workers before its successor starts */
	CHAOS_KILL_STARTING,  /* the daemon, then its successor before it serves */
	CHAOS_KILL_STORE,     /* another one starts with nothing */
	CHAOS_STOP_STORE,     /* until one of the two others */
	CHAOS_CONTINUE_STORE,
	CHAOS_ACTIONS,
};

/** All times of one kind of event. Not sampled: runs are short. */
struct chaos_times {
	int64_t *ns;
	uint32_t n, capacity;
};
void chaos_times_add(struct chaos_times *times, int64_t ns);
double chaos_times_ms(struct chaos_times *times, double part);

struct chaos {
	struct kvt_replay_options options;
	struct kvt_own_daemon daemon; /* its pid is the supervisor's */
	const char *socket_path;      /* of it */
	struct kvt_own_store store;   /* pid 0: none */
	bool store_stopped;
	struct kvt_store_status stored; /* by all stores: fetches, hits, loaded_pages */
	struct kvt_replay_crew crew;
	struct kvt_trace *trace;
	struct pulse *pulse;
	uint64_t random;
	uint64_t seed;
	int64_t end_ns;
	bool stopped[KVT_REPLAY_MAX_WORKERS];
	uint64_t done[CHAOS_ACTIONS];
	uint64_t restarts; /* of the daemon */
	uint64_t requests, lost, refused;
	uint64_t verified_pages, pattern_errors, failed_workers, killed_workers;
	struct chaos_times gaps;    /* from the last answer to the next */
	struct chaos_times reclaim; /* from a worker's end until all of it is freed */
	struct kvt_counters after;
	uint64_t problems;
	char log_path[128];
	char wrong[512]; /* the first error; "": none */
};

/** Draw a number below `n` from the seed. */
uint32_t chaos_draw(struct chaos *chaos, uint32_t n);
void chaos_wrong(struct chaos *chaos, const char *format, ...)
	__attribute__((format(printf, 2, 3)));
/** Run one action, chosen by the seed. False: something is wrong. */
bool chaos_act(struct chaos *chaos);
/** Start the store, if there is to be one. False: it did not. */
bool chaos_start_store(struct chaos *chaos);
/** Add up what the store counted, and end it. */
void chaos_end_store(struct chaos *chaos);
/** Continue every stopped worker. */
void chaos_continue_all(struct chaos *chaos);
const char *chaos_action_name(enum chaos_action action);

/** Run kvtlab chaos. Returns an enum kvt_exit. */
int kvt_chaos_main(int argc, char **argv);

#endif
