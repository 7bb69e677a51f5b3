/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_DAEMON_PEER_H
#define KVT_DAEMON_PEER_H

/**
 * @file peer.h
 * Who is at the other end of a control socket, as the kernel tells it.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/** The process that called connect(), whoever uses the socket now. */
struct kvt_peer {
	pid_t pid; /* in our PID namespace; 0 if it is not visible there */
	uid_t uid;
	gid_t gid;
	bool privileged; /* uid 0, our uid, or a member of the admin group */
};

/** Credentials of a connected socket. `admin_gid` (gid_t)-1: no such group. */
int kvt_peer_read(int fd, gid_t admin_gid, struct kvt_peer *ret_peer);

/** A pidfd for the peer and the time its process started (clock ticks since boot, 0 unknown):
 * SO_PEERPIDFD where the kernel has it, else pidfd_open() on a process that had started when the
 * connection was accepted. -ESRCH if it is gone. */
int kvt_peer_pidfd(int fd, const struct kvt_peer *peer, uint64_t accepted_boot_ns, int *ret_pidfd,
		   uint64_t *ret_start_time);

/** Whether `claimed`, the peer's own getpid(), names the process `pid`: it is the same number, or
 * the number that the process has in a PID namespace of its own. */
bool kvt_peer_is_pid(pid_t pid, pid_t claimed);

/** pidfd of a process that is known by number and start time (as kvt_peer_pidfd() told it). -ESRCH:
 * it is gone. */
int kvt_peer_pidfd_of(pid_t pid, uint64_t start_time, int *ret_pidfd);

/** Group by name or number; (gid_t)-1 and -ENOENT if there is none. "" gives (gid_t)-1 and 0. */
int kvt_peer_group(const char *name, gid_t *ret_gid);

/** CLOCK_BOOTTIME, which process start times count in. */
uint64_t kvt_peer_boot_ns(void);

#endif
