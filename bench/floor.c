/* SPDX-License-Identifier: Apache-2.0 */

/* The floor of a round trip: the same data movement without a cache.
 *
 * Inputs: the target, sets of keys. Invariants: floor and daemon share a core and never run at
 * once; each copy of keys is private to the floor. Callers: match.c, clients.c. */

#include "bench/bench.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shm/ring.h"

#define RING_ENTRIES 64u
#define WARM_UP 64

struct bench_floor {
	struct bench_target *target;
	uint32_t **copies; /* core target: in this process */
	uint32_t n_sets;
	uint32_t n;
	pid_t pid;
	bool runs; /* the floor's process, not the daemon */
	void *segment, *areas;
	struct kvt_segment_layout layout;
	struct kvt_ring_end end;
};

static uint32_t **copy_sets(uint32_t *const *keys, uint32_t n_sets, uint32_t n)
{
	uint32_t **copies = bench_alloc(n_sets, sizeof(*copies));

	for (uint32_t i = 0; i < n_sets; i++) {
		copies[i] = aligned_alloc(128, (n * sizeof(uint32_t) + 127) & ~127ul);
		if (!copies[i])
			bench_die("out of memory");
		memcpy(copies[i], keys[i], n * sizeof(uint32_t));
	}
	return copies;
}

/* Do the least work of any daemon: take the entry, read the keys, answer. New keys are copied to
 * private memory, as a daemon must before it relies on them (TOCTOU). */
static void serve(const struct bench_floor *floor, const struct kvt_sqe *sqe, uint32_t *fresh,
		  struct kvt_cqe *cqe)
{
	const uint32_t *keys = floor->end.keys + sqe->keys_offset;

	*cqe = (struct kvt_cqe){ .user_data = sqe->user_data };
	if (sqe->n_keys)
		cqe->match.matched = memcmp(floor->copies[sqe->node], keys,
					    sqe->arg * sizeof(*keys)) == 0;
	if (sqe->n_keys > sqe->arg)
		memcpy(fresh, keys + sqe->arg, (sqe->n_keys - sqe->arg) * sizeof(*keys));
}

static __attribute__((noreturn)) void serve_forever(struct bench_floor *floor)
{
	uint32_t *fresh = bench_alloc(floor->n + 4096, sizeof(*fresh));
	struct kvt_ring_end *end = &floor->end;
	struct kvt_sqe sqe;
	struct kvt_cqe cqe;

	for (;;) {
		if (kvt_ring_sq_pending(end) <= 0)
			continue;
		kvt_ring_sq_take(end, &sqe);
		serve(floor, &sqe, fresh, &cqe);
		kvt_ring_cq_put(end, &cqe);
		kvt_ring_cq_publish(end);
	}
}

static void stop(pid_t pid)
{
	int status;

	kill(pid, SIGSTOP);
	if (waitpid(pid, &status, WUNTRACED) != pid || !WIFSTOPPED(status))
		bench_die("process %d ended", (int)pid);
}

/* Only one of the two runs at any time, to the last: under a real-time policy the daemon, which
 * spins, would never let the floor's process begin, stop or end. */
static void daemon_stop(struct bench_target *target)
{
	if (target->daemon_runs)
		stop(target->daemon.pid);
	target->daemon_runs = false;
}

static void start_process(struct bench_floor *floor, uint32_t *const *keys)
{
	int rc = kvt_segment_plan(&floor->layout, RING_ENTRIES, RING_ENTRIES * 2,
				  floor->n + 4096, 4096);

	if (rc)
		bench_die("segment: %s", strerror(-rc));
	floor->segment = mmap(NULL, floor->layout.bytes, PROT_READ | PROT_WRITE,
			      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	floor->areas = mmap(NULL, floor->layout.areas_bytes, PROT_READ | PROT_WRITE,
			    MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (floor->segment == MAP_FAILED || floor->areas == MAP_FAILED)
		bench_die("segment: %s", strerror(errno));
	kvt_segment_format(floor->segment, &floor->layout, 1);
	kvt_ring_end_init(&floor->end, floor->segment, floor->areas, &floor->layout);
	fflush(stdout);
	daemon_stop(floor->target);
	floor->pid = fork();
	if (floor->pid < 0)
		bench_die("fork: %s", strerror(errno));
	if (floor->pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		floor->copies = copy_sets(keys, floor->n_sets, floor->n);
		serve_forever(floor);
	}
	floor->runs = true;
	/* From here: under a real-time policy the child would not begin on this core. */
	bench_pin(floor->pid, floor->target->options->daemon_cpu);
	bench_watch(1, floor->pid);
	bench_floor_turn(floor, false);
}

struct bench_floor *bench_floor_start(struct bench_target *target, uint32_t *const *keys,
				      uint32_t n_sets, uint32_t n)
{
	struct bench_floor *floor = bench_alloc(1, sizeof(*floor));

	floor->target = target;
	floor->n_sets = n_sets;
	floor->n = n;
	if (target->core)
		floor->copies = copy_sets(keys, n_sets, n);
	else
		start_process(floor, keys);
	return floor;
}

void bench_floor_stop(struct bench_floor *floor)
{
	if (floor->pid) {
		bench_floor_turn(floor, true);
		bench_watch(1, 0);
		kill(floor->pid, SIGKILL);
		waitpid(floor->pid, NULL, 0);
		kill(floor->target->daemon.pid, SIGCONT);
		floor->target->daemon_runs = true;
		munmap(floor->segment, floor->layout.bytes);
		munmap(floor->areas, floor->layout.areas_bytes);
	}
	for (uint32_t i = 0; floor->copies && i < floor->n_sets; i++)
		free(floor->copies[i]);
	free(floor->copies);
	free(floor);
}

void bench_floor_turn(struct bench_floor *floor, bool floor_runs)
{
	struct bench_target *target = floor->target;
	struct kvt_request nop = { .op = KVT_OP_NOP };
	struct kvt_result result;

	if (!floor->pid || floor->runs == floor_runs)
		return;
	if (floor_runs)
		daemon_stop(target);
	else
		stop(floor->pid);
	kill(floor_runs ? floor->pid : target->daemon.pid, SIGCONT);
	floor->runs = floor_runs;
	target->daemon_runs = !floor_runs;
	for (int i = 0; i < WARM_UP; i++) {
		if (floor_runs) {
			bench_floor_call(floor, 0, NULL, 0, 0);
			continue;
		}
		bench_run(target, &nop, &result);
		bench_release(target, &result);
	}
}

static void put(struct bench_floor *floor, uint32_t set, uint32_t compared, uint32_t n_keys,
		uint32_t offset)
{
	struct kvt_sqe sqe = { .node = set, .arg = compared, .n_keys = n_keys,
			       .keys_offset = offset };

	kvt_ring_sq_put(&floor->end, &sqe);
}

uint64_t bench_floor_call(struct bench_floor *floor, uint32_t set, const uint32_t *keys,
			  uint32_t compared, uint32_t n_keys)
{
	uint64_t start = bench_ticks();
	struct kvt_cqe cqe;

	if (!floor->pid) {
		bool equal = n_keys && !memcmp(floor->copies[set], floor->target->keys,
					       compared * sizeof(*keys));

		__asm__ volatile("" ::"r"(equal) : "memory");
		return bench_ticks() - start;
	}
	if (n_keys)
		memcpy(floor->end.keys, keys, n_keys * sizeof(*keys));
	kvt_ring_sq_space(&floor->end);
	put(floor, set, compared, n_keys, 0);
	kvt_ring_sq_publish(&floor->end);
	while (!kvt_ring_cq_ready(&floor->end))
		kvt_cpu_relax();
	kvt_ring_cq_take(&floor->end, &cqe);
	return bench_ticks() - start;
}

uint64_t bench_floor_batch(struct bench_floor *floor, const uint32_t *keys, uint32_t n_keys,
			   uint32_t batch)
{
	uint64_t start = bench_ticks();
	struct kvt_cqe cqe;

	kvt_ring_sq_space(&floor->end);
	for (uint32_t i = 0; i < batch; i++) {
		memcpy(floor->end.keys + i * n_keys, keys, n_keys * sizeof(*keys));
		put(floor, 0, n_keys, n_keys, i * n_keys);
	}
	kvt_ring_sq_publish(&floor->end);
	for (uint32_t i = 0; i < batch; i++) {
		while (!kvt_ring_cq_ready(&floor->end))
			kvt_cpu_relax();
		kvt_ring_cq_take(&floor->end, &cqe);
	}
	return bench_ticks() - start;
}
