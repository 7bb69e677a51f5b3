/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_CLIENT_FETCH_H
#define KVT_CLIENT_FETCH_H

#include "libclient/state.h"

struct kvt_request;

/** Note where the store of this client would be. `path` NULL: beside the daemon's socket; "": there
 * is none. Without memory for it there is none, too. */
void kvt_client_store_at(struct kvt_client *client, const char *path, int64_t wait_ns);
/** Disconnect from the store and free what belongs to it. */
void kvt_client_store_leave(struct kvt_client *client);

/** Ask the store for what the pool lacks of a BEGIN, and wait for its answer, fetch_wait_ns at
 * most. Returns how many ms to wait for the load; 0: nothing is loaded. Sets `start` to what the
 * pool had, if it probed. */
uint32_t kvt_client_fetch_now(struct kvt_client *client, const struct kvt_request *begin,
			      struct kvt_handle *start);

/** True if a prefix continues behind a page that is cached: pages have no sides, or the last ones
 * of the prefix have all that it needs. A hint: while the tree changes, it may be wrong. */
bool kvt_client_is_point(const struct kvt_client *client, uint32_t page);

#endif
