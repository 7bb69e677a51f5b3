/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_LAB_REPLAY_HOST_H
#define KVT_LAB_REPLAY_HOST_H

/**
 * @file host.h
 * The instances that a replay runs on, and their stores: started, or one daemon that is there.
 */

#include "lab/daemon.h"
#include "lab/replay/replay.h"
#include "lab/store.h"

struct kvt_replay_host {
	uint32_t n;        /* instances */
	uint32_t n_stores; /* 0, 1 for all, or one each */
	struct kvt_own_daemon daemons[KVT_REPLAY_MAX_INSTANCES]; /* pid 0: not ours */
	struct kvt_own_store stores[KVT_REPLAY_MAX_INSTANCES];
	const char *socket_paths[KVT_REPLAY_MAX_INSTANCES];
	/* That of --socket has a store beside it: its socket, and its counts when it began. */
	char beside[KVT_STORE_PATH_BYTES];
	struct kvt_store_status before;
	struct kvt_client *observers[KVT_REPLAY_MAX_INSTANCES]; /* NULL: not open */
};

/** Start all, or find the daemon of --socket. `most`: positions of the longest request. Failures
 * are printed, here and below. */
int kvt_replay_host_start(struct kvt_replay_host *host, const struct kvt_replay_options *options,
			  uint64_t most);
/** Connect to all as an observer, and note their geometry. */
int kvt_replay_host_open(struct kvt_replay_host *host, struct kvt_replay_report *report);
/** Add up what the daemons count. `what`: KVT_ADMIN_STATUS or KVT_ADMIN_SETTLED. */
int kvt_replay_host_count(struct kvt_replay_host *host, uint32_t what,
			  struct kvt_counters *ret_counters, uint64_t refused[KVT_REFUSAL_COUNT]);
/** Audit every invariant of all. Problems are noted in the report. */
int kvt_replay_host_audit(struct kvt_replay_host *host, struct kvt_replay_report *report);
/** Find the store beside the daemon of --socket. False: there is none that answers. */
bool kvt_replay_host_find_store(struct kvt_replay_host *host);
/** Note what the stores counted, and end those of our own. -EIO: one had ended by itself. */
int kvt_replay_host_end_stores(struct kvt_replay_host *host, struct kvt_store_status *ret_status);
/** End all that was started. Returns the status of a daemon that failed, else 0. */
int kvt_replay_host_stop(struct kvt_replay_host *host);

#endif
