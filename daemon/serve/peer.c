/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file peer.c
 * The process behind a control socket: credentials, pidfd, start time (peer.h).
 *
 * A pid alone proves nothing, because the kernel reuses it. A process is therefore known by a
 * pidfd, or by pid and start time checked after pidfd_open(). Called wherever a process connects
 * or is recovered, and by options.c for groups.
 */
#include "daemon/serve/peer.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

static bool in_groups(int fd, gid_t wanted)
{
	gid_t groups[1024];
	socklen_t bytes = sizeof(groups);

	if (getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, groups, &bytes) != 0)
		return false;
	for (size_t i = 0; i < bytes / sizeof(gid_t); i++)
		if (groups[i] == wanted)
			return true;
	return false;
}

int kvt_peer_read(int fd, gid_t admin_gid, struct kvt_peer *ret_peer)
{
	struct ucred credentials;
	socklen_t bytes = sizeof(credentials);
	bool privileged;

	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &bytes) != 0)
		return -errno;
	privileged = credentials.uid == 0 || credentials.uid == geteuid() ||
		     (admin_gid != (gid_t)-1 &&
		      (credentials.gid == admin_gid || in_groups(fd, admin_gid)));
	*ret_peer = (struct kvt_peer){ .pid = credentials.pid, .uid = credentials.uid,
				       .gid = credentials.gid, .privileged = privileged };
	return 0;
}

uint64_t kvt_peer_boot_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_BOOTTIME, &now);
	return (uint64_t)now.tv_sec * 1000000000ull + (uint64_t)now.tv_nsec;
}

/* Read field 22 of /proc/PID/stat, counted after the last ')': the program's name may hold any. */
static uint64_t process_start(pid_t pid)
{
	char path[64], text[1024], *at;
	uint64_t ticks = 0;
	ssize_t n;
	int fd;

	if (pid <= 0)
		return 0;
	snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return 0;
	n = read(fd, text, sizeof(text) - 1);
	close(fd);
	if (n <= 0)
		return 0;
	text[n] = '\0';
	at = strrchr(text, ')');
	for (int field = 2; at && field < 22; field++)
		at = strchr(at + 1, ' ');
	if (at)
		ticks = strtoull(at + 1, NULL, 10);
	return ticks;
}

int kvt_peer_pidfd(int fd, const struct kvt_peer *peer, uint64_t accepted_boot_ns, int *ret_pidfd,
		   uint64_t *ret_start_time)
{
	uint64_t tick_ns = 1000000000ull / (uint64_t)sysconf(_SC_CLK_TCK), start;
	int pidfd = -1;
	socklen_t bytes = sizeof(pidfd);

	if (getsockopt(fd, SOL_SOCKET, SO_PEERPIDFD, &pidfd, &bytes) == 0) {
		fcntl(pidfd, F_SETFD, FD_CLOEXEC);
		*ret_pidfd = pidfd;
		*ret_start_time = process_start(peer->pid);
		return 0;
	}
	if (errno == ESRCH || errno == EINVAL)
		return -ESRCH;
	if (peer->pid <= 0)
		return -ENOTSUP;
	pidfd = (int)syscall(SYS_pidfd_open, peer->pid, 0);
	if (pidfd < 0)
		return -errno;
	/* The pid may have been reused since connect(): a process younger than the connection is
	 * not the peer. */
	start = process_start(peer->pid);
	if (start == 0 || start * tick_ns > accepted_boot_ns) {
		close(pidfd);
		return -ESRCH;
	}
	*ret_pidfd = pidfd;
	*ret_start_time = start;
	return 0;
}

int kvt_peer_pidfd_of(pid_t pid, uint64_t start_time, int *ret_pidfd)
{
	int pidfd = pid > 0 ? (int)syscall(SYS_pidfd_open, pid, 0) : -ESRCH;

	if (pidfd < 0)
		return -ESRCH;
	/* The pid may have been reused. */
	if (process_start(pid) != start_time) {
		close(pidfd);
		return -ESRCH;
	}
	*ret_pidfd = pidfd;
	return 0;
}

bool kvt_peer_is_pid(pid_t pid, pid_t claimed)
{
	char path[64], line[256], *last;
	bool same = false;
	FILE *file;

	if (pid == claimed)
		return true;
	if (pid <= 0)
		return claimed > 0; /* not visible here: the kernel's pidfd decides */
	snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
	file = fopen(path, "re");
	if (!file)
		return false;
	while (!same && fgets(line, sizeof(line), file)) {
		if (strncmp(line, "NSpid:", 6) != 0)
			continue;
		last = strrchr(line, '\t');
		same = last && atol(last + 1) == (long)claimed;
	}
	fclose(file);
	return same;
}

int kvt_peer_group(const char *name, gid_t *ret_gid)
{
	struct group *group;
	char *end;
	unsigned long number;

	if (!*name) {
		*ret_gid = (gid_t)-1;
		return 0;
	}
	group = getgrnam(name);
	if (group) {
		*ret_gid = group->gr_gid;
		return 0;
	}
	number = strtoul(name, &end, 10);
	if (*end || end == name || number >= (gid_t)-1) {
		*ret_gid = (gid_t)-1;
		return -ENOENT;
	}
	*ret_gid = (gid_t)number;
	return 0;
}
