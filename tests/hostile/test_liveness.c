/* SPDX-License-Identifier: Apache-2.0 */
/* System calls whose duration a client chooses: closing its files, a bell's read into a page that
 * never arrives, a doorbell in a locked epoll set. The serving thread must make none of them.
 *
 * Inputs: userfaultfd(2), where the kernel offers it. Invariant: an innocent client never waits for
 * the attacker. Caller: tests/run hostile. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "libclient/client.h"
#include "tests/lib/cases.h"
#include "tests/lib/harness.h"
#include "tests/lib/raw.h"

enum { LINGER_S = 120, PATIENCE_MS = 60000, BIG_BYTES = 256 << 20, KEYS = 256 };
/* Half of the shortest stall that an attacker causes: the others last as long as it lives. The host
 * of a virtual machine stops all of it for seconds. */
#define STALL_NS (LINGER_S * 1000000000ull / 2)

static struct kvt_test_daemon victim;
static struct kvt_test_child innocent;

/* ---------------------------------------------------------------- an innocent client */

/* Work without pause; on request send the time of the slowest operation. */
static void innocent_run(int pipe, void *context)
{
	struct kvt_client *client = kvt_test_connect(&victim);
	uint32_t ns = kvt_test_namespace(client, "innocent"), keys[KEYS];
	uint64_t worst = 0, word;

	for (uint32_t i = 0; i < KEYS; i++)
		keys[i] = i;
	kvt_test_send(pipe, 1);
	for (;;) {
		struct pollfd asked = { .fd = pipe, .events = POLLIN };
		uint64_t before = (uint64_t)kvt_client_now_ns(), took;
		struct kvt_seq *seq;

		kvt_test_equal(kvt_seq_begin(client, ns, keys, KEYS, 0, 0, &seq), 0);
		kvt_test_equal(kvt_seq_end(seq, 0, NULL, 0, KVT_IDLE, 0), 0);
		took = (uint64_t)kvt_client_now_ns() - before;
		worst = took > worst ? took : worst;
		if (poll(&asked, 1, 0) <= 0)
			continue;
		if (!kvt_test_receive(pipe, &word) || word == 0)
			break;
		kvt_test_send(pipe, worst);
		worst = 0;
	}
	kvt_test_equal(kvt_client_close(client, KVT_IDLE), 0);
	kvt_test_send(pipe, 3);
}

/* Check that the longest wait since the last request is no stall. */
static void innocent_was_served(void)
{
	struct pollfd answer = { .fd = innocent.pipe, .events = POLLIN };
	uint64_t worst = 0;

	kvt_test_send(innocent.pipe, 1);
	if (poll(&answer, 1, PATIENCE_MS) != 1)
		kvt_test_fail("the daemon serves no client");
	kvt_test_check(kvt_test_receive(innocent.pipe, &worst));
	if (worst > STALL_NS)
		kvt_test_fail("an operation took %llu ms", (unsigned long long)worst / 1000000);
}

static int begin(const char *config, const char *argument)
{
	const char *const arguments[] = { argument, NULL };

	kvt_test_daemon_prepare(&victim, config);
	kvt_test_daemon_start(&victim, arguments);
	kvt_test_child_start(&innocent, innocent_run, NULL);
	kvt_test_expect(innocent.pipe, 1);
	return 0;
}

static int begin_as_is(void **state)
{
	return begin(NULL, NULL);
}

static int begin_on_old_kernel(void **state)
{
	return begin("test_old_kernel = yes\n", NULL);
}

static int begin_supervised(void **state)
{
	return begin(NULL, "--supervise");
}

static void innocent_ends(void)
{
	kvt_test_send(innocent.pipe, 0);
	kvt_test_expect(innocent.pipe, 3);
	kvt_test_child_finish(&innocent);
}

static int end(void **state)
{
	innocent_ends();
	kvt_test_audit(&victim);
	kvt_test_daemon_end(&victim);
	return 0;
}

/* ---------------------------------------------------------------- attackers' means */

/* Make a TCP socket whose close() waits for a peer that never reads. */
static int lingering_socket(void)
{
	struct sockaddr_in address = { .sin_family = AF_INET,
				       .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	struct linger linger = { 1, LINGER_S };
	int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	socklen_t bytes = sizeof(address);
	static char full[1 << 16];

	kvt_test_check(bind(listener, (struct sockaddr *)&address, sizeof(address)) == 0 &&
		       listen(listener, 1) == 0 &&
		       getsockname(listener, (struct sockaddr *)&address, &bytes) == 0);
	kvt_test_check(connect(fd, (struct sockaddr *)&address, sizeof(address)) == 0);
	kvt_test_check(accept4(listener, NULL, NULL, SOCK_CLOEXEC) >= 0); /* stays open */
	close(listener);
	while (send(fd, full, sizeof(full), MSG_DONTWAIT) > 0)
		;
	kvt_test_check(setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger)) == 0);
	return fd;
}

static int big_file(void)
{
	int fd = memfd_create("big", MFD_CLOEXEC);

	kvt_test_check(fd >= 0 && posix_fallocate(fd, 0, BIG_BYTES) == 0);
	return fd;
}

/* Make a page that never arrives while this process lives: a thread that touches it waits. -1: the
 * kernel does not offer that. */
static int missing_page(void **ret_page)
{
	size_t bytes = (size_t)sysconf(_SC_PAGESIZE);
	struct uffdio_api api = { .api = UFFD_API };
	struct uffdio_register range = { .mode = UFFDIO_REGISTER_MODE_MISSING };
	int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);

	*ret_page = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	range.range.start = (uintptr_t)*ret_page;
	range.range.len = bytes;
	if (fd < 0 || ioctl(fd, UFFDIO_API, &api) != 0 || ioctl(fd, UFFDIO_REGISTER, &range) != 0)
		return -1;
	return fd;
}

static void skip_without_missing_pages(void)
{
	void *page;
	int fd = missing_page(&page);

	if (fd < 0)
		kvt_skip("this process may not use userfaultfd(2)");
	close(fd);
}

/* Wait until a thread has touched it. */
static void await_fault(int fault)
{
	struct pollfd touched = { .fd = fault, .events = POLLIN };

	kvt_test_check(poll(&touched, 1, -1) == 1);
}

struct set {
	int epoll, fault;
	void *page;
};

static void *wait_in_set(void *context)
{
	const struct set *set = context;

	epoll_wait(set->epoll, set->page, 1, -1);
	return NULL;
}

/* Put `fd` into an epoll set that stays locked: a thread that collects its events waits for the
 * page to put them into. Closing the file waits for the lock. */
static void lock_in_epoll(int fd)
{
	static struct set set;
	struct epoll_event event = { .events = EPOLLOUT };
	pthread_t thread;

	set.epoll = epoll_create1(EPOLL_CLOEXEC);
	set.fault = missing_page(&set.page);
	kvt_test_check(epoll_ctl(set.epoll, EPOLL_CTL_ADD, fd, &event) == 0);
	kvt_test_check(pthread_create(&thread, NULL, wait_in_set, &set) == 0);
	await_fault(set.fault);
}

/* Make a file whose release waits as long as this process lives. */
static int locked_file(void)
{
	int fd = eventfd(0, EFD_CLOEXEC);

	lock_in_epoll(fd);
	return fd;
}

/* ---------------------------------------------------------------- descriptors in messages */

/* Wait until the daemon has handled this hang-up. It handles one connection's events after
 * another's. */
static void await_hangup(int fd)
{
	char bytes[4096];

	while (recv(fd, bytes, sizeof(bytes), 0) > 0)
		;
	close(fd);
}

/* Send the file as the first message; with a good HELLO; behind one; and more often than the daemon
 * looks at after a hang-up. The daemon is stopped until the attacker has no other reference to the
 * file. */
static void send_everywhere(int (*make)(void))
{
	struct kvt_message_hello hello = kvt_test_hello(KVT_HELLO_OBSERVE);

	for (int where = 0; where < 4; where++) {
		int fd = kvt_test_dial(&victim), file = make(), sent = 0;

		kvt_test_freeze(victim.pid);
		if (where >= 2)
			kvt_test_check(send(fd, &hello, sizeof(hello), 0) == sizeof(hello));
		for (int i = 0; i < (where == 3 ? 100 : 1); i++)
			sent += kvt_test_send_fds(fd, where ? (const void *)&hello : "x",
						  where ? sizeof(hello) : 1, &file, 1);
		if (sent) /* a failed send leaves the last reference here */
			close(file);
		if (where == 3)
			close(fd);
		kill(victim.pid, SIGCONT);
		if (where < 3 && sent)
			await_hangup(fd);
	}
}

static void send_lingering(int pipe, void *context)
{
	send_everywhere(lingering_socket);
	kvt_test_send(pipe, 4);
	kvt_test_receive(pipe, &(uint64_t){ 0 }); /* until it is killed */
}

static void send_locked(int pipe, void *context)
{
	send_everywhere(locked_file);
	kvt_test_send(pipe, 4);
	kvt_test_receive(pipe, &(uint64_t){ 0 });
}

static void attack(kvt_test_child_fn *run)
{
	struct kvt_test_child attacker;

	kvt_test_child_start(&attacker, run, NULL);
	kvt_test_expect(attacker.pipe, 4);
	kvt_test_settled(&victim);
	innocent_was_served();
	kvt_test_child_kill(&attacker, SIGKILL);
	kvt_test_settled(&victim);
	innocent_was_served();
}

static void a_sent_socket_that_lingers_stalls_no_other(void **state)
{
	attack(send_lingering);
}

static void a_sent_file_that_cannot_be_released_stalls_no_other(void **state)
{
	skip_without_missing_pages();
	attack(send_locked);
}

static uint64_t cpu_ns(pid_t pid)
{
	struct timespec used;
	clockid_t clock;

	kvt_test_check(clock_getcpuclockid(pid, &clock) == 0 && clock_gettime(clock, &used) == 0);
	return (uint64_t)used.tv_sec * 1000000000ull + (uint64_t)used.tv_nsec;
}

/* Releasing the file takes processor time in proportion to its size, none of it the daemon's. */
static void a_sent_file_of_many_pages_costs_the_daemon_nothing(void **state)
{
	enum { TIMES = 6 };
	uint64_t before, release;
	int file = big_file();

	innocent_ends(); /* no client is served meanwhile */
	before = cpu_ns(getpid());
	close(file);
	release = cpu_ns(getpid()) - before;
	before = cpu_ns(victim.pid);
	for (int i = 0; i < TIMES; i++) {
		int fd = kvt_test_dial(&victim);

		file = big_file();
		kvt_test_freeze(victim.pid);
		kvt_test_send_fds(fd, "x", 1, &file, 1);
		send(fd, "x", 1, MSG_NOSIGNAL);
		close(file);
		kill(victim.pid, SIGCONT);
		await_hangup(fd);
	}
	kvt_test_settled(&victim);
	if (cpu_ns(victim.pid) - before > TIMES * release / 2)
		kvt_test_fail("%d files of %llu ms each cost the daemon %llu ms", TIMES,
			      (unsigned long long)release / 1000000,
			      (unsigned long long)(cpu_ns(victim.pid) - before) / 1000000);
	kvt_test_child_start(&innocent, innocent_run, NULL);
	kvt_test_expect(innocent.pipe, 1);
}

/* ---------------------------------------------------------------- the bell */

struct reader {
	int fd;
	void *page;
};

static void *read_bell(void *context)
{
	const struct reader *reader = context;

	(void)!read(reader->fd, reader->page, 8);
	return NULL;
}

/* Make the daemon complete an entry for a client whose ring says that it sleeps. */
static void be_rung(struct kvt_client *client)
{
	struct kvt_sqe nothing = { .op = KVT_OP_FREE, .fence_slot = KVT_FENCE_IDLE };
	uint32_t tail = kvt_load_acquire(&client->ring.header->cq_tail);

	kvt_store_relaxed(&client->ring.header->cq_need_wakeup, 1);
	kvt_fence_full();
	kvt_ring_sq_put(&client->ring, &nothing);
	if (kvt_ring_sq_publish(&client->ring))
		eventfd_write(client->doorbell, 1);
	while (kvt_load_acquire(&client->ring.header->cq_tail) == tail)
		;
}

static void hang_in_bell(int pipe, void *context)
{
	struct kvt_client *client = kvt_test_connect(&victim);
	struct reader reader = { .fd = client->completion };
	struct pollfd bell = { .fd = client->completion, .events = POLLIN };
	int fault = missing_page(&reader.page);
	pthread_t thread;

	be_rung(client);
	kvt_test_check(poll(&bell, 1, -1) == 1);
	kvt_test_check(pthread_create(&thread, NULL, read_bell, &reader) == 0);
	await_fault(fault);
	be_rung(client);
	be_rung(client);
	kvt_test_send(pipe, 4);
	kvt_test_receive(pipe, &(uint64_t){ 0 });
}

static void a_reader_that_hangs_in_its_bell_stalls_no_other(void **state)
{
	skip_without_missing_pages();
	attack(hang_in_bell);
}

static void use_bell(int pipe, void *context)
{
	struct kvt_client *client = kvt_test_connect(&victim);
	struct pollfd bell = { .fd = client->completion, .events = POLLIN };
	uint64_t word;

	/* One read silences it, however often it rang. */
	for (int i = 0; i < 20; i++)
		be_rung(client);
	kvt_test_check(poll(&bell, 1, -1) == 1);
	kvt_test_equal(read(client->completion, &word, sizeof(word)), sizeof(word));
	kvt_test_equal(poll(&bell, 1, 0), 0);
	/* A descriptor cannot be sent back over it. */
	kvt_test_check(!kvt_test_send_fds(client->completion, "x", 1, &pipe, 1) &&
		       errno == EPIPE);
	kvt_test_send(pipe, 4);
	kvt_test_receive(pipe, &(uint64_t){ 0 });
}

static void a_bell_that_is_not_answered_does_not_pile_up(void **state)
{
	attack(use_bell);
}

/* ---------------------------------------------------------------- the doorbell */

/* End as a client whose doorbell is in a set that its child keeps locked. */
static void leave_locked_doorbell(int pipe, void *context)
{
	struct kvt_client *client = kvt_test_connect(&victim);
	pid_t child = fork();

	if (child == 0) {
		prctl(PR_SET_PDEATHSIG, 0);
		lock_in_epoll(client->doorbell);
		close(client->doorbell);
		close(client->completion);
		close(client->control);
		kvt_test_send(pipe, (uint64_t)getpid());
		for (;;)
			pause();
	}
	waitpid(child, NULL, 0);
}

/* Make a locked doorbell. Process `frozen`, if any, learns of its end later. */
static pid_t make_locked_doorbell(pid_t frozen)
{
	struct kvt_test_child attacker;
	uint64_t child = 0;

	kvt_test_child_start(&attacker, leave_locked_doorbell, NULL);
	kvt_test_check(kvt_test_receive(attacker.pipe, &child));
	if (frozen)
		kvt_test_freeze(frozen);
	kvt_test_child_kill(&attacker, SIGKILL);
	return (pid_t)child;
}

static void a_doorbell_that_cannot_be_released_stalls_no_other(void **state)
{
	struct kvt_counters counters;
	pid_t children[8];

	skip_without_missing_pages();
	/* More than the closer's processes may wait for at a time. */
	for (int i = 0; i < 8; i++)
		children[i] = make_locked_doorbell(0);
	kvt_test_until(&victim, counters, counters.live_sessions == 1);
	innocent_was_served();
	for (int i = 0; i < 8; i++)
		kill(children[i], SIGKILL);
}

/* The daemon's exit releases nothing that a client controls. */
static void the_daemon_ends_although_a_doorbell_cannot_be_released(void **state)
{
	pid_t child;

	skip_without_missing_pages();
	child = make_locked_doorbell(0);
	innocent_ends();
	kvt_test_daemon_stop(&victim);
	kvt_test_daemon_start(&victim, NULL);
	kill(child, SIGKILL);
	child = make_locked_doorbell(0);
	kvt_test_settled(&victim);
	kill(victim.pid, SIGKILL);
	kvt_test_daemon_wait(&victim);
	kill(child, SIGKILL);
	kvt_test_daemon_start(&victim, NULL);
	kvt_test_child_start(&innocent, innocent_run, NULL);
	kvt_test_expect(innocent.pipe, 1);
}

static uint32_t eventfds_of(pid_t pid)
{
	char path[320], target[64];
	struct dirent *entry;
	uint32_t n = 0;
	DIR *fds;

	snprintf(path, sizeof(path), "/proc/%d/fd", (int)pid);
	fds = opendir(path);
	kvt_test_check(fds != NULL);
	while ((entry = readdir(fds))) {
		ssize_t bytes;

		snprintf(path, sizeof(path), "/proc/%d/fd/%s", (int)pid, entry->d_name);
		bytes = readlink(path, target, sizeof(target) - 1);
		target[bytes > 0 ? bytes : 0] = '\0';
		n += strstr(target, "eventfd") != NULL;
	}
	closedir(fds);
	return n;
}

/* The supervisor holds the descriptors, too, and drops them when the daemon says so: here as the
 * last holder. */
static void the_supervisor_releases_nothing_either(void **state)
{
	struct kvt_test_daemon serving = { .pid = kvt_test_daemon_child(&victim) };
	pid_t closer = kvt_test_daemon_closer(&serving), child;
	struct kvt_counters counters;

	skip_without_missing_pages();
	child = make_locked_doorbell(victim.pid);
	kvt_test_until(&victim, counters, counters.live_sessions == 1);
	while (eventfds_of(closer) > 1) /* the innocent client's */
		sched_yield();
	kill(victim.pid, SIGCONT);
	kvt_test_daemon_succeed(&victim);
	innocent_was_served();
	kill(child, SIGKILL);
}

static void a_closer_that_was_killed_is_replaced(void **state)
{
	pid_t closer = kvt_test_daemon_closer(&victim), other;

	kvt_test_check(closer > 0 && kill(closer, SIGKILL) == 0);
	do {
		kvt_test_settled(&victim); /* a connection that comes and goes */
		other = kvt_test_daemon_closer(&victim);
	} while (other == closer || other <= 0);
	kvt_test_check(kvt_test_daemon_said(&victim, "closer_ended"));
	attack(send_lingering);
}

/* A service manager would find it left over. Its owner, this test, continues. */
static void a_closer_that_holds_nothing_ends_before_its_owner(void **state)
{
	char program[4096];
	int ends[2], owner = (int)syscall(SYS_pidfd_open, getpid(), 0), status;
	pid_t closer;

	snprintf(program, sizeof(program), "%s/kvtrunkd", kvt_test_build());
	kvt_test_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
	kvt_test_check(owner >= 0);
	closer = fork();
	if (closer == 0) {
		int link = fcntl(ends[1], F_DUPFD_CLOEXEC, 10);
		int high = fcntl(owner, F_DUPFD_CLOEXEC, 10);

		if (dup2(link, 3) == 3 && dup2(high, 4) == 4)
			execl(program, program, "--closer", NULL);
		_exit(127);
	}
	close(ends[1]);
	close(ends[0]);
	kvt_test_equal(waitpid(closer, &status, 0), closer);
	kvt_test_check(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	close(owner);
}

#define AS_IS(test) cmocka_unit_test_setup_teardown(test, begin_as_is, end)
#define OLD(test)                                                                                 \
	{                                                                                         \
		#test "_on_old_kernels", test, begin_on_old_kernel, end, NULL                     \
	}
#define SUPERVISED(test) cmocka_unit_test_setup_teardown(test, begin_supervised, end)

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		AS_IS(a_sent_socket_that_lingers_stalls_no_other),
		OLD(a_sent_socket_that_lingers_stalls_no_other),
		AS_IS(a_sent_file_that_cannot_be_released_stalls_no_other),
		OLD(a_sent_file_that_cannot_be_released_stalls_no_other),
		AS_IS(a_sent_file_of_many_pages_costs_the_daemon_nothing),
		OLD(a_sent_file_of_many_pages_costs_the_daemon_nothing),
		AS_IS(a_reader_that_hangs_in_its_bell_stalls_no_other),
		AS_IS(a_bell_that_is_not_answered_does_not_pile_up),
		AS_IS(a_doorbell_that_cannot_be_released_stalls_no_other),
		AS_IS(the_daemon_ends_although_a_doorbell_cannot_be_released),
		SUPERVISED(the_supervisor_releases_nothing_either),
		OLD(a_closer_that_was_killed_is_replaced),
		cmocka_unit_test(a_closer_that_holds_nothing_ends_before_its_owner),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
