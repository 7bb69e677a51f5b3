/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_CLIENT_CALL_H
#define KVT_CLIENT_CALL_H

#include "libclient/wait.h"

struct kvt_request;
struct kvt_result;

/** Submit and wait. `seq`: the sequence whose table a late answer changes, or NULL. On success the
 * caller releases the result. */
int kvt_client_call(struct kvt_client *client, const struct kvt_request *request,
		    struct kvt_seq *seq, struct kvt_result *ret_result);
/** The same for one of several calls that share a deadline. */
int kvt_client_call_within(struct kvt_client *client, const struct kvt_request *request,
			   struct kvt_wait *wait, struct kvt_seq *seq,
			   struct kvt_result *ret_result);
/** Submit without waiting; the answer goes to kvt_seq_answered() and then, if `told`, to
 * kvt_reap(). -EAGAIN: no room. */
int kvt_client_submit_ahead(struct kvt_client *client, const struct kvt_request *request,
			    struct kvt_seq *seq, bool told);
/** Submit without waiting; the answer is dropped. -EAGAIN: no room. */
int kvt_client_submit_silently(struct kvt_client *client, const struct kvt_request *request);
/** Wait for all late and asynchronous answers of a sequence. */
int kvt_client_settle(struct kvt_client *client, const struct kvt_seq *seq);

#endif
