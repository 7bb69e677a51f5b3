/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_STORE_ATTACH_H
#define KVT_STORE_ATTACH_H

/** @file attach.h: the session of a store in an instance, and the pool of that. */

#include "store/device.h"
#include "store/slabs.h"

/** Connect and map all slabs. No call of the session waits longer than a second.
 *
 * @device  opened for a pool in device memory, if it is NULL; stays open on failure.
 * On failure there is no client, and `why` says what to do. */
int kvt_attach(const char *socket_path, struct kvt_client **ret_client,
	       struct kvt_device **device, struct kvt_slabs *ret_slabs, struct kvt_error *why);

#endif
