/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVTRUNK_WIRE_OPERATIONS_H
#define KVTRUNK_WIRE_OPERATIONS_H

/**
 * @file kvtrunk_wire_operations.h
 * Operations: entries of the SQ, completions of the CQ, and the table of what each takes.
 */

#include <stddef.h>
#include <stdint.h>

#include "kvtrunk_wire_base.h"

/** One submission, 64 bytes: half a line pair, so that two fit one. The daemon copies it once.
 *
 *  offset 0        4        8               16              24              32
 *         op,flags namespace user_data       keys: off, n    list: off, cap
 *  offset 32       36       40              48               56      60
 *         arg      node     gen, positions   fence_value      priority ttl_ms
 *
 * Offsets and lengths of keys are u32 elements in the key area, those of lists u32 elements in the
 * list area. With ROOT_KEY, two words at the keys' offset are the root key, low word first, and the
 * `n` keys follow them; not with a handle, which has its root. Unused fields must be 0 (fence_slot:
 * KVT_FENCE_IDLE or 0).
 *
 *   MATCH   namespace keys list(with LOCK); node generation positions (start, as INSERT's)
 *   LOCK    node generation positions, list; with SHORTER the leading pages of the handle that are
 *           left, -ESTALE if none is
 *   UNLOCK  lease fence
 *   ALLOC   arg = pages, list; with SHORTER fewer if there are fewer, -ENOSPC or -EDQUOT if none
 *   FREE    keys = page numbers, fence
 *   INSERT  namespace keys; arg = offset of the page numbers in the key area; node generation
 *           positions (start, node KVT_NONE = from the root); fence priority ttl_ms; list = twins
 *           as pairs (yours, cached), followed with LOCK by the page list
 *   BEGIN   namespace keys; arg = extra positions; node generation positions (start, as
 *           INSERT's); list = page table and, if there is room, a word behind its n_list: the
 *           reused positions that other sessions sealed; ttl_ms = deadline, with WAIT or NO_WAIT
 *           only. If pages have sides, n_list counts that word and, behind it, for each kind the
 *           side pages of the last reusable pages, as many as it needs; fence_value = a
 *           declared point: positions, or KVT_POINT_JUNCTION; priority = the fewest positions worth
 *           sharing. With NO_PAGES no arg, and the page table ends with the reusable pages
 *   COMMIT  lease; arg = computed positions; keys = generated keys; fence; list = page table,
 *           none with NO_LIST; with SIDES the given pages that were not taken
 *   EXTEND  lease; arg = pages; list = the new pages. Or keys = numbers of pages that ALLOC gave
 *           the session; no arg, no list
 *   END     lease; fence; with F_COMMIT arg and keys as COMMIT
 *   REMOVE  namespace keys (none: all of it; not with ROOT_KEY or DAMAGED)
 *   LEAVE   namespace
 *   PAGE    arg = page
 *   SUSPECT arg = page, a cached one: the caller computed other KV for it
 *   EVICT   arg = pages
 *   STATS   list = struct kvt_counters as u32 words
 *   CLOSE   fence
 */
struct kvt_sqe {
	uint8_t op;         /* enum kvt_op */
	uint8_t fence_slot; /* 0..15 or KVT_FENCE_IDLE */
	uint16_t flags;     /* enum kvt_sqe_flag */
	uint32_t namespace_id;
	uint64_t user_data;
	uint32_t keys_offset;
	uint32_t n_keys;
	uint32_t list_offset;
	uint32_t list_capacity;
	uint32_t arg;
	uint32_t node;       /* handle; with lease operations: lease index */
	uint32_t generation; /* with lease operations: lease generation */
	uint32_t positions;
	uint64_t fence_value;
	int32_t priority;
	uint32_t ttl_ms;
};
_Static_assert(sizeof(struct kvt_sqe) == 64, "kvt_sqe");

/** Words of the key area in front of an entry's keys, for a root key. */
static inline uint32_t kvt_root_key_words(uint32_t flags)
{
	return flags & KVT_F_ROOT_KEY ? sizeof(uint64_t) / sizeof(uint32_t) : 0;
}

/** Words of the key area in front of an entry's keys, for side pages: with SIDES n, and n pairs as
 * struct kvt_side. */
static inline uint64_t kvt_side_words(uint32_t flags, uint32_t n)
{
	return flags & KVT_F_SIDES ? 1 + 2ull * n : 0;
}

/** Fields of its entry that an operation takes; all others must be 0. */
enum kvt_takes {
	KVT_TAKES_NAMESPACE = 1u << 0,
	KVT_TAKES_KEYS = 1u << 1,
	KVT_TAKES_LIST = 1u << 2, /* its answer may have one; without, n_list is 0 */
	KVT_TAKES_ARG = 1u << 3,
	KVT_TAKES_HANDLE = 1u << 4,
	KVT_TAKES_LEASE = 1u << 5, /* in the fields of a handle */
	KVT_TAKES_FENCE = 1u << 6, /* so it may have to wait for it */
	KVT_TAKES_POLICY = 1u << 7, /* priority and TTL */
	KVT_TAKES_DEADLINE = 1u << 8, /* ttl_ms, with WAIT or NO_WAIT */
	KVT_TAKES_PRIVILEGE = 1u << 9,
	KVT_TAKES_PAGES = 1u << 10, /* its keys are page numbers */
	KVT_TAKES_POINT = 1u << 11, /* fence_value, where pages have sides */
	KVT_TAKES_MIN = 1u << 12, /* priority, not negative: a minimum of positions */
};

/** How many list words an answer has at most. */
enum kvt_list_size {
	KVT_LIST_NONE,
	KVT_LIST_KEYS,     /* with LOCK, pages of the handle and the keys */
	KVT_LIST_HANDLE,   /* pages of the handle */
	KVT_LIST_ARG,      /* arg */
	KVT_LIST_TWINS,    /* two a page of the keys; with LOCK, the pages of the path */
	KVT_LIST_BEGUN,    /* pages of the handle, the keys, and arg positions behind them */
	KVT_LIST_TABLE,    /* the lease's page table */
	KVT_LIST_COUNTERS, /* struct kvt_counters */
};

/** The operations, each once: X(NAME, name, enum kvt_takes, enum kvt_sqe_flag, list size, answer).
 *
 * The answer is four words of its completion (struct kvt_cqe): W(name), or U(n) for word n that is
 * 0. Counts of keys are positions, all others pages. KVT_OPS(X, , ) does without W and U. */
#define KVT_OPS(X, W, U)                                                                  \
	X(NOP, nop, 0, 0, KVT_LIST_NONE, U(0) U(1) U(2) U(3))                             \
	X(MATCH, match,                                                                   \
	  KVT_TAKES_NAMESPACE | KVT_TAKES_KEYS | KVT_TAKES_LIST | KVT_TAKES_HANDLE,       \
	  KVT_F_LOCK | KVT_F_NO_TOUCH | KVT_F_ROOT_KEY, KVT_LIST_KEYS,                    \
	  W(matched) W(announced) W(usable) U(3))                                         \
	X(LOCK, lock, KVT_TAKES_HANDLE | KVT_TAKES_LIST, KVT_F_SHORTER, KVT_LIST_HANDLE,  \
	  W(matched) U(1) U(2) U(3))                                                      \
	X(UNLOCK, unlock, KVT_TAKES_LEASE | KVT_TAKES_FENCE, 0, KVT_LIST_NONE,            \
	  U(0) U(1) U(2) U(3))                                                            \
	X(ALLOC, alloc, KVT_TAKES_ARG | KVT_TAKES_LIST,                                   \
	  KVT_F_SHORTER | KVT_F_OWN_STREAM, KVT_LIST_ARG,                                 \
	  U(0) U(1) W(evicted) U(3))                                                      \
	X(FREE, free, KVT_TAKES_KEYS | KVT_TAKES_PAGES | KVT_TAKES_FENCE, 0,              \
	  KVT_LIST_NONE, U(0) U(1) U(2) W(freed))                                         \
	X(INSERT, insert,                                                                 \
	  KVT_TAKES_NAMESPACE | KVT_TAKES_KEYS | KVT_TAKES_LIST | KVT_TAKES_ARG |         \
	  KVT_TAKES_HANDLE | KVT_TAKES_FENCE | KVT_TAKES_POLICY,                          \
	  KVT_F_LOCK | KVT_F_CHUNKED | KVT_F_TTL | KVT_F_ROOT_KEY, KVT_LIST_TWINS,        \
	  W(existed) W(inserted) W(evicted) W(n_twins))                                   \
	X(BEGIN, begin,                                                                   \
	  KVT_TAKES_NAMESPACE | KVT_TAKES_KEYS | KVT_TAKES_LIST | KVT_TAKES_ARG |         \
	  KVT_TAKES_HANDLE | KVT_TAKES_DEADLINE | KVT_TAKES_POINT | KVT_TAKES_MIN,        \
	  KVT_F_FULL | KVT_F_FORCE_MISS | KVT_F_WAIT | KVT_F_NO_WAIT | KVT_F_OWN_STREAM | \
	  KVT_F_ROOT_KEY | KVT_F_NO_PAGES | KVT_F_UNCOUNTED,                              \
	  KVT_LIST_BEGUN,                                                                 \
	  W(matched) W(reusable) W(announced) W(evicted))                                 \
	X(COMMIT, commit,                                                                 \
	  KVT_TAKES_LEASE | KVT_TAKES_KEYS | KVT_TAKES_LIST | KVT_TAKES_ARG |             \
	  KVT_TAKES_FENCE,                                                                \
	  KVT_F_CHUNKED | KVT_F_KEEP | KVT_F_NO_LIST | KVT_F_SIDES, KVT_LIST_TABLE,       \
	  W(next) W(advanced) W(sealed) W(duplicates))                                    \
	X(EXTEND, extend,                                                                 \
	  KVT_TAKES_LEASE | KVT_TAKES_KEYS | KVT_TAKES_PAGES | KVT_TAKES_LIST |           \
	  KVT_TAKES_ARG, KVT_F_OWN_STREAM, KVT_LIST_ARG, U(0) U(1) W(evicted) U(3))       \
	X(END, end,                                                                       \
	  KVT_TAKES_LEASE | KVT_TAKES_KEYS | KVT_TAKES_ARG | KVT_TAKES_FENCE,             \
	  KVT_F_COMMIT | KVT_F_CHUNKED | KVT_F_KEEP, KVT_LIST_NONE,                       \
	  U(0) U(1) W(sealed) W(freed))                                                   \
	X(REMOVE, remove, KVT_TAKES_NAMESPACE | KVT_TAKES_KEYS,                           \
	  KVT_F_ROOT_KEY | KVT_F_DAMAGED, KVT_LIST_NONE,                                  \
	  W(state) W(lock_ref) U(2) U(3)) /* 1 if something was detached, leases of it */ \
	X(PAGE, page, KVT_TAKES_ARG, 0, KVT_LIST_NONE,                                    \
	  W(state) W(owner) W(sealer) W(lock_ref)) /* enum kvt_page_state, session */     \
	X(EVICT, evict, KVT_TAKES_ARG | KVT_TAKES_PRIVILEGE, 0, KVT_LIST_NONE,            \
	  U(0) U(1) W(evicted) U(3))                                                      \
	X(RESET, reset, KVT_TAKES_PRIVILEGE, 0, KVT_LIST_NONE,                            \
	  U(0) U(1) U(2) U(3))                                                            \
	X(STATS, stats, KVT_TAKES_LIST, 0, KVT_LIST_COUNTERS,                             \
	  U(0) U(1) U(2) U(3))                                                            \
	X(AUDIT, audit, KVT_TAKES_PRIVILEGE, 0, KVT_LIST_NONE,                            \
	  W(problems) U(1) U(2) U(3))                                                     \
	X(CLOSE, close, KVT_TAKES_FENCE, 0, KVT_LIST_NONE,                                \
	  U(0) U(1) U(2) W(freed))                                                        \
	X(LEAVE, leave, KVT_TAKES_NAMESPACE, 0, KVT_LIST_NONE,                            \
	  U(0) U(1) U(2) U(3))                                                            \
	X(SUSPECT, suspect, KVT_TAKES_ARG, 0, KVT_LIST_NONE,                              \
	  U(0) W(owner) U(2) U(3)) /* the session that sealed it; 0: it has ended */

#define KVT_OP_ONE(NAME, name, takes, flags, list, answer) +1
_Static_assert(KVT_OPS(KVT_OP_ONE, , ) == KVT_OP_COUNT, "KVT_OPS has a row for each operation");
#undef KVT_OP_ONE

#define KVT_OP_TAKES(NAME, name, takes, flags, list, answer)                              \
	case KVT_OP_##NAME:                                                               \
		return (takes);
/** Fields that an operation takes: enum kvt_takes; 0 for numbers that are none. */
static inline uint32_t kvt_op_takes(uint32_t op)
{
	switch (op) {
		KVT_OPS(KVT_OP_TAKES, , )
	default:
		return 0;
	}
}
#undef KVT_OP_TAKES

/* struct kvt_answer_match { uint32_t matched, announced, unused2, unused3; }, and so on. */
#define KVT_ANSWER_WORD(name) uint32_t name;
#define KVT_ANSWER_UNUSED(n) uint32_t unused##n;
#define KVT_ANSWER(NAME, name, takes, flags, list, answer)                                \
	struct kvt_answer_##name {                                                        \
		answer                                                                    \
	};                                                                                \
	_Static_assert(sizeof(struct kvt_answer_##name) == 16, "an answer is four words");
KVT_OPS(KVT_ANSWER, KVT_ANSWER_WORD, KVT_ANSWER_UNUSED)
#undef KVT_ANSWER
#undef KVT_ANSWER_UNUSED
#undef KVT_ANSWER_WORD

/** The answer to a refused operation: the number of its reason. */
struct kvt_answer_refused {
	/* -ENOSPC: pages that this very operation could have had: free and evictable ones without
	 * those that it would have locked. -ENOBUFS: list words needed. -EDQUOT: the limit.
	 * -EAGAIN (BEGIN with NO_WAIT): positions that others compute. -EBUSY (LEAVE): leases and
	 * operations of the session there. Else of COMMIT: `next`. */
	uint32_t number;
	uint32_t needed; /* pages; -ENOSPC for want of pages */
	uint32_t unused2, unused3;
};

/** The second answer to a BEGIN with NO_WAIT. */
struct kvt_answer_notice {
	uint32_t matched; /* positions, by then */
	uint32_t unused1;
	uint32_t state; /* enum kvt_notice */
	uint32_t unused3;
};

/** One completion. `seq` is the daemon's global order of effects.
 *
 * A handle: MATCH, LOCK, INSERT, BEGIN (of the match), END (of the leading pages of its path
 * that stay cached; 0 if they are detached), PAGE. A lease: LOCK, BEGIN, COMMIT,
 * EXTEND; MATCH and INSERT with LOCK. Counts are in the answer that has the operation's name, as
 * cqe.begin.reusable: its row of KVT_OPS. On failure `result` is a negative errno, `reason` an enum
 * kvt_reason, and only `refused` holds something.
 *
 * COMMIT, and END with F_COMMIT: `computed` must lie within the page table, and every position
 * below it must have a key. Keys are taken as far as the table goes and the rest is left out, as
 * that of a token just sampled, which has no KV yet. `positions` of COMMIT says how many are known
 * now: the next ones begin there. A COMMIT with `computed` below `next` changes nothing and takes
 * no keys. A refused one takes none, either.
 *
 * A BEGIN with NO_WAIT that was answered -EAGAIN has a second completion with the same user_data:
 * KVT_CQE_ASYNC, no lease, result 0 and `notice`; -ESTALE if its handle went stale meanwhile. */
struct kvt_cqe {
	uint64_t user_data;
	uint64_t seq;
	int32_t result;
	uint16_t reason;
	uint16_t flags;
	uint32_t lease;
	uint32_t lease_generation;
	uint32_t node;
	uint32_t generation;
	uint32_t positions;
	union {
#define KVT_ANSWER_MEMBER(NAME, name, takes, flags, list, answer) struct kvt_answer_##name name;
		KVT_OPS(KVT_ANSWER_MEMBER, , )
#undef KVT_ANSWER_MEMBER
		struct kvt_answer_refused refused;
		struct kvt_answer_notice notice;
		uint32_t words[4];
	};
	uint32_t n_list; /* words in the list area, twins included */
};
_Static_assert(sizeof(struct kvt_cqe) == 64, "kvt_cqe");
_Static_assert(offsetof(struct kvt_cqe, words) == 44, "answers begin at 44");
_Static_assert(offsetof(struct kvt_cqe, n_list) == 60, "n_list is the last word");

#endif
