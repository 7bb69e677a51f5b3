/* SPDX-License-Identifier: Apache-2.0 */
/* Admin requests: what they answer, who may make them, and answers that wait until they are true.
 * Each runs against a real daemon.
 *
 * Inputs: requests of several users. Invariant: an answer is true when it comes. */
#include <errno.h>
#include <grp.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include "tests/lib/spawn.h"
#include "tests/lib/cases.h"
#include "tests/lib/raw.h"

#define PAGE 16

static struct kvt_client *worker, *observer;
static uint32_t namespace_id;

#define FOR_EVERYBODY "socket_mode = 0666\n"

static int start(void **state)
{
	kvt_test_daemon_begin(&daemon_, *state);
	worker = kvt_test_connect(&daemon_);
	observer = kvt_test_observe(&daemon_);
	namespace_id = kvt_test_namespace(worker, "admin");
	return 0;
}

static int stop(void **state)
{
	kvt_client_close(worker, KVT_IDLE);
	kvt_client_close(observer, KVT_IDLE);
	return kvt_test_end(state);
}

static int ask(struct kvt_client *client, uint32_t what, uint64_t argument, void *records,
	       size_t bytes)
{
	struct kvt_message_admin request = { .what = what, .argument = argument };

	return kvt_admin(client, &request, NULL, 0, records, bytes);
}

static struct kvt_admin_status status_now(void)
{
	struct kvt_admin_status status;

	kvt_test_equal(ask(observer, KVT_ADMIN_STATUS, 0, &status, sizeof(status)), 1);
	return status;
}

static void cache(uint32_t first, uint32_t n)
{
	kvt_test_cache(worker, namespace_id, first, n);
}

TEST_WITH(status_tells_what_was_done, start, stop)
{
	struct kvt_admin_status status;
	uint64_t counted = 0;

	cache(1000, 10 * PAGE);
	cache(1000, 20 * PAGE);
	status = status_now();
	kvt_test_equal(status.page_size, PAGE);
	kvt_test_equal(status.n_pages, 4096);
	kvt_test_equal(status.counters.cached_pages, 20);
	kvt_test_equal(status.counters.input_positions, 30 * PAGE);
	kvt_test_equal(status.counters.hit_positions, 10 * PAGE);
	kvt_test_equal(status.op_count[KVT_OP_BEGIN], 2);
	kvt_test_equal(status.op_count[KVT_OP_COMMIT], 2);
	for (int i = 0; i < KVT_HISTOGRAM_BUCKETS; i++)
		counted += status.op_histogram[KVT_OP_BEGIN][i];
	kvt_test_equal(counted, 2);
	kvt_test_check(status.path_nodes_p99 >= 1);
	kvt_test_equal(status.daemon_pid, daemon_.pid);
	kvt_test_equal(status.counters.live_sessions, 1);
}

TEST_WITH(tables_are_complete_over_several_pages, start, stop)
{
	static uint8_t records[KVT_MESSAGE_MAX];
	struct kvt_message_admin request = { .what = KVT_ADMIN_NAMESPACES };
	const struct kvt_admin_namespace *found = (const void *)records;
	uint32_t id, last = 0;
	uint64_t spaces = 0;
	int n, rounds = 0;

	for (uint64_t i = 0; i < 900; i++)
		kvt_test_equal(kvt_namespace_open(worker, (uint64_t[2]){ i, 77 }, NULL, &id), 0);
	do {
		n = kvt_admin(observer, &request, NULL, 0, records, sizeof(records));
		kvt_test_check(n >= 0);
		for (int i = 0; i < n; i++) {
			kvt_test_check(found[i].namespace_id > last);
			last = found[i].namespace_id;
		}
		spaces += (uint64_t)n;
		rounds++;
	} while (request.cursor);
	kvt_test_equal(spaces, 901); /* with that of start() */
	kvt_test_check(rounds > 1);
}

TEST_WITH(clients_and_namespaces_are_listed, start, stop)
{
	struct kvt_admin_client clients[8];
	struct kvt_admin_namespace namespaces[8];
	uint32_t session = kvt_client_info(worker)->session, page;

	kvt_test_equal(kvt_alloc(worker, 1, &page), 0);
	kvt_test_equal(ask(observer, KVT_ADMIN_CLIENTS, 0, clients, sizeof(clients)), 1);
	kvt_test_equal(clients[0].session, session);
	kvt_test_equal(clients[0].pid, getpid());
	kvt_test_equal(clients[0].n_private, 1);
	kvt_test_equal(clients[0].state, KVT_SESSION_OPEN);
	kvt_test_equal(clients[0].sealer, kvt_client_info(worker)->sealer);
	kvt_test_equal(ask(observer, KVT_ADMIN_NAMESPACES, 0, namespaces, sizeof(namespaces)), 1);
	kvt_test_equal(namespaces[0].namespace_id, namespace_id);
	kvt_test_equal(namespaces[0].opened, 1);
	kvt_test_equal(kvt_free(worker, &page, 1, KVT_IDLE), 0);
}

TEST_WITH(a_page_is_described, start, stop)
{
	struct kvt_admin_page record;
	uint32_t page;

	kvt_test_equal(kvt_alloc(worker, 1, &page), 0);
	kvt_test_equal(ask(observer, KVT_ADMIN_PAGE, page, &record, sizeof(record)), 1);
	kvt_test_equal(record.page, page);
	kvt_test_equal(record.state, KVT_PAGE_PRIVATE);
	kvt_test_equal(record.session, kvt_client_info(worker)->session);
	kvt_test_equal(ask(observer, KVT_ADMIN_PAGE, 1ull << 32, &record, sizeof(record)), -EINVAL);
	kvt_test_equal(ask(observer, KVT_ADMIN_PAGE, 4096, &record, sizeof(record)), -EINVAL);
	kvt_test_equal(kvt_free(worker, &page, 1, KVT_IDLE), 0);
}

TEST_WITH(an_operator_may_evict_remove_and_reset, start, stop)
{
	struct kvt_message_admin request = { .what = KVT_ADMIN_EVICT, .argument = 3 };
	uint64_t epoch = status_now().epoch;
	uint32_t keys[PAGE];

	cache(5000, 8 * PAGE);
	cache(9000, 8 * PAGE);
	kvt_test_equal(kvt_admin(observer, &request, NULL, 0, NULL, 0), 0);
	kvt_test_equal(request.total, 3);
	kvt_test_equal(status_now().counters.cached_pages, 13);
	for (uint32_t i = 0; i < PAGE; i++)
		keys[i] = 9000 + i;
	request = (struct kvt_message_admin){ .what = KVT_ADMIN_REMOVE, .count = PAGE };
	kvt_test_equal(kvt_admin(observer, &request, keys, sizeof(keys), NULL, 0), -ENOENT);
	request = (struct kvt_message_admin){ .what = KVT_ADMIN_REMOVE, .count = PAGE + 1 };
	kvt_test_equal(kvt_admin(observer, &request, keys, sizeof(keys), NULL, 0), -EINVAL);
	kvt_test_equal(ask(observer, KVT_ADMIN_RESET, 0, NULL, 0), 0);
	kvt_test_equal(status_now().epoch, epoch + 1);
	kvt_test_equal(kvt_test_settled(&daemon_).cached_pages, 0);
	kvt_test_equal(ask(observer, 77, 0, NULL, 0), -EINVAL);
}

TEST_FROM(the_test_clock_moves_only_where_there_is_one, start, stop, "test_clock = yes\n")
{
	struct kvt_admin_status before = status_now();

	kvt_test_equal(ask(observer, KVT_ADMIN_TICK, 5000000, NULL, 0), 0);
	kvt_test_equal(status_now().now_ns, before.now_ns + 5000000);
	kvt_test_equal(ask(observer, KVT_ADMIN_TICK, UINT64_MAX, NULL, 0), -ERANGE);
	kvt_test_equal(status_now().now_ns, before.now_ns + 5000000);
}

TEST_FROM(a_tick_expires_what_is_due, start, stop, "test_clock = yes\n")
{
	uint32_t keys[PAGE] = { 77 }, page;
	struct kvt_request request = { .op = KVT_OP_INSERT, .namespace_id = namespace_id,
				       .keys = keys, .n_keys = PAGE, .pages = &page, .n_pages = 1,
				       .fence = KVT_IDLE, .flags = KVT_F_TTL, .ttl_ms = 10 };

	kvt_test_equal(kvt_alloc(worker, 1, &page), 0);
	kvt_test_call(worker, &request);
	kvt_test_equal(ask(observer, KVT_ADMIN_TICK, 9000000, NULL, 0), 0);
	kvt_test_equal(kvt_test_settled(&daemon_).cached_pages, 1);
	kvt_test_equal(ask(observer, KVT_ADMIN_TICK, 1000000, NULL, 0), 0);
	kvt_test_equal(kvt_test_settled(&daemon_).cached_pages, 0);
	kvt_test_equal(status_now().counters.expired_nodes, 1);
}

TEST_WITH(real_time_cannot_be_moved, start, stop)
{
	kvt_test_equal(ask(observer, KVT_ADMIN_TICK, 1, NULL, 0), -EPERM);
}

/* ---- waiting answers */

static void wait_for_the_end(int pipe, void *context)
{
	struct kvt_client *client = kvt_test_observe(&daemon_);

	kvt_test_send(pipe, 1);
	kvt_test_equal(ask(client, KVT_ADMIN_ENDED, *(const uint64_t *)context, NULL, 0), 0);
	kvt_test_equal(ask(client, KVT_ADMIN_STATUS, 0, &(struct kvt_admin_status){ 0 },
			   sizeof(struct kvt_admin_status)), 1);
	kvt_test_send(pipe, 2);
}

TEST_WITH(ended_is_answered_when_the_session_has_ended, start, stop)
{
	struct kvt_test_child holder, waiters[4];
	struct kvt_counters counters;
	uint64_t session;

	kvt_test_child_start(&holder, kvt_test_hold_pages, &daemon_);
	session = kvt_test_word(holder.pipe);
	for (int i = 0; i < 4; i++) {
		kvt_test_child_start(&waiters[i], wait_for_the_end, &session);
		kvt_test_expect(waiters[i].pipe, 1);
	}
	kvt_test_child_kill(&waiters[3], SIGKILL); /* one gives up */
	kvt_test_child_kill(&holder, SIGKILL);
	for (int i = 0; i < 3; i++) {
		kvt_test_expect(waiters[i].pipe, 2);
		kvt_test_child_finish(&waiters[i]);
	}
	kvt_test_until(&daemon_, counters, counters.free_pages == 4095);
	kvt_test_equal(ask(observer, KVT_ADMIN_ENDED, 0, NULL, 0), -EINVAL);
	kvt_test_equal(ask(observer, KVT_ADMIN_ENDED, UINT32_MAX, NULL, 0), -EINVAL);
}

TEST_WITH(what_is_alive_cannot_be_fenced, start, stop)
{
	kvt_test_equal(ask(observer, KVT_ADMIN_FENCE, kvt_client_info(worker)->session, NULL, 0),
		       -EBUSY);
	kvt_test_equal(ask(observer, KVT_ADMIN_FENCE, 200, NULL, 0), -ENOENT);
	kvt_test_equal(ask(observer, KVT_ADMIN_FENCE, UINT64_MAX, NULL, 0), -ENOENT);
}

/* ---- cost of administration */

TEST_FROM(an_answer_looks_at_few_records, start, stop, "max_namespaces = 100000\n")
{
	static uint8_t records[KVT_MESSAGE_MAX];
	struct kvt_message_admin request = { .what = KVT_ADMIN_NAMESPACES };

	kvt_test_equal(kvt_admin(observer, &request, NULL, 0, records, sizeof(records)), 1);
	kvt_test_check(request.cursor > 0 && request.cursor <= 2048);
}

TEST_WITH(an_audit_says_how_long_all_stood_still, start, stop)
{
	struct kvt_message_admin request = { .what = KVT_ADMIN_AUDIT };

	kvt_test_equal(kvt_admin(observer, &request, NULL, 0, NULL, 0), 0);
	kvt_test_check(request.argument > 1000);
}

/* An observer's socket, non-blocking. */
static int raw_observer(int *ret_result)
{
	struct kvt_message_hello hello = kvt_test_hello(KVT_HELLO_OBSERVE);
	int fd = kvt_test_dial(&daemon_);

	kvt_test_equal(send(fd, &hello, sizeof(hello), MSG_NOSIGNAL), sizeof(hello));
	kvt_test_check(kvt_test_answer(fd, ret_result) != 0);
	return fd;
}

TEST_WITH(each_message_has_a_turn_of_its_own, start, stop)
{
	enum { ASKING = 6 };
	struct kvt_message_admin request = {
		.head = { .magic = KVT_MESSAGE_MAGIC, .type = KVT_MSG_ADMIN,
			  .version = KVT_ABI, .bytes = sizeof(request) },
		.what = KVT_ADMIN_STATUS,
	};
	static uint8_t answer[KVT_MESSAGE_MAX];
	const struct kvt_admin_status *status =
		(void *)(answer + sizeof(struct kvt_message_admin));
	uint64_t turns[ASKING];
	int fds[ASKING], result;

	for (int i = 0; i < ASKING; i++) {
		fds[i] = raw_observer(&result);
		kvt_test_equal(result, 0);
	}
	kvt_test_freeze(daemon_.pid);
	for (int i = 0; i < ASKING; i++)
		kvt_test_equal(send(fds[i], &request, sizeof(request), 0), sizeof(request));
	kvt_test_equal(kill(daemon_.pid, SIGCONT), 0);
	for (int i = 0; i < ASKING; i++) {
		kvt_test_check(recv(fds[i], answer, sizeof(answer), 0) > 0);
		turns[i] = status->turns;
		for (int before = 0; before < i; before++)
			kvt_test_check(turns[before] != turns[i]);
		close(fds[i]);
	}
}

static bool become(uid_t uid)
{
	return setgroups(0, NULL) == 0 && setresgid(65534, 65534, 65534) == 0 &&
	       setresuid(uid, uid, uid) == 0;
}

/* Of 64 places one user gets 16, all users 56. */
static void observe_as(int pipe, void *context)
{
	uint32_t n = 0;
	int result;

	if (!become(*(uid_t *)context)) {
		kvt_test_send(pipe, 77);
		return;
	}
	do {
		raw_observer(&result);
		n += result == 0;
	} while (result == 0 && n < 64);
	kvt_test_check(result == -EDQUOT || result == -EUSERS);
	kvt_test_send(pipe, n);
	kvt_test_receive(pipe, &(uint64_t){ 0 });
}

TEST_FROM(observers_leave_places_for_others_and_for_operators, start, stop, FOR_EVERYBODY)
{
	static const uint64_t expected[] = { 16, 16, 16, 7 }; /* `observer` has the last of 56 */
	struct kvt_test_child children[4];
	uint64_t n;
	int result;

	for (unsigned int i = 0; i < 4; i++) {
		uid_t uid = 65530 + i;

		kvt_test_child_start(&children[i], observe_as, &uid);
		n = kvt_test_word(children[i].pipe);
		if (n == 77)
			kvt_skip("needs another uid, which this process cannot take");
		kvt_test_equal(n, expected[i]);
	}
	close(raw_observer(&result));
	kvt_test_equal(result, 0);
	for (int i = 0; i < 4; i++) {
		kvt_test_send(children[i].pipe, 1);
		kvt_test_child_finish(&children[i]);
	}
}

/* ---- memory */

static char meminfo[128];

/* In a mount namespace where /proc/meminfo can be replaced. */
static int start_apart(void **state)
{
	*meminfo = '\0';
	if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0)
		return start(state);
	start(state);
	snprintf(meminfo, sizeof(meminfo), "%s/meminfo", daemon_.dir);
	return 0;
}

static void write_text(const char *path, const char *text)
{
	FILE *file = fopen(path, "we");

	kvt_test_check(file && fputs(text, file) >= 0 && fclose(file) == 0);
}

/* Audits are refused, those of a ring too. */
static void expect_no_memory(const char *figure)
{
	struct kvt_request audit = { .op = KVT_OP_AUDIT };
	struct kvt_result result;

	kvt_test_equal(ask(observer, KVT_ADMIN_AUDIT, 0, NULL, 0), -ENOMEM);
	if (!strstr(kvt_client_error(observer)->text, figure))
		kvt_test_fail("not %s: %s", figure, kvt_client_error(observer)->text);
	kvt_test_equal(kvt_call(worker, &audit, &result), -ENOMEM);
	kvt_test_equal(kvt_client_error(worker)->reason, KVT_REASON_MEMORY);
}

TEST_WITH(an_audit_that_memory_has_no_room_for_is_refused, start_apart, stop)
{
	if (!*meminfo)
		kvt_skip("no mount namespace can be made here");
	write_text(meminfo, "MemAvailable: 64 kB\n");
	kvt_test_equal(mount(meminfo, "/proc/meminfo", NULL, MS_BIND, NULL), 0);
	expect_no_memory("and 65536 are free");
	kvt_test_equal(umount("/proc/meminfo"), 0);
	unlink(meminfo);
	kvt_test_equal(ask(observer, KVT_ADMIN_AUDIT, 0, NULL, 0), 0);
}

TEST_WITH(an_audit_that_a_cgroup_has_no_room_for_is_refused, start_apart, stop)
{
	if (!*meminfo)
		kvt_skip("no mount namespace can be made here");
	kvt_test_equal(mount("none", "/sys/fs/cgroup", "tmpfs", 0, NULL), 0);
	write_text("/sys/fs/cgroup/memory.max", "1000000\n");
	write_text("/sys/fs/cgroup/memory.current", "900000\n");
	expect_no_memory("and 100000 are free");
	write_text("/sys/fs/cgroup/memory.stat", "anon 7\nfile 8\ninactive_file 300000\n");
	expect_no_memory("and 400000 are free"); /* the cache is dropped first */
	write_text("/sys/fs/cgroup/memory.current", "1300000\n");
	expect_no_memory("and 0 are free");
	write_text("/sys/fs/cgroup/memory.max", "max\n");
	kvt_test_equal(ask(observer, KVT_ADMIN_AUDIT, 0, NULL, 0), 0);
	kvt_test_equal(mkdir("/sys/fs/cgroup/memory", 0755), 0); /* version 1 */
	write_text("/sys/fs/cgroup/memory/memory.limit_in_bytes", "1000000\n");
	write_text("/sys/fs/cgroup/memory/memory.usage_in_bytes", "900000\n");
	write_text("/sys/fs/cgroup/memory/memory.stat",
		   "inactive_file 1\ntotal_inactive_file 200000\n");
	expect_no_memory("and 300000 are free");
	write_text("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
	kvt_test_equal(ask(observer, KVT_ADMIN_AUDIT, 0, NULL, 0), 0);
	kvt_test_equal(umount("/sys/fs/cgroup"), 0);
}

/* A cgroup of version 1 that this test made, with little room: what an audit touches there would
 * end the daemon. */
TEST_WITH(under_a_small_memory_limit_an_audit_is_refused_and_the_daemon_lives, start, stop)
{
	char group[64], path[128], number[32];

	snprintf(group, sizeof(group), "/sys/fs/cgroup/memory/kvtrunk-test-%d", (int)getpid());
	if (mkdir(group, 0755) != 0)
		kvt_skip("no memory cgroup of version 1 can be made here");
	snprintf(path, sizeof(path), "%s/memory.limit_in_bytes", group);
	write_text(path, "2097152");
	snprintf(path, sizeof(path), "%s/cgroup.procs", group);
	snprintf(number, sizeof(number), "%d", (int)daemon_.pid);
	write_text(path, number);
	expect_no_memory("are free");
	write_text("/sys/fs/cgroup/memory/cgroup.procs", number);
	kvt_test_equal(rmdir(group), 0);
	kvt_test_equal(ask(observer, KVT_ADMIN_AUDIT, 0, NULL, 0), 0);
}

/* ---- privilege */

static void as_another_user(int pipe, void *context)
{
	static const uint32_t forbidden[] = { KVT_ADMIN_AUDIT, KVT_ADMIN_EVICT, KVT_ADMIN_REMOVE,
					      KVT_ADMIN_RESET, KVT_ADMIN_FENCE };
	struct kvt_admin_status status;
	struct kvt_client *client;

	if (!become(65534)) {
		kvt_test_send(pipe, 77);
		return;
	}
	client = kvt_test_observe(&daemon_);
	kvt_test_check(!kvt_client_info(client)->privileged);
	for (size_t i = 0; i < sizeof(forbidden) / sizeof(forbidden[0]); i++)
		kvt_test_equal(ask(client, forbidden[i], 1, NULL, 0), -EPERM);
	kvt_test_equal(ask(client, KVT_ADMIN_STATUS, 0, &status, sizeof(status)), 1);
	kvt_client_close(client, KVT_IDLE);
	kvt_test_send(pipe, 1);
}

TEST_FROM(a_stranger_may_look_but_not_touch, start, stop, "arena_visible = no\n" FOR_EVERYBODY)
{
	struct kvt_test_child child;
	uint64_t word;

	kvt_test_child_start(&child, as_another_user, NULL);
	word = kvt_test_word(child.pipe);
	kvt_test_child_finish(&child);
	if (word == 77)
		kvt_skip("needs another uid, which this process cannot take");
	kvt_test_equal(word, 1);
}

TEST_FROM(a_hidden_arena_is_not_handed_out, start, stop, "arena_visible = no\n")
{
	uint32_t keys[PAGE] = { 0 }, matched;
	struct kvt_handle handle;

	kvt_test_check(!kvt_client_info(worker)->arena_visible);
	kvt_test_equal(kvt_probe(worker, namespace_id, keys, PAGE, &handle, &matched), -ENOTSUP);
}
