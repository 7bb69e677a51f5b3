/* SPDX-License-Identifier: Apache-2.0 */
#include "store/slabs.h"

#include <string.h>
#include <sys/mman.h>
#ifdef __SSE2__
#include <immintrin.h>
#endif

#include "store/crc32c.h"
#include "store/device.h"

#define LINE 64u           /* bytes of a cache line */
#define AHEAD 512u         /* bytes that are prefetched */
#define PART_MOST 4096u    /* bytes, of each quarter, that are checked and then copied */
#define STREAM_LEAST 1024u /* smaller pieces have few whole lines */

/* Map all slabs in host memory. */
static int map_host(struct kvt_slabs *slabs, struct kvt_client *client, bool writes,
		    struct kvt_error *why)
{
	for (uint32_t i = 0; i < slabs->n_slabs; i++) {
		struct kvt_pool pool;
		int rc = kvt_pool_map_slab(client, i, &pool);

		if (rc != 0) {
			*why = *kvt_client_error(client);
			return rc;
		}
		slabs->bases[i] = pool.base;
		if (!writes) /* a pool of huge pages may refuse that */
			mprotect(pool.base, pool.bytes, PROT_READ);
	}
	return 0;
}

int kvt_slabs_map(struct kvt_slabs *slabs, struct kvt_client *client, struct kvt_device *device,
		  bool writes, struct kvt_error *why)
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
	return device ? kvt_device_map(device, client, slabs->bases, writes, why)
		      : map_host(slabs, client, writes, why);
}

#ifdef __SSE2__
__attribute__((target("avx512f"))) static void stream_wide(uint8_t *to, const uint8_t *from,
							   uint64_t bytes)
{
	for (uint64_t at = 0; at < bytes; at += LINE)
		_mm512_stream_si512((void *)(to + at), _mm512_loadu_si512(from + at));
}

static void stream_line(uint8_t *to, const uint8_t *from)
{
	__m128i words[LINE / sizeof(__m128i)];

	for (unsigned int i = 0; i < LINE / sizeof(*words); i++)
		words[i] = _mm_loadu_si128((const __m128i *)from + i);
	for (unsigned int i = 0; i < LINE / sizeof(*words); i++)
		_mm_stream_si128((__m128i *)to + i, words[i]);
}

/* Copy whole lines to an aligned place. Returns how many bytes those were. */
static uint64_t stream(uint8_t *to, const uint8_t *from, uint64_t bytes)
{
	bytes = bytes / LINE * LINE;
	if (__builtin_cpu_supports("avx512f")) {
		stream_wide(to, from, bytes);
		return bytes;
	}
	for (uint64_t at = 0; at < bytes; at += LINE) {
		__builtin_prefetch(from + at + AHEAD);
		stream_line(to + at, from + at);
	}
	return bytes;
}
#else
static uint64_t stream(uint8_t *to, const uint8_t *from, uint64_t bytes)
{
	(void)to, (void)from, (void)bytes;
	return 0;
}
#endif

/* memcpy() that does not read what it overwrites and leaves the caches to others. Others may be
 * writing `from`: nothing is decided on these bytes before it is known that they were not. */
static void copy(uint8_t *to, const uint8_t *from, uint64_t bytes)
{
	uint64_t at = bytes < STREAM_LEAST ? bytes : -(uintptr_t)to % LINE;

	memcpy(to, from, at);
	at += stream(to + at, from + at, bytes - at);
	memcpy(to + at, from + at, bytes - at);
}

/* The pieces from `first` on that have one size, and one distance, which a device can take. */
static struct kvt_device_rows rows_from(const struct kvt_slabs *slabs, uint32_t first)
{
	const struct kvt_pool_piece *piece = &slabs->pieces[first];
	struct kvt_device_rows rows = { .bytes = piece->bytes, .stride = piece->bytes, .n = 1 };

	while (first + rows.n < slabs->n_pieces) {
		const struct kvt_pool_piece *next = &piece[rows.n];
		uint64_t distance = next->offset_bytes - next[-1].offset_bytes;

		if (next->bytes != piece->bytes || next->stride_bytes != piece->stride_bytes ||
		    distance < piece->bytes || distance > INT32_MAX ||
		    (rows.n > 1 && distance != rows.stride))
			break;
		rows.stride = distance;
		rows.n++;
	}
	return rows;
}

static void copy_page(const struct kvt_slabs *slabs, uint32_t page, uint8_t *record, bool out)
{
	struct kvt_device_rows rows = { .n = 1 };

	for (uint32_t i = 0; i < slabs->n_slabs; i++) {
		for (uint32_t j = 0; j < slabs->n_pieces; j += rows.n) {
			const struct kvt_pool_piece *piece = &slabs->pieces[j];
			uint8_t *at = slabs->bases[i] + piece->offset_bytes +
				      page * piece->stride_bytes;

			if (slabs->device) {
				rows = rows_from(slabs, j);
				rows.first = at;
				kvt_device_copy(slabs->device, i, &rows, record, out);
			} else {
				copy(out ? record : at, out ? at : record, piece->bytes);
			}
			record += rows.n * piece->bytes;
		}
	}
}

/* ---- with checksums */

/* A place in a record, and what of its piece is behind it. */
struct place {
	uint32_t slab, piece;
	uint64_t at, left;
};

static void step(const struct kvt_slabs *slabs, struct place *place, uint64_t n)
{
	place->at += n;
	place->left -= n;
	if (place->left > 0)
		return;
	place->piece = (place->piece + 1) % slabs->n_pieces;
	place->slab += place->piece == 0;
	place->left = slabs->pieces[place->piece].bytes;
}

static struct place place_at(const struct kvt_slabs *slabs, uint64_t at)
{
	struct place place = { .left = slabs->pieces[0].bytes };

	while (at - place.at >= place.left)
		step(slabs, &place, place.left);
	step(slabs, &place, at - place.at);
	return place;
}

static const uint8_t *bytes_at(const struct kvt_slabs *slabs, uint32_t page,
			       const struct place *place)
{
	const struct kvt_pool_piece *piece = &slabs->pieces[place->piece];

	return slabs->bases[place->slab] + piece->offset_bytes + page * piece->stride_bytes +
	       piece->bytes - place->left;
}

/* Copy the four quarters of a page side by side: each part from the cache, where its checksum left
 * it. */
static void read_quarters(const struct kvt_slabs *slabs, uint32_t page, uint8_t *to,
			  uint32_t ret_crc[4])
{
	uint64_t quarter = slabs->record_bytes / 4, left = quarter, n;
	const uint8_t *from[4];
	struct place places[4];

	for (uint32_t i = 0; i < 4; i++)
		places[i] = place_at(slabs, i * quarter);
	memset(ret_crc, 0, 4 * sizeof(*ret_crc));
	for (; left > 0; left -= n) {
		n = left < PART_MOST ? left : PART_MOST;
		for (uint32_t i = 0; i < 4; i++)
			n = n < places[i].left ? n : places[i].left;
		for (uint32_t i = 0; i < 4; i++)
			from[i] = bytes_at(slabs, page, &places[i]);
		kvt_crc32c_four(ret_crc, from, n);
		for (uint32_t i = 0; i < 4; i++) {
			copy(to + places[i].at, from[i], n);
			step(slabs, &places[i], n);
		}
	}
	for (n = slabs->record_bytes % 4; n > 0; n--) {
		from[3] = bytes_at(slabs, page, &places[3]);
		ret_crc[3] = kvt_crc32c(ret_crc[3], from[3], 1);
		to[places[3].at] = *from[3];
		step(slabs, &places[3], 1);
	}
}

void kvt_slabs_read(const struct kvt_slabs *slabs, uint32_t page, uint8_t *to,
		    uint32_t ret_crc[4])
{
	if (ret_crc && !slabs->device)
		read_quarters(slabs, page, to, ret_crc);
	else
		copy_page(slabs, page, to, true);
}

void kvt_slabs_write(const struct kvt_slabs *slabs, uint32_t page, const uint8_t *from)
{
	copy_page(slabs, page, (uint8_t *)(uintptr_t)from, false);
}

void kvt_slabs_sum(const struct kvt_slabs *slabs, uint32_t page, const uint8_t *record,
		   uint32_t *ret_sums)
{
	for (uint32_t i = 0; i < slabs->n_slabs; i++) {
		for (uint32_t j = 0; j < slabs->n_pieces; j++) {
			const struct kvt_pool_piece *piece = &slabs->pieces[j];
			const uint8_t *at = record ? record : slabs->bases[i] +
				piece->offset_bytes + page * piece->stride_bytes;

			*ret_sums++ = kvt_crc32c(0, at, piece->bytes);
			record += record ? piece->bytes : 0;
		}
	}
}

int kvt_slabs_settle(const struct kvt_slabs *slabs, bool out)
{
	if (slabs->device)
		return kvt_device_wait(slabs->device, out);
#ifdef __SSE2__
	_mm_sfence(); /* streamed bytes are seen before the COMMIT that tells of them */
#endif
	return 0;
}
