/* SPDX-License-Identifier: Apache-2.0 */
#include "base/counts.h"

#include <stdio.h>

#include "base/json.h"
#include "kvtrunk_client.h"
#include "kvtrunk_wire_arena.h"
#include "kvtrunk_wire_counts.h"

const char *kvt_refusal_text(uint32_t row)
{
	static const int reasons[] = {
#define REASON(NAME) [KVT_REFUSAL_##NAME] = KVT_REASON_##NAME,
		KVT_REFUSALS(REASON)
#undef REASON
	};

	return kvt_reason_name(reasons[row]);
}

uint64_t kvt_refused_all(const uint64_t *refused)
{
	uint64_t all = 0;

	for (uint32_t row = 0; row < KVT_REFUSAL_COUNT; row++)
		all += refused[row];
	return all;
}

const char *kvt_refused_text(const uint64_t *refused, char *to, size_t bytes)
{
	const char *between = ": ";
	size_t at = (size_t)snprintf(to, bytes, "%llu",
				     (unsigned long long)kvt_refused_all(refused));

	for (uint32_t row = 0; row < KVT_REFUSAL_COUNT && at < bytes; row++) {
		if (!refused[row])
			continue;
		at += (size_t)snprintf(to + at, bytes - at, "%s%llu %s", between,
				       (unsigned long long)refused[row], kvt_refusal_text(row));
		between = ", ";
	}
	return to;
}

void kvt_json_refused(struct kvt_json *json, const char *name, const uint64_t *refused)
{
	kvt_json_open(json, name, '{');
	for (uint32_t row = 0; row < KVT_REFUSAL_COUNT; row++)
		if (refused[row])
			kvt_json_u64(json, kvt_refusal_text(row), refused[row]);
	kvt_json_close(json, '}');
}

void kvt_json_counters(struct kvt_json *json, const struct kvt_counters *counters)
{
#define PUT(kind, name, text) kvt_json_u64(json, #name, counters->name);
	KVT_COUNTERS(PUT)
#undef PUT
}

uint64_t kvt_quantile_ns(const uint64_t *buckets, unsigned int n, unsigned int shift, double share)
{
	uint64_t total = 0, seen = 0;

	for (unsigned int i = 0; i < n; i++)
		total += buckets[i];
	for (unsigned int i = 0; i < n; i++) {
		seen += buckets[i];
		if (total && (double)seen >= share * (double)total)
			return 1ull << (shift + i);
	}
	return 0;
}
