/* SPDX-License-Identifier: Apache-2.0 */
#include "base/socket.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "shm/limit.h"
#include "shm/stopped.h"

/* Check that the path names the locked file: another process may have removed it (TOCTOU). */
static bool is_current(int lock, const char *path)
{
	struct stat ours, there;

	return fstat(lock, &ours) == 0 && stat(path, &there) == 0 && ours.st_ino == there.st_ino &&
	       ours.st_dev == there.st_dev;
}

/* Connect without waiting. Returns the socket. -ECONNREFUSED: its process has ended; -EPROTOTYPE:
 * it is of another type. */
static int try_connect(const char *path)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	int fd, rc;

	if (strlen(path) >= sizeof(address.sun_path))
		return -ENAMETOOLONG;
	memcpy(address.sun_path, path, strlen(path));
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return -errno;
	if (connect(fd, (struct sockaddr *)&address, sizeof(address)) == 0)
		return fd;
	rc = -errno;
	close(fd);
	return rc;
}

/* True if a process has a socket of this name, of any type. */
static bool listens(const char *path)
{
	int fd = try_connect(path);

	if (fd >= 0)
		close(fd);
	return fd >= 0 || fd == -EPROTOTYPE || fd == -EAGAIN;
}

int kvt_name_take(struct kvt_name *name, const char *path)
{
	*name = (struct kvt_name){ .lock = -1 };
	if (!*path || strlen(path) >= sizeof(name->path))
		return -EINVAL;
	snprintf(name->lock_path, sizeof(name->lock_path), "%s.lock", path);
	for (;;) {
		bool is_new = access(name->lock_path, F_OK) != 0;
		int fd = open(name->lock_path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
		int rc = fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0 ? 0 : -errno;

		/* A program that locks no such file, as a daemon, listens there. */
		if (rc == 0 && is_new && listens(path)) {
			unlink(name->lock_path);
			close(fd);
			return -EADDRINUSE;
		}
		if (rc == 0 && is_current(fd, name->lock_path)) {
			name->lock = fd;
			memcpy(name->path, path, strlen(path));
			return 0;
		}
		if (fd >= 0)
			close(fd);
		if (rc != 0)
			return rc == -EWOULDBLOCK ? -EADDRINUSE : rc;
	}
}

static void remove_socket(const char *path)
{
	struct stat there;

	if (lstat(path, &there) == 0 && S_ISSOCK(there.st_mode))
		unlink(path);
}

int kvt_name_bind(const struct kvt_name *name, int type)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, type | SOCK_CLOEXEC, 0), rc;
	mode_t mask;

	if (fd < 0)
		return -errno;
	remove_socket(name->path);
	memcpy(address.sun_path, name->path, sizeof(name->path));
	mask = umask(0177);
	rc = bind(fd, (struct sockaddr *)&address, sizeof(address)) == 0 ? fd : -errno;
	umask(mask);
	if (rc < 0)
		close(fd);
	return rc == -EADDRINUSE ? -EEXIST : rc; /* what is no socket */
}

const char *kvt_name_text(int error)
{
	return error == EEXIST ? "it exists and is no socket: remove it, or choose another path" :
				 kvt_limit_text(error);
}

void kvt_name_release(struct kvt_name *name)
{
	if (!*name->path)
		return;
	if (is_current(name->lock, name->lock_path)) {
		remove_socket(name->path);
		unlink(name->lock_path); /* before closing: see is_current() */
	}
	close(name->lock);
	*name = (struct kvt_name){ .lock = -1 };
}

int kvt_socket_stopped(const char *path)
{
	int fd = try_connect(path), pid;

	if (fd < 0)
		return 0;
	pid = kvt_peer_stopped(fd);
	close(fd);
	return pid;
}

bool kvt_send_with_fd(int to, const void *message, size_t bytes, int fd)
{
	union {
		struct cmsghdr head;
		char bytes[CMSG_SPACE(sizeof(int))];
	} control = { .head = { .cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET,
				.cmsg_type = SCM_RIGHTS } };
	struct iovec part = { (void *)(uintptr_t)message, bytes };
	struct msghdr all = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control,
			      .msg_controllen = sizeof(control) };

	memcpy(CMSG_DATA(&control.head), &fd, sizeof(fd));
	return sendmsg(to, &all, MSG_DONTWAIT | MSG_NOSIGNAL) == (ssize_t)bytes;
}
