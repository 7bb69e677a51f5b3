/* SPDX-License-Identifier: Apache-2.0 */
#include "shm/map.h"

#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

#define HUGE_BYTES (2ull << 20) /* x86-64, and Arm with pages of 4 KiB */
#ifndef MADV_POPULATE_WRITE /* Linux 5.14 */
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MADV_COLLAPSE /* Linux 6.1 */
#define MADV_COLLAPSE 25
#endif

void *kvt_map(uint64_t bytes, int protection, int flags, int fd)
{
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
	uint64_t whole = (bytes + page - 1) / page * page, room = whole + HUGE_BYTES;
	char *there = mmap(NULL, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1,
			   0);
	uintptr_t skipped;
	char *base;

	if (there == MAP_FAILED)
		return NULL;
	skipped = -(uintptr_t)there & (HUGE_BYTES - 1);
	base = there + skipped;
	if (mmap(base, bytes, protection, flags | MAP_FIXED, fd, 0) == MAP_FAILED) {
		int error = errno;

		munmap(there, room);
		errno = error;
		return NULL;
	}
	if (skipped)
		munmap(there, skipped);
	munmap(base + whole, HUGE_BYTES - skipped);
	return base;
}

void kvt_map_huge(void *base, uint64_t bytes)
{
	bytes -= bytes % HUGE_BYTES;
	if (bytes == 0)
		return;
	/* Private memory gets huge pages when it is first written, shared memory when what is there
	 * is collapsed. */
	madvise(base, bytes, MADV_HUGEPAGE);
	madvise(base, bytes, MADV_POPULATE_WRITE);
	madvise(base, bytes, MADV_COLLAPSE);
}
