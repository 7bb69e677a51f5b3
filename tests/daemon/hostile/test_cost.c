/* SPDX-License-Identifier: Apache-2.0 */
/* Clients that cost the daemon time: long queues of large operations.
 *
 * Inputs: a seed. Invariant: costs are counted in operations, so a busy machine does not change
 * them. Caller: tests/run hostile. */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "libclient/state.h"
#include "tests/daemon/hostile/witness.h"
#include "tests/lib/cases.h"

enum { MAX_OP_KEYS = 65536, PAGE_SIZE = 16, LONG = 32768, N_LONG = 8, BATCH = 60 };

/* ---------------------------------------------------------------- turns */

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

/* Turn by turn the long queues would have 800 operations for each 100 small ones. */
TEST(long_queues_leave_small_clients_their_turn)
{
	enum { ROUNDS = 200 };
	struct kvt_client *client;
	struct kvt_test_child child;
	uint64_t n = 0;

	kvt_test_child_start(&child, fill_queues, NULL);
	kvt_test_expect(child.pipe, 5);
	client = kvt_test_connect(&kvt_victim);
	for (int i = 0; i < ROUNDS; i++)
		n += others_within_batch(client);
	kvt_client_abandon(client);
	kvt_test_child_kill(&child, SIGKILL);
	kvt_witness_check();
	n = 100 * n / (ROUNDS * BATCH);
	printf("of long queues for each hundred: %u\n", (unsigned int)n);
	kvt_test_check(n < 100);
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

/* Count the daemon's mappings of session areas. */
static uint32_t areas_mapped(void)
{
	char path[64], line[512];
	uint32_t n = 0;
	FILE *maps;

	snprintf(path, sizeof(path), "/proc/%d/maps", (int)kvt_victim.pid);
	maps = fopen(path, "re");
	kvt_test_check(maps != NULL);
	while (fgets(line, sizeof(line), maps))
		n += strstr(line, "kvtrunk-areas") != NULL;
	fclose(maps);
	return n;
}

TEST(memory_of_ended_sessions_is_freed)
{
	struct kvt_client *clients[4];

	for (int i = 0; i < 4; i++) {
		clients[i] = kvt_test_connect(&kvt_victim);
		memset(clients[i]->ring.keys, 1, clients[i]->keys.count * sizeof(uint32_t));
	}
	while (areas_mapped() > 5) /* those of earlier sessions */
		kvt_test_audit(&kvt_victim);
	kvt_test_equal(areas_mapped(), 5);
	for (int i = 0; i < 4; i++)
		kvt_client_abandon(clients[i]);
	while (areas_mapped() > 1)
		kvt_test_audit(&kvt_victim);
	kvt_witness_check();
}

static int start(void **state)
{
	kvt_witness_start("max_op_keys = 65536\n");
	return 0;
}

/* Keys change while they are compared, so the log may have others. */
static int end(void **state)
{
	kvt_witness_end(false);
	return 0;
}

TEST_GROUP(start, end)
