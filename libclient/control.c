/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The control socket: connect, send and receive messages with descriptors, until a deadline. Used
 * by welcome.c, wait.c and ops.c. Sizes, magic and version of a message are checked here, its
 * content by the caller. Descriptors of a refused message are closed.
 */

#include "libclient/control.h"
#include "libclient/fail.h"
#include "libclient/interrupt.h"
#include "shm/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

/* SCM_MAX_FD: with room for all, each can be closed. */
#define MESSAGE_FDS_MAX 253

static enum kvt_attach_state attach_state(int code)
{
	switch (code) {
	case 0:
		return KVT_ATTACH_OK;
	case -ENOENT:
	case -ECONNREFUSED:
	case -EPROTOTYPE:
		return KVT_ATTACH_NO_SOCKET;
	case -EACCES:
	case -EPERM:
		return KVT_ATTACH_NO_PERMISSION;
	case -EAGAIN:
	case -ETIMEDOUT:
		return KVT_ATTACH_STARTING;
	case -EPROTO:
		return KVT_ATTACH_WRONG_VERSION;
	case -ECONNRESET:
	case -ESHUTDOWN:
	case -ESTALE:
		return KVT_ATTACH_GONE;
	default:
		return KVT_ATTACH_FAILED;
	}
}

void kvt_error_set(struct kvt_error *error, int code, int reason, const char *format, ...)
{
	va_list arguments;

	if (!error)
		return;
	error->code = code;
	error->reason = reason;
	error->available = error->needed = 0;
	error->attach_state = attach_state(code);
	va_start(arguments, format);
	vsnprintf(error->text, sizeof(error->text), format, arguments);
	va_end(arguments);
}

/* Wait for one descriptor. 0, -ETIMEDOUT, -EINTR, or another negative errno. */
static int wait_for(int fd, short events, int64_t deadline_ns)
{
	struct pollfd poll_fd = { .fd = fd, .events = events };

	for (;;) {
		int64_t left = kvt_interrupt_slice(deadline_ns), now_ns = kvt_now_ns();
		struct timespec timeout;
		int n;

		if (now_ns >= deadline_ns)
			return -ETIMEDOUT;
		if (left != INT64_MAX)
			left = left > now_ns ? left - now_ns : 0;
		timeout.tv_sec = left / 1000000000;
		timeout.tv_nsec = left % 1000000000;
		n = ppoll(&poll_fd, 1, left == INT64_MAX ? NULL : &timeout, NULL);
		if (n > 0)
			return 0;
		if (n < 0 && errno != EINTR)
			return -errno;
		if (kvt_client_interrupted())
			return -EINTR;
	}
}

/* Explain a missing socket. Its daemon may live: the lock beside it tells, if we may read it. */
static void explain_absence(const char *path, char *text, size_t size)
{
	int stem = (int)strlen(path) - (int)strlen(".sock");
	char lock[256], line[32] = "";
	long pid;
	FILE *file;

	snprintf(text, size, strcmp(path, KVT_DEFAULT_SOCKET) == 0 ?
		 "start kvtrunkd, or set KVTRUNK_SOCKET to its socket" :
		 "start kvtrunkd there, or name its socket");
	if (stem <= 0 || strcmp(path + stem, ".sock") != 0)
		return;
	snprintf(lock, sizeof(lock), "%.*s.lock.d/lock", stem, path);
	file = fopen(lock, "re");
	if (!file && errno == EACCES)
		snprintf(text, size, "a daemon that lost its socket may live (%.*s.lock.d): its "
			 "user can have it made again by SIGHUP; else start kvtrunkd", stem, path);
	pid = file && fgets(line, sizeof(line), file) ? strtol(line, NULL, 10) : 0;
	if (pid > 0 && (kill((pid_t)pid, 0) == 0 || errno == EPERM))
		snprintf(text, size, "its daemon, pid %ld, starts or stops: try again. If it does "
			 "neither, its socket was removed: kill -HUP %ld makes it again, or its "
			 "log says why it cannot", pid, pid);
	if (file)
		fclose(file);
}

static int connect_error(struct kvt_error *error, int code, const char *path)
{
	const char *cure = "";
	struct stat status;
	char text[256];

	switch (code) {
	case -ENOENT:
		explain_absence(path, text, sizeof(text));
		cure = text;
		break;
	case -ECONNREFUSED:
		cure = stat(path, &status) == 0 && !S_ISSOCK(status.st_mode) ?
			       "this is no socket: give the path of kvtrunkd's" :
			       "the socket is there but its daemon is not: start kvtrunkd again";
		break;
	case -EACCES:
	case -EPERM:
		cure = "join the group that owns the socket, or run as the daemon's user";
		break;
	case -EPROTOTYPE:
		cure = "this is not a SEQPACKET socket: another program listens here";
		break;
	case -ETIMEDOUT:
		cure = "the daemon does not accept: it hangs, or too many clients connect at once";
		break;
	case -EINTR:
		cure = "a signal ended the call";
		break;
	default:
		cure = "see the errno";
	}
	kvt_error_set(error, code, 0, "%s: cannot connect to %s (%s): %s",
		      kvt_attach_state_name(attach_state(code)), path, kvt_errno_name(code), cure);
	return code;
}

/* A path, or with a leading @ a name in the abstract namespace. */
static int socket_address(const char *path, struct sockaddr_un *address, socklen_t *ret_bytes)
{
	size_t length = strlen(path);

	if (length == 0 || length >= sizeof(address->sun_path))
		return -ENAMETOOLONG;
	memset(address, 0, sizeof(*address));
	address->sun_family = AF_UNIX;
	memcpy(address->sun_path, path, length);
	*ret_bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + length + 1);
	if (path[0] == '@') {
		address->sun_path[0] = '\0';
		(*ret_bytes)--;
	}
	return 0;
}

/* Connect. A full backlog makes connect() wait: in slices, between which a signal ends it. */
static int connect_until(int fd, const struct sockaddr_un *address, socklen_t bytes,
			 int64_t deadline_ns)
{
	for (;;) {
		int64_t left = kvt_interrupt_slice(deadline_ns) - kvt_now_ns();
		struct timeval timeout;

		if (left < 1000000)
			left = 1000000;
		timeout.tv_sec = left / 1000000000;
		timeout.tv_usec = left % 1000000000 / 1000;
		setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof(timeout));
		if (connect(fd, (const struct sockaddr *)address, bytes) == 0)
			return 0;
		if (errno != EAGAIN && errno != EINTR)
			return -errno;
		if (kvt_client_interrupted())
			return -EINTR;
		if (kvt_now_ns() >= deadline_ns)
			return -ETIMEDOUT;
	}
}

int kvt_control_open(const char *path, int64_t deadline_ns, int *ret_fd, struct kvt_error *error)
{
	struct sockaddr_un address;
	socklen_t bytes;
	int fd, rc;

	if (!*path) {
		kvt_error_set(error, -EINVAL, 0, "the socket's path is empty: name the daemon's "
			      "socket, or unset KVTRUNK_SOCKET for the default");
		return -EINVAL;
	}
	if (socket_address(path, &address, &bytes) != 0) {
		kvt_error_set(error, -ENAMETOOLONG, 0,
			      "socket path is longer than %zu bytes: %.80s",
			      sizeof(address.sun_path) - 1, path);
		return -ENAMETOOLONG;
	}
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (fd < 0) {
		rc = -errno;
		kvt_error_set(error, rc, 0, "socket: %s: raise RLIMIT_NOFILE?",
			      kvt_errno_name(rc));
		return rc;
	}
	rc = connect_until(fd, &address, bytes, deadline_ns);
	if (rc == 0 && fcntl(fd, F_SETFL, O_NONBLOCK) != 0)
		rc = -errno;
	if (rc != 0) {
		close(fd);
		return connect_error(error, rc, path);
	}
	*ret_fd = fd;
	return 0;
}

int kvt_control_send(int fd, const void *message, size_t bytes, const void *more,
		     size_t more_bytes, int64_t deadline_ns)
{
	struct iovec iov[2] = {
		{ .iov_base = (void *)(uintptr_t)message, .iov_len = bytes },
		{ .iov_base = (void *)(uintptr_t)more, .iov_len = more_bytes },
	};
	struct msghdr header = { .msg_iov = iov, .msg_iovlen = more_bytes ? 2 : 1 };

	for (;;) {
		int rc;

		if (sendmsg(fd, &header, MSG_NOSIGNAL) >= 0)
			return 0;
		if (errno == EPIPE || errno == ECONNRESET || errno == ENOTCONN)
			return -ECONNRESET;
		if (errno != EAGAIN && errno != EINTR)
			return -errno;
		rc = wait_for(fd, POLLOUT, deadline_ns);
		if (rc != 0)
			return rc;
	}
}

static void close_all(const int *fds, unsigned int n)
{
	for (unsigned int i = 0; i < n; i++)
		close(fds[i]);
}

/* Take up to max_fds received descriptors. False: there were more, now closed. */
static bool take_fds(struct msghdr *header, int *fds, unsigned int max_fds, unsigned int *ret_n)
{
	struct cmsghdr *part;
	unsigned int n = 0;
	bool fits = true;

	for (part = CMSG_FIRSTHDR(header); part; part = CMSG_NXTHDR(header, part)) {
		size_t bytes = part->cmsg_len - CMSG_LEN(0);

		if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS)
			continue;
		for (size_t i = 0; i + sizeof(int) <= bytes; i += sizeof(int)) {
			int fd;

			memcpy(&fd, CMSG_DATA(part) + i, sizeof(fd));
			if (n < max_fds) {
				fds[n++] = fd;
			} else {
				close(fd);
				fits = false;
			}
		}
	}
	*ret_n = n;
	return fits;
}

static bool is_message(const struct kvt_message *message, size_t bytes)
{
	return bytes >= sizeof(*message) && message->magic == KVT_MESSAGE_MAGIC &&
	       message->bytes == bytes && message->version == KVT_ABI;
}

int kvt_control_receive(int fd, void *packet, size_t bytes, int *ret_fds, unsigned int max_fds,
			unsigned int *ret_n_fds, int64_t deadline_ns)
{
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(MESSAGE_FDS_MAX * sizeof(int))];
	} control;
	struct iovec iov = { .iov_base = packet, .iov_len = bytes };
	const struct kvt_message *message = packet;
	unsigned int n_fds = 0;
	int flags = 0;
	bool fits;
	ssize_t got;

	for (;;) {
		struct msghdr header = {
			.msg_iov = &iov,
			.msg_iovlen = 1,
			.msg_control = control.bytes,
			.msg_controllen = sizeof(control.bytes),
		};

		got = recvmsg(fd, &header, MSG_CMSG_CLOEXEC);
		if (got >= 0) {
			fits = take_fds(&header, ret_fds, max_fds, &n_fds) &&
			       !(header.msg_flags & (MSG_CTRUNC | MSG_TRUNC));
			flags = header.msg_flags;
			break;
		}
		if (errno == ECONNRESET)
			return -ECONNRESET;
		if (errno != EAGAIN && errno != EINTR)
			return -errno;
		if (deadline_ns == 0)
			return -EAGAIN;
		got = wait_for(fd, POLLIN, deadline_ns);
		if (got != 0)
			return (int)got;
	}
	if (got == 0) {
		close_all(ret_fds, n_fds);
		return -ECONNRESET;
	}
	if (!is_message(message, (size_t)got) || (!fits && !(flags & MSG_CTRUNC))) {
		close_all(ret_fds, n_fds);
		return -EPROTO;
	}
	if (!fits) { /* the kernel leaves out descriptors for which this process has no number */
		close_all(ret_fds, n_fds);
		return -EMFILE;
	}
	if (ret_n_fds)
		*ret_n_fds = n_fds;
	return (int)got;
}
