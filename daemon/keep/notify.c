/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file notify.c
 * The daemon's side of sd_notify(3), LISTEN_FDS and the supervisor's messages (notify.h).
 *
 * Inputs are environment variables, which count only if they name this process. Messages that must
 * arrive are kept in `owed` in their order while the socket is full. Called by start.c, timers.c
 * and stored.c.
 */
#include "daemon/keep/notify.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "daemon/keep/rights.h"
#include "shm/assert.h"

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

/* Check that a variable with a pid names this process. */
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

/* Return the supervisor's descriptor; -1 unless the variable names this process and the end of a
 * socket pair that our parent made. */
static int passed_pair(void)
{
	const char *text = getenv(KVT_NOTIFY_PAIR);
	struct ucred maker = { 0 };
	socklen_t bytes = sizeof(maker);
	int fd = -1;
	char *end;

	if (text && strtol(text, &end, 10) == (long)getpid() && *end == ':')
		fd = (int)strtol(end + 1, &end, 10);
	if (fd < 0 || *end || getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &maker, &bytes) != 0 ||
	    maker.pid != getppid() || fcntl(fd, F_SETFD, FD_CLOEXEC) != 0)
		return -1;
	return fd;
}

/* Read the state of the last upgrade from the environment. */
static void read_upgrade(struct kvt_upgrade *upgrade)
{
	const char *text = getenv(KVT_NOTIFY_UPGRADE), *why;
	char *end;

	if (!text)
		return;
	upgrade->id = strtoull(text, &end, 16);
	upgrade->trial = strncmp(end, ":try:", 5) == 0;
	why = *end ? strchrnul(end + 1, ':') : end;
	snprintf(upgrade->why, sizeof(upgrade->why), "%s", *why ? why + 1 : "");
}

int kvt_notify_open(struct kvt_notify *notify, char *why, size_t why_size)
{
	const char *name = getenv("NOTIFY_SOCKET"), *usec = getenv("WATCHDOG_USEC");
	const char *places = getenv("FDSTORE");
	uint64_t watchdog_usec = 0, store = 0;
	int error = 0;

	*notify = (struct kvt_notify){ .fd = passed_pair() };
	notify->pair = notify->fd >= 0;
	if (notify->pair)
		read_upgrade(&notify->upgrade);
	if (notify->fd < 0 && name && (error = notify_connect(notify, name)) != 0) {
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
	if (notify->fd >= 0 && places && parse_u64(places, &store) == 0)
		notify->store = store < UINT32_MAX ? (uint32_t)store : UINT32_MAX;
	unsetenv(KVT_NOTIFY_PAIR);
	unsetenv(KVT_NOTIFY_UPGRADE);
	unsetenv("FDSTORE");
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

static int send_text(const struct kvt_notify *notify, const char *text)
{
	size_t n = strlen(text);

	return send(notify->fd, text, n, MSG_DONTWAIT | MSG_NOSIGNAL) == (ssize_t)n ? 0 : -errno;
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
	return send_text(notify, text) == 0;
}

static void forget_oldest(struct kvt_notify *notify)
{
	uint32_t bytes = (uint32_t)strlen(notify->owed) + 1;

	KVT_ASSERT(bytes <= notify->owed_bytes);
	notify->owed_bytes -= bytes;
	memmove(notify->owed, notify->owed + bytes, notify->owed_bytes);
}

bool kvt_notify_owes(struct kvt_notify *notify)
{
	while (notify->owed_bytes) {
		int error = send_text(notify, notify->owed);

		if (error == -EAGAIN || error == -EINTR || error == -ENOBUFS || error == -ENOMEM)
			return true;
		forget_oldest(notify); /* sent, or no manager listens */
	}
	return false;
}

void kvt_notify_tell(struct kvt_notify *notify, const char *format, ...)
{
	char text[sizeof(notify->owed)];
	va_list arguments;
	int n;

	va_start(arguments, format);
	n = vsnprintf(text, sizeof(text), format, arguments);
	va_end(arguments);
	if (notify->fd < 0 || n < 0 || (size_t)n >= sizeof(text))
		return;
	while (notify->owed_bytes + (uint32_t)n + 1 > sizeof(notify->owed))
		forget_oldest(notify);
	memcpy(notify->owed + notify->owed_bytes, text, (size_t)n + 1);
	notify->owed_bytes += (uint32_t)n + 1;
	KVT_ASSERT(notify->owed_bytes <= sizeof(notify->owed));
	kvt_notify_owes(notify);
}

/* Send a message that must arrive: wait a moment if the manager's queue is full. */
static int send_surely(struct kvt_notify *notify, const char *text, const int *fds,
		       uint32_t n_fds)
{
	struct pollfd room = { .fd = notify->fd, .events = POLLOUT };
	size_t n = strlen(text);
	ssize_t sent;

	if (notify->fd < 0)
		return -ENOTCONN;
	sent = kvt_rights_send(notify->fd, text, n, fds, n_fds);
	if (sent < 0 && (errno == EAGAIN || errno == EINTR) && !notify->hangs) {
		poll(&room, 1, KVT_NOTIFY_PATIENCE_MS);
		sent = kvt_rights_send(notify->fd, text, n, fds, n_fds);
	}
	notify->hangs = sent < 0 && errno == EAGAIN;
	return sent == (ssize_t)n ? 0 : -errno;
}

int kvt_notify_keep(struct kvt_notify *notify, const char *name, int fd)
{
	char text[128];

	KVT_ASSERT(fd >= 0 && strlen(name) < KVT_STORED_NAME_BYTES);
	snprintf(text, sizeof(text), "FDSTORE=1\nFDNAME=%s\nFDPOLL=0\n", name);
	return send_surely(notify, text, &fd, 1);
}

int kvt_notify_forget(struct kvt_notify *notify, const char *name)
{
	char text[128];

	KVT_ASSERT(strlen(name) < KVT_STORED_NAME_BYTES);
	snprintf(text, sizeof(text), "FDSTOREREMOVE=1\nFDNAME=%s\n", name);
	return send_surely(notify, text, NULL, 0);
}

int kvt_notify_upgrade(struct kvt_notify *notify, uint64_t id, const char *path)
{
	char text[1200];
	int n = snprintf(text, sizeof(text), "KVTRUNK_UPGRADE=%" PRIx64 "\nKVTRUNK_BINARY=%s\n", id,
			 path);
	int error = n < (int)sizeof(text) ? send_surely(notify, text, NULL, 0) : -ENAMETOOLONG;

	if (!error)
		notify->upgrade = (struct kvt_upgrade){ .id = id, .asked = true };
	return error;
}

static int take_passed(struct kvt_fdstore *store, uint64_t n)
{
	const char *names = getenv("LISTEN_FDNAMES");
	char name[KVT_STORED_NAME_BYTES];
	int error = 0;

	for (uint64_t i = 0; i < n; i++) {
		int fd = LISTEN_FDS_START + (int)i;
		size_t length = names ? strcspn(names, ":") : 0;

		snprintf(name, sizeof(name), "%.*s", (int)length, names ? names : "");
		if (names)
			names += length + (names[length] == ':');
		if (fcntl(fd, F_SETFD, FD_CLOEXEC) != 0)
			return -errno;
		if (!error)
			error = kvt_fdstore_add(store, name, fd);
	}
	return error;
}

int kvt_notify_passed(struct kvt_fdstore *ret_store, char *why, size_t why_size)
{
	const char *fds = getenv("LISTEN_FDS");
	struct kvt_fdstore store = { 0 };
	uint64_t n = 0;
	int error = 0;

	if (fds && getenv("LISTEN_PID") && for_us("LISTEN_PID")) {
		error = parse_u64(fds, &n) != 0 || n > INT32_MAX ? -EINVAL :
								   take_passed(&store, n);
		if (error)
			snprintf(why, why_size, "LISTEN_FDS is '%.20s', and not so many "
				 "descriptors are open: %s", fds, strerror(-error));
	}
	unsetenv("LISTEN_FDS");
	unsetenv("LISTEN_PID");
	unsetenv("LISTEN_FDNAMES");
	if (error)
		kvt_fdstore_close(&store);
	else
		*ret_store = store;
	return error;
}
