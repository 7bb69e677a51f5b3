/* SPDX-License-Identifier: Apache-2.0 */
/* A store with a file, beside a real daemon.
 *
 * Inputs: prompts whose pages have content that depends on all their keys, more than the store's
 * memory holds; what crashes, disks and users do to the file. Invariants: a page that comes back
 * has its bytes; whatever happened to the file, each prompt is served and the audit is clean. */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "store/file.h"
#include "tests/lib/spawn.h"
#include "tests/lib/cases.h"
#include "tests/lib/direct_io.h"
#include "tests/store/proc/store.h"

#define PAGE 16u
#define N 1024u /* positions of a prompt */
#define PAGES (N / PAGE)
#define PROMPTS 8u
#define RAM "512K" /* 128 pages, of which 16 are for writes */
#define SLOT_BYTES (2 * KVT_FILE_BLOCK)
#define EXT4_IOC_SHUTDOWN _IOR('X', 125, uint32_t)

static struct kvt_test_side own;
static uint32_t keys[PROMPTS][N];
static char directory[TEST_FOLDER_BYTES], path[96];

static const char *budget; /* bytes a second; NULL: none */

static void spawn_store(const char *file_bytes)
{
	const char *more[] = { "--file", path, "--file-bytes", file_bytes,
			       budget ? "--file-write-bytes" : NULL, budget, NULL };

	kvt_test_store_spawn(&own.store, &own.daemon, RAM, more);
}

static void start_store(const char *file_bytes)
{
	spawn_store(file_bytes);
	kvt_test_check(kvt_test_store_await(&own.store, "serving"));
	kvt_test_peer_open(&own.peer, &own.store);
	kvt_test_side_connect(&own); /* a client of before looks for a store once a second */
}

static void end_worker(void)
{
	kvt_client_close(own.worker, KVT_IDLE);
	own.worker = NULL;
}

static void end_store(bool orderly)
{
	kvt_test_peer_close(&own.peer);
	if (orderly)
		kvt_test_equal(kvt_test_store_stop(&own.store), 0);
	else
		kvt_test_store_kill(&own.store);
	end_worker();
}

static void make_directory(void)
{
	make_folder_on_disk(directory);
	snprintf(path, sizeof(path), "%s/pages", directory);
}

static int start_with(const char *more, const char *file_bytes)
{
	need_direct_io(directory, path);
	kvt_test_daemon_begin(&own.daemon, more);
	start_store(file_bytes);
	for (uint32_t i = 0; i < PROMPTS; i++)
		kvt_test_keys(keys[i], N, 100 + i);
	return 0;
}

static int start(void **state)
{
	make_directory();
	return start_with(NULL, "16M");
}

static int start_without_budget(void **state)
{
	budget = "1";
	return start(state);
}

static int stop(void **state)
{
	budget = NULL;
	kvt_test_side_end(&own);
	remove_folder_on_disk(directory, path);
	return 0;
}

/* The file is on a file system of its own, which this process and its children see. */
static int start_on_a_disk(void **state)
{
	char command[256];

	if (unshare(CLONE_NEWNS) != 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0)
		kvt_skip("only root can mount a disk that fails");
	make_directory();
	snprintf(command, sizeof(command), "d=%s; truncate -s 64M $d.disk && mkfs.ext4 -q $d.disk "
		 "&& mount -o loop $d.disk $d; s=$?; rm -f $d.disk; exit $s", directory);
	if (system(command) != 0) {
		rmdir(directory);
		kvt_skip("ext4 cannot be mounted on a loop device here");
	}
	return start_with(NULL, "16M");
}

static int stop_on_a_disk(void **state)
{
	int rc = stop(state);

	umount2(directory, MNT_DETACH);
	rmdir(directory);
	return rc;
}

/* Ask until nothing waits, and memory and file have as many pages. */
static struct kvt_store_status settled(uint64_t pages)
{
	int64_t began_ns = kvt_now_ns();
	struct kvt_store_status status;

	do {
		status = kvt_test_store_status(&own.peer);
		if (status.queued_pages == 0 && status.open_loads == 0 &&
		    status.pages + status.file_pages >= pages)
			return status;
	} while (kvt_now_ns() - began_ns < KVT_TEST_PATIENCE_NS);
	kvt_test_fail("%llu and %llu pages, %llu wait, %llu loads",
		      (unsigned long long)status.pages, (unsigned long long)status.file_pages,
		      (unsigned long long)status.queued_pages,
		      (unsigned long long)status.open_loads);
}

static uint32_t serve(const uint32_t *prompt)
{
	return kvt_test_side_serve(&own, prompt, N);
}

/* Serve prompts for the first time, let an empty store copy them, and evict them. Its memory has
 * room for two: the older one, which leaves next, is to be written before it must. */
static void keep(uint32_t n)
{
	struct kvt_store_status before;

	kvt_test_store_drop(&own.peer);
	/* What is being written keeps its place in memory until then. */
	do
		before = settled(0);
	while (before.file_writing_pages);
	for (uint32_t i = 0; i < n; i++) {
		kvt_test_equal(serve(keys[i]), 0);
		while (settled(0).file_written_pages < before.file_written_pages + i * PAGES)
			;
	}
	kvt_test_equal(settled(0).file_dropped_pages, before.file_dropped_pages);
	kvt_test_side_evict(&own);
}

/* Serve prompts again, with all that there is. Returns the pages that were not computed. */
static uint32_t serve_again(uint32_t first, uint32_t n)
{
	uint32_t reused = 0;

	for (uint32_t i = first; i < first + n; i++)
		reused += serve(keys[i]) / PAGE;
	return reused;
}

TEST_WITH(what_left_the_memory_is_loaded_from_the_file, start, stop)
{
	struct kvt_store_status status;

	keep(PROMPTS);
	status = kvt_test_store_status(&own.peer);
	kvt_test_check(status.pages <= 128);
	kvt_test_check(status.file_pages >= (PROMPTS - 2) * PAGES);
	/* All but the last page of each is reused. The last prompt, which is not written yet,
	 * leaves for these loads: as much of it is written as the disk is quick. */
	kvt_test_equal(serve_again(0, PROMPTS - 1), (PROMPTS - 1) * (PAGES - 1));
	serve_again(PROMPTS - 1, 1);
	status = settled(0);
	kvt_test_check(status.file_read_pages >= (PROMPTS - 2) * PAGES);
	kvt_test_equal(status.file_bad_pages, 0);
	kvt_test_equal(status.cut_loads, 0);
	kvt_test_check(status.loads >= PROMPTS - 1);
}

/* Compute one-off prompts, so many at a time: a page of each in turns, half of them decoded. */
static void compute_in_turns(uint32_t first, uint32_t n)
{
	uint32_t prompts[8][N];
	struct kvt_seq *seqs[8];

	for (uint32_t i = 0; i < n; i++) {
		kvt_test_keys(prompts[i], N, 5000 + first + i);
		kvt_test_equal(kvt_seq_begin(own.worker, own.space, prompts[i], N / 2, N / 2, 0,
					     &seqs[i]), 0);
	}
	for (uint32_t at = PAGE; at <= N; at += PAGE)
		for (uint32_t i = 0; i < n; i++)
			kvt_test_equal(kvt_seq_commit(seqs[i], at, prompts[i] + at - PAGE,
						      at > N / 2 ? PAGE : 0, KVT_IDLE, 0), 0);
	for (uint32_t i = 0; i < n; i++)
		kvt_test_equal(kvt_seq_end(seqs[i], 0, NULL, 0, KVT_IDLE, 0), 0);
}

/* Their pages leave the memory for those of the next ones. None counts as used, but for what the
 * memory of names takes for others: one of 100. */
TEST_WITH(prompts_that_come_once_have_not_come_back, start_without_budget, stop)
{
	struct kvt_store_status status;
	uint64_t used;

	for (uint32_t n = 2; n <= 8; n += 6) {
		for (uint32_t first = 0; first < 32; first += n) {
			compute_in_turns(n * 100 + first, n);
			settled(0); /* all are copied before they are evicted */
		}
	}
	status = settled(0);
	kvt_test_check(status.copied_pages > 8 * status.room_pages);
	kvt_test_check(status.file_budget_dropped_pages > 7 * status.room_pages);
	kvt_test_equal(status.file_written_pages + status.file_dropped_pages, 0);
	used = status.file_budget_used_pages;
	kvt_test_check(used <= status.file_budget_dropped_pages / 50);
	/* A prompt that others continue has. */
	for (uint32_t i = 0; i < 2; i++) {
		serve(keys[0]);
		settled(0);
		kvt_test_side_evict(&own);
	}
	compute_in_turns(2000, 8);
	kvt_test_check(settled(0).file_budget_used_pages >= used + PAGES);
}

TEST_WITH(a_store_that_was_restarted_has_all_it_had, start, stop)
{
	keep(PROMPTS);
	for (uint32_t turn = 0; turn < 2; turn++) {
		end_store(true);
		start_store("16M");
		kvt_test_equal(kvt_test_store_status(&own.peer).file_pages, PROMPTS * PAGES);
		kvt_test_equal(serve_again(0, PROMPTS), PROMPTS * (PAGES - 1));
		kvt_test_equal(settled(0).file_bad_pages, 0);
		kvt_test_side_evict(&own);
	}
}

TEST_WITH(a_store_whose_terminal_is_closed_writes_what_it_has, start, stop)
{
	keep(1);
	kvt_test_peer_close(&own.peer);
	kvt_test_equal(kill(own.store.pid, SIGHUP), 0);
	kvt_test_equal(kvt_test_store_wait(&own.store), 0);
	end_worker();
	start_store("16M");
	kvt_test_equal(kvt_test_store_status(&own.peer).file_pages, PAGES);
}

TEST_WITH(a_machine_that_was_restarted_has_all_it_had, start, stop)
{
	keep(PROMPTS);
	end_store(true);
	kvt_test_daemon_stop(&own.daemon);
	kvt_test_daemon_start(&own.daemon, NULL);
	start_store("16M");
	kvt_test_equal(serve_again(0, PROMPTS), PROMPTS * (PAGES - 1));
}

TEST_WITH(a_store_killed_while_it_wrote_brings_no_wrong_page, start, stop)
{
	uint64_t read = 0;

	for (uint32_t turn = 0; turn < 4; turn++) {
		for (uint32_t i = 0; i < PROMPTS; i++) {
			kvt_test_keys(keys[i], N, 1000 + turn * PROMPTS + i);
			serve(keys[i]);
			if (i >= 2 + turn && settled(0).file_written_pages >= 40)
				break;
		}
		while (kvt_test_store_status(&own.peer).file_written_pages < 40)
			;
		end_store(false);
		start_store("16M");
		kvt_test_side_evict(&own);
		kvt_test_check(kvt_test_store_status(&own.peer).file_pages >= 40);
		serve_again(0, PROMPTS); /* checks the bytes of all */
		read += settled(0).file_read_pages;
		kvt_test_side_evict(&own);
	}
	kvt_test_check(read > 0);
}

TEST_WITH(what_is_dropped_is_not_in_the_file_either, start, stop)
{
	keep(PROMPTS);
	kvt_test_store_drop(&own.peer);
	kvt_test_equal(kvt_test_store_status(&own.peer).file_pages, 0);
	kvt_test_equal(serve_again(0, 1), 0);
	while (kvt_test_store_status(&own.peer).pages < PAGES)
		;
	end_store(true);
	start_store("16M");
	kvt_test_side_evict(&own);
	kvt_test_equal(kvt_test_store_status(&own.peer).file_pages, PAGES);
	kvt_test_equal(serve_again(0, 2), PAGES - 1);
}

TEST_WITH(a_reset_while_no_store_runs_reaches_the_file, start, stop)
{
	for (uint32_t orderly = 0; orderly < 2; orderly++) {
		for (uint32_t i = 0; i < PROMPTS; i++)
			kvt_test_keys(keys[i], N, 1000 + orderly * PROMPTS + i);
		keep(PROMPTS);
		end_store(orderly);
		kvt_test_side_connect(&own);
		kvt_test_equal(kvt_reset(own.worker), 0);
		end_worker();
		start_store("16M");
		kvt_test_equal(kvt_test_store_status(&own.peer).file_pages, 0);
		kvt_test_equal(serve_again(0, PROMPTS), 0);
	}
	kvt_test_side_evict(&own);
	keep(PROMPTS);
	end_store(true);
	start_store("16M"); /* after that reset */
	kvt_test_equal(kvt_test_store_status(&own.peer).file_pages, PROMPTS * PAGES);
}

TEST_WITH(kvtctl_tells_what_is_in_the_file, start, stop)
{
	char command[900];

	keep(PROMPTS);
	snprintf(command, sizeof(command), "'%s/kvtctl' --socket '%s' store status | grep -q "
		 "'^  [1-9][0-9]* of [1-9][0-9]* pages .* written, 0 not in time, 0 read, 0 dam'",
		 kvt_test_build(), own.daemon.socket);
	kvt_test_equal(system(command), 0);
}

/* Change a byte of each block behind the store's back, but for the head. */
static void flip_all(uint64_t at)
{
	int fd = open(path, O_RDWR);
	struct stat there;
	uint8_t byte;

	kvt_test_equal(fstat(fd, &there), 0);
	for (at += KVT_FILE_BLOCK; at < (uint64_t)there.st_size; at += KVT_FILE_BLOCK) {
		kvt_test_equal(pread(fd, &byte, 1, (off_t)at), 1);
		byte ^= 4;
		kvt_test_equal(pwrite(fd, &byte, 1, (off_t)at), 1);
	}
	close(fd);
}

TEST_WITH(a_page_whose_bits_flipped_is_computed, start, stop)
{
	struct kvt_store_status status;

	keep(PROMPTS);
	end_store(true);
	flip_all(700);
	start_store("16M");
	kvt_test_equal(serve_again(0, 2), 0);
	status = settled(0);
	kvt_test_equal(status.file_read_pages, 0);
	kvt_test_check(status.file_bad_pages >= 2);
	kvt_test_equal(kvt_test_store_times(&status.file_read_time), status.file_bad_pages);
	kvt_test_equal(status.file_bad_slots, 0);
	kvt_test_equal(status.cut_loads, 2);
	kvt_test_side_evict(&own);
	kvt_test_equal(serve_again(1, 1), PAGES - 1); /* its pages are in memory again */
}

TEST_WITH(a_file_truncated_while_it_is_used_costs_what_was_in_it, start, stop)
{
	keep(PROMPTS);
	kvt_test_equal(truncate(path, KVT_FILE_BLOCK + 100 * SLOT_BYTES), 0);
	serve_again(0, PROMPTS); /* checks the bytes of all */
	kvt_test_check(settled(0).file_bad_pages > 0);
	kvt_test_equal(kvt_test_store_status(&own.peer).file_bad_slots, 0);
	end_store(true);
	start_store("16M");
	kvt_test_side_evict(&own);
	serve_again(0, PROMPTS);
}

TEST_WITH(a_full_file_keeps_what_was_written_last, start, stop)
{
	struct kvt_store_status status;

	end_store(true);
	unlink(path);
	start_store("2M"); /* 254 pages */
	keep(PROMPTS);
	status = kvt_test_store_status(&own.peer);
	kvt_test_check(status.file_room_pages < 4 * PAGES);
	kvt_test_equal(status.file_pages, status.file_room_pages);
	/* The last prompt leaves the memory for these. It takes the places of the oldest one, of
	 * which there are 62, and two of the next: of that the beginning is gone. */
	kvt_test_check(serve_again(PROMPTS - 3, 2) >= 2 * (PAGES - 1));
}

/* From now on each read and write of the disk ends with EIO. */
static void fail_disk(void)
{
	uint32_t without_its_log = 2;
	int fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	kvt_test_equal(ioctl(fd, EXT4_IOC_SHUTDOWN, &without_its_log), 0);
	close(fd);
}

/* Check that the store tells of the failure once, and that the memory is used as ever. */
static void must_do_without(void)
{
	kvt_test_check(kvt_test_store_await(&own.store, "Input/output error"));
	kvt_test_check(settled(0).file_bad_slots > 0);
	kvt_test_side_evict(&own);
	for (uint32_t i = 0; i < PROMPTS; i++)
		serve_again(i, 1); /* checks the bytes */
	settled(PAGES);
	kvt_test_side_evict(&own);
	kvt_test_equal(serve_again(PROMPTS - 1, 1), PAGES - 1);
	kvt_test_equal(kill(own.store.pid, SIGTERM), 0);
	kvt_test_check(!kvt_test_store_await(&own.store, "cannot"));
	kvt_test_equal(kvt_test_store_wait(&own.store), 0);
}

TEST_WITH(what_a_failed_disk_cannot_read_is_computed, start_on_a_disk, stop_on_a_disk)
{
	keep(PROMPTS);
	fail_disk();
	kvt_test_equal(serve_again(0, 1), 0);
	kvt_test_check(settled(0).file_bad_pages > 0);
	must_do_without();
}

TEST_WITH(what_a_failed_disk_cannot_write_is_computed, start_on_a_disk, stop_on_a_disk)
{
	keep(1);
	fail_disk();
	serve_again(1, PROMPTS - 1); /* more than the memory holds */
	must_do_without();
}

/* Start a store that must end with `status`, and say so. */
static void must_refuse(const char *file_bytes, int status, const char *text)
{
	struct kvt_test_store running = own.store;

	spawn_store(file_bytes);
	kvt_test_check(kvt_test_store_await(&own.store, text));
	kvt_test_equal(kvt_test_store_wait(&own.store), status);
	own.store = running;
}

TEST_WITH(a_second_store_on_the_file_is_refused_in_words, start, stop)
{
	struct kvt_test_daemon other, first = own.daemon;

	keep(2);
	kvt_test_daemon_begin(&other, NULL);
	own.daemon = other;
	must_refuse("16M", 1, "is in use by another process: each store has a file of its own");
	own.daemon = first;
	kvt_test_daemon_end(&other);
	kvt_test_equal(serve_again(0, 2), 2 * (PAGES - 1));
}

TEST_WITH(another_models_pages_are_not_found, start, stop)
{
	struct kvt_store_status status;

	keep(PROMPTS);
	end_store(true);
	kvt_test_daemon_stop(&own.daemon);
	kvt_test_daemon_configure(&own.daemon, "fingerprint = weights=other\n");
	kvt_test_daemon_start(&own.daemon, NULL);
	start_store("16M");
	kvt_test_equal(kvt_test_store_status(&own.peer).file_pages, PROMPTS * PAGES);
	kvt_test_equal(serve_again(0, 2), 0);
	status = settled(0);
	kvt_test_equal(status.hits, 0);
	kvt_test_equal(status.file_read_pages, 0);
}

TEST_WITH(pages_of_another_size_are_refused_and_kept, start, stop)
{
	end_store(true);
	kvt_test_daemon_stop(&own.daemon);
	kvt_test_daemon_configure(&own.daemon, "page_bytes = 8192\n");
	kvt_test_daemon_start(&own.daemon, NULL);
	must_refuse("16M", 3, "has pages of 4096 bytes, this pool's take 8192");
	kvt_test_equal(access(path, F_OK), 0);
}

TEST_WITH(a_disk_without_room_is_refused_in_words, start, stop)
{
	end_store(true);
	must_refuse("1000T", 1, "make --file-bytes smaller");
	start_store("16M");
}

TEST_WITH(a_host_without_io_uring_is_told_so, start, stop)
{
	char old[640], command[1600];

	end_store(true);
	snprintf(old, sizeof(old), "'%s/tests/whole/hosts/linux-5.14'", kvt_test_build());
	snprintf(command, sizeof(command), "%s true", old);
	if (system(command) != 0)
		kvt_skip("no seccomp filter can be set here");
	snprintf(command, sizeof(command), "%s '%s/kvtstored' --socket '%s' --ram-bytes 1M "
		 "--file '%s' --file-bytes 16M 2>&1 | grep -q io_uring_disabled", old,
		 kvt_test_build(), own.daemon.socket, path);
	kvt_test_equal(system(command), 0);
}

/* Run a store with a file in a child that is changed first. It ends with 1 and says `text`. */
static void must_refuse_after(bool change(void), const char *text)
{
	char command[1600];
	int status;
	pid_t pid;

	snprintf(command, sizeof(command), "timeout 60 '%s/kvtstored' --socket '%s' "
		 "--ram-bytes 1M --file '%s' --file-bytes 16M >'%s.log' 2>&1; s=$?; "
		 "grep -q '%s' '%s.log' || s=99; rm -f '%s.log'; exit $s", kvt_test_build(),
		 own.daemon.socket, path, path, text, path, path);
	fflush(NULL);
	pid = fork();
	if (pid == 0) {
		if (!change())
			_exit(77);
		execl("/bin/sh", "sh", "-c", command, (char *)NULL);
		_exit(98);
	}
	kvt_test_equal(waitpid(pid, &status, 0), pid);
	kvt_test_check(WIFEXITED(status));
	if (WEXITSTATUS(status) == 77)
		kvt_skip("no seccomp filter can be set here");
	kvt_test_equal(WEXITSTATUS(status), 1);
}

static bool forbid_enter(void)
{
	return kvt_test_forbid(SYS_io_uring_enter, EPERM);
}

TEST_WITH(a_host_that_refuses_the_use_of_io_uring_is_told_so, start, stop)
{
	keep(PROMPTS);
	end_store(true);
	must_refuse_after(forbid_enter, "a file needs io_uring, which is refused here");
}

static bool limit_files(void)
{
	const struct rlimit small = { 1 << 20, 1 << 20 };

	return setrlimit(RLIMIT_FSIZE, &small) == 0;
}

TEST_WITH(a_limit_of_file_sizes_is_told, start, stop)
{
	end_store(true);
	unlink(path);
	must_refuse_after(limit_files, "raise the limit (LimitFSIZE=, ulimit -f)");
	kvt_test_check(access(path, F_OK) != 0);
}

TEST_WITH(half_a_file_option_is_refused_in_words, start, stop)
{
	static const char *const wrong[][2] = {
		{ "--file /tmp/x", "need each other" },
		{ "--file-bytes 1M", "need each other" },
		{ "--file /tmp/x --file-bytes 1M --file-write-bytes 0", "a size above 0" },
		{ "--file-admit used", "limit it with --file-write-bytes" },
		{ "--file-write-bytes 8M", "file-write-bytes needs --file" },
		{ "--helper-wait-ms 4", "helper-wait-ms needs --helper" },
		{ "--stop-seconds 4", "stop-seconds needs --file" },
		{ "--file /tmp/x --file-bytes 1M --file-depth 65", "allowed: 1 to 64" },
		{ "--file /tmp/x --file-bytes 0", "allowed: a size above 0" },
		{ "--file /tmp --file-bytes 2G --bench", "is there: name a file to make" },
		{ "--file /tmp/x --file-bytes 1G --bench", "2G or more" },
	};
	char command[900];

	for (uint32_t i = 0; i < sizeof(wrong) / sizeof(*wrong); i++) {
		snprintf(command, sizeof(command), "'%s/kvtstored' %s 2>&1 | grep -q '%s'",
			 kvt_test_build(), wrong[i][0], wrong[i][1]);
		kvt_test_equal(system(command), 0);
	}
}
