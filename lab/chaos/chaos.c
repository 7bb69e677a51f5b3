/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file chaos.c
 * State shared by rounds and actions: seeded choices, the first error, times.
 */
#include "lab/chaos/chaos.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

uint32_t chaos_draw(struct chaos *chaos, uint32_t n)
{
	chaos->random = kvt_trace_mix(chaos->random);
	return (uint32_t)(chaos->random % n);
}

void chaos_wrong(struct chaos *chaos, const char *format, ...)
{
	va_list arguments;

	if (*chaos->wrong)
		return;
	va_start(arguments, format);
	vsnprintf(chaos->wrong, sizeof(chaos->wrong), format, arguments);
	va_end(arguments);
	fprintf(stderr, "chaos: wrong: %s\n", chaos->wrong); /* reading the log takes long */
}

void chaos_times_add(struct chaos_times *times, int64_t ns)
{
	if (times->n == times->capacity) {
		uint32_t capacity = times->capacity * 2 + 64;
		int64_t *larger = realloc(times->ns, capacity * sizeof(*larger));

		if (!larger)
			abort();
		times->ns = larger;
		times->capacity = capacity;
	}
	times->ns[times->n++] = ns;
}

static int compare_times(const void *a, const void *b)
{
	int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

	return (x > y) - (x < y);
}

double chaos_times_ms(struct chaos_times *times, double part)
{
	uint32_t at = (uint32_t)(part * times->n);

	if (!times->n)
		return 0;
	qsort(times->ns, times->n, sizeof(*times->ns), compare_times);
	return (double)times->ns[at < times->n ? at : times->n - 1] / 1e6;
}
