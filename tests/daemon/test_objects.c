/* SPDX-License-Identifier: Apache-2.0 */
/* Lock files, shared memory objects and the host pool: which daemon lives, what a dead one left,
 * which side may write. Every test leaves /dev/shm and its folder empty.
 *
 * Inputs: files and objects of dead, live and foreign daemons. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon/setup/config.h"
#include "daemon/setup/object.h"
#include "daemon/setup/pool.h"
#include "daemon/setup/pool_backend.h"
#include "tests/lib/cases.h"

static char directory[64];
static char why[512];

static int make_directory(void **state)
{
	snprintf(directory, sizeof(directory), "/tmp/kvt-objects-XXXXXX");
	return mkdtemp(directory) ? 0 : -1;
}

static int remove_directory(void **state)
{
	return rmdir(directory); /* fails if a test left something */
}

TEST(the_second_to_ask_for_a_lock_is_told_the_pid_of_the_first)
{
	struct kvt_lock_file first, second;
	char pid[32];
	int stale = 7;

	assert_int_equal(kvt_lock_take(&first, directory, "a", &stale, why, sizeof(why)), 0);
	assert_int_equal(stale, 0);
	assert_int_equal(kvt_lock_take(&second, directory, "a", &stale, why, sizeof(why)),
			 -EADDRINUSE);
	snprintf(pid, sizeof(pid), "pid %d ", (int)getpid());
	assert_non_null(strstr(why, pid));
	assert_int_equal(second.holder, getpid());
	assert_true(kvt_lock_held(directory, "a"));
	assert_false(kvt_lock_held(directory, "b"));
	kvt_lock_release(&second);
	assert_int_equal(kvt_lock_take(&second, directory, "b", &stale, why, sizeof(why)), 0);
	kvt_lock_release(&second);
	kvt_lock_release(&first);
	assert_int_equal(kvt_lock_take(&first, directory, "a", &stale, why, sizeof(why)), 0);
	assert_int_equal(stale, 0);
	kvt_lock_release(&first);
}

TEST(a_dead_process_lock_is_taken_over)
{
	struct kvt_lock_file lock;
	int stale = 0, status;
	pid_t child = fork();

	if (child == 0)
		_exit(kvt_lock_take(&lock, directory, "dead", &stale, why, sizeof(why)) ? 1 : 0);
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
	assert_false(kvt_lock_held(directory, "dead"));
	assert_int_equal(kvt_lock_take(&lock, directory, "dead", &stale, why, sizeof(why)), 0);
	assert_int_equal(stale, 1);
	kvt_lock_release(&lock);
}

TEST(the_lock_can_be_opened_by_its_user_only)
{
	struct kvt_lock_file lock, other;
	struct stat there;
	int stale, status;
	pid_t child;

	if (getuid() != 0)
		kvt_skip("needs root");
	assert_int_equal(chmod(directory, 0777), 0);
	assert_int_equal(kvt_lock_take(&lock, directory, "mine", &stale, why, sizeof(why)), 0);
	assert_int_equal(stat(lock.path, &there), 0);
	assert_int_equal(there.st_mode & 07777, 0600);
	child = fork();
	if (child == 0) {
		if (setuid(65534) != 0 || open(lock.path, O_RDONLY) >= 0 ||
		    kvt_lock_take(&other, directory, "mine", &stale, why, sizeof(why)) !=
			    -EACCES || !strstr(why, "is of uid 0"))
			_exit(1);
		/* It stays, as after a crash. */
		_exit(kvt_lock_take(&other, directory, "its", &stale, why, sizeof(why)) ? 2 : 0);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
	assert_int_equal(kvt_lock_take(&other, directory, "its", &stale, why, sizeof(why)),
			 -EACCES);
	assert_non_null(strstr(why, "is of uid 65534"));
	kvt_lock_release(&lock);
	assert_int_equal(unlink(other.path), 0);
	assert_int_equal(rmdir(other.private), 0);
}

TEST(a_private_directory_that_is_not_private_is_made_so)
{
	struct kvt_lock_file lock;
	char private[128];
	struct stat there;
	int stale;

	snprintf(private, sizeof(private), "%s/open.lock.d", directory);
	assert_int_equal(mkdir(private, 0755), 0);
	assert_int_equal(kvt_lock_take(&lock, directory, "open", &stale, why, sizeof(why)), 0);
	assert_int_equal(stat(private, &there), 0);
	assert_int_equal(there.st_mode & 07777, 0700);
	kvt_lock_release(&lock);
	assert_int_equal(stat(private, &there), -1);
}

TEST(a_killed_process_is_ending_until_it_has_ended_and_after)
{
	pid_t child = fork();

	if (child == 0)
		for (;;)
			pause();
	assert_false(kvt_process_ending(child));
	assert_false(kvt_process_ending(0));
	kill(child, SIGKILL);
	assert_true(kvt_process_ending(child)); /* at any point */
	assert_int_equal(waitid(P_PID, (id_t)child, NULL, WEXITED | WNOWAIT), 0);
	assert_true(kvt_process_ending(child));
	assert_int_equal(waitpid(child, NULL, 0), child);
	assert_true(kvt_process_ending(child));
}

TEST(a_directory_that_the_lock_made_goes_with_it)
{
	struct kvt_lock_file lock;
	char deeper[128];
	struct stat there;
	int stale;

	snprintf(deeper, sizeof(deeper), "%s/made", directory);
	assert_int_equal(kvt_lock_take(&lock, deeper, "x", &stale, why, sizeof(why)), 0);
	assert_int_equal(stat(deeper, &there), 0);
	kvt_lock_release(&lock);
	assert_int_equal(stat(deeper, &there), -1);
}

TEST(leftovers_are_removed_by_prefix_and_others_stay)
{
	struct kvt_object a, b, other;
	char prefix[KVT_OBJECT_NAME_BYTES], foreign[KVT_OBJECT_NAME_BYTES];
	int fd;

	kvt_object_prefix(prefix, directory, "one");
	kvt_object_prefix(foreign, directory, "one-more");
	assert_int_equal(kvt_object_create(&a, prefix, "arena", 8192, why, sizeof(why)), 0);
	assert_int_equal(kvt_object_create(&b, prefix, "arena", 8192, why, sizeof(why)), 0);
	assert_int_equal(kvt_object_create(&other, foreign, "arena", 8192, why, sizeof(why)), 0);
	assert_int_equal(kvt_object_clean(prefix), 2);
	assert_int_equal(kvt_object_clean(prefix), 0);
	fd = shm_open(other.name, O_RDONLY, 0);
	assert_true(fd >= 0);
	close(fd);
	kvt_object_destroy(&a);
	kvt_object_destroy(&b);
	kvt_object_destroy(&other);
	assert_int_equal(kvt_object_clean(foreign), 0);
}

TEST(what_a_dead_process_left_is_an_orphan_and_a_live_one_s_is_not)
{
	struct kvt_object mine, its;
	char prefix[KVT_OBJECT_NAME_BYTES], other[KVT_OBJECT_NAME_BYTES];
	int status, fd;
	pid_t child;

	kvt_object_prefix(prefix, directory, "orphan");
	snprintf(other, sizeof(other), "%.90sx.", prefix);
	assert_int_equal(kvt_object_create(&mine, prefix, "arena", 8192, why, sizeof(why)), 0);
	child = fork();
	if (child == 0)
		_exit(kvt_object_create(&its, other, "arena", 8192, why, sizeof(why)) ? 1 : 0);
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
	assert_int_equal(kvt_object_clean_orphans(prefix, 3600), 0);
	assert_int_equal(kvt_object_clean_orphans(prefix, 0), 1);
	fd = shm_open(mine.name, O_RDONLY, 0);
	assert_true(fd >= 0);
	close(fd);
	kvt_object_destroy(&mine);
}

TEST(what_is_larger_than_the_file_system_is_refused_with_the_cure)
{
	struct kvt_object object;
	char prefix[KVT_OBJECT_NAME_BYTES];
	int error;

	kvt_object_prefix(prefix, directory, "large");
	error = kvt_object_create(&object, prefix, "arena", 1ull << 50, why, sizeof(why));
	assert_true(error < 0);
	assert_non_null(strstr(why, "/dev/shm"));
	assert_int_equal(kvt_object_clean(prefix), 0);
}

TEST(room_counts_what_comes_before_and_what_is_given_back)
{
	struct statvfs there;
	uint64_t total;

	assert_int_equal(statvfs("/dev/shm", &there), 0);
	total = (uint64_t)there.f_blocks * there.f_frsize;
	assert_int_equal(kvt_object_room(1, 0, why, sizeof(why)), 0);
	assert_int_equal(kvt_object_room(total + 1, 0, why, sizeof(why)), -ENOSPC);
	assert_non_null(strstr(why, "the arena needs"));
	assert_int_equal(kvt_object_room(total + 1, total + 1, why, sizeof(why)), 0);
}

TEST(a_readonly_descriptor_can_neither_write_nor_resize)
{
	struct kvt_object object;
	char prefix[KVT_OBJECT_NAME_BYTES];
	struct stat there;
	int fd;

	kvt_object_prefix(prefix, directory, "readonly");
	assert_int_equal(kvt_object_create(&object, prefix, "arena", 8192, why, sizeof(why)), 0);
	fd = kvt_object_open_readonly(&object);
	assert_true(fd >= 0);
	assert_int_equal(fstat(fd, &there), 0);
	assert_int_equal(there.st_mode & 0777, 0400);
	assert_int_equal(write(fd, "x", 1), -1);
	assert_int_equal(ftruncate(fd, 0), -1);
	assert_ptr_equal(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED);
	*(volatile char *)object.base = 1; /* the daemon's own is still writable */
	close(fd);
	kvt_object_destroy(&object);
}

TEST(a_sealed_object_keeps_its_size_and_its_seals)
{
	struct kvt_object object;

	assert_int_equal(kvt_object_create_sealed(&object, "test", 8192), 0);
	assert_int_equal(fcntl(object.fd, F_GET_SEALS),
			 F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
	assert_int_equal(ftruncate(object.fd, 4096), -1);
	assert_int_equal(ftruncate(object.fd, 16384), -1);
	assert_int_equal(fcntl(object.fd, F_ADD_SEALS, F_SEAL_WRITE), -1);
	kvt_object_destroy(&object);
}

TEST(a_host_pool_is_sealed_and_says_how_it_was_made)
{
	struct kvt_pool pool = { .n_slabs = 3, .page_bytes = 4096, .n_pages = 16,
				 .hugepages = KVT_HUGEPAGES_AUTO };
	struct kvt_pool_export export;
	uint64_t again;

	pool.ops = kvt_pool_backend_find(KVT_POOL_HOST);
	assert_non_null(pool.ops);
	assert_int_equal(pool.ops->create(&pool, why, sizeof(why)), 0);
	assert_true(pool.bytes >= 16 * 4096);
	assert_int_equal(pool.ops->export(&pool, &export), 0);
	assert_int_equal(export.n_fds, 3);
	for (int i = 0; i < 3; i++) {
		char mark = (char)('a' + i), back;

		assert_int_equal(fcntl(export.fds[i], F_GET_SEALS),
				 F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
		assert_int_equal(export.slabs[i].device, -1);
		assert_int_equal(pwrite(export.fds[i], &mark, 1, 0), 1);
		assert_int_equal(pread(export.fds[0], &back, 1, 0), 1);
		assert_int_equal(back, 'a'); /* each is separate memory */
	}
	assert_true(pool.ops->quiesce(&pool, &(struct kvt_pool_writer){ 0 }, 0, &again, why,
				      sizeof(why)));
	pool.ops->destroy(&pool);
}

TEST(a_pool_larger_than_memory_is_refused_with_the_numbers)
{
	struct kvt_pool pool = { .n_slabs = 1, .page_bytes = 1ull << 40, .n_pages = 1024,
				 .hugepages = KVT_HUGEPAGES_NO };

	pool.ops = kvt_pool_backend_find(KVT_POOL_HOST);
	assert_int_equal(pool.ops->create(&pool, why, sizeof(why)), -ENOMEM);
	assert_non_null(strstr(why, "1125899906842624"));
	assert_non_null(strstr(why, "n_pages"));
}

TEST_GROUP(make_directory, remove_directory)
