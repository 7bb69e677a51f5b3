/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVTRUNK_WIRE_COUNTS_H
#define KVTRUNK_WIRE_COUNTS_H

/**
 * @file kvtrunk_wire_counts.h
 * Counters of the daemon beside struct kvt_counters: refusals by reason, starts by kind, times.
 */

#include <stdint.h>

#include "kvtrunk_types.h"

/** The reasons for which an honest operation is refused: no room, or a limit. Each is counted. An
 * attempt that is repeated counts again. */
#define KVT_REFUSALS(X)                                                                           \
	X(ALL_LOCKED)                                                                             \
	X(TOO_LARGE)                                                                              \
	X(SHARE)                                                                                  \
	X(LIMIT_PAGES)                                                                            \
	X(LIMIT_LEASES)                                                                           \
	X(LEASES)                                                                                 \
	X(NODES)                                                                                  \
	X(SLOTS)                                                                                  \
	X(LIMIT_NAMESPACES)                                                                       \
	X(DRAINING)

enum kvt_refusal {
#define KVT_REFUSAL_ROW(REASON) KVT_REFUSAL_##REASON,
	KVT_REFUSALS(KVT_REFUSAL_ROW)
#undef KVT_REFUSAL_ROW
	KVT_REFUSAL_COUNT,
};

/** The row of a reason: enum kvt_refusal, KVT_REFUSAL_COUNT for one that is not counted. */
static inline uint32_t kvt_refusal_of(uint32_t reason)
{
	switch (reason) {
#define KVT_REFUSAL_CASE(REASON)                                                                  \
	case KVT_REASON_##REASON:                                                                 \
		return KVT_REFUSAL_##REASON;
		KVT_REFUSALS(KVT_REFUSAL_CASE)
#undef KVT_REFUSAL_CASE
	default:
		return KVT_REFUSAL_COUNT;
	}
}

/** Counts of what a session, or all in a namespace, asked for and got since it was opened. Refusals
 * of openings, of END and of operations without a namespace (ALLOC, LOCK) are the session's
 * alone. */
struct kvt_tally {
	uint64_t input_positions; /* keys of BEGIN */
	uint64_t hit_positions;   /* of these: needed no prefill */
	uint64_t inserted_pages;  /* main pages that became cached */
	uint64_t refused[KVT_REFUSAL_COUNT];
};

/** Why a daemon started with an empty cache: X(NAME, name, meaning). */
#define KVT_COLD_CAUSES(X)                                                                        \
	X(FIRST, first, "no cache was left: the first start, or no keeper")                       \
	X(DROPPED, dropped, "the keeper has dropped the cache")                                   \
	X(CHANGED, changed, "the program, its options or the boot are others")                    \
	X(DAMAGED, damaged, "its facts contradicted each other")                                  \
	X(FAILED, failed, "it could not be taken over")

enum kvt_cold_cause {
#define KVT_COLD_ROW(NAME, name, text) KVT_COLD_##NAME,
	KVT_COLD_CAUSES(KVT_COLD_ROW)
#undef KVT_COLD_ROW
	KVT_COLD_COUNT,
};

/** Starts of the daemon, counted as long as a cache is left that tells of earlier ones. */
struct kvt_starts {
	uint64_t adopted; /* the cache was kept */
	uint64_t cold[KVT_COLD_COUNT];
};

/* Histograms of times: */
#define KVT_HISTOGRAM_BUCKETS 24
#define KVT_HISTOGRAM_SHIFT 6 /* powers of two of 64 ns: 64 ns .. 0.5 s */

#endif
