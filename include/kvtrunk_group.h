/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVTRUNK_GROUP_H
#define KVTRUNK_GROUP_H

/**
 * @file kvtrunk_group.h
 * Groups: the ranks of a tensor-parallel engine. Included by kvtrunk.h.
 */

#include <stdint.h>

#include "kvtrunk_client.h"

#ifdef __cplusplus
extern "C" {
#endif

#pragma GCC visibility push(default)

/** Secret of a group: its holder can join. Rank 0 sends it to the other ranks over the engine's own
 * channel, or all ranks derive it from a secret of the engine. */
struct kvt_group_token {
	uint64_t words[2];
};

/** Make this client rank 0 of a group: the processes of one tensor-parallel engine, one a slab.
 *
 * The others connect with options.group = the token and options.rank = 1 to n_ranks - 1. A member
 * maps its slab: kvt_pool_map() gives slab `rank`, or slab 0 if there is none of that number. It
 * has fence words of its own (kvt_fence_raise(), kvt_fence_word(), kvt_fence_record()) and no ring:
 * operations and sequences are rank 0's, whose page tables name pages in every slab.
 *
 * A fence (slot, value) of rank 0's operations is reached when the word `slot` of every process of
 * the group is at least `value`. For work of some ranks only, the other ranks raise theirs at once.
 * If rank 0 alone knows when the work of all has ended, the others raise theirs to UINT64_MAX once.
 * A member's words begin with rank 0's values. Missing ranks are not waited for: begin work when
 * all have joined.
 *
 * The group ends when any of its processes closes, exits or is killed. Then the others get
 * -ECONNRESET (kvt_group_check()), leases end, and private pages stay in quarantine until every
 * process has ended. In order: members stop, rank 0 closes, members close.
 *
 * @n_ranks  rank 0 included, 2 to KVT_MAX_RANKS. The same number again gives the same token.
 * @token    chosen by the caller, for ranks that know it beforehand: 128 bits that others cannot
 *           guess, such as the digest of a random id of the engine. NULL: a random one.
 * Errors: -EINVAL n_ranks, or a token of zeroes, -EALREADY a group of another size or token,
 * -EEXIST another group has the token, -ENOSPC max_members, -ENOTCONN an observer or a member,
 * -ECONNRESET. Connecting with a token: -EINVAL it is all 0, -ESTALE no such group (any more, or
 * not within options->connect_wait_ns), -ERANGE no such rank, -EEXIST the rank has already
 * joined. */
int kvt_group_open(struct kvt_client *client, uint32_t n_ranks,
		   const struct kvt_group_token *token, struct kvt_group_token *ret_token);

/** Check whether the session, and with it the group, still lives, without waiting. For loops that
 * make no other call, such as a member's: kvt_client_control_fd() is readable on a change. Returns
 * 0, or -ECONNRESET (-ESTALE: the daemon started cold, the session is lost); kvt_client_error()
 * names what ended it. */
int kvt_group_check(struct kvt_client *client);

/** Send a message from rank 0 to every member of its group, through shared memory.
 *
 * For engines whose every rank schedules and must decide alike. Rank 0 alone asks the daemon and
 * writes what it saw at each point, "nothing yet" included. The others read it at the same points.
 * Rank 0 connects with KVT_MIRROR in options->flags and opens the group first. Members receive the
 * same messages in the same order, each from the first one on, however late they join.
 *
 * @data   copied.
 * @bytes  0 to KVT_MIRROR_MESSAGE_MAX.
 * Waits while the slowest member has some 32 KiB unread; members that have not joined count. Spins
 * up to options->spin_budget_ns, then sleeps. Errors, after which nothing was sent: -EMSGSIZE bytes
 * is too large, -ETIMEDOUT (options->timeout_ns), -ENOTSUP no KVT_MIRROR, -ENOTCONN no group, or
 * not rank 0, -EBADMSG a member damaged the mirror, -ECONNRESET the group has ended: noticed within
 * 50 ms of a wait. */
int kvt_mirror_write(struct kvt_client *client, const void *data, uint32_t bytes);

/** Take the next message of rank 0; for members of a group.
 *
 * @buffer  of `size` bytes; KVT_MIRROR_MESSAGE_MAX suffices for any.
 * Returns the message's bytes, 0 or more. Waits for it as kvt_mirror_write() does. Errors:
 * -EMSGSIZE it is larger, and stays the next one, -ETIMEDOUT, -ENOTSUP the group has no mirror,
 * -ENOTCONN no member, -EBADMSG rank 0 damaged the mirror, -ECONNRESET the group has ended. */
int kvt_mirror_read(struct kvt_client *client, void *buffer, uint32_t size);

#pragma GCC visibility pop

#ifdef __cplusplus
}
#endif
#endif
