/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/notify.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define LISTEN_FDS_START 3

static int parse_u64(const char *text, uint64_t *ret_value)
{
	char *end;
	unsigned long long value;

	if (*text < '0' || *text > '9')
		return -EINVAL;
	errno = 0;
	value = strtoull(text, &end, 10);
	if (errno || *end)
		return -EINVAL;
	*ret_value = value;
	return 0;
}

/* A variable that names a process is for us only if it names us. */
static int for_us(const char *variable)
{
	const char *text = getenv(variable);
	uint64_t pid;

	return !text || (parse_u64(text, &pid) == 0 && pid == (uint64_t)getpid());
}

static int notify_connect(struct kvt_notify *notify, const char *name)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	size_t n = strlen(name);
	int fd, error;

	if ((name[0] != '/' && name[0] != '@') || n < 2 || n >= sizeof(address.sun_path))
		return -EINVAL;
	memcpy(address.sun_path, name, n);
	if (name[0] == '@')
		address.sun_path[0] = '\0';
	fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return -errno;
	if (connect(fd, (struct sockaddr *)&address,
		    (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n)) != 0) {
		error = -errno;
		close(fd);
		return error;
	}
	notify->fd = fd;
	return 0;
}

int kvt_notify_open(struct kvt_notify *notify, char *why, size_t why_size)
{
	const char *name = getenv("NOTIFY_SOCKET"), *usec = getenv("WATCHDOG_USEC");
	uint64_t watchdog_usec = 0;
	int error = 0;

	*notify = (struct kvt_notify){ .fd = -1 };
	if (name && (error = notify_connect(notify, name)) != 0) {
		snprintf(why, why_size, "cannot reach NOTIFY_SOCKET '%.100s': %s", name,
			 strerror(-error));
	} else if (usec && for_us("WATCHDOG_PID")) {
		error = parse_u64(usec, &watchdog_usec);
		if (error || watchdog_usec > UINT64_MAX / 1000) {
			snprintf(why, why_size, "WATCHDOG_USEC '%.40s' is not a number of "
				 "microseconds", usec);
			error = -EINVAL;
		}
	}
	unsetenv("NOTIFY_SOCKET");
	unsetenv("WATCHDOG_USEC");
	unsetenv("WATCHDOG_PID");
	if (error) {
		kvt_notify_close(notify);
		return error;
	}
	notify->watchdog_ns = watchdog_usec * 1000;
	return 0;
}

void kvt_notify_close(struct kvt_notify *notify)
{
	if (notify->fd >= 0)
		close(notify->fd);
	notify->fd = -1;
}

int kvt_notify_send(const struct kvt_notify *notify, const char *format, ...)
{
	char text[1024];
	va_list arguments;
	int n;

	if (notify->fd < 0)
		return 0;
	va_start(arguments, format);
	n = vsnprintf(text, sizeof(text), format, arguments);
	va_end(arguments);
	if (n < 0 || (size_t)n >= sizeof(text))
		return 0;
	return send(notify->fd, text, (size_t)n, MSG_DONTWAIT | MSG_NOSIGNAL) == n;
}

/* SO_ACCEPTCONN, type and family together: anything else would fail later and less clearly. */
static int listen_fd_good(int fd)
{
	int value;
	socklen_t n = sizeof(value);

	if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &value, &n) != 0 || value != AF_UNIX)
		return 0;
	n = sizeof(value);
	if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &value, &n) != 0 || value != SOCK_SEQPACKET)
		return 0;
	n = sizeof(value);
	return getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &value, &n) == 0 && value;
}

int kvt_notify_listen_fd(int *ret_fd, char *why, size_t why_size)
{
	const char *fds = getenv("LISTEN_FDS");
	uint64_t n = 0;
	int error = 0, fd = -1;

	if (fds && getenv("LISTEN_PID") && for_us("LISTEN_PID")) {
		if (parse_u64(fds, &n) != 0 || n > 1) {
			snprintf(why, why_size, "LISTEN_FDS is '%.20s': kvtrunkd takes one socket",
				 fds);
			error = -EINVAL;
		} else if (n == 1 && !listen_fd_good(LISTEN_FDS_START)) {
			snprintf(why, why_size, "the passed socket is not a listening unix socket "
				 "of type SEQPACKET: use ListenSequentialPacket=");
			error = -EINVAL;
		} else if (n == 1) {
			fd = LISTEN_FDS_START;
			fcntl(fd, F_SETFD, FD_CLOEXEC);
			fcntl(fd, F_SETFL, O_NONBLOCK);
		}
	}
	unsetenv("LISTEN_FDS");
	unsetenv("LISTEN_PID");
	unsetenv("LISTEN_FDNAMES");
	if (!error)
		*ret_fd = fd;
	return error;
}
