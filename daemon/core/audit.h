/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_CORE_AUDIT_H
#define KVT_CORE_AUDIT_H

/**
 * @file audit.h
 * The arrays of the audit's shadow: a second core, rebuilt beside the first and compared with it.
 *
 * The shadow shares what a rebuild only reads: keys, tails, opened namespaces, views, room to sort.
 * A row below is (array, entries), with `c` the configuration. Slots, heaps, rings and the index
 * have arrays of their own, too, which a rebuild fills before it reads them.
 */

/** Nodes whose side pages are counted. */
#define KVT_SIDED_NODES(c) ((c)->n_sides ? (c)->max_nodes : 0)
/** True if namespaces may have limits; nodes and namespaces that are in order for that. */
#define KVT_LIMITED(c) ((c)->space_pages || (c)->n_space_limits)
#define KVT_LIMITED_NODES(c) (KVT_LIMITED(c) ? (c)->max_nodes : 0)
#define KVT_LIMITED_SPACES(c) (KVT_LIMITED(c) ? (c)->max_namespaces : 0)

/** Facts and derived fields in the same records: copied before each rebuild. */
#define KVT_SHADOW_COPIES(X)                                                                      \
	X(arena, 1)                                                                               \
	X(nodes, c->max_nodes)                                                                    \
	X(slot_pages, c->n_slots)                                                                 \
	X(sides, (uint64_t)c->n_pages * c->n_sides)                                               \
	X(pages, c->n_pages)                                                                      \
	X(namespaces, c->max_namespaces)                                                          \
	X(labels, c->max_namespaces)                                                              \
	X(sessions, c->max_sessions + 1ull)                                                       \
	X(members, kvt_core_members(c) + 1ull)                                                    \
	X(leases, c->n_leases + 1ull)                                                             \
	X(owners, c->n_pages)                                                                     \
	X(pending, c->n_pending + 1ull)

/** Derived, and counted up from 0. The marks of pages are marks of any records here. */
#define KVT_SHADOW_ZEROED(X)                                                                      \
	X(cut_below, c->max_nodes)                                                                \
	X(sealers, c->max_nodes)                                                                  \
	X(sides_in, KVT_SIDED_NODES(c))                                                           \
	X(side_top, KVT_SIDED_NODES(c))                                                           \
	X(leaves, KVT_LIMITED_NODES(c))                                                           \
	X(leaves_in, KVT_LIMITED_SPACES(c))                                                       \
	X(over_at, KVT_LIMITED_SPACES(c))                                                         \
	X(pointed, c->n_leases + 1ull)                                                            \
	X(pointed_at, c->n_leases + 1ull)                                                         \
	X(page_mark, ((uint64_t)c->n_pages + c->max_nodes + c->n_pending) / 64 + 1)

#endif
