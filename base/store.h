/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_BASE_STORE_H
#define KVT_BASE_STORE_H

/**
 * @file store.h
 * One question to a store, and what it counts.
 */

#include <stdint.h>

#include "kvtrunk_client.h"
#include "kvtrunk_wire_store.h"

struct kvt_json;

/** Answer of a store. */
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

/** Return the end of the bucket that this share of the times is up to, 0: there are none.
 * UINT64_MAX: it is the last one, which has no end. */
uint64_t kvt_store_time_ns(const struct kvt_store_time *time, double share);
/** Add the counts and times by name to the open object. */
void kvt_json_store(struct kvt_json *json, const struct kvt_store_status *status);

#endif
