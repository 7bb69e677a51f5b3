/* SPDX-License-Identifier: Apache-2.0 */
#include "store/slabs.h"

#include <string.h>

#include "store/device.h"

/* Map all slabs in host memory. */
static int map_host(struct kvt_slabs *slabs, struct kvt_client *client, struct kvt_error *why)
{
	for (uint32_t i = 0; i < slabs->n_slabs; i++) {
		struct kvt_pool pool;
		int rc = kvt_pool_map_slab(client, i, &pool);

		if (rc != 0) {
			*why = *kvt_client_error(client);
			return rc;
		}
		slabs->bases[i] = pool.base;
	}
	return 0;
}

int kvt_slabs_map(struct kvt_slabs *slabs, struct kvt_client *client, struct kvt_device *device,
		  struct kvt_error *why)
{
	const struct kvt_info *info = kvt_client_info(client);
	int rc;

	*slabs = (struct kvt_slabs){ .device = device, .n_slabs = info->n_slabs };
	slabs->record_bytes = info->page_bytes * info->n_slabs;
	rc = kvt_pool_pieces(client, slabs->pieces);
	if (rc < 0) {
		*why = *kvt_client_error(client);
		return rc;
	}
	slabs->n_pieces = (uint32_t)rc;
	return device ? kvt_device_map(device, client, slabs->bases, why)
		      : map_host(slabs, client, why);
}

/* memcpy() of what others may be writing: nothing is decided on these bytes before it is known
 * that they were not. */
int kvt_slabs_read(const struct kvt_slabs *slabs, uint32_t page, uint8_t *to)
{
	for (uint32_t i = 0; i < slabs->n_slabs; i++) {
		for (uint32_t j = 0; j < slabs->n_pieces; j++) {
			const struct kvt_pool_piece *piece = &slabs->pieces[j];
			const uint8_t *from = slabs->bases[i] + piece->offset_bytes +
					      page * piece->stride_bytes;

			if (slabs->device)
				kvt_device_read(slabs->device, i, to, from, piece->bytes);
			else
				memcpy(to, from, piece->bytes);
			to += piece->bytes;
		}
	}
	return slabs->device ? kvt_device_wait(slabs->device) : 0;
}

int kvt_slabs_write(const struct kvt_slabs *slabs, uint32_t page, const uint8_t *from)
{
	for (uint32_t i = 0; i < slabs->n_slabs; i++) {
		for (uint32_t j = 0; j < slabs->n_pieces; j++) {
			const struct kvt_pool_piece *piece = &slabs->pieces[j];
			uint8_t *to = slabs->bases[i] + piece->offset_bytes +
				      page * piece->stride_bytes;

			if (slabs->device)
				kvt_device_write(slabs->device, i, to, from, piece->bytes);
			else
				memcpy(to, from, piece->bytes);
			from += piece->bytes;
		}
	}
	return slabs->device ? kvt_device_wait(slabs->device) : 0;
}
