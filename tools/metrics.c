/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A status as Prometheus text (metrics.h). Callers: kvtctl metrics, kvtmetricsd. Names, help and
 * order come from two tables; docs/metrics.md lists them, and a test compares both.
 */

#include "base/counts.h"
#include "base/path.h"
#include "base/store.h"
#include "base/text.h"
#include "kvtrunk_wire_admin.h"
#include "kvtrunk_wire_arena.h"
#include "shm/clock.h"
#include "tools/metrics.h"
#include "tools/records.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NOTHING UINT64_MAX /* the value of what did not happen */

enum metric_kind { GAUGE, COUNTER };
#define SUFFIX_GAUGE ""
#define SUFFIX_COUNTER "_total"
#define TYPE_GAUGE "gauge"
#define TYPE_COUNTER "counter"

/* Values of a status beside struct kvt_counters: X(kind, name, value, meaning). Names follow the
 * rules of KVT_COUNTERS. */
#define STATUS_METRICS(X)                                                                         \
	X(GAUGE, uptime_ns, status->now_ns - status->started_ns, "Age of the daemon's process.")  \
	X(GAUGE, cache_age_ns, status->now_ns - status->cache_started_ns,                         \
	  "Age of the cache, which a restart may keep.")                                          \
	X(GAUGE, epoch, status->epoch, "Rises whenever everything cached became invalid.")        \
	X(GAUGE, draining, status->draining, "1 while the daemon stops.")                         \
	X(GAUGE, caching_disabled, status->disabled, "1 with caching = no.")                      \
	X(GAUGE, page_size_positions, status->page_size, "Positions of a page.")                  \
	X(GAUGE, usable_pages, status->n_pages - 1, "Pages of the pool that can be used.")        \
	X(GAUGE, max_nodes, status->max_nodes, "Most tree nodes.")                                \
	X(GAUGE, page_bytes, status->page_bytes, "Bytes of a page in one slab.")                  \
	X(GAUGE, pool_bytes, status->pool_bytes, "Bytes of one slab of the pool.")                \
	X(GAUGE, arena_bytes, status->arena_bytes, "Bytes of the tree and the page records.")     \
	X(GAUGE, ledger_bytes, status->ledger_bytes, "Bytes of the daemon's own records.")        \
	X(GAUGE, path_nodes_p50, status->path_nodes_p50, "Nodes of a matched path, median.")      \
	X(GAUGE, path_nodes_p99, status->path_nodes_p99, "Nodes of a matched path, 99 %.")        \
	X(GAUGE, stale_leases, status->stale_locks, "Leases that can never commit any more.")     \
	X(GAUGE, oldest_lease_age_ns, status->oldest_lease_age_ns, "Age of the oldest lease.")    \
	X(COUNTER, turns, status->turns, "Turns of the daemon's loop.")                           \
	X(COUNTER, spins, status->spins, "Turns that found nothing to do.")                       \
	X(COUNTER, sleeps, status->sleeps, "Times that the daemon slept.")                        \
	X(COUNTER, connections, status->accepted_connections, "Connections accepted.")            \
	X(COUNTER, refused_connections, status->refused_connections, "Connections refused.")      \
	X(COUNTER, log_lines_dropped, status->log_lines_dropped,                                  \
	  "Log lines dropped: stderr was full.")

/* Values of a namespace: X(kind, name, value, meaning). */
#define NAMESPACE_METRICS(X)                                                                      \
	X(GAUGE, cached_pages, space->cached_pages, "Pages that a namespace has in the tree.")    \
	X(GAUGE, protected_pages, space->protected_pages, "Of these: under a lock.")              \
	X(GAUGE, limit_pages, (uint64_t)space->limit,                                             \
	  "Cached pages that a namespace may have before others; 0: no limit.")                   \
	X(COUNTER, input_positions, space->tally.input_positions,                                 \
	  "Positions asked for in a namespace (keys of BEGIN).")                                  \
	X(COUNTER, hit_positions, space->tally.hit_positions,                                     \
	  "Positions of a namespace that needed no prefill.")                                     \
	X(COUNTER, inserted_pages, space->tally.inserted_pages,                                   \
	  "Pages of a namespace that became cached.")                                             \
	X(COUNTER, refusals, kvt_refused_all(space->tally.refused),                               \
	  "Attempts refused in a namespace.")

/* Values are exact: seconds are written from nanoseconds digit by digit. */
static void print_seconds(struct kvt_text *text, uint64_t ns)
{
	kvt_text_print(text, "%" PRIu64 ".%09u", ns / 1000000000, (unsigned int)(ns % 1000000000));
}

static void print_head(struct kvt_text *text, const char *name, const char *type,
		       const char *help)
{
	kvt_text_print(text, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static void print_metric(struct kvt_text *text, enum metric_kind kind, const char *prefix,
			 const char *field, uint64_t value, const char *help)
{
	size_t n = strlen(field);
	bool seconds = n > 3 && strcmp(field + n - 3, "_ns") == 0;
	char name[96];

	snprintf(name, sizeof(name), "kvtrunk_%s%.*s%s%s", prefix, (int)(seconds ? n - 3 : n),
		 field, seconds ? "_seconds" : "", kind == COUNTER ? "_total" : "");
	print_head(text, name, kind == COUNTER ? "counter" : "gauge", help);
	kvt_text_print(text, "%s ", name);
	if (value == NOTHING)
		kvt_text_print(text, "NaN");
	else if (seconds)
		print_seconds(text, value);
	else
		kvt_text_print(text, "%" PRIu64, value);
	kvt_text_add(text, "\n", 1);
}

/* Escape for double quotes. Drop what is not ASCII: a fingerprint must not break the encoding. */
static void print_label(struct kvt_text *text, const char *value, size_t max)
{
	for (size_t i = 0; i < max && value[i]; i++) {
		unsigned char c = (unsigned char)value[i];

		if (c == '"' || c == '\\')
			kvt_text_print(text, "\\%c", c);
		else if (c >= 0x20 && c < 0x7f)
			kvt_text_add(text, value + i, 1);
	}
}

static void print_info(struct kvt_text *text, const struct kvt_admin_status *status)
{
	print_head(text, "kvtrunk_info", "gauge", "Always 1: the labels say what is served.");
	kvt_text_print(text, "kvtrunk_info{version=\"%s\",backend=\"%s\",policy=\"%s\","
		       "fingerprint=\"", kvt_version(), kvt_backend_text(status->backend),
		       kvt_policy_text(status->policy));
	print_label(text, status->fingerprint, sizeof(status->fingerprint));
	kvt_text_print(text, "\"} 1\n");
}

/* Bucket i counts times below 1 << (shift + i) ns, the last of n all longer times. `op` NULL: it
 * has no label. */
static void print_histogram(struct kvt_text *text, const char *name, const char *op,
			    const uint64_t *buckets, unsigned int n, unsigned int shift,
			    uint64_t sum_ns)
{
	char label[48] = "", only[50] = "";
	uint64_t below = 0;

	if (op) {
		snprintf(label, sizeof(label), "op=\"%s\",", op);
		snprintf(only, sizeof(only), "{op=\"%s\"}", op);
	}
	for (unsigned int i = 0; i < n; i++) {
		below += buckets[i];
		kvt_text_print(text, "%s_bucket{%sle=\"", name, label);
		if (i == n - 1)
			kvt_text_print(text, "+Inf");
		else
			print_seconds(text, 1ull << (shift + i));
		kvt_text_print(text, "\"} %" PRIu64 "\n", below);
	}
	kvt_text_print(text, "%s_sum%s ", name, only);
	print_seconds(text, sum_ns);
	kvt_text_print(text, "\n%s_count%s %" PRIu64 "\n", name, only, below);
}

static void print_operation(struct kvt_text *text, const struct kvt_admin_status *status, int op)
{
	print_histogram(text, "kvtrunk_operation_duration_seconds", kvt_op_name(op),
			status->op_histogram[op], KVT_HISTOGRAM_BUCKETS,
			KVT_HISTOGRAM_SHIFT, status->op_ns[op]);
}

static void print_store_time(struct kvt_text *text, const char *field,
			     const struct kvt_store_time *time, const char *help)
{
	char name[96];

	snprintf(name, sizeof(name), "kvtrunk_store_%s_seconds", field);
	print_head(text, name, "histogram", help);
	print_histogram(text, name, NULL, time->buckets, KVT_STORE_TIME_BUCKETS,
			KVT_STORE_TIME_SHIFT, time->sum_ns);
}

static void print_refused(struct kvt_text *text, const struct kvt_admin_status *status)
{
	print_head(text, "kvtrunk_refused_total", "counter",
		   "Attempts refused, by reason: no room, or a limit.");
	for (uint32_t row = 0; row < KVT_REFUSAL_COUNT; row++)
		kvt_text_print(text, "kvtrunk_refused_total{reason=\"%s\"} %" PRIu64 "\n",
			       kvt_refusal_text(row), status->refused[row]);
}

static void print_starts(struct kvt_text *text, const struct kvt_starts *starts)
{
	print_head(text, "kvtrunk_starts_total", "counter",
		   "Starts of the daemon, counted again from 1 where no earlier cache is left: "
		   "adopted, the cache was kept; cold, with the cause.");
	kvt_text_print(text, "kvtrunk_starts_total{kind=\"adopted\",cause=\"\"} %" PRIu64 "\n",
		       starts->adopted);
#define PRINT_COLD(NAME, name, meaning)                                                           \
	kvt_text_print(text, "kvtrunk_starts_total{kind=\"cold\",cause=\"" #name "\"} %" PRIu64   \
		       "\n", starts->cold[KVT_COLD_##NAME]);
	KVT_COLD_CAUSES(PRINT_COLD)
#undef PRINT_COLD
}

static void print_up(struct kvt_text *text, int up)
{
	print_head(text, "kvtrunk_up", "gauge", "1 if the daemon answered.");
	kvt_text_print(text, "kvtrunk_up %d\n", up);
}

void kvt_metrics_print(struct kvt_text *text, const struct kvt_admin_status *status)
{
	struct kvt_counters counters = status->counters;

	if (counters.evicted_pages == 0)
		counters.victim_age_ns = NOTHING;
	print_up(text, 1);
	print_info(text, status);
#define PRINT_COUNTER(kind, name, help) print_metric(text, kind, "", #name, counters.name, help);
	KVT_COUNTERS(PRINT_COUNTER)
#undef PRINT_COUNTER
#define PRINT_STATUS(kind, name, value, help) print_metric(text, kind, "", #name, value, help);
	STATUS_METRICS(PRINT_STATUS)
#undef PRINT_STATUS
	print_refused(text, status);
	print_starts(text, &status->starts);
	print_head(text, "kvtrunk_operation_duration_seconds", "histogram",
		   "Time of an operation inside the daemon.");
	for (int op = 0; op < KVT_OP_COUNT; op++)
		print_operation(text, status, op);
}

static int most_cached_first(const void *a, const void *b)
{
	const struct kvt_admin_namespace *one = a, *other = b;

	if (one->cached_pages != other->cached_pages)
		return one->cached_pages > other->cached_pages ? -1 : 1;
	return memcmp(one->digest, other->digest, sizeof(one->digest));
}

/* Append the metrics of the first n namespaces. */
static void print_namespaces(struct kvt_text *text, const struct kvt_admin_namespace *spaces,
			     uint32_t n)
{
#define PRINT_NAMESPACES(kind, name, value, help)                                                 \
	print_head(text, "kvtrunk_namespace_" #name SUFFIX_##kind, TYPE_##kind, help);            \
	for (uint32_t i = 0; i < n; i++) {                                                        \
		const struct kvt_admin_namespace *space = &spaces[i];                             \
		kvt_text_print(text, "kvtrunk_namespace_" #name SUFFIX_##kind                     \
			       "{namespace=\"%016" PRIx64 "%016" PRIx64 "\",label=\"",            \
			       space->digest[0], space->digest[1]);                               \
		print_label(text, space->label, sizeof(space->label));                            \
		kvt_text_print(text, "\"} %" PRIu64 "\n", value);                                 \
	}
	NAMESPACE_METRICS(PRINT_NAMESPACES)
#undef PRINT_NAMESPACES
}

/* Ask for the namespaces, and append the metrics of those with most cached pages. */
static int add_namespaces(struct kvt_text *text, struct kvt_client *client, uint32_t most,
			  struct kvt_error *ret_error)
{
	struct kvt_admin_namespace *spaces;
	void *records;
	uint32_t n;
	int rc = kvt_records_read(client, KVT_ADMIN_NAMESPACES, sizeof(*spaces), &records, &n);

	if (rc) {
		*ret_error = *kvt_client_error(client);
		return rc;
	}
	spaces = records;
	if (n > 0)
		qsort(spaces, n, sizeof(*spaces), most_cached_first);
	print_metric(text, GAUGE, "", "namespaces_left_out", n > most ? n - most : 0,
		     "Namespaces without series: others have more cached pages.");
	print_namespaces(text, spaces, n < most ? n : most);
	free(records);
	return 0;
}

void kvt_metrics_print_store(struct kvt_text *text, const char *socket_path, int64_t timeout_ns)
{
	struct kvt_store_seen seen;
	char path[KVT_STORE_PATH_BYTES];
	struct kvt_error error;
	int rc = kvt_store_path(kvt_daemon_path(socket_path), path);

	if (rc == 0)
		rc = kvt_store_ask(path, KVT_STORE_STATUS, timeout_ns, &seen, &error);
	if (rc == -ENOENT || rc == -ENAMETOOLONG)
		return;
	print_metric(text, GAUGE, "store_", "up", rc == 0, "1 if the store answered.");
	if (rc != 0)
		return;
#define PRINT_STORE(kind, name, help)                                                             \
	print_metric(text, kind, "store_", #name, seen.status.name, help);
	KVT_STORE_COUNTS(PRINT_STORE)
#undef PRINT_STORE
#define PRINT_TIME(name, help) print_store_time(text, #name, &seen.status.name##_time, help);
	KVT_STORE_TIMES(PRINT_TIME)
#undef PRINT_TIME
}

void kvt_metrics_print_down(struct kvt_text *text)
{
	print_up(text, 0);
}

int kvt_metrics_scrape(struct kvt_text *text, const char *socket_path, uint32_t per_namespace,
		       int64_t timeout_ns, struct kvt_error *ret_error)
{
	struct kvt_text spaces = { 0 };
	struct kvt_admin_status status;
	struct kvt_client *client;
	int64_t until_ns = kvt_now_ns() + timeout_ns;
	int rc = kvt_observe(socket_path, "metrics", timeout_ns, &client, ret_error);

	if (rc)
		return rc;
	rc = kvt_status_read(client, &status, ret_error);
	if (rc == 0 && per_namespace > 0)
		rc = add_namespaces(&spaces, client, per_namespace, ret_error);
	if (rc == 0) {
		kvt_metrics_print(text, &status);
		if (spaces.used)
			kvt_text_add(text, spaces.bytes, spaces.used);
	}
	kvt_text_free(&spaces);
	kvt_client_abandon(client);
	if (rc == 0)
		kvt_metrics_print_store(text, socket_path, until_ns - kvt_now_ns());
	return rc;
}
