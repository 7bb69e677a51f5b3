/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_CLIENT_PROBE_H
#define KVT_CLIENT_PROBE_H

#include "libclient/state.h"

/** Probe for a request's keys and shorten it: its handle names those found. False: unchanged,
 * because nothing was found, or too few keys, or the tree cannot be read. */
bool kvt_client_shorten(struct kvt_client *client, struct kvt_request *request);
/** Shorten a request to what follows `start`. False: unchanged, `start` does not fit it. */
bool kvt_client_shorten_to(struct kvt_request *request, struct kvt_handle start);

#endif
