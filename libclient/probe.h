/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_CLIENT_PROBE_H
#define KVT_CLIENT_PROBE_H

#include "libclient/state.h"

/** Call with an operation whose keys may begin behind a handle. Sends only the keys behind `start`,
 * or without one those that a probe does not find. If the handle is stale, sends more keys within
 * the same deadline. `request` has all keys and no handle. */
int kvt_client_call_known(struct kvt_client *client, const struct kvt_request *request,
			  struct kvt_handle start, struct kvt_result *ret_result);

#endif
