/* SPDX-License-Identifier: Apache-2.0 */
/* Key builders: each formula against its inverse and against independent arithmetic. Refused inputs
 * must leave the output unchanged. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "kvtrunk_keys.h"
#include "libclient/sha256.h"
#include "tests/lib/cases.h"

static void hex(const uint8_t digest[32], char text[65])
{
	static const char digits[] = "0123456789abcdef";

	for (int i = 0; i < 32; i++) {
		text[2 * i] = digits[digest[i] >> 4];
		text[2 * i + 1] = digits[digest[i] & 15];
	}
	text[64] = '\0';
}

static void check_sha256(const void *bytes, size_t n, size_t part, const char *expected)
{
	struct kvt_sha256 hash;
	uint8_t digest[32];
	char text[65];

	kvt_sha256_init(&hash);
	for (size_t at = 0; at < n; at += part)
		kvt_sha256_add(&hash, (const char *)bytes + at, n - at < part ? n - at : part);
	kvt_sha256_finish(&hash, digest);
	hex(digest, text);
	assert_string_equal(text, expected);
}

TEST(sha256_gives_the_published_digests)
{
	static const struct {
		const char *text, *digest;
	} vectors[] = {
		{ "", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855" },
		{ "abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad" },
		{ "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
		  "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1" },
		{ "abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmnoijklmnopjklmno"
		  "pqklmnopqrlmnopqrsmnopqrstnopqrstu",
		  "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1" },
	};
	char *million = malloc(1000000);

	for (size_t i = 0; i < sizeof(vectors) / sizeof(vectors[0]); i++)
		for (size_t part = 1; part <= 130; part += 43)
			check_sha256(vectors[i].text, strlen(vectors[i].text), part,
				     vectors[i].digest);
	memset(million, 'a', 1000000);
	check_sha256(million, 1000000, 977,
		     "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
	free(million);
}

TEST(sha256_by_instruction_is_the_portable_one)
{
	uint32_t states[2][8] = { { 0 } }, random = 1;
	uint8_t block[64];

	for (int n = 0; n < 1000; n++) {
		for (size_t i = 0; i < sizeof(block); i++) {
			random = random * 1664525 + 1013904223;
			block[i] = (uint8_t)(random >> 24);
		}
		kvt_sha256_compress(states[0], block);
		kvt_sha256_compress_portable(states[1], block);
		assert_memory_equal(states[0], states[1], sizeof(states[0]));
	}
}

/* ---------------------------------------------------------------- images */

/* Bit i of a digest, most significant first: the definition, one bit at a time. */
static uint32_t bit_of(const uint8_t *digest, unsigned int i)
{
	return digest[i / 8] >> (7 - i % 8) & 1;
}

TEST(image_keys_are_thirty_bits_of_the_digest_each)
{
	const uint64_t image[2] = { 0x0011223344556677ull, 0x8899aabbccddeeffull };
	const uint8_t identity[20] = { 0x00, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0x99,
				       0xaa, 0xbb, 0xcc, 0xdd, 0xee, 0xff, 0,    0,    2,    0xda };
	struct kvt_sha256 hash;
	uint8_t digest[32];
	uint32_t keys[730];

	kvt_sha256_init(&hash);
	kvt_sha256_add(&hash, identity, sizeof(identity));
	kvt_sha256_finish(&hash, digest);
	assert_int_equal(kvt_keys_image(image, 730, false, keys), 0);
	for (unsigned int i = 0; i < 730; i++) {
		uint32_t expected = 3;

		for (unsigned int bit = 0; bit < 30; bit++)
			expected = expected << 1 | bit_of(digest, i % 5 * 30 + bit);
		assert_int_equal(keys[i], expected);
	}
}

TEST(another_image_or_length_differs_within_five_positions)
{
	const uint64_t base[2] = { 1, 2 };
	uint32_t keys[64], other[64];

	assert_int_equal(kvt_keys_image(base, 64, false, keys), 0);
	for (unsigned int bit = 0; bit < 128; bit++) {
		uint64_t image[2] = { base[0], base[1] };

		image[bit / 64] ^= 1ull << bit % 64;
		assert_int_equal(kvt_keys_image(image, 64, false, other), 0);
		assert_memory_not_equal(keys, other, 5 * sizeof(uint32_t));
	}
	for (uint32_t length = 5; length < 64; length++) {
		assert_int_equal(kvt_keys_image(base, length, false, other), 0);
		assert_memory_not_equal(keys, other, 5 * sizeof(uint32_t));
	}
}

TEST(images_shorter_than_their_identity_need_the_namespace)
{
	const uint64_t image[2] = { 7, 8 };
	uint32_t keys[5] = { 0 };

	assert_int_equal(kvt_keys_image(image, 0, true, keys), -EINVAL);
	for (uint32_t length = 1; length < 5; length++) {
		assert_int_equal(kvt_keys_image(image, length, false, keys), -EINVAL);
		assert_int_equal(keys[0], 0);
	}
	assert_int_equal(kvt_keys_image(image, 5, false, keys), 0);
	for (uint32_t length = 1; length < 5; length++)
		assert_int_equal(kvt_keys_image(image, length, true, keys), 0);
}

TEST(pairs_of_tokens_are_the_first_one_and_the_rest)
{
	uint32_t tokens[] = { 4294967295u, 0, 7, 7 }, keys[3];
	uint64_t root;

	assert_int_equal(kvt_keys_bigram(tokens, 4, keys, &root), 3);
	assert_true(root == 1ull << 32);
	assert_memory_equal(keys, tokens + 1, sizeof(keys));
	assert_int_equal(kvt_keys_bigram(tokens + 1, 1, NULL, &root), 0);
	assert_true(root == 1);
	assert_int_equal(kvt_keys_bigram(NULL, 0, NULL, &root), 0);
	assert_true(root == 0);
	assert_int_equal(kvt_keys_bigram(tokens, 4, tokens, &root), 3);
	assert_memory_equal(keys, tokens, sizeof(keys));
}

TEST(the_content_hash_is_the_head_of_sha256)
{
	uint64_t hash[2];

	kvt_image_hash("abc", 3, hash);
	assert_true(hash[0] == 0xba7816bf8f01cfeaull && hash[1] == 0x414140de5dae2223ull);
}

/* ---------------------------------------------------------------- namespaces */

static struct kvt_namespace_fields fields_of(unsigned int which)
{
	struct kvt_namespace_fields fields = { .adapter.kind = KVT_FIELD_ABSENT };
	static const uint64_t number;

	switch (which) {
	case 0: break;
	case 1: fields.adapter = KVT_FIELD_OF_NUMBER(0); break;
	case 2: fields.adapter = KVT_FIELD_OF_TEXT(""); break;
	case 3: fields.adapter = KVT_FIELD_OF_BYTES(&number, 8); break;
	case 4: fields.salt = KVT_FIELD_OF_TEXT(""); break;
	case 5: fields.salt = KVT_FIELD_OF_NUMBER(0); break;
	case 6: fields.extra = KVT_FIELD_OF_TEXT(""); break;
	case 7: fields.image = KVT_FIELD_OF_TEXT(""); break;
	case 8:
		fields.adapter = KVT_FIELD_OF_TEXT("a");
		fields.salt = KVT_FIELD_OF_TEXT("bc");
		break;
	case 9:
		fields.adapter = KVT_FIELD_OF_TEXT("ab");
		fields.salt = KVT_FIELD_OF_TEXT("c");
		break;
	case 10: fields.adapter = KVT_FIELD_OF_TEXT("abc"); break;
	case 11: fields.salt = KVT_FIELD_OF_TEXT("abc"); break;
	case 12: fields.adapter = KVT_FIELD_OF_NUMBER(1); break;
	case 13: fields.adapter = KVT_FIELD_OF_TEXT("1"); break;
	case 14: fields.adapter = KVT_FIELD_OF_BYTES("a\0b", 3); break;
	case 15: fields.adapter = KVT_FIELD_OF_BYTES("a\0c", 3); break;
	default: break;
	}
	return fields;
}

TEST(namespaces_that_differ_have_different_digests)
{
	enum { N = 16 };
	uint64_t digests[N][2], again[2];

	for (unsigned int i = 0; i < N; i++) {
		struct kvt_namespace_fields fields = fields_of(i);

		assert_int_equal(kvt_namespace_digest(&fields, digests[i]), 0);
		assert_int_equal(kvt_namespace_digest(&fields, again), 0);
		assert_memory_equal(digests[i], again, sizeof(again));
		for (unsigned int j = 0; j < i; j++)
			assert_memory_not_equal(digests[i], digests[j], sizeof(again));
	}
}

TEST(the_namespace_digest_is_the_documented_hash)
{
	static const uint8_t message[] =
		"kvtrunk namespace 1"
		"\x01\x02\0\0\0\0\0\0\0\x02yo"
		"\x02\x01\0\0\0\0\0\0\0\x08\0\0\0\0\0\0\x01\x02"
		"\x03\0\0\0\0\0\0\0\0\0"
		"\x04\x02\0\0\0\0\0\0\0\0";
	struct kvt_namespace_fields fields = {
		.adapter = KVT_FIELD_OF_BYTES("yo", 2),
		.salt = KVT_FIELD_OF_NUMBER(0x102),
		.image = KVT_FIELD_OF_BYTES(NULL, 0),
	};
	uint64_t digest[2], expected[2];

	kvt_image_hash(message, sizeof(message) - 1, expected);
	assert_int_equal(kvt_namespace_digest(&fields, digest), 0);
	assert_memory_equal(digest, expected, sizeof(digest));
	fields.extra.kind = 3;
	assert_int_equal(kvt_namespace_digest(&fields, digest), -EINVAL);
	fields.extra = KVT_FIELD_OF_BYTES(NULL, 1);
	assert_int_equal(kvt_namespace_digest(&fields, digest), -EINVAL);
	assert_memory_equal(digest, expected, sizeof(digest));
}

/* ---------------------------------------------------------------- geometry */

TEST(the_fingerprint_reads_like_the_geometry)
{
	struct kvt_geometry geometry = {
		.weights = "toy-7b@a1b2",
		.tokenizer = "",
		.kv_type = "bf16 x;8=#%",
	};
	char text[KVT_FINGERPRINT_BYTES];

	kvt_geometry_fingerprint(&geometry, text);
	assert_string_equal(text, "weights=toy-7b@a1b2;tokenizer=;kv=bf16%20x%3b8%3d%23%25");
	geometry = (struct kvt_geometry){ 0 };
	kvt_geometry_fingerprint(&geometry, text);
	assert_string_equal(text, "");
}

TEST(long_fingerprints_keep_their_differences)
{
	char value[400], text[8][KVT_FINGERPRINT_BYTES], whole[KVT_FINGERPRINT_BYTES];
	struct kvt_geometry geometry = { 0 };
	const char **fields[8] = { &geometry.weights,       &geometry.rope_scaling,
				   &geometry.tokenizer,     &geometry.image_encoder,
				   &geometry.kv_type,       &geometry.kv_scales,
				   &geometry.layout,        &geometry.parallel };
	char other[400];

	memset(value, 'v', sizeof(value));
	value[399] = '\0';
	memcpy(other, value, sizeof(other));
	other[398] = 'w';
	for (int i = 0; i < 8; i++)
		*fields[i] = value;
	kvt_geometry_fingerprint(&geometry, whole);
	assert_true(strlen(whole) < KVT_FINGERPRINT_BYTES);
	assert_non_null(strstr(whole, "parallel=#"));
	for (int i = 0; i < 8; i++) {
		*fields[i] = other;
		kvt_geometry_fingerprint(&geometry, text[i]);
		*fields[i] = value;
		assert_string_not_equal(text[i], whole);
		for (int j = 0; j < i; j++)
			assert_string_not_equal(text[i], text[j]);
	}
	/* Exactly as long as fits is unchanged; of one more byte the SHA-256 begins so. */
	geometry = (struct kvt_geometry){ .weights = value + 399 - 247 };
	kvt_geometry_fingerprint(&geometry, whole);
	assert_int_equal(strlen(whole), KVT_FINGERPRINT_BYTES - 1);
	assert_null(strchr(whole, '#'));
	geometry.weights--;
	kvt_geometry_fingerprint(&geometry, whole);
	assert_string_equal(whole, "weights=#3659fdef3c2c9966");
}

TEST(a_match_inside_an_image_is_cut_in_front_of_it)
{
	static const uint32_t lengths[] = { 1, 730, 1 };
	static const struct {
		uint32_t positions, end;
		size_t tokens;
	} rows[] = {
		{ 0, 0, 0 }, { 1, 1, 1 }, { 730, 1, 1 }, { 731, 731, 2 }, { 732, 732, 3 },
		{ UINT32_MAX, 732, 3 },
	};
	uint32_t end;

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		assert_int_equal(kvt_keys_tokens(lengths, 3, rows[i].positions, &end),
				 rows[i].tokens);
		assert_int_equal(end, rows[i].end);
	}
}
