/* SPDX-License-Identifier: Apache-2.0 */
/* shm/ring.c: the session segment and the two ends of its two rings. A damaged header or a lying
 * peer gives a named error, never an access outside the segment.
 *
 * Inputs: sizes, indices near overflow, damaged headers. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "shm/ring.h"
#include "tests/lib/cases.h"

struct segment {
	struct kvt_segment_layout layout;
	void *base, *areas;
	struct kvt_ring_end client, daemon;
};

static void segment_create(struct segment *segment, uint32_t sq, uint32_t cq)
{
	assert_int_equal(kvt_segment_plan(&segment->layout, sq, cq, 1000, 500), 0);
	segment->base = aligned_alloc(KVT_LINE, segment->layout.bytes);
	assert_non_null(segment->base);
	memset(segment->base, 0, segment->layout.bytes);
	kvt_segment_format(segment->base, &segment->layout, 7);
	segment->areas = aligned_alloc(KVT_LINE, segment->layout.areas_bytes);
	assert_non_null(segment->areas);
	kvt_ring_end_init(&segment->client, segment->base, segment->areas, &segment->layout);
	kvt_ring_end_init(&segment->daemon, segment->base, segment->areas, &segment->layout);
}

static void segment_free(struct segment *segment)
{
	free(segment->base);
	free(segment->areas);
}

/* Let both sides start at an index, as if that many entries had passed. */
static void segment_start_at(struct segment *segment, uint32_t index)
{
	struct kvt_segment_header *header = segment->base;
	struct kvt_ring_end *ends[] = { &segment->client, &segment->daemon };

	header->sq_head = header->sq_tail = header->cq_head = header->cq_tail = index;
	for (int i = 0; i < 2; i++)
		ends[i]->sq_head = ends[i]->sq_tail = ends[i]->cq_head = ends[i]->cq_tail = index;
}

TEST(plans_refuse_sizes_that_are_no_powers_of_two)
{
	static const uint32_t bad[] = { 0, 3, 6, 100, 1024, 65536, 0x80000000u, UINT32_MAX };
	struct kvt_segment_layout layout;

	for (unsigned int i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		assert_int_equal(kvt_segment_plan(&layout, bad[i], 8, 1, 1), -EINVAL);
		assert_int_equal(kvt_segment_plan(&layout, 8, bad[i], 1, 1), -EINVAL);
	}
	for (uint32_t size = 1; size <= 256; size *= 2) {
		assert_int_equal(kvt_segment_plan(&layout, size, 2 * size, 0, 0), 0);
		assert_true(layout.bytes <= KVT_SEGMENT_BYTES_MAX);
	}
	assert_int_equal(kvt_segment_plan(&layout, 512, 512, 0, 0), -EINVAL); /* above 64 KiB */
	assert_int_equal(kvt_segment_plan(&layout, 8, 8, (1ull << 31) + 1, 0), -EINVAL);
	assert_int_equal(kvt_segment_plan(&layout, 8, 8, 0, UINT64_MAX), -EINVAL);
}

TEST(the_parts_of_a_plan_lie_behind_each_other_on_lines_of_their_own)
{
	struct kvt_segment_layout layout;

	for (uint64_t count = 0; count < 200; count++) {
		assert_int_equal(kvt_segment_plan(&layout, 1, 2, count, count * 3), 0);
		assert_true(layout.sq_offset >= sizeof(struct kvt_segment_header));
		assert_true(layout.cq_offset >= layout.sq_offset + sizeof(struct kvt_sqe));
		assert_true(layout.fences_offset >= layout.cq_offset + 2 * sizeof(struct kvt_cqe));
		assert_true(layout.bytes ==
			    layout.fences_offset + KVT_FENCE_WORDS * sizeof(struct kvt_fence_word));
		assert_true(layout.list_offset >= layout.keys_offset + 4 * count);
		assert_true(layout.areas_bytes >= layout.list_offset + 4 * 3 * count);
		assert_int_equal((layout.sq_offset | layout.cq_offset | layout.fences_offset |
				  layout.keys_offset | layout.list_offset | layout.bytes |
				  layout.areas_bytes) %
					 KVT_LINE, 0);
	}
}

TEST(a_formatted_segment_is_accepted_and_says_the_same_layout)
{
	struct kvt_segment_layout layout;
	struct segment segment;

	segment_create(&segment, 16, 32);
	assert_int_equal(kvt_segment_check(segment.base, segment.layout.bytes,
					   segment.layout.areas_bytes, &layout), 0);
	assert_memory_equal(&layout, &segment.layout, sizeof(layout));
	segment_free(&segment);
}

/* For any damaged field of the header and any shorter object: a named error, or a layout inside the
 * object. */
TEST(a_damaged_header_never_leads_outside_the_object)
{
	struct segment segment;
	struct kvt_segment_layout layout;
	uint32_t random = 12345;

	segment_create(&segment, 16, 32);
	for (uint64_t bytes = 0; bytes < segment.layout.bytes; bytes += 61)
		assert_int_not_equal(kvt_segment_check(segment.base, bytes, UINT64_MAX, &layout),
				     0);
	assert_int_not_equal(kvt_segment_check(segment.base, segment.layout.bytes,
					       segment.layout.areas_bytes - 1, &layout), 0);
	for (int round = 0; round < 200000; round++) {
		uint8_t saved[KVT_LINE];
		uint32_t at, error;

		random = random * 1664525u + 1013904223u;
		at = (random >> 8) % 104;
		memcpy(saved, segment.base, sizeof(saved));
		((uint8_t *)segment.base)[at] ^= (uint8_t)(1 + (random >> 24) % 255);
		error = (uint32_t)kvt_segment_check(segment.base, segment.layout.bytes,
					   segment.layout.areas_bytes, &layout);
		if (error == 0)
			assert_true(layout.bytes <= segment.layout.bytes &&
				    layout.areas_bytes <= segment.layout.areas_bytes);
		memcpy(segment.base, saved, sizeof(saved));
	}
	segment_free(&segment);
}

TEST(wrong_magic_version_and_layout_are_a_protocol_error)
{
	struct kvt_segment_layout layout;
	struct kvt_segment_header *header;
	struct segment segment;

	segment_create(&segment, 1, 1);
	header = segment.base;
	header->magic++;
	assert_int_equal(kvt_segment_check(header, segment.layout.bytes,
					   segment.layout.areas_bytes, &layout), -EPROTO);
	header->magic--;
	header->abi++;
	assert_int_equal(kvt_segment_check(header, segment.layout.bytes,
					   segment.layout.areas_bytes, &layout), -EPROTO);
	header->abi--;
	header->layout ^= 1;
	assert_int_equal(kvt_segment_check(header, segment.layout.bytes,
					   segment.layout.areas_bytes, &layout), -EPROTO);
	header->layout ^= 1;
	header->sq_entries = 3;
	assert_int_equal(kvt_segment_check(header, segment.layout.bytes,
					   segment.layout.areas_bytes, &layout), -EINVAL);
	segment_free(&segment);
}

TEST(entries_arrive_once_in_order_across_the_wrap_of_the_index)
{
	struct segment segment;
	uint64_t sent = 0, taken = 0, answered = 0, received = 0;
	uint32_t random = 99;

	segment_create(&segment, 8, 16);
	segment_start_at(&segment, UINT32_MAX - 50);
	for (int round = 0; round < 2000; round++) {
		struct kvt_sqe sqe = { .op = KVT_OP_NOP };
		struct kvt_cqe cqe = { .result = 0 };

		random = random * 1664525u + 1013904223u;
		for (uint32_t n = (random >> 8) % 9; n > 0; n--) {
			if (kvt_ring_sq_space(&segment.client) == 0)
				break;
			sqe.user_data = sent++;
			kvt_ring_sq_put(&segment.client, &sqe);
		}
		assert_false(kvt_ring_sq_publish(&segment.client));
		for (uint32_t n = (random >> 16) % 9; n > 0; n--) {
			if (kvt_ring_sq_pending(&segment.daemon) <= 0 ||
			    kvt_ring_cq_space(&segment.daemon) <= 0)
				break;
			kvt_ring_sq_take(&segment.daemon, &sqe);
			assert_int_equal(sqe.user_data, taken++);
			cqe.user_data = answered++;
			kvt_ring_cq_put(&segment.daemon, &cqe);
		}
		assert_false(kvt_ring_cq_publish(&segment.daemon));
		for (uint32_t n = (random >> 24) % 9; n > 0; n--) {
			if (kvt_ring_cq_ready(&segment.client) == 0)
				break;
			kvt_ring_cq_take(&segment.client, &cqe);
			assert_int_equal(cqe.user_data, received++);
		}
	}
	assert_true(received > 1000);
	segment_free(&segment);
}

TEST(a_full_ring_says_so_and_has_room_again_after_one_take)
{
	struct segment segment;
	struct kvt_sqe sqe = { .op = KVT_OP_NOP };
	struct kvt_cqe cqe = { .result = 0 };

	segment_create(&segment, 4, 2);
	for (uint32_t left = 4; left > 0; left--) {
		assert_int_equal(kvt_ring_sq_space(&segment.client), left);
		kvt_ring_sq_put(&segment.client, &sqe);
	}
	assert_int_equal(kvt_ring_sq_space(&segment.client), 0);
	assert_int_equal(kvt_ring_sq_pending(&segment.daemon), 0); /* not published yet */
	kvt_ring_sq_publish(&segment.client);
	assert_int_equal(kvt_ring_sq_pending(&segment.daemon), 4);
	kvt_ring_sq_take(&segment.daemon, &sqe);
	assert_int_equal(kvt_ring_sq_space(&segment.client), 1);
	for (int left = 2; left > 0; left--) {
		assert_int_equal(kvt_ring_cq_space(&segment.daemon), left);
		kvt_ring_cq_put(&segment.daemon, &cqe);
	}
	assert_int_equal(kvt_ring_cq_space(&segment.daemon), 0);
	kvt_ring_cq_publish(&segment.daemon);
	assert_int_equal(kvt_ring_cq_ready(&segment.client), 2);
	kvt_ring_cq_take(&segment.client, &cqe);
	assert_int_equal(kvt_ring_cq_space(&segment.daemon), 1);
	segment_free(&segment);
}

TEST(an_impossible_index_of_the_client_is_a_protocol_error)
{
	struct segment segment;
	struct kvt_segment_header *header;
	struct kvt_cqe cqe = { .result = 0 };

	segment_create(&segment, 8, 8);
	header = segment.base;
	for (uint32_t lie = 9; lie != 0; lie *= 2) { /* ends when it overflows to 0 */
		header->sq_tail = lie;
		assert_int_equal(kvt_ring_sq_pending(&segment.daemon), -EPROTO);
		/* Before it sleeps the daemon looks twice, and acts on the second look only. */
		assert_int_equal(kvt_ring_sq_pending(&segment.daemon), -EPROTO);
		segment_start_at(&segment, 0);
	}
	header->sq_tail = UINT32_MAX; /* backwards */
	assert_int_equal(kvt_ring_sq_pending(&segment.daemon), -EPROTO);
	segment_start_at(&segment, 0);
	for (int i = 0; i < 6; i++)
		kvt_ring_cq_put(&segment.daemon, &cqe);
	header->cq_head = 7; /* completions never given */
	assert_int_equal(kvt_ring_cq_space(&segment.daemon), -EPROTO);
	segment_free(&segment);
}

TEST(a_sleeper_is_reported_to_the_publisher)
{
	struct segment segment;
	struct kvt_segment_header *header;

	segment_create(&segment, 8, 8);
	header = segment.base;
	header->sq_need_wakeup = 1;
	assert_true(kvt_ring_sq_publish(&segment.client));
	header->sq_need_wakeup = 0;
	assert_false(kvt_ring_sq_publish(&segment.client));
	header->cq_need_wakeup = 1;
	assert_true(kvt_ring_cq_publish(&segment.daemon));
	header->cq_need_wakeup = 0;
	assert_false(kvt_ring_cq_publish(&segment.daemon));
	segment_free(&segment);
}

static struct kvt_cqe completion(uint32_t number)
{
	return (struct kvt_cqe){ .user_data = 1000 + number, .seq = number };
}

/* The daemon died after `done` completions. It had published all but one or two of them; `taken`
 * entries took effect, and not all their places were given back. */
static void resumed_at(uint32_t start, uint32_t done, uint32_t unpublished)
{
	struct kvt_cqe last[2] = { { 0 }, { 0 } }, cqe;
	struct segment segment;
	struct kvt_sqe sqe;

	segment_create(&segment, 8, 8);
	segment_start_at(&segment, start);
	for (uint32_t i = start; i != start + 4; i++) {
		sqe = (struct kvt_sqe){ .user_data = i };
		kvt_ring_sq_put(&segment.client, &sqe);
	}
	kvt_ring_sq_publish(&segment.client);
	for (uint32_t i = start; i != start + done; i++) {
		last[i & 1] = cqe = completion(i);
		if (i - start + unpublished < done) {
			kvt_ring_cq_put(&segment.daemon, &cqe);
			kvt_ring_cq_publish(&segment.daemon);
		}
	}
	kvt_ring_end_init(&segment.daemon, segment.base, segment.areas, &segment.layout);
	kvt_ring_end_resume(&segment.daemon, start + 2, start + done, last);
	for (uint32_t i = start; i != start + done; i++) {
		assert_int_equal(kvt_ring_cq_ready(&segment.client) > 0, 1);
		kvt_ring_cq_take(&segment.client, &cqe);
		assert_int_equal(cqe.user_data, 1000 + i);
	}
	assert_int_equal(kvt_ring_cq_ready(&segment.client), 0);
	assert_int_equal(kvt_ring_sq_pending(&segment.daemon), 2);
	kvt_ring_sq_peek(&segment.daemon, &sqe);
	assert_int_equal(sqe.user_data, start + 2);
	kvt_ring_sq_advance(&segment.daemon);
	kvt_ring_sq_take(&segment.daemon, &sqe);
	assert_int_equal(sqe.user_data, start + 3);
	assert_int_equal(kvt_load_relaxed(&segment.client.header->sq_head), start + 4);
	segment_free(&segment);
}

TEST(each_side_says_on_which_cpu_it_runs_and_the_client_its_pace)
{
	struct segment segment;
	uint32_t client, daemon;

	segment_create(&segment, 8, 16);
	assert_false(kvt_ring_daemon_here(&segment.client));
	assert_false(kvt_ring_client_here(&segment.daemon));
	kvt_ring_sq_publish(&segment.client);
	assert_false(kvt_ring_daemon_here(&segment.client));
	kvt_ring_cq_publish(&segment.daemon);
	client = segment.client.header->client_cpu;
	daemon = segment.client.header->daemon_cpu;
	assert_int_not_equal(client, 0);
	assert_int_not_equal(daemon, 0);
	assert_int_equal(kvt_ring_sq_pending(&segment.daemon), 0);
	assert_int_equal(kvt_ring_daemon_here(&segment.client), client == daemon);
	assert_int_equal(kvt_ring_client_here(&segment.daemon), client == daemon);
	segment.client.header->client_cpu = daemon + 1;
	segment.client.header->pace_us = 7;
	assert_int_equal(kvt_ring_sq_pending(&segment.daemon), 0);
	assert_int_equal(segment.daemon.pace_us, 7);
	assert_false(kvt_ring_client_here(&segment.daemon));
	segment_free(&segment);
}

TEST(a_successor_continues_where_the_predecessor_stopped)
{
	static const uint32_t starts[] = { 0, 1, 6, 7, 1000, 0xfffffffeu, UINT32_MAX };

	for (size_t i = 0; i < sizeof(starts) / sizeof(starts[0]); i++)
		for (uint32_t done = 0; done <= 4; done++)
			for (uint32_t unpublished = 0; unpublished <= 2; unpublished++)
				if (unpublished <= done)
					resumed_at(starts[i], done, unpublished);
}
