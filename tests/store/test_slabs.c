/* SPDX-License-Identifier: Apache-2.0 */
/* Pages as records: pieces of any length, at any alignment, and nothing beside them. */
#include <string.h>

#include "store/crc32c.h"
#include "store/slabs.h"
#include "tests/lib/cases.h"

#define MOST 40000u
#define EDGE 64u

static uint8_t pool[EDGE + MOST + EDGE], record[EDGE + MOST + EDGE];

static void fill(uint8_t *bytes, size_t n, uint32_t seed)
{
	for (uint32_t i = 0; i < n; i++)
		bytes[i] = (uint8_t)((i + seed) * 2654435761u >> 13);
}

/* Check that n bytes at `at` were copied, and no others. */
static void check(const uint8_t *to, const uint8_t *before, const uint8_t *from, uint32_t to_at,
		  uint32_t from_at, uint32_t n)
{
	assert_memory_equal(to + to_at, from + from_at, n);
	assert_memory_equal(to, before, to_at);
	assert_memory_equal(to + to_at + n, before + to_at + n, sizeof(pool) - to_at - n);
}

TEST(whole_pieces_are_copied_and_no_byte_beside_them)
{
	static const uint32_t bytes[] = { 1, 63, 64, 512, 1023, 1024, 1025, 1279, 4096, 4160, 5000,
					  16383, 16384, 16447, 20480, 33000, MOST };
	static uint8_t before[sizeof(pool)];

	for (uint32_t i = 0; i < sizeof(bytes) / sizeof(*bytes); i++) {
		for (uint32_t place = 0; place < 16; place++) {
			uint32_t in_pool = place % 4 * 16, in_record = place / 4 * 17, n = bytes[i];
			struct kvt_slabs slabs = {
				.bases = { pool }, .n_slabs = 1, .n_pieces = 1, .record_bytes = n,
				.pieces = { { .offset_bytes = in_pool, .bytes = n } },
			};

			fill(pool, sizeof(pool), n + place);
			memset(record, 0xee, sizeof(record));
			memcpy(before, record, sizeof(record));
			kvt_slabs_read(&slabs, 0, record + in_record, NULL);
			check(record, before, pool, in_record, in_pool, n);

			fill(record, sizeof(record), ~n);
			memcpy(before, pool, sizeof(pool));
			kvt_slabs_write(&slabs, 0, record + in_record);
			check(pool, before, record, in_pool, in_record, n);
		}
	}
}

/* Pieces and quarters of pages begin and end at different bytes. */
TEST(a_copy_with_checksums_is_the_same_copy)
{
	static const uint32_t pieces[] = { 1, 3, 16, 100, 511, 4096, 5000 };
	struct kvt_slabs slabs = { .bases = { pool, pool + MOST / 2 }, .n_slabs = 2 };
	uint8_t plain[sizeof(record)];
	uint32_t crc[4], whole[4];

	for (uint32_t n_pieces = 1; n_pieces <= 5; n_pieces++) {
		for (uint32_t size = 0; size < sizeof(pieces) / sizeof(*pieces); size++) {
			uint32_t at = 0;

			slabs.n_pieces = n_pieces;
			slabs.record_bytes = 0;
			for (uint32_t i = 0; i < n_pieces; i++) {
				uint32_t n = pieces[(size + i) % 6]; /* they fit */

				slabs.pieces[i] = (struct kvt_pool_piece){ at, n, n };
				at += n + 7;
				slabs.record_bytes += 2 * n;
			}
			fill(pool, sizeof(pool), size);
			memset(record, 0xee, sizeof(record));
			memset(plain, 0xee, sizeof(plain));
			kvt_slabs_read(&slabs, 0, plain + EDGE, NULL);
			kvt_slabs_read(&slabs, 0, record + EDGE, crc);
			assert_memory_equal(record, plain, sizeof(record));
			kvt_crc32c_quarters(plain + EDGE, slabs.record_bytes, whole);
			assert_memory_equal(crc, whole, sizeof(crc));
		}
	}
}
