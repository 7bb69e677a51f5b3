/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_TOOLS_STORE_H
#define KVT_TOOLS_STORE_H

/**
 * @file store.h
 * A store as its operator sees it: where it is, what it counts, and what is wrong with it.
 */

#include <stdbool.h>

#include "kvtrunk_client.h"
#include "kvtrunk_wire_store.h"
#include "tools/util.h"

#define KVT_DEFAULT_SOCKET "/run/kvtrunk/default.sock"
#define KVT_STORE_PATH_BYTES 108u /* of a socket's name, NUL included */

/** The daemon's socket: `given`, or $KVTRUNK_SOCKET, or the default. */
const char *kvt_daemon_path(const char *given);
/** True, after saying so, if that is empty, which is refused instead of taken for the default. */
bool kvt_daemon_path_empty(const char *given);
/** Write the path of the store's socket, which is beside the daemon's. -ENAMETOOLONG. */
int kvt_store_path(const char *daemon_path, char ret_path[KVT_STORE_PATH_BYTES]);

/** What a store answered. */
struct kvt_store_seen {
	uint64_t instance[2]; /* of its daemon */
	int pid; /* of the store, which may serve several instances; 0: not known here */
	struct kvt_store_status status;
};

/** Send STATUS or DROP (`type`) and wait for the answer, timeout_ns at most.
 * Negative errno with `why`: -ENOENT there is no socket; -ECONNREFUSED the store is gone;
 * -ETIMEDOUT; -EPERM the store refuses; -EPROTO. */
int kvt_store_ask(const char *path, uint16_t type, int64_t timeout_ns,
		  struct kvt_store_seen *ret_seen, struct kvt_error *why);

/** Write what is wrong with a store that answers, with the cure, into `why`. False: nothing. */
bool kvt_store_alarm(const struct kvt_store_status *status, char *why, size_t bytes);

/** Write how often the whole file is written, which is what drives are rated by: a day, once the
 * store is up for an hour, before that since its start. Returns `buffer`. */
const char *kvt_store_wear_text(const struct kvt_store_status *status, char *buffer, size_t bytes);

/** Return the end of the bucket that this share of the times is up to, 0: there are none.
 * UINT64_MAX: it is the last one, which has no end. */
uint64_t kvt_store_time_ns(const struct kvt_store_time *time, double share);
/** Add the counts and times by name to the open object. */
void kvt_json_store(struct kvt_json *json, const struct kvt_store_status *status);

#endif
