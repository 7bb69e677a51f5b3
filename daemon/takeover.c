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
#include <time.h>
#include <unistd.h>

#include <bsd/string.h>

#define PATIENCE_MS 10000 /* a new one that has not taken up a cache by then hangs */
#define GRACE_MS 1000     /* one that gave up has ended by then */
#define HELLO_TRIES 8     /* daemons that are taken over, one after the other, while we ask */

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

static int64_t now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* -ETIMEDOUT: there was no room for it until `until_ms`. */
static int send_all(int to, const void *message, size_t bytes, const int *fds, uint32_t n_fds,
		    int64_t until_ms)
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
		int64_t left;

		if (errno != EAGAIN && errno != EINTR)
			return -errno;
		left = until_ms - now_ms();
		if (left <= 0 || poll(&room, 1, (int)left) == 0)
			return -ETIMEDOUT;
	}
	return 0;
}

/* One message, what came with it, and who sent it (0: nobody in this PID namespace). Descriptors
 * that do not belong to a HANDOVER are closed. */
static ssize_t receive(int from, void *message, size_t bytes, int *fds, uint32_t *ret_n_fds,
		       pid_t *ret_sender)
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

		if (extra->cmsg_level == SOL_SOCKET && extra->cmsg_type == SCM_CREDENTIALS)
			*ret_sender = ((const struct ucred *)CMSG_DATA(extra))->pid;
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
	if (header.msg_flags & MSG_TRUNC)
		return -EMSGSIZE;
	return got == 0 ? -ECONNRESET : got;
}

/* ---- new */

static int connect_to(const char *path, char why[KVT_WHY_BYTES])
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0), on = 1, error;

	strlcpy(address.sun_path, path, sizeof(address.sun_path));
	/* The kernel then says with each message which process sent it. */
	if (fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_PASSCRED, &on, sizeof(on)) == 0 &&
	    connect(fd, (struct sockaddr *)&address, sizeof(address)) == 0)
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
	if (bytes == -ECONNRESET)
		text = "it hung up: if it has ended, start without --takeover";
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

/* Whether it lives cannot be told any more. */
static void forget_predecessor(struct kvt_daemon *daemon)
{
	if (daemon->takeover_pidfd >= 0)
		close(daemon->takeover_pidfd);
	daemon->takeover_pidfd = -1;
}

static int take_handover(struct kvt_daemon *daemon, int from, char why[KVT_WHY_BYTES])
{
	union {
		struct kvt_message head;
		struct kvt_message_admin admin;
		struct kvt_message_resumed resumed;
		struct kvt_message_handover handover;
	} packet = { 0 };
	int fds[KVT_HANDOVER_MAX], error = 0;
	bool last = false;

	while (!last && !error) {
		uint32_t n_fds = 0;
		pid_t sender = 0;
		ssize_t n = receive(from, &packet, sizeof(packet), fds, &n_fds, &sender);

		/* Somebody else took over before it was our turn, and greets us as an observer. Our
		 * request is the next that it reads. */
		if (n == sizeof(packet.resumed) && packet.head.type == KVT_MSG_RESUMED)
			continue;
		if (n != sizeof(packet.handover) || packet.head.type != KVT_MSG_HANDOVER)
			return refused(&packet, n, "hand over", why);
		if (sender != daemon->takeover_pid)
			forget_predecessor(daemon);
		error = take_names(daemon, &packet.handover, fds, n_fds);
		last = packet.handover.last;
	}
	if (error)
		snprintf(why, KVT_WHY_BYTES, "what the daemon handed over is not understood: "
			 "install kvtrunkd of one release, or stop it and start");
	return error;
}

/* Say HELLO and hear the answer: its bytes, or a negative errno; *ret_fd -1: there is nobody. A
 * daemon that another one takes over just now leaves with our HELLO, and that one listens. */
static ssize_t greet(const char *path, const struct kvt_message_hello *hello, int *ret_fd,
		     void *answer, size_t bytes, pid_t *ret_sender, char why[KVT_WHY_BYTES])
{
	ssize_t n = -ECONNRESET;
	uint32_t n_fds;

	for (int i = 0; i < HELLO_TRIES && (n == -ECONNRESET || n == -EPIPE); i++) {
		int fd = connect_to(path, why);

		if (i > 0)
			close(*ret_fd);
		*ret_fd = fd;
		if (fd < 0)
			return fd;
		n = send_all(fd, hello, sizeof(*hello), NULL, 0, now_ms() + PATIENCE_MS);
		if (n == 0)
			n = receive(fd, answer, bytes, NULL, &n_fds, ret_sender);
	}
	return n;
}

static struct kvt_message_hello observer_hello(void)
{
	struct kvt_message_hello hello = {
		.abi_major = KVT_ABI_MAJOR,
		.abi_minor = KVT_ABI_MINOR,
		.flags = KVT_HELLO_OBSERVE,
		.layout = kvt_abi_layout(),
		.pid = getpid(),
	};

	fill_head(&hello.head, KVT_MSG_HELLO, sizeof(hello));
	return hello;
}

int kvt_takeover_hail(const char *path, char why[KVT_WHY_BYTES])
{
	struct kvt_message_hello hello = observer_hello();
	int fd = connect_to(path, why);

	if (fd >= 0)
		send_all(fd, &hello, sizeof(hello), NULL, 0, now_ms() + PATIENCE_MS);
	return fd;
}

int kvt_takeover_ask(struct kvt_daemon *daemon, const char *path, char why[KVT_WHY_BYTES])
{
	struct kvt_message_hello hello = observer_hello();
	struct kvt_message_admin request = { .what = KVT_ADMIN_TAKEOVER };
	union {
		struct kvt_message head;
		struct kvt_message_welcome welcome;
		struct kvt_message_refused refused;
	} packet = { 0 };
	pid_t sender = 0;
	int fd, error;
	ssize_t n;

	fill_head(&request.head, KVT_MSG_ADMIN, sizeof(request));
	n = greet(path, &hello, &fd, &packet, sizeof(packet), &sender, why);
	if (fd < 0)
		return (int)n;
	daemon->takeover_fd = fd;
	if (n != sizeof(packet.welcome) || packet.head.type != KVT_MSG_WELCOME)
		return refused(&packet, n, "speak with this one", why);
	/* The number is that process's: it is alive, because it will answer what is asked next. */
	daemon->takeover_pid = sender;
	if (sender > 0)
		daemon->takeover_pidfd = (int)syscall(SYS_pidfd_open, sender, 0);
	daemon->takeover_asked_ms = now_ms();
	error = send_all(fd, &request, sizeof(request), NULL, 0, now_ms() + PATIENCE_MS);
	if (error) {
		snprintf(why, KVT_WHY_BYTES, "the daemon hung up: %s", strerror(-error));
		return error;
	}
	return take_handover(daemon, fd, why);
}

/* Whether the old one has ended without a word. It gives up on us, and writes again, when it has
 * waited for PATIENCE_MS, so a hang-up before that is its death; its socket goes a little before
 * the process does. */
static bool has_died(const struct kvt_daemon *daemon, int patience_ms)
{
	struct pollfd gone = { .fd = daemon->takeover_pidfd, .events = POLLIN };

	return daemon->takeover_pidfd >= 0 && poll(&gone, 1, patience_ms) == 1 &&
	       now_ms() - daemon->takeover_asked_ms < PATIENCE_MS;
}

int kvt_takeover_confirm(struct kvt_daemon *daemon)
{
	struct kvt_message_handover message = { .last = 1 };
	bool died;
	int error;

	fill_head(&message.head, KVT_MSG_HANDOVER, sizeof(message));
	/* Its closer may still have its end of the socket. */
	died = has_died(daemon, 0);
	error = died ? 0 : send_all(daemon->takeover_fd, &message, sizeof(message), NULL, 0,
				    now_ms() + PATIENCE_MS);
	if (error == -EPIPE || error == -ECONNRESET) {
		died = has_died(daemon, GRACE_MS / 2);
		error = died ? 0 : error;
	}
	if (died)
		kvt_log(KVT_LOG_WARNING, "predecessor_died", "pid=%d effect=\"it had handed over "
			"everything: this daemon goes on with it\"", (int)daemon->takeover_pid);
	forget_predecessor(daemon);
	close(daemon->takeover_fd);
	daemon->takeover_fd = -1;
	return error;
}

/* ---- old */

struct handover {
	int to;
	int error;
	int64_t until_ms; /* for all of it: clients wait */
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
				   handover->fds, handover->message.n,
				   handover->until_ms);
	memset(&handover->message, 0, sizeof(handover->message));
}

static void hand(void *context, const char *name, int fd)
{
	struct handover *handover = context;
	uint32_t n = handover->message.n;

	if (fd < 0 || handover->error)
		return;
	strlcpy(handover->message.names[n], name, KVT_PARCEL_NAME_BYTES);
	handover->fds[n] = fd;
	handover->message.n++;
	if (handover->message.n == KVT_HANDOVER_MAX)
		flush(handover, false);
}

/* Whether nothing waits to be read and the other end is open: an honest successor says nothing
 * between its request and its confirmation. */
static bool is_quiet(int fd)
{
	uint8_t byte;

	return recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) < 0 && errno == EAGAIN;
}

int kvt_takeover_check(const struct kvt_daemon *daemon, const struct kvt_connection *connection,
		       const char **ret_why)
{
	if (daemon->notify.store) {
		*ret_why = "a service manager keeps what this daemon has: systemctl restart, or "
			   "SIGUSR2 to kvtrunkd --supervise";
		return -EBUSY;
	}
	if (connection->state != KVT_CONNECTION_OBSERVER) {
		*ret_why = "a client cannot take over: ask as an observer";
		return -EINVAL;
	}
	if (daemon->draining) {
		*ret_why = "the daemon is shutting down: start without --takeover when it has "
			   "ended";
		return -ESHUTDOWN;
	}
	if (!is_quiet(connection->fd)) {
		*ret_why = "more than the request was sent, or it hung up: whoever takes over says "
			   "nothing until it has taken up everything";
		return -EPROTO;
	}
	return 0;
}

static int hand_over(struct kvt_daemon *daemon, const struct kvt_connection *connection)
{
	struct handover handover = { .to = connection->fd, .until_ms = now_ms() + PATIENCE_MS };

	kvt_each_parcel(daemon, connection, hand, &handover);
	flush(&handover, true);
	return handover.error;
}

static const char *not_sent(int error)
{
	switch (error) {
	case -EPIPE:
	case -ECONNRESET:
		return "it hung up";
	case -ETIMEDOUT:
		return "it did not read all of it within 10 s";
	default:
		return strerror(-error);
	}
}

/* What it says instead of a confirmation, in words; NULL: it confirms. After `shutdown` nothing
 * more can come, so a confirmation is either seen here or fails at the other end. */
static const char *await_confirmation(int fd)
{
	struct kvt_message_handover message;
	uint32_t n_fds;
	pid_t sender = 0;
	ssize_t n = receive(fd, &message, sizeof(message), NULL, &n_fds, &sender);
	const char *silence = NULL;

	if (n == -ETIMEDOUT) {
		silence = "it said nothing for 10 s";
		shutdown(fd, SHUT_RDWR);
		n = receive(fd, &message, sizeof(message), NULL, &n_fds, &sender);
	}
	if (n == sizeof(message) && message.head.magic == KVT_MESSAGE_MAGIC &&
	    message.head.type == KVT_MSG_HANDOVER && message.n == 0)
		return NULL;
	if (silence)
		return silence;
	return n == -ECONNRESET ? "it hung up" : "it said something else";
}

/* Two must not write. Whoever was given everything and did not confirm has a moment to end by
 * itself, and is ended then. 0: it is gone. */
static int end_peer(int pidfd, int patience_ms)
{
	struct pollfd gone = { .fd = pidfd, .events = POLLIN };

	if (pidfd < 0)
		return -ENOTSUP;
	if (poll(&gone, 1, patience_ms) == 1)
		return 0;
	if (syscall(SYS_pidfd_send_signal, pidfd, SIGKILL, NULL, 0) != 0 && errno != ESRCH)
		return -errno;
	return poll(&gone, 1, PATIENCE_MS) == 1 ? 0 : -ETIMEDOUT;
}

/* Hand over and wait for the confirmation. Else the peer is gone when this returns, or it is said
 * that it is not, and why the takeover failed. */
static const char *try_successor(struct kvt_daemon *daemon, struct kvt_connection *connection,
				 int pidfd)
{
	int pid = (int)connection->peer.pid, error = hand_over(daemon, connection);
	const char *why = error ? not_sent(error) : await_confirmation(connection->fd);

	if (!why)
		return NULL;
	shutdown(connection->fd, SHUT_RDWR); /* it need not try any longer */
	error = end_peer(pidfd, GRACE_MS);
	if (error)
		kvt_log(KVT_LOG_ERROR, "not_ended", "pid=%d error=\"%s\" effect=\"it has the "
			"cache, too: if it writes there, that breaks\" cure=\"end it, then kvtctl "
			"audit; restart this daemon if that finds anything\"", pid,
			strerror(-error));
	return why;
}

void kvt_takeover_serve(struct kvt_daemon *daemon, struct kvt_connection *connection)
{
	int pid = (int)connection->peer.pid, pidfd = -1, error;
	const char *why = NULL;
	uint64_t start_time;

	kvt_log(KVT_LOG_NOTICE, "handing_over", "to=%d", pid);
	/* Whoever connects from now on waits in the socket's queue. */
	kvt_loop_cancel(&daemon->loop, kvt_tag(KVT_TAG_ACCEPT, 0, 0));
	kvt_loop_flush(&daemon->loop);
	/* Without a pidfd (another PID namespace and an old kernel) it cannot be waited for. */
	error = kvt_peer_pidfd(connection->fd, &connection->peer, connection->accepted_boot_ns,
			       &pidfd, &start_time);
	if (!error || error == -ENOTSUP)
		error = kvt_daemon_hand_over_log(daemon);
	if (error)
		why = error == -ESRCH ? "it is gone" : strerror(-error);
	if (!why) {
		why = try_successor(daemon, connection, pidfd);
		if (!why) {
			/* Not one store more: from here on another process writes. */
			daemon->handed_over = true;
			kvt_daemon_leave(daemon);
			exit(EXIT_SUCCESS);
		}
		kvt_daemon_rebuild(daemon);
	}
	if (pidfd >= 0)
		close(pidfd);
	kvt_log(KVT_LOG_WARNING, "not_handed_over", "to=%d error=\"%s\" effect=\"serving on\"", pid,
		why);
	kvt_control_drop(daemon, connection);
}
