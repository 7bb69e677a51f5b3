/* SPDX-License-Identifier: Apache-2.0 */
/* What the service manager says and hears. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon/notify.h"

static void set_number(const char *name, long long value)
{
	char text[32];

	snprintf(text, sizeof(text), "%lld", value);
	setenv(name, text, 1);
}

/* A manager's socket; `name` is written as NOTIFY_SOCKET wants it. */
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
	struct kvt_notify notify;
	char name[108], why[256], text[256] = "";
	int manager = make_manager(name, sizeof(name), abstract);

	assert_int_equal(kvt_notify_open(&notify, why, sizeof(why)), 0);
	assert_null(getenv("NOTIFY_SOCKET"));
	assert_int_equal(kvt_notify_send(&notify, "READY=1\nMAINPID=%d\n", 42), 1);
	assert_true(recv(manager, text, sizeof(text) - 1, MSG_DONTWAIT) > 0);
	assert_string_equal(text, "READY=1\nMAINPID=42\n");
	kvt_notify_close(&notify);
	close(manager);
	if (!abstract)
		unlink(name);
}

static void messages_arrive_on_a_socket_in_the_file_system(void **state)
{
	(void)state;
	messages_arrive(false);
}

static void messages_arrive_on_an_abstract_socket(void **state)
{
	(void)state;
	messages_arrive(true);
}

static int open_pair(int fd, int pid)
{
	struct kvt_notify notify;
	char why[256], text[64];

	snprintf(text, sizeof(text), "%d:%d", pid, fd);
	setenv(KVT_NOTIFY_PAIR, text, 1);
	if (kvt_notify_open(&notify, why, sizeof(why)) != 0 || getenv(KVT_NOTIFY_PAIR))
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

static void a_socket_pair_counts_if_it_is_for_us_and_of_our_parent(void **state)
{
	char text[64] = "";
	int ends[2];

	(void)state;
	assert_int_equal(socketpair(AF_UNIX, SOCK_DGRAM, 0, ends), 0);
	assert_int_equal(child_opens_pair(ends, false), 0);
	assert_int_equal(recv(ends[0], text, sizeof(text) - 1, MSG_DONTWAIT), 8);
	assert_string_equal(text, "READY=1\n");
	assert_int_equal(child_opens_pair(ends, true), 2);
	assert_int_equal(open_pair(ends[1], (int)getpid()), 2);     /* we made it, no parent */
	assert_int_equal(open_pair(ends[1], (int)getpid() + 1), 2); /* another process's */
	assert_int_equal(open_pair(0, (int)getpid()), 2);
	close(ends[0]);
	close(ends[1]);
}

static void a_manager_that_does_not_read_blocks_nobody(void **state)
{
	struct kvt_notify notify;
	char name[108], why[256];
	int manager = make_manager(name, sizeof(name), true), sent = 0;

	(void)state;
	assert_int_equal(kvt_notify_open(&notify, why, sizeof(why)), 0);
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

/* In its order; of more than can be kept, the newest. */
static void what_a_manager_must_hear_waits_for_room(void **state)
{
	struct kvt_notify notify;
	char name[108], why[256], text[256];
	int manager = make_manager(name, sizeof(name), true), sent = 0;

	(void)state;
	assert_int_equal(kvt_notify_open(&notify, why, sizeof(why)), 0);
	assert_false(kvt_notify_owes(&notify));
	while (kvt_notify_send(&notify, "STATUS=%d\n", sent))
		sent++;
	kvt_notify_tell(&notify, "%0200d\n", 1); /* gives way */
	kvt_notify_tell(&notify, "RELOADING=1\n");
	kvt_notify_tell(&notify, "READY=1\nMAINPID=%d\n", 42);
	assert_true(kvt_notify_owes(&notify));
	kvt_notify_tell(&notify, "%0100d\n", 2);
	assert_true(recv(manager, text, sizeof(text), MSG_DONTWAIT) > 0);
	assert_true(kvt_notify_owes(&notify)); /* for one there was room */
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
	kvt_notify_tell(&notify, "READY=1\n"); /* to nobody: not kept */
	assert_false(kvt_notify_owes(&notify));
	kvt_notify_close(&notify);
}

/* The socket among what is passed. */
static int passed_socket(int *ret_fd, char *why, size_t why_size)
{
	struct kvt_parcels parcels = { 0 };
	bool own = false;
	int result = kvt_notify_passed(&parcels, why, why_size);

	if (result == 0)
		result = kvt_parcels_take_listen(&parcels, ret_fd, &own, why, why_size);
	kvt_parcels_close(&parcels);
	return result;
}

static void without_a_manager_nothing_happens(void **state)
{
	struct kvt_notify notify;
	char why[256];
	int fd = 0;

	(void)state;
	assert_int_equal(kvt_notify_open(&notify, why, sizeof(why)), 0);
	assert_int_equal(kvt_notify_park(&notify, "arena", 0), -ENOTCONN);
	assert_int_equal(notify.fd, -1);
	assert_int_equal(notify.watchdog_ns, 0);
	assert_int_equal(kvt_notify_send(&notify, "READY=1\n"), 0);
	assert_int_equal(passed_socket(&fd, why, sizeof(why)), 0);
	assert_int_equal(fd, -1);
}

static void a_manager_that_is_not_there_is_an_error(void **state)
{
	struct kvt_notify notify;
	char why[256] = "";

	(void)state;
	setenv("NOTIFY_SOCKET", "/tmp/kvt-no-such-manager", 1);
	assert_int_equal(kvt_notify_open(&notify, why, sizeof(why)), -ENOENT);
	assert_non_null(strstr(why, "/tmp/kvt-no-such-manager"));
	setenv("NOTIFY_SOCKET", "relative", 1);
	assert_int_equal(kvt_notify_open(&notify, why, sizeof(why)), -EINVAL);
}

static void the_watchdog_counts_only_when_it_is_for_this_process(void **state)
{
	struct kvt_notify notify;
	char why[256];

	(void)state;
	set_number("WATCHDOG_USEC", 3000000);
	assert_int_equal(kvt_notify_open(&notify, why, sizeof(why)), 0);
	assert_int_equal(notify.watchdog_ns, 3000000000ull);
	set_number("WATCHDOG_USEC", 3000000);
	set_number("WATCHDOG_PID", getpid());
	assert_int_equal(kvt_notify_open(&notify, why, sizeof(why)), 0);
	assert_int_equal(notify.watchdog_ns, 3000000000ull);
	set_number("WATCHDOG_USEC", 3000000);
	set_number("WATCHDOG_PID", getpid() + 1);
	assert_int_equal(kvt_notify_open(&notify, why, sizeof(why)), 0);
	assert_int_equal(notify.watchdog_ns, 0);
	setenv("WATCHDOG_USEC", "soon", 1);
	assert_int_equal(kvt_notify_open(&notify, why, sizeof(why)), -EINVAL);
}

/* Put a socket of some type where LISTEN_FDS passes it. The test's own descriptor 3, if any, is
 * given back afterwards. */
static int listen_on(int type, bool do_listen, char *why, size_t why_size, int *ret_fd)
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
	result = passed_socket(ret_fd, why, why_size);
	close(3);
	if (saved >= 0) {
		dup2(saved, 3);
		close(saved);
	}
	return result;
}

static void a_passed_socket_is_taken_if_it_is_the_right_kind(void **state)
{
	char why[256] = "";
	int fd = -1;

	(void)state;
	assert_int_equal(listen_on(SOCK_SEQPACKET, true, why, sizeof(why), &fd), 0);
	assert_int_equal(fd, 3);
	assert_null(getenv("LISTEN_FDS"));
	assert_int_equal(listen_on(SOCK_STREAM, true, why, sizeof(why), &fd), -EINVAL);
	assert_non_null(strstr(why, "ListenSequentialPacket"));
	assert_int_equal(listen_on(SOCK_SEQPACKET, false, why, sizeof(why), &fd), -EINVAL);
	setenv("LISTEN_FDS", "two", 1);
	set_number("LISTEN_PID", getpid());
	assert_int_equal(passed_socket(&fd, why, sizeof(why)), -EINVAL);
	set_number("LISTEN_FDS", 1);
	set_number("LISTEN_PID", getpid() + 1);
	assert_int_equal(passed_socket(&fd, why, sizeof(why)), 0);
	assert_int_equal(fd, -1);
}

/* What arrives with a message: its text, and the descriptor that came along. */
static int take_parked(int manager, char *text, size_t size)
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

static void what_is_parked_arrives_with_its_name(void **state)
{
	char name[108], why[256], text[256], byte = 'x';
	struct kvt_notify notify;
	int manager = make_manager(name, sizeof(name), true), ends[2], fd;

	(void)state;
	setenv("FDSTORE", "12", 1);
	assert_int_equal(kvt_notify_open(&notify, why, sizeof(why)), 0);
	assert_int_equal(notify.store, 12);
	assert_null(getenv("FDSTORE"));
	assert_int_equal(pipe(ends), 0);
	assert_int_equal(kvt_notify_park(&notify, "bell.3.7", ends[1]), 0);
	fd = take_parked(manager, text, sizeof(text));
	assert_string_equal(text, "FDSTORE=1\nFDNAME=bell.3.7\nFDPOLL=0\n");
	assert_int_equal(write(fd, &byte, 1), 1);
	assert_int_equal(read(ends[0], &byte, 1), 1);
	close(fd);
	assert_int_equal(kvt_notify_unpark(&notify, "bell.3.7"), 0);
	assert_int_equal(take_parked(manager, text, sizeof(text)), -1);
	assert_string_equal(text, "FDSTOREREMOVE=1\nFDNAME=bell.3.7\n");
	kvt_notify_close(&notify);
	close(ends[0]);
	close(ends[1]);
	close(manager);
}

static void parcels_are_found_by_name(void **state)
{
	struct kvt_parcels parcels = { 0 };
	char name[KVT_PARCEL_NAME_BYTES], why[256] = "";
	int fd = -1, first, second;
	bool own = false;

	(void)state;
	kvt_parcel_name(name, KVT_PARCEL_SEGMENT, 12, 4294967295u);
	assert_string_equal(name, "segment.12.4294967295");
	assert_int_equal(kvt_parcel_kind(name), KVT_PARCEL_SEGMENT);
	assert_int_equal(kvt_parcel_kind("segments.1.1"), KVT_PARCEL_OTHER);
	assert_int_equal(kvt_parcel_kind("kvtrunkd@a.socket"), KVT_PARCEL_OTHER);
	first = dup(0);
	second = dup(0);
	assert_int_equal(kvt_parcels_add(&parcels, name, first), 0);
	assert_int_equal(kvt_parcels_add(&parcels, "arena", second), 0);
	assert_int_equal(kvt_parcels_take(&parcels, "ledger"), -1);
	assert_int_equal(kvt_parcels_take(&parcels, "arena"), second);
	assert_int_equal(kvt_parcels_take(&parcels, "arena"), -1);
	close(second);
	kvt_parcels_remove(&parcels, name);
	assert_int_equal(parcels.n, 1);
	assert_int_equal(fcntl(first, F_GETFD), -1);
	assert_int_equal(kvt_parcels_take_listen(&parcels, &fd, &own, why, sizeof(why)), 0);
	assert_int_equal(fd, -1);
	assert_int_equal(kvt_parcels_add(&parcels, "listen", dup(0)), 0);
	assert_int_equal(kvt_parcels_take_listen(&parcels, &fd, &own, why, sizeof(why)), -EINVAL);
	assert_int_equal(kvt_parcels_add(&parcels, "other", dup(0)), 0);
	assert_int_equal(kvt_parcels_take_listen(&parcels, &fd, &own, why, sizeof(why)), -EINVAL);
	assert_non_null(strstr(why, "more than one"));
	kvt_parcels_close(&parcels);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(messages_arrive_on_a_socket_in_the_file_system),
		cmocka_unit_test(messages_arrive_on_an_abstract_socket),
		cmocka_unit_test(a_socket_pair_counts_if_it_is_for_us_and_of_our_parent),
		cmocka_unit_test(a_manager_that_does_not_read_blocks_nobody),
		cmocka_unit_test(what_a_manager_must_hear_waits_for_room),
		cmocka_unit_test(without_a_manager_nothing_happens),
		cmocka_unit_test(a_manager_that_is_not_there_is_an_error),
		cmocka_unit_test(the_watchdog_counts_only_when_it_is_for_this_process),
		cmocka_unit_test(a_passed_socket_is_taken_if_it_is_the_right_kind),
		cmocka_unit_test(what_is_parked_arrives_with_its_name),
		cmocka_unit_test(parcels_are_found_by_name),
	};

	unsetenv("NOTIFY_SOCKET");
	return cmocka_run_group_tests(tests, NULL, NULL);
}
