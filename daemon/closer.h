/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_DAEMON_CLOSER_H
#define KVT_DAEMON_CLOSER_H

/**
 * @file closer.h
 * Last references to files that clients can make slow are dropped by another process.
 *
 * Dropping the last reference to a file releases it, and a client chooses how long that takes. A
 * control socket may have descriptors in its queue: a TCP socket that lingers, a memfd of many
 * gigabytes. A doorbell may be in an epoll set whose mutex a client holds while it waits for a page
 * that never comes. A thread of ours would not do: exec and exit wait for all threads.
 *
 * So a child process, the closer, has a duplicate of each such descriptor from the moment it is
 * ours until after we have closed it. Our close(), and our exit however it comes, then releases
 * nothing. Requests of io_uring refer to files, too: a descriptor that is still polled *leaves*,
 * and the closer is told when the poll has ended.
 *
 * The closer itself never drops a last reference either. It leaves that to children of its own, at
 * most KVT_CLOSER_PER_UID for one user, so that one user's files keep only that user's waiting.
 * When its owner is gone, it hands everything to such children and exits.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define KVT_CLOSER_FDS 8      /* most descriptors under one key */
#define KVT_CLOSER_PER_UID 4  /* processes that release what one user had */
#define KVT_CLOSER_PROCESSES 64
#define KVT_UID_UNKNOWN UINT32_MAX

/** Descriptors that leave this process. */
struct kvt_leaving {
	uint64_t tag; /* of the poll that still refers to them; 0: none does */
	uint32_t key; /* they are held under; 0: they are not */
	uint32_t uid; /* whose they were */
	uint32_t n_fds;
	int fds[KVT_CLOSER_FDS]; /* a negative one is skipped */
};

struct kvt_closer {
	int fd; /* -1: there is none */
	pid_t pid;
	bool lost; /* it ended: start another one and hold everything again */
	bool full; /* that was said */
	bool blocked;   /* its socket was full; nothing is sent until kvt_closer_flush() tries */
	uint64_t sends; /* system calls made to tell it something */
	uint32_t most;
	uint32_t *free_keys;
	uint32_t n_free_keys;
	struct kvt_leaving *leaving;
	uint32_t n_leaving;
};

/** Start the process; `most` descriptors or groups of them are held or leaving at a time. Also for
 * one whose closer was lost: nothing is held then. -ENOMEM, or why no process can be started. */
int kvt_closer_start(struct kvt_closer *closer, uint32_t most);
/** Forget it, as the last thing before the owner exits. It stays until then if it holds anything;
 * else it ends at once, which is waited for, but not for long. */
void kvt_closer_forget(struct kvt_closer *closer);

/** Have the closer hold duplicates of `fds`, which were user `uid`'s. Returns their key, 0 if it
 * cannot take them now: then hand them to kvt_closer_leave() without a key. Never blocks. */
uint32_t kvt_closer_hold(struct kvt_closer *closer, uint32_t uid, const int *fds, uint32_t n_fds);
/** Close descriptors here, and have the closer release them when their poll has ended. Takes them
 * all, also those that are not held yet. */
void kvt_closer_leave(struct kvt_closer *closer, const struct kvt_leaving *leaving);
/** The poll with this tag has ended. */
void kvt_closer_poll_ended(struct kvt_closer *closer, uint64_t tag);
/** Go on with what leaves. Returns whether something is left for later. */
bool kvt_closer_flush(struct kvt_closer *closer);
/** Whether so much leaves that nothing more should come. */
bool kvt_closer_is_busy(const struct kvt_closer *closer);

/** The process. Returns an exit status. */
int kvt_closer_main(void);

#endif
