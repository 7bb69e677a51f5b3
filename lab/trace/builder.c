/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file builder.c
 * Collects requests and runs of keys from a reader or the generator.
 */
#include <errno.h>
#include <stdlib.h>

#include "lab/trace/trace.h"

static int grow(void **array, uint32_t *capacity, size_t bytes)
{
	uint32_t wanted = *capacity ? *capacity * 2 : 1024;
	void *larger = realloc(*array, wanted * bytes);

	if (!larger)
		return -ENOMEM;
	*array = larger;
	*capacity = wanted;
	return 0;
}

int kvt_trace_builder_request(struct kvt_trace_builder *builder,
			      const struct kvt_trace_request *request)
{
	int rc;

	if (builder->n_requests == builder->requests_capacity) {
		rc = grow((void **)&builder->requests, &builder->requests_capacity,
			  sizeof(*request));
		if (rc)
			return rc;
	}
	builder->requests[builder->n_requests++] = *request;
	return 0;
}

int kvt_trace_builder_run(struct kvt_trace_builder *builder, uint32_t first, uint32_t count)
{
	int rc;

	if (builder->n_runs == builder->runs_capacity) {
		rc = grow((void **)&builder->runs, &builder->runs_capacity,
			  sizeof(*builder->runs));
		if (rc)
			return rc;
	}
	builder->runs[builder->n_runs++] = (struct kvt_trace_run){ first, count };
	return 0;
}
