/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A libcuda.so.1 for tests: one device whose memory is the host's, streams that do at once what
 * they are told, and kernels that run on emulated hardware. It counts what is open, and can let
 * its n-th call fail.
 */

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/kernels/emulated.h"

#define EXPORT __attribute__((visibility("default")))
#define FAILURE 999

/* Read and written by the test, which finds them by dlsym. */
EXPORT int stub_fail_at = -1; /* which call from now on fails; -1 for none */
EXPORT int stub_open; /* memory, contexts, modules and events that are open */
EXPORT int stub_pushed; /* contexts on the stack */
EXPORT int stub_major = 9;
EXPORT int stub_devices = 1;

static int fails(void)
{
	return stub_fail_at >= 0 && stub_fail_at-- == 0;
}

#define MAY_FAIL()                                                                                 \
	do {                                                                                       \
		if (fails())                                                                       \
			return FAILURE;                                                            \
	} while (0)

EXPORT int cuInit(unsigned int flags)
{
	MAY_FAIL();
	return flags ? FAILURE : stub_devices ? 0 : 100;
}

EXPORT int cuDeviceGetCount(int *count)
{
	MAY_FAIL();
	*count = stub_devices;
	return 0;
}

EXPORT int cuDeviceGet(int *device, int ordinal)
{
	MAY_FAIL();
	*device = ordinal;
	return 0;
}

EXPORT int cuDeviceGetName(char *name, int bytes, int device)
{
	(void)device;
	strncpy(name, "emulated device", (size_t)bytes);
	return 0;
}

EXPORT int cuDeviceGetAttribute(int *value, int attribute, int device)
{
	MAY_FAIL();
	(void)device;
	*value = attribute == 75   ? stub_major
		 : attribute == 76 ? 0
		 : attribute == 16 ? 4
				   : 227 << 10;
	return 0;
}

EXPORT int cuDevicePrimaryCtxRetain(void **context, int device)
{
	MAY_FAIL();
	(void)device;
	*context = &stub_open;
	stub_open++;
	return 0;
}

EXPORT int cuDevicePrimaryCtxRelease_v2(int device)
{
	(void)device;
	stub_open--;
	return 0;
}

EXPORT int cuCtxPushCurrent_v2(void *context)
{
	MAY_FAIL();
	stub_pushed++;
	return context == &stub_open ? 0 : FAILURE;
}

EXPORT int cuCtxPopCurrent_v2(void **context)
{
	stub_pushed--;
	*context = &stub_open;
	return 0;
}

/* A binary is an ELF file, PTX is text. */
EXPORT int cuModuleLoadData(void **module, const void *image)
{
	MAY_FAIL();
	if (memcmp(image, "\177ELF", 4) != 0 && !strstr(image, ".version"))
		return FAILURE;
	*module = &stub_pushed;
	stub_open++;
	return 0;
}

EXPORT int cuModuleUnload(void *module)
{
	stub_open--;
	return module == &stub_pushed ? 0 : FAILURE;
}

#define N_NAMES 64

static char names[N_NAMES][64];

EXPORT int cuModuleGetFunction(void **function, void *module, const char *name)
{
	MAY_FAIL();
	(void)module;
	if (!emulated_known(name) || strlen(name) >= sizeof names[0])
		return FAILURE;
	for (int i = 0; i < N_NAMES; i++) {
		if (names[i][0] && strcmp(names[i], name) != 0)
			continue;
		memcpy(names[i], name, strlen(name) + 1);
		*function = names[i];
		return 0;
	}
	return FAILURE;
}

EXPORT int cuFuncSetAttribute(void *function, int attribute, int value)
{
	MAY_FAIL();
	(void)function;
	return attribute == 8 && value <= 227 << 10 ? 0 : FAILURE;
}

EXPORT int cuLaunchKernel(void *function, unsigned int grid_x, unsigned int grid_y,
			  unsigned int grid_z, unsigned int block_x, unsigned int block_y,
			  unsigned int block_z, unsigned int shared_bytes, void *stream,
			  void **arguments, void **extra)
{
	MAY_FAIL();
	(void)shared_bytes, (void)stream, (void)extra;
	if (!grid_x || !grid_y || grid_z != 1 || block_x != 128 || block_y != 1 || block_z != 1)
		return FAILURE;
	emulated_launch(function, arguments[0], grid_x, grid_y);
	return 0;
}

EXPORT int cuMemAlloc_v2(uint64_t *memory, size_t bytes)
{
	void *data;

	MAY_FAIL();
	data = aligned_alloc(256, (bytes + 255) / 256 * 256);
	if (!data)
		return FAILURE;
	memset(data, 0xff, bytes);
	*memory = (uint64_t)(uintptr_t)data;
	stub_open++;
	return 0;
}

EXPORT int cuMemFree_v2(uint64_t memory)
{
	free((void *)(uintptr_t)memory);
	stub_open--;
	return 0;
}

EXPORT int cuMemcpyHtoDAsync_v2(uint64_t target, const void *source, size_t bytes, void *stream)
{
	MAY_FAIL();
	(void)stream;
	memcpy((void *)(uintptr_t)target, source, bytes);
	return 0;
}

EXPORT int cuMemcpyDtoDAsync_v2(uint64_t target, uint64_t source, size_t bytes, void *stream)
{
	(void)stream;
	memmove((void *)(uintptr_t)target, (const void *)(uintptr_t)source, bytes);
	return 0;
}

EXPORT int cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes)
{
	*free_bytes = *total_bytes = (size_t)1 << 30;
	return 0;
}

EXPORT int cuMemcpyHtoD_v2(uint64_t target, const void *source, size_t bytes)
{
	memcpy((void *)(uintptr_t)target, source, bytes);
	return 0;
}

EXPORT int cuMemcpyDtoH_v2(void *target, uint64_t source, size_t bytes)
{
	memcpy(target, (void *)(uintptr_t)source, bytes);
	return 0;
}

/* When it was recorded. */
struct event {
	struct timespec time;
};

EXPORT int cuEventCreate(void **event, unsigned int flags)
{
	MAY_FAIL();
	(void)flags;
	*event = calloc(1, sizeof(struct event));
	stub_open += *event != NULL;
	return *event ? 0 : FAILURE;
}

EXPORT int cuEventDestroy_v2(void *event)
{
	free(event);
	stub_open--;
	return 0;
}

EXPORT int cuEventRecord(void *event, void *stream)
{
	MAY_FAIL();
	(void)stream;
	clock_gettime(CLOCK_MONOTONIC, &((struct event *)event)->time);
	return 0;
}

EXPORT int cuEventElapsedTime(float *ms, void *begin, void *end)
{
	const struct event *a = begin, *b = end;

	*ms = (float)(b->time.tv_sec - a->time.tv_sec) * 1e3f +
	      (float)(b->time.tv_nsec - a->time.tv_nsec) * 1e-6f;
	return 0;
}

EXPORT int cuEventSynchronize(void *event)
{
	MAY_FAIL();
	(void)event;
	return 0;
}

EXPORT int cuStreamWaitEvent(void *stream, void *event, unsigned int flags)
{
	MAY_FAIL();
	(void)stream, (void)event, (void)flags;
	return 0;
}

EXPORT int cuGetErrorString(int error, const char **text)
{
	*text = error == FAILURE ? "the stub was told to fail" : "another error";
	return 0;
}
