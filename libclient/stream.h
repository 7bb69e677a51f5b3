/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_CLIENT_STREAM_H
#define KVT_CLIENT_STREAM_H

#include "libclient/state.h"

/** Detach the streams from a closing client. True: fences are outstanding, and the last one unmaps
 * the segment. */
bool kvt_streams_leave(struct kvt_client *client);
/** True if every fence that a stream recorded is reached. */
bool kvt_streams_idle(const struct kvt_client *client);
/** Whether a stream raises this fence word. */
bool kvt_streams_uses(const struct kvt_client *client, uint32_t slot);

#endif
