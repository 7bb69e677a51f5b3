/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Streams: each has a thread that runs its items in order, delayed by the gate and the lag. The
 * null stream runs at once, on the caller's thread: one of the orders that the real one may choose.
 * Events are counters that a stream reaches. Modules and kernels are the emulated ones.
 *
 * Inputs: calls of the program under test. Invariant: one lock and one condition guard all streams.
 * Callers: the program under test, memory.c.
 */
#include "tests/lib/standin/standin.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "shm/atomic.h"

#define N_NAMES 64
#define PER_THREAD ((void *)2)

enum item_kind { ITEM_COPY, ITEM_HOST, ITEM_WRITE, ITEM_RECORD, ITEM_WAIT, ITEM_KERNEL };

struct event {
	struct event *next; /* of those that are destroyed */
	const struct standin_device *device;
	bool timed;
	uint64_t recorded; /* times it was recorded, and reached */
	uint64_t reached;
	struct timespec time; /* when it was last reached */
	bool captured;        /* last recorded on a captured stream */
};

struct item {
	struct item *next;
	enum item_kind kind;
	void *target;
	const void *source; /* staged behind the item, or device memory */
	size_t bytes;
	kvt_cu_host_fn *function;
	void *context;
	uint64_t value;
	struct event *event;
	const char *kernel;
	uint32_t grid_x, grid_y;
	char staged[];
};

struct stream {
	pthread_t thread;
	struct standin_device *device;
	struct item *first, *last;
	bool busy, over;
	bool blocking; /* the null stream waits for it */
	uint64_t random;
};

/* One lock and one condition for all: tests have few streams. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static bool gate_closed;
static bool lost; /* a kernel has failed: no stream runs any more */

/** While the gate is closed no stream begins another item. For tests, by dlsym. */
EXPORT void standin_gate(int closed);
EXPORT void standin_gate(int closed)
{
	LOCKED;
	gate_closed = closed;
	pthread_cond_broadcast(&changed);
}

/* ---- running */

static void run_kernel(const struct item *item)
{
	static uint64_t n;

	if (++n == standin_number("KVT_STANDIN_LOST_AT", 0))
		kvt_store_relaxed(&lost, true);
	else
		standin_kernel_run(item->kernel, item->staged, item->grid_x, item->grid_y);
}

static void item_run(struct item *item)
{
	if (kvt_load_relaxed(&lost) && item->kind != ITEM_RECORD)
		return;
	switch (item->kind) {
	case ITEM_COPY:
		memmove(item->target, item->source, item->bytes);
		break;
	case ITEM_HOST:
		standin_host_function(true);
		item->function(item->context);
		standin_host_function(false);
		break;
	case ITEM_WRITE: /* with its default barrier */
		kvt_store_release((uint64_t *)item->target, item->value);
		break;
	case ITEM_RECORD:
		pthread_mutex_lock(&lock);
		clock_gettime(CLOCK_MONOTONIC, &item->event->time);
		if (item->event->reached < item->value)
			item->event->reached = item->value;
		pthread_cond_broadcast(&changed);
		pthread_mutex_unlock(&lock);
		break;
	case ITEM_WAIT:
		pthread_mutex_lock(&lock);
		while (item->event->reached < item->value && !kvt_load_relaxed(&lost))
			pthread_cond_wait(&changed, &lock);
		pthread_mutex_unlock(&lock);
		break;
	case ITEM_KERNEL:
		run_kernel(item);
		break;
	}
}

static void lag(struct stream *stream)
{
	uint64_t most_us = standin_number("KVT_STANDIN_LAG_US", 0);
	struct timespec pause = { 0 };

	if (!most_us)
		return;
	stream->random = stream->random * 6364136223846793005ull + 1442695040888963407ull;
	pause.tv_nsec = (long)((stream->random >> 33) % most_us * 1000);
	clock_nanosleep(CLOCK_MONOTONIC, 0, &pause, NULL); /* a slow device: no one waits */
}

static void *stream_main(void *context)
{
	struct stream *stream = context;

	pthread_mutex_lock(&lock);
	for (;;) {
		struct item *item = stream->first;

		if (item && !gate_closed) {
			stream->first = item->next;
			stream->busy = true;
			pthread_mutex_unlock(&lock);
			lag(stream);
			item_run(item);
			free(item);
			pthread_mutex_lock(&lock);
			stream->busy = false;
			pthread_cond_broadcast(&changed);
		} else if (!item && stream->over) {
			break;
		} else {
			pthread_cond_wait(&changed, &lock);
		}
	}
	pthread_mutex_unlock(&lock);
	free(stream);
	return NULL;
}

static struct item *item_make(enum item_kind kind, size_t staged)
{
	struct item *item = calloc(1, sizeof(*item) + staged);

	if (!item)
		abort();
	item->kind = kind;
	return item;
}

/*
 * Captured work, and work refused because of a capture, is not queued. Simplification: a stream
 * that waits for a captured event gets an error instead of joining the capture.
 */
static int item_drop(void *stream, struct item *item, int why)
{
	bool captured = why == STANDIN_CAPTURED;
	int error = captured ? 0 : why;

	pthread_mutex_lock(&lock);
	if (item->kind == ITEM_RECORD) {
		item->event->recorded--;
		item->event->captured |= captured;
	}
	if (captured && item->kind == ITEM_WAIT && !item->event->captured)
		error = STANDIN_CAPTURE_ISOLATION;
	pthread_mutex_unlock(&lock);
	if (error == STANDIN_CAPTURE_ISOLATION)
		standin_capture_break(stream);
	free(item);
	return error;
}

/* Queue it, or run it at once on the null stream. */
static int item_put(void *handle, struct item *item)
{
	struct stream *stream = handle == PER_THREAD ? NULL : handle;
	int why = handle == PER_THREAD ? 0 : standin_capture_put(stream);

	if (kvt_load_relaxed(&lost)) {
		free(item);
		return STANDIN_LAUNCH_FAILED;
	}
	if (!why && item->kind == ITEM_WAIT && item->event->captured)
		why = STANDIN_CAPTURE_ISOLATION;
	if (why)
		return item_drop(stream, item, why);
	if (!stream || ((item->kind == ITEM_HOST || item->kind == ITEM_WRITE) &&
			standin_trait("early-fences"))) {
		item_run(item);
		free(item);
		return 0;
	}
	LOCKED;
	if (stream->first)
		stream->last->next = item;
	else
		stream->first = item;
	stream->last = item;
	pthread_cond_broadcast(&changed);
	return 0;
}

/* ---- streams and events */

/* The stream's context; for the null stream the current one. */
static const struct standin_device *device_of(const void *handle)
{
	const struct stream *stream = handle;

	return stream && handle != PER_THREAD ? stream->device : standin_current();
}

bool standin_stream_blocks(const void *stream)
{
	return ((const struct stream *)stream)->blocking;
}

/* The real one may refuse a stream of another context. */
static bool is_elsewhere(const void *handle)
{
	return device_of(handle) != standin_current();
}

EXPORT int cuStreamCreate(void **ret_stream, unsigned int flags)
{
	static uint64_t seed;
	struct stream *stream;

	ENTER_CONTEXT("cuStreamCreate");
	if (flags & ~(unsigned int)KVT_CU_STREAM_NON_BLOCKING)
		return KVT_CU_ERROR_INVALID_VALUE;
	stream = calloc(1, sizeof(*stream));
	if (!stream)
		return KVT_CU_ERROR_OUT_OF_MEMORY;
	stream->device = standin_current();
	stream->blocking = !(flags & KVT_CU_STREAM_NON_BLOCKING);
	stream->random = ++seed * 0x9e3779b97f4a7c15ull;
	if (pthread_create(&stream->thread, NULL, stream_main, stream) != 0) {
		free(stream);
		return KVT_CU_ERROR_OPERATING_SYSTEM;
	}
	pthread_detach(stream->thread);
	standin_opened(STANDIN_STREAM, 1);
	*ret_stream = stream;
	return 0;
}

/* Queued items still run. */
EXPORT int cuStreamDestroy_v2(void *handle)
{
	LEAVE("cuStreamDestroy_v2");
	struct stream *stream = handle;

	LOCKED;
	stream->over = true;
	pthread_cond_broadcast(&changed);
	standin_opened(STANDIN_STREAM, -1);
	return error;
}

EXPORT int cuStreamSynchronize(void *handle)
{
	const struct stream *stream = handle;
	int error;

	ENTER_CONTEXT("cuStreamSynchronize");
	error = standin_capture_break(handle);
	if (error)
		return error;
	LOCKED;
	while (stream && (stream->first || stream->busy))
		pthread_cond_wait(&changed, &lock);
	return kvt_load_relaxed(&lost) ? STANDIN_LAUNCH_FAILED : 0;
}

EXPORT int cuStreamGetCtx(void *handle, void **context)
{
	const struct stream *stream = handle;

	ENTER("cuStreamGetCtx");
	*context = stream && handle != PER_THREAD ? stream->device : standin_current();
	return *context ? 0 : KVT_CU_ERROR_INVALID_CONTEXT;
}

EXPORT int cuStreamWaitEvent(void *stream, void *handle, unsigned int flags)
{
	struct event *event = handle;
	struct item *item;

	ENTER_CONTEXT("cuStreamWaitEvent");
	item = item_make(ITEM_WAIT, 0);
	item->event = event;
	pthread_mutex_lock(&lock);
	item->value = event->recorded;
	pthread_mutex_unlock(&lock);
	return item_put(stream, item);
}

EXPORT int cuEventCreate(void **event, unsigned int flags)
{
	struct event *made;

	ENTER_CONTEXT("cuEventCreate");
	if (flags & ~(KVT_CU_EVENT_BLOCKING_SYNC | KVT_CU_EVENT_DISABLE_TIMING))
		return KVT_CU_ERROR_INVALID_VALUE;
	made = calloc(1, sizeof(*made));
	if (!made)
		return KVT_CU_ERROR_OUT_OF_MEMORY;
	made->device = standin_current();
	made->timed = !(flags & KVT_CU_EVENT_DISABLE_TIMING);
	*event = made;
	standin_opened(STANDIN_EVENT, 1);
	return 0;
}

/* Keep the memory: a queued item may still name it. */
EXPORT int cuEventDestroy_v2(void *handle)
{
	static struct event *gone; /* no leak, so a list */
	struct event *event = handle;

	LEAVE("cuEventDestroy_v2");

	pthread_mutex_lock(&lock);
	event->next = gone;
	gone = event;
	pthread_mutex_unlock(&lock);
	standin_opened(STANDIN_EVENT, -1);
	return error;
}

EXPORT int cuEventRecord(void *handle, void *stream)
{
	struct event *event = handle;
	struct item *item;

	ENTER_CONTEXT("cuEventRecord");
	if (event->device != device_of(stream))
		return KVT_CU_ERROR_INVALID_HANDLE;
	item = item_make(ITEM_RECORD, 0);
	item->event = event;
	pthread_mutex_lock(&lock);
	item->value = ++event->recorded;
	event->captured = false;
	pthread_mutex_unlock(&lock);
	return item_put(stream, item);
}

EXPORT int cuEventSynchronize(void *handle)
{
	const struct event *event = handle;
	uint64_t value;

	ENTER_CONTEXT("cuEventSynchronize");
	if (event->captured)
		return STANDIN_CAPTURED_EVENT;
	LOCKED;
	value = event->recorded;
	/* Records after the loss of the device are never reached. */
	while (event->reached < value && !kvt_load_relaxed(&lost))
		pthread_cond_wait(&changed, &lock);
	return kvt_load_relaxed(&lost) ? STANDIN_LAUNCH_FAILED : 0;
}

EXPORT int cuEventElapsedTime(float *ms, void *begin, void *end);
EXPORT int cuEventElapsedTime(float *ms, void *begin, void *end)
{
	const struct event *a = begin, *b = end;

	ENTER_CONTEXT("cuEventElapsedTime");
	if (!a->timed || !b->timed || !a->recorded || !b->recorded)
		return KVT_CU_ERROR_INVALID_HANDLE;
	if (a->reached < a->recorded || b->reached < b->recorded)
		return STANDIN_NOT_READY;
	*ms = (float)(b->time.tv_sec - a->time.tv_sec) * 1e3f +
	      (float)(b->time.tv_nsec - a->time.tv_nsec) * 1e-6f;
	return 0;
}

/* ---- work */

EXPORT int cuLaunchHostFunc(void *stream, kvt_cu_host_fn *function, void *context)
{
	struct item *item;

	ENTER_CONTEXT("cuLaunchHostFunc");
	if (is_elsewhere(stream))
		return KVT_CU_ERROR_INVALID_CONTEXT;
	item = item_make(ITEM_HOST, 0);
	item->function = function;
	item->context = context;
	return item_put(stream, item);
}

EXPORT int cuStreamWriteValue64_v2(void *stream, uint64_t address, uint64_t value,
				   unsigned int flags)
{
	struct item *item;

	ENTER_CONTEXT("cuStreamWriteValue64_v2");
	if (is_elsewhere(stream))
		return KVT_CU_ERROR_INVALID_CONTEXT;
	if (standin_trait("no-stream-ops") || flags || address % 8)
		return KVT_CU_ERROR_NOT_SUPPORTED;
	item = item_make(ITEM_WRITE, 0);
	item->target = (void *)(uintptr_t)address;
	item->value = value;
	return item_put(stream, item);
}

/*
 * Pageable memory is read before this returns, as with the real one. Page-locked memory is read
 * when the stream reaches the item.
 */
EXPORT int cuMemcpyHtoDAsync_v2(uint64_t target, const void *source, size_t bytes, void *stream)
{
	struct item *item;
	bool pinned;

	ENTER_CONTEXT("cuMemcpyHtoDAsync_v2");
	if (!standin_reachable(target, bytes) || is_elsewhere(stream))
		return KVT_CU_ERROR_INVALID_VALUE;
	pinned = standin_pinned(source);
	item = item_make(ITEM_COPY, pinned ? 0 : bytes);
	item->target = (void *)(uintptr_t)target;
	item->source = pinned ? source : item->staged;
	item->bytes = bytes;
	if (!pinned)
		memcpy(item->staged, source, bytes);
	return item_put(stream, item);
}

EXPORT int cuMemcpyDtoDAsync_v2(uint64_t target, uint64_t source, size_t bytes, void *stream);
EXPORT int cuMemcpyDtoDAsync_v2(uint64_t target, uint64_t source, size_t bytes, void *stream)
{
	struct item *item;

	ENTER_CONTEXT("cuMemcpyDtoDAsync_v2");
	if (!standin_reachable(target, bytes) || !standin_reachable(source, bytes) ||
	    is_elsewhere(stream))
		return KVT_CU_ERROR_INVALID_VALUE;
	item = item_make(ITEM_COPY, 0);
	item->target = (void *)(uintptr_t)target;
	item->source = (const void *)(uintptr_t)source;
	item->bytes = bytes;
	return item_put(stream, item);
}

EXPORT int cuMemcpyDtoHAsync_v2(void *target, uint64_t source, size_t bytes, void *stream)
{
	struct item *item;

	ENTER_CONTEXT("cuMemcpyDtoHAsync_v2");
	if (!standin_reachable(source, bytes) || is_elsewhere(stream))
		return KVT_CU_ERROR_INVALID_VALUE;
	item = item_make(ITEM_COPY, 0);
	item->target = target;
	item->source = (const void *)(uintptr_t)source;
	item->bytes = bytes;
	return item_put(stream, item);
}

/* Row by row, as copies of their own. */
EXPORT int cuMemcpy2DAsync_v2(const struct kvt_cu_rows_copy *copy, void *stream)
{
	const struct kvt_cu_rows *from = &copy->source, *to = &copy->target;
	bool out = from->type == KVT_CU_MEMORY_DEVICE;
	int error = 0;

	ENTER_CONTEXT("cuMemcpy2DAsync_v2");
	if (from->type == to->type || from->x_bytes | from->y | to->x_bytes | to->y ||
	    from->pitch < copy->row_bytes || from->pitch > INT32_MAX ||
	    to->pitch < copy->row_bytes || to->pitch > INT32_MAX)
		return KVT_CU_ERROR_INVALID_VALUE;
	for (size_t i = 0; i < copy->n_rows && error == 0; i++)
		error = out ? cuMemcpyDtoHAsync_v2((char *)to->host + i * to->pitch,
						   from->device + i * from->pitch,
						   copy->row_bytes, stream)
			    : cuMemcpyHtoDAsync_v2(to->device + i * to->pitch,
						   (char *)from->host + i * from->pitch,
						   copy->row_bytes, stream);
	return error;
}

EXPORT int cuMemcpyHtoD_v2(uint64_t target, const void *source, size_t bytes);
EXPORT int cuMemcpyHtoD_v2(uint64_t target, const void *source, size_t bytes)
{
	memcpy((void *)(uintptr_t)target, source, bytes);
	return 0;
}

EXPORT int cuMemcpyDtoH_v2(void *target, uint64_t source, size_t bytes);
EXPORT int cuMemcpyDtoH_v2(void *target, uint64_t source, size_t bytes)
{
	memcpy(target, (const void *)(uintptr_t)source, bytes);
	return 0;
}

/* ---- kernels */

static struct function {
	char name[64];
	uint32_t shared_bytes; /* more shared memory than a plain launch has */
} functions[N_NAMES];

/* A binary is an ELF file, PTX is text. */
EXPORT int cuModuleLoadData(void **module, const void *image)
{
	static int loaded;

	ENTER_CONTEXT("cuModuleLoadData");
	if (memcmp(image, "\177ELF", 4) != 0 && !strstr(image, ".version"))
		return KVT_CU_ERROR_INVALID_VALUE;
	*module = &loaded;
	standin_opened(STANDIN_MODULE, 1);
	return 0;
}

EXPORT int cuModuleUnload(void *module)
{
	LEAVE("cuModuleUnload");

	standin_opened(STANDIN_MODULE, -1);
	return error;
}

EXPORT int cuModuleGetFunction(void **function, void *module, const char *name)
{
	ENTER_CONTEXT("cuModuleGetFunction");
	if (!standin_kernel_known(name) || strlen(name) >= sizeof(functions[0].name))
		return STANDIN_NOT_FOUND;
	for (int i = 0; i < N_NAMES; i++) {
		if (functions[i].name[0] && strcmp(functions[i].name, name) != 0)
			continue;
		memcpy(functions[i].name, name, strlen(name) + 1);
		*function = &functions[i];
		return 0;
	}
	return STANDIN_NOT_FOUND;
}

EXPORT int cuFuncSetAttribute(void *handle, int attribute, int value)
{
	struct function *function = handle;

	ENTER_CONTEXT("cuFuncSetAttribute");
	if (attribute != KVT_CU_FUNCTION_SHARED_BYTES || value < 0 ||
	    value > standin_shared_bytes() - 1024)
		return KVT_CU_ERROR_INVALID_VALUE;
	function->shared_bytes = (uint32_t)value;
	return 0;
}

EXPORT int cuLaunchKernel(void *handle, unsigned int grid_x, unsigned int grid_y,
			  unsigned int grid_z, unsigned int block_x, unsigned int block_y,
			  unsigned int block_z, unsigned int shared_bytes, void *stream,
			  void **arguments, void **extra)
{
	const struct function *function = handle;
	size_t bytes;
	struct item *item;

	ENTER_CONTEXT("cuLaunchKernel");
	if (is_elsewhere(stream))
		return KVT_CU_ERROR_INVALID_HANDLE;
	if (extra || grid_x > INT32_MAX || grid_y > STANDIN_GRID_YZ_MAX ||
	    (shared_bytes > STANDIN_SHARED_PLAIN && shared_bytes > function->shared_bytes))
		return KVT_CU_ERROR_INVALID_VALUE;
	if (!grid_x || !grid_y || grid_z != 1 || block_x != 128 || block_y != 1 || block_z != 1)
		return KVT_CU_ERROR_INVALID_VALUE;
	bytes = standin_kernel_bytes(function->name);
	item = item_make(ITEM_KERNEL, bytes);
	item->kernel = function->name;
	item->grid_x = grid_x;
	item->grid_y = grid_y;
	memcpy(item->staged, arguments[0], bytes);
	return item_put(stream, item);
}
