/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file clients.c
 * Figures with several clients: throughput, a small client beside a large one, reclaim after a
 * kill, and the cost of a plain socket instead of rings.
 *
 * Inputs: a target, a tree. Invariant: figure and floor are measured in turns, with the same number
 * of clients. Caller: main.c.
 */
#include "bench/bench.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kvtrunk_wire_arena.h"
#include "libclient/state.h"
#include "shm/atomic.h"

#define MAX_BATCH 32
#define SMALL_KEYS 64u

/* ---- throughput ---- */

/* Shorter than a scheduler's slice, so that most bursts are undisturbed. */
#define BURST_OPS 1024u
#define MAX_BURSTS 400u

/* Shared by the bench and its clients. */
struct gate {
	uint32_t arrived;
	uint32_t open;
	uint64_t end_ns[8];
	uint64_t bursts[MAX_BURSTS]; /* ticks, of a single client */
};

/* Return the operations a second in the middle burst. */
static double burst_rate(const uint64_t *ticks, uint32_t n)
{
	struct bench_samples samples = { 0 };

	for (uint32_t i = 0; i < n; i++)
		bench_samples_add_any(&samples, ticks[i]);
	return BURST_OPS * 1e9 / bench_samples_take(&samples).p50;
}

static void match_batch(struct kvt_client *client, const struct kvt_request *match, uint32_t batch)
{
	struct kvt_result results[MAX_BATCH];
	uint32_t submitted = 0;
	int n;

	while (submitted < batch) {
		if (kvt_submit(client, match))
			bench_die("submit: %s", kvt_client_error(client)->text);
		submitted++;
	}
	for (uint32_t done = 0; done < batch; done += (uint32_t)n) {
		n = kvt_reap(client, results, 1, (int)(batch - done));
		if (n <= 0)
			bench_die("reap: %s", kvt_client_error(client)->text);
		for (int i = 0; i < n; i++) {
			if (results[i].matched != match->n_keys)
				bench_die("throughput: %u positions matched", results[i].matched);
			kvt_result_release(client, &results[i]);
		}
	}
}

static __attribute__((noreturn)) void client_main(const struct bench_target *target,
						  struct gate *gate, uint32_t index,
						  const uint32_t *keys, uint32_t batch,
						  uint32_t bursts, bool crowded)
{
	uint64_t start;

	struct kvt_request match = { .op = KVT_OP_MATCH, .flags = KVT_F_NO_TOUCH, .keys = keys,
				     .n_keys = SMALL_KEYS };
	struct kvt_client *client;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	/* Clients that share a core must not spin for each other's answers. */
	client = bench_connect(target, crowded ? 2000 : -1, &match.namespace_id);
	match_batch(client, &match, batch);
	kvt_add_full(&gate->arrived, 1);
	while (!kvt_load_acquire(&gate->open))
		sched_yield();
	for (uint32_t i = 0; i < bursts; i++) {
		start = bench_ticks();
		for (uint32_t j = 0; j < BURST_OPS / batch; j++)
			match_batch(client, &match, batch);
		gate->bursts[i] = bench_ticks() - start;
	}
	gate->end_ns[index] = kvt_now_ns();
	kvt_client_close(client, KVT_IDLE);
	_exit(0);
}

struct rates {
	double wall;  /* operations a second of all clients, first start to last end */
	double burst; /* of the middle burst, for a single client */
};

static struct rates throughput(struct bench_target *target, const uint32_t *keys,
			       uint32_t clients, uint32_t batch)
{
	struct gate *gate = mmap(NULL, sizeof(*gate), PROT_READ | PROT_WRITE,
				 MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	uint32_t bursts = (target->options->quick ? MAX_BURSTS / 8 : MAX_BURSTS) / clients;
	struct rates rates = { 0 };
	uint64_t start, end = 0;
	pid_t pids[8];
	int status;

	if (gate == MAP_FAILED)
		bench_die("mmap: %s", strerror(errno));
	fflush(stdout);
	for (uint32_t i = 0; i < clients; i++) {
		pids[i] = fork();
		if (pids[i] == 0)
			client_main(target, gate, i, keys, batch, bursts, clients > 1);
		if (pids[i] < 0)
			bench_die("fork: %s", strerror(errno));
	}
	while (kvt_load_acquire(&gate->arrived) < clients)
		sched_yield();
	start = kvt_now_ns();
	kvt_store_release(&gate->open, 1);
	for (uint32_t i = 0; i < clients; i++) {
		if (waitpid(pids[i], &status, 0) != pids[i] || status)
			bench_die("a client ended early");
		if (gate->end_ns[i] > end)
			end = gate->end_ns[i];
	}
	rates.wall = (double)bursts * BURST_OPS * clients * 1e9 / (double)(end - start);
	rates.burst = burst_rate(gate->bursts, bursts);
	munmap(gate, sizeof(*gate));
	return rates;
}

static double floor_throughput(struct bench_target *target, uint32_t *keys, uint32_t batch)
{
	struct bench_floor *floor = bench_floor_start(target, &keys, 1, SMALL_KEYS);
	uint32_t bursts = target->options->quick ? MAX_BURSTS / 8 : MAX_BURSTS;
	uint64_t ticks[MAX_BURSTS], start;

	bench_floor_turn(floor, true);
	for (uint32_t i = 0; i < bursts; i++) {
		start = bench_ticks();
		for (uint32_t j = 0; j < BURST_OPS / batch; j++)
			bench_floor_batch(floor, keys, SMALL_KEYS, batch);
		ticks[i] = bench_ticks() - start;
	}
	bench_floor_turn(floor, false);
	bench_floor_stop(floor);
	return burst_rate(ticks, bursts);
}

/* Measure one case. A single client is judged by its middle burst, as its floor is. Clients that
 * share a core are judged by the wall clock, scheduler included. */
static void throughput_case(struct bench_target *target, const struct bench_tree *tree,
			    uint32_t clients, uint32_t batch, double floor)
{
	struct rates rates = throughput(target, tree->keys[0][0], clients, batch);
	double rate = clients == 1 ? rates.burst : rates.wall;
	char figure[80];

	bench_line("throughput", "\"keys\":64,\"tree\":\"%s\",\"clients\":%u,\"batch\":%u,"
		   "\"ops_per_s\":%.0f,\"wall_ops_per_s\":%.0f,\"floor_ops_per_s\":%.0f,"
		   "\"ratio\":%.2f,"
		   "\"floor\":\"one client, keys compared, no cache logic\",\"cores\":"
		   "\"daemon alone on core %d, all clients on core %d\"", tree->name, clients,
		   batch, rate, rates.wall, floor, rate / floor, target->options->daemon_cpu,
		   target->options->client_cpu);
	if (batch != 32 || clients != 1)
		return;
	snprintf(figure, sizeof(figure), "64-key MATCH, batch 32, one client, %s", tree->name);
	bench_aim(figure, rate / 1e6, "M/s", 3, true);
}

void bench_throughput(struct bench_target *target, const struct bench_tree *tree)
{
	static const uint32_t batches[] = { 1, 4, 8, 16, 32 }, clients[] = { 1, 2, 4, 8 };

	if (target->core || !tree->n_sets[0])
		return;
	for (unsigned int b = 0; b < 5; b++) {
		double floor = floor_throughput(target, tree->keys[0][0], batches[b]);

		for (unsigned int c = 0; c < 4; c++)
			throughput_case(target, tree, clients[c], batches[b], floor);
	}
}

/* ---- a small client beside one that hammers large operations ---- */

#define HAMMER_DEPTH 8u

/* The large client's keys stay in its area and its entries are put by hand: copying 512 KiB for
 * each would take longer than the daemon needs, and the load would be uneven. */
struct hammer {
	struct kvt_client *client;
	struct kvt_sqe sqe;
	uint32_t in_flight;
};

/* Keep the large client's queue full while the small one waits. Both live in this process: with one
 * core for clients, two processes would measure the scheduler. */
static void hammer_refill(struct hammer *hammer, uint32_t depth)
{
	struct kvt_ring_end *ring = &hammer->client->ring;
	bool put = false;
	struct kvt_cqe cqe;

	while (hammer->in_flight && kvt_ring_cq_ready(ring)) {
		kvt_ring_cq_take(ring, &cqe);
		if (cqe.result || cqe.match.matched != hammer->sqe.n_keys)
			bench_die("hammer: result %d, %u positions matched", cqe.result,
				  cqe.match.matched);
		hammer->in_flight--;
	}
	for (; hammer->in_flight < depth && kvt_ring_sq_space(ring); put = true) {
		kvt_ring_sq_put(ring, &hammer->sqe);
		hammer->in_flight++;
	}
	if (put)
		kvt_ring_sq_publish(ring); /* a spinning daemon needs no bell */
}

static void hammer_open(struct bench_target *target, struct hammer *hammer, const uint32_t *keys,
			uint32_t n)
{
	hammer->sqe = (struct kvt_sqe){ .op = KVT_OP_MATCH, .n_keys = n };
	hammer->client = bench_connect(target, -1, &hammer->sqe.namespace_id);
	memcpy(hammer->client->ring.keys, keys, n * sizeof(*keys));
}

static void hammer_samples(struct bench_target *target, const struct bench_tree *tree,
			   struct hammer *hammer, uint32_t count, struct bench_samples *samples)
{
	struct kvt_request match = { .op = KVT_OP_MATCH, .namespace_id = target->namespace_id,
				     .n_keys = 4096 };
	struct kvt_result result;

	for (uint32_t i = 0; i < count; i++) {
		uint64_t start;

		match.keys = tree->keys[2][i % tree->n_sets[2]];
		if (hammer)
			hammer_refill(hammer, HAMMER_DEPTH);
		start = bench_ticks();
		bench_run(target, &match, &result);
		bench_samples_add(samples, bench_ticks() - start);
		bench_release(target, &result);
	}
	while (hammer && hammer->in_flight)
		hammer_refill(hammer, 0);
}

void bench_hammer(struct bench_target *target, const struct bench_tree *tree)
{
	struct bench_result line = { .name = "match_beside_hammer", .kind =
				     "4096 keys beside 131072", .tree = tree->name, .keys = 4096,
				     .floor_is = "the same without the hammer" };
	struct bench_samples values = { 0 }, floors = { 0 };
	uint32_t turns = 10, count = target->options->quick ? 40 : 300, large_size = 4;
	struct hammer hammer = { 0 };
	char figure[80];

	while (large_size > 2 && !tree->n_sets[large_size])
		large_size--;
	if (target->core || !tree->n_sets[2] || large_size <= 2)
		return;
	hammer_open(target, &hammer, tree->keys[large_size][0], bench_sizes[large_size]);
	for (uint32_t turn = 0; turn < turns; turn++) {
		hammer_samples(target, tree, NULL, count, &floors);
		hammer_samples(target, tree, &hammer, count, &values);
	}
	kvt_client_close(hammer.client, KVT_IDLE);
	line.value = bench_samples_take(&values);
	line.floor = bench_samples_take(&floors);
	snprintf(line.extra, sizeof(line.extra), "\"hammer_keys\":%u,\"clients\":"
		 "\"two sessions of one process, the large one with %u operations queued\"",
		 hammer.sqe.n_keys, HAMMER_DEPTH);
	bench_emit(&line);
	snprintf(figure, sizeof(figure), "4096-key MATCH beside a %u-key hammer, p99, %s",
		 hammer.sqe.n_keys, tree->name);
	bench_aim(figure, line.value.p99 / 1000, "us", 60, false);
}

/* ---- reclaim of a killed client ---- */

#define VICTIM_PAGES 64u

static __attribute__((noreturn)) void victim_main(const struct bench_target *target, int ready,
						  const uint32_t *keys, uint32_t n)
{
	struct kvt_request begin = { .op = KVT_OP_BEGIN, .keys = keys, .n_keys = n,
				     .arg = VICTIM_PAGES * BENCH_PAGE_SIZE };
	struct kvt_client *client;
	struct kvt_result result;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	client = bench_connect(target, 0, &begin.namespace_id);
	if (kvt_call(client, &begin, &result))
		bench_die("victim: %s", kvt_client_error(client)->text);
	if (write(ready, "x", 1) != 1)
		_exit(1);
	for (;;)
		pause();
}

static struct kvt_counters counters(struct bench_target *target)
{
	struct kvt_counters now;

	if (kvt_stats(target->client, &now))
		bench_die("stats: %s", kvt_client_error(target->client)->text);
	return now;
}

static void reclaim_once(struct bench_target *target, const uint32_t *keys, uint32_t n,
			 struct bench_samples *values, struct bench_samples *kernel)
{
	struct kvt_counters before = counters(target), now;
	struct pollfd readable = { .events = POLLIN };
	int ready[2], status;
	uint64_t killed, gone;
	char byte;
	pid_t pid;

	if (pipe(ready))
		bench_die("pipe: %s", strerror(errno));
	fflush(stdout);
	pid = fork();
	if (pid == 0)
		victim_main(target, ready[1], keys, n);
	if (pid < 0 || read(ready[0], &byte, 1) != 1)
		bench_die("reclaim: the victim did not start");
	readable.fd = (int)syscall(SYS_pidfd_open, pid, 0);
	killed = bench_ticks();
	kill(pid, SIGKILL);
	while (poll(&readable, 1, -1) < 0 && errno == EINTR)
		;
	gone = bench_ticks();
	bench_samples_add(kernel, gone - killed);
	do {
		now = counters(target);
	} while (now.live_sessions != before.live_sessions || now.quarantined_pages ||
		 now.private_pages != before.private_pages);
	bench_samples_add(values, bench_ticks() - gone);
	waitpid(pid, &status, 0);
	close(readable.fd);
	close(ready[0]);
	close(ready[1]);
}

void bench_reclaim(struct bench_target *target, const struct bench_tree *tree)
{
	struct bench_result line = { .name = "reclaim", .kind = "64 private pages, one lease",
				     .tree = tree->name, .floor_is =
				     "kill() until the pidfd is readable: the kernel's part" };
	struct bench_samples values = { 0 }, kernel = { 0 };
	uint32_t count = target->options->quick ? 20 : 200;
	char figure[80];

	if (target->core || !tree->n_sets[2])
		return;
	for (uint32_t i = 0; i < count; i++)
		reclaim_once(target, tree->keys[2][0], 4096, &values, &kernel);
	line.value = bench_samples_take(&values);
	line.floor = bench_samples_take(&kernel);
	bench_emit(&line);
	snprintf(figure, sizeof(figure), "reclaim: pidfd readable to FREE, p99, %s", tree->name);
	bench_aim(figure, line.value.p99 / 1e6, "ms", 1, false);
}

/* ---- some of many workers die while all are busy ---- */

struct crowd {
	struct bench_target *target;
	uint32_t n, n_dead; /* of these, in each round */
	uint32_t rounds;
	pid_t *pids;
	int ready; /* pipe: a byte from each worker that holds its pages */
	int report;
	const uint32_t *keys;
	uint64_t most_cpu_ns; /* of the daemon, for one round */
};

/* Hold pages and match until killed, at any point. */
static __attribute__((noreturn)) void crowd_worker(const struct crowd *crowd)
{
	struct kvt_request request = { .op = KVT_OP_BEGIN, .keys = crowd->keys, .n_keys = 4096,
				       .arg = VICTIM_PAGES * BENCH_PAGE_SIZE };
	struct kvt_client *client;
	struct kvt_result result;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	setpriority(PRIO_PROCESS, 0, 0);
	client = bench_connect(crowd->target, 0, &request.namespace_id);
	if (kvt_call(client, &request, &result))
		bench_die("worker: %s", kvt_client_error(client)->text);
	kvt_result_release(client, &result);
	if (write(crowd->report, "x", 1) != 1)
		_exit(1);
	request.op = KVT_OP_MATCH;
	request.arg = 0;
	while (kvt_call(client, &request, &result) == 0)
		kvt_result_release(client, &result);
	_exit(0);
}

static void crowd_start(struct crowd *crowd, uint32_t from, uint32_t to)
{
	char byte;

	fflush(stdout);
	for (uint32_t i = from; i < to; i++) {
		crowd->pids[i] = fork();
		if (crowd->pids[i] == 0)
			crowd_worker(crowd);
	}
	for (uint32_t i = from; i < to; i++)
		if (crowd->pids[i] < 0 || read(crowd->ready, &byte, 1) != 1)
			bench_die("reclaim: a worker did not start");
}

/* Return the daemon's CPU time in ns: its own work, whatever else the machine does. */
static uint64_t daemon_cpu_ns(const struct bench_target *target)
{
	char path[64];
	unsigned long long ns = 0;
	FILE *file;

	snprintf(path, sizeof(path), "/proc/%d/schedstat", (int)target->daemon.pid);
	file = fopen(path, "re");
	if (file && fscanf(file, "%llu", &ns) != 1)
		ns = 0;
	if (file)
		fclose(file);
	return ns;
}

/* True if the arena shows that all pages of dead workers are free. A question through the ring
 * would wait for its own turn. */
static bool all_free(const struct bench_target *target, uint64_t live_sessions)
{
	const struct kvt_arena_header *arena = target->client->arena.header;
	const volatile struct kvt_counters *count = &arena->counters;

	return count->live_sessions == live_sessions && count->quarantined_pages == 0 &&
	       count->live_leases == live_sessions - 1;
}

/* Kill the first n_dead of the crowd. Timed from the last pidfd until every page is free. */
static void crowd_round(struct crowd *crowd, struct bench_samples *ours,
			struct bench_samples *kernel)
{
	struct kvt_counters before = counters(crowd->target);
	uint64_t killed, gone = 0, cpu;
	int *fds = calloc(crowd->n_dead, sizeof(*fds));

	for (uint32_t i = 0; i < crowd->n_dead; i++)
		fds[i] = (int)syscall(SYS_pidfd_open, crowd->pids[i], 0);
	killed = bench_ticks();
	for (uint32_t i = 0; i < crowd->n_dead; i++)
		kill(crowd->pids[i], SIGKILL);
	for (uint32_t i = 0; i < crowd->n_dead; i++) {
		struct pollfd readable = { .fd = fds[i], .events = POLLIN };

		while (poll(&readable, 1, -1) < 0 && errno == EINTR)
			;
		gone = bench_ticks();
		bench_samples_add_any(kernel, gone - killed);
	}
	cpu = daemon_cpu_ns(crowd->target);
	while (!all_free(crowd->target, before.live_sessions - crowd->n_dead))
		kvt_cpu_relax();
	bench_samples_add_any(ours, bench_ticks() - gone);
	cpu = daemon_cpu_ns(crowd->target) - cpu;
	if (cpu > crowd->most_cpu_ns)
		crowd->most_cpu_ns = cpu;
	for (uint32_t i = 0; i < crowd->n_dead; i++) {
		waitpid(crowd->pids[i], NULL, 0);
		close(fds[i]);
	}
	free(fds);
}

void bench_reclaim_crowd(struct bench_target *target, const struct bench_tree *tree)
{
	bool quick = target->options->quick;
	struct crowd crowd = { .target = target, .n = quick ? 40 : 200,
			       .n_dead = quick ? 8 : 22, .rounds = quick ? 5 : 25 };
	struct bench_result line = { .name = "reclaim_crowd", .kind =
				     "some of many busy workers die, 64 private pages each",
				     .tree = tree->name, .floor_is =
				     "kill() until the pidfd is readable: the kernel's part" };
	struct bench_samples values = { 0 }, kernel = { 0 };
	char figure[80];
	int ready[2];

	if (target->core || !tree->n_sets[2])
		return;
	crowd.keys = tree->keys[2][0];
	crowd.pids = calloc(crowd.n, sizeof(*crowd.pids));
	if (!crowd.pids || pipe(ready))
		bench_die("reclaim: %s", strerror(errno));
	crowd.ready = ready[0];
	crowd.report = ready[1];
	/* The crowd is the only load wanted: the daemon has priority over other processes, and so
	 * does this one, which takes the time. */
	setpriority(PRIO_PROCESS, 0, -20);
	setpriority(PRIO_PROCESS, (id_t)target->daemon.pid, -20);
	crowd_start(&crowd, 0, crowd.n);
	for (uint32_t i = 0; i < crowd.rounds; i++) {
		crowd_round(&crowd, &values, &kernel);
		crowd_start(&crowd, 0, crowd.n_dead);
	}
	for (uint32_t i = 0; i < crowd.n; i++) {
		kill(crowd.pids[i], SIGKILL);
		waitpid(crowd.pids[i], NULL, 0);
	}
	setpriority(PRIO_PROCESS, 0, 0);
	setpriority(PRIO_PROCESS, (id_t)target->daemon.pid, 0);
	close(ready[0]);
	close(ready[1]);
	free(crowd.pids);
	line.value = bench_samples_take(&values);
	line.floor = bench_samples_take(&kernel);
	snprintf(line.extra, sizeof(line.extra), "\"workers\":%u,\"die_at_once\":%u,"
		 "\"daemon_cpu_most_ms\":%.1f", crowd.n, crowd.n_dead,
		 (double)crowd.most_cpu_ns / 1e6);
	bench_emit(&line);
	snprintf(figure, sizeof(figure), "reclaim: %u of %u busy workers, pidfd to FREE, p99, %s",
		 crowd.n_dead, crowd.n, tree->name);
	bench_aim(figure, line.value.p99 / 1e6, "ms", 20, false);
}

/* ---- the cost of a daemon without rings ---- */

void bench_unix(const struct bench_options *options)
{
	struct bench_result line = { .name = "unix_socket_round_trip",
				     .kind = "SOCK_SEQPACKET, 64 bytes, both block" };
	struct bench_samples values = { 0 };
	uint32_t count = options->quick ? 2000 : 20000;
	char message[64] = "";
	int pair[2];
	pid_t pid;

	if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair))
		bench_die("socketpair: %s", strerror(errno));
	fflush(stdout);
	pid = fork();
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		bench_pin(0, options->daemon_cpu);
		close(pair[0]);
		while (read(pair[1], message, sizeof(message)) > 0) {
			if (write(pair[1], message, sizeof(message)) < 0)
				break;
		}
		_exit(0);
	}
	close(pair[1]);
	for (uint32_t i = 0; i < count; i++) {
		uint64_t start = bench_ticks();

		if (write(pair[0], message, sizeof(message)) < 0 ||
		    read(pair[0], message, sizeof(message)) <= 0)
			bench_die("socket: %s", strerror(errno));
		bench_samples_add_any(&values, bench_ticks() - start);
	}
	close(pair[0]);
	waitpid(pid, NULL, 0);
	line.value = bench_samples_take(&values);
	bench_emit(&line);
}
