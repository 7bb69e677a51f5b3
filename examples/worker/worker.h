/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_WORKER_H
#define KVT_WORKER_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "compute.h"
#include "forward.h"
#include "kvtrunk.h"
#include "model.h"

struct worker_options {
	const char *model, *tokenizer, *socket, *prompts;
	const char **prompt; /* --prompt, as often as given */
	uint32_t n_prompts;
	uint32_t max_tokens, chunk;
	float temperature;
	uint64_t seed;
	bool no_cache, verify, json, geometry;
	uint32_t page_size; /* with geometry */
	uint32_t kv_type;   /* enum kvt_attn_type of the pages' elements: F32, F16 or BF16 */
	bool cuda;          /* compute on CUDA device number device, else on the CPU */
	uint32_t device;
};

struct worker {
	struct worker_options options;
	struct model model;
	struct tokenizer tokenizer;
	struct kvt_client *client;
	struct kvt_pool pool;
	struct compute *compute; /* from the first worker_open_cache() on */
	struct forward forward;
	uint32_t namespace_id;
	char why[2 * WORKER_WHY_BYTES];
};

/** One prompt's way through the model. */
struct generation {
	uint32_t *tokens;     /* prompt, then what was generated */
	uint32_t n_prompt;
	uint32_t n_tokens;    /* of both */
	uint32_t cached;      /* positions that another sequence's KV served */
	uint32_t prefilled;   /* positions of the prompt computed here */
	uint32_t restarts;    /* times it gave way because the pool was full */
	uint32_t reconnects;  /* times the daemon was gone, and its successor knew nothing */
	uint32_t waits;       /* for room: times BEGIN was refused because all was locked */
	bool unpublished;     /* reset or removed meanwhile: it went on alone */
	double ttft_us;       /* from the request to the first new token */
	double total_us;
	double *token_us;     /* NULL, or [max_tokens]: when each new token came */
	float *logits;        /* NULL, or [max_tokens][vocab]: what each new token came from */
	FILE *echo;           /* NULL, or where text goes as it comes */
};

/** Types of KV by enum kvt_attn_type, in words; NULL behind the last. */
extern const char *const worker_kv_types[];

/* What kvtrunkd must be told to serve this model: its flags in one line, no blanks inside one. */
#define WORKER_FLAGS_BYTES (KVT_FINGERPRINT_BYTES + 256)

/** Open options.model and options.tokenizer. 0 or a negative errno with worker->why, as below. */
int worker_open_model(struct worker *worker);
/** A layer of a pool in the kernels' words: the library knows nothing of the kernels. */
void worker_attention_view(const struct kvt_pool_view *from, struct kvt_attn_view *ret_view);
/** Open what computes, if that was not done before, connect to options.socket, map the pool,
 * prepare for options.chunk positions at a time. */
int worker_open_cache(struct worker *worker);
void worker_close_cache(struct worker *worker);
void worker_close(struct worker *worker);
/** What tells when everything computed so far lies in its pages: KVT_IDLE on the CPU, where it
 * does. 0, or a negative errno with worker->why. */
int worker_fence(struct worker *worker, struct kvt_fence *ret_fence);
/** flags: WORKER_FLAGS_BYTES; returned. */
const char *worker_daemon_flags(const struct worker *worker, uint32_t page_size, char *flags);

/** Generate. With `cache` prefixes are reused and published; without neither. 0 or a negative
 * errno with worker->why. */
int worker_generate(struct worker *worker, struct generation *generation, bool cache);

#endif
