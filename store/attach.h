/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_STORE_ATTACH_H
#define KVT_STORE_ATTACH_H

/** @file attach.h: the session of a store in an instance, and the pool of that. */

#include "store/device.h"
#include "store/slabs.h"

/** Deadline of calls. While a daemon is stopped or hangs, so do its clients: a FETCH that finds the
 * store waiting with them loses nothing, and three of those are the last for a second. */
#define KVT_ATTACH_CALL_NS 1000000000ll

/** Connect and map all slabs.
 *
 * @call_ns  deadline of the connection, and of each call of the session.
 * @device  opened for a pool in device memory, if it is NULL; stays open on failure.
 * On failure there is no client, and `why` says what to do. */
int kvt_attach(const char *socket_path, int64_t call_ns, struct kvt_client **ret_client,
	       struct kvt_device **device, struct kvt_slabs *ret_slabs, struct kvt_error *why);

#endif
