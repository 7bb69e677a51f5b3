/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvtrunk_keys.h: keys of images and pairs, namespaces, fingerprints. Pure functions of their
 * arguments, with the formulas of that header: all processes must agree.
 */

#include "kvtrunk_keys.h"

#include <errno.h>
#include <string.h>

#include "libclient/sha256.h"

#define IMAGE_BITS 30u
#define IMAGE_CHUNKS KVT_IMAGE_POSITIONS_MIN
#define POSITIONS_MAX (1u << 31)

/* ---------------------------------------------------------------- images */

static void put_big_endian(uint8_t *to, uint64_t value, unsigned int n)
{
	for (unsigned int i = 0; i < n; i++)
		to[i] = (uint8_t)(value >> (8 * (n - 1 - i)));
}

static uint64_t get_big_endian(const uint8_t *from)
{
	uint64_t value = 0;

	for (unsigned int i = 0; i < 8; i++)
		value = value << 8 | from[i];
	return value;
}

void kvt_image_hash(const void *bytes, size_t n, uint64_t ret_hash[2])
{
	struct kvt_sha256 hash;
	uint8_t digest[32];

	kvt_sha256_init(&hash);
	kvt_sha256_add(&hash, bytes, n);
	kvt_sha256_finish(&hash, digest);
	ret_hash[0] = get_big_endian(digest);
	ret_hash[1] = get_big_endian(digest + 8);
}

/* The five keys that an image repeats. */
static void image_chunks(const uint64_t hash[2], uint32_t kv_length, uint32_t chunks[IMAGE_CHUNKS])
{
	struct kvt_sha256 sha;
	uint8_t identity[20], digest[32];

	put_big_endian(identity, hash[0], 8);
	put_big_endian(identity + 8, hash[1], 8);
	put_big_endian(identity + 16, kv_length, 4);
	kvt_sha256_init(&sha);
	kvt_sha256_add(&sha, identity, sizeof(identity));
	kvt_sha256_finish(&sha, digest);
	for (unsigned int i = 0; i < IMAGE_CHUNKS; i++) {
		unsigned int bit = i * IMAGE_BITS;
		/* 30 bits from any bit on lie within 8 bytes. */
		uint64_t window = get_big_endian(digest + bit / 8);

		chunks[i] = KVT_KEY_IMAGE |
			    (uint32_t)(window << bit % 8 >> (64 - IMAGE_BITS));
	}
}

size_t kvt_keys_tokens(const uint32_t *lengths, size_t n_tokens, uint32_t positions,
		       uint32_t *ret_positions)
{
	uint32_t end = 0;
	size_t n = 0;

	while (n < n_tokens && lengths[n] <= positions - end)
		end += lengths[n++];
	*ret_positions = end;
	return n;
}

int kvt_keys_image(const uint64_t hash[2], uint32_t kv_length, bool in_namespace,
		   uint32_t *ret_keys)
{
	uint32_t chunks[IMAGE_CHUNKS];

	if (kv_length == 0 || kv_length > POSITIONS_MAX ||
	    (kv_length < KVT_IMAGE_POSITIONS_MIN && !in_namespace))
		return -EINVAL;
	image_chunks(hash, kv_length, chunks);
	for (uint32_t i = 0; i < kv_length; i++)
		ret_keys[i] = chunks[i % IMAGE_CHUNKS];
	return 0;
}

size_t kvt_keys_bigram(const uint32_t *tokens, size_t n, uint32_t *ret_keys, uint64_t *ret_root_key)
{
	*ret_root_key = n ? (uint64_t)tokens[0] + 1 : 0;
	if (n < 2)
		return 0;
	memmove(ret_keys, tokens + 1, (n - 1) * sizeof(*tokens));
	return n - 1;
}

/* ---------------------------------------------------------------- namespaces */

int kvt_namespace_digest(const struct kvt_namespace_fields *fields, uint64_t ret_digest[2])
{
	static const char domain[] = "kvtrunk namespace 1";
	const struct kvt_field *const all[] = { &fields->adapter, &fields->salt, &fields->extra,
						&fields->image };
	struct kvt_sha256 hash;
	uint8_t digest[32];

	kvt_sha256_init(&hash);
	kvt_sha256_add(&hash, domain, sizeof(domain) - 1);
	for (unsigned int i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
		bool number = all[i]->kind == KVT_FIELD_NUMBER;
		bool bytes = all[i]->kind == KVT_FIELD_BYTES;
		uint8_t head[10], value[8];

		if (all[i]->kind > KVT_FIELD_BYTES || (bytes && all[i]->n_bytes && !all[i]->bytes))
			return -EINVAL;
		head[0] = (uint8_t)(i + 1);
		head[1] = (uint8_t)all[i]->kind;
		put_big_endian(head + 2, number ? 8 : bytes ? all[i]->n_bytes : 0, 8);
		kvt_sha256_add(&hash, head, sizeof(head));
		put_big_endian(value, all[i]->number, 8);
		if (number)
			kvt_sha256_add(&hash, value, sizeof(value));
		else if (bytes && all[i]->n_bytes)
			kvt_sha256_add(&hash, all[i]->bytes, all[i]->n_bytes);
	}
	kvt_sha256_finish(&hash, digest);
	ret_digest[0] = get_big_endian(digest);
	ret_digest[1] = get_big_endian(digest + 8);
	return 0;
}

/* ---------------------------------------------------------------- geometry */

#define GEOMETRY_FIELDS 8u
#define SHORT_VALUE 17u /* '#' and 16 digits */

static bool plain(unsigned char c)
{
	return c > ' ' && c < 0x7f && c != ';' && c != '=' && c != '#' && c != '%';
}

/* Bytes of a value once escaped. */
static size_t escaped_length(const char *value)
{
	size_t n = 0;

	for (; *value; value++)
		n += plain((unsigned char)*value) ? 1 : 3;
	return n;
}

static char *append_hex(char *to, unsigned char c)
{
	static const char digits[] = "0123456789abcdef";

	*to++ = digits[c >> 4];
	*to++ = digits[c & 15];
	return to;
}

static char *append_value(char *to, const char *value, bool shortened)
{
	struct kvt_sha256 hash;
	uint8_t digest[32];

	if (shortened) {
		kvt_sha256_init(&hash);
		kvt_sha256_add(&hash, value, strlen(value));
		kvt_sha256_finish(&hash, digest);
		*to++ = '#';
		for (unsigned int i = 0; i < 8; i++)
			to = append_hex(to, digest[i]);
		return to;
	}
	for (; *value; value++) {
		if (plain((unsigned char)*value)) {
			*to++ = *value;
		} else {
			*to++ = '%';
			to = append_hex(to, (unsigned char)*value);
		}
	}
	return to;
}

void kvt_geometry_fingerprint(const struct kvt_geometry *geometry,
			      char ret_text[KVT_FINGERPRINT_BYTES])
{
	static const char *const names[GEOMETRY_FIELDS] = { "weights", "rope",   "tokenizer",
							    "image",   "kv",     "scales",
							    "layout",  "parallel" };
	const char *const values[GEOMETRY_FIELDS] = {
		geometry->weights, geometry->rope_scaling, geometry->tokenizer,
		geometry->image_encoder, geometry->kv_type, geometry->kv_scales,
		geometry->layout, geometry->parallel,
	};
	size_t lengths[GEOMETRY_FIELDS] = { 0 }, total = 0;
	bool shortened[GEOMETRY_FIELDS] = { false };
	char *to = ret_text;

	for (unsigned int i = 0; i < GEOMETRY_FIELDS; i++) {
		lengths[i] = values[i] ? escaped_length(values[i]) : 0;
		total += values[i] ? strlen(names[i]) + lengths[i] + 2 : 0;
	}
	/* Terminates: eight names with short values always fit. */
	while (total > KVT_FINGERPRINT_BYTES) {
		unsigned int longest = 0;

		for (unsigned int i = 1; i < GEOMETRY_FIELDS; i++)
			if (lengths[i] > lengths[longest])
				longest = i;
		total -= lengths[longest] - SHORT_VALUE;
		lengths[longest] = SHORT_VALUE;
		shortened[longest] = true;
	}
	memset(ret_text, 0, KVT_FINGERPRINT_BYTES);
	for (unsigned int i = 0; i < GEOMETRY_FIELDS; i++) {
		if (!values[i])
			continue;
		if (to != ret_text)
			*to++ = ';';
		to = stpcpy(to, names[i]);
		*to++ = '=';
		to = append_value(to, values[i], shortened[i]);
	}
}
