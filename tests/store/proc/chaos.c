/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Chaos with three instances and one store: chaos [--seconds N] [--seed N] [--plant].
 *
 * A worker of each instance serves prompts by chance and compares every page that it reuses with
 * the content that its keys name. Meanwhile daemons, workers and the store are killed, stopped and
 * restarted, pages are evicted, dropped and reset, and the file is damaged, cut, and not to be
 * written. Last words of cached pages are overwritten, so the store withdraws pages and forgets
 * copies. No other word may be wrong, no other page is found damaged, and each audit is clean. The
 * seed repeats the choices, not the interleaving.
 *
 * --plant flips bits of the store's memory. Then it must find a wrong page, and ends with 0 if so.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/store.h"
#include "shm/atomic.h"
#include "shm/clock.h"
#include "store/file.h"
#include "tests/lib/direct_io.h"
#include "tests/store/proc/store.h"

#define PAGE 16u
#define PAGE_BYTES 4096u
#define N 512u /* positions of a prompt */
#define SIDES 3u
#define PROMPTS 48u /* 1,536 pages: six times the store's memory */
#define SALT 7
#define PAUSE_PROMPTS 400u   /* between two actions, at most */
#define STOPPED_PROMPTS 800u /* while something is stopped, at most */
#define FILE_BYTES (8ull << 20)
#define OVERWRITES 16u /* of so many one is found: others are evicted, or their store is killed */

enum action {
	KILL_DAEMON, STOP_DAEMON, KILL_STORE, STOP_STORE, RESTART_STORE, KILL_WORKER, STOP_WORKER,
	DROP, RESET, DAMAGE_FILE, CUT_FILE, FAIL_WRITES, OVERWRITE, ACTIONS,
};

static const struct {
	const char *name;
	uint32_t weight;
} actions[ACTIONS] = {
	[KILL_DAEMON] = { "daemons killed", 8 },     [STOP_DAEMON] = { "stopped", 10 },
	[KILL_STORE] = { "stores killed", 6 },       [STOP_STORE] = { "stopped", 8 },
	[RESTART_STORE] = { "restarted", 4 },        [KILL_WORKER] = { "workers killed", 8 },
	[STOP_WORKER] = { "stopped", 6 },            [DROP] = { "drops", 1 },
	[RESET] = { "resets", 1 },                   [DAMAGE_FILE] = { "damages of the file", 20 },
	[CUT_FILE] = { "cuts", 3 },                  [FAIL_WRITES] = { "disks that fail", 2 },
	[OVERWRITE] = { "pages overwritten", 16 },
};

/* What workers count, in memory that all share. */
static struct counts {
	uint64_t prompts, compared, overwritten, wrong, refused, lost;
	uint32_t served; /* futex: prompts */
} *counts;

static struct kvt_test_side sides[SIDES];
static struct kvt_test_store more[SIDES - 1];
static struct kvt_test_child workers[SIDES];
static struct kvt_test_random chance;
static char directory[64], path[96];
static bool has_file, plants;
static uint64_t done[ACTIONS], loaded, read_back, bad, scrubbed, damaged;

/* The content of a prompt's page. */
static const uint8_t *content_of(const uint32_t *keys, uint32_t i)
{
	static uint8_t pages[2][PAGE_BYTES] __attribute__((aligned(8)));
	struct kvt_pool pool = sides[0].pool;

	pool.base = pages;
	kvt_test_page_fill(&pool, PAGE, 1, SALT, keys, i);
	return pages[1];
}

/* ---- a worker */

static bool connect_worker(struct kvt_test_side *side)
{
	struct kvt_options options = KVT_OPTIONS_INIT;
	uint64_t digest[2];

	options.socket_path = side->daemon.socket;
	options.flags = KVT_ANY_GEOMETRY;
	options.connect_wait_ns = KVT_TEST_PATIENCE_NS; /* it may be starting */
	options.fetch_wait_ns = 200000000; /* a busy machine's store gets more than the default */
	if (kvt_client_connect(&side->worker, &options, NULL) != 0)
		return false;
	kvt_test_digest("store", digest);
	if (kvt_namespace_open(side->worker, digest, "store", &side->space) == 0 &&
	    kvt_pool_map(side->worker, &side->pool) == 0)
		return true;
	kvt_client_close(side->worker, KVT_IDLE);
	return false;
}

/* True if a page is right but for its last word, which may be overwritten. */
static bool is_overwritten(const struct kvt_test_side *side, uint32_t page, const uint32_t *keys,
			   uint32_t i)
{
	return memcmp(kvt_page_address(&side->pool, page), content_of(keys, i),
		      PAGE_BYTES - sizeof(uint64_t)) == 0;
}

/* Compare pages [0, n) of a prompt. */
static void compare(const struct kvt_test_side *side, const uint32_t *pages, uint32_t n,
		    const uint32_t *keys, uint32_t prompt)
{
	for (uint32_t i = 0; i < n; i++) {
		kvt_add_full(&counts->compared, 1);
		if (kvt_test_page_right(&side->pool, PAGE, pages[i], SALT, keys, i))
			continue;
		if (!plants && is_overwritten(side, pages[i], keys, i)) {
			kvt_add_full(&counts->overwritten, 1);
			continue;
		}
		if (kvt_add_full(&counts->wrong, 1) == 1)
			printf("WRONG: page %u of prompt %u at instance %u\n", i, prompt,
			       (uint32_t)(side - sides));
		fflush(stdout);
	}
}

/* Serve a prompt. Negative errno: the daemon is gone, or refuses. */
static int serve(const struct kvt_test_side *side, uint32_t prompt)
{
	const uint32_t *pages;
	struct kvt_seq *seq;
	uint32_t keys[N], reused;
	int rc;

	kvt_test_keys(keys, N, prompt);
	rc = kvt_seq_begin(side->worker, side->space, keys, N, 0, 0, &seq);
	if (rc != 0)
		return rc;
	pages = kvt_seq_pages(seq, NULL);
	reused = kvt_seq_reusable(seq) / PAGE;
	compare(side, pages, reused, keys, prompt);
	for (uint32_t i = reused; i < N / PAGE; i++)
		kvt_test_page_fill(&side->pool, PAGE, pages[i], SALT, keys, i);
	kvt_add_full(&counts->prompts, 1);
	kvt_add_full(&counts->served, 1);
	syscall(SYS_futex, &counts->served, FUTEX_WAKE, 1, NULL, NULL, 0);
	return kvt_seq_end(seq, N, NULL, 0, KVT_IDLE, 0);
}

static void work(int pipe, void *context)
{
	struct kvt_test_random draw = { .state = (uint64_t)getpid() * 0x9e3779b97f4a7c15u };
	struct kvt_test_side *side = context;
	uint32_t evicted;
	int rc = 0;

	kvt_test_send(pipe, 1);
	side->worker = NULL;
	for (;;) {
		if (!side->worker && !connect_worker(side)) {
			side->worker = NULL;
			continue;
		}
		rc = serve(side, 1 + kvt_test_random_below(&draw, PROMPTS));
		if (rc == 0 && kvt_test_random_below(&draw, 8) == 0)
			rc = kvt_evict(side->worker, kvt_client_info(side->worker)->n_pages,
				       &evicted);
		if (rc == 0)
			continue;
		kvt_add_full(rc == -ECONNRESET || rc == -ETIMEDOUT ? &counts->lost :
			     &counts->refused, 1);
		if (rc != -ENOSPC && rc != -ESTALE) {
			kvt_client_close(side->worker, KVT_IDLE);
			side->worker = NULL;
		}
	}
}

static void start_worker(uint32_t i)
{
	kvt_test_child_start(&workers[i], work, &sides[i]);
	kvt_test_expect(workers[i].pipe, 1);
}

/* ---- the store */

/* Ask the store of an instance. False: its daemon was restarted, which ends connections. */
static bool ask(uint32_t i, uint16_t type, struct kvt_store_seen *ret_seen)
{
	struct kvt_error why;
	int rc = kvt_store_ask(i ? more[i - 1].path : sides[0].store.path, type,
			       KVT_TEST_PATIENCE_NS, ret_seen, &why);

	if (rc != 0 && rc != -ECONNRESET && rc != -EPROTO && rc != -EPIPE)
		kvt_test_fail("%s", why.text);
	return rc == 0;
}

/* Note what it loaded before it ends. */
static void note_store(void)
{
	for (uint32_t i = 0; i < SIDES; i++) {
		struct kvt_store_seen seen;

		if (!ask(i, KVT_STORE_STATUS, &seen))
			continue;
		loaded += seen.status.loaded_pages;
		read_back += i == 0 ? seen.status.file_read_pages : 0;
		bad += i == 0 ? seen.status.file_bad_pages : 0;
		scrubbed += seen.status.scrubbed_pages;
		damaged += seen.status.damaged_pages;
	}
}

static void start_store(void)
{
	const struct kvt_test_daemon *daemons[SIDES];
	const char *const options[] = { "--scrub", "200M", has_file ? "--file" : NULL, path,
					"--file-bytes", "8M", NULL };

	for (uint32_t i = 0; i < SIDES; i++)
		daemons[i] = &sides[i].daemon;
	kvt_test_store_start_host(&sides[0].store, more, daemons, SIDES, "1M",
				  options);
}

static void end_store(bool orderly)
{
	note_store();
	if (orderly) {
		kvt_test_equal(kvt_test_store_stop(&sides[0].store), 0);
		return;
	}
	kvt_test_store_kill(&sides[0].store);
	for (uint32_t i = 1; i < SIDES; i++)
		kvt_test_store_unlink(&more[i - 1]);
}

/* Read what the store prints, which must not fill its pipe. */
static void drain_output(void)
{
	char text[4096];

	fcntl(sides[0].store.output, F_SETFL, O_NONBLOCK);
	while (read(sides[0].store.output, text, sizeof(text)) > 0)
		;
	fcntl(sides[0].store.output, F_SETFL, 0);
}

/* ---- the file */

static uint64_t file_bytes(void)
{
	struct stat there = { .st_size = 0 };

	return stat(path, &there) == 0 ? (uint64_t)there.st_size : 0;
}

/* Change bytes of a block behind the head, past the page cache, as the store writes. */
static void damage_file(void)
{
	static uint8_t block[KVT_FILE_BLOCK] __attribute__((aligned(KVT_FILE_BLOCK)));
	uint64_t blocks = file_bytes() / KVT_FILE_BLOCK, at;
	int fd = open(path, O_RDWR | O_DIRECT | O_CLOEXEC);

	at = blocks > 1 ? (1 + kvt_test_random(&chance) % (blocks - 1)) * KVT_FILE_BLOCK : 0;
	if (fd >= 0 && at && pread(fd, block, sizeof(block), (off_t)at) == sizeof(block)) {
		block[kvt_test_random_below(&chance, sizeof(block))] ^= 4;
		kvt_test_check(pwrite(fd, block, sizeof(block), (off_t)at) == sizeof(block));
	}
	close(fd);
}

static void cut_file(void)
{
	uint64_t blocks = file_bytes() / KVT_FILE_BLOCK;

	if (blocks > 1)
		kvt_test_equal(truncate(path, (off_t)((1 + kvt_test_random(&chance) % blocks) *
						      KVT_FILE_BLOCK)), 0);
}

/* From now on writes behind a place by chance fail (EFBIG), until the store starts again. */
static void fail_writes(void)
{
	struct rlimit limit = { .rlim_max = RLIM_INFINITY };

	limit.rlim_cur = kvt_test_random(&chance) % FILE_BYTES;
	prlimit(sides[0].store.pid, RLIMIT_FSIZE, &limit, NULL);
}

/* ---- a planted fault */

/* Flip a bit wherever this part of the store's memory has the page. Returns how often. */
static uint32_t flip_in(uint64_t at, uint64_t bytes, const uint8_t page[PAGE_BYTES])
{
	uint8_t *memory = malloc(bytes), *found = memory, byte;
	struct iovec here = { memory, bytes }, there = { (void *)(uintptr_t)at, bytes };
	uint32_t n = 0;

	kvt_test_check(memory);
	if (process_vm_readv(sides[0].store.pid, &here, 1, &there, 1, 0) != (ssize_t)bytes)
		bytes = 0;
	while ((found = memmem(found, bytes - (uint64_t)(found - memory), page, PAGE_BYTES))) {
		byte = found[PAGE_BYTES / 2] ^ 1;
		here = (struct iovec){ &byte, 1 };
		there = (struct iovec){ (void *)(uintptr_t)(at + (uint64_t)(found - memory) +
							   PAGE_BYTES / 2), 1 };
		n += process_vm_writev(sides[0].store.pid, &here, 1, &there, 1, 0) == 1;
		found++;
	}
	free(memory);
	return n;
}

/* Flip a bit of the first page of a prompt, in the store's own memory. */
static uint32_t plant(void)
{
	const uint8_t *page;
	uint32_t keys[N], n = 0;
	char maps[64], line[512], mode[8], name[256];
	FILE *file;

	kvt_test_keys(keys, N, 1 + kvt_test_random_below(&chance, PROMPTS));
	page = content_of(keys, 0);
	snprintf(maps, sizeof(maps), "/proc/%d/maps", (int)sides[0].store.pid);
	file = fopen(maps, "r");
	while (file && fgets(line, sizeof(line), file)) {
		unsigned long long from, to;

		name[0] = '\0';
		if (sscanf(line, "%llx-%llx %7s %*s %*s %*s %255s", &from, &to, mode, name) >= 3 &&
		    strcmp(mode, "rw-p") == 0 && !*name && to - from <= 64ull << 20)
			n += flip_in(from, to - from, page);
	}
	if (file)
		fclose(file);
	return n;
}

/* ---- actions */

/* Wait until workers have served so many prompts: those of two serve whatever is stopped. */
static void await_prompts(uint32_t n)
{
	uint32_t begun = kvt_load_acquire(&counts->served), now = begun;

	for (; now - begun < n; now = kvt_load_acquire(&counts->served))
		syscall(SYS_futex, &counts->served, FUTEX_WAIT, now, NULL, NULL, 0);
}

static void stop_for_a_while(pid_t pid)
{
	kvt_test_freeze(pid);
	await_prompts(1 + kvt_test_random_below(&chance, STOPPED_PROMPTS));
	kvt_test_equal(kill(pid, SIGCONT), 0);
}

/* Wait until nothing listens at the socket of a daemon that was killed: the kernel ends its
 * io_uring, which holds the socket, after the process. */
static void await_silence(const struct kvt_test_daemon *daemon)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	int fd, rc;

	snprintf(address.sun_path, sizeof(address.sun_path), "%s", daemon->socket);
	do {
		fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
		rc = connect(fd, (struct sockaddr *)&address, sizeof(address)) == 0 ? 0 : errno;
		close(fd);
	} while (rc != ECONNREFUSED);
}

/* The store's socket stays, and serves the next one. */
static void kill_daemon(struct kvt_test_side *side)
{
	kvt_test_equal(kill(side->daemon.pid, SIGKILL), 0);
	kvt_test_daemon_wait(&side->daemon);
	await_silence(&side->daemon);
	kvt_test_daemon_start(&side->daemon, NULL);
}

/* By a client of its own: workers belong to their processes. */
static void reset(const struct kvt_test_side *side)
{
	struct kvt_client *client = kvt_test_connect(&side->daemon);

	kvt_test_equal(kvt_reset(client), 0);
	kvt_client_close(client, KVT_IDLE);
}

/* Overwrite the last word of a page that the instance caches of a prompt. A lease keeps it there.
 * Returns false if it caches none. */
static bool overwrite_one(const struct kvt_test_side *side, uint32_t prompt)
{
	struct kvt_result result;
	uint32_t keys[N], page;
	uint64_t *words;

	kvt_test_keys(keys, N, prompt);
	kvt_test_equal(kvt_match(side->worker, side->space, keys, N, KVT_F_LOCK, &result), 0);
	if (result.matched) {
		page = result.pages[kvt_test_random_below(&chance, result.matched / PAGE)];
		words = kvt_page_address(&side->pool, page);
		words[PAGE_BYTES / sizeof(*words) - 1] = kvt_test_random(&chance);
		kvt_test_equal(kvt_unlock(side->worker, result.lease, KVT_IDLE), 0);
	}
	kvt_result_release(side->worker, &result);
	return result.matched > 0;
}

/* The same of any prompt. */
static bool overwrite(struct kvt_test_side *side)
{
	uint32_t first = kvt_test_random_below(&chance, PROMPTS), i = 0;

	kvt_test_check(connect_worker(side));
	while (i < PROMPTS && !overwrite_one(side, 1 + (first + i) % PROMPTS))
		i++;
	kvt_client_close(side->worker, KVT_IDLE);
	return i < PROMPTS;
}

static enum action draw_action(void)
{
	uint32_t sum = 0, at;

	for (uint32_t i = 0; i < ACTIONS; i++)
		sum += actions[i].weight;
	at = kvt_test_random_below(&chance, sum);
	for (uint32_t i = 0;; i++) {
		if (at < actions[i].weight)
			return (enum action)i;
		at -= actions[i].weight;
	}
}

static void act(enum action action)
{
	uint32_t i = kvt_test_random_below(&chance, SIDES);

	switch (action) {
	case KILL_DAEMON:
		kill_daemon(&sides[i]);
		break;
	case STOP_DAEMON:
		stop_for_a_while(sides[i].daemon.pid);
		break;
	case STOP_STORE:
		stop_for_a_while(sides[0].store.pid);
		break;
	case KILL_WORKER:
		kvt_test_child_kill(&workers[i], SIGKILL);
		start_worker(i);
		break;
	case STOP_WORKER:
		stop_for_a_while(workers[i].pid);
		break;
	case DROP:
		ask(i, KVT_STORE_DROP, &(struct kvt_store_seen){ .pid = 0 });
		break;
	case RESET:
		reset(&sides[i]);
		break;
	case DAMAGE_FILE:
		damage_file();
		break;
	case FAIL_WRITES:
		fail_writes();
		break;
	case OVERWRITE:
		if (!overwrite(&sides[i]))
			return;
		break;
	default: /* KILL_STORE, RESTART_STORE, CUT_FILE */
		end_store(action == RESTART_STORE);
		if (action == CUT_FILE)
			cut_file();
		start_store();
	}
	done[action]++;
}

/* A file that cannot be damaged has no part in it; a restart would undo what is planted. */
static bool is_possible(enum action action)
{
	if (plants)
		return action == STOP_DAEMON || action == STOP_WORKER;
	return has_file || (action != DAMAGE_FILE && action != CUT_FILE && action != FAIL_WRITES);
}

/* ---- all of it */

static void begin(void)
{
	snprintf(directory, sizeof(directory), "/var/tmp/kvt-chaos-XXXXXX");
	kvt_test_check(mkdtemp(directory));
	snprintf(path, sizeof(path), "%s/pages", directory);
	has_file = !plants && has_direct_io(path);
	for (uint32_t i = 0; i < SIDES; i++)
		kvt_test_daemon_begin(&sides[i].daemon, "page_bytes = 4096\nn_pages = 1024\n");
	kvt_test_check(connect_worker(&sides[0])); /* for the layout of its pages */
	kvt_client_close(sides[0].worker, KVT_IDLE);
	start_store();
	for (uint32_t i = 0; i < SIDES; i++)
		start_worker(i);
}

static void end(void)
{
	for (uint32_t i = 0; i < SIDES; i++)
		kvt_test_child_kill(&workers[i], SIGKILL);
	end_store(true);
	for (uint32_t i = 0; i < SIDES; i++)
		kvt_test_daemon_end(&sides[i].daemon);
	unlink(path);
	rmdir(directory);
}

static void report(uint64_t seed, int64_t began_ns)
{
	printf("seed %llu, %lld s, %s a file: ", (unsigned long long)seed,
	       (long long)(kvt_now_ns() - began_ns) / 1000000000, has_file ? "with" : "without");
	for (uint32_t i = 0; i < ACTIONS; i++)
		printf("%s%llu %s", i ? ", " : "", (unsigned long long)done[i], actions[i].name);
	printf("\n%llu prompts, %llu pages compared, %llu loaded, %llu read from files, %llu "
	       "damaged there, %llu scrubbed, %llu found overwritten, %llu reused before; %llu "
	       "calls lost their daemon, %llu were refused; %llu WRONG\n",
	       (unsigned long long)counts->prompts, (unsigned long long)counts->compared,
	       (unsigned long long)loaded, (unsigned long long)read_back, (unsigned long long)bad,
	       (unsigned long long)scrubbed, (unsigned long long)damaged,
	       (unsigned long long)counts->overwritten,
	       (unsigned long long)counts->lost, (unsigned long long)counts->refused,
	       (unsigned long long)counts->wrong);
}

int main(int argc, char **argv)
{
	uint64_t seed = (uint64_t)time(NULL) % 1000000, planted = 0;
	int64_t seconds = 10, began_ns;

	for (int i = 1; i < argc; i++) {
		if (strcmp(argv[i], "--plant") == 0)
			plants = true;
		else if (i + 1 < argc && strcmp(argv[i], "--seconds") == 0)
			seconds = atoll(argv[++i]);
		else if (i + 1 < argc && strcmp(argv[i], "--seed") == 0)
			seed = strtoull(argv[++i], NULL, 10);
		else
			kvt_test_fail("store_chaos [--seconds N] [--seed N] [--plant]");
	}
	printf("seed %llu\n", (unsigned long long)seed);
	fflush(stdout);
	chance.state = seed;
	counts = mmap(NULL, sizeof(*counts), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
		      0);
	kvt_test_check(counts != MAP_FAILED);
	begin();
	began_ns = kvt_now_ns();
	while (kvt_now_ns() - began_ns < seconds * 1000000000 && !counts->wrong) {
		enum action action = draw_action();

		await_prompts(1 + kvt_test_random_below(&chance, PAUSE_PROMPTS));
		drain_output();
		if (is_possible(action))
			act(action);
		if (plants)
			planted += plant();
	}
	end();
	report(seed, began_ns);
	if (plants)
		printf("%llu bits flipped in the store's memory: %s\n", (unsigned long long)planted,
		       counts->wrong ? "found" : "NOT FOUND");
	kvt_test_check(counts->compared > 0 && loaded > 0 && damaged <= done[OVERWRITE]);
	kvt_test_check(damaged > 0 || done[OVERWRITE] < OVERWRITES);
	return plants == (counts->wrong > 0) ? 0 : 1;
}
