/* SPDX-License-Identifier: Apache-2.0 */
#include "lab/trace/context.h"

#include <errno.h>
#include <stdlib.h>

/* Mix a key into the word before: one multiplication a position. Two different prefixes differ in
 * all later words, but for a 2^-64 accident. */
static uint64_t word_after(uint64_t word, uint32_t key)
{
	word = (word ^ key) * 0x9fb21c651e98df25ull;
	return word ^ (word >> 32);
}

static int reserve(struct kvt_context *context, uint32_t n)
{
	uint32_t wanted = n + n / 4 + 1024;
	uint32_t *keys;
	uint64_t *words;

	if (n <= context->capacity)
		return 0;
	keys = realloc(context->keys, wanted * sizeof(*keys));
	if (!keys)
		return -ENOMEM;
	context->keys = keys;
	words = realloc(context->words, wanted * sizeof(*words));
	if (!words)
		return -ENOMEM;
	context->words = words;
	context->capacity = wanted;
	return 0;
}

int kvt_context_load(struct kvt_context *context, const struct kvt_trace *trace,
		     const struct kvt_trace_request *request, uint32_t namespace_salt,
		     bool with_output, uint32_t *ret_kept)
{
	uint32_t n = request->input + (with_output ? request->output : 0), kept = 0;
	uint64_t word;
	int rc = reserve(context, n);

	if (rc)
		return rc;
	if (context->request && context->namespace_salt == namespace_salt)
		kept = kvt_trace_common(trace, context->request, request);
	if (kept > context->n)
		kept = context->n;
	kvt_trace_keys(trace, request, kept, request->input, context->keys + kept);
	if (with_output)
		kvt_trace_output_keys(trace, request, 0, request->output,
				      context->keys + request->input);
	word = kept ? context->words[kept - 1] : kvt_trace_mix(namespace_salt);
	for (uint32_t i = kept; i < n; i++) {
		word = word_after(word, context->keys[i]);
		context->words[i] = word;
	}
	context->request = request;
	context->namespace_salt = namespace_salt;
	context->n = n;
	if (ret_kept)
		*ret_kept = kept;
	return 0;
}

void kvt_context_free(struct kvt_context *context)
{
	free(context->keys);
	free(context->words);
	*context = (struct kvt_context){ 0 };
}
