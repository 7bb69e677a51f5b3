/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_CLIENT_FEED_H
#define KVT_CLIENT_FEED_H

/** @file feed.h: a snapshot in parts, for a thread that has other work, too. */

#include <stdint.h>

#include "kvtrunk_feed.h"

/** Begin what kvt_feed_snapshot() does. Until it is ready, kvt_feed_next() must not be called.
 * Errors: as that. */
int kvt_feed_snapshot_begin(struct kvt_feed *feed);
/** Continue it for about `steps` pages. Returns 1 when it is ready; 0: call again; -EAGAIN: the
 * same, in a moment. Errors: as that; after -EOVERFLOW it begins again with the next call. */
int kvt_feed_snapshot_step(struct kvt_feed *feed, uint32_t steps);

#endif
