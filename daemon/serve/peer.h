/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_DAEMON_SERVE_PEER_H
#define KVT_DAEMON_SERVE_PEER_H

/**
 * @file peer.h
 * The process at the other end of a control socket, as the kernel knows it.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/** The process that called connect(). Others may have inherited the socket. */
struct kvt_peer {
	pid_t pid; /* in our PID namespace; 0 if it is not visible there */
	uid_t uid;
	gid_t gid;
	bool privileged; /* uid 0, our uid, or a member of the admin group */
};

/** Read the credentials of a connected socket. `admin_gid` (gid_t)-1: no such group. */
int kvt_peer_read(int fd, gid_t admin_gid, struct kvt_peer *ret_peer);

/** Open a pidfd for the peer and read its start time (clock ticks since boot, 0: unknown). Uses
 * SO_PEERPIDFD where the kernel has it, else pidfd_open() on a process that is older than the
 * accepted connection. -ESRCH: it is gone. */
int kvt_peer_pidfd(int fd, const struct kvt_peer *peer, uint64_t accepted_boot_ns, int *ret_pidfd,
		   uint64_t *ret_start_time);

/** True if `claimed`, the peer's own getpid(), is process `pid`: the same number, or its number in
 * its own PID namespace. */
bool kvt_peer_is_pid(pid_t pid, pid_t claimed);

/** Open a pidfd by pid and start time (from kvt_peer_pidfd()). -ESRCH: it is gone. */
int kvt_peer_pidfd_of(pid_t pid, uint64_t start_time, int *ret_pidfd);

/** Find a group by name or number. -ENOENT and (gid_t)-1 if there is none; "" gives 0 and -1. */
int kvt_peer_group(const char *name, gid_t *ret_gid);

/** CLOCK_BOOTTIME, the clock of process start times. */
uint64_t kvt_peer_boot_ns(void);

#endif
