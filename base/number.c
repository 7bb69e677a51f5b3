/* SPDX-License-Identifier: Apache-2.0 */
#include "base/number.h"

#include <errno.h>
#include <stdio.h>

int kvt_number_parse(const char *text, size_t bytes, uint64_t max, uint64_t *ret_value)
{
	uint64_t value = 0;

	if (bytes == 0)
		return -EINVAL;
	for (size_t i = 0; i < bytes; i++) {
		unsigned int digit = (unsigned int)(unsigned char)text[i] - '0';

		if (digit > 9)
			return -EINVAL;
		if (value > UINT64_MAX / 10 || value * 10 > UINT64_MAX - digit)
			return -ERANGE;
		value = value * 10 + digit;
	}
	if (value > max)
		return -ERANGE;
	*ret_value = value;
	return 0;
}

const char *kvt_age_text(uint64_t ns, char *buffer, size_t bytes)
{
	double s = (double)ns / 1e9;

	if (s < 1e-3)
		snprintf(buffer, bytes, "%.0f us", s * 1e6);
	else if (s < 1)
		snprintf(buffer, bytes, "%.0f ms", s * 1e3);
	else if (s < 120)
		snprintf(buffer, bytes, "%.1f s", s);
	else if (s < 7200)
		snprintf(buffer, bytes, "%.0f min", s / 60);
	else
		snprintf(buffer, bytes, "%.1f h", s / 3600);
	return buffer;
}

const char *kvt_rate_text(uint64_t part, uint64_t all, char *buffer, size_t bytes)
{
	if (all)
		snprintf(buffer, bytes, "%.1f %%", kvt_percent(part, all));
	else
		snprintf(buffer, bytes, "-");
	return buffer;
}

const char *kvt_size_text(uint64_t size_bytes, char *buffer, size_t bytes)
{
	static const char *const units[] = { "B", "KiB", "MiB", "GiB", "TiB", "PiB" };
	double size = (double)size_bytes;
	size_t unit = 0;

	while (size >= 1024 && unit + 1 < sizeof(units) / sizeof(units[0])) {
		size /= 1024;
		unit++;
	}
	snprintf(buffer, bytes, unit && size < 100 ? "%.1f %s" : "%.0f %s", size, units[unit]);
	return buffer;
}
