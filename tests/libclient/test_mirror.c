/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/mirror.c without a daemon: every member reads the same messages in the same order, and
 * a damaged mirror gives a named error, never an access outside of it.
 *
 * Inputs: sizes, positions near overflow, lies, threads. Invariant: no message is torn or lost. */
#include "kvtrunk_wire_segment.h"
#include "libclient/mirror.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "shm/atomic.h"
#include "tests/lib/cases.h"

enum { READERS = 3, MOST = KVT_MIRROR_MESSAGE_MAX, THREADED = 20000 };

struct world {
	struct kvt_mirror *shared;
	struct kvt_mirror_end writer, readers[READERS]; /* of ranks 1 to READERS */
	uint32_t rank; /* that the last put named */
};

static uint8_t sent[MOST], got[MOST];

/* All ends begin at a position, as if so many bytes had passed. */
static void world_create(struct world *world, uint32_t at)
{
	struct kvt_mirror *shared = aligned_alloc(KVT_LINE, sizeof(*shared));

	assert_non_null(shared);
	memset(shared, 0, sizeof(*shared));
	shared->written = at;
	*world = (struct world){ .shared = shared };
	world->writer = (struct kvt_mirror_end){ .shared = shared, .at = at, .slowest = at,
						 .last_rank = READERS };
	for (uint32_t i = 0; i < READERS; i++) {
		world->readers[i] = (struct kvt_mirror_end){ .shared = shared, .at = at,
							     .rank = i + 1 };
		shared->readers[i + 1].read = at;
	}
}

static void world_free(struct world *world)
{
	free(world->shared);
}

static int put(struct world *world, const void *data, uint32_t bytes)
{
	return kvt_mirror_put(&world->writer, data, bytes, &world->rank);
}

static int get(struct world *world, uint32_t rank, void *buffer, uint32_t size)
{
	return kvt_mirror_get(&world->readers[rank - 1], buffer, size);
}

static void fill(uint8_t *bytes, uint32_t n, uint32_t seed)
{
	for (uint32_t i = 0; i < n; i++)
		bytes[i] = (uint8_t)(seed + i * 7 + (i >> 8));
}

TEST(messages_of_all_sizes_arrive_whole_across_the_ends_of_ring_and_counter)
{
	static const uint32_t sizes[] = { 0, 1, 3, 4, 5, 64, 4099, MOST - 1, MOST };
	struct world world;

	world_create(&world, UINT32_MAX - 3 - 3 * KVT_MIRROR_RING);
	for (uint32_t turn = 0; turn < 200; turn++) {
		uint32_t bytes = sizes[turn % (sizeof(sizes) / sizeof(sizes[0]))];

		fill(sent, bytes, turn);
		assert_int_equal(put(&world, sent, bytes), 0);
		for (uint32_t rank = 1; rank <= READERS; rank++) {
			memset(got, 0xee, sizeof(got));
			assert_int_equal(get(&world, rank, got, bytes), (int)bytes);
			assert_memory_equal(got, sent, bytes);
			assert_int_equal(get(&world, rank, got, MOST), -EAGAIN);
		}
	}
	assert_true(world.writer.at < UINT32_MAX / 2); /* it wrapped */
	world_free(&world);
}

TEST(a_full_ring_waits_for_its_slowest_reader)
{
	struct world world;

	world_create(&world, 0);
	while (put(&world, sent, 1000) == 0)
		for (uint32_t rank = 1; rank <= READERS; rank++)
			if (rank != 2)
				assert_int_equal(get(&world, rank, got, MOST), 1000);
	assert_int_equal(put(&world, sent, 1000), -EAGAIN);
	assert_int_equal(world.rank, 2);
	assert_int_equal(world.writer.at, KVT_MIRROR_RING / 1004 * 1004);
	assert_int_equal(get(&world, 2, got, MOST), 1000);
	assert_int_equal(put(&world, sent, 1000), 0);
	world_free(&world);
}

TEST(a_message_that_does_not_fit_the_buffer_stays)
{
	struct world world;

	world_create(&world, 0);
	fill(sent, 100, 1);
	assert_int_equal(put(&world, sent, 100), 0);
	assert_int_equal(get(&world, 1, got, 99), -EMSGSIZE);
	assert_int_equal(get(&world, 1, got, 100), 100);
	assert_memory_equal(got, sent, 100);
	world_free(&world);
}

/* A reader is told of positions and lengths that no honest writer has. */
TEST(a_lying_writer_is_refused)
{
	static const struct {
		uint32_t written, length;
	} lies[] = {
		{ KVT_MIRROR_RING + 4, 0 }, { UINT32_MAX, 0 },  { 3, 0 },
		{ 4, 1 },		    { 8, 5 },		{ 64, UINT32_MAX },
		{ KVT_MIRROR_RING, MOST + 1 }, { 64, UINT32_MAX - 3 },
	};
	struct world world;

	for (size_t i = 0; i < sizeof(lies) / sizeof(lies[0]); i++) {
		world_create(&world, 0);
		world.shared->written = lies[i].written;
		memcpy(world.shared->ring, &lies[i].length, sizeof(lies[i].length));
		assert_int_equal(get(&world, 1, got, MOST), -EBADMSG);
		assert_int_equal(world.readers[0].at, 0);
		world_free(&world);
	}
}

/* Rank 0 notices a reader that is ahead of it, or further behind than the ring is long. */
TEST(a_lying_reader_is_refused)
{
	static const uint32_t lies[] = { 40000, UINT32_MAX - KVT_MIRROR_RING };
	struct world world;

	for (size_t i = 0; i < sizeof(lies) / sizeof(lies[0]); i++) {
		int rc;

		world_create(&world, 0);
		assert_int_equal(put(&world, sent, 1000), 0);
		world.shared->readers[3].read = lies[i];
		for (rc = 0; rc == 0;)
			rc = put(&world, sent, 1000);
		assert_int_equal(rc, -EBADMSG);
		assert_int_equal(world.rank, 3);
		world_free(&world);
	}
}

/* What others store where rank 0 or a member keeps its own position does not move it. */
TEST(own_positions_are_private)
{
	struct world world;

	world_create(&world, 0);
	world.shared->readers[1].read = 4000;
	fill(sent, 8, 9);
	assert_int_equal(put(&world, sent, 8), 0);
	assert_int_equal(get(&world, 1, got, MOST), 8);
	assert_memory_equal(got, sent, 8);
	assert_int_equal(world.shared->readers[1].read, 12);
	world.shared->written = 77;
	assert_int_equal(put(&world, sent, 8), 0);
	assert_int_equal(world.shared->written, 24);
	world_free(&world);
}

/* ---- threads */

struct reader {
	struct world *world;
	uint32_t rank, read;
	pthread_t thread;
};

static uint32_t size_of(uint32_t turn)
{
	return turn % 97 * (turn % 5 ? 1 : 61);
}

static void *reader_main(void *context)
{
	struct reader *self = context;
	uint8_t bytes[MOST], expected[MOST];

	while (self->read < THREADED) {
		uint32_t size = size_of(self->read);
		int n = get(self->world, self->rank, bytes, MOST);

		if (n == -EAGAIN) {
			sched_yield();
			continue;
		}
		fill(expected, size, self->read);
		if (n != (int)size || memcmp(bytes, expected, size) != 0)
			break;
		self->read++;
	}
	return NULL;
}

TEST(threads_read_what_one_writes)
{
	struct reader readers[READERS];
	struct world world;

	world_create(&world, UINT32_MAX - 1023);
	for (uint32_t i = 0; i < READERS; i++) {
		readers[i] = (struct reader){ .world = &world, .rank = i + 1 };
		assert_int_equal(pthread_create(&readers[i].thread, NULL, reader_main,
						&readers[i]), 0);
	}
	for (uint32_t turn = 0; turn < THREADED; turn++) {
		int rc;

		fill(sent, size_of(turn), turn);
		while ((rc = put(&world, sent, size_of(turn))) == -EAGAIN)
			sched_yield();
		assert_int_equal(rc, 0);
	}
	for (uint32_t i = 0; i < READERS; i++) {
		pthread_join(readers[i].thread, NULL);
		assert_int_equal(readers[i].read, THREADED);
	}
	world_free(&world);
}
