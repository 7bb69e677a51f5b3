/* SPDX-License-Identifier: Apache-2.0 */

/* The tokenizer of llama2.c: byte-pair merging by score, bytes where no token fits.
 *
 * Inputs: a tokenizer file, text. Invariants: a file with more or fewer tokens than the model is
 * refused; every byte has a token, so encoding never fails but for room. Callers: cache.c, main.c,
 * generate.c. */

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kvtrunk_keys.h"
#include "model.h"

#define BYTE_TOKENS 3u /* token of byte 0: BOS, EOS and "unknown" come before */
#define MOST_LENGTH 4096u

/** True if text is the name of a byte token; *ret_byte is its byte. */
static bool is_byte(const char *text, unsigned int *ret_byte)
{
	char written[8];
	unsigned int byte;

	if (sscanf(text, "<0x%2X>", &byte) != 1)
		return false;
	snprintf(written, sizeof(written), "<0x%02X>", byte);
	*ret_byte = byte;
	return strcmp(text, written) == 0;
}

static int read_token(struct tokenizer *t, FILE *file, uint32_t token)
{
	unsigned int byte;
	int32_t length;

	if (fread(&t->score[token], sizeof(float), 1, file) != 1 ||
	    fread(&length, sizeof(length), 1, file) != 1 || length < 1 ||
	    (uint32_t)length > t->max_length)
		return -EINVAL;
	t->text[token] = calloc(1, (size_t)length + 1);
	if (!t->text[token])
		return -ENOMEM;
	if (fread(t->text[token], 1, (size_t)length, file) != (size_t)length ||
	    strlen(t->text[token]) != (size_t)length)
		return -EINVAL;
	if (token < BYTE_TOKENS || token >= BYTE_TOKENS + 256)
		return 0;
	return is_byte(t->text[token], &byte) && byte == token - BYTE_TOKENS ? 0 : -EINVAL;
}

/** Read all tokens up to EOF: with more or fewer it is another model's. */
static int read_tokens(struct tokenizer *t, FILE *file)
{
	int error = 0;

	if (fread(&t->max_length, sizeof(t->max_length), 1, file) != 1 ||
	    t->max_length > MOST_LENGTH)
		return -EINVAL;
	for (uint32_t i = 0; i < t->vocab_size && !error; i++)
		error = read_token(t, file, i);
	return !error && getc(file) != EOF ? -EINVAL : error;
}

static int by_text(const void *a, const void *b, void *context)
{
	const struct tokenizer *t = context;

	return strcmp(t->text[*(const uint32_t *)a], t->text[*(const uint32_t *)b]);
}

/** Hash all texts and scores: tokenizers that differ must not share KV. */
static int fill_digest(struct tokenizer *t)
{
	uint64_t (*parts)[2] = calloc(t->vocab_size + 1, sizeof(*parts));

	if (!parts)
		return -ENOMEM;
	for (uint32_t i = 0; i < t->vocab_size; i++)
		kvt_image_hash(t->text[i], strlen(t->text[i]), parts[i]);
	kvt_image_hash(t->score, t->vocab_size * sizeof(*t->score), parts[t->vocab_size]);
	kvt_image_hash(parts, (t->vocab_size + 1) * sizeof(*parts), t->digest);
	free(parts);
	return 0;
}

static int fill(struct tokenizer *t, FILE *file)
{
	int error;

	t->text = calloc(t->vocab_size, sizeof(*t->text));
	t->score = calloc(t->vocab_size, sizeof(*t->score));
	t->sorted = calloc(t->vocab_size, sizeof(*t->sorted));
	if (!t->text || !t->score || !t->sorted)
		return -ENOMEM;
	error = read_tokens(t, file);
	if (error)
		return error;
	for (uint32_t i = 0; i < t->vocab_size; i++)
		t->sorted[i] = i;
	qsort_r(t->sorted, t->vocab_size, sizeof(*t->sorted), by_text, t);
	return fill_digest(t);
}

int tokenizer_open(struct tokenizer *tokenizer, const char *path, uint32_t vocab_size, char *why)
{
	struct tokenizer t = { .vocab_size = vocab_size };
	FILE *file;
	int error;

	if (vocab_size < BYTE_TOKENS + 256) {
		snprintf(why, WORKER_WHY_BYTES, "the model's vocabulary of %u tokens has no room "
			 "for the bytes that a llama2.c tokenizer falls back to", vocab_size);
		return -EINVAL;
	}
	file = fopen(path, "re");
	if (!file) {
		error = -errno;
		snprintf(why, WORKER_WHY_BYTES, "%s: %s", path, strerror(-error));
		return error;
	}
	error = fill(&t, file);
	if (ferror(file)) {
		error = -errno;
		snprintf(why, WORKER_WHY_BYTES, "%s: %s", path, strerror(-error));
		tokenizer_close(&t);
		fclose(file);
		return error;
	}
	fclose(file);
	if (error) {
		tokenizer_close(&t);
		snprintf(why, WORKER_WHY_BYTES, error == -ENOMEM ? "%s: no memory for %u tokens" :
			 "%s: not a llama2.c tokenizer of %u tokens, the vocabulary of the model",
			 path, vocab_size);
		return error;
	}
	*tokenizer = t;
	return 0;
}

void tokenizer_close(struct tokenizer *t)
{
	if (t->text)
		for (uint32_t i = 0; i < t->vocab_size; i++)
			free(t->text[i]);
	free(t->text);
	free(t->score);
	free(t->sorted);
	*t = (struct tokenizer){ 0 };
}

static int64_t look_up(const struct tokenizer *t, const char *text)
{
	uint32_t low = 0, high = t->vocab_size;

	while (low < high) {
		uint32_t middle = low + (high - low) / 2;
		int order = strcmp(text, t->text[t->sorted[middle]]);

		if (order == 0)
			return t->sorted[middle];
		if (order < 0)
			high = middle;
		else
			low = middle + 1;
	}
	return -1;
}

/** Split text: one token for each UTF-8 character, or one for each of its bytes. */
static uint32_t split_text(const struct tokenizer *t, const char *text, uint32_t *tokens)
{
	uint32_t n = 0;

	while (*text) {
		char character[5] = { *text };
		size_t bytes = 1;
		int64_t token;

		while (bytes < 4 && ((unsigned char)text[bytes] & 0xc0) == 0x80) {
			character[bytes] = text[bytes];
			bytes++;
		}
		token = look_up(t, character);
		if (token >= 0) {
			tokens[n++] = (uint32_t)token;
		} else {
			for (size_t i = 0; i < bytes; i++)
				tokens[n++] = BYTE_TOKENS + (unsigned char)text[i];
		}
		text += bytes;
	}
	return n;
}

/** Return the token that joins these two, or -1. */
static int64_t join(const struct tokenizer *t, const uint32_t *two, char *joined)
{
	snprintf(joined, 2 * t->max_length + 1, "%s%s", t->text[two[0]], t->text[two[1]]);
	return look_up(t, joined);
}

/** Join the best-scored pair of neighbours until none is left. pairs has room for n. */
static uint32_t merge(const struct tokenizer *t, uint32_t *tokens, int64_t *pairs, uint32_t n,
		      char *joined)
{
	for (uint32_t i = 0; i + 1 < n; i++)
		pairs[i] = join(t, tokens + i, joined);
	for (;;) {
		uint32_t best = UINT32_MAX;
		float best_score = -1e10f;

		for (uint32_t i = 0; i + 1 < n; i++) {
			if (pairs[i] >= 0 && t->score[pairs[i]] > best_score) {
				best_score = t->score[pairs[i]];
				best = i;
			}
		}
		if (best == UINT32_MAX)
			return n;
		tokens[best] = (uint32_t)pairs[best];
		n--;
		memmove(tokens + best + 1, tokens + best + 2, (n - best - 1) * sizeof(*tokens));
		memmove(pairs + best, pairs + best + 1, (n - best - 1) * sizeof(*pairs));
		if (best > 0)
			pairs[best - 1] = join(t, tokens + best - 1, joined);
		if (best + 1 < n)
			pairs[best] = join(t, tokens + best, joined);
	}
}

int tokenizer_encode(const struct tokenizer *t, const char *text, uint32_t *ret_tokens,
		     uint32_t capacity)
{
	/* Each merge step scans all pairs, so long texts are encoded by paragraphs: no token of
	 * such vocabularies spans a line's end. */
	char *joined = malloc(2 * (size_t)t->max_length + 1);
	uint32_t *line = malloc((strlen(text) + 2) * sizeof(*line));
	int64_t *pairs = malloc((strlen(text) + 2) * sizeof(*pairs));
	uint32_t n = 0;
	bool first = true;
	int result = -ENOMEM;

	if (!joined || !line || !pairs)
		goto out;
	result = -ENOBUFS;
	/* Refuse a far too long text first: merging it could take hours. */
	if (capacity < 1 || strlen(text) / t->max_length >= capacity)
		goto out;
	ret_tokens[n++] = TOKEN_BOS;
	while (*text) {
		size_t bytes = strcspn(text, "\n");
		char *copy = NULL;
		uint32_t tokens;

		bytes += text[bytes] == '\n';
		if (asprintf(&copy, "%s%.*s", first ? " " : "", (int)bytes, text) < 0) {
			result = -ENOMEM;
			goto out;
		}
		tokens = merge(t, line, pairs, split_text(t, copy, line), joined);
		free(copy);
		if (tokens > capacity - n)
			goto out;
		memcpy(ret_tokens + n, line, tokens * sizeof(*line));
		n += tokens;
		text += bytes;
		first = false;
	}
	result = (int)n;
out:
	free(joined);
	free(line);
	free(pairs);
	return result;
}

const char *tokenizer_piece(const struct tokenizer *t, uint32_t previous, uint32_t token,
			    char *buffer)
{
	const char *text = t->text[token];
	unsigned int byte;

	if (previous == TOKEN_BOS && text[0] == ' ')
		text++;
	if (is_byte(text, &byte)) {
		buffer[0] = (char)byte;
		buffer[1] = '\0';
		return buffer;
	}
	return text;
}
