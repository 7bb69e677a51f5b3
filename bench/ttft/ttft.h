/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_BENCH_TTFT_H
#define KVT_BENCH_TTFT_H

/**
 * @file ttft.h
 * kvtbench-ttft: how sharing pages changes the latency of processes that run a real model.
 *
 * Every process is a worker (examples/worker): one request at a time, greedy. Requests arrive at
 * fixed times, whether or not a process is free, or some time after another answer, at one
 * queue from which free processes take them; times count from the arrival. A reference run
 * computes every request first, alone and without a daemon: its times are the floors, and its
 * tokens and logits are expected of every other run.
 */

#include <stdbool.h>
#include <stdint.h>

#include "bench/bench.h"
#include "examples/worker/prices.h"
#include "examples/worker/worker.h"
#include "lab/daemon.h"

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
	uint32_t conversations, calls; /* calls of each, after the long first one */
	uint32_t cached;               /* positions that the first call finds */
};

/** One prompt and its arrival. */
struct ttft_request {
	uint32_t *tokens;
	uint32_t n;
	uint32_t warm; /* leading positions cached on arrival, at best */
	char text[64]; /* the right answer, where there is one */
	uint64_t due_ns; /* after the start */
	uint32_t after;  /* not 0: arrives due_ns after that request's answer */
	uint32_t conversation;
};

struct ttft_workload {
	const char *name;
	struct ttft_request request[TTFT_MAX_REQUESTS];
	uint32_t n;
	/* The first ones only fill the cache; all others wait for them. Left out where nothing is
	 * reused. */
	uint32_t n_unmeasured;
};

static inline uint32_t ttft_whole_pages(uint32_t positions)
{
	return positions / TTFT_PAGE_SIZE * TTFT_PAGE_SIZE;
}

/** The outcome of one request; in memory that workers share. */
struct ttft_answer {
	uint32_t tokens[TTFT_MAX_TOKENS];
	uint32_t n_tokens;
	uint32_t cached, prefilled, restarts, waits;
	bool unpublished, done;
	uint64_t begun_ns;
	double late_us;           /* from arrival to begun_ns: no process was free */
	double ttft_us, total_us; /* since begun_ns */
	double cpu_us;            /* of the serving process only */
	double token_us[TTFT_MAX_TOKENS];
	uint64_t logits_digest[2]; /* of all bits of the logits */
};

enum ttft_mode {
	TTFT_CACHE,    /* one daemon for all */
	TTFT_NONE,     /* one daemon; nothing reused or published */
	TTFT_PRIVATE,  /* a daemon of its own for each process, of its part of the pages */
	TTFT_STICKY,   /* likewise; a conversation stays with one process */
	TTFT_DISABLED, /* one daemon with caching = no */
	TTFT_MODES,
};
extern const char *const ttft_mode_name[TTFT_MODES];

/* ---- engine.c: workers and their daemons ---- */

/** Open a worker with a model (NULL: the shipped one) and the shipped tokenizer, not connected. */
void ttft_engine_open(struct worker *worker, const struct ttft_options *options,
		      const char *model);
void ttft_daemon_start(struct kvt_own_daemon *daemon, const struct ttft_options *options,
		       const struct worker *worker, uint32_t n_pages, bool caching);
void ttft_daemon_stop(struct kvt_own_daemon *daemon);
/** Connect and warm up, so that no request pays for first uses. */
void ttft_engine_connect(struct worker *worker, const char *socket);
void ttft_engine_serve(struct worker *worker, const struct ttft_request *request, bool cache,
		       struct ttft_answer *ret_answer);

void ttft_digest(const float *logits, uint32_t n_tokens, uint32_t vocab_size,
		 uint64_t *ret_digest);
/** End the program unless tokens and logits are as expected. */
void ttft_same_output(const char *workload, const struct ttft_answer *expected, uint32_t request,
		      const struct ttft_answer *answer, const char *where);

/** Return the CPU time of this thread, the only one that computes. OpenBLAS's threads, made when
 * the program was loaded, spin for a while and then sleep, whatever they are told. */
double ttft_cpu_us(void);

/* ---- random_model.c ---- */

/** Open a worker with a model of random weights, this context and the vocabulary of `like`; not
 * connected. */
void ttft_random_model_open(struct worker *worker, const struct ttft_options *options,
			    const struct worker *like, uint32_t context);

/* ---- workload.c ---- */

/** Make prompts on one list of `lines` lines; own parts of 2 to 9 turns. */
void ttft_workload_shared(struct ttft_workload *workload, const struct worker *worker,
			  const struct prices *prices, const struct ttft_options *options);
/** As above, but every prompt has a list of its own. */
void ttft_workload_unique(struct ttft_workload *workload, const struct worker *worker,
			  const struct prices *prices, const struct ttft_options *options);
/** Make `lists` lists that take turns: in a smaller pool each is evicted before it returns. */
void ttft_workload_rotating(struct ttft_workload *workload, const struct worker *worker,
			    const struct prices *prices, const struct ttft_options *options,
			    uint32_t lists);
/** Make `workers` copies of a prompt at once. */
void ttft_workload_same(struct ttft_workload *workload, const struct worker *worker,
			const struct prices *prices, uint32_t workers);
void ttft_workload_free(struct ttft_workload *workload);

/* ---- reference.c ---- */

/** Private KV for one sequence at a time, and its model. */
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
/** Generate one request; the positions before `from` are in the slab already. */
void ttft_slab_generate(struct ttft_slab *slab, const struct ttft_request *request, uint32_t from,
			struct ttft_answer *ret_answer);
/** Generate several times and keep the quickest. */
void ttft_slab_generate_best(struct ttft_slab *slab, const struct ttft_request *request,
			     uint32_t from, struct ttft_answer *ret_answer);

/** The machine's cost of these requests alone: no daemon, no other process. */
struct ttft_reference {
	struct ttft_answer answer[TTFT_MAX_REQUESTS];
	double cold[TTFT_MAX_REQUESTS], warm[TTFT_MAX_REQUESTS];
	double token[TTFT_MAX_REQUESTS * TTFT_MAX_TOKENS];
	uint32_t n, n_steps;
	double cold_ttft_us; /* median: the whole prompt */
	double warm_ttft_us; /* median: those after `warm` */
	double token_us;     /* median: one more token */
	double warm_total_us, cold_total_us; /* sums, of whole requests */
	double warm_cpu_us, cold_cpu_us;     /* likewise */
	uint32_t right;      /* correct answers */
};
void ttft_reference_run(struct worker *worker, const struct ttft_workload *workload,
			struct ttft_reference *ret_reference);
/** Count one measured request: its cost from nothing, and with the positions before `warm`. */
void ttft_reference_add(struct ttft_reference *reference, const struct ttft_answer *cold,
			const struct ttft_answer *warm);
/** Compute the medians. */
void ttft_reference_end(struct ttft_reference *reference);
double ttft_median(double *values, uint32_t n);

/* ---- serve.c ---- */

struct ttft_pool_use {
	uint64_t peak_used, peak_held; /* pages: cached or private; locked or private */
	uint64_t peak_used_positions;
	uint64_t coalesced_positions, input_positions;
};

/** Serve a workload by `workers` processes, with `n_pages` shared or divided among them. Returns
 * the times of measured and unmeasured requests. Ends the program on an error. */
void ttft_serve(const struct ttft_options *options, struct worker *worker,
		const struct ttft_workload *workload, enum ttft_mode mode, uint32_t workers,
		uint32_t n_pages, struct ttft_answer *ret_answers, struct ttft_pool_use *ret_use,
		double *ret_unmeasured_s, double *ret_seconds);

/* ---- pair.c ---- */

/** Times relative to that with the cache. */
struct ttft_pair_ratios {
	double miss, miss_cpu;   /* through the daemon, reusing and publishing nothing */
	double alone, alone_cpu; /* in private memory, without a daemon */
};
/** Serve the workload three ways in turns, several rounds: with the cache, without it, and without
 * a daemon. */
void ttft_pair(const struct ttft_options *options, struct worker *worker,
	       const struct ttft_workload *workload, const struct ttft_reference *reference,
	       uint32_t n_pages, bool caching, struct ttft_pair_ratios *ret_ratios);

/* ---- agent.c: long conversations that return with little new text ---- */

struct ttft_agent;

/** Open the agents, with a model whose context fits the conversations. `like` gives tokenizer and
 * vocabulary. Ends the program if the machine lacks memory. */
struct ttft_agent *ttft_agent_open(const struct ttft_options *options, const struct worker *like,
				   uint32_t workers);
void ttft_agent_close(struct ttft_agent *agent);
/** Write the conversations: each call needs the answer before it, so floors and answers result,
 * too. Ends the program unless answers differ from each other, and from those with one wrong
 * page. */
void ttft_agent_reference(struct ttft_agent *agent, struct ttft_workload *ret_workload,
			  struct ttft_reference *ret_reference);
struct worker *ttft_agent_worker(struct ttft_agent *agent);
/** Return the pages of a pool with room for all conversations and a quarter of one more. */
uint32_t ttft_agent_pages(const struct ttft_agent *agent, uint32_t workers);
/** Continue the last conversation for some calls, each computed twice in turns: in the slab and
 * through a daemon. Prints one line; returns the median of their ratios. */
double ttft_agent_turns(struct ttft_agent *agent);

#endif
