/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVTRUNK_KEYS_H
#define KVTRUNK_KEYS_H

/**
 * @file kvtrunk_keys.h
 * From prompts to keys, from what isolates prompts to namespaces, from a model to a fingerprint.
 *
 * The tree compares u32 keys and nothing else. So all processes of an instance must build the same
 * keys from the same prompt. These functions are that agreement; each formula is written down so
 * that another language can repeat it.
 *
 *     31 30 29 28 ........................ 0
 *      0  token id, 31 bits                     a text token
 *      1  1  30 bits of the image's digest      one of the positions of an image
 *      1  0  0..01  bin, 20 bits                a coordinate of a point, if the application has any
 *      1  0  0..10  two bins of 10 bits         the size of a region, likewise
 *      1  0  30 bits                            else free for an application's own positions
 *
 * None of these functions needs a connection, touches global state or keeps its arguments. All are
 * safe from any thread.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kvtrunk.h"

#ifdef __cplusplus
extern "C" {
#endif

#pragma GCC visibility push(default)

/* ---------------------------------------------------------------- images */

#define KVT_KEY_IMAGE 0xc0000000u
#define KVT_IMAGE_POSITIONS_MIN 5u /* hold the whole identity of an image */

/** Content hash of an image: the first 16 bytes of the SHA-256 of its bytes, as two big-endian
 * numbers. Hash what the encoder sees (the decoded, resized pixels), not the file. */
void kvt_image_hash(const void *bytes, size_t n, uint64_t ret_hash[2]);

/** The keys of an image of `kv_length` positions. Key i holds bits [30 * (i mod 5), + 30) of
 * SHA-256(hash, 16 bytes big endian; kv_length, 4 bytes big endian), most significant bit first.
 * Five positions are the whole identity, its length included.
 *
 * @in_namespace  the hash is also a field of the namespace: then any length is safe.
 * Errors: -EINVAL kv_length is 0, or below 5 without in_namespace: so few positions could make two
 * images equal. */
int kvt_keys_image(const uint64_t hash[2], uint32_t kv_length, bool in_namespace,
		   uint32_t *ret_keys);

/* ---------------------------------------------------------------- points and sizes */

/* For prompts of vision-language models that have points and sizes of regions beside text. Each has
 * one position, an image as many as it has. Bin n of a coordinate begins at n / 1,024 of the image;
 * bin n of a size stands for 2^(10 n / 1,023 - 10) of it. */
#define KVT_KEY_COORDINATE 0x80100000u /* | bin */
#define KVT_KEY_SIZE 0x80200000u /* | bin of the width << 10 | bin of the height */
#define KVT_KEY_BINS 1024u

/** How many tokens the first `positions` positions hold whole, of tokens with these lengths in
 * positions. Sets where they end: what was matched of a token behind that is of no use, as of an
 * image that is computed at once. */
size_t kvt_keys_tokens(const uint32_t *lengths, size_t n_tokens, uint32_t positions,
		       uint32_t *ret_positions);

/* ---------------------------------------------------------------- pairs of tokens */

/** The keys of pairs of tokens, for KV that depends on a token and the next one, as that of draft
 * layers does (EAGLE, MTP; SGLang calls the pairs bigrams). Position i is the pair (tokens[i],
 * tokens[i + 1]), and its key is tokens[i + 1]. The root key is the first token + 1: 0 is the tree
 * without one.
 *
 * That is exact. The first k > 0 pairs of two prompts are equal if and only if the first k + 1
 * tokens are: the root key and k keys. A page under one root key is never found with another.
 *
 * Returns the number of keys, n - 1; 0, with root key 0, without tokens. `ret_keys` has room for
 * n - 1, and may be `tokens`. */
size_t kvt_keys_bigram(const uint32_t *tokens, size_t n, uint32_t *ret_keys,
		       uint64_t *ret_root_key);

/* ---------------------------------------------------------------- namespaces */

enum kvt_field_kind {
	KVT_FIELD_ABSENT = 0,
	KVT_FIELD_NUMBER = 1,
	KVT_FIELD_BYTES = 2,
};

/** One field of a namespace. A missing field, the number 0 and the empty string all differ. */
struct kvt_field {
	uint32_t kind; /* enum kvt_field_kind */
	uint32_t n_bytes;
	uint64_t number;
	const void *bytes;
};
#define KVT_FIELD_OF_NUMBER(value) ((struct kvt_field){ KVT_FIELD_NUMBER, 0, (value), NULL })
#define KVT_FIELD_OF_BYTES(p, n) ((struct kvt_field){ KVT_FIELD_BYTES, (n), 0, (p) })
#define KVT_FIELD_OF_TEXT(text)                                                                   \
	((struct kvt_field){ KVT_FIELD_BYTES, (uint32_t)strlen(text), 0, (text) })

/** Fields that isolate prompts that must never share KV. Zeros: the plain namespace. */
struct kvt_namespace_fields {
	struct kvt_field adapter; /* LoRA: name or number, with its version */
	struct kvt_field salt;    /* cache salt: a tenant, a user */
	struct kvt_field extra;   /* for any other reason of the application */
	struct kvt_field image;   /* hash of an image that a whole prompt depends on */
};

/** The first 16 bytes, as two big-endian numbers, of SHA-256 over "kvtrunk namespace 1" and, for
 * each field of struct kvt_namespace_fields in its order (adapter, salt, extra, image): its number
 * (1 to 4, one byte), its kind (one byte), the length of its value (8 bytes, big endian), its value
 * (numbers: 8 bytes, big endian). A field's length stands before it, so "a" + "bc" is not "ab" +
 * "c". Errors: -EINVAL unknown kind. */
int kvt_namespace_digest(const struct kvt_namespace_fields *fields,
			 uint64_t ret_digest[2]);

/* ---------------------------------------------------------------- geometry */

/** Facts that must be equal in all processes that share pages: if one differs, the same keys mean
 * other KV. NULL: does not apply. Free text; name versions and hashes. */
struct kvt_geometry {
	const char *weights;       /* model and revision, or a hash of the weights */
	const char *rope_scaling;
	const char *tokenizer;
	const char *image_encoder;
	const char *kv_type;       /* bf16, fp8_e4m3, ... and heads, head dim, layers */
	const char *kv_scales;
	const char *layout;        /* order of the dimensions inside a page */
	const char *parallel;      /* tensor and pipeline split */
};

/** One line for people and for the daemon to compare: `weights=...;rope=...;tokenizer=...;
 * image=...;kv=...;scales=...;layout=...;parallel=...`, without fields that are NULL. In values
 * `;`, `=`, `#`, `%` and bytes outside printable ASCII are written %XX. If 255 bytes are too few,
 * the longest values become `#` and the first 16 hex digits of their SHA-256. */
void kvt_geometry_fingerprint(const struct kvt_geometry *geometry,
			      char ret_text[KVT_FINGERPRINT_BYTES]);

#pragma GCC visibility pop

#ifdef __cplusplus
}
#endif
#endif
