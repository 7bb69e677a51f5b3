/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_BASE_LIST_H
#define KVT_BASE_LIST_H

/**
 * @file list.h
 * Lists of numbers: 1,2,5..9,7x100.
 */

#include <stddef.h>
#include <stdint.h>

/** One item: N, N..M, or NxTIMES. */
struct kvt_run {
	uint32_t first;
	uint32_t last;   /* inclusive */
	uint32_t repeat; /* above 1 only if first == last */
};

/** Read one item. `name` opens the message in `why`. -EINVAL. */
int kvt_run_parse(const char *name, const char *item, size_t bytes, struct kvt_run *ret_run,
		  char *why, size_t why_bytes);
/** Read a comma list of at most `max_keys` keys; an empty text is an empty list. The caller frees
 * *ret_keys. -EINVAL with a sentence in `why`. */
int kvt_keys_parse(const char *text, size_t bytes, uint32_t max_keys, uint32_t **ret_keys,
		   uint32_t *ret_n_keys, char *why, size_t why_bytes);

#endif
