/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_BENCH_TTFT_H
#define KVT_BENCH_TTFT_H

/**
 * @file ttft.h
 * kvtbench-ttft: what sharing pages does to the latency of processes that run a real model.
 *
 * Every process is a worker (examples/worker): one request at a time, greedy. Requests arrive at
 * fixed times, whether or not anybody is free, at one queue from which whoever is free takes the
 * next; times count from the arrival. A reference run computes every request before, alone and
 * without any daemon: its times are the floors, and its tokens are what every other run must
 * give.
 */

#include <stdbool.h>
#include <stdint.h>

#include "bench/bench.h"
#include "examples/worker/prices.h"
#include "examples/worker/worker.h"
#include "tools/replay_daemon.h"

#define TTFT_MAX_TOKENS 12u /* an answer is 8 */
#define TTFT_MAX_WORKERS 8u
#define TTFT_MAX_REQUESTS 256u
#define TTFT_PAGE_SIZE 16u
#define TTFT_CHUNK 512u /* positions between two commits, as engines prefill */

struct ttft_options {
	const char *directory; /* of the model */
	const char *daemon;    /* program, NULL: beside this one */
	uint32_t requests;
	double per_second;
	uint32_t rounds; /* of the comparisons in turns */
	uint32_t chunk;  /* of those; 0: each of several */
};

/** One prompt, and when it comes. */
struct ttft_request {
	uint32_t *tokens;
	uint32_t n;
	uint32_t warm; /* positions before these are cached when it comes, at best */
	char text[64]; /* the right answer */
	uint64_t due_ns; /* after the start */
};

struct ttft_workload {
	const char *name;
	struct ttft_request request[TTFT_MAX_REQUESTS];
	uint32_t n;
	uint32_t n_unmeasured; /* the first of them only fill the cache; all others wait for them */
};

/** What came of one request; in memory that workers share. */
struct ttft_answer {
	uint32_t tokens[TTFT_MAX_TOKENS];
	uint32_t n_tokens;
	uint32_t cached, prefilled, restarts, waits;
	bool unpublished, done;
	uint64_t begun_ns;
	double ttft_us, total_us; /* from begun_ns on */
	double token_us[TTFT_MAX_TOKENS];
};

enum ttft_mode {
	TTFT_CACHE,    /* one daemon for all */
	TTFT_NONE,     /* one daemon, nothing reused and nothing published */
	TTFT_PRIVATE,  /* a daemon of its own for each process, of its part of the pages */
	TTFT_DISABLED, /* one daemon with caching = no */
	TTFT_MODES,
};
extern const char *const ttft_mode_name[TTFT_MODES];

/* ---- engine.c: workers and their daemons ---- */

/** A worker with model and tokenizer, not connected. */
void ttft_engine_open(struct worker *worker, const struct ttft_options *options);
void ttft_daemon_start(struct kvt_own_daemon *daemon, const struct ttft_options *options,
		       const struct worker *worker, uint32_t n_pages, bool caching);
void ttft_daemon_stop(struct kvt_own_daemon *daemon);
/** Connect and run something once, so that no request pays for first uses. */
void ttft_engine_connect(struct worker *worker, const char *socket);
void ttft_engine_serve(struct worker *worker, const struct ttft_request *request, bool cache,
		       struct ttft_answer *ret_answer);

/* ---- workload.c ---- */

/** Prompts on one list of `lines` lines; own parts of 2 to 9 turns. */
void ttft_workload_shared(struct ttft_workload *workload, const struct worker *worker,
			  const struct prices *prices, const struct ttft_options *options);
/** As above, but every prompt has a list of its own. */
void ttft_workload_unique(struct ttft_workload *workload, const struct worker *worker,
			  const struct prices *prices, const struct ttft_options *options);
/** `lists` lists that take turns: in a pool with less room than that, each is gone when it comes
 * again. */
void ttft_workload_rotating(struct ttft_workload *workload, const struct worker *worker,
			    const struct prices *prices, const struct ttft_options *options,
			    uint32_t lists);
/** Conversations that go on after a long cached part, with 727 new positions. */
void ttft_workload_agent(struct ttft_workload *workload, const struct worker *worker,
			 const struct prices *prices, const struct ttft_options *options);
/** `workers` times the same prompt at once. */
void ttft_workload_same(struct ttft_workload *workload, const struct worker *worker,
			const struct prices *prices, uint32_t workers);
void ttft_workload_free(struct ttft_workload *workload);

/* ---- reference.c ---- */

/** What the machine needs for these requests with nothing around: no daemon, no other process. */
struct ttft_reference {
	struct ttft_answer answer[TTFT_MAX_REQUESTS];
	double cold_ttft_us; /* median: all positions of the prompt */
	double warm_ttft_us; /* median: those after `warm` */
	double token_us;     /* median: one more token */
	double warm_total_us, cold_total_us; /* sums, of whole requests */
	uint32_t right;      /* answers that are what they should be */
};
void ttft_reference_run(struct worker *worker, const struct ttft_workload *workload,
			struct ttft_reference *ret_reference);

/* ---- serve.c ---- */

struct ttft_pool_use {
	uint64_t peak_used, peak_held; /* pages: cached or private; locked or private */
	uint64_t peak_used_positions;
	uint64_t coalesced_positions, input_positions;
};

/** Serve a workload by `workers` processes. Ends the program when one fails. */
void ttft_serve(const struct ttft_options *options, struct worker *worker,
		const struct ttft_workload *workload, enum ttft_mode mode, uint32_t workers,
		uint32_t n_pages, struct ttft_answer *ret_answers, struct ttft_pool_use *ret_use,
		double *ret_seconds);

/* ---- pair.c ---- */

/** One process serves the workload twice in turns, with the cache and without, several rounds.
 * Returns the time without over the time with. The floor is the reference's sum. */
double ttft_pair(const struct ttft_options *options, struct worker *worker,
		 const struct ttft_workload *workload, const struct ttft_reference *reference,
		 uint32_t n_pages, bool caching);

/** Ends the program unless the tokens are the reference's. */
void ttft_same_output(const struct ttft_workload *workload,
		      const struct ttft_reference *reference, uint32_t request,
		      const struct ttft_answer *answer, const char *where);

#endif
