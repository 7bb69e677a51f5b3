/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_BASE_NUMBER_H
#define KVT_BASE_NUMBER_H

/** @file number.h: numbers as users read and write them. */

#include <stddef.h>
#include <stdint.h>

static inline double kvt_percent(uint64_t part, uint64_t all)
{
	return all ? 100 * (double)part / (double)all : 0;
}

/** Read `text`, decimal digits only. -EINVAL, -ERANGE above `max`. */
int kvt_number_parse(const char *text, size_t bytes, uint64_t max, uint64_t *ret_value);
/** Write "1.5 s", "3 min", "2 h" into `buffer`, which is returned. */
const char *kvt_age_text(uint64_t ns, char *buffer, size_t bytes);
/** "48.0 %", or "-" of nothing, which has no rate. */
const char *kvt_rate_text(uint64_t part, uint64_t all, char *buffer, size_t bytes);
/** "1.5 GiB". */
const char *kvt_size_text(uint64_t size_bytes, char *buffer, size_t bytes);

#endif
