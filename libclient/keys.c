/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvtrunk_keys.h: keys of images, coordinates and sizes, regions, namespaces, fingerprints. Pure
 * functions of their arguments, with the formulas of that header: all processes must agree.
 */

#include "kvtrunk_keys.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "libclient/sha256.h"
#include "libclient/state.h"

#define TOP_BIT 0x80000000u
#define IMAGE_BITS 30u
#define IMAGE_CHUNKS KVT_IMAGE_POSITIONS_MIN
#define POSITIONS_MAX (1u << 31)
#define LAST_BIN (KVT_KEY_BINS - 1)

/* ---------------------------------------------------------------- single keys */

enum kvt_key_kind kvt_key_kind(uint32_t key)
{
	if (!(key & TOP_BIT))
		return KVT_KIND_TEXT;
	if ((key & KVT_KEY_IMAGE) == KVT_KEY_IMAGE)
		return KVT_KIND_IMAGE;
	if ((key & ~LAST_BIN) == KVT_KEY_COORDINATE)
		return KVT_KIND_COORDINATE;
	if ((key & ~(LAST_BIN << 10 | LAST_BIN)) == KVT_KEY_SIZE)
		return KVT_KIND_SIZE;
	return KVT_KIND_INVALID;
}

int kvt_key_text(uint32_t token, uint32_t *ret_key)
{
	if (token & TOP_BIT)
		return -EINVAL;
	*ret_key = token;
	return 0;
}

int kvt_keys_text(const uint32_t *tokens, size_t n, uint32_t *ret_keys)
{
	uint32_t any = 0;

	for (size_t i = 0; i < n; i++)
		any |= tokens[i];
	if (any & TOP_BIT)
		return -EINVAL;
	if (n)
		memmove(ret_keys, tokens, n * sizeof(*tokens));
	return 0;
}

int kvt_key_coordinate(double x, uint32_t *ret_key)
{
	if (x != x)
		return -EINVAL;
	x = x < 0 ? 0 : x > 1 ? 1 : x;
	*ret_key = KVT_KEY_COORDINATE | (uint32_t)(x * LAST_BIN + 0.5);
	return 0;
}

int kvt_key_coordinate_value(uint32_t key, double *ret_x)
{
	if (kvt_key_kind(key) != KVT_KIND_COORDINATE)
		return -EINVAL;
	*ret_x = (double)(key & LAST_BIN) / LAST_BIN;
	return 0;
}

/* 2^(10 * bin / 1023 - 10) for bins and halves of bins, without libm: the whole part by
 * doubling, the rest by the series of exp, which ends below one part in 2^60 after 20 terms. */
static double size_of_bin(double bin)
{
	double exponent = 10 * bin / LAST_BIN, term = 1, sum = 0;
	unsigned int whole = (unsigned int)exponent;
	double x = (exponent - whole) * 0.69314718055994530942;

	for (unsigned int i = 1; i <= 20; i++) {
		sum += term;
		term *= x / i;
	}
	return sum * (double)(1u << whole) / 1024;
}

/* The nearest bin on the exponential scale. */
static uint32_t bin_of_size(double size)
{
	uint32_t low = 0, high = LAST_BIN;

	while (low < high) {
		uint32_t middle = (low + high) / 2;

		if (size < size_of_bin(middle + 0.5))
			high = middle;
		else
			low = middle + 1;
	}
	return low;
}

int kvt_key_size(double width, double height, uint32_t *ret_key)
{
	if (width != width || height != height)
		return -EINVAL;
	*ret_key = KVT_KEY_SIZE | bin_of_size(width) << 10 | bin_of_size(height);
	return 0;
}

int kvt_key_size_value(uint32_t key, double *ret_width, double *ret_height)
{
	if (kvt_key_kind(key) != KVT_KIND_SIZE)
		return -EINVAL;
	*ret_width = size_of_bin(key >> 10 & LAST_BIN);
	*ret_height = size_of_bin(key & LAST_BIN);
	return 0;
}

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

bool kvt_keys_image_is(const uint32_t *keys, size_t n, uint32_t first, const uint64_t hash[2],
		       uint32_t kv_length)
{
	uint32_t chunks[IMAGE_CHUNKS];

	if (first > kv_length || n > kv_length - first)
		return false;
	image_chunks(hash, kv_length, chunks);
	for (size_t i = 0; i < n; i++)
		if (keys[i] != chunks[(first + i) % IMAGE_CHUNKS])
			return false;
	return true;
}

/* ---------------------------------------------------------------- regions */

uint32_t kvt_regions_complete(const struct kvt_region *regions, uint32_t n, uint32_t positions)
{
	uint32_t complete = 0;

	while (complete < n && regions[complete].end <= positions)
		complete++;
	return complete;
}

bool kvt_regions_all_complete(const struct kvt_region *regions, uint32_t n, uint32_t positions)
{
	return kvt_regions_complete(regions, n, positions) == n;
}

uint32_t kvt_regions_cap(const struct kvt_region *regions, uint32_t n, uint32_t positions,
			 uint32_t page_size)
{
	if (page_size > 1)
		positions -= positions % page_size;
	/* Downwards: the page boundary before a region may lie in the region before it. */
	for (uint32_t i = n; i-- > 0;) {
		if (regions[i].start >= positions || regions[i].end <= positions)
			continue;
		positions = regions[i].start;
		if (page_size > 1)
			positions -= positions % page_size;
	}
	return positions;
}

uint32_t kvt_positions_to_tokens(const struct kvt_region *regions, uint32_t n,
				 uint32_t positions)
{
	uint32_t tokens = 0, at = 0;

	for (uint32_t i = 0; i < n && regions[i].start < positions; i++) {
		tokens += regions[i].start - at;
		if (regions[i].end > positions)
			return tokens;
		tokens++;
		at = regions[i].end;
	}
	return tokens + (positions - at);
}

uint32_t kvt_tokens_to_positions(const struct kvt_region *regions, uint32_t n, uint32_t tokens)
{
	uint32_t at = 0;

	for (uint32_t i = 0; i < n; i++) {
		uint32_t text = regions[i].start - at;

		if (tokens <= text)
			break;
		tokens -= text + 1;
		at = regions[i].end;
	}
	return at + tokens;
}

/* ---------------------------------------------------------------- prompts */

static int prompt_reserve(struct kvt_prompt *prompt, uint32_t n)
{
	KVT_KEEP_ERRNO;
	uint64_t needed = (uint64_t)prompt->n_keys + n, capacity;
	uint32_t *keys;

	if (needed > POSITIONS_MAX)
		return -E2BIG;
	if (needed <= prompt->keys_capacity)
		return 0;
	capacity = needed + needed / 2 + 64;
	keys = realloc(prompt->keys, capacity * sizeof(*keys));
	if (!keys)
		return -ENOMEM;
	prompt->keys = keys;
	prompt->keys_capacity = (uint32_t)capacity;
	return 0;
}

int kvt_prompt_text(struct kvt_prompt *prompt, const uint32_t *tokens, uint32_t n)
{
	int rc = prompt_reserve(prompt, n);

	if (rc == 0 && n)
		rc = kvt_keys_text(tokens, n, prompt->keys + prompt->n_keys);
	if (rc != 0)
		return rc;
	prompt->n_keys += n;
	prompt->n_tokens += n;
	return 0;
}

int kvt_prompt_image(struct kvt_prompt *prompt, const uint64_t hash[2], uint32_t kv_length,
		     bool in_namespace)
{
	KVT_KEEP_ERRNO;
	struct kvt_region *regions;
	uint32_t capacity = prompt->regions_capacity;
	int rc;

	if (prompt->n_regions == capacity) {
		capacity = 2 * capacity + 8;
		regions = realloc(prompt->regions, capacity * sizeof(*regions));
		if (!regions)
			return -ENOMEM;
		prompt->regions = regions;
		prompt->regions_capacity = capacity;
	}
	rc = prompt_reserve(prompt, kv_length);
	if (rc == 0)
		rc = kvt_keys_image(hash, kv_length, in_namespace, prompt->keys + prompt->n_keys);
	if (rc != 0)
		return rc;
	prompt->regions[prompt->n_regions++] =
		(struct kvt_region){ prompt->n_keys, prompt->n_keys + kv_length };
	prompt->n_keys += kv_length;
	prompt->n_tokens++;
	return 0;
}

static int prompt_key(struct kvt_prompt *prompt, uint32_t key)
{
	int rc = prompt_reserve(prompt, 1);

	if (rc != 0)
		return rc;
	prompt->keys[prompt->n_keys++] = key;
	prompt->n_tokens++;
	return 0;
}

int kvt_prompt_coordinate(struct kvt_prompt *prompt, double x)
{
	uint32_t key;
	int rc = kvt_key_coordinate(x, &key);

	return rc == 0 ? prompt_key(prompt, key) : rc;
}

int kvt_prompt_size(struct kvt_prompt *prompt, double width, double height)
{
	uint32_t key;
	int rc = kvt_key_size(width, height, &key);

	return rc == 0 ? prompt_key(prompt, key) : rc;
}

void kvt_prompt_clear(struct kvt_prompt *prompt)
{
	prompt->n_keys = 0;
	prompt->n_regions = 0;
	prompt->n_tokens = 0;
}

void kvt_prompt_destroy(struct kvt_prompt *prompt)
{
	free(prompt->keys);
	free(prompt->regions);
	memset(prompt, 0, sizeof(*prompt));
}

/* ---------------------------------------------------------------- namespaces */

struct kvt_field kvt_field_of_number(uint64_t value)
{
	return KVT_FIELD_OF_NUMBER(value);
}

struct kvt_field kvt_field_of_bytes(const void *bytes, uint32_t n)
{
	return KVT_FIELD_OF_BYTES(bytes, n);
}

struct kvt_field kvt_field_of_text(const char *text)
{
	return KVT_FIELD_OF_TEXT(text);
}

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
