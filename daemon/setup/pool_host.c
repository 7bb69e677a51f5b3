/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file pool_host.c
 * Pools in host memory: a sealed memfd for each slab.
 *
 * The daemon maps a slab only to lock it; pages are allocated when a client first writes them, huge
 * ones at start. All slabs have pages of one size. Called through struct kvt_pool_backend_ops.
 */
#include "daemon/setup/pool.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "daemon/log/lines.h"
#include "daemon/setup/config.h"
#include "daemon/setup/memory.h"
#include "daemon/setup/object.h"
#include "daemon/setup/pool_backend.h"
#include "shm/assert.h"
#include "shm/limit.h"

struct kvt_pool_export;

#define PIECE (256ull << 20) /* bytes that are allocated or locked at a time */
#define SAY_S 10             /* between two lines about it */

struct host_state {
	int fds[KVT_MAX_SLABS];
	void *locked[KVT_MAX_SLABS]; /* NULL: not locked */
	uint32_t n_slabs;            /* made so far */
	uint64_t bytes;              /* of each slab */
};

/* Read a number of /proc/meminfo by its name. 0: there is none. */
static uint64_t meminfo(const char *name)
{
	size_t n = strlen(name);
	char line[128];
	uint64_t value = 0;
	FILE *file = fopen("/proc/meminfo", "re");

	while (file && fgets(line, sizeof(line), file))
		if (strncmp(line, name, n) == 0 && line[n] == ':')
			value = strtoull(line + n + 1, NULL, 10);
	if (file)
		fclose(file);
	return value;
}

static uint64_t huge_page_bytes(void)
{
	return meminfo("Hugepagesize") * 1024;
}

static uint64_t round_up(uint64_t bytes, uint64_t unit)
{
	return (bytes + unit - 1) / unit * unit;
}

/* Log how far long work is, if a line is due. */
static void say_when_due(const char *event, uint64_t done, uint64_t bytes, time_t *due)
{
	if (time(NULL) < *due)
		return;
	kvt_log(KVT_LOG_NOTICE, event, "done_mib=%llu of_mib=%llu",
		(unsigned long long)(done >> 20), (unsigned long long)(bytes >> 20));
	*due = time(NULL) + SAY_S;
}

/* Allocate all huge pages of a file. The kernel clears them. */
static int allocate_in_pieces(int fd, uint64_t bytes, uint64_t unit)
{
	uint64_t piece = round_up(PIECE, unit);
	time_t due = time(NULL) + SAY_S;

	for (uint64_t at = 0; at < bytes; at += piece) {
		if (fallocate(fd, 0, (off_t)at, (off_t)(bytes - at < piece ? bytes - at : piece)))
			return -errno;
		say_when_due("pool_allocating", at + piece, bytes, &due);
	}
	return 0;
}

/* Make a sealed memfd of at least the pool's size. Negative errno. Huge pages are allocated now: a
 * missing one would raise SIGBUS in the client that first touches it. */
static int make_slab(struct kvt_pool *pool, bool huge, uint64_t *ret_bytes)
{
	const int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
	uint64_t unit = huge ? huge_page_bytes() : (uint64_t)sysconf(_SC_PAGESIZE);
	uint64_t bytes;
	int fd, error;

	if (!unit)
		return -ENOTSUP;
	bytes = round_up(pool->n_pages * pool->page_bytes, unit);
	KVT_ASSERT(bytes >= pool->n_pages * pool->page_bytes);
	fd = memfd_create("kvtrunk-pool",
			  MFD_CLOEXEC | MFD_ALLOW_SEALING | (huge ? MFD_HUGETLB : 0u));
	if (fd < 0)
		return -errno;
	error = ftruncate(fd, (off_t)bytes) != 0 ? -errno : 0;
	if (!error && huge)
		error = allocate_in_pieces(fd, bytes, unit);
	if (!error && fcntl(fd, F_ADD_SEALS, seals) != 0)
		error = -errno;
	if (error) {
		close(fd);
		return error;
	}
	*ret_bytes = bytes;
	return fd;
}

/* Lock memory. This touches every page. */
static int lock_in_pieces(char *base, uint64_t bytes)
{
	time_t due = time(NULL) + SAY_S;

	for (uint64_t at = 0; at < bytes; at += PIECE) {
		if (mlock(base + at, bytes - at < PIECE ? bytes - at : PIECE) != 0)
			return -errno;
		say_when_due("pool_locking", at + PIECE, bytes, &due);
	}
	return 0;
}

static int lock_slab(struct host_state *state, uint32_t slab, char *why, size_t why_size)
{
	void *base = mmap(NULL, state->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, state->fds[slab],
			  0);
	int error;

	KVT_ASSERT(slab < state->n_slabs && !state->locked[slab]);
	if (base == MAP_FAILED) {
		error = -errno;
		snprintf(why, why_size, "cannot map a slab of %llu bytes to lock it: %s",
			 (unsigned long long)state->bytes, strerror(-error));
		return error;
	}
	error = lock_in_pieces(base, state->bytes);
	if (error) {
		munmap(base, state->bytes);
		return kvt_memory_not_locked(error, why, why_size);
	}
	kvt_object_undump(base, state->bytes);
	state->locked[slab] = base;
	return 0;
}

static uint64_t wanted_bytes(const struct kvt_pool *pool)
{
	return pool->n_slabs * (pool->n_pages * pool->page_bytes);
}

static int host_too_large(const struct kvt_pool *pool, char *why, size_t why_size)
{
	uint64_t want = wanted_bytes(pool), limit = kvt_memory_limit_bytes();

	if (want <= limit)
		return 0;
	snprintf(why, why_size, "a pool of %u pages of %llu bytes in %u slabs needs %llu bytes, "
		 "more than the %llu bytes this process can have: lower n_pages, pool_bytes or the "
		 "size of a page, or raise the memory limit", pool->n_pages,
		 (unsigned long long)pool->page_bytes, pool->n_slabs, (unsigned long long)want,
		 (unsigned long long)limit);
	return -ENOMEM;
}

static void drop_slabs(struct host_state *state)
{
	for (uint32_t i = 0; i < state->n_slabs; i++) {
		if (state->locked[i])
			munmap(state->locked[i], state->bytes);
		close(state->fds[i]);
	}
	*state = (struct host_state){ 0 };
}

/* Make all slabs with one page size. On failure none is left. */
static int make_slabs(struct kvt_pool *pool, struct host_state *state, bool huge)
{
	KVT_ASSERT(state->n_slabs == 0 && pool->n_slabs <= KVT_MAX_SLABS);
	while (state->n_slabs < pool->n_slabs) {
		int fd = make_slab(pool, huge, &state->bytes);

		if (fd < 0) {
			drop_slabs(state);
			return fd;
		}
		state->fds[state->n_slabs++] = fd;
	}
	return 0;
}

/* Note that there are too few huge pages. False: there are enough. */
static bool note_huge_pages(struct kvt_pool *pool)
{
	uint64_t unit = huge_page_bytes();
	uint64_t left = meminfo("HugePages_Free") - meminfo("HugePages_Rsvd");
	uint64_t need = unit ? pool->n_slabs * (round_up(pool->n_pages * pool->page_bytes, unit) /
						unit) : 1;
	char cause[64] = "this kernel has none";

	if (unit && need <= left)
		return false;
	if (unit)
		snprintf(cause, sizeof(cause), "%llu of %llu are free", (unsigned long long)left,
			 (unsigned long long)need);
	snprintf(pool->note, sizeof(pool->note), "no huge pages for %llu bytes (%s): reserve them "
		 "with vm.nr_hugepages, or set hugepages = no",
		 (unsigned long long)wanted_bytes(pool), cause);
	return true;
}

/* Make all slabs, on huge pages if configured and available. */
static int make_all_slabs(struct kvt_pool *pool, struct host_state *state, char *why,
			  size_t why_size)
{
	int error = -ENOTSUP;

	if (pool->hugepages != KVT_HUGEPAGES_NO) {
		error = make_slabs(pool, state, true);
		if (error && !note_huge_pages(pool))
			snprintf(pool->note, sizeof(pool->note), "huge pages: %s",
				 strerror(-error));
		if (error && pool->hugepages == KVT_HUGEPAGES_REQUIRE) {
			snprintf(why, why_size, "%s", pool->note);
			return error;
		}
	}
	if (error)
		error = make_slabs(pool, state, false);
	if (error)
		snprintf(why, why_size, "cannot make the pool: %s", kvt_limit_text(-error));
	return error;
}

/* Set the pool's slabs. Consumes them, on failure too. */
static int host_hold(struct kvt_pool *pool, const struct host_state *slabs, char *why,
		     size_t why_size)
{
	struct host_state *state = malloc(sizeof(*state)), dropped = *slabs;
	int error = 0;

	if (!state) {
		drop_slabs(&dropped);
		snprintf(why, why_size, "out of memory");
		return -ENOMEM;
	}
	KVT_ASSERT(!pool->state && slabs->n_slabs == pool->n_slabs);
	*state = *slabs;
	for (uint32_t i = 0; i < state->n_slabs && pool->mlock && !error; i++)
		error = lock_slab(state, i, why, why_size);
	if (error) {
		drop_slabs(state);
		free(state);
		return error;
	}
	pool->bytes = state->bytes;
	pool->state = state;
	return 0;
}

/* Check that there are huge pages, if they are wanted. */
static int check_huge_pages(struct kvt_pool *pool, bool running, char *why, size_t why_size)
{
	if (pool->hugepages == KVT_HUGEPAGES_NO || running || !note_huge_pages(pool) ||
	    pool->hugepages != KVT_HUGEPAGES_REQUIRE)
		return 0;
	snprintf(why, why_size, "%s", pool->note);
	return -ENOMEM;
}

static int host_check(struct kvt_pool *pool, bool running, char *why, size_t why_size)
{
	uint64_t slab = pool->n_pages * pool->page_bytes, left = kvt_memory_free_bytes();
	struct rlimit limit;
	int error = host_too_large(pool, why, why_size);

	if (!error)
		error = check_huge_pages(pool, running, why, why_size);
	if (error)
		return error;
	if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && slab > limit.rlim_cur) {
		snprintf(why, why_size, "a slab of %llu bytes is larger than RLIMIT_FSIZE, %llu: "
			 "raise it (ulimit -f, LimitFSIZE=)", (unsigned long long)slab,
			 (unsigned long long)limit.rlim_cur);
		return -EFBIG;
	}
	if (running || wanted_bytes(pool) <= left)
		return 0;
	snprintf(pool->mlock ? why : pool->note, pool->mlock ? why_size : sizeof(pool->note),
		 "the pool needs %llu bytes, and %llu are free now: lower n_pages or pool_bytes, "
		 "or end what holds memory", (unsigned long long)wanted_bytes(pool),
		 (unsigned long long)left);
	return pool->mlock ? -ENOMEM : 0; /* else a page is allocated when it is first written */
}

static int host_create(struct kvt_pool *pool, char *why, size_t why_size)
{
	struct host_state slabs = { 0 };
	int error = host_too_large(pool, why, why_size);

	if (!error)
		error = make_all_slabs(pool, &slabs, why, why_size);
	return error ? error : host_hold(pool, &slabs, why, why_size);
}

/* True if `fd` is a slab that make_slab() could have made for this pool. */
static bool is_slab(const struct kvt_pool *pool, int fd, uint64_t *ret_bytes)
{
	uint64_t need = pool->n_pages * pool->page_bytes;
	struct stat there;
	int seals = fcntl(fd, F_GET_SEALS);

	if (seals < 0 || !(seals & F_SEAL_SHRINK) || fstat(fd, &there) != 0 ||
	    (uint64_t)there.st_size != round_up(need, (uint64_t)there.st_blksize))
		return false;
	*ret_bytes = (uint64_t)there.st_size;
	return true;
}

static int host_adopt(struct kvt_pool *pool, const int *fds, uint32_t n_fds, char *why,
		      size_t why_size)
{
	struct host_state slabs = { .n_slabs = n_fds };
	bool good = n_fds == pool->n_slabs;
	uint64_t first = 0;

	KVT_ASSERT(n_fds <= KVT_MAX_SLABS);
	for (uint32_t i = 0; i < n_fds; i++) {
		slabs.fds[i] = fds[i];
		good = good && is_slab(pool, fds[i], &slabs.bytes);
		first = i ? first : slabs.bytes;
		good = good && slabs.bytes == first; /* huge pages for all or for none */
	}
	if (good)
		return host_hold(pool, &slabs, why, why_size);
	snprintf(why, why_size, "the stored pool has %u slabs where %u are needed, or "
		 "another size than the %llu bytes of each", n_fds, pool->n_slabs,
		 (unsigned long long)(pool->n_pages * pool->page_bytes));
	drop_slabs(&slabs);
	return -ESTALE;
}

static int host_free_bytes(struct kvt_pool *pool, uint64_t *ret_bytes, char *why,
			   size_t why_size)
{
	uint64_t bytes = kvt_memory_free_bytes();

	if (bytes == UINT64_MAX) {
		snprintf(why, why_size, "cannot tell how much memory is free: give pool_bytes in "
			 "bytes, or n_pages");
		return -ENODATA;
	}
	*ret_bytes = bytes / pool->n_slabs;
	return 0;
}

static int host_export(struct kvt_pool *pool, struct kvt_pool_export *ret_export)
{
	const struct host_state *state = pool->state;

	KVT_ASSERT(state && state->n_slabs == pool->n_slabs);
	*ret_export = (struct kvt_pool_export){ .n_fds = state->n_slabs };
	for (uint32_t i = 0; i < state->n_slabs; i++) {
		ret_export->fds[i] = state->fds[i];
		ret_export->slabs[i].device = -1;
	}
	return 0;
}

/* Only processes write host memory, so after their exit no writer is left. */
static bool host_quiesce(struct kvt_pool *pool, const struct kvt_pool_writer *writer,
			 uint64_t now_ns, uint64_t *ret_again_ns, char *why, size_t why_size)
{
	(void)pool;
	(void)writer;
	(void)now_ns;
	(void)ret_again_ns;
	(void)why;
	(void)why_size;
	return true;
}

static void host_destroy(struct kvt_pool *pool)
{
	struct host_state *state = pool->state;

	if (!state)
		return;
	drop_slabs(state);
	free(state);
	pool->state = NULL;
}

const struct kvt_pool_backend_ops kvt_pool_host_ops = {
	.name = "host",
	.backend = KVT_POOL_HOST,
	.free_bytes = host_free_bytes,
	.check = host_check,
	.create = host_create,
	.adopt = host_adopt,
	.export = host_export,
	.quiesce = host_quiesce,
	.destroy = host_destroy,
};
