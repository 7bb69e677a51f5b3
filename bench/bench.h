/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_BENCH_H
#define KVT_BENCH_H

/**
 * @file bench.h
 * kvtbench: what kvtrunk costs, each figure beside its own floor.
 *
 * A figure is measured against a *target*: the real daemon on its own core, reached through
 * libkvtrunk, or (with --core) the state machine called in this process, for tuning. A floor is
 * the machine's cost of the same data movement without cache logic; figure and floor are
 * measured in turns, so that a noisy moment hits both.
 *
 * Results are JSON lines on stdout. Failures end the program: a failed benchmark has no
 * figure.
 */

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "daemon/core/core.h"
#include "kvtrunk.h"
#include "kvtrunk_wire_operations.h"
#include "lab/daemon.h"
#include "lab/trace/trace.h"
#include "shm/clock.h"

#define BENCH_PAGE_SIZE 64u
#define BENCH_POSITIONS (1u << 20) /* room of the pool: 1 M positions */
#define BENCH_SIZES 5u
#define BENCH_PREFIXES 16u
#define BENCH_SPIN_DEFAULT INT64_MAX /* as the program chooses */

struct bench_options {
	bool quick;
	bool core;        /* call the state machine in this process */
	bool fresh;       /* which trees */
	bool replayed;
	int client_cpu;
	int daemon_cpu;
	const char *daemon; /* program, NULL: beside this one */
	const char *data;   /* directory with the traces */
	const char *attack; /* only this one; NULL: all */
};

/* ---- measure.c: time, samples, results ---- */

__attribute__((noreturn, format(printf, 1, 2))) void bench_die(const char *format, ...);
void *bench_alloc(size_t n, size_t bytes);

void bench_clock_init(void);

static inline uint64_t bench_ticks(void)
{
#if defined(__x86_64__)
	return __builtin_ia32_rdtsc();
#elif defined(__aarch64__)
	uint64_t ticks;

	__asm__ volatile("mrs %0, cntvct_el0" : "=r"(ticks));
	return ticks;
#else
	return kvt_now_ns();
#endif
}

struct bench_samples {
	uint64_t *ticks;
	uint32_t n;
	uint32_t capacity;
	uint32_t preempted;
};

struct bench_summary {
	double p50, p90, p99, max; /* ns */
	uint32_t n;
	uint32_t preempted; /* samples left out */
};

/** Processes on the other core whose preemption spoils a sample: the daemon, a floor. 0: none. */
void bench_watch(unsigned int which, pid_t pid);
/** Add a sample. Long ones during which this core or the other side's was preempted are counted and
 * left out. */
void bench_samples_add(struct bench_samples *samples, uint64_t ticks);
void bench_samples_add_any(struct bench_samples *samples, uint64_t ticks);
/** Sort, summarise and empty the samples. */
struct bench_summary bench_samples_take(struct bench_samples *samples);

/** One result line. `extra`: JSON members without braces, or "". */
struct bench_result {
	const char *name;
	const char *kind; /* "case" member, may be NULL */
	const char *tree; /* "fresh", "replayed" or NULL */
	uint32_t keys;    /* 0: left out */
	struct bench_summary value;
	struct bench_summary floor; /* n = 0: none */
	const char *floor_is;       /* the floor's work */
	char extra[256];
};
void bench_emit(const struct bench_result *result);
/** Print a line without samples: members without braces. */
void bench_line(const char *name, const char *format, ...) __attribute__((format(printf, 2, 3)));

/** Record an aim for the table at the end. `at_least`: larger is better. */
void bench_aim(const char *figure, double value, const char *unit, double aim, bool at_least);
void bench_aims_print(void);
void bench_pin(pid_t pid, int cpu);

/* ---- target.c ---- */

struct bench_target {
	const struct bench_options *options;
	struct kvt_own_daemon daemon;
	struct kvt_client *client;
	struct kvt_core *core;
	struct kvt_core_config config;
	struct kvt_core_sizes sizes;
	void *arena, *ledger, *scratch, *fences;
	uint32_t *keys, *list; /* core: the areas */
	uint32_t session;
	uint32_t namespace_id;
	struct kvt_sqe sqe; /* core: prepared */
	bool daemon_runs; /* not stopped */
	/* Set before opening: */
	int64_t spin_us; /* the daemon's spin_budget_us */
	bool unbound;    /* it may run on any core */
};

void bench_target_open(struct bench_target *target, const struct bench_options *options,
		       uint32_t n_pages);
void bench_target_close(struct bench_target *target);
struct kvt_client *bench_connect(const struct bench_target *target, int64_t spin_budget_ns,
				 uint32_t *ret_namespace);

/** Do the untimed part: in the core target the keys are put where it reads them. */
void bench_prepare(struct bench_target *target, const struct kvt_request *request);
/** Run the prepared request; dies when it fails. */
void bench_run(struct bench_target *target, const struct kvt_request *request,
	       struct kvt_result *ret_result);
/** Prepare and run a request. Returns its error. */
int bench_try(struct bench_target *target, const struct kvt_request *request,
	      struct kvt_result *ret_result);
void bench_release(struct bench_target *target, struct kvt_result *result);
/** Give the target idle time: `budget` steps of idle work in the core target; 200 us without an
 * operation for the daemon. */
void bench_idle(struct bench_target *target, uint32_t budget);

/* ---- floor.c ---- */

struct bench_floor;

/** Start the floor: a process on the daemon's core that takes entries from a session segment,
 * compares keys with private copies and answers through the ring. For the core target a comparison
 * in this process. `keys`: n_sets arrays of n keys. */
struct bench_floor *bench_floor_start(struct bench_target *target, uint32_t *const *keys,
				      uint32_t n_sets, uint32_t n);
void bench_floor_stop(struct bench_floor *floor);

/** Let the floor or the daemon run, with the other one stopped. */
void bench_floor_turn(struct bench_floor *floor, bool floor_runs);

/** Measure the ticks of one call: write n_keys of `keys`, compare the first `compared` of them with
 * copy `set`, copy the rest, answer. n_keys 0: the empty round trip. */
uint64_t bench_floor_call(struct bench_floor *floor, uint32_t set, const uint32_t *keys,
			  uint32_t compared, uint32_t n_keys);
/** Measure the ticks of `batch` calls submitted at once. */
uint64_t bench_floor_batch(struct bench_floor *floor, const uint32_t *keys, uint32_t n_keys,
			   uint32_t batch);

/* ---- tree.c ---- */

/** Prefixes cached in the target, by size. */
struct bench_tree {
	const char *name; /* "fresh" or "replayed" */
	uint32_t *keys[BENCH_SIZES][BENCH_PREFIXES];
	uint32_t n_sets[BENCH_SIZES];
};

extern const uint32_t bench_sizes[BENCH_SIZES];
void bench_tree_fresh(struct bench_target *target, struct bench_tree *tree);
void bench_tree_replayed(struct bench_target *target, struct bench_tree *tree);
void bench_tree_free(struct bench_tree *tree);
/** Cache a sequence: BEGIN, COMMIT a chunk at a time (0: at once), END. False when refused.
 * *ret_reusable and *ret_path_nodes (core target) may be NULL. */
bool bench_cache(struct bench_target *target, const uint32_t *keys, uint32_t n, uint32_t chunk,
		 uint32_t *ret_reusable, uint32_t *ret_path_nodes);
/** Make keys that nothing else uses. */
void bench_new_keys(uint32_t *keys, uint32_t n);

/* ---- the benchmarks ---- */

void bench_nop(struct bench_target *target);
void bench_match(struct bench_target *target, const struct bench_tree *tree);
void bench_probe(struct bench_target *target, const struct bench_tree *tree);
void bench_cycle(struct bench_target *target, const struct bench_tree *tree);
void bench_throughput(struct bench_target *target, const struct bench_tree *tree);
void bench_hammer(struct bench_target *target, const struct bench_tree *tree);
void bench_reclaim(struct bench_target *target, const struct bench_tree *tree);
void bench_reclaim_crowd(struct bench_target *target, const struct bench_tree *tree);
void bench_asleep(const struct bench_options *options);
void bench_salts(const struct bench_options *options);
void bench_unix(const struct bench_options *options);
void bench_evict(const struct bench_options *options);
void bench_sides(const struct bench_options *options);
void bench_feed(const struct bench_options *options);
void bench_arena(void);
void bench_memory(const struct bench_options *options);
void bench_stores(const struct bench_options *options);
void bench_attacks(const struct bench_options *options);
void bench_crowd(const struct bench_options *options);
void bench_rebuild(const struct bench_options *options);
int bench_scenarios(void); /* flat against radix; 0 if all figures are as published */

#endif
