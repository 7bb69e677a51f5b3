/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Captures of streams into graphs, with the rules of cuda.h at cuThreadExchangeStreamCaptureMode():
 * a prohibited call gets an error, and ends all captures that prohibit it. A graph is only the
 * number of its nodes.
 *
 * Inputs: calls of the program under test, by thread and stream. Invariant: one lock guards all
 * captures. Callers: every exported function (standin.h: ENTER, LEAVE).
 */
#include "tests/lib/standin/standin.h"

#include <stdlib.h>
#include <string.h>

#include "shm/atomic.h"

#define CAPTURES_MAX 16

enum { STATUS_NONE, STATUS_ACTIVE, STATUS_INVALIDATED };

struct capture {
	void *stream; /* NULL: none */
	const void *thread;
	int mode;
	bool invalidated;
	size_t n_nodes;
};

struct graph {
	size_t n_nodes;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct capture captures[CAPTURES_MAX];
static uint32_t n_captures;
static __thread int thread_mode = KVT_CU_CAPTURE_MODE_GLOBAL; /* its address names the thread */

/*
 * "Potentially unsafe API calls". No document lists them: cuMemAlloc is named, cuEventQuery is
 * known. Here: all that is not queued on a stream and makes or frees something lasting, or waits.
 * Not streams and events: a capturing engine makes them.
 */
static const char *const unsafe[] = {
	"cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxRelease_v2",
	"cuModuleLoadData", "cuModuleUnload", "cuModuleGetFunction", "cuFuncSetAttribute",
	"cuMemAlloc_v2", "cuMemFree_v2", "cuMemHostAlloc", "cuMemFreeHost",
	"cuMemHostRegister_v2", "cuMemHostUnregister",
	"cuIpcGetMemHandle", "cuIpcOpenMemHandle_v2", "cuIpcCloseMemHandle",
	"cuMemCreate", "cuMemRelease", "cuMemExportToShareableHandle",
	"cuMemImportFromShareableHandle", "cuMemAddressReserve", "cuMemAddressFree",
	"cuMemMap", "cuMemUnmap", "cuMemSetAccess",
	"cuEventSynchronize", "cuStreamSynchronize",
};

static bool is_unsafe(const char *name)
{
	for (size_t i = 0; i < sizeof(unsafe) / sizeof(unsafe[0]); i++)
		if (strcmp(unsafe[i], name) == 0)
			return true;
	return false;
}

int standin_capture_check(const char *name)
{
	int error = 0;

	if (!kvt_load_relaxed(&n_captures) || thread_mode == KVT_CU_CAPTURE_MODE_RELAXED ||
	    !is_unsafe(name))
		return 0;
	LOCKED;
	for (int i = 0; i < CAPTURES_MAX; i++) {
		struct capture *capture = &captures[i];
		bool own = capture->thread == &thread_mode;

		if (!capture->stream)
			continue;
		if (own ? capture->mode == KVT_CU_CAPTURE_MODE_RELAXED
			: thread_mode != KVT_CU_CAPTURE_MODE_GLOBAL ||
				  capture->mode != KVT_CU_CAPTURE_MODE_GLOBAL)
			continue;
		capture->invalidated = true;
		error = KVT_CU_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	}
	return error;
}

static struct capture *capture_of(const void *stream)
{
	for (int i = 0; i < CAPTURES_MAX; i++)
		if (captures[i].stream == stream)
			return &captures[i];
	return NULL;
}

/* Call with the lock held. The null stream waits for streams that are not non-blocking. */
static int null_stream_check(bool invalidate)
{
	int error = 0;

	for (int i = 0; i < CAPTURES_MAX; i++) {
		if (!captures[i].stream || !standin_stream_blocks(captures[i].stream))
			continue;
		captures[i].invalidated |= invalidate;
		error = KVT_CU_ERROR_STREAM_CAPTURE_IMPLICIT;
	}
	return error;
}

int standin_capture_put(void *stream)
{
	struct capture *capture;

	LOCKED;
	if (!stream)
		return null_stream_check(true);
	capture = capture_of(stream);
	if (!capture || capture->invalidated)
		return capture ? STANDIN_CAPTURE_INVALIDATED : 0;
	capture->n_nodes++;
	return STANDIN_CAPTURED;
}

int standin_capture_break(void *stream)
{
	struct capture *capture;

	LOCKED;
	if (!stream)
		return null_stream_check(true);
	capture = capture_of(stream);
	if (!capture)
		return 0;
	capture->invalidated = true;
	return KVT_CU_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

EXPORT int cuStreamIsCapturing(void *stream, int *status)
{
	const struct capture *capture;
	int error = 0;

	ENTER("cuStreamIsCapturing");
	if (!standin_current())
		return KVT_CU_ERROR_INVALID_CONTEXT;
	LOCKED;
	if (!stream)
		error = null_stream_check(false);
	capture = stream ? capture_of(stream) : NULL;
	if (!error)
		*status = !capture		 ? STATUS_NONE
			  : capture->invalidated ? STATUS_INVALIDATED
						 : STATUS_ACTIVE;
	return error;
}

EXPORT int cuStreamBeginCapture_v2(void *stream, int mode);
EXPORT int cuStreamBeginCapture_v2(void *stream, int mode)
{
	struct capture *capture;

	ENTER("cuStreamBeginCapture_v2");
	if (!stream || mode < KVT_CU_CAPTURE_MODE_GLOBAL || mode > KVT_CU_CAPTURE_MODE_RELAXED)
		return KVT_CU_ERROR_INVALID_VALUE;
	LOCKED;
	capture = capture_of(stream) ? NULL : capture_of(NULL);
	if (!capture)
		return KVT_CU_ERROR_INVALID_VALUE;
	*capture = (struct capture){ stream, &thread_mode, mode, false, 0 };
	kvt_store_relaxed(&n_captures, n_captures + 1);
	return 0;
}

EXPORT int cuStreamEndCapture(void *stream, void **ret_graph);
EXPORT int cuStreamEndCapture(void *stream, void **ret_graph)
{
	struct capture *capture, ended;
	struct graph *graph;

	ENTER("cuStreamEndCapture");
	*ret_graph = NULL;
	LOCKED;
	capture = stream ? capture_of(stream) : NULL;
	if (!capture)
		return STANDIN_CAPTURE_UNMATCHED;
	if (capture->mode != KVT_CU_CAPTURE_MODE_RELAXED && capture->thread != &thread_mode)
		return STANDIN_CAPTURE_WRONG_THREAD;
	ended = *capture;
	*capture = (struct capture){ .stream = NULL };
	kvt_store_relaxed(&n_captures, n_captures - 1);
	if (ended.invalidated)
		return STANDIN_CAPTURE_INVALIDATED;
	graph = malloc(sizeof(*graph));
	if (!graph)
		return KVT_CU_ERROR_OUT_OF_MEMORY;
	graph->n_nodes = ended.n_nodes;
	standin_opened(STANDIN_GRAPH, 1);
	*ret_graph = graph;
	return 0;
}

EXPORT int cuGraphGetNodes(void *graph, void **nodes, size_t *n_nodes);
EXPORT int cuGraphGetNodes(void *graph, void **nodes, size_t *n_nodes)
{
	ENTER("cuGraphGetNodes");
	if (nodes)
		return KVT_CU_ERROR_NOT_SUPPORTED;
	*n_nodes = ((const struct graph *)graph)->n_nodes;
	return 0;
}

EXPORT int cuGraphDestroy(void *graph);
EXPORT int cuGraphDestroy(void *graph)
{
	LEAVE("cuGraphDestroy");

	free(graph);
	standin_opened(STANDIN_GRAPH, -1);
	return error;
}

EXPORT int cuThreadExchangeStreamCaptureMode(int *mode)
{
	int before = thread_mode;

	ENTER("cuThreadExchangeStreamCaptureMode");
	if (*mode < KVT_CU_CAPTURE_MODE_GLOBAL || *mode > KVT_CU_CAPTURE_MODE_RELAXED)
		return KVT_CU_ERROR_INVALID_VALUE;
	thread_mode = *mode;
	*mode = before;
	return 0;
}
