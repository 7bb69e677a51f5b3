/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_DAEMON_KEEP_BACKOFF_H
#define KVT_DAEMON_KEEP_BACKOFF_H

#include <stdint.h>

/** Exponential backoff after `failures` failures in a row: `first_ns`, doubled with each further
 * one up to `most_ns`; 0 without a failure. */
static inline uint64_t kvt_backoff_ns(uint32_t failures, uint64_t first_ns, uint64_t most_ns)
{
	uint64_t pause = first_ns;

	if (!failures)
		return 0;
	while (--failures && pause < most_ns)
		pause *= 2;
	return pause < most_ns ? pause : most_ns;
}

#endif
