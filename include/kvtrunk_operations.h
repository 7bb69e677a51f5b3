/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVTRUNK_OPERATIONS_H
#define KVTRUNK_OPERATIONS_H

/**
 * @file kvtrunk_operations.h
 * Single operations on tree and pages. Most workers use sequences instead. Included by kvtrunk.h.
 */

#include <stdbool.h>
#include <stdint.h>

#include "kvtrunk_client.h"

#ifdef __cplusplus
extern "C" {
#endif

#pragma GCC visibility push(default)

/** One operation. Unused fields stay 0. Pointers are read during kvt_submit() only.
 *
 * Root keys. Each `root_key` of a namespace, 0 included, has a tree of its own. The tree is made by
 * its first key and gone with its last. It costs neither a message nor a place of max_namespaces:
 * use it for salts, or for what precedes the first key. A handle has its root key, so give none
 * beside it. REMOVE without keys forgets the whole namespace and takes none.
 *
 * MATCH, BEGIN with a handle of kvt_probe(): give only the keys after the handle's prefix. The
 * answer counts all keys. -ESTALE: the prefix is gone, and nothing happened. Fix: submit all keys
 * and no handle.
 *
 * BEGIN while other leases compute a part of its prompt (`announced`):
 *
 *   no flag        It begins, and both compute that part.
 *   KVT_F_WAIT     It is answered when the part is cached, when no session computes it any more
 *                  (KVT_CQE_TAKEOVER), or after ttl_ms milliseconds (KVT_CQE_DEADLINE). Leases of
 *                  its own session do not count. With ttl_ms 0 it does not wait: it begins, or is
 *                  answered -EAGAIN (KVT_REASON_ANNOUNCED) and holds nothing.
 *   KVT_F_NO_WAIT  It is answered -EAGAIN (KVT_REASON_ANNOUNCED) and holds nothing; `announced`
 *                  positions are computed by others. Within ttl_ms one notice with the same
 *                  user_data follows: result 0, KVT_CQE_ASYNC, `matched`, `state` = enum
 *                  kvt_notice, no lease. Then submit it again. Leases of its own session count: a
 *                  scheduler holds back the second of two equal requests. Any answer but -EAGAIN
 *                  is that of a plain BEGIN, and no notice follows.
 *
 * kvt_seq_adopt() makes a sequence of a BEGIN that kvt_reap() answered.
 *
 * LOCK with KVT_F_SHORTER locks what is left of a handle whose last pages were evicted: `matched`
 * positions, n_pages pages, and their own handle. -ESTALE: nothing is left, it was removed, expired
 * or reset, or the daemon has restarted since the eviction. Fix: match the keys.
 *
 * ALLOC with KVT_F_SHORTER gives as many of `arg` pages as are free, evictable and within limits.
 * If there is none, it is refused like one of a single page.
 *
 * KVT_F_OWN_STREAM with BEGIN, ALLOC, and EXTEND by `arg`: the caller promises that the new pages
 * are written after all fences of this session, as on one stream. When free pages run out, the
 * daemon takes pages of this session's leases whose END waits for its fence, before it evicts. It
 * takes none that are cached, that a COMMIT before this END may publish, or that FREE gives up. A
 * COMMIT or END that waits then lists and frees fewer pages.
 * Caveat: wrong with a second stream that writes pages, or reads them after the END.
 *
 * COMMIT with KVT_F_KEEP and KVT_F_NO_LIST answers without the page table and takes no room in the
 * list area: for callers that keep a table of their own, whose pages stay theirs until END. If
 * `advanced` is above 0, others computed these positions: a COMMIT with the list names their pages.
 * A caller that computes them itself needs no list.
 *
 * Side pages (the daemon's option `sides`, kvt_info.n_sides). A page of a sequence's path may carry
 * one side page of each kind: what layers with windows or states need to continue behind it. Of
 * kind s the last side_pages[s] pages of a prefix need one. BEGIN reuses the longest such prefix of
 * what matched: `reusable` may be below `matched`, and `sides` has for each kind the side pages of
 * the last reusable pages, as many as there are up to side_pages[s], oldest first. Read them, never
 * write them. COMMIT, with those flags, takes `sides`: each page becomes the side page of its place
 * unless that has one, and page KVT_NONE drops one, unless another sequence needs it. The answer's
 * `pages` are those that were not taken: they stay the session's. -EINVAL: nothing happened.
 *
 * KVT_F_NO_PAGES with BEGIN, for schedulers that admit requests before they have room for them: the
 * match is locked and the rest announced, but `pages` ends with the reusable ones, and `arg` is 0.
 * EXTEND gives pages. Until its first one the lease computes nothing: no BEGIN waits for it. A
 * lease that is refused pages holds its match: end it. COMMIT takes keys as far as the table goes.
 * At most 1 in 16 pages of the pool (n_slots) may be announced without a page behind it: -ENOSPC,
 * reason `slots`, `available` counts the leading pages whose keys BEGIN can take. Begin with those;
 * COMMIT brings the other keys. kvt_seq_start() does so: its sequence holds the others until then.
 * After kvt_seq_adopt() give them to kvt_seq_hold().
 *
 * REMOVE with KVT_F_DAMAGED, for who finds that the last page of the keys is not as it was sealed:
 * the next COMMIT of each lease that holds it is refused with -ESTALE, reason `damaged`. What was
 * computed behind it is wrong: END, and begin again. `lock_ref` counts these leases.
 *
 * BEGIN may declare a point: the positions behind which the COMMIT that reaches them will attach
 * side pages, or KVT_POINT_JUNCTION. A BEGIN with WAIT or NO_WAIT that could continue there, and
 * further than now by more than the option coalesce_threshold, waits for that COMMIT as for
 * announced pages. Whole pages count, behind the reusable positions and inside the keys.
 *
 * BEGIN with min_positions shares nothing that is shorter. With fewer keys it matches nothing, and
 * its COMMITs publish nothing. A match with fewer reusable positions is not reused, unless it is
 * all that the keys could reuse; it is locked, and what is computed behind it is published. */
struct kvt_request {
	uint32_t op;    /* enum kvt_op */
	uint32_t flags; /* enum kvt_sqe_flag */
	uint32_t namespace_id;
	uint32_t n_keys;
	const uint32_t *keys;
	const uint32_t *pages; /* INSERT: floor(n_keys / page_size); FREE, EXTEND: n_pages */
	uint32_t n_pages;
	uint32_t arg;          /* extra, computed, n or page, by op: see struct kvt_sqe */
	struct kvt_handle handle; /* LOCK; INSERT, MATCH, BEGIN: what `keys` continue */
	struct kvt_lease lease;
	struct kvt_fence fence; /* ops that take none ignore it; all 0: slot 0, value 0 */
	int32_t priority;
	uint32_t ttl_ms; /* INSERT with KVT_F_TTL; BEGIN with KVT_F_WAIT or KVT_F_NO_WAIT */
	uint32_t list_capacity; /* 0: enough for any answer */
	uint32_t n_sides;       /* COMMIT with KVT_F_KEEP and KVT_F_NO_LIST */
	uint64_t user_data;
	uint64_t root_key; /* MATCH, INSERT, BEGIN, REMOVE: which tree of the namespace */
	const struct kvt_side *sides;
	uint32_t point; /* BEGIN, where pages have sides: positions; KVT_POINT_JUNCTION; 0: none */
	uint32_t min_positions; /* BEGIN: the fewest positions worth sharing */
};

/** One answer; fields that the operation does not answer are 0. */
struct kvt_result {
	uint64_t user_data;
	uint64_t seq;   /* the daemon's global order of effects */
	int32_t error;  /* 0 or negative errno */
	uint32_t reason; /* enum kvt_reason */
	uint32_t flags; /* enum kvt_cqe_flag */
	uint32_t op;
	struct kvt_handle handle;
	struct kvt_lease lease;
	uint32_t matched, reusable, announced; /* positions */
	uint32_t usable; /* MATCH: positions that a BEGIN could reuse of those that matched */
	uint32_t next, advanced, existed;      /* positions */
	uint32_t known; /* COMMIT: positions whose keys the daemon knows: the next begin there */
	uint32_t inserted, sealed, evicted, freed, duplicates; /* pages */
	uint32_t available; /* -ENOSPC: pages that this operation could have had */
	/* -ENOSPC for lack of pages: pages that it needs, with too_large those of the whole page
	 * table; -ENOBUFS: list words; -EDQUOT: the limit. */
	uint32_t needed;
	uint32_t state, owner, lock_ref, problems; /* PAGE, AUDIT; a notice: enum kvt_notice */
	uint32_t sealer; /* PAGE, of a cached one: as kvt_page_sealer() */
	uint32_t shared; /* BEGIN: of the reusable positions, those that another session sealed */
	uint32_t n_pages, n_twins, n_sides;
	const uint32_t *pages; /* page table or page list; until kvt_result_release() */
	const uint32_t *sides; /* BEGIN, where pages have sides: by kind, each in path order */
	const uint32_t *twins; /* 2 * n_twins: (yours, the cached twin) */
	uint32_t slot;         /* the library's own */
};

/** Submit without waiting. Visible to the daemon at once. At most cq_entries operations are in
 * flight. Two or more BEGINs with KVT_F_WAIT take at most half of the rings and areas: the other
 * half is for what ends their waits. -EAGAIN: rings or areas are full: reap and release first, or
 * wait for an answer. -E2BIG: larger than the areas. -EINVAL: n_pages of INSERT is not floor(n_keys
 * / page_size), or a count without its array. -ECONNRESET. */
int kvt_submit(struct kvt_client *client, const struct kvt_request *request);

/** Take up to `max` answers, waiting for the first `min` of them (deadline as set). Returns their
 * number: 0 with min 0 if there are none, fewer than `min` if no more are in flight. Each must be
 * released, in any order. An answer may be a refusal: see its `error`. If the deadline passes
 * (-ETIMEDOUT) the operations stay in flight: reap again. */
int kvt_reap(struct kvt_client *client, struct kvt_result *ret_results, int min, int max);
/** Free the list of an answer. Harmless twice, or for an answer without a list. */
void kvt_result_release(struct kvt_client *client, struct kvt_result *result);

/** Submit one and wait for its answer. Returns result->error; the result must be released when
 * the return value is 0 (a failed one holds nothing). */
int kvt_call(struct kvt_client *client, const struct kvt_request *request,
	     struct kvt_result *ret_result);

/** Blocking forms, without a root key (kvt_call() takes one), copying lists into the caller's
 * arrays. Each `capacity` and `n` in pages; -ENOBUFS when too short: nothing done, *ret_n = needed.
 *
 * kvt_match() of 1,024 keys or more probes first, as kvt_probe(), and sends only the keys that the
 * probe did not find: keys that cross between cores are most of its cost. The answer is the
 * same. */
int kvt_match(struct kvt_client *client, uint32_t namespace_id, const uint32_t *keys,
	      uint32_t n_keys, uint32_t flags, struct kvt_result *ret_result);
int kvt_lock(struct kvt_client *client, struct kvt_handle handle,
	     struct kvt_lease *ret_lease, uint32_t *ret_pages, uint32_t capacity,
	     uint32_t *ret_n);
int kvt_unlock(struct kvt_client *client, struct kvt_lease lease, struct kvt_fence fence);
int kvt_alloc(struct kvt_client *client, uint32_t n, uint32_t *ret_pages);
int kvt_free(struct kvt_client *client, const uint32_t *pages, uint32_t n,
	     struct kvt_fence fence);
/** Cache pages for keys. `start` of node 0 = from the root. On return the answer names the
 * duplicates; release it. */
int kvt_insert(struct kvt_client *client, uint32_t namespace_id, const uint32_t *keys,
	       uint32_t n_keys, const uint32_t *pages, struct kvt_handle start,
	       struct kvt_fence fence, uint32_t flags, struct kvt_result *ret_result);
/** Forget the last page of a prefix and all behind it. `keys` NULL: the whole namespace. -EINVAL:
 * an array of 0 keys. */
int kvt_remove(struct kvt_client *client, uint32_t namespace_id, const uint32_t *keys,
	       uint32_t n_keys);
/** Evict `n` cached pages that no lease locks, or all of them if there are fewer. The last one may
 * take its side pages with it. -EPERM: the client is not privileged. */
int kvt_evict(struct kvt_client *client, uint32_t n, uint32_t *ret_evicted);
/** Forget all that is cached, in every namespace. Leases keep their pages until they end, and their
 * COMMITs publish nothing more (-ESTALE). -EPERM: the client is not privileged. */
int kvt_reset(struct kvt_client *client);
/** Ask the daemon for its counters. kvt_counters_read() needs no round trip. */
int kvt_stats(struct kvt_client *client, struct kvt_counters *ret_counters);

/** Read the counters in shared memory, without the daemon and a round trip: for a scheduler that
 * looks at them each step. They agree with each other, as of the end of some operation; those
 * of this client's answered operations are in. Errors: -ENOTSUP the arena is withheld, -EAGAIN the
 * daemon is inside a long operation (kvt_stats() waits for it), -ECONNRESET. */
int kvt_counters_read(struct kvt_client *client, struct kvt_counters *ret_counters);

/** Number of the session that sealed a cached page, to compare with kvt_client_info()->sealer: each
 * session has another one, within 2^24 sessions. From shared memory if the arena is visible. 0: it
 * is not known. Errors: -EINVAL the page is not cached, or there is no such page. */
int kvt_page_sealer(struct kvt_client *client, uint32_t page, uint32_t *ret_sealer);

/** Report a cached page whose KV is not what this client computed for its keys. Hold a lease on the
 * page, else another may be there by now. Nothing happens to the page. The daemon logs who reports
 * which page of which session, and counts it: suspected_pages, `kvtctl clients`.
 * @ret_session  that of the sealer; 0: it has ended. May be NULL.
 * Errors: -EINVAL the page is not cached, or there is no such page. */
int kvt_page_suspect(struct kvt_client *client, uint32_t page, uint32_t *ret_session);

/** Walk the tree in shared memory without the daemon, in a few hundred nanoseconds: for routers and
 * schedulers. Never reports more than MATCH would have at some moment during the call, sometimes
 * less. A hint: pages may be used only after LOCK of the handle.
 * It reads no side pages: kvt_match() tells what is usable with them.
 * Errors: -ENOTSUP the arena is withheld, -EAGAIN too many races (use MATCH), -ECONNRESET. */
int kvt_probe(struct kvt_client *client, uint32_t namespace_id, const uint32_t *keys,
	      uint32_t n_keys, struct kvt_handle *ret_handle, uint32_t *ret_matched);
/** The same under a root key (struct kvt_request). */
int kvt_probe_root(struct kvt_client *client, uint32_t namespace_id, uint64_t root_key,
		   const uint32_t *keys, uint32_t n_keys, struct kvt_handle *ret_handle,
		   uint32_t *ret_matched);

#pragma GCC visibility pop

#ifdef __cplusplus
}
#endif
#endif
