/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_CORE_AUDIT_H
#define KVT_CORE_AUDIT_H

/**
 * @file audit.h
 * What the two halves of the audit share: audit.c looks at pages, nodes and counters,
 * audit_lists.c at everything that is linked: extents, free lists, heaps, sessions, queues.
 *
 * The audit believes nothing: every index is compared with its bound before it is followed, and
 * every list and climb ends after as many steps as there are records.
 */

#include "daemon/core/internal.h"

struct kvt_audit {
	const struct kvt_core *core;
	kvt_core_problem_fn *problem;
	void *context;
	uint32_t problems;
	uint64_t cached, private_pages, quarantined, free_pages;
	uint64_t evictable, protected_pages, nodes, locked, evictable_nodes, listed, heaped;
	uint64_t linked; /* nodes that the child index must hold */
	uint64_t queued;
	uint64_t roots, stale_roots;
	uint64_t expiring; /* nodes with a place in the expiry heap */
};

void __attribute__((format(printf, 2, 3))) kvt_audit_report(struct kvt_audit *audit,
							     const char *format, ...);
void kvt_audit_lists(struct kvt_audit *audit);

static inline bool kvt_audit_node_live(const struct kvt_core *core, uint32_t id)
{
	return id != KVT_NONE && id < core->config.max_nodes &&
	       (core->nodes[id].flags & KVT_NODE_LIVE);
}

#endif
