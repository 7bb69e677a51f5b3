/* SPDX-License-Identifier: Apache-2.0 */
#include "base/counts.h"
#include "base/json.h"
#include "base/text.h"
#include "kvtrunk_client.h"
#include "kvtrunk_wire_admin.h"
#include "kvtrunk_wire_arena.h"
#include "tools/records.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- asking */

int kvt_observe(const char *socket_path, const char *label, int64_t timeout_ns,
		struct kvt_client **ret_client, struct kvt_error *ret_error)
{
	struct kvt_options options = KVT_OPTIONS_INIT;

	options.socket_path = socket_path;
	options.label = label;
	options.timeout_ns = timeout_ns;
	options.flags = KVT_HELLO_OBSERVE;
	options.connect_wait_ns = -1;
	return kvt_client_connect(ret_client, &options, ret_error);
}

int kvt_status_read(struct kvt_client *client, struct kvt_admin_status *ret_status,
		    struct kvt_error *ret_error)
{
	struct kvt_message_admin request = { .what = KVT_ADMIN_STATUS };
	struct kvt_admin_status status;
	int rc = kvt_admin(client, &request, NULL, 0, &status, sizeof(status));

	if (rc == 1) {
		*ret_status = status;
		return 0;
	}
	if (rc < 0)
		*ret_error = *kvt_client_error(client);
	else
		snprintf(ret_error->text, sizeof(ret_error->text), "the daemon sent no status");
	return rc < 0 ? rc : -EPROTO;
}

/* ---- reading a table */

int kvt_records_read(struct kvt_client *client, uint32_t what, size_t record_bytes,
		     void **ret_records, uint32_t *ret_n)
{
	struct kvt_message_admin request = { .what = what };
	void *records = kvt_memory_grow(NULL, KVT_MESSAGE_MAX, 1);
	struct kvt_text all = { 0 };
	uint64_t before;
	int rc;

	/* An answer may be empty and still have a successor. */
	do {
		before = request.cursor;
		rc = kvt_admin(client, &request, NULL, 0, records, KVT_MESSAGE_MAX);
		if (rc > 0 && request.record_bytes != record_bytes)
			rc = -EPROTO;
		if (rc > 0)
			kvt_text_add(&all, records, (size_t)rc * record_bytes);
	} while (rc >= 0 && request.cursor > before);
	free(records);
	if (rc < 0) {
		kvt_text_free(&all);
		return rc;
	}
	*ret_n = (uint32_t)(all.used / record_bytes);
	*ret_records = all.bytes;
	return 0;
}

/* ---- what records say */

const char *kvt_policy_text(uint32_t policy)
{
	static const char *const names[KVT_POLICY_COUNT] = { "lru",  "slru", "lfu",     "fifo",
							     "filo", "mru",  "priority" };

	return policy < KVT_POLICY_COUNT ? names[policy] : "unknown";
}

const char *kvt_backend_text(uint32_t backend)
{
	static const char *const names[] = { "host", "cuda-ipc", "cuda-vmm" };

	return backend < sizeof(names) / sizeof(names[0]) ? names[backend] : "unknown";
}

const char *kvt_session_state_text(uint32_t state)
{
	static const char *const names[] = { "free", "open", "closing", "dying", "dead" };

	return state < sizeof(names) / sizeof(names[0]) ? names[state] : "unknown";
}

static void put_tally(struct kvt_json *json, const struct kvt_tally *tally)
{
	kvt_json_u64(json, "input_positions", tally->input_positions);
	kvt_json_u64(json, "hit_positions", tally->hit_positions);
	kvt_json_rate(json, "hit_rate", tally->hit_positions, tally->input_positions);
	kvt_json_u64(json, "inserted_pages", tally->inserted_pages);
	kvt_json_refused(json, "refused", tally->refused);
}

uint64_t kvt_histogram_ns(const uint64_t *buckets, double share)
{
	return kvt_quantile_ns(buckets, KVT_HISTOGRAM_BUCKETS, KVT_HISTOGRAM_SHIFT, share);
}

/* A member's place is reserved before it connects. */
const char *kvt_client_state_text(const struct kvt_admin_client *client)
{
	return client->rank && client->state == KVT_SESSION_FREE
		       ? "awaited"
		       : kvt_session_state_text(client->state);
}

void kvt_json_client(struct kvt_json *json, const struct kvt_admin_client *client)
{
	kvt_json_open(json, NULL, '{');
	kvt_json_u64(json, "session", client->session);
	kvt_json_string(json, "state", kvt_client_state_text(client));
	kvt_json_u64(json, "rank", client->rank);
	kvt_json_u64(json, "n_ranks", client->n_ranks);
	kvt_json_i64(json, "pid", client->pid);
	kvt_json_u64(json, "uid", client->uid);
	kvt_json_bytes(json, "label", client->label, strnlen(client->label, KVT_LABEL_BYTES));
	kvt_json_u64(json, "leases", client->n_leases);
	kvt_json_u64(json, "max_leases", client->max_leases);
	kvt_json_u64(json, "private", client->n_private);
	kvt_json_u64(json, "max_private_pages", client->max_private_pages);
	kvt_json_u64(json, "quarantined", client->n_quarantined);
	kvt_json_u64(json, "deferred", client->n_pending);
	kvt_json_u64(json, "operations", client->operations);
	put_tally(json, &client->tally);
	kvt_json_u64(json, "sq_waiting", client->sq_waiting);
	kvt_json_u64(json, "cq_waiting", client->cq_waiting);
	kvt_json_seconds(json, "age_s", client->age_ns);
	kvt_json_u64(json, "suspects", client->suspects);
	kvt_json_u64(json, "suspected", client->suspected);
	kvt_json_u64(json, "sealer", client->sealer);
	kvt_json_bool(json, "hung_up", client->signs & KVT_SIGN_HANGUP);
	kvt_json_bool(json, "exited", client->signs & KVT_SIGN_EXITED);
	kvt_json_bool(json, "quiet", client->signs & KVT_SIGN_QUIET);
	kvt_json_bool(json, "fenced", client->signs & KVT_SIGN_FENCED);
	kvt_json_seconds(json, "ended_age_s", client->ended_age_ns);
	kvt_json_close(json, '}');
}

void kvt_json_namespace(struct kvt_json *json, const struct kvt_admin_namespace *namespace)
{
	kvt_json_open(json, NULL, '{');
	kvt_json_u64(json, "namespace", namespace->namespace_id);
	kvt_json_bytes(json, "label", namespace->label,
		       strnlen(namespace->label, KVT_LABEL_BYTES));
	kvt_json_format(json, "digest", "%016llx%016llx",
			(unsigned long long)namespace->digest[0],
			(unsigned long long)namespace->digest[1]);
	kvt_json_u64(json, "opened", namespace->opened);
	kvt_json_u64(json, "generation", namespace->generation);
	kvt_json_u64(json, "root", namespace->root);
	kvt_json_u64(json, "nodes", namespace->nodes);
	kvt_json_u64(json, "cached", namespace->cached_pages);
	kvt_json_u64(json, "limit", namespace->limit);
	kvt_json_u64(json, "evictable", namespace->evictable_pages);
	kvt_json_u64(json, "protected", namespace->protected_pages);
	put_tally(json, &namespace->tally);
	kvt_json_close(json, '}');
}
