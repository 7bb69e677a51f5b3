/* SPDX-License-Identifier: Apache-2.0 */
/* Trace files: any content is read, or refused with a sentence. */
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "lab/trace/trace.h"
#include "shm/assert.h"

#define SAMPLE 64u

/* Compute keys at both ends of each request. */
static void sample(const struct kvt_trace *trace)
{
	uint32_t keys[SAMPLE];

	for (uint32_t i = 0; i < trace->n_requests; i++) {
		const struct kvt_trace_request *request = &trace->requests[i];
		uint32_t n = request->input < SAMPLE ? request->input : SAMPLE;

		KVT_ASSERT(request->head <= request->covered && request->covered <= request->input);
		KVT_ASSERT((uint64_t)request->first_run + request->n_runs <= trace->n_runs);
		kvt_trace_keys(trace, request, 0, n, keys);
		kvt_trace_keys(trace, request, request->input - n, request->input, keys);
		KVT_ASSERT(kvt_trace_common(trace, request, &trace->requests[0]) <= request->input);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
	int fd = memfd_create("trace", MFD_CLOEXEC), rc;
	struct kvt_trace_options options = { .format = KVT_TRACE_ANY, .bursts = 1 };
	struct kvt_trace *trace = NULL;
	char why[1024] = "", path[64];

	KVT_ASSERT(fd >= 0);
	KVT_ASSERT(write(fd, bytes, n) == (ssize_t)n);
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	options.path = path;
	rc = kvt_trace_load(&options, &trace, why, sizeof(why));
	KVT_ASSERT(rc <= 0 && (rc == 0 || (why[0] && memchr(why, '\0', sizeof(why)))));
	if (!rc)
		sample(trace);
	kvt_trace_free(trace);
	close(fd);
	return 0;
}
