/* SPDX-License-Identifier: Apache-2.0 */

/* shm/map.c: where memory is mapped, and that huge pages change nothing in it. */

#include "shm/map.h"
#include "tests/lib/cases.h"

#include <errno.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <unistd.h>

enum { HUGE = 2 << 20 };

static bool is_mapped(void *page)
{
	void *there = mmap(page, 4096, PROT_NONE,
			   MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);

	if (there != MAP_FAILED)
		munmap(there, 4096);
	return there != page;
}

TEST(memory_begins_at_a_huge_page_and_ends_where_it_should)
{
	static const uint64_t sizes[] = { 1, 4096, HUGE - 1, HUGE, HUGE + 1, 3 * HUGE + 8192 };

	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		uint64_t whole = (sizes[i] + 4095) / 4096 * 4096;
		uint8_t *base = kvt_map(sizes[i], PROT_READ | PROT_WRITE,
					MAP_PRIVATE | MAP_ANONYMOUS, -1);

		assert_non_null(base);
		assert_int_equal((uintptr_t)base % HUGE, 0);
		base[0] = base[whole - 1] = 1;
		assert_false(is_mapped(base + whole));
		assert_int_equal(munmap(base, sizes[i]), 0);
		assert_false(is_mapped(base));
	}
}

TEST(what_cannot_be_mapped_leaves_nothing)
{
	errno = 0;
	assert_null(kvt_map(4096, PROT_READ, MAP_SHARED, -1));
	assert_int_equal(errno, EBADF);
	assert_null(kvt_map(1ull << 62, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1));
	assert_int_equal(errno, ENOMEM);
}

TEST(huge_pages_change_no_byte)
{
	int fd = memfd_create("test", MFD_CLOEXEC);
	uint64_t bytes = 2 * HUGE + 4096;
	int kinds[] = { MAP_PRIVATE | MAP_ANONYMOUS, MAP_SHARED };

	assert_int_equal(ftruncate(fd, (off_t)bytes), 0);
	for (int kind = 0; kind < 2; kind++) {
		uint8_t *base = kvt_map(bytes, PROT_READ | PROT_WRITE, kinds[kind],
					kind ? fd : -1);

		assert_non_null(base);
		for (uint64_t at = 0; at < bytes; at += 1000)
			base[at] = (uint8_t)(at / 1000 % 251);
		kvt_map_huge(base, bytes);
		for (uint64_t at = 0; at < bytes; at += 1000)
			assert_int_equal(base[at], at / 1000 % 251);
		assert_int_equal(base[1], 0);
		munmap(base, bytes);
	}
	close(fd);
}
