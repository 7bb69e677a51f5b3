/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_TESTS_CUDA_CAPTURE_H
#define KVT_TESTS_CUDA_CAPTURE_H

/**
 * @file capture.h
 * An engine that captures a stream into a graph while the test does something else, on the test's
 * thread or on another; on a device, or on the stand-in. It captures a copy before and one after,
 * so an undisturbed capture gives a graph of two nodes.
 */

#include <pthread.h>
#include <semaphore.h>
#include <stdbool.h>
#include <stddef.h>

#include "kvt_cuda.h"

struct capture {
	/* Set by the caller before it begins. */
	const struct kvt_cu_driver *driver;
	void *context;
	void *stream;
	uint64_t memory; /* at least 16 bytes of device memory */
	int mode;        /* KVT_CU_CAPTURE_MODE_... */
	bool elsewhere;  /* on a thread of its own */

	/* Results, once it has ended: CUresults, or -1 if the driver lacks a function. */
	int begin_error, copy_error, end_error;
	int status; /* at the end: 1 active, 2 invalidated */
	size_t n_nodes;

	pthread_t thread;
	sem_t begun, enough;
};

/* The driver's capture functions, which kvtrunk itself does not use. */
struct capture_functions {
	int (*begin)(void *stream, int mode);
	int (*end)(void *stream, void **ret_graph);
	int (*nodes)(void *graph, void **nodes, size_t *n_nodes);
	int (*destroy)(void *graph);
};

static inline bool capture_functions_find(const struct kvt_cu_driver *driver,
					  struct capture_functions *functions)
{
	*(void **)(void *)&functions->begin = dlsym(driver->library, "cuStreamBeginCapture_v2");
	*(void **)(void *)&functions->end = dlsym(driver->library, "cuStreamEndCapture");
	*(void **)(void *)&functions->nodes = dlsym(driver->library, "cuGraphGetNodes");
	*(void **)(void *)&functions->destroy = dlsym(driver->library, "cuGraphDestroy");
	return functions->begin && functions->end && functions->nodes && functions->destroy;
}

static inline void capture_copy(struct capture *capture)
{
	int error = capture->driver->memory_copy(capture->memory + 8, capture->memory, 8,
						 capture->stream);

	capture->copy_error = capture->copy_error ? capture->copy_error : error;
}

static inline void capture_first_half(struct capture *capture)
{
	struct capture_functions functions;

	capture->begin_error = capture->copy_error = capture->end_error = -1;
	capture->status = 0;
	capture->n_nodes = 0;
	if (!capture_functions_find(capture->driver, &functions))
		return;
	capture->begin_error = functions.begin(capture->stream, capture->mode);
	capture->copy_error = 0;
	if (!capture->begin_error)
		capture_copy(capture);
}

static inline void capture_second_half(struct capture *capture)
{
	struct capture_functions functions;
	void *graph = NULL;

	if (capture->begin_error || !capture_functions_find(capture->driver, &functions))
		return;
	capture->driver->stream_capturing(capture->stream, &capture->status);
	capture_copy(capture);
	capture->end_error = functions.end(capture->stream, &graph);
	if (graph && functions.nodes(graph, NULL, &capture->n_nodes) == 0)
		functions.destroy(graph);
}

static inline void *capture_main(void *context)
{
	struct capture *capture = context;

	capture->driver->context_push(capture->context);
	capture_first_half(capture);
	sem_post(&capture->begun);
	sem_wait(&capture->enough);
	capture_second_half(capture);
	capture->driver->context_pop(&(void *){ NULL });
	return NULL;
}

/** Begin. On return the stream is being captured. */
static inline void capture_begin(struct capture *capture)
{
	sem_init(&capture->begun, 0, 0);
	sem_init(&capture->enough, 0, 0);
	capture->elsewhere = capture->elsewhere &&
			     pthread_create(&capture->thread, NULL, capture_main, capture) == 0;
	if (capture->elsewhere)
		sem_wait(&capture->begun);
	else
		capture_first_half(capture);
}

static inline void capture_end(struct capture *capture)
{
	if (capture->elsewhere) {
		sem_post(&capture->enough);
		pthread_join(capture->thread, NULL);
	} else {
		capture_second_half(capture);
	}
	sem_destroy(&capture->begun);
	sem_destroy(&capture->enough);
}

/** True if the capture was not disturbed. */
static inline bool capture_is_whole(const struct capture *capture)
{
	return !capture->begin_error && !capture->copy_error && !capture->end_error &&
	       capture->status == 1 && capture->n_nodes == 2;
}

/** The calling thread's mode, which a call must leave unchanged. */
static inline int capture_mode(const struct kvt_cu_driver *driver)
{
	int mode = KVT_CU_CAPTURE_MODE_RELAXED, before;

	if (driver->capture_mode_exchange(&mode))
		return -1;
	before = mode;
	driver->capture_mode_exchange(&mode);
	return before;
}

#endif
