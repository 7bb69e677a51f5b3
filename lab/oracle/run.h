/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_LAB_ORACLE_RUN_H
#define KVT_LAB_ORACLE_RUN_H

/** @file run.h: what all operations share: refusals, room, pages, the path that they build. */

#include "lab/oracle/model.h"

int run_refuse(struct kvt_oracle *o, int result, uint32_t reason, uint64_t number);
/* Refuse n pages when only `available` can be supplied. */
int run_no_room(struct kvt_oracle *o, uint32_t n, uint64_t available);
int run_need_list(struct kvt_oracle *o, uint64_t words);
int run_want(struct kvt_oracle *o, uint32_t word);
/** Announce that the operation may need up to `most_nodes` nodes. How a run fragments is the core's
 * choice, so -ENOSPC for nodes is accepted if it is possible. */
int run_need_nodes(struct kvt_oracle *o, uint64_t most_nodes);
int run_need_lease(struct kvt_oracle *o);
/* Check the session's quota. `locked`: pages of the path that were evictable until now. */
int run_need_quota(struct kvt_oracle *o, uint64_t pages, uint64_t locked);
/** Refuse pages of a list that are not the session's own, in no lease and different. Accepted, too:
 * page i if it is twins[i]. */
int run_need_pages(struct kvt_oracle *o, const uint32_t *pages, uint32_t n, const uint32_t *twins,
		   uint32_t n_twins);
/** Decide how many of n new pages OWN_STREAM takes from leases that end; `locked`: as below. */
void run_take_own(struct kvt_oracle *o, uint64_t n, uint64_t locked);
/** Check that the session may have n private pages and list them, and follow the evictions. */
int run_need_private(struct kvt_oracle *o, uint32_t n);
/** Put pages [0, n) of the path to `node` into the wanted list. */
int run_want_path(struct kvt_oracle *o, uint32_t node, uint32_t n);
void run_want_handle(struct kvt_oracle *o, uint32_t node, uint64_t positions);
uint64_t model_available(const struct kvt_oracle *o);
/** Take the page at place `at` of the record's list: the first `own` ones from leases of the
 * session that end, the others were free. */
int run_fresh_page(struct kvt_oracle *o, uint32_t at, uint32_t *ret_page);
/** True if the session may have n more private pages: quota, room. `locked`: as above. */
bool run_may_have(struct kvt_oracle *o, uint32_t n, uint64_t locked);
/** Check the entry's handle. *ret_node: the shallowest node that covers its *ret_pages pages: all,
 * or with SHORTER those that are left. */
int run_handle(struct kvt_oracle *o, uint32_t *ret_node, uint32_t *ret_pages);
/** Walk the entry's whole pages of keys from the root of its namespace, or behind its start handle.
 * Without caching none is walked. */
int run_walk(struct kvt_oracle *o, struct model_walk *ret_walk);
/** Check that the path ends at exactly `target`. */
int run_check_path(struct kvt_oracle *o);

#endif
