/* SPDX-License-Identifier: Apache-2.0 */

/* The two targets: the real daemon on its own core, and the core in this process.
 *
 * Inputs: the options. Invariants: a request that fails ends the program, except by bench_try();
 * the daemon of a benchmark ends with it. Callers: all benchmarks. */

#include "bench/bench.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "daemon/core/view.h"
#include "kvtrunk_wire_arena.h"
#include "libclient/answer.h"
#include "shm/atomic.h"
#include "shm/map.h"

#define AREA_KEYS (1u << 20)
#define AREA_LIST (1u << 18)
#define FENCE_BYTES (sizeof(struct kvt_fence_word) * KVT_FENCE_WORDS)
#define KEY_BYTES (AREA_KEYS * sizeof(uint32_t))
#define LIST_BYTES (AREA_LIST * 4 * sizeof(uint32_t))
#define IDLE_NS 200000 /* between two requests of a replay: far less than an engine computes */
#define DIGEST ((const uint64_t[2]){ 0x62656e6368ull, 1 })

/* ---- the core in this process ---- */

/* As the daemon has it: the first `huge` bytes on huge pages, as far as the machine has some. */
static void *zeros(uint64_t bytes, uint64_t huge)
{
	void *memory = kvt_map(bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1);

	if (!memory)
		bench_die("no memory for %llu bytes", (unsigned long long)bytes);
	kvt_map_huge(memory, huge);
	return memory;
}

static void never_complete(void *context, uint32_t session, const struct kvt_cqe *cqe)
{
	(void)context;
	(void)session;
	(void)cqe;
	bench_die("an operation without a fence was deferred");
}

static void open_core(struct bench_target *target, uint32_t n_pages)
{
	struct kvt_core_hooks hooks = { .complete = never_complete };
	struct kvt_core_peer peer = { .pid = 1, .privileged = true, .label = "bench" };
	struct kvt_core_view view;
	struct kvt_core_sizes sizes;
	const char *why = "";

	if (!target->config.page_size)
		target->config.page_size = BENCH_PAGE_SIZE;
	target->config.n_pages = n_pages;
	target->config.hash_seed = 12345;
	if (kvt_core_plan(&target->config, &sizes, &why))
		bench_die("core: %s", why);
	target->arena = zeros(sizes.arena_bytes, sizes.arena_bytes);
	target->ledger = zeros(sizes.ledger_bytes, 0);
	target->scratch = zeros(sizes.scratch_bytes, sizes.scratch_hot_bytes);
	target->fences = zeros(FENCE_BYTES, 0);
	target->keys = zeros(KEY_BYTES, 0);
	target->list = zeros(LIST_BYTES, 0);
	target->sizes = sizes;
	view = (struct kvt_core_view){ target->keys, AREA_KEYS, target->list, AREA_LIST * 4,
				       target->fences };
	if (kvt_core_init(&target->core, &target->config, target->arena, target->ledger,
			  target->scratch, &hooks, 1))
		bench_die("core: cannot start");
	kvt_core_publish(target->core, KVT_ARENA_READY);
	if (kvt_core_session_open(target->core, &peer, &view, 1, &target->session) ||
	    kvt_core_namespace_open(target->core, target->session, DIGEST, "bench", 1,
				    &target->namespace_id))
		bench_die("core: cannot open a session");
}

static void encode(struct bench_target *target, const struct kvt_request *request)
{
	struct kvt_sqe *sqe = &target->sqe;

	*sqe = (struct kvt_sqe){
		.op = (uint8_t)request->op, .fence_slot = KVT_FENCE_IDLE,
		.flags = (uint16_t)request->flags, .namespace_id = request->namespace_id,
		.n_keys = request->n_keys, .arg = request->arg,
		.node = request->handle.node, .generation = request->handle.generation,
		.positions = request->handle.positions, .priority = request->priority,
	};
	if (request->n_keys)
		memcpy(target->keys, request->keys, request->n_keys * sizeof(uint32_t));
	if (request->n_sides) {
		sqe->flags |= KVT_F_SIDES;
		target->keys[0] = request->n_sides;
		memcpy(target->keys + 1, request->sides,
		       request->n_sides * sizeof(*request->sides));
	}
	if (kvt_op_takes(request->op) & KVT_TAKES_PAGES) {
		memcpy(target->keys, request->pages, request->n_pages * sizeof(uint32_t));
		sqe->n_keys = request->n_pages;
	} else if (request->op == KVT_OP_INSERT) {
		memcpy(target->keys + request->n_keys, request->pages,
		       request->n_pages * sizeof(uint32_t));
		sqe->arg = request->n_keys;
	}
	if (request->lease.index) {
		sqe->node = request->lease.index;
		sqe->generation = request->lease.generation;
	}
	if (kvt_op_takes(request->op) & KVT_TAKES_LIST &&
	    (request->op != KVT_OP_MATCH || request->flags & KVT_F_LOCK) &&
	    (!(request->flags & KVT_F_NO_LIST) || request->n_sides))
		sqe->list_capacity = AREA_LIST;
}

static void decode(struct bench_target *target, const struct kvt_cqe *cqe,
		   struct kvt_result *result)
{
	result->error = cqe->result;
	result->reason = cqe->reason;
	result->op = target->sqe.op;
	result->seq = cqe->seq;
	result->handle = (struct kvt_handle){ cqe->node, cqe->generation, cqe->positions };
	result->lease = (struct kvt_lease){ cqe->lease, cqe->lease_generation };
	result->pages = target->list;
	result->n_pages = cqe->n_list;
	if (cqe->result == 0)
		kvt_client_decode_answer(result, cqe);
}

static int run_core(struct bench_target *target, struct kvt_result *ret_result)
{
	struct kvt_cqe cqe;

	if (!kvt_core_execute(target->core, target->session, &target->sqe, 1, &cqe))
		bench_die("an operation without a fence was deferred");
	decode(target, &cqe, ret_result);
	return cqe.result;
}

/* ---- the daemon ---- */

struct kvt_client *bench_connect(const struct bench_target *target, int64_t spin_budget_ns,
				 uint32_t *ret_namespace)
{
	struct kvt_options options = KVT_OPTIONS_INIT;
	struct kvt_client *client;
	struct kvt_error error;

	options.socket_path = target->daemon.socket_path;
	options.label = "kvtbench";
	options.flags = KVT_ANY_GEOMETRY; /* it writes no page */
	options.spin_budget_ns = spin_budget_ns;
	options.keys_count = AREA_KEYS;
	options.list_count = AREA_LIST;
	if (kvt_client_connect(&client, &options, &error))
		bench_die("connect: %s", error.text);
	if (kvt_namespace_open(client, DIGEST, "bench", ret_namespace))
		bench_die("namespace: %s", kvt_client_error(client)->text);
	return client;
}

/* The benchmark's daemon, stopped at exit(). */
static struct kvt_own_daemon *own_daemon;
static pid_t own_pid; /* forked clients are not the owner */

static void stop_daemon(void)
{
	if (own_daemon && getpid() == own_pid)
		kvt_own_daemon_stop(own_daemon);
	own_daemon = NULL;
}

static void on_signal(int number)
{
	stop_daemon();
	_exit(128 + number);
}

static void watch_over(struct kvt_own_daemon *daemon)
{
	static bool registered;
	struct sigaction action = { .sa_handler = on_signal };

	own_daemon = daemon;
	own_pid = getpid();
	if (registered)
		return;
	registered = true;
	atexit(stop_daemon);
	sigaction(SIGINT, &action, NULL);
	sigaction(SIGTERM, &action, NULL);
}

static void open_daemon(struct bench_target *target, uint32_t n_pages)
{
	char pages[32], spin[40], why[512] = "";
	const char *flags[] = { pages, "--page_size=64", "--page_bytes=4096",
				"--max_private_pages=0", "--log_level=error",
				target->spin_us == BENCH_SPIN_DEFAULT ? NULL : spin, NULL };
	int rc;

	snprintf(pages, sizeof(pages), "--n_pages=%u", n_pages);
	snprintf(spin, sizeof(spin), "--spin_budget_us=%lld", (long long)target->spin_us);
	rc = kvt_own_daemon_start(&target->daemon, target->options->daemon, flags,
				  target->unbound ? -1 : target->options->daemon_cpu, why,
				  sizeof(why));
	if (rc == -EINVAL) {
		fprintf(stderr, "kvtbench: %s\n", why);
		exit(2);
	}
	if (rc)
		bench_die("%s", why);
	watch_over(&target->daemon);
	bench_watch(0, target->daemon.pid);
	target->daemon_runs = true;
	target->client = bench_connect(target, -1, &target->namespace_id);
}

/* ---- either ---- */

void bench_target_open(struct bench_target *target, const struct bench_options *options,
		       uint32_t n_pages)
{
	target->options = options;
	if (options->core)
		open_core(target, n_pages);
	else
		open_daemon(target, n_pages);
}

void bench_target_close(struct bench_target *target)
{
	if (target->client) {
		kvt_client_close(target->client, KVT_IDLE);
		bench_watch(0, 0);
		stop_daemon();
	}
	if (target->core) {
		munmap(target->arena, target->sizes.arena_bytes);
		munmap(target->ledger, target->sizes.ledger_bytes);
		munmap(target->scratch, target->sizes.scratch_bytes);
		munmap(target->fences, FENCE_BYTES);
		munmap(target->keys, KEY_BYTES);
		munmap(target->list, LIST_BYTES);
	}
	memset(target, 0, sizeof(*target));
}

void bench_prepare(struct bench_target *target, const struct kvt_request *request)
{
	if (target->core)
		encode(target, request);
}

static int run(struct bench_target *target, const struct kvt_request *request,
	       struct kvt_result *ret_result)
{
	if (target->core)
		return run_core(target, ret_result);
	return kvt_call(target->client, request, ret_result);
}

void bench_run(struct bench_target *target, const struct kvt_request *request,
	       struct kvt_result *ret_result)
{
	int rc = run(target, request, ret_result);

	if (__builtin_expect(rc != 0, 0))
		bench_die("%s: %s: %s", kvt_op_name((int)request->op), kvt_errno_name(rc),
			  target->core ? kvt_reason_text((int)ret_result->reason) :
					 kvt_client_error(target->client)->text);
}

int bench_try(struct bench_target *target, const struct kvt_request *request,
	      struct kvt_result *ret_result)
{
	bench_prepare(target, request);
	return run(target, request, ret_result);
}

void bench_release(struct bench_target *target, struct kvt_result *result)
{
	if (!target->core)
		kvt_result_release(target->client, result);
}

void bench_idle(struct bench_target *target, uint32_t budget)
{
	int64_t until = kvt_now_ns() + IDLE_NS;

	if (target->core) {
		kvt_core_work(target->core, budget, true, 1);
		return;
	}
	while (kvt_now_ns() < until)
		kvt_cpu_relax();
}
