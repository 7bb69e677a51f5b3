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
	struct compute *compute; /* since the first worker_open_cache() */
	struct forward forward;
	uint32_t namespace_id;
	char why[2 * WORKER_WHY_BYTES];
};

/** The generation for one prompt. */
struct generation {
	uint32_t *tokens;     /* prompt and generated tokens */
	uint32_t n_prompt;
	uint32_t n_tokens;    /* of both */
	uint32_t cached;      /* positions whose KV was reused */
	uint32_t prefilled;   /* positions of the prompt computed here */
	uint32_t restarts;    /* times it gave way to a full pool */
	uint32_t reconnects;  /* times the daemon was lost with its cache */
	uint32_t waits;       /* times BEGIN was refused for want of room */
	bool unpublished;     /* reset or removed meanwhile: continued alone */
	double ttft_us;       /* from the request to the first new token */
	double total_us;
	double *token_us;     /* NULL, or [max_tokens]: time of each new token */
	float *logits;        /* NULL, or [max_tokens][vocab]: logits of each new token */
	FILE *echo;           /* NULL, or a stream for the text as it comes */
};

/** Names of KV types by enum kvt_attn_type; NULL ends the list. */
extern const char *const worker_kv_types[];

/* kvtrunkd's flags for this model in one line, without blanks inside a flag. */
#define WORKER_FLAGS_BYTES (KVT_FINGERPRINT_BYTES + 256)

/** Note why a call of the library failed. Returns its error. */
static inline int worker_failed(struct worker *worker, int error)
{
	snprintf(worker->why, sizeof(worker->why), "%s", kvt_client_error(worker->client)->text);
	return error;
}

/** Open options.model and options.tokenizer. 0 or a negative errno with worker->why, as below. */
int worker_open_model(struct worker *worker);
/** Convert a pool's layer to a kernels' view: the library is independent of the kernels. */
void worker_attention_view(const struct kvt_pool_view *from, struct kvt_attn_view *ret_view);
/** Open the computing device, if not yet open, connect to options.socket, map the pool, prepare for
 * options.chunk positions at a time. */
int worker_open_cache(struct worker *worker);
void worker_close_cache(struct worker *worker);
void worker_close(struct worker *worker);
/** Get a fence for everything computed so far: KVT_IDLE on the CPU, where it is complete. 0, or a
 * negative errno with worker->why. */
int worker_fence(struct worker *worker, struct kvt_fence *ret_fence);
/** Print the daemon's flags into `flags` (WORKER_FLAGS_BYTES). Returns it. */
const char *worker_daemon_flags(const struct worker *worker, uint32_t page_size, char *flags);

/** Generate. With `cache` prefixes are reused and published; without neither. 0 or a negative
 * errno with worker->why. */
int worker_generate(struct worker *worker, struct generation *generation, bool cache);

#endif
