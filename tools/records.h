/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_TOOLS_RECORDS_H
#define KVT_TOOLS_RECORDS_H

/**
 * @file records.h
 * The daemon's tables: how a tool reads them, and what their records say as JSON.
 */

#include <stddef.h>
#include <stdint.h>

struct kvt_admin_client;
struct kvt_admin_namespace;
struct kvt_admin_status;
struct kvt_client;
struct kvt_error;
struct kvt_json;

/** Connect as an observer, without waiting for a daemon. Negative errno with `ret_error`. */
int kvt_observe(const char *socket_path, const char *label, int64_t timeout_ns,
		struct kvt_client **ret_client, struct kvt_error *ret_error);
/** Negative errno with `ret_error`. */
int kvt_status_read(struct kvt_client *client, struct kvt_admin_status *ret_status,
		    struct kvt_error *ret_error);

/** Read a whole table (enum kvt_admin_what) into an array that the caller frees. Negative errno:
 * nothing was read. */
int kvt_records_read(struct kvt_client *client, uint32_t what, size_t record_bytes,
		     void **ret_records, uint32_t *ret_n);

/** Quantile of a histogram: the upper end of its bucket in ns; 0: empty. */
uint64_t kvt_histogram_ns(const uint64_t *buckets, double share);
/** "open", or "awaited": a member's place is reserved before it connects. */
const char *kvt_client_state_text(const struct kvt_admin_client *client);

/** "lru", "host", "open": names of enum kvt_policy, kvt_pool_backend, kvt_session_state; of any
 * other number "unknown". */
const char *kvt_policy_text(uint32_t policy);
const char *kvt_backend_text(uint32_t backend);
const char *kvt_session_state_text(uint32_t state);

/** Add an object to the open list. */
void kvt_json_client(struct kvt_json *json, const struct kvt_admin_client *client);
void kvt_json_namespace(struct kvt_json *json, const struct kvt_admin_namespace *namespace);

#endif
