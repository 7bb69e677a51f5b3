/* SPDX-License-Identifier: Apache-2.0 */
/* CRC-32C: the vectors of RFC 3720, and the instruction beside the table. */
#include <string.h>

#include "store/crc32c.h"
#include "tests/lib/cases.h"

TEST(the_vectors_of_iscsi_hold)
{
	uint8_t bytes[32];

	assert_int_equal(kvt_crc32c(0, "123456789", 9), 0xe3069283);
	memset(bytes, 0, sizeof(bytes));
	assert_int_equal(kvt_crc32c(0, bytes, 32), 0x8a9136aa);
	memset(bytes, 0xff, sizeof(bytes));
	assert_int_equal(kvt_crc32c(0, bytes, 32), 0x62a8ab43);
	for (uint8_t i = 0; i < 32; i++)
		bytes[i] = i;
	assert_int_equal(kvt_crc32c(0, bytes, 32), 0x46dd794e);
	assert_int_equal(kvt_crc32c(0, bytes, 0), 0);
}

TEST(parts_and_both_ways_agree)
{
	uint8_t bytes[257];

	for (uint32_t i = 0; i < sizeof(bytes); i++)
		bytes[i] = (uint8_t)(i * 2654435761u >> 11);
	for (uint32_t from = 0; from < 9; from++) {
		for (uint32_t n = 0; n < sizeof(bytes) - from; n++) {
			uint32_t whole = kvt_crc32c_portable(0, bytes + from, n);

			assert_int_equal(kvt_crc32c(0, bytes + from, n), whole);
			assert_int_equal(kvt_crc32c(kvt_crc32c(0, bytes + from, n / 3),
						    bytes + from + n / 3, n - n / 3), whole);
		}
	}
}

TEST(quarters_are_those_of_each_by_itself)
{
	uint8_t bytes[4096];
	uint32_t crc[4];

	for (uint32_t i = 0; i < sizeof(bytes); i++)
		bytes[i] = (uint8_t)(i * 2654435761u >> 11);
	for (uint32_t n = 0; n <= sizeof(bytes); n += n < 70 ? 1 : 37) {
		kvt_crc32c_quarters(bytes, n, crc);
		for (uint32_t i = 0; i < 4; i++)
			assert_int_equal(crc[i],
					 kvt_crc32c_portable(0, bytes + i * (n / 4),
							     n / 4 + (i == 3 ? n % 4 : 0)));
	}
}
