/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_DAEMON_KEEP_CLOSER_H
#define KVT_DAEMON_KEEP_CLOSER_H

/**
 * @file closer.h
 * The closer: a process that drops the last reference to files that clients can make slow.
 *
 * Dropping the last reference releases a file, and a client can make that take long. A control
 * socket may have descriptors queued: a TCP socket that lingers, a memfd of many gigabytes. A
 * doorbell may be in an epoll set whose mutex a client holds during an endless page fault. A thread
 * is not enough: exec and exit wait for all threads.
 *
 * So a child process, the closer, holds a duplicate of each such descriptor until after we have
 * closed ours. Neither our close() nor our exit then releases a file. Requests of io_uring refer to
 * files, too: a descriptor that is still polled *leaves*, and the closer is told once the poll has
 * ended.
 *
 * The closer never drops a last reference itself. Its children do, at most KVT_CLOSER_PER_UID for
 * one uid, so slow files delay only their own uid. When its owner exits, the closer hands
 * everything to such children and exits.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define KVT_CLOSER_FDS 8      /* most descriptors under one key */
#define KVT_CLOSER_PER_UID 4  /* processes that release files of one uid */
#define KVT_CLOSER_PROCESSES 64
#define KVT_CLOSER_LANES 8    /* processes that wake clients, see lane_process.h */
#define KVT_UID_UNKNOWN UINT32_MAX

/** A group of descriptors that leaves this process. */
struct kvt_leaving {
	uint64_t tag; /* of a poll that still refers to them; 0: none */
	uint32_t key; /* with the closer; 0: not held */
	uint32_t uid; /* of the client */
	uint32_t lane; /* has duplicates until it has given lane_answers answers */
	uint64_t lane_answers; /* 0: no lane has any */
	uint32_t n_fds;
	int fds[KVT_CLOSER_FDS]; /* a negative one is skipped */
};

struct kvt_closer {
	int fd; /* -1: none */
	int lanes[KVT_CLOSER_LANES]; /* our ends; the closer starts a lane at its first request */
	uint32_t n_lanes;
	uint64_t answers[KVT_CLOSER_LANES]; /* of each lane, counted by serve/lane.c */
	pid_t pid;
	bool lost; /* it ended: see kvt_closer_replace() */
	uint32_t failures;    /* closers in a row that ended soon after their start */
	uint64_t started_ns;  /* 0: by kvt_closer_start() */
	uint64_t start_at_ns; /* when to start the next one; 0: the loss is not logged yet */
	bool full; /* that was logged */
	bool blocked;   /* its socket was full; the next try is kvt_closer_flush()'s */
	uint64_t sends; /* sendmsg() calls */
	uint32_t most;
	uint32_t *free_keys;
	uint32_t n_free_keys;
	struct kvt_leaving *leaving;
	uint32_t n_leaving;
};

/** Start the closer for at most `most` groups held or leaving at a time. It starts up to `n_lanes`
 * <= KVT_CLOSER_LANES lanes on demand. -ENOMEM, or the error of fork or socketpair. */
int kvt_closer_start(struct kvt_closer *closer, uint32_t most, uint32_t n_lanes);
/** Replace a closer that ended, after a backoff of 1 ms to 1 s. Call it often, with
 * CLOCK_MONOTONIC; it does nothing while the closer lives. True: hold everything again. */
bool kvt_closer_replace(struct kvt_closer *closer, uint64_t now_ns);
/** Let go of the closer, right before the owner exits. If it holds nothing, it exits at once, and
 * this waits for it, at most 20 ms. */
void kvt_closer_forget(struct kvt_closer *closer);

/** Have the closer hold duplicates of `fds`, shared with `uid`. Returns their key; 0 if it cannot
 * take them now: then pass them to kvt_closer_leave() without a key. Never blocks. */
uint32_t kvt_closer_hold(struct kvt_closer *closer, uint32_t uid, const int *fds, uint32_t n_fds);
/** Close descriptors here and have the closer release them once their poll has ended. Consumes all,
 * held or not. */
void kvt_closer_leave(struct kvt_closer *closer, const struct kvt_leaving *leaving);
/** The poll with this tag has ended. */
void kvt_closer_poll_ended(struct kvt_closer *closer, uint64_t tag);
/** Pass leaving descriptors on. True: call again, because some are left or the closer is lost. */
bool kvt_closer_flush(struct kvt_closer *closer);
/** True if so many are leaving that no new descriptors should be taken. */
bool kvt_closer_is_busy(const struct kvt_closer *closer);

/** Main function of the closer process. Returns an exit status. */
int kvt_closer_main(void);

#endif
