/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_WORKER_MODEL_H
#define KVT_WORKER_MODEL_H

/**
 * @file model.h
 * A Llama-architecture model in the llama2.c format (version 0) and its tokenizer, read only.
 *
 * RMSNorm, rotary embedding of neighbouring pairs, SwiGLU, grouped-query attention; all weights
 * fp32. The files are mapped, so several workers share them.
 */

#include <stddef.h>
#include <stdint.h>

#define WORKER_WHY_BYTES 512

struct model {
	uint32_t dim, hidden_dim, n_layers, n_heads, n_kv_heads, vocab_size, context;
	uint32_t head_dim, kv_dim;
	const float *embedding; /* [vocab][dim] */
	const float *rms_attention, *wq, *wk, *wv, *wo; /* [layer][out][in] */
	const float *rms_ffn, *w1, *w2, *w3;
	const float *rms_final;
	const float *classifier; /* [vocab][dim]; the embedding where shared */
	uint64_t digest[2];      /* of the whole file: part of the geometry's fingerprint */
	void *map;
	size_t map_bytes;
};

/** Map a model. 0, or a negative errno with one line in why. */
int model_open(struct model *model, const char *path, char *why);
void model_close(struct model *model);

#define TOKEN_BOS 1u
#define TOKEN_EOS 2u

struct tokenizer {
	uint32_t vocab_size;
	uint32_t max_length; /* bytes of the longest token */
	char **text;         /* NUL-terminated */
	float *score;
	uint32_t *sorted; /* ids in order of text, for look-ups */
	uint64_t digest[2];
};

int tokenizer_open(struct tokenizer *tokenizer, const char *path, uint32_t vocab_size, char *why);
void tokenizer_close(struct tokenizer *tokenizer);

/** Encode text: BOS and its tokens, at most capacity. Returns their number, or -ENOBUFS. */
int tokenizer_encode(const struct tokenizer *tokenizer, const char *text, uint32_t *ret_tokens,
		     uint32_t capacity);

/** Return the text of a token after `previous`; byte tokens are put into buffer (2 bytes). */
const char *tokenizer_piece(const struct tokenizer *tokenizer, uint32_t previous, uint32_t token,
			    char *buffer);

#endif
