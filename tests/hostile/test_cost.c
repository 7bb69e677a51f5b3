/* SPDX-License-Identifier: Apache-2.0 */
/* Attacks that cost the daemon time: holes in shared memory. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/mman.h>

#include "libclient/client.h"
#include "tests/hostile/witness.h"

enum { MAX_OP_KEYS = 65536, PAGE_SIZE = 16 };

/* ---------------------------------------------------------------- own memory */

static void memory_is_no_larger_than_what_one_operation_uses(void **state)
{
	struct kvt_options options = KVT_OPTIONS_INIT;
	struct kvt_client *client;
	struct kvt_error error;

	(void)state;
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

/* Entries that the daemon reads from memory that vanishes under it. The indices vanish, too, so
 * most are seen as nothing, or as an index that is impossible. */
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

static void holes_in_its_memory_hurt_only_the_client_that_punches_them(void **state)
{
	(void)state;
	kvt_attack(punch_own_memory, 1);
}

static int start(void **state)
{
	(void)state;
	kvt_witness_start("max_op_keys = 65536\n");
	return 0;
}

/* Keys that change while they are compared: the log may tell of others. */
static int end(void **state)
{
	(void)state;
	kvt_witness_end(false);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(memory_is_no_larger_than_what_one_operation_uses),
		cmocka_unit_test(holes_in_its_memory_hurt_only_the_client_that_punches_them),
	};

	return cmocka_run_group_tests(tests, start, end);
}
