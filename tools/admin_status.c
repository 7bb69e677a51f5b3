/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvtctl status, pid, metrics: one STATUS request, as text or JSON. Caller: kvtctl.c.
 */

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/counts.h"
#include "base/exit.h"
#include "base/json.h"
#include "base/number.h"
#include "base/text.h"
#include "kvtrunk_client.h"
#include "kvtrunk_wire_admin.h"
#include "shm/geometry.h"
#include "shm/size.h"
#include "tools/admin.h"
#include "tools/metrics.h"
#include "tools/records.h"

/* Omitted if the daemon knows page_bytes only. */
static void status_geometry(struct kvt_json *json, const struct kvt_pool_geometry *geometry)
{
	if (!geometry->n_layers)
		return;
	kvt_json_open(json, "geometry", '{');
	kvt_json_u64(json, "n_layers", geometry->n_layers);
	kvt_json_u64(json, "n_kv_heads", geometry->n_kv_heads);
	kvt_json_u64(json, "head_dim", geometry->head_dim);
	kvt_json_string(json, "kv_type", kvt_element_name(geometry->type));
	kvt_json_string(json, "kv_layout", kvt_page_layout_name(geometry->layout));
	kvt_json_string(json, "kv_order", kvt_page_order_name(geometry->order));
	kvt_json_close(json, '}');
}

static const char *event_loop_text(uint32_t event_loop)
{
	static const char *const names[] = { "unknown", "io_uring", "epoll" };

	return event_loop < sizeof(names) / sizeof(names[0]) ? names[event_loop] : names[0];
}

static void status_identity(struct kvt_json *json, const struct kvt_admin_status *status)
{
	kvt_json_string(json, "version", status->version);
	kvt_json_string(json, "instance_name", status->instance_name);
	kvt_json_string(json, "socket", status->socket_path);
	kvt_json_i64(json, "daemon_pid", status->daemon_pid);
	kvt_json_i64(json, "nice", status->nice);
	kvt_json_string(json, "event_loop", event_loop_text(status->event_loop));
	if (status->log_error)
		kvt_json_string(json, "log_error", strerror(-status->log_error));
	kvt_json_format(json, "instance", "%016llx%016llx",
			(unsigned long long)status->instance[0],
			(unsigned long long)status->instance[1]);
	kvt_json_string(json, "fingerprint", status->fingerprint);
	kvt_json_u64(json, "epoch", status->epoch);
	kvt_json_string(json, "policy", kvt_policy_text(status->policy));
	kvt_json_string(json, "backend", kvt_backend_text(status->backend));
	kvt_json_bool(json, "disabled", status->disabled);
	kvt_json_bool(json, "draining", status->draining);
	kvt_json_u64(json, "page_size", status->page_size);
	kvt_json_u64(json, "n_pages", status->n_pages);
	kvt_json_u64(json, "n_slots", status->n_slots);
	kvt_json_u64(json, "max_nodes", status->max_nodes);
	kvt_json_u64(json, "page_bytes", status->page_bytes);
	kvt_json_u64(json, "pool_bytes", status->pool_bytes);
	kvt_json_u64(json, "n_slabs", status->n_slabs);
	status_geometry(json, &status->geometry);
	kvt_json_u64(json, "arena_bytes", status->arena_bytes);
	kvt_json_u64(json, "ledger_bytes", status->ledger_bytes);
	kvt_json_seconds(json, "uptime_s", status->now_ns - status->started_ns);
	kvt_json_seconds(json, "cache_age_s", status->now_ns - status->cache_started_ns);
	kvt_json_open(json, "starts", '{');
	kvt_json_u64(json, "adopted", status->starts.adopted);
#define PUT_COLD(NAME, name, meaning)                                                             \
	kvt_json_u64(json, #name, status->starts.cold[KVT_COLD_##NAME]);
	KVT_COLD_CAUSES(PUT_COLD)
#undef PUT_COLD
	kvt_json_close(json, '}');
}

static void status_operations(struct kvt_json *json, const struct kvt_admin_status *status)
{
	kvt_json_open(json, "operations_by_kind", '{');
	for (int op = 0; op < KVT_OP_COUNT; op++) {
		if (!status->op_count[op])
			continue;
		kvt_json_open(json, kvt_op_name(op), '{');
		kvt_json_u64(json, "count", status->op_count[op]);
		kvt_json_u64(json, "p50_ns", kvt_histogram_ns(status->op_histogram[op], 0.5));
		kvt_json_u64(json, "p99_ns", kvt_histogram_ns(status->op_histogram[op], 0.99));
		kvt_json_open(json, "histogram_64ns_log2", '[');
		for (unsigned int i = 0; i < KVT_HISTOGRAM_BUCKETS; i++)
			kvt_json_u64(json, NULL, status->op_histogram[op][i]);
		kvt_json_close(json, ']');
		kvt_json_close(json, '}');
	}
	kvt_json_close(json, '}');
}

static int status_json(const struct kvt_admin_status *status)
{
	struct kvt_json json = { .comma = false };

	kvt_json_open(&json, NULL, '{');
	status_identity(&json, status);
	kvt_json_open(&json, "counters", '{');
	kvt_json_counters(&json, &status->counters);
	kvt_json_close(&json, '}');
	kvt_json_rate(&json, "hit_rate", status->counters.hit_positions,
		      status->counters.input_positions);
	kvt_json_refused(&json, "refused", status->refused);
	kvt_json_u64(&json, "refused_connections", status->refused_connections);
	kvt_json_u64(&json, "nodes_per_path_p50", status->path_nodes_p50);
	kvt_json_u64(&json, "nodes_per_path_p99", status->path_nodes_p99);
	kvt_json_u64(&json, "stale_locks", status->stale_locks);
	kvt_json_u64(&json, "oldest_lease", status->oldest_lease);
	kvt_json_u64(&json, "oldest_lease_session", status->oldest_lease_session);
	kvt_json_seconds(&json, "oldest_lease_age_s", status->oldest_lease_age_ns);
	kvt_json_u64(&json, "turns", status->turns);
	kvt_json_u64(&json, "spins", status->spins);
	kvt_json_u64(&json, "sleeps", status->sleeps);
	status_operations(&json, status);
	kvt_json_close(&json, '}');
	return kvt_admin_print(&json);
}

static void status_pages_text(const struct kvt_admin_status *status)
{
	const struct kvt_counters *counters = &status->counters;
	const struct {
		const char *name;
		uint64_t pages;
	} rows[] = {
		{ "free", counters->free_pages },
		{ "private", counters->private_pages },
		{ "cached", counters->cached_pages },
		{ "  evictable", counters->evictable_pages },
		{ "  protected", counters->protected_pages },
		{ "quarantined", counters->quarantined_pages },
		{ "cached sides", counters->side_pages },
	};
	size_t n_rows = sizeof(rows) / sizeof(rows[0]) - (counters->side_pages == 0);
	double all = status->n_pages > 1 ? status->n_pages - 1 : 1;

	printf("pages\n");
	for (size_t i = 0; i < n_rows; i++)
		printf("  %-14s %12llu  %5.1f %%\n", rows[i].name,
		       (unsigned long long)rows[i].pages, 100 * (double)rows[i].pages / all);
}

static void status_operations_text(const struct kvt_admin_status *status)
{
	char half[32], most[32];

	printf("operations          count      p50      p99   (inside the daemon, at most)\n");
	for (int op = 0; op < KVT_OP_COUNT; op++) {
		if (!status->op_count[op])
			continue;
		printf("  %-10s %12llu %8s %8s\n", kvt_op_name(op),
		       (unsigned long long)status->op_count[op],
		       kvt_age_text(kvt_histogram_ns(status->op_histogram[op], 0.5), half,
				    sizeof(half)),
		       kvt_age_text(kvt_histogram_ns(status->op_histogram[op], 0.99), most,
				    sizeof(most)));
	}
}

static void status_hits_text(const struct kvt_admin_status *status)
{
	const struct kvt_counters *counters = &status->counters;
	char rate[32], refused[256];

	printf("hits\n  %llu of %llu position%s (%s), %llu of them computed by another session, "
	       "%llu more by looking on\n", (unsigned long long)counters->hit_positions,
	       (unsigned long long)counters->input_positions,
	       kvt_plural(counters->input_positions),
	       kvt_rate_text(counters->hit_positions, counters->input_positions, rate,
			     sizeof(rate)),
	       (unsigned long long)counters->shared_hit_positions,
	       (unsigned long long)counters->advanced_positions);
	printf("refused\n  %s attempt%s%s\n",
	       kvt_refused_text(status->refused, refused, sizeof(refused)),
	       kvt_plural(kvt_refused_all(status->refused)),
	       counters->refusals ? "; positions of what was refused are in no rate" : "");
	printf("  %llu connection%s since this process began%s\n",
	       (unsigned long long)status->refused_connections,
	       kvt_plural(status->refused_connections),
	       status->refused_connections ? ": its log says whose and why" : "");
}

/* A daemon that ends each minute and keeps its cache looks well otherwise. */
static void status_starts_text(const struct kvt_admin_status *status)
{
	static const char *const meanings[] = {
#define MEANING(NAME, name, meaning) [KVT_COLD_##NAME] = meaning,
		KVT_COLD_CAUSES(MEANING)
#undef MEANING
	};
	char age[32];

	printf("cache %s old; starts: %llu that kept it",
	       kvt_age_text(status->now_ns - status->cache_started_ns, age, sizeof(age)),
	       (unsigned long long)status->starts.adopted);
	for (uint32_t i = 0; i < KVT_COLD_COUNT; i++)
		if (status->starts.cold[i])
			printf(", %llu cold (%s)", (unsigned long long)status->starts.cold[i],
			       meanings[i]);
	printf("; counted from the last that found no cache\n");
}

static void status_text(const struct kvt_admin_status *status)
{
	const struct kvt_counters *counters = &status->counters;
	/* An operation may need two, and frees as many before it begins. */
	uint32_t spare = status->max_nodes < 40 ? 2 : status->max_nodes / 20;
	char first[32], second[32], third[32], fourth[32];

	printf("kvtrunkd %s, instance %s, pid %d, nice %d, %s, on %s, epoch %llu, up %s%s%s\n",
	       status->version, status->instance_name, status->daemon_pid, status->nice,
	       event_loop_text(status->event_loop), status->socket_path,
	       (unsigned long long)status->epoch,
	       kvt_age_text(status->now_ns - status->started_ns, first, sizeof(first)),
	       status->disabled ? ", caching disabled" : "", status->draining ? ", draining" : "");
	status_starts_text(status);
	if (status->log_error)
		printf("the operation log ended early: %s\n", strerror(-status->log_error));
	printf("%u pages of %u position%s and %s in a %s pool of %u x %s; arena %s, ledger %s; "
	       "policy %s\n",
	       status->n_pages, status->page_size, kvt_plural(status->page_size),
	       kvt_size_text(status->page_bytes, first, sizeof(first)),
	       kvt_backend_text(status->backend), status->n_slabs,
	       kvt_size_text(status->pool_bytes, second, sizeof(second)),
	       kvt_size_text(status->arena_bytes, third, sizeof(third)),
	       kvt_size_text(status->ledger_bytes, fourth, sizeof(fourth)),
	       kvt_policy_text(status->policy));
	if (status->fingerprint[0])
		printf("geometry %s\n", status->fingerprint);
	status_pages_text(status);
	printf("tree\n  %llu of %u nodes, %llu locked, %llu namespace%s; nodes per path: p50 %u, "
	       "p99 %u\n", (unsigned long long)counters->live_nodes, status->max_nodes,
	       (unsigned long long)counters->locked_nodes,
	       (unsigned long long)counters->live_namespaces,
	       kvt_plural(counters->live_namespaces), status->path_nodes_p50,
	       status->path_nodes_p99);
	if (counters->live_nodes + spare >= status->max_nodes)
		printf("  OUT OF NODES: leaves are evicted for nodes, and pages stay unused: raise "
		       "max_nodes\n");
	printf("sessions\n  %llu session%s, %llu lease%s, %llu of them stale (can never commit)",
	       (unsigned long long)counters->live_sessions,
	       kvt_plural(counters->live_sessions), (unsigned long long)counters->live_leases,
	       kvt_plural(counters->live_leases),
	       (unsigned long long)status->stale_locks);
	if (status->oldest_lease)
		printf("; the oldest: lease %u of session %u, %s", status->oldest_lease,
		       status->oldest_lease_session,
		       kvt_age_text(status->oldest_lease_age_ns, first, sizeof(first)));
	printf("\n");
	status_hits_text(status);
	printf("gone\n  %llu page%s evicted, %llu expired, %llu removed, %llu reset",
	       (unsigned long long)counters->evicted_pages, kvt_plural(counters->evicted_pages),
	       (unsigned long long)counters->expired_pages,
	       (unsigned long long)counters->removed_pages,
	       (unsigned long long)counters->reset_pages);
	if (counters->suspected_pages)
		printf("; %llu report%s of pages with other KV than computed (kvtctl clients)",
		       (unsigned long long)counters->suspected_pages,
		       kvt_plural(counters->suspected_pages));
	printf("\n");
	printf("prefill once\n  %llu position%s not computed twice; %llu wait%s, %s in all, %llu "
	       "taken over, %llu deadline%s missed\n",
	       (unsigned long long)counters->coalesced_positions,
	       kvt_plural(counters->coalesced_positions), (unsigned long long)counters->waits,
	       kvt_plural(counters->waits),
	       kvt_age_text(counters->wait_ns, first, sizeof(first)),
	       (unsigned long long)counters->takeovers,
	       (unsigned long long)counters->deadline_misses,
	       kvt_plural(counters->deadline_misses));
	status_operations_text(status);
}

/* Get the status for a command without arguments. Returns an exit code. */
static int ask_status(struct kvt_admin *admin, struct kvt_admin_status *ret_status)
{
	struct kvt_message_admin request = { .what = KVT_ADMIN_STATUS };
	int rc;

	if (kvt_admin_words(admin, NULL, NULL, 0))
		return KVT_EXIT_USAGE;
	rc = kvt_admin_ask(admin, &request, ret_status, sizeof(*ret_status));
	return rc < 1 ? kvt_admin_exit(admin, rc) : KVT_EXIT_OK;
}

int kvt_admin_status(struct kvt_admin *admin)
{
	struct kvt_admin_status status;
	int rc = ask_status(admin, &status);

	if (rc)
		return rc;
	if (admin->json)
		return status_json(&status);
	status_text(&status);
	return KVT_EXIT_OK;
}

int kvt_admin_pid(struct kvt_admin *admin)
{
	struct kvt_admin_status status;
	int rc = ask_status(admin, &status);

	if (!rc)
		printf("%d\n", status.daemon_pid);
	return rc;
}

int kvt_admin_metrics(struct kvt_admin *admin)
{
	struct kvt_admin_status status;
	struct kvt_text text = { 0 };
	int rc = admin->json ? kvt_admin_usage(admin, "it has the text format of Prometheus "
						      "alone: drop --json, or ask for status") :
				  ask_status(admin, &status);

	if (rc)
		return rc;
	kvt_metrics_print(&text, &status);
	kvt_metrics_print_store(&text, admin->socket_path, admin->timeout_ns);
	fwrite(text.bytes, 1, text.used, stdout);
	kvt_text_free(&text);
	return KVT_EXIT_OK;
}
