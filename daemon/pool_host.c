/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/pool.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/config.h"

/* One memfd. The daemon maps it only to lock it: pages appear when a client first writes them. */
struct host_state {
	int fd;
	void *locked; /* NULL: not locked */
	uint64_t bytes;
};

static uint64_t huge_page_bytes(void)
{
	char line[128];
	uint64_t kib = 0;
	FILE *file = fopen("/proc/meminfo", "re");

	if (!file)
		return 0;
	while (fgets(line, sizeof(line), file))
		if (sscanf(line, "Hugepagesize: %lu kB", &kib) == 1)
			break;
	fclose(file);
	return kib * 1024;
}

static uint64_t round_up(uint64_t bytes, uint64_t unit)
{
	return (bytes + unit - 1) / unit * unit;
}

/* A sealed memfd of at least the pool's size, or a negative errno. Huge pages are allocated here
 * and now, because a missing one would kill whoever touches it first. */
static int make_slab(struct kvt_pool *pool, bool huge, uint64_t *ret_bytes)
{
	const int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
	uint64_t unit = huge ? huge_page_bytes() : (uint64_t)sysconf(_SC_PAGESIZE);
	uint64_t bytes;
	int fd, error;

	if (!unit)
		return -ENOTSUP;
	bytes = round_up(pool->n_pages * pool->page_bytes, unit);
	fd = memfd_create("kvtrunk-pool",
			  MFD_CLOEXEC | MFD_ALLOW_SEALING | (huge ? MFD_HUGETLB : 0u));
	if (fd < 0)
		return -errno;
	if (ftruncate(fd, (off_t)bytes) != 0 || (huge && fallocate(fd, 0, 0, (off_t)bytes) != 0) ||
	    fcntl(fd, F_ADD_SEALS, seals) != 0) {
		error = -errno;
		close(fd);
		return error;
	}
	*ret_bytes = bytes;
	return fd;
}

static int lock_slab(struct host_state *state, char *why, size_t why_size)
{
	struct rlimit limit = { 0 };
	void *base = mmap(NULL, state->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, state->fd, 0);
	int error;

	if (base == MAP_FAILED) {
		error = -errno;
		snprintf(why, why_size, "cannot map the pool of %llu bytes to lock it: %s",
			 (unsigned long long)state->bytes, strerror(-error));
		return error;
	}
	if (mlock(base, state->bytes) != 0) {
		error = -errno;
		getrlimit(RLIMIT_MEMLOCK, &limit);
		munmap(base, state->bytes);
		snprintf(why, why_size, "cannot lock the pool of %llu bytes: %s; RLIMIT_MEMLOCK is "
			 "%llu: raise it (ulimit -l, LimitMEMLOCK=) or set mlock = no",
			 (unsigned long long)state->bytes, strerror(-error),
			 (unsigned long long)limit.rlim_cur);
		return error;
	}
	state->locked = base;
	return 0;
}

static int host_too_large(const struct kvt_pool *pool, char *why, size_t why_size)
{
	uint64_t want = pool->n_pages * pool->page_bytes, limit = kvt_memory_limit_bytes();

	if (want <= limit)
		return 0;
	snprintf(why, why_size, "a pool of %u pages of %llu bytes needs %llu bytes, more than the "
		 "%llu bytes this process can have: lower n_pages, pool_bytes or page_bytes, or "
		 "raise the memory limit", pool->n_pages, (unsigned long long)pool->page_bytes,
		 (unsigned long long)want, (unsigned long long)limit);
	return -ENOMEM;
}

/* The pool is this memfd from now on; closed on failure. */
static int host_hold(struct kvt_pool *pool, int fd, uint64_t bytes, char *why, size_t why_size)
{
	struct host_state *state = calloc(1, sizeof(*state));
	int error;

	if (!state) {
		close(fd);
		snprintf(why, why_size, "out of memory");
		return -ENOMEM;
	}
	*state = (struct host_state){ .fd = fd, .bytes = bytes };
	error = pool->mlock ? lock_slab(state, why, why_size) : 0;
	if (error) {
		close(fd);
		free(state);
		return error;
	}
	pool->bytes = bytes;
	pool->n_slabs = 1;
	pool->state = state;
	return 0;
}

static int host_create(struct kvt_pool *pool, char *why, size_t why_size)
{
	int fd = -ENOTSUP, error = host_too_large(pool, why, why_size);
	uint64_t bytes = 0;

	if (error)
		return error;
	if (pool->hugepages != KVT_HUGEPAGES_NO) {
		fd = make_slab(pool, true, &bytes);
		if (fd < 0)
			snprintf(pool->note, sizeof(pool->note), "no huge pages for %llu bytes "
				 "(%s): reserve them with vm.nr_hugepages, or set hugepages = no",
				 (unsigned long long)(pool->n_pages * pool->page_bytes),
				 strerror(-fd));
		if (fd < 0 && pool->hugepages == KVT_HUGEPAGES_REQUIRE) {
			snprintf(why, why_size, "%s", pool->note);
			return fd;
		}
	}
	if (fd < 0)
		fd = make_slab(pool, false, &bytes);
	if (fd < 0) {
		snprintf(why, why_size, "cannot make the pool: %s", strerror(-fd));
		return fd;
	}
	return host_hold(pool, fd, bytes, why, why_size);
}

static int host_adopt(struct kvt_pool *pool, const int *fds, uint32_t n_fds, char *why,
		      size_t why_size)
{
	uint64_t need = pool->n_pages * pool->page_bytes;
	struct stat there;
	int seals = n_fds == 1 ? fcntl(fds[0], F_GET_SEALS) : -1;

	if (seals >= 0 && seals & F_SEAL_SHRINK && fstat(fds[0], &there) == 0 &&
	    (uint64_t)there.st_size == round_up(need, (uint64_t)there.st_blksize))
		return host_hold(pool, fds[0], (uint64_t)there.st_size, why, why_size);
	snprintf(why, why_size, "the pool that was left has %u slabs or another size than the %llu "
		 "bytes that are needed", n_fds, (unsigned long long)need);
	for (uint32_t i = 0; i < n_fds; i++)
		close(fds[i]);
	return -ESTALE;
}

static int host_export(struct kvt_pool *pool, struct kvt_pool_export *ret_export)
{
	const struct host_state *state = pool->state;

	*ret_export = (struct kvt_pool_export){ .n_fds = 1, .fds = { state->fd } };
	ret_export->slabs[0].device = -1;
	return 0;
}

/* Host memory is written by processes only: when they are gone, so are their stores. */
static bool host_quiesce(struct kvt_pool *pool, const struct kvt_pool_writer *writer,
			 uint64_t now_ns, uint64_t *ret_again_ns)
{
	(void)pool;
	(void)writer;
	(void)now_ns;
	(void)ret_again_ns;
	return true;
}

static void host_destroy(struct kvt_pool *pool)
{
	struct host_state *state = pool->state;

	if (!state)
		return;
	if (state->locked)
		munmap(state->locked, state->bytes);
	close(state->fd);
	free(state);
	pool->state = NULL;
}

const struct kvt_pool_backend_ops kvt_pool_host_ops = {
	.name = "host",
	.backend = KVT_POOL_HOST,
	.create = host_create,
	.adopt = host_adopt,
	.export = host_export,
	.quiesce = host_quiesce,
	.destroy = host_destroy,
};
