/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/takeover.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <bsd/string.h>

#define PATIENCE_MS 10000 /* a new one that has not taken up a cache by then hangs */

static void fill_head(struct kvt_message *head, uint16_t type, size_t bytes)
{
	*head = (struct kvt_message){
		.magic = KVT_MESSAGE_MAGIC,
		.type = type,
		.version = KVT_ABI_MAJOR,
		.bytes = (uint32_t)bytes,
		.cookie = 1,
	};
}

/* ---- messages with descriptors */

static int send_all(int to, const void *message, size_t bytes, const int *fds, uint32_t n_fds)
{
	union {
		struct cmsghdr header;
		char bytes[CMSG_SPACE(sizeof(int) * KVT_HANDOVER_MAX)];
	} control = { 0 };
	struct iovec part = { .iov_base = (void *)(uintptr_t)message, .iov_len = bytes };
	struct msghdr header = { .msg_iov = &part, .msg_iovlen = 1 };
	struct pollfd room = { .fd = to, .events = POLLOUT };

	if (n_fds) {
		header.msg_control = &control;
		header.msg_controllen = CMSG_SPACE(sizeof(int) * n_fds);
		control.header.cmsg_level = SOL_SOCKET;
		control.header.cmsg_type = SCM_RIGHTS;
		control.header.cmsg_len = CMSG_LEN(sizeof(int) * n_fds);
		memcpy(CMSG_DATA(&control.header), fds, sizeof(int) * n_fds);
	}
	while (sendmsg(to, &header, MSG_DONTWAIT | MSG_NOSIGNAL) < 0) {
		if (errno != EAGAIN && errno != EINTR)
			return -errno;
		if (poll(&room, 1, PATIENCE_MS) == 0)
			return -ETIMEDOUT;
	}
	return 0;
}

/* One message. Descriptors that do not belong to a HANDOVER are closed. */
static ssize_t receive(int from, void *message, size_t bytes, int *fds, uint32_t *ret_n_fds)
{
	union {
		struct cmsghdr header;
		char bytes[CMSG_SPACE(sizeof(int) * 253) + CMSG_SPACE(sizeof(struct ucred))];
	} control;
	struct iovec part = { .iov_base = message, .iov_len = bytes };
	struct msghdr header = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control,
				 .msg_controllen = sizeof(control) };
	struct pollfd ready = { .fd = from, .events = POLLIN };
	uint32_t n = 0;
	ssize_t got;

	if (poll(&ready, 1, PATIENCE_MS) == 0)
		return -ETIMEDOUT;
	got = recvmsg(from, &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	if (got < 0)
		return -errno;
	for (struct cmsghdr *extra = CMSG_FIRSTHDR(&header); extra;
	     extra = CMSG_NXTHDR(&header, extra)) {
		size_t count = (extra->cmsg_len - CMSG_LEN(0)) / sizeof(int);

		if (extra->cmsg_level != SOL_SOCKET || extra->cmsg_type != SCM_RIGHTS)
			continue;
		for (size_t i = 0; i < count; i++) {
			int fd;

			memcpy(&fd, CMSG_DATA(extra) + i * sizeof(fd), sizeof(fd));
			if (fds && n < KVT_HANDOVER_MAX)
				fds[n++] = fd;
			else
				close(fd);
		}
	}
	*ret_n_fds = n;
	return got == 0 ? -ECONNRESET : got;
}

/* ---- new */

static int connect_to(const char *path, char why[KVT_WHY_BYTES])
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0), error;

	strlcpy(address.sun_path, path, sizeof(address.sun_path));
	if (fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof(address)) == 0)
		return fd;
	error = -errno;
	if (fd >= 0)
		close(fd);
	snprintf(why, KVT_WHY_BYTES, "no daemon to take over from at %s: %s; start without "
		 "--takeover", path, strerror(-error));
	return error;
}

/* What a refusal says, of HELLO or of the request. */
static int refused(const void *message, ssize_t bytes, const char *what, char why[KVT_WHY_BYTES])
{
	const struct kvt_message_refused *refused = message;
	const struct kvt_message_admin *admin = message;
	const struct kvt_message *head = message;
	const char *text = "";
	int error = bytes < 0 ? (int)bytes : -EPROTO;

	if (bytes >= (ssize_t)sizeof(*refused) && head->type == KVT_MSG_REFUSED)
		text = refused->text;
	else if (bytes >= (ssize_t)sizeof(*admin) && head->type == KVT_MSG_ADMIN)
		text = admin->text;
	if (*text && head->result < 0)
		error = head->result;
	snprintf(why, KVT_WHY_BYTES, "the daemon does not %s: %.300s", what,
		 *text ? text : strerror(-error));
	return error;
}

static int take_names(struct kvt_daemon *daemon, const struct kvt_message_handover *message,
		      const int *fds, uint32_t n_fds)
{
	int error = message->n <= KVT_HANDOVER_MAX && message->n == n_fds ? 0 : -EPROTO;

	for (uint32_t i = 0; i < n_fds; i++) {
		char name[KVT_PARCEL_NAME_BYTES];

		if (error) {
			close(fds[i]);
			continue;
		}
		memcpy(name, message->names[i], sizeof(name));
		name[sizeof(name) - 1] = '\0';
		error = kvt_parcels_add(&daemon->passed, name, fds[i]);
	}
	return error;
}

static int take_handover(struct kvt_daemon *daemon, int from, char why[KVT_WHY_BYTES])
{
	union {
		struct kvt_message head;
		struct kvt_message_admin admin;
		struct kvt_message_handover handover;
	} packet = { 0 };
	int fds[KVT_HANDOVER_MAX], error = 0;
	bool last = false;

	while (!last && !error) {
		uint32_t n_fds = 0;
		ssize_t n = receive(from, &packet, sizeof(packet), fds, &n_fds);

		if (n != sizeof(packet.handover) || packet.head.type != KVT_MSG_HANDOVER)
			return refused(&packet, n, "hand over", why);
		error = take_names(daemon, &packet.handover, fds, n_fds);
		last = packet.handover.last;
	}
	if (error)
		snprintf(why, KVT_WHY_BYTES, "what the daemon handed over is not understood: "
			 "install kvtrunkd of one release, or stop it and start");
	return error;
}

int kvt_takeover_ask(struct kvt_daemon *daemon, const char *path, char why[KVT_WHY_BYTES])
{
	struct kvt_message_hello hello = {
		.abi_major = KVT_ABI_MAJOR,
		.abi_minor = KVT_ABI_MINOR,
		.flags = KVT_HELLO_OBSERVE,
		.layout = kvt_abi_layout(),
		.pid = getpid(),
	};
	struct kvt_message_admin request = { .what = KVT_ADMIN_TAKEOVER };
	union {
		struct kvt_message head;
		struct kvt_message_welcome welcome;
		struct kvt_message_refused refused;
	} packet = { 0 };
	int fd = connect_to(path, why), error;
	uint32_t n_fds;
	ssize_t n;

	if (fd < 0)
		return fd;
	daemon->takeover_fd = fd;
	fill_head(&hello.head, KVT_MSG_HELLO, sizeof(hello));
	fill_head(&request.head, KVT_MSG_ADMIN, sizeof(request));
	error = send_all(fd, &hello, sizeof(hello), NULL, 0);
	n = error ? error : receive(fd, &packet, sizeof(packet), NULL, &n_fds);
	if (n != sizeof(packet.welcome) || packet.head.type != KVT_MSG_WELCOME)
		return refused(&packet, n, "speak with this one", why);
	error = send_all(fd, &request, sizeof(request), NULL, 0);
	if (error) {
		snprintf(why, KVT_WHY_BYTES, "the daemon hung up: %s", strerror(-error));
		return error;
	}
	return take_handover(daemon, fd, why);
}

int kvt_takeover_confirm(struct kvt_daemon *daemon)
{
	struct kvt_message_handover message = { .last = 1 };
	int error;

	fill_head(&message.head, KVT_MSG_HANDOVER, sizeof(message));
	error = send_all(daemon->takeover_fd, &message, sizeof(message), NULL, 0);
	close(daemon->takeover_fd);
	daemon->takeover_fd = -1;
	return error;
}

/* ---- old */

struct handover {
	int to;
	int error;
	struct kvt_message_handover message;
	int fds[KVT_HANDOVER_MAX];
};

static void flush(struct handover *handover, bool last)
{
	if (handover->error)
		return;
	fill_head(&handover->message.head, KVT_MSG_HANDOVER, sizeof(handover->message));
	handover->message.last = last;
	handover->error = send_all(handover->to, &handover->message, sizeof(handover->message),
				   handover->fds, handover->message.n);
	memset(&handover->message, 0, sizeof(handover->message));
}

static void hand(void *context, const char *name, int fd)
{
	struct handover *handover = context;
	uint32_t n = handover->message.n;

	if (fd < 0)
		return;
	strlcpy(handover->message.names[n], name, KVT_PARCEL_NAME_BYTES);
	handover->fds[n] = fd;
	handover->message.n++;
	if (handover->message.n == KVT_HANDOVER_MAX)
		flush(handover, false);
}

/* It hung up, or hangs: then it is ended, because two must not write. */
static bool confirmed(const struct kvt_connection *connection)
{
	struct kvt_message_handover message;
	int pidfd = (int)syscall(SYS_pidfd_open, connection->peer.pid, 0);
	struct pollfd gone = { .fd = pidfd, .events = POLLIN };
	uint32_t n_fds;
	ssize_t n = receive(connection->fd, &message, sizeof(message), NULL, &n_fds);
	bool good = n == sizeof(message) && message.head.type == KVT_MSG_HANDOVER;

	if (!good && pidfd >= 0) {
		if (n == -ETIMEDOUT)
			syscall(SYS_pidfd_send_signal, pidfd, SIGKILL, NULL, 0);
		poll(&gone, 1, PATIENCE_MS);
	}
	if (pidfd >= 0)
		close(pidfd);
	return good;
}

void kvt_takeover_serve(struct kvt_daemon *daemon, struct kvt_connection *connection)
{
	struct handover handover = { .to = connection->fd };

	kvt_log(KVT_LOG_NOTICE, "handing_over", "to=%d", (int)connection->peer.pid);
	/* Whoever connects from now on waits in the socket's queue. */
	kvt_loop_cancel(&daemon->loop, kvt_tag(KVT_TAG_ACCEPT, 0, 0));
	kvt_loop_flush(&daemon->loop);
	handover.error = kvt_daemon_keep_log(daemon);
	kvt_each_parcel(daemon, connection, hand, &handover);
	flush(&handover, true);
	if (!handover.error && confirmed(connection)) {
		/* Not one store more: from here on another process writes. */
		daemon->handed_over = true;
		kvt_daemon_leave(daemon);
		exit(EXIT_SUCCESS);
	}
	kvt_log(KVT_LOG_WARNING, "not_handed_over", "to=%d error=\"%s\" effect=\"serving on\"",
		(int)connection->peer.pid,
		handover.error ? strerror(-handover.error) : "it gave up");
	kvt_control_drop(daemon, connection);
	kvt_daemon_rebuild(daemon);
}
