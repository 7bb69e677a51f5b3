/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_STORE_DEVICE_H
#define KVT_STORE_DEVICE_H

/**
 * @file device.h
 * Copies between pages in device memory and records in host memory, by any thread. Only
 * kvt_device_wait() waits, for copies that were queued before it, also by others.
 *
 * After a failure of the driver, copies may be outstanding for ever. So the process must end: that
 * ends its session, and the daemon takes its pages back once their memory is unmapped.
 */

#include <stdbool.h>
#include <stdint.h>

#include "kvtrunk_pool.h"

struct kvt_device;

/* A wait takes as long as the copy of a few hundred KiB: copy so many bytes for each. */
#define KVT_DEVICE_BYTES (8ull << 20)

/** Start the driver. -ENODEV, with `why`. */
int kvt_device_open(struct kvt_device **ret_device, struct kvt_error *why);
/** After the clients that were mapped. NULL: does nothing. */
void kvt_device_close(struct kvt_device *device);
/** Map the slab of each device. ret_bases: n_slabs device pointers, unmapped with the client.
 * writes: as for kvt_slabs_map().
 * -ENODEV: this process does not see the device of one; others as kvt_pool_map_cuda(). */
int kvt_device_map(struct kvt_device *device, struct kvt_client *client, uint8_t **ret_bases,
		   bool writes, struct kvt_error *why);
/** Let devices read and write host memory directly. Without it, copies take longer. */
void kvt_device_pin(struct kvt_device *device, void *memory, uint64_t bytes);

/** Pieces of a page that lie at equal distances. */
struct kvt_device_rows {
	uint8_t *first;  /* in a slab: a device pointer */
	uint64_t bytes;  /* of each */
	uint64_t stride; /* bytes from one to the next: at least as many, at most INT32_MAX */
	uint32_t n;
};

/** Queue a copy out of a slab, into memory where the rows lie one behind the other, or back. */
void kvt_device_copy(struct kvt_device *device, uint32_t slab, const struct kvt_device_rows *rows,
		     void *memory, bool out);
/** Wait for the copies of this direction that were queued. -EIO: the driver failed. */
int kvt_device_wait(struct kvt_device *device, bool out);
/** What failed: "too many resources requested (error 701)". NULL: nothing has. */
const char *kvt_device_failure(const struct kvt_device *device);

#endif
