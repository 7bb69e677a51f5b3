/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_SHM_NEAREST_H
#define KVT_SHM_NEAREST_H

/**
 * @file nearest.h
 * "Did you mean": the distance between what was typed and a name that exists.
 */

#include <stddef.h>

/** Names further away are no typing errors. */
#define KVT_NEAREST_MOST 2u

/** Edit distance: characters to insert, delete or change. For names of 63 characters or more, their
 * length. */
static inline size_t kvt_edit_distance(const char *a, const char *b)
{
	size_t row[64], n = 0;

	while (b[n])
		n++;
	if (n >= 63)
		return n;
	for (size_t j = 0; j <= n; j++)
		row[j] = j;
	for (size_t i = 1; a[i - 1]; i++) {
		size_t diagonal = row[0];

		row[0] = i;
		for (size_t j = 1; j <= n; j++) {
			size_t change = diagonal + (a[i - 1] != b[j - 1]);
			size_t best = row[j] + 1 < row[j - 1] + 1 ? row[j] + 1 : row[j - 1] + 1;

			diagonal = row[j];
			row[j] = change < best ? change : best;
		}
	}
	return row[n];
}

#endif
