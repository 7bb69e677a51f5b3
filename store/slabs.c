/* SPDX-License-Identifier: Apache-2.0 */
#include "store/slabs.h"

#include <string.h>

int kvt_slabs_map(struct kvt_slabs *slabs, struct kvt_client *client)
{
	const struct kvt_info *info = kvt_client_info(client);
	int rc;

	*slabs = (struct kvt_slabs){ .n_slabs = info->n_slabs };
	slabs->record_bytes = info->page_bytes * info->n_slabs;
	for (uint32_t i = 0; i < info->n_slabs; i++) {
		struct kvt_pool pool;

		rc = kvt_pool_map_slab(client, i, &pool);
		if (rc != 0)
			return rc;
		slabs->bases[i] = pool.base;
	}
	rc = kvt_pool_pieces(client, slabs->pieces);
	if (rc < 0)
		return rc;
	slabs->n_pieces = (uint32_t)rc;
	return 0;
}

/* memcpy() of what others may be writing: nothing is decided on these bytes before it is known
 * that they were not. */
void kvt_slabs_read(const struct kvt_slabs *slabs, uint32_t page, uint8_t *to)
{
	for (uint32_t i = 0; i < slabs->n_slabs; i++) {
		for (uint32_t j = 0; j < slabs->n_pieces; j++) {
			const struct kvt_pool_piece *piece = &slabs->pieces[j];

			memcpy(to, slabs->bases[i] + piece->offset_bytes +
				   page * piece->stride_bytes, piece->bytes);
			to += piece->bytes;
		}
	}
}

void kvt_slabs_write(const struct kvt_slabs *slabs, uint32_t page, const uint8_t *from)
{
	for (uint32_t i = 0; i < slabs->n_slabs; i++) {
		for (uint32_t j = 0; j < slabs->n_pieces; j++) {
			const struct kvt_pool_piece *piece = &slabs->pieces[j];

			memcpy(slabs->bases[i] + piece->offset_bytes + page * piece->stride_bytes,
			       from, piece->bytes);
			from += piece->bytes;
		}
	}
}
