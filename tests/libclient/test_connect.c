/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/connect.c and control.c against a pretended daemon that answers HELLO with anything. A
 * bad answer fails with a named error and leaks no descriptor.
 *
 * Inputs: a script for the daemon's answers, and connect options. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "kvtrunk_operations.h"
#include "kvtrunk_pool.h"
#include "kvtrunk_wire.h"
#include "libclient/steps.h"
#include "libclient/submit.h"
#include "shm/clock.h"
#include "tests/lib/cases.h"

enum { PS = 16, N_PAGES = 8, PAGE_BYTES = 1024, FDS_MAX = 40 };

/* What the pretended daemon does with the next connection. */
struct script {
	struct kvt_message_welcome welcome;
	struct kvt_message_refused refused;
	int fds[FDS_MAX];
	unsigned int n_fds;
	const void *answer; /* NULL: hang up */
	size_t bytes;
	bool keep; /* keep the connection open for the test */
	int n_died;  /* so many daemons die before they answer */
};

static char path[64];
static int listener;
static struct script script;
static struct kvt_message_hello hello; /* as it came */
static int connection = -1;
static struct kvt_segment_header *segment;

/* What the test's last connect gave. */
static struct kvt_client *client;
static struct kvt_error error;

static int sealed_memory(uint64_t bytes, bool sealed)
{
	int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	assert_true(fd >= 0);
	assert_int_equal(ftruncate(fd, (off_t)bytes), 0);
	if (sealed)
		assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW), 0);
	return fd;
}

/* A valid WELCOME, with segment, eventfds and pool. */
static void good_welcome(void)
{
	struct kvt_segment_layout layout;

	memset(&script, 0, sizeof(script));
	script.welcome = (struct kvt_message_welcome){
		.head = { .magic = KVT_MESSAGE_MAGIC, .type = KVT_MSG_WELCOME,
			  .version = KVT_ABI, .bytes = sizeof(script.welcome) },
		.fds = KVT_FD_SEGMENT | KVT_FD_AREAS | KVT_FD_DOORBELL | KVT_FD_COMPLETION |
		       KVT_FD_POOL,
		.session = 3,
		.page_size = PS,
		.n_pages = N_PAGES,
		.page_bytes = PAGE_BYTES,
		.pool_bytes = N_PAGES * PAGE_BYTES,
		.n_slabs = 1,
		.epoch = 5,
		.flags = 1 | 4,
		.fingerprint = "weights=toy",
	};
	assert_int_equal(kvt_segment_plan(&layout, 4, 8, 64, 64), 0);
	script.fds[0] = sealed_memory(layout.bytes, true);
	segment = mmap(NULL, layout.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, script.fds[0], 0);
	assert_true(segment != MAP_FAILED);
	kvt_segment_format(segment, &layout, 3);
	script.fds[1] = sealed_memory(layout.areas_bytes, true);
	script.fds[2] = eventfd(0, EFD_CLOEXEC);
	script.fds[3] = eventfd(0, EFD_CLOEXEC);
	script.fds[4] = sealed_memory(N_PAGES * PAGE_BYTES, true);
	script.n_fds = 5;
	script.answer = &script.welcome;
	script.bytes = sizeof(script.welcome);
}

static void send_answer(int fd)
{
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(FDS_MAX * sizeof(int))];
	} control;
	struct iovec iov = { (void *)(uintptr_t)script.answer, script.bytes };
	struct msghdr message = { .msg_iov = &iov, .msg_iovlen = 1 };
	struct cmsghdr *part;

	memset(&control, 0, sizeof(control));
	if (script.n_fds) {
		message.msg_control = control.bytes;
		message.msg_controllen = CMSG_SPACE(script.n_fds * sizeof(int));
		part = CMSG_FIRSTHDR(&message);
		part->cmsg_level = SOL_SOCKET;
		part->cmsg_type = SCM_RIGHTS;
		part->cmsg_len = CMSG_LEN(script.n_fds * sizeof(int));
		memcpy(CMSG_DATA(part), script.fds, script.n_fds * sizeof(int));
	}
	(void)!sendmsg(fd, &message, MSG_NOSIGNAL);
}

static void serve_one(void)
{
	int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);

	memset(&hello, 0, sizeof(hello));
	(void)!recv(fd, &hello, sizeof(hello), 0);
	if (script.n_died) {
		script.n_died--;
		close(fd);
		return;
	}
	if (script.answer)
		send_answer(fd);
	if (script.keep)
		connection = fd;
	else
		close(fd);
}

/* The library tries again after a hang-up, so serve every try until `stop` is written. */
static void *serve_all(void *context)
{
	const int *stop = context;
	struct pollfd look[2] = { { .fd = listener, .events = POLLIN },
				  { .fd = *stop, .events = POLLIN } };

	while (poll(look, 2, -1) > 0 && !look[1].revents)
		serve_one();
	return NULL;
}

static unsigned int open_descriptors(void)
{
	DIR *dir = opendir("/proc/self/fd");
	unsigned int n = 0;

	assert_non_null(dir);
	while (readdir(dir))
		n++;
	closedir(dir);
	return n;
}

/* Connect. A failure makes no client, and leaves no descriptor open. */
static int connect_with(uint32_t flags)
{
	struct kvt_options options = KVT_OPTIONS_INIT;
	int rc, stop = eventfd(0, EFD_CLOEXEC);
	unsigned int before = open_descriptors();
	pthread_t thread;

	options.socket_path = path;
	options.label = "a label that is longer than there is room for in the message, by far";
	options.fingerprint = "weights=toy";
	options.page_size = PS;
	options.flags = flags;
	assert_int_equal(pthread_create(&thread, NULL, serve_all, &stop), 0);
	memset(&error, 0, sizeof(error));
	errno = 4321;
	rc = kvt_client_connect(&client, &options, &error);
	assert_int_equal(errno, 4321); /* the caller's is unchanged */
	assert_int_equal(eventfd_write(stop, 1), 0);
	pthread_join(thread, NULL);
	if (rc != 0) {
		if (connection >= 0)
			close(connection);
		connection = -1;
		assert_int_equal(open_descriptors(), before);
		assert_null(client);
		assert_int_equal(error.code, rc);
		assert_true(strlen(error.text) > 10);
	}
	close(stop);
	return rc;
}

/* Connect, and keep the daemon's end in `connection`. */
static void connect_kept(uint32_t flags)
{
	script.keep = true;
	assert_int_equal(connect_with(flags), 0);
}

static void drop_script(void)
{
	for (unsigned int i = 0; i < script.n_fds; i++)
		close(script.fds[i]);
	script.n_fds = 0;
	if (connection >= 0)
		close(connection);
	connection = -1;
}

static int begin(void **state)
{
	good_welcome();
	return 0;
}

static int finish(void **state)
{
	kvt_client_abandon(client);
	client = NULL;
	drop_script();
	return 0;
}

static void begin_again(void)
{
	finish(NULL);
	begin(NULL);
}

static int setup(void **state)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };

	snprintf(path, sizeof(path), "/tmp/kvt-test-connect-%d", (int)getpid());
	unlink(path);
	memcpy(address.sun_path, path, sizeof(path));
	listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (bind(listener, (struct sockaddr *)&address, sizeof(address)) != 0)
		return -1;
	return listen(listener, 4);
}

static int teardown(void **state)
{
	close(listener);
	unlink(path);
	return 0;
}

/* ---------------------------------------------------------------- tests */

/* Each begins with a valid WELCOME to answer. */
#undef TEST
#define TEST(name) TEST_WITH(name, begin, finish)

TEST(a_good_welcome_makes_a_client)
{
	struct kvt_pool pool, again;
	struct kvt_handle handle;
	uint32_t key = 1, matched;

	connect_kept(0);
	assert_int_equal(hello.head.type, KVT_MSG_HELLO);
	assert_int_equal(hello.pid, getpid());
	assert_true(hello.layout == kvt_abi_layout());
	assert_int_equal(hello.page_size, PS);
	assert_int_equal(hello.label[KVT_LABEL_BYTES - 1], 0);
	assert_int_equal(strlen(hello.label), KVT_LABEL_BYTES - 1);
	assert_string_equal(hello.fingerprint, "weights=toy");
	assert_int_equal(kvt_client_info(client)->session, 3);
	assert_true(kvt_client_info(client)->privileged);
	assert_false(kvt_client_info(client)->disabled);
	assert_true(kvt_client_info(client)->test_clock);
	assert_false(kvt_client_info(client)->arena_visible);
	assert_int_equal(kvt_pool_map(client, &pool), 0);
	assert_int_equal(pool.n_pages, N_PAGES);
	memset(pool.base, 7, N_PAGES * PAGE_BYTES);
	assert_int_equal(kvt_pool_map(client, &again), 0);
	assert_ptr_equal(pool.base, again.base);
	assert_int_equal(kvt_probe(client, 0, &key, 1, &handle, &matched), -ENOTSUP);
	assert_non_null(strstr(kvt_client_error(client)->text, "MATCH"));
}

static void script_refusal(int result, const char *text)
{
	drop_script();
	script.refused = (struct kvt_message_refused){
		.head = { .magic = KVT_MESSAGE_MAGIC, .type = KVT_MSG_REFUSED,
			  .version = KVT_ABI, .bytes = sizeof(script.refused),
			  .result = result },
	};
	snprintf(script.refused.text, sizeof(script.refused.text), "%s", text);
	script.answer = &script.refused;
	script.bytes = sizeof(script.refused);
}

TEST(the_daemons_refusal_is_passed_on)
{
	script_refusal(-EUSERS, "page_size is 64, not 16");
	assert_int_equal(connect_with(0), -EUSERS);
	assert_non_null(strstr(error.text, "page_size is 64, not 16"));
	/* Unterminated text is cut, not followed. */
	memset(script.refused.text, 'x', sizeof(script.refused.text));
	assert_int_equal(connect_with(0), -EUSERS);
	script.refused.head.result = 0;
	assert_int_equal(connect_with(0), -EPROTO);
}

TEST(a_daemon_of_another_abi_is_named_with_the_cure)
{
	script_refusal(-EPROTO, "version differs");
	script.refused.head.version--;
	assert_int_equal(connect_with(0), -EPROTO);
	assert_non_null(strstr(error.text, "wrong_version: the answer to HELLO is no message of "
			       "this ABI: install the same release"));
}

TEST(a_mirror_follows_the_slabs)
{
	script.welcome.fds |= KVT_FD_MIRROR;
	assert_int_equal(connect_with(KVT_MIRROR), -EPROTO); /* none came */
	script.fds[script.n_fds++] = sealed_memory(sizeof(struct kvt_mirror) - 1, true);
	assert_int_equal(connect_with(KVT_MIRROR), -EPROTO);
	close(script.fds[--script.n_fds]);
	script.fds[script.n_fds++] = sealed_memory(sizeof(struct kvt_mirror), true);
	connect_kept(KVT_MIRROR);
	assert_non_null(client->mirror.shared);
	assert_int_equal(hello.flags, KVT_MIRROR);
}

TEST(absent_daemons_are_told_apart)
{
	struct kvt_options options = KVT_OPTIONS_INIT;
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	char longer[200], other[108];
	int stream;

	options.connect_wait_ns = -1;
	options.socket_path = "/tmp/kvt-test-no-such-socket";
	assert_int_equal(kvt_client_connect(&client, &options, &error), -ENOENT);
	assert_non_null(strstr(error.text, "no_socket"));
	assert_int_equal(error.attach_state, KVT_ATTACH_NO_SOCKET);
	memset(longer, 'x', sizeof(longer));
	longer[199] = '\0';
	options.socket_path = longer;
	assert_int_equal(kvt_client_connect(&client, &options, &error), -ENAMETOOLONG);
	assert_int_equal(error.attach_state, KVT_ATTACH_FAILED);
	options.socket_path = "";
	assert_int_equal(kvt_client_connect(&client, &options, &error), -EINVAL);
	snprintf(other, sizeof(other), "%s-stream", path);
	memcpy(address.sun_path, other, sizeof(address.sun_path));
	stream = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	assert_int_equal(bind(stream, (struct sockaddr *)&address, sizeof(address)), 0);
	options.socket_path = other;
	assert_int_equal(kvt_client_connect(&client, &options, &error), -EPROTOTYPE);
	listen(stream, 1);
	assert_int_equal(kvt_client_connect(&client, &options, &error), -EPROTOTYPE);
	close(stream);
	/* The socket file outlived its listener. */
	assert_int_not_equal(kvt_client_connect(&client, &options, &error), 0);
	unlink(other);
	stream = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	assert_int_equal(bind(stream, (struct sockaddr *)&address, sizeof(address)), 0);
	close(stream);
	assert_int_equal(kvt_client_connect(&client, &options, &error), -ECONNREFUSED);
	assert_non_null(strstr(error.text, "start kvtrunkd"));
	unlink(other);
}

static int64_t connect_ns(int64_t wait_ns, int64_t timeout_ns, const char *where)
{
	struct kvt_options options = KVT_OPTIONS_INIT;
	int64_t began = kvt_now_ns();

	options.connect_wait_ns = wait_ns;
	options.timeout_ns = timeout_ns;
	options.socket_path = where;
	assert_int_equal(kvt_client_connect(&client, &options, NULL), -ENOENT);
	return kvt_now_ns() - began;
}

/* Bounds that hold on a loaded machine, too: one tight, the other far away. */
TEST(no_wait_exceeds_its_deadline)
{
	const int64_t hour = 3600000000000ll, ms = 1000000;
	const char *none = "/tmp/kvt-test-no-such-socket";

	assert_true(connect_ns(50 * ms, 0, none) >= 50 * ms);
	assert_true(connect_ns(50 * ms, hour, none) < 4000 * ms);
	assert_true(connect_ns(hour, 50 * ms, none) >= 50 * ms);
	assert_true(connect_ns(-1, 0, none) < 4000 * ms);
	assert_true(connect_ns(0, 50 * ms, none) >= 50 * ms); /* the default waits */
	setenv("KVTRUNK_SOCKET", none, 1);
	assert_true(connect_ns(0, 50 * ms, NULL) >= 50 * ms);
	unsetenv("KVTRUNK_SOCKET");
	if (access("/run/kvtrunk", F_OK) != 0)
		assert_true(connect_ns(0, 0, NULL) < 4000 * ms);
}

TEST(a_daemon_that_never_answers_meets_the_deadline)
{
	struct kvt_options options = KVT_OPTIONS_INIT;

	options.socket_path = path; /* it listens, and no one accepts */
	options.timeout_ns = 20000000;
	assert_int_equal(kvt_client_connect(&client, &options, &error), -ETIMEDOUT);
	assert_non_null(strstr(error.text, "starting"));
	assert_int_equal(error.attach_state, KVT_ATTACH_STARTING);
	close(accept4(listener, NULL, NULL, SOCK_CLOEXEC));
	/* Nor is there a wait when its backlog is full. */
	for (int i = 0; i < 8; i++)
		assert_int_equal(kvt_client_connect(&client, &options, &error), -ETIMEDOUT);
	teardown(NULL);
	setup(NULL);
}

TEST(a_hello_is_repeated_if_its_daemon_ends_before_it_answers)
{
	script.n_died = 1000;
	assert_int_equal(connect_with(0), -ECONNRESET);
	assert_non_null(strstr(error.text, "the daemon hung up"));
	script.n_died = 1;
	connect_kept(0);
	assert_int_equal(script.n_died, 0);
}

TEST(a_hang_up_at_hello_is_an_error)
{
	script.answer = NULL;
	assert_int_equal(connect_with(0), -ECONNRESET);
}

/* Each makes one part of a valid WELCOME wrong. */
static void spoil(unsigned int which)
{
	switch (which) {
	case 0: script.welcome.head.magic++; break;
	case 1: script.welcome.head.version++; break;
	case 2: script.welcome.head.bytes--; break;
	case 3: script.bytes--; script.welcome.head.bytes--; break;
	case 4: script.bytes = 10; break;
	case 5: script.welcome.head.type = KVT_MSG_ADMIN; break;
	case 6: script.welcome.page_size = 0; break;
	case 7: script.welcome.page_size = 4097; break;
	case 8: script.welcome.n_pages = 1; break;
	case 9: script.welcome.page_bytes = UINT64_MAX; break;
	case 10: script.welcome.page_bytes++; break;
	case 11: memset(script.welcome.fingerprint, 'x', KVT_FINGERPRINT_BYTES); break;
	case 12: script.welcome.fds |= KVT_FD_ARENA; break; /* one that did not come */
	case 13: script.welcome.fds &= ~(uint32_t)KVT_FD_POOL; break; /* one too many came */
	case 14: script.welcome.fds = 0; break;
	case 15: script.welcome.fds = KVT_FD_AREAS | KVT_FD_DOORBELL | KVT_FD_COMPLETION |
				      KVT_FD_ARENA | KVT_FD_POOL; break; /* no segment */
	case 16: segment->magic++; break;
	case 17: segment->layout++; break;
	case 18: segment->keys_count = 1u << 30; break;
	case 19: segment->sq_offset += 128; break;
	case 20: segment->sq_entries = 3; break;
	case 21: script.welcome.n_slabs = 0; break;
	case 22: script.welcome.n_slabs = 2; break; /* one of them came */
	case 23: script.welcome.n_slabs = KVT_MAX_SLABS + 1; break;
	case 24: segment->keys_count += 32; break; /* beyond the areas */
	case 25: segment->areas_bytes += 128; break;
	default: break;
	}
}

TEST(a_welcome_that_is_wrong_in_anything_is_refused)
{
	for (unsigned int which = 0; which < 26; which++, begin_again()) {
		spoil(which);
		if (connect_with(0) != -EPROTO)
			fail_msg("case %u: %d %s", which, error.code, error.text);
	}
}

TEST(objects_that_could_shrink_are_refused)
{
	static const struct {
		unsigned int fd;
		uint64_t bytes;
		bool sealed;
	} objects[] = {
		{ 0, 1 << 16, false },
		{ 0, 100, true }, /* shorter than a header */
		{ 4, N_PAGES * PAGE_BYTES, false },
		{ 4, N_PAGES * PAGE_BYTES - 1, true },
	};
	struct kvt_pool pool;

	for (unsigned int i = 0; i < 4; i++, begin_again()) {
		close(script.fds[objects[i].fd]);
		script.fds[objects[i].fd] = sealed_memory(objects[i].bytes, objects[i].sealed);
		if (objects[i].fd == 0) {
			assert_int_equal(connect_with(0), -EPROTO);
			continue;
		}
		connect_kept(0);
		assert_int_equal(kvt_pool_map(client, &pool), -EPROTO);
	}
}

/* 1,024 bytes a page: two planes of 16 positions of 16 elements of 2 bytes. */
TEST(a_view_needs_a_geometry_and_it_must_fit_the_pages)
{
	struct kvt_pool_geometry geometry = { .n_layers = 1, .n_kv_heads = 1, .head_dim = 16,
					      .type = KVT_ELEMENT_FP16,
					      .scales = { { 1, 1 } } };
	struct kvt_pool_view view;
	struct kvt_pool pool;

	for (int known = 0; known < 2; known++) {
		begin_again();
		if (known)
			script.welcome.geometry = geometry;
		connect_kept(0);
		assert_int_equal(kvt_pool_map(client, &pool), 0);
		assert_int_equal(kvt_pool_view(client, &pool, 0, &view), known ? 0 : -ENODATA);
		assert_int_equal(kvt_pool_view(client, &pool, 1, &view),
				 known ? -EINVAL : -ENODATA);
		pool.n_pages++; /* another one's */
		assert_int_equal(kvt_pool_view(client, &pool, 0, &view),
				 known ? -EINVAL : -ENODATA);
	}
	assert_ptr_equal(view.k, pool.base);
	assert_ptr_equal(view.v, (char *)pool.base + N_PAGES * PAGE_BYTES / 2);
	begin_again();
	geometry.head_dim = 8;
	script.welcome.geometry = geometry;
	assert_int_equal(connect_with(0), -EPROTO);
}

TEST(every_slab_s_record_and_descriptor_is_kept)
{
	struct stat there, here;

	script.welcome.n_slabs = KVT_MAX_SLABS;
	for (uint32_t i = 0; i < KVT_MAX_SLABS; i++) {
		script.welcome.slabs[i].device = (int32_t)i;
		script.welcome.slabs[i].ipc_handle[63] = (uint8_t)(0x80 + i);
		if (i)
			script.fds[script.n_fds++] = sealed_memory(N_PAGES * PAGE_BYTES, true);
	}
	connect_kept(0);
	assert_int_equal(client->n_slabs, KVT_MAX_SLABS);
	for (uint32_t i = 0; i < KVT_MAX_SLABS; i++) {
		assert_int_equal(client->slabs[i].record.device, i);
		assert_int_equal(client->slabs[i].record.ipc_handle[63], 0x80 + i);
		assert_int_equal(fstat(client->slabs[i].fd, &here), 0);
		assert_int_equal(fstat(script.fds[4 + i], &there), 0);
		assert_int_equal(here.st_ino, there.st_ino);
	}
}

TEST(unexpected_descriptors_are_closed)
{
	while (script.n_fds < FDS_MAX)
		script.fds[script.n_fds++] = eventfd(0, EFD_CLOEXEC);
	assert_int_equal(connect_with(0), -EPROTO);
}

TEST(an_observer_needs_no_ring)
{
	struct kvt_request request = { .op = KVT_OP_NOP };
	struct kvt_result result;

	drop_script();
	script.welcome.fds = 0;
	connect_kept(KVT_HELLO_OBSERVE);
	assert_int_equal(kvt_submit(client, &request), -ENOTCONN);
	assert_int_equal(kvt_call(client, &request, &result), -ENOTCONN);
	assert_int_equal(kvt_reap(client, &result, 0, 1), -ENOTCONN);
	assert_int_equal(kvt_client_arm(client), -ENOTCONN);
	assert_int_equal(kvt_fence_raise(client, 0, 1), -EINVAL);
	kvt_client_kick(client);
	assert_int_equal(kvt_client_close(client, KVT_IDLE), 0);
	client = NULL;
}

/* Answers one question on the control socket, after stale answers. */
static void *answer_one(void *context)
{
	struct kvt_message_namespace question, answer;

	(void)!recv(connection, &question, sizeof(question), 0);
	answer = question;
	answer.head.cookie--;
	answer.namespace_id = 9;
	(void)!send(connection, &answer, sizeof(answer), MSG_NOSIGNAL);
	answer.head.cookie++;
	answer.namespace_id = 17;
	answer.head.result = context ? -ENOSPC : 0;
	snprintf(answer.text, sizeof(answer.text), "max_namespaces is 16");
	(void)!send(connection, &answer, sizeof(answer), MSG_NOSIGNAL);
	return NULL;
}

TEST(late_answers_on_the_socket_are_passed_over)
{
	const uint64_t digest[2] = { 1, 2 }, other[2] = { 3, 4 };
	uint32_t number = 0;
	pthread_t thread;

	connect_kept(0);
	kvt_client_set_timeout(client, 10000000);
	assert_int_equal(kvt_namespace_open(client, digest, "late", &number), -ETIMEDOUT);
	kvt_client_set_timeout(client, 0);
	(void)!recv(connection, &hello, sizeof(hello), 0);
	assert_int_equal(pthread_create(&thread, NULL, answer_one, NULL), 0);
	assert_int_equal(kvt_namespace_open(client, digest, "now", &number), 0);
	pthread_join(thread, NULL);
	assert_int_equal(number, 17);
	number = 0; /* known by now: no question is sent */
	assert_int_equal(kvt_namespace_open(client, digest, "again", &number), 0);
	assert_int_equal(number, 17);
	assert_int_equal(pthread_create(&thread, NULL, answer_one, &number), 0);
	assert_int_equal(kvt_namespace_open(client, other, NULL, &number), -ENOSPC);
	pthread_join(thread, NULL);
	assert_non_null(strstr(kvt_client_error(client)->text, "max_namespaces is 16"));
	assert_int_equal(number, 17);
	close(connection);
	connection = -1;
	assert_int_equal(kvt_namespace_open(client, other, NULL, &number), -ECONNRESET);
	assert_int_equal(kvt_client_close(client, KVT_IDLE), -ECONNRESET);
	client = NULL;
}

TEST(a_goodbye_instead_of_an_answer_tells_why)
{
	const uint64_t digest[2] = { 1, 2 };
	struct kvt_message_admin request = { .what = KVT_ADMIN_STATUS };
	uint32_t number = 0;

	connect_kept(0);
	script.refused = (struct kvt_message_refused){
		.head = { .magic = KVT_MESSAGE_MAGIC, .type = KVT_MSG_GOODBYE,
			  .version = KVT_ABI, .bytes = sizeof(script.refused) },
	};
	memset(script.refused.text, 'z', sizeof(script.refused.text));
	assert_int_equal(send(connection, &script.refused, sizeof(script.refused), 0),
			 sizeof(script.refused));
	assert_int_equal(kvt_namespace_open(client, digest, "x", &number), -ECONNRESET);
	assert_non_null(strstr(kvt_client_error(client)->text, "zzzz"));
	assert_int_equal(kvt_admin(client, &request, NULL, 0, NULL, 0), -ECONNRESET);
}

struct admin_answer {
	struct kvt_message_admin head;
	char records[64];
};

static struct admin_answer admin_answer;
static size_t admin_bytes;

static void *answer_admin(void *context)
{
	struct kvt_message_admin question;

	(void)!recv(connection, &question, sizeof(question), 0);
	admin_answer.head.head = question.head;
	admin_answer.head.head.bytes = (uint32_t)admin_bytes;
	admin_answer.head.head.result = admin_answer.head.reserved ? -EPERM : 0;
	(void)!send(connection, &admin_answer, admin_bytes, MSG_NOSIGNAL);
	return NULL;
}

static int ask_admin(uint32_t count, uint32_t record_bytes, size_t bytes, size_t room)
{
	struct kvt_message_admin request = { .what = KVT_ADMIN_STATUS };
	char records[64];
	pthread_t thread;
	int rc;

	admin_answer.head.count = count;
	admin_answer.head.record_bytes = record_bytes;
	admin_bytes = sizeof(admin_answer.head) + bytes;
	memset(admin_answer.records, 'r', sizeof(admin_answer.records));
	assert_int_equal(pthread_create(&thread, NULL, answer_admin, NULL), 0);
	rc = kvt_admin(client, &request, "payload", 7, records, room);
	pthread_join(thread, NULL);
	if (rc > 0)
		assert_int_equal(records[count * record_bytes - 1], 'r');
	return rc;
}

TEST(admin_answers_are_measured_before_they_are_copied)
{
	struct kvt_message_admin request = { .what = KVT_ADMIN_STATUS };

	connect_kept(KVT_HELLO_OBSERVE);
	assert_int_equal(ask_admin(4, 16, 64, 64), 4);
	assert_int_equal(ask_admin(0, 0, 0, 0), 0);
	assert_int_equal(ask_admin(4, 16, 64, 63), -ENOBUFS);
	assert_int_equal(ask_admin(5, 16, 64, 64), -EPROTO);
	assert_int_equal(ask_admin(65536, 65536, 64, 64), -EPROTO);
	admin_answer.head.reserved = 1;
	snprintf(admin_answer.head.text, sizeof(admin_answer.head.text), "join admin_group");
	assert_int_equal(ask_admin(0, 0, 0, 0), -EPERM);
	assert_non_null(strstr(kvt_client_error(client)->text, "join admin_group"));
	admin_answer.head.reserved = 0;
	assert_int_equal(kvt_admin(client, &request, "", KVT_MESSAGE_MAX, NULL, 0), -E2BIG);
}

TEST(an_arena_that_is_not_right_is_named)
{
	for (int i = 0; i < 2; i++, begin_again()) {
		script.welcome.fds |= KVT_FD_ARENA;
		script.fds[5] = script.fds[4];
		script.fds[4] = sealed_memory(i ? 100 : 0, true);
		script.n_fds = 6;
		assert_int_equal(connect_with(0), i ? -EPROTO : -EAGAIN);
		assert_non_null(strstr(error.text, i ? "corrupt: arena" : "starting: arena"));
	}
}

TEST(names_cover_every_number)
{
	for (int i = 0; i < KVT_REASON_COUNT; i++) {
		assert_string_not_equal(kvt_reason_name(i), "unknown");
		assert_true(strlen(kvt_reason_text(i)) > 5);
	}
	for (int i = 0; i < KVT_OP_COUNT; i++)
		assert_string_not_equal(kvt_op_name(i), "unknown");
	for (unsigned int i = 0; i < KVT_STEP_COUNT; i++)
		assert_int_equal(kvt_client_step_parse(kvt_client_step_name(i)), i);
	assert_string_equal(kvt_reason_name(-1), "unknown");
	assert_string_equal(kvt_reason_name(KVT_REASON_COUNT), "unknown");
	assert_string_equal(kvt_op_name(KVT_OP_COUNT), "unknown");
	assert_string_equal(kvt_errno_name(-ENOSPC), "ENOSPC");
	assert_string_equal(kvt_errno_name(ENOSPC), "ENOSPC");
	assert_string_equal(kvt_errno_name(99999), "unknown");
	assert_null(kvt_client_step_name(KVT_STEP_COUNT));
	assert_int_equal(kvt_client_step_parse("no-such-step"), -EINVAL);
	assert_string_equal(kvt_client_step_name(KVT_STEP_AFTER_NOP + KVT_OP_BEGIN),
			    "after-begin");
	assert_string_not_equal(kvt_version(), "unknown");
}

TEST_GROUP(setup, teardown)
