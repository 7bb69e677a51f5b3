/* SPDX-License-Identifier: Apache-2.0 */
/* Attacks that cost the daemon time: long queues of large operations, holes in shared memory,
 * wake-ups of many watches.
 *
 * Inputs: a seed. Invariant: costs are counted in operations or the daemon's processor time, so a
 * busy machine does not change them. Caller: tests/run hostile. */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "libclient/client.h"
#include "tests/hostile/witness.h"
#include "tests/lib/cases.h"

enum { MAX_OP_KEYS = 65536, PAGE_SIZE = 16, LONG = 32768, N_LONG = 8, BATCH = 60 };
enum { N_BUSY = 200, N_WOKEN = 100 };
#define MOST_STOLEN_NS 20000000u

#define OTHER_UID 65534
#define STALL_NS 1000000000ull

/* ---------------------------------------------------------------- turns */

/* Change to another uid. Needs root. */
static void become_other(void)
{
	kvt_test_equal(setresgid(OTHER_UID, OTHER_UID, OTHER_UID), 0);
	kvt_test_equal(setresuid(OTHER_UID, OTHER_UID, OTHER_UID), 0);
}

static void cache_long_prompt(struct kvt_client *client, uint32_t ns, const uint32_t *keys)
{
	struct kvt_seq *seq;

	kvt_test_equal(kvt_seq_begin(client, ns, keys, LONG, 0, KVT_F_FULL, &seq), 0);
	kvt_test_equal(kvt_seq_commit(seq, LONG, NULL, 0, KVT_IDLE, 0), 0);
	kvt_test_equal(kvt_seq_end(seq, 0, NULL, 0, KVT_IDLE, 0), 0);
}

/* Keep the rings of several sessions full of long matches. */
static void fill_queues(int pipe, void *context)
{
	struct kvt_client *clients[N_LONG];
	struct kvt_sqe match = { .op = KVT_OP_MATCH, .fence_slot = KVT_FENCE_IDLE, .n_keys = LONG };
	struct kvt_cqe cqe;
	uint32_t keys[LONG], ns;

	if (*(const bool *)context)
		become_other();
	for (uint32_t i = 0; i < LONG; i++)
		keys[i] = i * 7919u & 0x7fffffffu;
	for (int i = 0; i < N_LONG; i++) {
		clients[i] = kvt_test_connect(&kvt_victim);
		ns = kvt_test_namespace(clients[i], "long");
		if (i == 0)
			cache_long_prompt(clients[i], ns, keys);
		memcpy(clients[i]->ring.keys, keys, sizeof(keys));
	}
	match.namespace_id = ns;
	for (bool told = false;; told = true) {
		for (int i = 0; i < N_LONG; i++) {
			struct kvt_ring_end *ring = &clients[i]->ring;

			while (kvt_ring_cq_ready(ring) > 0)
				kvt_ring_cq_take(ring, &cqe);
			while (kvt_ring_sq_space(ring) > 0)
				kvt_ring_sq_put(ring, &match);
			if (kvt_ring_sq_publish(ring))
				eventfd_write(clients[i]->doorbell, 1);
		}
		if (!told)
			kvt_test_send(pipe, 5);
	}
}

/* Count the operations of others between those of a batch submitted at once. */
static uint64_t others_within_batch(struct kvt_client *client)
{
	struct kvt_sqe nop = { .op = KVT_OP_NOP, .fence_slot = KVT_FENCE_IDLE };
	uint64_t first = 0;
	struct kvt_cqe cqe = { .seq = 0 };

	for (int i = 0; i < BATCH; i++)
		kvt_ring_sq_put(&client->ring, &nop);
	if (kvt_ring_sq_publish(&client->ring))
		eventfd_write(client->doorbell, 1);
	for (int i = 0; i < BATCH; i++) {
		while (kvt_ring_cq_ready(&client->ring) == 0)
			;
		kvt_ring_cq_take(&client->ring, &cqe);
		first = i == 0 ? cqe.seq : first;
	}
	return cqe.seq - first - (BATCH - 1);
}

/* Count the operations of the long queues for each 100 small ones. */
static uint64_t others_for_each_hundred(bool other_uid)
{
	const int rounds = 200;
	struct kvt_client *client;
	struct kvt_test_child child;
	uint64_t n = 0;

	kvt_test_child_start(&child, fill_queues, &other_uid);
	kvt_test_expect(child.pipe, 5);
	client = kvt_test_connect(&kvt_victim);
	for (int i = 0; i < rounds; i++)
		n += others_within_batch(client);
	kvt_client_abandon(client);
	kvt_test_child_kill(&child, SIGKILL);
	kvt_witness_check();
	return 100 * n / (uint64_t)(rounds * BATCH);
}

/* Turn by turn it would be 800. The other uid's eight sessions share one uid's part. */
TEST(long_queues_leave_small_clients_their_turn)
{
	uint64_t same, other;

	same = others_for_each_hundred(false);
	other = geteuid() == 0 ? others_for_each_hundred(true) : 0;
	printf("of long queues for each hundred: %u of the same uid, %u of another\n",
	       (unsigned int)same, (unsigned int)other);
	kvt_test_check(same < 200);
	kvt_test_check(other < 100);
}

/* ---------------------------------------------------------------- wait queues */

/* Watch one file so often that each wake-up takes tens of milliseconds. */
static void watch_many_times(int fd)
{
	enum { SETS = 200, EACH = 1000 };
	struct rlimit limit = { 4 * EACH, 4 * EACH };
	struct epoll_event event = { .events = EPOLLIN };
	int fds[EACH];

	kvt_test_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
	for (int i = 0; i < EACH; i++)
		kvt_test_check((fds[i] = dup(fd)) >= 0);
	for (int set = 0; set < SETS; set++) {
		int epoll = epoll_create1(EPOLL_CLOEXEC);

		kvt_test_check(epoll >= 0);
		for (int i = 0; i < EACH; i++)
			kvt_test_equal(epoll_ctl(epoll, EPOLL_CTL_ADD, fds[i], &event), 0);
	}
}

static void be_woken_dearly(struct kvt_client *client, struct kvt_test_random *random)
{
	struct kvt_sqe nop = { .op = KVT_OP_NOP, .fence_slot = KVT_FENCE_IDLE };
	struct kvt_segment_header *header = client->ring.header;
	struct kvt_cqe cqe;
	uint64_t rung;

	watch_many_times(client->completion);
	while (kvt_load_acquire(&header->gone) == 0) {
		kvt_store_relaxed(&header->cq_need_wakeup, 1);
		kvt_ring_sq_put(&client->ring, &nop);
		if (kvt_ring_sq_publish(&client->ring))
			eventfd_write(client->doorbell, 1);
		while (kvt_ring_cq_ready(&client->ring) == 0)
			if (kvt_load_acquire(&header->gone) != 0)
				return;
		kvt_ring_cq_take(&client->ring, &cqe);
		while (read(client->completion, &rung, sizeof(rung)) > 0)
			;
	}
}

/* Attack by answers: each wakes all watches on the control socket. */
static void be_answered_dearly(struct kvt_client *client, struct kvt_test_random *random)
{
	uint64_t digest[2] = { 1, 0 };
	uint32_t number;

	watch_many_times(client->control);
	do {
		digest[1]++; /* a new namespace: an open one is not asked for again */
	} while (kvt_namespace_open(client, digest, "another", &number) == 0);
	/* Without a cause: a GOODBYE would cost as much as the answers. */
	if (!strstr(kvt_client_error(client)->text, "the daemon ended the session"))
		kvt_test_fail("%s", kvt_client_error(client)->text);
}

/* Use the best of several runs: a busy machine stalls the witness, too. */
static void attack_and_bound(kvt_attack_fn *attack)
{
	uint64_t longest = STALL_NS;

	for (int run = 0; run < 3 && longest >= STALL_NS; run++) {
		kvt_witness_longest_ns();
		kvt_attack(attack, 1);
		longest = kvt_witness_longest_ns();
		printf("longest stall: %u ms\n", (unsigned int)(longest / 1000000));
	}
	kvt_test_check(longest < STALL_NS);
}

/* Attack as an observer, without a session that could be ended. */
static void observe_dearly(struct kvt_client *client, struct kvt_test_random *random)
{
	struct kvt_message_admin request = { .what = KVT_ADMIN_STATUS };
	struct kvt_client *observer = kvt_test_observe(&kvt_victim);
	struct kvt_admin_status status;

	watch_many_times(observer->control);
	while (kvt_admin(observer, &request, NULL, 0, &status, sizeof(status)) == 1)
		;
	kvt_test_equal(kvt_load_acquire(&client->ring.header->gone), 0);
}

TEST(a_session_whose_wake_ups_cost_too_much_is_ended_with_the_cause)
{
	struct kvt_admin_status before = kvt_test_status(&kvt_victim), after;

	attack_and_bound(be_woken_dearly);
	kvt_test_check(kvt_test_daemon_said(&kvt_victim, "its sockets are watched"));
	attack_and_bound(be_answered_dearly);
	after = kvt_test_status(&kvt_victim);
	kvt_test_check(after.costly_sessions >= before.costly_sessions + 2);
	kvt_test_check(after.costly_ns > before.costly_ns + 2 * 100000000ull);
}

TEST(an_observer_that_costs_too_much_is_dropped)
{
	uint64_t before = kvt_test_status(&kvt_victim).costly_sessions;

	attack_and_bound(observe_dearly);
	kvt_test_check(kvt_test_daemon_said(&kvt_victim, "its socket is watched many times"));
	kvt_test_equal(kvt_test_status(&kvt_victim).costly_sessions, before);
}

/* ---------------------------------------------------------------- honest clients */

static void *spin(void *context)
{
	while (!kvt_load_relaxed((uint32_t *)context))
		;
	return NULL;
}

static void keep_processors_busy(int pipe, void *context)
{
	uint32_t never = 0;
	pthread_t thread;

	for (int i = 0; i < N_BUSY; i++)
		kvt_test_equal(pthread_create(&thread, NULL, spin, &never), 0);
	kvt_test_send(pipe, 5);
	kvt_test_receive(pipe, &(uint64_t){ 0 }); /* until it is killed */
}

/* Preempt the daemon for milliseconds in the middle of wake-ups. */
TEST(a_busy_machine_charges_no_client)
{
	struct kvt_admin_status before = kvt_test_status(&kvt_victim), after;
	struct kvt_counters counters;
	struct kvt_test_child child;
	struct kvt_client *client;

	kvt_test_child_start(&child, keep_processors_busy, NULL);
	kvt_test_expect(child.pipe, 5);
	client = kvt_test_connect(&kvt_victim);
	for (int i = 0; i < N_WOKEN; i++) {
		client->spin_budget_ns = 0; /* sleep at once */
		kvt_test_equal(kvt_stats(client, &counters), 0);
	}
	kvt_test_equal(kvt_client_close(client, KVT_IDLE), 0);
	kvt_test_child_kill(&child, SIGKILL);
	after = kvt_test_status(&kvt_victim);
	kvt_test_equal(after.costly_sessions, before.costly_sessions);
	/* By the clock they cost seconds; of processor time a host may steal some for itself. */
	kvt_test_check(after.costly_ns - before.costly_ns < MOST_STOLEN_NS);
	kvt_witness_check();
}

/* ---------------------------------------------------------------- own memory */

TEST(memory_is_no_larger_than_what_one_operation_uses)
{
	struct kvt_options options = KVT_OPTIONS_INIT;
	struct kvt_client *client;
	struct kvt_error error;

	options.socket_path = kvt_victim.socket;
	options.sq_entries = options.cq_entries = UINT32_MAX;
	options.keys_count = options.list_count = UINT32_MAX;
	kvt_test_equal(kvt_client_connect(&client, &options, &error), 0);
	kvt_test_check(client->segment_bytes <= KVT_SEGMENT_BYTES_MAX);
	kvt_test_equal(client->ring.sq_mask, 255);
	kvt_test_equal(client->ring.cq_mask, 511);
	kvt_test_equal(client->keys.count, MAX_OP_KEYS + MAX_OP_KEYS / PAGE_SIZE);
	kvt_test_equal(client->list.count, MAX_OP_KEYS);
	kvt_test_equal(kvt_client_close(client, KVT_IDLE), 0);
}

struct puncher {
	struct kvt_client *client;
	uint32_t stop;
};

static void *punch(void *context)
{
	struct puncher *puncher = context;
	struct kvt_client *client = puncher->client;

	while (!kvt_load_relaxed(&puncher->stop)) {
		madvise(client->segment, client->segment_bytes, MADV_REMOVE);
		madvise(client->areas, client->areas_bytes, MADV_REMOVE);
	}
	return NULL;
}

/* Punch holes under entries that the daemon reads. The indices vanish, too, so most entries look
 * absent, or an index impossible. */
static void punch_own_memory(struct kvt_client *client, struct kvt_test_random *random)
{
	for (int round = 0; round < 20; round++) {
		struct puncher puncher = { .client = client };
		pthread_t thread;

		kvt_test_equal(pthread_create(&thread, NULL, punch, &puncher), 0);
		for (uint32_t i = 0; i < 20000; i++) {
			struct kvt_sqe match = { .op = KVT_OP_MATCH, .fence_slot = KVT_FENCE_IDLE,
						 .n_keys = kvt_test_random_below(random, 60000) };

			kvt_ring_sq_put(&client->ring, &match);
			if (kvt_ring_sq_publish(&client->ring))
				eventfd_write(client->doorbell, 1);
		}
		kvt_store_relaxed(&puncher.stop, 1);
		pthread_join(thread, NULL);
		kvt_client_abandon(client);
		client = kvt_test_connect(&kvt_victim);
	}
	kvt_client_abandon(client);
}

TEST(holes_in_its_memory_hurt_only_the_client_that_punches_them)
{
	kvt_attack(punch_own_memory, 1);
}

static int start(void **state)
{
	kvt_witness_start("max_op_keys = 65536\nsocket_mode = 0666\n");
	kvt_test_equal(chmod(kvt_victim.dir, 0755), 0);
	return 0;
}

/* Keys change while they are compared, so the log may have others. */
static int end(void **state)
{
	kvt_witness_end(false);
	return 0;
}

TEST_GROUP(start, end)
