/* SPDX-License-Identifier: Apache-2.0 */
/* Messages to the service manager, and what arrives from it: descriptors, sockets, its answers. The
 * manager is a socket of the test.
 *
 * Invariant: the caller never blocks, and what cannot be sent is kept or dropped in the stated
 * order. */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon/keep/notify.h"
#include "tests/lib/cases.h"

static struct kvt_notify notify;
static char why[256];

static int notify_open(void)
{
	return kvt_notify_open(&notify, why, sizeof(why));
}

static void set_number(const char *name, long long value)
{
	char text[32];

	snprintf(text, sizeof(text), "%lld", value);
	setenv(name, text, 1);
}

/* Open a manager's socket. `name` receives its NOTIFY_SOCKET value. */
static int make_manager(char *name, size_t size, bool abstract)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_DGRAM, 0);
	size_t n;

	snprintf(name, size, "%c%s/kvt-notify-%d", abstract ? '@' : '/', abstract ? "" : "tmp",
		 (int)getpid());
	n = strlen(name);
	memcpy(address.sun_path, name, n);
	if (abstract)
		address.sun_path[0] = '\0';
	assert_int_equal(bind(fd, (struct sockaddr *)&address,
			      (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n)), 0);
	setenv("NOTIFY_SOCKET", name, 1);
	return fd;
}

static void messages_arrive(bool abstract)
{
	char name[108], text[256] = "";
	int manager = make_manager(name, sizeof(name), abstract);

	assert_int_equal(notify_open(), 0);
	assert_null(getenv("NOTIFY_SOCKET"));
	assert_int_equal(kvt_notify_send(&notify, "READY=1\nMAINPID=%d\n", 42), 1);
	assert_true(recv(manager, text, sizeof(text) - 1, MSG_DONTWAIT) > 0);
	assert_string_equal(text, "READY=1\nMAINPID=42\n");
	kvt_notify_close(&notify);
	close(manager);
	if (!abstract)
		unlink(name);
}

TEST(messages_arrive_on_a_socket_in_the_file_system)
{
	messages_arrive(false);
}

TEST(messages_arrive_on_an_abstract_socket)
{
	messages_arrive(true);
}

static int open_pair(int fd, int pid)
{
	char text[64];

	snprintf(text, sizeof(text), "%d:%d", pid, fd);
	setenv(KVT_NOTIFY_PAIR, text, 1);
	if (notify_open() != 0 || getenv(KVT_NOTIFY_PAIR))
		return 1;
	if (notify.fd < 0)
		return 2;
	return kvt_notify_send(&notify, "READY=1\n") ? 0 : 3;
}

static int child_opens_pair(int *ends, bool made_by_child)
{
	int status = -1;
	pid_t child = fork();

	if (child == 0) {
		if (made_by_child && socketpair(AF_UNIX, SOCK_DGRAM, 0, ends) != 0)
			_exit(9);
		_exit(open_pair(ends[1], (int)getpid()));
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	return WEXITSTATUS(status);
}

TEST(a_socket_pair_counts_if_it_is_for_us_and_of_our_parent)
{
	char text[64] = "";
	int ends[2];

	assert_int_equal(socketpair(AF_UNIX, SOCK_DGRAM, 0, ends), 0);
	assert_int_equal(child_opens_pair(ends, false), 0);
	assert_int_equal(recv(ends[0], text, sizeof(text) - 1, MSG_DONTWAIT), 8);
	assert_string_equal(text, "READY=1\n");
	assert_int_equal(child_opens_pair(ends, true), 2);
	assert_int_equal(open_pair(ends[1], (int)getpid()), 2);     /* made here, no parent */
	assert_int_equal(open_pair(ends[1], (int)getpid() + 1), 2); /* another process's */
	assert_int_equal(open_pair(0, (int)getpid()), 2);
	close(ends[0]);
	close(ends[1]);
}

/* In a child, whose parent holds the other end. Returns which question had a wrong answer. */
static int child_reads_upgrade(int end)
{
	char text[64];

	snprintf(text, sizeof(text), "%d:%d", (int)getpid(), end);
	setenv(KVT_NOTIFY_PAIR, text, 1);
	setenv(KVT_NOTIFY_UPGRADE, "1f:try:", 1);
	if (notify_open() != 0 || getenv(KVT_NOTIFY_UPGRADE))
		return 1;
	if (!notify.pair || notify.upgrade.id != 0x1f || !notify.upgrade.trial ||
	    *notify.upgrade.why)
		return 2;
	setenv(KVT_NOTIFY_PAIR, text, 1);
	setenv(KVT_NOTIFY_UPGRADE, "20:done:no: two colons", 1);
	if (notify_open() != 0 || notify.upgrade.id != 0x20 ||
	    notify.upgrade.trial || strcmp(notify.upgrade.why, "no: two colons") != 0)
		return 3;
	if (kvt_notify_upgrade(&notify, 0x21, "/a/b") != 0 || !notify.upgrade.asked ||
	    *notify.upgrade.why)
		return 4;
	return 0;
}

TEST(an_upgrade_is_asked_for_and_its_outcome_read)
{
	int ends[2], status = -1;
	char text[256] = "";
	pid_t child;

	assert_int_equal(socketpair(AF_UNIX, SOCK_DGRAM, 0, ends), 0);
	child = fork();
	if (child == 0)
		_exit(child_reads_upgrade(ends[1]));
	assert_true(recv(ends[0], text, sizeof(text) - 1, 0) > 0);
	assert_string_equal(text, "KVTRUNK_UPGRADE=21\nKVTRUNK_BINARY=/a/b\n");
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
	close(ends[0]);
	close(ends[1]);
}

TEST(a_manager_that_does_not_read_blocks_no_sender)
{
	char name[108];
	int manager = make_manager(name, sizeof(name), true), sent = 0;

	assert_int_equal(notify_open(), 0);
	while (kvt_notify_send(&notify, "STATUS=%d\n", sent))
		assert_true(++sent < 1000000);
	assert_true(sent > 0);
	kvt_notify_close(&notify);
	close(manager);
}

static void expect(int manager, const char *expected)
{
	char text[256] = "";

	assert_true(recv(manager, text, sizeof(text) - 1, MSG_DONTWAIT) > 0);
	assert_string_equal(text, expected);
}

/* In order. If not all can be kept, the newest. */
TEST(what_a_manager_must_hear_waits_for_room)
{
	char name[108], text[256];
	int manager = make_manager(name, sizeof(name), true), sent = 0;

	assert_int_equal(notify_open(), 0);
	assert_false(kvt_notify_owes(&notify));
	while (kvt_notify_send(&notify, "STATUS=%d\n", sent))
		sent++;
	kvt_notify_tell(&notify, "%0200d\n", 1); /* is dropped */
	kvt_notify_tell(&notify, "RELOADING=1\n");
	kvt_notify_tell(&notify, "READY=1\nMAINPID=%d\n", 42);
	assert_true(kvt_notify_owes(&notify));
	kvt_notify_tell(&notify, "%0100d\n", 2);
	assert_true(recv(manager, text, sizeof(text), MSG_DONTWAIT) > 0);
	assert_true(kvt_notify_owes(&notify)); /* room for one */
	for (; sent > 1; sent--)
		assert_true(recv(manager, text, sizeof(text), MSG_DONTWAIT) > 0);
	expect(manager, "RELOADING=1\n");
	assert_false(kvt_notify_owes(&notify));
	expect(manager, "READY=1\nMAINPID=42\n");
	assert_int_equal(recv(manager, text, sizeof(text), MSG_DONTWAIT), 101);
	kvt_notify_tell(&notify, "READY=1\n");
	expect(manager, "READY=1\n");
	assert_true(kvt_notify_send(&notify, "STATUS=\n"));
	close(manager);
	kvt_notify_tell(&notify, "READY=1\n"); /* no manager: not kept */
	assert_false(kvt_notify_owes(&notify));
	kvt_notify_close(&notify);
}

/* Find the socket among those passed. */
static int passed_socket(int *ret_fd)
{
	struct kvt_fdstore store = { 0 };
	uint64_t file[2];
	bool own = false;
	int result = kvt_notify_passed(&store, why, sizeof(why));

	if (result == 0)
		result = kvt_fdstore_take_listen(&store, ret_fd, &own, file, why, sizeof(why));
	kvt_fdstore_close(&store);
	return result;
}

TEST(without_a_manager_nothing_happens)
{
	int fd = 0;

	assert_int_equal(notify_open(), 0);
	assert_int_equal(kvt_notify_keep(&notify, "arena", 0), -ENOTCONN);
	assert_int_equal(notify.fd, -1);
	assert_int_equal(notify.watchdog_ns, 0);
	assert_int_equal(kvt_notify_send(&notify, "READY=1\n"), 0);
	assert_int_equal(passed_socket(&fd), 0);
	assert_int_equal(fd, -1);
}

TEST(a_manager_that_is_not_there_is_an_error)
{
	setenv("NOTIFY_SOCKET", "/tmp/kvt-no-such-manager", 1);
	assert_int_equal(notify_open(), -ENOENT);
	assert_non_null(strstr(why, "/tmp/kvt-no-such-manager"));
	setenv("NOTIFY_SOCKET", "relative", 1);
	assert_int_equal(notify_open(), -EINVAL);
}

TEST(the_watchdog_counts_only_when_it_is_for_this_process)
{
	set_number("WATCHDOG_USEC", 3000000);
	assert_int_equal(notify_open(), 0);
	assert_int_equal(notify.watchdog_ns, 3000000000ull);
	set_number("WATCHDOG_USEC", 3000000);
	set_number("WATCHDOG_PID", getpid());
	assert_int_equal(notify_open(), 0);
	assert_int_equal(notify.watchdog_ns, 3000000000ull);
	set_number("WATCHDOG_USEC", 3000000);
	set_number("WATCHDOG_PID", getpid() + 1);
	assert_int_equal(notify_open(), 0);
	assert_int_equal(notify.watchdog_ns, 0);
	setenv("WATCHDOG_USEC", "soon", 1);
	assert_int_equal(notify_open(), -EINVAL);
}

/* Put a socket of some type where LISTEN_FDS passes it. Then restore the test's own descriptor
 * 3. */
static int listen_on(int type, bool do_listen, int *ret_fd)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	int saved = fcntl(3, F_DUPFD_CLOEXEC, 10), fd = socket(AF_UNIX, type, 0), result;

	assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof(sa_family_t)), 0);
	if (do_listen)
		assert_int_equal(listen(fd, 1), 0);
	assert_int_equal(dup2(fd, 3), 3);
	if (fd != 3)
		close(fd);
	set_number("LISTEN_FDS", 1);
	set_number("LISTEN_PID", getpid());
	result = passed_socket(ret_fd);
	close(3);
	if (saved >= 0) {
		dup2(saved, 3);
		close(saved);
	}
	return result;
}

TEST(a_passed_socket_is_taken_if_it_is_the_right_kind)
{
	int fd = -1;

	assert_int_equal(listen_on(SOCK_SEQPACKET, true, &fd), 0);
	assert_int_equal(fd, 3);
	assert_null(getenv("LISTEN_FDS"));
	assert_int_equal(listen_on(SOCK_STREAM, true, &fd), -EINVAL);
	assert_non_null(strstr(why, "ListenSequentialPacket"));
	assert_int_equal(listen_on(SOCK_SEQPACKET, false, &fd), -EINVAL);
	setenv("LISTEN_FDS", "two", 1);
	set_number("LISTEN_PID", getpid());
	assert_int_equal(passed_socket(&fd), -EINVAL);
	set_number("LISTEN_FDS", 1);
	set_number("LISTEN_PID", getpid() + 1);
	assert_int_equal(passed_socket(&fd), 0);
	assert_int_equal(fd, -1);
}

/* Receive a message: its text, and the descriptor with it. */
static int take_stored(int manager, char *text, size_t size)
{
	union {
		struct cmsghdr header;
		char bytes[CMSG_SPACE(sizeof(int))];
	} control = { 0 };
	struct iovec part = { .iov_base = text, .iov_len = size - 1 };
	struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control,
				  .msg_controllen = sizeof(control) };
	ssize_t n = recvmsg(manager, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	int fd = -1;

	assert_true(n > 0);
	text[n] = '\0';
	if (message.msg_controllen)
		memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(fd));
	return fd;
}

TEST(what_is_stored_arrives_with_its_name)
{
	char name[108], text[256], byte = 'x';
	int manager = make_manager(name, sizeof(name), true), ends[2], fd;

	setenv("FDSTORE", "12", 1);
	assert_int_equal(notify_open(), 0);
	assert_int_equal(notify.store, 12);
	assert_null(getenv("FDSTORE"));
	assert_int_equal(pipe(ends), 0);
	assert_int_equal(kvt_notify_keep(&notify, "bell.3.7", ends[1]), 0);
	fd = take_stored(manager, text, sizeof(text));
	assert_string_equal(text, "FDSTORE=1\nFDNAME=bell.3.7\nFDPOLL=0\n");
	assert_int_equal(write(fd, &byte, 1), 1);
	assert_int_equal(read(ends[0], &byte, 1), 1);
	close(fd);
	assert_int_equal(kvt_notify_forget(&notify, "bell.3.7"), 0);
	assert_int_equal(take_stored(manager, text, sizeof(text)), -1);
	assert_string_equal(text, "FDSTOREREMOVE=1\nFDNAME=bell.3.7\n");
	kvt_notify_close(&notify);
	close(ends[0]);
	close(ends[1]);
	close(manager);
}

TEST(stored_descriptors_are_found_by_name)
{
	struct kvt_fdstore store = { 0 };
	char name[KVT_STORED_NAME_BYTES];
	int fd = -1, first, second;
	uint64_t file[2] = { 0 };
	bool own = false;

	kvt_stored_name(name, KVT_STORED_SEGMENT, 12, 4294967295u);
	assert_string_equal(name, "segment.12.4294967295");
	assert_int_equal(kvt_stored_kind(name), KVT_STORED_SEGMENT);
	assert_int_equal(kvt_stored_kind("segments.1.1"), KVT_STORED_OTHER);
	assert_int_equal(kvt_stored_kind("kvtrunkd@a.socket"), KVT_STORED_OTHER);
	first = dup(0);
	second = dup(0);
	assert_int_equal(kvt_fdstore_add(&store, name, first), 0);
	assert_int_equal(kvt_fdstore_add(&store, "arena", second), 0);
	assert_int_equal(kvt_fdstore_take(&store, "ledger"), -1);
	assert_int_equal(kvt_fdstore_take(&store, "arena"), second);
	assert_int_equal(kvt_fdstore_take(&store, "arena"), -1);
	close(second);
	kvt_fdstore_remove(&store, name);
	assert_int_equal(store.n, 1);
	assert_int_equal(fcntl(first, F_GETFD), -1);
	assert_int_equal(kvt_fdstore_take_listen(&store, &fd, &own, file, why, sizeof(why)), 0);
	assert_int_equal(fd, -1);
	assert_int_equal(kvt_fdstore_add(&store, "listen.27.4711", dup(0)), 0);
	assert_int_equal(kvt_fdstore_take_listen(&store, &fd, &own, file, why, sizeof(why)),
			 -EINVAL);
	assert_int_equal(kvt_fdstore_add(&store, "other", dup(0)), 0);
	assert_int_equal(kvt_fdstore_take_listen(&store, &fd, &own, file, why, sizeof(why)),
			 -EINVAL);
	assert_non_null(strstr(why, "more than one"));
	kvt_fdstore_close(&store);
}

int main(int argc, char **argv)
{
	unsetenv("NOTIFY_SOCKET");
	return kvt_tests_run(argc, argv);
}
