/* SPDX-License-Identifier: Apache-2.0 */
/* shm/arena.c: attach to an arena with arbitrary content. A header is accepted only if everything
 * that its numbers promise lies inside the object.
 *
 * Inputs: a valid header with one word, or the size, changed. */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "kvtrunk_wire.h"
#include "daemon/core/ledger.h"
#include "shm/arena.h"
#include "tests/lib/cases.h"

enum { PAGE_SIZE = 16, N_PAGES = 8, N_SLOTS = 12, MAX_NODES = 6, N_BUCKETS = 16, MAX_NS = 3 };

static uint64_t add_section(struct kvt_arena_header *header, uint32_t id, uint64_t at,
			    uint64_t count, uint32_t entry_bytes)
{
	header->sections[id] = (struct kvt_section){ .offset = at,
						     .bytes = count * entry_bytes,
						     .count = count,
						     .entry_bytes = entry_bytes,
						     .id = id };
	return (at + count * entry_bytes + KVT_LINE - 1) / KVT_LINE * KVT_LINE;
}

/* A small valid arena. */
static void good_header(struct kvt_arena_header *header)
{
	uint64_t at = sizeof(*header);

	memset(header, 0, sizeof(*header));
	header->magic = KVT_ARENA_MAGIC;
	header->abi = KVT_ABI;
	header->header_bytes = sizeof(*header);
	header->layout = kvt_abi_layout();
	header->page_size = PAGE_SIZE;
	header->n_pages = N_PAGES;
	header->n_slots = N_SLOTS;
	header->max_nodes = MAX_NODES;
	header->n_buckets = N_BUCKETS;
	header->max_namespaces = MAX_NS;
	header->n_sections = KVT_ARENA_SECTIONS;
	header->n_sides = 1;
	at = add_section(header, KVT_SECTION_NODES, at, MAX_NODES, sizeof(struct kvt_node));
	at = add_section(header, KVT_SECTION_BUCKETS, at, N_BUCKETS, sizeof(kvt_bucket));
	at = add_section(header, KVT_SECTION_SLOT_KEYS, at, N_SLOTS, PAGE_SIZE * 4);
	at = add_section(header, KVT_SECTION_SLOT_PAGES, at, N_SLOTS, 4);
	at = add_section(header, KVT_SECTION_PAGES, at, N_PAGES, sizeof(struct kvt_page_record));
	at = add_section(header, KVT_SECTION_NAMESPACES, at, MAX_NS,
			 sizeof(struct kvt_namespace_record));
	at = add_section(header, KVT_SECTION_ROOT_KEYS, at, MAX_NODES, sizeof(uint64_t));
	at = add_section(header, KVT_SECTION_SIDES, at, N_PAGES, sizeof(uint32_t));
	header->object_bytes = at;
	header->state = KVT_ARENA_READY;
}

static int make_object(const struct kvt_arena_header *header, uint64_t bytes)
{
	int fd = memfd_create("test-arena", MFD_CLOEXEC);
	size_t part = sizeof(*header) < bytes ? sizeof(*header) : bytes;

	assert_true(fd >= 0);
	assert_int_equal(ftruncate(fd, (off_t)bytes), 0);
	assert_int_equal(pwrite(fd, header, part, 0), part);
	return fd;
}

static enum kvt_attach_state attach_to(const struct kvt_arena_header *header, uint64_t bytes)
{
	int fd = make_object(header, bytes);
	struct kvt_arena_view view = { .base = NULL };
	enum kvt_attach_state state = kvt_arena_attach(&view, fd);

	assert_int_equal(view.base != NULL, state == KVT_ATTACH_OK);
	kvt_arena_detach(&view);
	close(fd);
	return state;
}

TEST(a_good_arena_is_mapped_read_only_and_complete)
{
	struct kvt_arena_header header;
	struct kvt_arena_view view;
	int fd;

	good_header(&header);
	fd = make_object(&header, header.object_bytes);
	assert_int_equal(kvt_arena_attach(&view, fd), KVT_ATTACH_OK);
	assert_int_equal(view.page_size, PAGE_SIZE);
	assert_int_equal(view.max_namespaces, MAX_NS);
	assert_ptr_equal(view.nodes, (const char *)view.base + sizeof(header));
	/* The last byte of the last array can be read. */
	assert_int_equal(view.namespaces[MAX_NS - 1].nodes, 0);
	kvt_arena_detach(&view);
	assert_null(view.base);
	close(fd);
}

TEST(every_state_has_its_name)
{
	struct kvt_arena_header header;
	uint64_t bytes;

	good_header(&header);
	bytes = header.object_bytes;
	assert_int_equal(attach_to(&header, bytes), KVT_ATTACH_OK);
	header.state = KVT_ARENA_DRAINING;
	assert_int_equal(attach_to(&header, bytes), KVT_ATTACH_OK);
	header.state = KVT_ARENA_STARTING;
	assert_int_equal(attach_to(&header, bytes), KVT_ATTACH_STARTING);
	header.state = KVT_ARENA_GONE;
	assert_int_equal(attach_to(&header, bytes), KVT_ATTACH_GONE);
	header.state = 99;
	assert_int_equal(attach_to(&header, bytes), KVT_ATTACH_CORRUPT);
	good_header(&header);
	header.magic = 0;
	assert_int_equal(attach_to(&header, bytes), KVT_ATTACH_STARTING);
	header.magic = KVT_LEDGER_MAGIC;
	assert_int_equal(attach_to(&header, bytes), KVT_ATTACH_CORRUPT);
	good_header(&header);
	header.abi++;
	assert_int_equal(attach_to(&header, bytes), KVT_ATTACH_WRONG_VERSION);
	good_header(&header);
	header.layout ^= 1;
	assert_int_equal(attach_to(&header, bytes), KVT_ATTACH_WRONG_LAYOUT);
	for (int i = 0; i <= KVT_ATTACH_GONE; i++) {
		assert_string_not_equal(kvt_attach_state_name((enum kvt_attach_state)i),
					"unknown");
		assert_non_null(kvt_arena_state_text((enum kvt_attach_state)i));
	}
}

TEST(an_object_shorter_than_it_says_never_faults)
{
	struct kvt_arena_header header;

	good_header(&header);
	assert_int_equal(attach_to(&header, 0), KVT_ATTACH_STARTING);
	for (uint64_t bytes = 1; bytes < header.object_bytes; bytes += 97)
		assert_int_equal(attach_to(&header, bytes), KVT_ATTACH_CORRUPT);
	assert_int_equal(attach_to(&header, header.object_bytes - 1), KVT_ATTACH_CORRUPT);
	assert_int_equal(attach_to(&header, header.object_bytes + 12345), KVT_ATTACH_OK);
}

TEST(a_descriptor_that_is_no_object_is_refused)
{
	struct kvt_arena_view view;
	int fd = open("/dev/null", O_WRONLY | O_CLOEXEC), pipes[2];

	assert_int_not_equal(kvt_arena_attach(&view, -1), KVT_ATTACH_OK);
	assert_int_not_equal(kvt_arena_attach(&view, fd), KVT_ATTACH_OK);
	assert_int_equal(pipe(pipes), 0);
	assert_int_not_equal(kvt_arena_attach(&view, pipes[0]), KVT_ATTACH_OK);
	close(fd);
	close(pipes[0]);
	close(pipes[1]);
}

static const uint64_t edges[] = {
	0, 1, 2, 3, 7, 127, 128, 129, 255, 256, 257, 511, 4095, 4096, 4097, 0x7fffffff,
	0x80000000ull, 0xffffffffull, 0x100000000ull, 0x7fffffffffffffffull,
	0x8000000000000000ull, 0xffffffffffffff80ull, 0xffffffffffffffffull,
};
enum { N_EDGES = sizeof(edges) / sizeof(edges[0]) };

/* If the check accepts it, everything that the numbers promise must lie inside. */
static void check_promise(const struct kvt_arena_header *header, uint64_t object_bytes)
{
	const struct kvt_section *s = header->sections;
	const uint64_t needed[KVT_ARENA_SECTIONS] = {
		(uint64_t)header->max_nodes * sizeof(struct kvt_node),
		(uint64_t)header->n_buckets * 8,
		(uint64_t)header->n_slots * header->page_size * 4,
		(uint64_t)header->n_slots * 4,
		(uint64_t)header->n_pages * sizeof(struct kvt_page_record),
		(uint64_t)header->max_namespaces * sizeof(struct kvt_namespace_record),
		(uint64_t)header->max_nodes * 8,
		(uint64_t)header->n_pages * header->n_sides * 4,
	};

	if (kvt_arena_check(header, object_bytes) != KVT_ATTACH_OK)
		return;
	for (int i = 0; i < KVT_ARENA_SECTIONS; i++) {
		__int128 end = (__int128)s[i].offset + (__int128)needed[i];

		assert_true(end <= (__int128)object_bytes);
		assert_int_equal(s[i].offset % KVT_LINE, 0);
	}
	assert_in_range(header->page_size, 1, KVT_MAX_PAGE_SIZE);
	assert_true(header->n_buckets && (header->n_buckets & (header->n_buckets - 1)) == 0);
}

TEST(damaged_numbers_never_lead_outside)
{
	struct kvt_arena_header header;
	uint64_t bytes;
	size_t field = offsetof(struct kvt_arena_header, header_bytes);
	unsigned int refused = 0, tried = 0;

	good_header(&header);
	bytes = header.object_bytes;
	/* Set each aligned word of the header, 4 and 8 bytes wide, to each edge. */
	for (; field < offsetof(struct kvt_arena_header, fingerprint); field += 4) {
		for (unsigned int i = 0; i < N_EDGES; i++) {
			for (size_t width = 4; width <= 8; width += 4) {
				good_header(&header);
				memcpy((char *)&header + field, &edges[i], width);
				check_promise(&header, bytes);
				refused += kvt_arena_check(&header, bytes) != KVT_ATTACH_OK;
				tried++;
			}
		}
	}
	assert_true(refused > tried / 4);
}

TEST(random_damage_never_leads_outside)
{
	struct kvt_arena_header header;
	uint64_t seed = 88172645463325252ull, bytes;

	good_header(&header);
	bytes = header.object_bytes;
	for (int round = 0; round < 200000; round++) {
		good_header(&header);
		for (int n = 0; n < 3; n++) {
			seed ^= seed << 13;
			seed ^= seed >> 7;
			seed ^= seed << 17;
			((uint8_t *)&header)[16 + seed % (offsetof(struct kvt_arena_header,
								   fingerprint) - 16)] =
				(uint8_t)(seed >> 32);
		}
		check_promise(&header, bytes);
	}
}

TEST(a_section_that_does_not_fit_is_refused)
{
	struct kvt_arena_header header;
	uint64_t bytes;

	for (int i = 0; i < KVT_ARENA_SECTIONS; i++) {
		good_header(&header);
		bytes = header.object_bytes;
		header.sections[i].bytes--;
		assert_int_equal(kvt_arena_check(&header, bytes), KVT_ATTACH_CORRUPT);
		good_header(&header);
		header.sections[i].offset = bytes;
		assert_int_equal(kvt_arena_check(&header, bytes), KVT_ATTACH_CORRUPT);
		good_header(&header);
		header.sections[i].offset += 4;
		assert_int_equal(kvt_arena_check(&header, bytes), KVT_ATTACH_CORRUPT);
		good_header(&header);
		header.sections[i].offset = 0; /* over the header */
		assert_int_equal(kvt_arena_check(&header, bytes), KVT_ATTACH_CORRUPT);
		good_header(&header);
		header.sections[i].id++;
		assert_int_equal(kvt_arena_check(&header, bytes), KVT_ATTACH_CORRUPT);
	}
	good_header(&header);
	header.n_sections = 5;
	assert_int_equal(kvt_arena_check(&header, bytes), KVT_ATTACH_CORRUPT);
	header.n_sections = 9;
	assert_int_equal(kvt_arena_check(&header, bytes), KVT_ATTACH_CORRUPT);
}
