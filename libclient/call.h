/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_CLIENT_CALL_H
#define KVT_CLIENT_CALL_H

#include "libclient/state.h"

/** Submit and wait. `seq`: the sequence whose table a late answer changes, or NULL. On success the
 * caller releases the result. */
int kvt_client_call(struct kvt_client *client, const struct kvt_request *request,
		    struct kvt_seq *seq, struct kvt_result *ret_result);
/** Submit an operation whose keys may begin behind a handle, and wait. Sends only the keys behind
 * `start`, or without one those that a probe does not find. If the handle is stale, sends more keys
 * within the same deadline. `request` has all keys and no handle. */
int kvt_client_call_known(struct kvt_client *client, const struct kvt_request *request,
			  struct kvt_handle start, struct kvt_result *ret_result);
/** Submit without waiting; the answer goes to kvt_seq_answered(). -EAGAIN: no room. */
int kvt_client_submit_ahead(struct kvt_client *client, const struct kvt_request *request,
			    struct kvt_seq *seq);
/** Submit without waiting; the answer is dropped. -EAGAIN: no room. */
int kvt_client_submit_silently(struct kvt_client *client, const struct kvt_request *request);
/** Wait for all late and asynchronous answers of a sequence. */
int kvt_client_settle(struct kvt_client *client, const struct kvt_seq *seq);

#endif
