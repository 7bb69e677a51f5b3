/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_SHM_WALK_H
#define KVT_SHM_WALK_H

/**
 * @file walk.h
 * The lock-free walk of a tree that its owner may be changing.
 *
 * Each step
 *
 *   1. finds a child in the index;
 *   2. takes a snapshot of it under its version word: its parent must be the previous node, and its
 *      keys are compared inside the snapshot;
 *   3. re-reads the generation of the previous node: a recycled node leads into another prefix
 *      (ABA).
 *
 * Invariant after each step: at one moment during the walk, all that was matched so far was cached
 * for exactly these keys of this namespace. The result may be stale when it is returned. It may be
 * short, because a reader misses entries that are being moved. It is never a prefix that was not
 * there.
 */

#include <stdint.h>

#include "shm/arena.h"

struct kvt_handle;

#define KVT_WALK_RESTARTS 8

/** Effort of a walk, for tests and tuning. */
struct kvt_walk_effort {
	uint32_t restarts;
	uint32_t nodes;
};

/** Longest cached prefix of `keys` under a root key (0: none), in whole pages.
 *
 * @digest      of the namespace, as it was opened: checked against the record before and after.
 * @now_ns      nodes that expire at or before it end the walk; UINT64_MAX: every TTL ends it.
 * @ret_handle  (deepest node, its generation, positions); node 0 when nothing matched.
 * @ret_effort  may be NULL.
 * Errors: -EINVAL namespace number out of range, -ENOENT another namespace is in this record now,
 * -EAGAIN too many races. */
int kvt_walk(const struct kvt_arena_view *view, uint32_t namespace_id, const uint64_t digest[2],
	     uint64_t root_key, const uint32_t *keys, uint32_t n_keys, uint64_t now_ns,
	     struct kvt_handle *ret_handle, struct kvt_walk_effort *ret_effort);

#endif
