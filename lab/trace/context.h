/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_LAB_TRACE_CONTEXT_H
#define KVT_LAB_TRACE_CONTEXT_H

/**
 * @file context.h
 * The keys of a request and a word for each of its positions that depends on the namespace and on
 * all keys up to and including that position.
 *
 * Requests of one stream mostly continue each other, so a context computes only the new positions:
 * a replay of a long conversation costs its length, not its square.
 */

#include "lab/trace/trace.h"

struct kvt_context {
	const struct kvt_trace_request *request; /* NULL: none */
	uint32_t namespace_salt;
	uint32_t n;        /* positions in keys and words */
	uint32_t capacity;
	uint32_t *keys;
	uint64_t *words;
	uint64_t used;     /* for a cache of contexts */
};

/** Load `request`, answer included if `with_output`. *ret_kept (may be NULL): leading positions
 * that did not change. 0 or -ENOMEM. */
int kvt_context_load(struct kvt_context *context, const struct kvt_trace *trace,
		     const struct kvt_trace_request *request, uint32_t namespace_salt,
		     bool with_output, uint32_t *ret_kept);
void kvt_context_free(struct kvt_context *context);

#endif
