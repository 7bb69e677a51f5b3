/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVTRUNK_SEQUENCES_H
#define KVTRUNK_SEQUENCES_H

/**
 * @file kvtrunk_sequences.h
 * Sequences: begin, commit, extend, end. Included by kvtrunk.h.
 */

#include <stdint.h>

#include "kvtrunk_operations.h"

#ifdef __cplusplus
extern "C" {
#endif

#pragma GCC visibility push(default)

/** Begin a sequence: match `keys`, lock the match, announce the rest, and get a page table for
 * n_keys + extra positions. All or nothing. As kvt_match(), it sends only keys that a probe does
 * not find.
 *
 * @extra  positions beyond the prompt to have pages for (decode); kvt_seq_extend() gives more.
 * @flags  KVT_F_FULL, KVT_F_FORCE_MISS, KVT_F_OWN_STREAM (see struct kvt_request).
 *
 * If other processes are computing part of the same prompt, it waits, so that each position is
 * computed once. It returns when that part is cached, but for a rest within the daemon's option
 * coalesce_threshold. If the computing sequence ends, or publishes nothing for too long (option
 * coalesce_patience_ms), one waiter computes the rest, and the others wait for that one. It waits
 * at most options->begin_wait_ns and three quarters of the client's own deadline. After that this
 * sequence computes the rest, and no call waits for the late one again.
 *
 * While it waits it holds neither pages nor locks. It never waits for a sequence of the same
 * client, or for a client that waits for this one, directly or through others. For a notice instead
 * of waiting, submit a BEGIN with KVT_F_NO_WAIT (kvt_submit()): see struct kvt_request.
 *
 * Errors: -ENOSPC (kvt_client_error() gives the cause and how much was available), -EDQUOT,
 * -ECONNRESET, -ETIMEDOUT. The sequence is owned by the caller until kvt_seq_end(). */
int kvt_seq_begin(struct kvt_client *client, uint32_t namespace_id, const uint32_t *keys,
		  uint32_t n_keys, uint32_t extra, uint32_t flags,
		  struct kvt_seq **ret_seq);

/** Begin a sequence that continues one that has ended, as the next turn of a conversation does.
 * `start` is what kvt_seq_end_handle() gave, and `keys` are all keys. Only those after `start` are
 * sent, so a long conversation costs what its new turn does.
 *
 * The first start.positions keys MUST be those of the sequence that `start` is from, and that must
 * have been this client's. They are not compared unless the handle is stale, so with other keys
 * this sequence reuses wrong KV. Fix: forget handles when you connect again.
 * A stale handle, or one of 0 positions, costs time only: then as kvt_seq_begin(), within the same
 * deadline. Errors as kvt_seq_begin(); -EINVAL the handle is of another namespace, or of none. */
int kvt_seq_continue(struct kvt_client *client, uint32_t namespace_id, struct kvt_handle start,
		     const uint32_t *keys, uint32_t n_keys, uint32_t extra, uint32_t flags,
		     struct kvt_seq **ret_seq);

/** Begin a sequence as a BEGIN describes it. Reads namespace_id, root_key, keys and n_keys (all
 * keys), arg (the extra positions), flags, point, min_positions, and handle (where it continues, or
 * none). The rules of kvt_seq_continue() hold, for the root key, too. With KVT_F_NO_PAGES and no
 * extra positions the page table ends with the reusable pages: kvt_seq_extend() gives the others,
 * and commits bring the keys that have no slot yet (see struct kvt_request). */
int kvt_seq_start(struct kvt_client *client, const struct kvt_request *begin,
		  struct kvt_seq **ret_seq);

/** Make a sequence of a BEGIN that was submitted (kvt_submit()) and answered (kvt_reap()), so that
 * a scheduler waits for neither. `n_keys` counts all its keys, those of its handle included. The
 * answer is released, and its lease is the sequence's from then on.
 * Errors, which change nothing: -EINVAL it is no granted BEGIN, or has been released; -ENOMEM. */
int kvt_seq_adopt(struct kvt_client *client, struct kvt_result *begun, uint32_t n_keys,
		  struct kvt_seq **ret_seq);

/** Give a sequence keys ahead of the commits that will bring them: those from kvt_seq_known() on,
 * for which a BEGIN with KVT_F_NO_PAGES had no slot. Costs no message. kvt_seq_start() does so
 * itself. Errors, which change nothing: -ENOMEM, -ECONNRESET; -EINVAL the sequence has ended. */
int kvt_seq_hold(struct kvt_seq *seq, const uint32_t *keys, uint32_t n_keys);

/** The page table: entry i holds positions [i * page_size, (i + 1) * page_size). Valid until the
 * next call on this sequence, other than this one and those down to kvt_seq_known(), which only
 * read. Entries below kvt_seq_next() / page_size are cached pages of the tree, or soon will be:
 * read only. */
const uint32_t *kvt_seq_pages(const struct kvt_seq *seq, uint32_t *ret_n);
uint32_t kvt_seq_matched(const struct kvt_seq *seq);   /* positions cached at begin */
uint32_t kvt_seq_reusable(const struct kvt_seq *seq);  /* positions not to compute */
uint32_t kvt_seq_announced(const struct kvt_seq *seq); /* being computed by others */
uint32_t kvt_seq_shared(const struct kvt_seq *seq);    /* reusable ones that others sealed */
uint32_t kvt_seq_next(const struct kvt_seq *seq);      /* where to continue computing */
uint32_t kvt_seq_known(const struct kvt_seq *seq);     /* keys given so far */

/** Side pages of kind `kind` where the sequence began (see struct kvt_request): those of the last
 * pages below kvt_seq_reusable(), oldest first, as many as the option `sides` says or there are.
 * Locked like the page table, and read only: a sequence that continues from a state copies it into
 * a page of its own first. NULL and 0: the daemon has no such kind. Valid until the end.
 * If kvt_seq_matched() is above kvt_seq_reusable(), two prompts part there, and no point is. Make
 * one at `matched`, so that the next prompt continues behind it. */
const uint32_t *kvt_seq_sides(const struct kvt_seq *seq, uint32_t kind, uint32_t *ret_n);

/** Give a page of kvt_alloc() to the sequence: the next commit makes it the side page of kind
 * `kind` of page `index` of the page table, which must lie in front of that commit's `computed`.
 * Costs no message. The page is the sequence's from now on. Write it no more after that commit's
 * fence, and read it until the end: it is cached, or, if its place has a side page already or the
 * commit fails, freed at the fence of the end. A commit that takes side pages implies KVT_F_KEEP,
 * and leaves the page table as it is.
 * Page KVT_SIDE_LET lets go of what is there: after that commit's fence the sequence reads it no
 * more, and it may be evicted before the end; until then others continue behind it. Nothing happens
 * while another sequence crosses that page. Page KVT_NONE drops it at once, unless another sequence
 * or prefix needs it.
 * Errors, which change nothing: -EINVAL the daemon has no sides or no such kind, or table or pool
 * no such page; -ENOMEM. A page that is not the session's, in a sequence or named twice fails the
 * commit (-EINVAL). */
int kvt_seq_attach(struct kvt_seq *seq, uint32_t index, uint32_t kind, uint32_t page);

/** Publish positions [0, computed): whole pages become visible to all. Duplicates are replaced in
 * the page table (with KVT_F_KEEP they stay readable until the end). Pages beyond that others
 * sealed meanwhile are taken over: kvt_seq_next() may jump.
 * @keys  only keys that the sequence does not have yet (generated ones), in order: they begin at
 *        position kvt_seq_known(). They may go beyond `computed` and beyond the page table, like
 *        that of a token just sampled: keys without a place wait for a later commit.
 * Errors: -ESTALE the prefix was reset or removed, or expired: nothing more is shared. Fix:
 * continue. The page table stays valid, kvt_seq_next() is at least `computed`, and each later
 * commit only advances it and returns -ESTALE again. Other errors change nothing: -EINVAL beyond
 * the page table or the keys given; -ENOSPC out of tree nodes. */
int kvt_seq_commit(struct kvt_seq *seq, uint32_t computed, const uint32_t *keys,
		   uint32_t n_keys, struct kvt_fence fence, uint32_t flags);

/** Publish without waiting: submit, and wake the daemon if it sleeps, but wait neither for its
 * answer nor for the fence. Meanwhile continue with the page table as it is: read [0, computed) and
 * compute what follows.
 *
 * Until the outcome is taken, the page table stays and kvt_seq_next() is at least `computed`. The
 * outcome is taken by the next kvt_seq_commit_async() or kvt_seq_poll() if it has come by then, by
 * kvt_seq_extend() if the daemon gives the pages after it, and in any case by kvt_seq_settle(),
 * kvt_seq_commit() and kvt_seq_end(). Then the table names cached pages for duplicates and for what
 * others computed beyond, and kvt_seq_next() may jump: continue there. A later commit whose
 * `computed` the jump passed publishes nothing; one beyond it publishes what comes after the jump.
 *
 * KVT_F_KEEP is implied: displaced pages, which queued work may still read or write, stay this
 * sequence's until its end. So duplicates occupy the pool until then; kvt_seq_commit() frees them
 * at its fence.
 *
 * Any number may be in flight; they take effect in their order, each at its fence.
 * @keys  as for kvt_seq_commit(), copied.
 * @flags KVT_F_CHUNKED
 * Errors: -EAGAIN rings or areas are full of operations in flight, or a call on this sequence whose
 * deadline passed is still unanswered: kvt_seq_settle() first; -ESTALE as kvt_seq_commit(); and the
 * daemon's answer to an earlier asynchronous commit. kvt_seq_commit(), this call, kvt_seq_poll()
 * and kvt_seq_settle() return that one instead of doing anything (kvt_seq_end() ends all the same):
 * the first failure, once. Commits in flight behind a failed one fail silently. Afterwards
 * kvt_seq_next() is how far commits took effect, and keys from kvt_seq_known() on must be given
 * again; but after -ESTALE kvt_seq_next() is how far it was computed. */
int kvt_seq_commit_async(struct kvt_seq *seq, uint32_t computed, const uint32_t *keys,
			 uint32_t n_keys, struct kvt_fence fence, uint32_t flags);

/** Submit a COMMIT, EXTEND or END of a sequence, and have its answer from kvt_reap(): for a loop
 * that waits for many sequences (kvt_client_arm()). Reads of the request op, user_data, flags,
 * fence, keys and n_keys; arg is `computed`, or of EXTEND the positions. Otherwise as
 * kvt_seq_commit_async(), kvt_seq_extend() and kvt_seq_end_async().
 *
 * The sequence takes the answer in before kvt_reap() gives it, or without kvt_reap(): any call on
 * the client does. So nothing is lost if the caller no longer waits. The next call on the
 * sequence, such as kvt_seq_poll(), shows what it brought. A failure is in the answer, and no later
 * call reports it again. After -ESTALE the next commit says so.
 *
 * Errors, which change nothing: -EAGAIN the rings or areas are full: reap, then try again; -EBUSY
 * an operation in flight on this sequence must be answered first: an extension, or for an extension
 * a commit whose answer has no room for a longer table; -EINVAL another op, or an END with a commit
 * while side pages are attached: submit a COMMIT before it. -ESTALE as kvt_seq_commit(). After an
 * END with any other outcome the handle is freed. */
int kvt_seq_submit(struct kvt_seq *seq, const struct kvt_request *request);

/** Take outcomes of asynchronous commits that have come, without waiting. Returns how many are
 * still in flight, or their first failure. To sleep until one comes, see kvt_client_arm(). */
int kvt_seq_poll(struct kvt_seq *seq);

/** Wait until none is in flight (deadline as set; -ETIMEDOUT leaves the rest in flight), and return
 * their first failure. */
int kvt_seq_settle(struct kvt_seq *seq);

/** Lengthen the page table by at least `n` positions: by whole private pages, so call it when the
 * table is full, not per token. Waits for no commit in flight, unless the table has grown by more
 * than 64 pages and an eighth meanwhile. Errors as kvt_seq_begin(): nothing changed. */
int kvt_seq_extend(struct kvt_seq *seq, uint32_t n);

/** Lengthen the page table by `n` pages that the session has from kvt_alloc() or an ALLOC, and wait
 * for nothing: a scheduler that keeps a stock of them makes no round trip here. They are the
 * sequence's from now on.
 * Errors: -EAGAIN the ring is full, or what is in flight has no room for a table so long: reap or
 * settle first; -ENOMEM. Nothing changed. A page that is not the
 * session's, in a sequence already or named twice is refused later, with all n: commits beyond the
 * table are then -EINVAL. */
int kvt_seq_extend_pages(struct kvt_seq *seq, const uint32_t *pages, uint32_t n);

/** End: with computed > 0 after a last commit, which takes the side pages attached for it. Frees
 * the handle in any case. Commits in flight take effect before it.
 * Errors: -ESTALE the prefix was removed, expired or reset: the last commit published nothing, and
 * earlier ones are not found any more; -EINVAL the last commit named positions or keys that do not
 * fit (kvt_client_error() says which); or the failure of an asynchronous commit that was not
 * reported yet. In these cases the sequence has ended all the same. -ETIMEDOUT: it ends when its
 * fence is reached and the ring has room. With a fence slot that does not exist it ends with the
 * session. */
int kvt_seq_end(struct kvt_seq *seq, uint32_t computed, const uint32_t *keys,
		uint32_t n_keys, struct kvt_fence fence, uint32_t flags);

/** The same, and name what stays cached of the sequence's keys: their leading whole pages. The next
 * turn begins there, see kvt_seq_continue(). *ret_handle is set in any case, to 0 positions if
 * nothing stays or the daemon did not answer. It gives no right to the pages. */
int kvt_seq_end_handle(struct kvt_seq *seq, uint32_t computed, const uint32_t *keys,
		       uint32_t n_keys, struct kvt_fence fence, uint32_t flags,
		       struct kvt_handle *ret_handle);

/** The same as kvt_seq_end(), without waiting for the daemon's answer: submit END, and free the
 * handle. Its outcome is not reported: if its last commit fails, that publishes nothing. Commits in
 * flight take effect before it. At its fence its pages become free.
 * Errors: -EAGAIN the rings are full of operations in flight: nothing happened, the sequence stays.
 * Fix: reap or poll, then try again. -EINVAL, -ECONNRESET and the like: it has ended, as with
 * kvt_seq_end(). */
int kvt_seq_end_async(struct kvt_seq *seq, uint32_t computed, const uint32_t *keys,
		      uint32_t n_keys, struct kvt_fence fence, uint32_t flags);

#pragma GCC visibility pop

#ifdef __cplusplus
}
#endif
#endif
