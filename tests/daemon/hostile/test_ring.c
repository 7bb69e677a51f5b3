/* SPDX-License-Identifier: Apache-2.0 */
/* Attacks through the session segment: header, entries, keys, fences, doorbell.
 *
 * Inputs: a seed. Invariant: each attack is refused or ends its own session only; the witness's
 * bytes stay right. Caller: tests/run hostile. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include "libclient/state.h"
#include "tests/daemon/hostile/witness.h"
#include "tests/lib/raw.h"

/* ---------------------------------------------------------------- tools */

static void ring_doorbell(struct kvt_client *client)
{
	eventfd_write(client->doorbell, 1);
}

/* True if the daemon ended this session. */
static bool is_over(struct kvt_client *client)
{
	struct pollfd fd = { .fd = client->control, .events = POLLIN };

	return kvt_load_relaxed(&client->ring.header->gone) != 0 || poll(&fd, 1, 0) != 0;
}

/* Put entries unchecked and drop completions until all are answered or the session is over. Raise
 * the fences at the end. */
static void push(struct kvt_client *client, const struct kvt_sqe *entries, uint32_t n)
{
	uint32_t put = 0, answered = 0;
	struct kvt_cqe cqe;

	while (answered < n && !is_over(client)) {
		while (put < n && kvt_ring_sq_space(&client->ring) > 0)
			kvt_ring_sq_put(&client->ring, &entries[put++]);
		if (kvt_ring_sq_publish(&client->ring))
			ring_doorbell(client);
		if (kvt_ring_cq_ready(&client->ring) == 0) {
			for (uint32_t i = 0; i < KVT_FENCE_WORDS; i++)
				kvt_store_release(&client->ring.fences[i].value, UINT64_MAX);
			ring_doorbell(client);
			sched_yield();
		}
		while (kvt_ring_cq_ready(&client->ring) > 0) {
			kvt_ring_cq_take(&client->ring, &cqe);
			answered++;
		}
	}
}

static struct kvt_client *again(struct kvt_client *client)
{
	kvt_client_abandon(client);
	return kvt_test_connect(&kvt_victim);
}

/* ---------------------------------------------------------------- header */

/* Overwrite a word or a byte of the header at random. */
static void write_header_garbage(struct kvt_client *client, struct kvt_test_random *random)
{
	for (int round = 0; round < 150; round++) {
		struct kvt_segment_header *header = client->ring.header;
		uint32_t *const indices[] = { &header->sq_head, &header->sq_tail,
					      &header->cq_head, &header->cq_tail,
					      &header->sq_need_wakeup, &header->cq_need_wakeup,
					      &header->gone };
		struct kvt_sqe nop = { .op = KVT_OP_NOP, .fence_slot = KVT_FENCE_IDLE };

		if (round % 3 == 0) {
			uint8_t *bytes = (uint8_t *)header;

			for (int i = 0; i < 64; i++)
				bytes[kvt_test_random_below(random, sizeof(*header))] =
					(uint8_t)kvt_test_random(random);
		} else {
			kvt_store_release(indices[kvt_test_random_below(random, 7)],
					  (uint32_t)kvt_test_random(random));
		}
		kvt_ring_sq_put(&client->ring, &nop);
		kvt_store_release(&header->sq_tail, round % 2 ? client->ring.sq_tail :
								(uint32_t)kvt_test_random(random));
		ring_doorbell(client);
		client = again(client);
	}
	kvt_client_abandon(client);
}

/* Claim an index beyond the ring: the daemon must notice, say so, and end the session. */
static void claim_impossible_index(struct kvt_client *client, struct kvt_test_random *random)
{
	struct pollfd fd = { .fd = client->control, .events = POLLIN };
	uint8_t packet[2048];
	ssize_t n;

	kvt_store_release(&client->ring.header->sq_tail, client->ring.sq_tail + 100000);
	ring_doorbell(client);
	kvt_test_check(poll(&fd, 1, -1) == 1);
	n = read(client->control, packet, sizeof(packet));
	kvt_test_check(n >= (ssize_t)sizeof(struct kvt_message));
	kvt_test_equal(((struct kvt_message *)(void *)packet)->type, KVT_MSG_GOODBYE);
	while (kvt_load_acquire(&client->ring.header->gone) == 0) /* it comes after GOODBYE */
		sched_yield();
}

/* ---------------------------------------------------------------- entries */

static void random_bytes(struct kvt_test_random *random, void *to, size_t n)
{
	uint8_t *bytes = to;

	for (size_t i = 0; i < n; i++)
		bytes[i] = (uint8_t)kvt_test_random(random);
}

static void submit_random_entries(struct kvt_client *client, struct kvt_test_random *random)
{
	static struct kvt_sqe entries[64];

	random_bytes(random, client->ring.keys, 65536);
	for (int round = 0; round < 500; round++) {
		random_bytes(random, entries, sizeof(entries));
		for (int i = 0; i < 64; i++)
			if (kvt_test_random_below(random, 4))
				entries[i].op = (uint8_t)kvt_test_random_below(random,
									       KVT_OP_COUNT);
		push(client, entries, 64);
		if (is_over(client))
			client = again(client);
	}
}

/* Draw a number that is likely to mean something to the daemon. */
static uint32_t telling(struct kvt_test_random *random)
{
	static const uint32_t edges[] = { 0, 1, 2, 15, 16, 17, 4094, 4095, 4096, 65535, 65536,
					  0x7fffffff, 0x80000000, 0xfffffff0, 0xffffffff };

	switch (kvt_test_random_below(random, 4)) {
	case 0:
		return edges[kvt_test_random_below(random, sizeof(edges) / sizeof(edges[0]))];
	case 1:
		return (uint32_t)kvt_test_random(random);
	default:
		return kvt_test_random_below(random, 64);
	}
}

/* Make an entry with one or two wrong fields; leases, pages and handles are guessed, often the
 * witness's. */
static void almost_valid(struct kvt_sqe *sqe, struct kvt_test_random *random, uint32_t ns)
{
	uint32_t n = kvt_test_random_below(random, 200);

	*sqe = (struct kvt_sqe){
		.op = (uint8_t)kvt_test_random_below(random, KVT_OP_COUNT),
		.fence_slot = KVT_FENCE_IDLE,
		.list_capacity = 1024,
	};
	switch (sqe->op) {
	case KVT_OP_CLOSE: /* would end the session too soon */
	case KVT_OP_RESET: /* would spoil the witness's hits, rightly */
		sqe->op = KVT_OP_NOP;
		break;
	case KVT_OP_MATCH:
	case KVT_OP_BEGIN:
	case KVT_OP_INSERT:
	case KVT_OP_REMOVE:
		sqe->namespace_id = ns;
		sqe->n_keys = n;
		sqe->keys_offset = kvt_test_random_below(random, 256);
		break;
	case KVT_OP_FREE:
		sqe->n_keys = n % 8;
		break;
	case KVT_OP_LOCK:
		sqe->positions = n / 16 * 16;
		__attribute__((fallthrough));
	case KVT_OP_UNLOCK:
	case KVT_OP_COMMIT:
	case KVT_OP_EXTEND:
	case KVT_OP_END:
		if (sqe->op == KVT_OP_EXTEND)
			sqe->n_keys = n % 3;
		sqe->node = kvt_test_random_below(random, 24);
		sqe->generation = kvt_test_random_below(random, 24);
		break;
	default:
		sqe->arg = kvt_test_random_below(random, 16);
	}
	if (sqe->op == KVT_OP_INSERT || sqe->op == KVT_OP_COMMIT)
		sqe->arg = kvt_test_random_below(random, 300);
	for (uint32_t i = kvt_test_random_below(random, 3); i > 0; i--)
		((uint32_t *)(void *)sqe)[1 + kvt_test_random_below(random, 15)] = telling(random);
	if (kvt_test_random_below(random, 3) == 0)
		sqe->flags = (uint16_t)(1u << kvt_test_random_below(random, 16) |
					1u << kvt_test_random_below(random, 16));
	if (kvt_test_random_below(random, 5) == 0)
		sqe->fence_slot = (uint8_t)kvt_test_random_below(random, 18);
}

static void submit_almost_valid_entries(struct kvt_client *client, struct kvt_test_random *random)
{
	static struct kvt_sqe entries[64];
	uint32_t ns = kvt_test_namespace(client, "witness");

	for (int round = 0; round < 800; round++) {
		/* Page numbers, for INSERT and FREE: the witness's among them. */
		for (uint32_t i = 0; i < 512; i++)
			client->ring.keys[i] = kvt_test_random_below(random, 4097);
		for (int i = 0; i < 64; i++)
			almost_valid(&entries[i], random, ns);
		push(client, entries, 64);
		if (is_over(client)) {
			client = again(client);
			ns = kvt_test_namespace(client, "other");
		}
	}
}

/* ---------------------------------------------------------------- keys under way */

struct scribbler {
	uint32_t *keys;
	uint32_t stop;
};

static void *scribble(void *context)
{
	struct scribbler *scribbler = context;
	struct kvt_test_random random = { 5 };

	while (!kvt_load_relaxed(&scribbler->stop)) {
		uint32_t at = kvt_test_random_below(&random, 4096);

		kvt_store_relaxed(&scribbler->keys[at], kvt_test_random_below(&random, 3));
	}
	return NULL;
}

static void change_keys_during_operations(struct kvt_client *client,
					  struct kvt_test_random *random)
{
	static const uint8_t ops[] = { KVT_OP_MATCH, KVT_OP_BEGIN, KVT_OP_REMOVE, KVT_OP_INSERT,
				       KVT_OP_FREE };
	static struct kvt_sqe entries[32];
	struct scribbler scribbler = { .keys = client->ring.keys };
	uint32_t ns = kvt_test_namespace(client, "scribbled");
	pthread_t thread;

	for (uint32_t i = 0; i < 4096; i++)
		client->ring.keys[i] = 1;
	kvt_test_equal(pthread_create(&thread, NULL, scribble, &scribbler), 0);
	for (int round = 0; round < 1500; round++) {
		for (int i = 0; i < 32; i++) {
			struct kvt_sqe *sqe = &entries[i];

			*sqe = (struct kvt_sqe){ .op = ops[kvt_test_random_below(random, 5)],
						 .fence_slot = KVT_FENCE_IDLE };
			if (sqe->op == KVT_OP_BEGIN && i % 4 == 0)
				*sqe = (struct kvt_sqe){ .op = KVT_OP_END,
							 .fence_slot = KVT_FENCE_IDLE,
							 .flags = KVT_F_COMMIT,
							 .arg = 160,
							 .node = kvt_test_random_below(random, 64),
							 .generation = kvt_test_random_below(random,
											     64) };
			else if (sqe->op != KVT_OP_FREE)
				sqe->namespace_id = ns;
			sqe->n_keys = sqe->op == KVT_OP_END ? 0 :
				      kvt_test_random_below(random, 4000);
			if (sqe->op == KVT_OP_BEGIN)
				sqe->list_capacity = 4096;
		}
		push(client, entries, 32);
		if (is_over(client))
			break;
	}
	kvt_store_relaxed(&scribbler.stop, 1);
	pthread_join(thread, NULL);
}

/* ---------------------------------------------------------------- waking and not reading */

static void flood_doorbell(struct kvt_client *client, struct kvt_test_random *random)
{
	int flags = fcntl(client->doorbell, F_GETFL);

	for (uint32_t i = 0; i < 300000; i++) {
		if (i % 1000 == 0) /* a counter about to overflow, on a descriptor that blocks */
			fcntl(client->doorbell, F_SETFL,
			      kvt_test_random_below(random, 2) ? flags | O_NONBLOCK :
								 flags & ~O_NONBLOCK);
		if (i % 5000 == 1) {
			fcntl(client->doorbell, F_SETFL, flags | O_NONBLOCK);
			eventfd_write(client->doorbell, UINT64_MAX - 10);
		}
		if (fcntl(client->doorbell, F_GETFL) & O_NONBLOCK)
			eventfd_write(client->doorbell, 1);
	}
	fcntl(client->doorbell, F_SETFL, flags & ~O_NONBLOCK);
}

/* Have the daemon complete an entry for a client whose ring says that it sleeps. */
static void be_rung(struct kvt_client *client)
{
	struct kvt_sqe nothing = { .op = KVT_OP_FREE, .fence_slot = KVT_FENCE_IDLE };
	uint32_t tail = kvt_load_acquire(&client->ring.header->cq_tail);

	kvt_store_relaxed(&client->ring.header->cq_need_wakeup, 1);
	kvt_fence_full();
	kvt_ring_sq_put(&client->ring, &nothing);
	if (kvt_ring_sq_publish(&client->ring))
		ring_doorbell(client);
	while (kvt_load_acquire(&client->ring.header->cq_tail) == tail)
		;
}

/* One read silences the bell, however often it rang. */
static void ignore_bell(struct kvt_client *client, struct kvt_test_random *random)
{
	struct pollfd bell = { .fd = client->completion, .events = POLLIN };
	uint64_t word;

	for (int i = 0; i < 20; i++)
		be_rung(client);
	kvt_test_settled(&kvt_victim); /* it rings after the completion: the last ring is over */
	kvt_test_check(poll(&bell, 1, -1) == 1);
	kvt_test_equal(read(client->completion, &word, sizeof(word)), sizeof(word));
	kvt_test_equal(poll(&bell, 1, 0), 0);
	/* A descriptor cannot be sent back over it. */
	kvt_test_check(!kvt_test_send_fds(client->completion, "x", 1, &client->doorbell, 1) &&
		       errno == EPIPE);
}

static void never_read_completions(struct kvt_client *client, struct kvt_test_random *random)
{
	struct kvt_sqe alloc = { .op = KVT_OP_ALLOC, .fence_slot = KVT_FENCE_IDLE, .arg = 1,
				 .list_capacity = 8 };
	uint32_t cq = client->ring.cq_mask + 1, sq = client->ring.sq_mask + 1;

	for (uint32_t i = 0; i < cq + sq; i++) {
		while (kvt_ring_sq_space(&client->ring) == 0)
			kvt_test_check(!is_over(client));
		kvt_ring_sq_put(&client->ring, &alloc);
		if (kvt_ring_sq_publish(&client->ring))
			ring_doorbell(client);
	}
	/* Exactly as many as there was room for. */
	while (kvt_load_acquire(&client->ring.header->cq_tail) != client->ring.cq_head + cq)
		ring_doorbell(client);
	for (int i = 0; i < 1000; i++)
		ring_doorbell(client);
	kvt_test_equal(kvt_load_acquire(&client->ring.header->cq_tail), client->ring.cq_head + cq);
	kvt_test_equal(kvt_load_acquire(&client->ring.header->sq_head), client->ring.sq_tail - sq);
}

/* Defer operations without end: the places of each session are limited. */
static void defer_everything(struct kvt_client *client, struct kvt_test_random *random)
{
	struct kvt_sqe free_nothing = { .op = KVT_OP_FREE, .fence_slot = 3, .fence_value = 1 };
	uint32_t put = 0;

	for (int quiet = 0; quiet < 200000 && put < 100000; quiet++) {
		if (kvt_ring_sq_space(&client->ring) == 0)
			continue;
		quiet = 0;
		put++;
		kvt_ring_sq_put(&client->ring, &free_nothing);
		if (kvt_ring_sq_publish(&client->ring))
			ring_doorbell(client);
	}
	/* Fence words may go backwards: they have no other effect. */
	for (int i = 0; i < 100000; i++)
		kvt_store_relaxed(&client->ring.fences[3].value, (uint64_t)(i & 1) << 62);
}

/* ---------------------------------------------------------------- the objects themselves */

static void resize_and_remap(struct kvt_client *client, struct kvt_test_random *random)
{
	struct kvt_pool pool;

	kvt_test_equal(kvt_pool_map(client, &pool), 0);
	kvt_test_check(client->slabs[0].fd < 0 || ftruncate(client->slabs[0].fd, 0) != 0);
	/* The received descriptor cannot make the arena writable. */
	kvt_test_check(client->arena.base);
	kvt_test_check(mprotect((void *)(uintptr_t)client->arena.base, 4096,
				PROT_READ | PROT_WRITE) != 0);
	/* No descriptor of this process can be resized or sealed. */
	for (int fd = 3; fd < 64; fd++)
		if (fcntl(fd, F_GET_SEALS) >= 0) {
			kvt_test_check(ftruncate(fd, 0) != 0);
			kvt_test_check(ftruncate(fd, 1ll << 40) != 0);
			kvt_test_check(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE) != 0);
		}
}

static const struct kvt_attack attacks[] = {
	{ "garbage_in_the_header_ends_only_that_session", write_header_garbage, 11, 12, 0 },
	{ "an_impossible_index_ends_the_session_with_a_reason", claim_impossible_index, 1, 1, 0 },
	{ "random_entries_change_nothing_for_others", submit_random_entries, 1, 3, 1000 },
	{ "almost_valid_entries_change_nothing_for_others",
	  submit_almost_valid_entries, 1, 4, 1000 },
	{ "a_flooded_doorbell_does_not_stop_others", flood_doorbell, 1, 1, 0 },
	{ "a_bell_that_is_not_answered_does_not_pile_up", ignore_bell, 1, 1, 0 },
	{ "unread_completions_stop_only_their_own_ring", never_read_completions, 1, 1, 0 },
	{ "operations_that_wait_for_ever_do_not_use_up_the_daemon", defer_everything, 1, 1, 0 },
	{ "no_client_can_resize_or_rewrite_what_others_map", resize_and_remap, 1, 1, 0 },
};

/* Keys that changed since their comparison are unknown: no log to verify. */
static const struct kvt_attack racing[] = {
	{ "keys_that_change_while_they_are_read_hurt_only_the_liar",
	  change_keys_during_operations, 21, 22, 0 },
};

int main(void)
{
	return kvt_attacks_run(attacks, sizeof(attacks) / sizeof(attacks[0]), NULL, true) +
	       kvt_attacks_run(racing, 1, NULL, false);
}
