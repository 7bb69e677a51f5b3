/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_BENCH_TTFT_H
#define KVT_BENCH_TTFT_H

/**
 * @file ttft.h
 * kvtbench-ttft: what sharing pages does to the latency of processes that run a real model.
 *
 * Every process is a worker (examples/worker): one request at a time, greedy. Requests arrive at
 * fixed times, whether or not anybody is free, or some time after the answer to another one, at one
 * queue from which whoever is free takes the next; times count from the arrival. A reference run
 * computes every request before, alone and without any daemon: its times are the floors, and its
 * tokens and logits are what every other run must give.
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
	/* The agent-shaped part. */
	uint32_t conversations, calls; /* calls of each, after the one that brings what is long */
	uint32_t cached;               /* positions that the first of these calls finds */
};

/** One prompt, and when it comes. */
struct ttft_request {
	uint32_t *tokens;
	uint32_t n;
	uint32_t warm; /* positions before these are cached when it comes, at best */
	char text[64]; /* the right answer, where there is one */
	uint64_t due_ns; /* after the start */
	uint32_t after;  /* not 0: comes due_ns after the answer to that request */
	uint32_t conversation;
};

struct ttft_workload {
	const char *name;
	struct ttft_request request[TTFT_MAX_REQUESTS];
	uint32_t n;
	/* The first of them only fill the cache; all others wait for them. Left out where nothing
	 * is reused: nothing of them would be left. */
	uint32_t n_unmeasured;
};

static inline uint32_t ttft_whole_pages(uint32_t positions)
{
	return positions / TTFT_PAGE_SIZE * TTFT_PAGE_SIZE;
}

/** What came of one request; in memory that workers share. */
struct ttft_answer {
	uint32_t tokens[TTFT_MAX_TOKENS];
	uint32_t n_tokens;
	uint32_t cached, prefilled, restarts, waits;
	bool unpublished, done;
	uint64_t begun_ns;
	double late_us;           /* from its arrival to begun_ns: nobody was free */
	double ttft_us, total_us; /* from begun_ns on */
	double cpu_us;            /* of who served it; what others took is not in it */
	double token_us[TTFT_MAX_TOKENS];
	uint64_t logits_digest[2]; /* of every bit that the tokens were chosen from */
};

enum ttft_mode {
	TTFT_CACHE,    /* one daemon for all */
	TTFT_NONE,     /* one daemon, nothing reused and nothing published */
	TTFT_PRIVATE,  /* a daemon of its own for each process, of its part of the pages */
	TTFT_STICKY,   /* likewise, and a conversation always goes to the same process */
	TTFT_DISABLED, /* one daemon with caching = no */
	TTFT_MODES,
};
extern const char *const ttft_mode_name[TTFT_MODES];

/* ---- engine.c: workers and their daemons ---- */

/** A worker with a model (NULL: the shipped one) and the shipped tokenizer, not connected. */
void ttft_engine_open(struct worker *worker, const struct ttft_options *options,
		      const char *model);
void ttft_daemon_start(struct kvt_own_daemon *daemon, const struct ttft_options *options,
		       const struct worker *worker, uint32_t n_pages, bool caching);
void ttft_daemon_stop(struct kvt_own_daemon *daemon);
/** Connect and run something once, so that no request pays for first uses. */
void ttft_engine_connect(struct worker *worker, const char *socket);
void ttft_engine_serve(struct worker *worker, const struct ttft_request *request, bool cache,
		       struct ttft_answer *ret_answer);

void ttft_digest(const float *logits, uint32_t n_tokens, uint32_t vocab_size,
		 uint64_t *ret_digest);
/** Ends the program unless tokens and logits are what was expected. */
void ttft_same_output(const char *workload, const struct ttft_answer *expected, uint32_t request,
		      const struct ttft_answer *answer, const char *where);

/** CPU time of this thread so far, which is the only one that computes: those that OpenBLAS made
 * when the program was loaded spin for a while and then sleep, whatever they are told. */
double ttft_cpu_us(void);

/* ---- random_model.c ---- */

/** A worker with a model of random weights and this context, of the vocabulary that `like` has;
 * not connected. */
void ttft_random_model_open(struct worker *worker, const struct ttft_options *options,
			    const struct worker *like, uint32_t context);

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
/** `workers` times the same prompt at once. */
void ttft_workload_same(struct ttft_workload *workload, const struct worker *worker,
			const struct prices *prices, uint32_t workers);
void ttft_workload_free(struct ttft_workload *workload);

/* ---- reference.c ---- */

/** KV in memory of this process, for one sequence at a time, and what computes on it. */
struct ttft_slab {
	struct worker *worker;
	struct forward forward;
	void *base;
	uint64_t bytes;
	uint32_t *pages; /* the page table */
	uint32_t n_pages;
	float *logits; /* [TTFT_MAX_TOKENS][vocab]: of the last answer */
};
void ttft_slab_open(struct ttft_slab *slab, struct worker *worker);
void ttft_slab_close(struct ttft_slab *slab);
/** One request whose positions before `from` are in the slab already. */
void ttft_slab_generate(struct ttft_slab *slab, const struct ttft_request *request, uint32_t from,
			struct ttft_answer *ret_answer);
/** The quickest of several times. */
void ttft_slab_generate_best(struct ttft_slab *slab, const struct ttft_request *request,
			     uint32_t from, struct ttft_answer *ret_answer);

/** What the machine needs for these requests with nothing around: no daemon, no other process. */
struct ttft_reference {
	struct ttft_answer answer[TTFT_MAX_REQUESTS];
	double cold[TTFT_MAX_REQUESTS], warm[TTFT_MAX_REQUESTS];
	double token[TTFT_MAX_REQUESTS * TTFT_MAX_TOKENS];
	uint32_t n, n_steps;
	double cold_ttft_us; /* median: all positions of the prompt */
	double warm_ttft_us; /* median: those after `warm` */
	double token_us;     /* median: one more token */
	double warm_total_us, cold_total_us; /* sums, of whole requests */
	double warm_cpu_us, cold_cpu_us;     /* likewise */
	uint32_t right;      /* answers that are what they should be */
};
void ttft_reference_run(struct worker *worker, const struct ttft_workload *workload,
			struct ttft_reference *ret_reference);
/** Count one measured request: what it takes from nothing, and where the positions before `warm`
 * are there. */
void ttft_reference_add(struct ttft_reference *reference, const struct ttft_answer *cold,
			const struct ttft_answer *warm);
/** All are counted: the medians. */
void ttft_reference_end(struct ttft_reference *reference);
double ttft_median(double *values, uint32_t n);

/* ---- serve.c ---- */

struct ttft_pool_use {
	uint64_t peak_used, peak_held; /* pages: cached or private; locked or private */
	uint64_t peak_used_positions;
	uint64_t coalesced_positions, input_positions;
};

/** Serve a workload by `workers` processes, in which `n_pages` are shared by all or divided among
 * them. Times of what is measured, and of what is not and comes before. Ends the program when one
 * fails. */
void ttft_serve(const struct ttft_options *options, struct worker *worker,
		const struct ttft_workload *workload, enum ttft_mode mode, uint32_t workers,
		uint32_t n_pages, struct ttft_answer *ret_answers, struct ttft_pool_use *ret_use,
		double *ret_unmeasured_s, double *ret_seconds);

/* ---- pair.c ---- */

/** Another way's time over the time with the cache. */
struct ttft_pair_ratios {
	double miss, miss_cpu;   /* through the daemon, reusing and publishing nothing */
	double alone, alone_cpu; /* in memory of its own, without any daemon */
};
/** One process serves the workload three times in turns, several rounds: with the cache, without
 * it, and without a daemon. */
void ttft_pair(const struct ttft_options *options, struct worker *worker,
	       const struct ttft_workload *workload, const struct ttft_reference *reference,
	       uint32_t n_pages, bool caching, struct ttft_pair_ratios *ret_ratios);

/* ---- agent.c: long conversations that come back with little that is new ---- */

struct ttft_agent;

/** With a model of its own, whose context is as long as the conversations will be. `like` gives
 * tokenizer and vocabulary. Ends the program where this machine has no memory for it all. */
struct ttft_agent *ttft_agent_open(const struct ttft_options *options, const struct worker *like,
				   uint32_t workers);
void ttft_agent_close(struct ttft_agent *agent);
/** Write the conversations: each call needs the answer before it, so floors and answers come with
 * them. Ends the program unless answers differ from each other, and from those that one wrong page
 * gives. */
void ttft_agent_reference(struct ttft_agent *agent, struct ttft_workload *ret_workload,
			  struct ttft_reference *ret_reference);
struct worker *ttft_agent_worker(struct ttft_agent *agent);
/** Pages of a pool in which all conversations have room, and a quarter of one more. */
uint32_t ttft_agent_pages(const struct ttft_agent *agent, uint32_t workers);
/** The last conversation goes on for some calls, each computed twice in turns: in the slab and
 * through a daemon. Prints one line; returns the median of their ratios. */
double ttft_agent_turns(struct ttft_agent *agent);

#endif
