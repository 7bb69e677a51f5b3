/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_TOOLS_RECORDS_H
#define KVT_TOOLS_RECORDS_H

/**
 * @file records.h
 * The daemon's tables: how a tool reads them, and what their records say as JSON.
 */

#include "tools/util.h"

struct kvt_admin_client;
struct kvt_admin_namespace;
struct kvt_admin_status;
struct kvt_client;
struct kvt_error;

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

/** Return the end of the bucket of n that this share of the times is up to, 0: there are none.
 * Bucket i counts times below 1 << (shift + i) ns. */
uint64_t kvt_quantile_ns(const uint64_t *buckets, unsigned int n, unsigned int shift, double share);
/** Quantile of a histogram: the upper end of its bucket in ns; 0: empty. */
uint64_t kvt_histogram_ns(const uint64_t *buckets, double share);
/** "open", or "awaited": a member's place is reserved before it connects. */
const char *kvt_client_state_text(const struct kvt_admin_client *client);

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
/** Add an object to the open list. */
void kvt_json_client(struct kvt_json *json, const struct kvt_admin_client *client);
void kvt_json_namespace(struct kvt_json *json, const struct kvt_admin_namespace *namespace);

#endif
