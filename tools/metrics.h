/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_TOOLS_METRICS_H
#define KVT_TOOLS_METRICS_H

/**
 * @file metrics.h
 * A daemon's status in the text format of Prometheus (version 0.0.4), for `kvtctl metrics` and
 * kvtmetricsd.
 *
 * Counters come from the table KVT_COUNTERS, other values from a table in metrics.c; latencies are
 * one histogram with a label for the operation. Every series exists from the first scrape on, so
 * rates never miss the first increment. Those of a store exist while its socket does.
 */

#include <stdint.h>

struct kvt_admin_status;
struct kvt_error;
struct kvt_text;

#define KVT_METRICS_CONTENT_TYPE "text/plain; version=0.0.4; charset=utf-8"

/** Append all metrics of a daemon that answered. */
void kvt_metrics_print(struct kvt_text *text, const struct kvt_admin_status *status);
/** Append the metrics of the store beside a daemon, if it has a socket; if it does not answer,
 * kvtrunk_store_up 0. Takes at most timeout_ns. */
void kvt_metrics_print_store(struct kvt_text *text, const char *socket_path, int64_t timeout_ns);
/** Append kvtrunk_up 0: no daemon answered. */
void kvt_metrics_print_down(struct kvt_text *text);
#define KVT_METRICS_NAMESPACES_MOST 1000
/** Connect to the daemon as an observer, ask, and append its metrics and its store's; also those of
 * the `per_namespace` namespaces with most cached pages. Negative errno with `ret_error`: nothing
 * was appended. Takes at most timeout_ns. */
int kvt_metrics_scrape(struct kvt_text *text, const char *socket_path, uint32_t per_namespace,
		       int64_t timeout_ns, struct kvt_error *ret_error);

#endif
