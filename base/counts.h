/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_BASE_COUNTS_H
#define KVT_BASE_COUNTS_H

/** @file counts.h: what the daemon counts, by name, as text and as JSON. */

#include <stddef.h>
#include <stdint.h>

struct kvt_counters;
struct kvt_json;

/** Return the end of the bucket of n that this share of the times is up to, 0: there are none.
 * Bucket i counts times below 1 << (shift + i) ns. */
uint64_t kvt_quantile_ns(const uint64_t *buckets, unsigned int n, unsigned int shift, double share);

/** "all_locked": the reason of a row of refusals (enum kvt_refusal). */
const char *kvt_refusal_text(uint32_t row);
/** Count all refused attempts. */
uint64_t kvt_refused_all(const uint64_t *refused);
/** Write "12: 7 all_locked, 5 share" of counts by enum kvt_refusal into `to`, which is returned;
 * "0" if nothing was refused. */
const char *kvt_refused_text(const uint64_t *refused, char *to, size_t bytes);
/** Add an object with the reasons that occurred. */
void kvt_json_refused(struct kvt_json *json, const char *name, const uint64_t *refused);

/** Add every counter by name to the open object. */
void kvt_json_counters(struct kvt_json *json, const struct kvt_counters *counters);

#endif
