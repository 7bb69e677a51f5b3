/* SPDX-License-Identifier: Apache-2.0 */
#include "store/scan.h"

#include <stdlib.h>

#include "shm/assert.h"

void kvt_scan_open(struct kvt_scan **open, struct kvt_scan *scan, uint32_t n)
{
	*scan = (struct kvt_scan){ .bits = calloc(n / 64 + 1, sizeof(*scan->bits)), .n = n, .at = 1,
				   .next = *open };
	if (!scan->bits)
		scan->at = n + 1;
	*open = scan;
}

void kvt_scan_close(struct kvt_scan **open, struct kvt_scan *scan)
{
	while (*open != scan) {
		KVT_ASSERT(*open);
		open = &(*open)->next;
	}
	*open = scan->next;
	free(scan->bits);
	*scan = (struct kvt_scan){ .bits = NULL };
}

bool kvt_scan_is_done(const struct kvt_scan *scan)
{
	return scan->at > scan->n;
}

uint32_t kvt_scan_look(struct kvt_scan *scan, uint32_t *looks)
{
	if (kvt_scan_is_done(scan) || *looks == KVT_SCAN_LOOKS)
		return 0;
	++*looks;
	return scan->at++;
}

void kvt_scan_add(const struct kvt_scan *scan, uint32_t entry)
{
	if (scan->bits)
		scan->bits[entry / 64] |= 1ull << entry % 64;
}

void kvt_scan_note(const struct kvt_scan *open, uint32_t entry)
{
	for (; open; open = open->next)
		kvt_scan_add(open, entry);
}

uint32_t kvt_scan_next(const struct kvt_scan *scan, uint32_t entry)
{
	uint64_t word;

	if (entry++ >= scan->n)
		return 0;
	if (!scan->bits)
		return entry;
	word = scan->bits[entry / 64] >> entry % 64;
	if (word)
		return entry + (uint32_t)__builtin_ctzll(word);
	for (uint32_t at = entry / 64 + 1; at <= scan->n / 64; at++)
		if (scan->bits[at])
			return at * 64 + (uint32_t)__builtin_ctzll(scan->bits[at]);
	return 0;
}
