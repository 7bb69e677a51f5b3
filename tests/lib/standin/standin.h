/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_TESTS_CUDA_STANDIN_H
#define KVT_TESTS_CUDA_STANDIN_H

/**
 * @file standin.h
 * The inside of a libcuda.so.1 for tests. Device memory is files in shared memory, so handles and
 * descriptors really travel between processes and really die. Streams are threads that lag. Kernels
 * run on emulated hardware if that is linked in.
 *
 * The environment, before the first call, says what a process sees:
 *   KVT_STANDIN_DIR      directory (tmpfs) of the devices' memory, shared by all processes that
 *                        see the same devices. Without it memory is the process's own, no IPC
 *   KVT_STANDIN_DEVICES  number of devices of the host (1)
 *   KVT_STANDIN_MEMORY   bytes of memory of each (1 GiB)
 *   KVT_STANDIN_DRIVER   result of cuDriverGetVersion (13000)
 *   KVT_STANDIN_TRAITS   words, separated by commas: mig no-ipc no-vmm no-posix-fd mps prohibited
 *                        exclusive no-read-only no-unified coarse (VMM in units of 4 MiB)
 *                        no-stream-ops no-host-register releases-fail rdma (of VMM memory,
 *                        which must then be allocated for it)
 *                        Misbehaviour: early-fences (host functions and written values do not
 *                        wait for earlier work) late-writes (a kernel runs for a while after its
 *                        process's end) forgetful (a process's exports are lost with it)
 *                        writable (read-only mappings can be written)
 *   KVT_STANDIN_FAIL_AT  the n-th call fails, from 0; KVT_STANDIN_FAIL_CALL: only this function's
 *                        calls count; KVT_STANDIN_FAIL_ERROR: the CUresult (999)
 *                        The file DIR/fail_at does the same to the next process that loads this
 *   KVT_STANDIN_LAG_US   each item of a stream waits a random time below this before it runs
 *   KVT_STANDIN_LOST_AT  the n-th kernel fails, from 1, and all later work with it, fences too;
 *                        memory can still be freed
 *   DIR/contexts.PID     number of contexts of a process
 *   KVT_STANDIN_REPORT   file to which "calls=N open=N (kind N ...)" is appended at exit
 *   CUDA_VISIBLE_DEVICES ordinals, or GPU-... UUIDs, as for the real one
 */

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kvt_cuda.h"

#define EXPORT __attribute__((visibility("default")))
#define STANDIN_DEVICES_MAX 20
#define STANDIN_BLOCK (2u << 20) /* the real one's granularity */
#define STANDIN_FAILURE 999

#define STANDIN_GRID_YZ_MAX 65535u
#define STANDIN_SHARED_PLAIN (48u << 10) /* a launch without cuFuncSetAttribute */

enum standin_error { /* more than kvt_cuda.h has */
	STANDIN_CONTEXT_IS_DESTROYED = 709,
	STANDIN_NOT_READY = 600,
	STANDIN_NOT_REGISTERED = 713,
	STANDIN_NOT_FOUND = 500,
	STANDIN_LAUNCH_FAILED = 719,
	STANDIN_CAPTURE_INVALIDATED = 901,
	STANDIN_CAPTURE_UNMATCHED = 903,
	STANDIN_CAPTURE_ISOLATION = 905,
	STANDIN_CAPTURED_EVENT = 907,
	STANDIN_CAPTURE_WRONG_THREAD = 908,
	STANDIN_CAPTURED = -1, /* no error: see standin_capture_put() */
};

enum standin_kind {
	STANDIN_CONTEXT,
	STANDIN_MODULE,
	STANDIN_MEMORY,
	STANDIN_IPC,
	STANDIN_HANDLE,
	STANDIN_RESERVATION,
	STANDIN_MAPPING,
	STANDIN_REGISTRATION,
	STANDIN_PINNED,
	STANDIN_STREAM,
	STANDIN_EVENT,
	STANDIN_GRAPH,
	STANDIN_KINDS,
};

struct standin_device {
	int index; /* on the host, for any ordinal of the process */
	int contexts;
	struct kvt_cu_uuid uuid;
};

/* Read and written by tests, which find them by dlsym. */
extern int stub_fail_at; /* number of calls until one fails; -1: none */
extern int stub_open;    /* everything that is open in this process */
extern int stub_pushed;  /* contexts on the calling threads' stacks */
extern int stub_major;
extern void (*stub_on_unmap)(void); /* called before device memory of others is unmapped */
extern int stub_devices;

/** True if this call must fail. Every exported function asks first. */
int standin_enter(const char *name);
/** The same for functions that release something: they do so in any case, and fail on request only
 * with the trait "releases-fail". */
int standin_leave(const char *name);
/** Begin a function that releases something, with its `error`. A call that a capture prohibits does
 * nothing. */
#define LEAVE(name)                                                                               \
	int error = standin_leave(name);                                                          \
	if (error == KVT_CU_ERROR_STREAM_CAPTURE_UNSUPPORTED)                                     \
		return error

/** Return from the caller if this call must fail, or if the driver is not initialized. */
#define ENTER(name)                                                                               \
	do {                                                                                      \
		int error_ = standin_enter(name);                                                 \
		if (error_)                                                                       \
			return error_;                                                            \
	} while (0)

/** The same for functions that need a current context, not yet released for the last time. */
#define ENTER_CONTEXT(name)                                                                       \
	do {                                                                                      \
		int error_ = standin_enter(name);                                                 \
		error_ = error_ ? error_ : standin_context_error();                               \
		if (error_)                                                                       \
			return error_;                                                            \
	} while (0)

/** Hold the file's `lock` until the end of the block. */
#define LOCKED                                                                                    \
	pthread_mutex_t *locked_ __attribute__((cleanup(standin_unlock), unused)) =               \
		(pthread_mutex_lock(&lock), &lock)
static inline void standin_unlock(pthread_mutex_t **held)
{
	pthread_mutex_unlock(*held);
}

/** 0 if a context is current. */
int standin_context_error(void);
/** Set while this thread runs a host function. Any call then aborts. */
void standin_host_function(bool runs);
/** True if all of this is device memory, or host memory that the device can reach. */
bool standin_reachable(uint64_t address, uint64_t bytes);
/** A context was released for the last time: drop its memory and all that it opened. */
void standin_context_reset(int device);

/** 0, or the error for a call that the rules for captures prohibit on this thread. Then the
 * captures that prohibit it are invalidated. */
int standin_capture_check(const char *name);
/** 0: the work is queued. STANDIN_CAPTURED: it is a node of a graph. Else an error. NULL is the
 * null stream. */
int standin_capture_put(void *stream);
/** 0, or the error for work that no capture of this stream allows: then it is invalidated. */
int standin_capture_break(void *stream);
/** True if the null stream waits for this one. */
bool standin_stream_blocks(const void *stream);

/** Of a multiprocessor; a block may have a KiB less. */
int standin_shared_bytes(void);

bool standin_trait(const char *word);
uint64_t standin_number(const char *variable, uint64_t fallback);
void standin_opened(enum standin_kind kind, int by);

/** By the process's ordinal, NULL if there is none. */
struct standin_device *standin_device(int ordinal);
int standin_ordinal(const struct standin_device *device);
/** Kernels by name: is there one, bytes of its argument, run all of its blocks. */
bool standin_kernel_known(const char *name);
size_t standin_kernel_bytes(const char *name);
void standin_kernel_run(const char *name, const void *args, uint32_t grid_x, uint32_t grid_y);

/** True if this is page-locked host memory, which streams read when they reach the item. */
bool standin_pinned(const void *memory);

/** The device of the current context, NULL if none is current. */
struct standin_device *standin_current(void);

#endif
