/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_TRACE_CONTEXT_H
#define KVT_TRACE_CONTEXT_H

/**
 * @file trace_context.h
 * The keys of a request and a word for each of its positions that depends on the namespace and on
 * all keys up to and including that position.
 *
 * Requests of one stream mostly continue each other, so a context keeps what it had and computes
 * only what is new: a replay of a long conversation costs its length, not its square.
 */

#include "tools/trace.h"

struct kvt_context {
	const struct kvt_trace_request *request; /* whose keys these are, NULL: none */
	uint32_t namespace_salt;
	uint32_t n;        /* positions that keys and words hold */
	uint32_t capacity;
	uint32_t *keys;
	uint64_t *words;
	uint64_t used;     /* for whoever keeps several */
};

/** Make the context hold `request`, answer included when `with_output`. *ret_kept (may be NULL) is
 * how many leading positions stayed as they were. 0 or -ENOMEM. */
int kvt_context_load(struct kvt_context *context, const struct kvt_trace *trace,
		     const struct kvt_trace_request *request, uint32_t namespace_salt,
		     bool with_output, uint32_t *ret_kept);
void kvt_context_free(struct kvt_context *context);

#endif
