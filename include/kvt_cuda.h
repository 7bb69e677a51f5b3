/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_CUDA_H
#define KVT_CUDA_H

/**
 * @file kvt_cuda.h
 * The part of the CUDA driver API that kvtrunk uses, loaded at run time. For kvtrunk's own sources:
 * the daemon's pools, the library's mappings and fences, and the kernels. Not installed.
 *
 * libcuda.so.1 belongs to the driver, not to the toolkit, so nothing links it: the same binaries
 * run on hosts without it, and a machine without the toolkit builds everything. Declarations must
 * agree with cuda.h; tests/whole/cuda/declarations compares them where cuda.h is installed. Every
 * function returns a CUresult, 0 for success. Names carry the version (cuMemAlloc_v2), as the
 * macros of cuda.h add it.
 */

#include <dlfcn.h>
#include <errno.h>
#include <stddef.h>
#include <stdint.h>

/** As in cuda.h, which needs the toolkit. */
enum kvt_cu_constant {
	KVT_CU_ERROR_INVALID_VALUE = 1,
	KVT_CU_ERROR_OUT_OF_MEMORY = 2,
	KVT_CU_ERROR_NOT_INITIALIZED = 3,
	KVT_CU_ERROR_NO_DEVICE = 100,
	KVT_CU_ERROR_INVALID_DEVICE = 101,
	KVT_CU_ERROR_INVALID_IMAGE = 200,
	KVT_CU_ERROR_INVALID_CONTEXT = 201,
	KVT_CU_ERROR_MAP_FAILED = 205,
	KVT_CU_ERROR_ALREADY_MAPPED = 208,
	KVT_CU_ERROR_NO_BINARY_FOR_GPU = 209,
	KVT_CU_ERROR_PEER_ACCESS_UNSUPPORTED = 217,
	KVT_CU_ERROR_INVALID_PTX = 218,
	KVT_CU_ERROR_JIT_COMPILER_NOT_FOUND = 221,
	KVT_CU_ERROR_UNSUPPORTED_PTX_VERSION = 222,
	KVT_CU_ERROR_OPERATING_SYSTEM = 304,
	KVT_CU_ERROR_INVALID_HANDLE = 400,
	KVT_CU_ERROR_HOST_MEMORY_ALREADY_REGISTERED = 712,
	KVT_CU_ERROR_NOT_PERMITTED = 800,
	KVT_CU_ERROR_NOT_SUPPORTED = 801,
	KVT_CU_ERROR_SYSTEM_DRIVER_MISMATCH = 803,
	KVT_CU_ERROR_MPS_CONNECTION_FAILED = 805,
	KVT_CU_ERROR_STREAM_CAPTURE_UNSUPPORTED = 900,
	KVT_CU_ERROR_STREAM_CAPTURE_IMPLICIT = 906,

	KVT_CU_ATTRIBUTE_MULTIPROCESSORS = 16,
	KVT_CU_ATTRIBUTE_COMPUTE_MODE = 20,
	KVT_CU_ATTRIBUTE_UNIFIED_ADDRESSING = 41,
	KVT_CU_ATTRIBUTE_MAJOR = 75,
	KVT_CU_ATTRIBUTE_MINOR = 76,
	KVT_CU_ATTRIBUTE_SHARED_PER_SM = 81,
	KVT_CU_ATTRIBUTE_SHARED_PER_BLOCK = 97,
	KVT_CU_ATTRIBUTE_HOST_REGISTER = 99,
	KVT_CU_ATTRIBUTE_VMM = 102,
	KVT_CU_ATTRIBUTE_POSIX_FD = 103,
	KVT_CU_ATTRIBUTE_RDMA_VMM = 110,
	KVT_CU_ATTRIBUTE_STREAM_MEM_OPS_64 = 122,
	KVT_CU_ATTRIBUTE_MPS_ENABLED = 133, /* unknown to drivers before 12.8 */

	KVT_CU_COMPUTE_MODE_PROHIBITED = 2,
	KVT_CU_COMPUTE_MODE_EXCLUSIVE_PROCESS = 3,

	KVT_CU_FUNCTION_SHARED_BYTES = 8,
	KVT_CU_EVENT_BLOCKING_SYNC = 1,
	KVT_CU_EVENT_DISABLE_TIMING = 2,
	KVT_CU_STREAM_NON_BLOCKING = 1,
	KVT_CU_CAPTURE_MODE_GLOBAL = 0,
	KVT_CU_CAPTURE_MODE_THREAD_LOCAL = 1,
	KVT_CU_CAPTURE_MODE_RELAXED = 2,
	KVT_CU_IPC_LAZY_PEER_ACCESS = 1,
	KVT_CU_ALLOCATION_PINNED = 1,
	KVT_CU_HANDLE_POSIX_FD = 1,
	KVT_CU_LOCATION_DEVICE = 1,
	KVT_CU_GRANULARITY_RECOMMENDED = 1,
	KVT_CU_ACCESS_READ = 1,
	KVT_CU_ACCESS_READ_WRITE = 3,
	KVT_CU_MEMORY_HOST = 1,
	KVT_CU_MEMORY_DEVICE = 2,
	KVT_CU_HOST_REGISTER_PORTABLE = 1,
	KVT_CU_HOST_REGISTER_DEVICEMAP = 2,
};

struct kvt_cu_ipc_handle {
	uint8_t bytes[64];
};

struct kvt_cu_uuid {
	uint8_t bytes[16];
};

struct kvt_cu_location {
	int type;
	int id;
};

struct kvt_cu_allocation {
	int type;
	int handle_types;
	struct kvt_cu_location location;
	void *win32;
	uint8_t compression;
	uint8_t rdma; /* 1: network adapters may read and write it, where the device allows */
	uint8_t flags[6];
};

struct kvt_cu_access {
	struct kvt_cu_location location;
	int flags;
};

/** One side of a copy of rows: in host memory, or in a device's. */
struct kvt_cu_rows {
	size_t x_bytes, y;
	int type; /* KVT_CU_MEMORY_... */
	void *host;
	uint64_t device;
	void *array;
	size_t pitch; /* bytes from row to row */
};

struct kvt_cu_rows_copy {
	struct kvt_cu_rows source, target;
	size_t row_bytes, n_rows;
};

typedef void kvt_cu_host_fn(void *context);

/** Every driver function in use: name in the library, name here, arguments. */
#define KVT_CU_FUNCTIONS(FUNCTION)                                                                \
	FUNCTION(cuInit, init, (unsigned int flags))                                              \
	FUNCTION(cuDriverGetVersion, driver_version, (int *version))                              \
	FUNCTION(cuGetErrorName, error_name, (int error, const char **name))                      \
	FUNCTION(cuGetErrorString, error_string, (int error, const char **text))                  \
	FUNCTION(cuDeviceGetCount, device_count, (int *count))                                    \
	FUNCTION(cuDeviceGet, device_get, (int *device, int ordinal))                             \
	FUNCTION(cuDeviceGetName, device_name, (char *name, int bytes, int device))               \
	FUNCTION(cuDeviceGetUuid_v2, device_uuid, (struct kvt_cu_uuid * uuid, int device))        \
	FUNCTION(cuDeviceGetAttribute, device_attribute, (int *value, int attribute, int device)) \
	FUNCTION(cuDevicePrimaryCtxRetain, primary_retain, (void **context, int device))          \
	FUNCTION(cuDevicePrimaryCtxRelease_v2, primary_release, (int device))                     \
	FUNCTION(cuCtxPushCurrent_v2, context_push, (void *context))                              \
	FUNCTION(cuCtxPopCurrent_v2, context_pop, (void **context))                               \
	FUNCTION(cuCtxGetDevice, context_device, (int *device))                                   \
	FUNCTION(cuModuleLoadData, module_load, (void **module, const void *image))               \
	FUNCTION(cuModuleUnload, module_unload, (void *module))                                   \
	FUNCTION(cuModuleGetFunction, module_function,                                            \
		 (void **function, void *module, const char *name))                               \
	FUNCTION(cuFuncSetAttribute, function_set, (void *function, int attribute, int value))    \
	FUNCTION(cuLaunchKernel, launch,                                                          \
		 (void *function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,  \
		  unsigned int block_x, unsigned int block_y, unsigned int block_z,               \
		  unsigned int shared_bytes, void *stream, void **arguments, void **extra))       \
	FUNCTION(cuMemGetInfo_v2, memory_info, (size_t *free, size_t *total))                     \
	FUNCTION(cuMemAlloc_v2, memory_alloc, (uint64_t *memory, size_t bytes))                   \
	FUNCTION(cuMemFree_v2, memory_free, (uint64_t memory))                                    \
	FUNCTION(cuMemHostAlloc, host_alloc, (void **memory, size_t bytes, unsigned int flags))   \
	FUNCTION(cuMemFreeHost, host_free, (void *memory))                                        \
	FUNCTION(cuMemcpyHtoDAsync_v2, memory_upload,                                             \
		 (uint64_t target, const void *source, size_t bytes, void *stream))               \
	FUNCTION(cuMemcpyDtoHAsync_v2, memory_download,                                           \
		 (void *target, uint64_t source, size_t bytes, void *stream))                     \
	FUNCTION(cuMemcpyDtoDAsync_v2, memory_copy,                                               \
		 (uint64_t target, uint64_t source, size_t bytes, void *stream))                  \
	FUNCTION(cuMemcpy2DAsync_v2, rows_copy,                                                   \
		 (const struct kvt_cu_rows_copy *copy, void *stream))                             \
	FUNCTION(cuIpcGetMemHandle, ipc_get, (struct kvt_cu_ipc_handle *handle, uint64_t memory)) \
	FUNCTION(cuIpcOpenMemHandle_v2, ipc_open,                                                 \
		 (uint64_t *memory, struct kvt_cu_ipc_handle handle, unsigned int flags))         \
	FUNCTION(cuIpcCloseMemHandle, ipc_close, (uint64_t memory))                               \
	FUNCTION(cuMemGetAllocationGranularity, vmm_granularity,                                  \
		 (size_t *bytes, const struct kvt_cu_allocation *allocation, int option))         \
	FUNCTION(cuMemCreate, vmm_create,                                                         \
		 (uint64_t *handle, size_t bytes, const struct kvt_cu_allocation *allocation,     \
		  unsigned long long flags))                                                      \
	FUNCTION(cuMemRelease, vmm_release, (uint64_t handle))                                    \
	FUNCTION(cuMemExportToShareableHandle, vmm_export,                                        \
		 (void *exported, uint64_t handle, int type, unsigned long long flags))           \
	FUNCTION(cuMemImportFromShareableHandle, vmm_import,                                      \
		 (uint64_t *handle, void *exported, int type))                                    \
	FUNCTION(cuMemAddressReserve, vmm_reserve,                                                \
		 (uint64_t *address, size_t bytes, size_t alignment, uint64_t wish,               \
		  unsigned long long flags))                                                      \
	FUNCTION(cuMemAddressFree, vmm_unreserve, (uint64_t address, size_t bytes))               \
	FUNCTION(cuMemMap, vmm_map,                                                               \
		 (uint64_t address, size_t bytes, size_t offset, uint64_t handle,                 \
		  unsigned long long flags))                                                      \
	FUNCTION(cuMemUnmap, vmm_unmap, (uint64_t address, size_t bytes))                         \
	FUNCTION(cuMemSetAccess, vmm_access,                                                      \
		 (uint64_t address, size_t bytes, const struct kvt_cu_access *access,             \
		  size_t n_accesses))                                                             \
	FUNCTION(cuMemHostRegister_v2, host_register,                                             \
		 (void *memory, size_t bytes, unsigned int flags))                                \
	FUNCTION(cuMemHostUnregister, host_unregister, (void *memory))                            \
	FUNCTION(cuMemHostGetDevicePointer_v2, host_pointer,                                      \
		 (uint64_t *address, void *memory, unsigned int flags))                           \
	FUNCTION(cuEventCreate, event_create, (void **event, unsigned int flags))                 \
	FUNCTION(cuEventDestroy_v2, event_destroy, (void *event))                                 \
	FUNCTION(cuEventRecord, event_record, (void *event, void *stream))                        \
	FUNCTION(cuEventSynchronize, event_synchronize, (void *event))                            \
	FUNCTION(cuEventElapsedTime, event_elapsed, (float *ms, void *begin, void *end))          \
	FUNCTION(cuStreamCreate, stream_create, (void **stream, unsigned int flags))              \
	FUNCTION(cuStreamDestroy_v2, stream_destroy, (void *stream))                              \
	FUNCTION(cuStreamSynchronize, stream_synchronize, (void *stream))                         \
	FUNCTION(cuStreamWaitEvent, stream_wait, (void *stream, void *event, unsigned int flags)) \
	FUNCTION(cuStreamGetCtx, stream_context, (void *stream, void **context))                  \
	FUNCTION(cuStreamIsCapturing, stream_capturing, (void *stream, int *status))              \
	FUNCTION(cuThreadExchangeStreamCaptureMode, capture_mode_exchange, (int *mode))           \
	FUNCTION(cuStreamWriteValue64_v2, stream_write,                                           \
		 (void *stream, uint64_t address, uint64_t value, unsigned int flags))            \
	FUNCTION(cuLaunchHostFunc, launch_host,                                                   \
		 (void *stream, kvt_cu_host_fn *function, void *context))

#define KVT_CU_MEMBER(symbol, name, arguments) int(*name) arguments;

struct kvt_cu_driver {
	void *library; /* NULL: not loaded */
	KVT_CU_FUNCTIONS(KVT_CU_MEMBER)
};

#define KVT_CU_OLDEST "525" /* the first driver of CUDA 12 */

/** Load libcuda.so.1 and find every function. It is never unloaded: the driver has threads of its
 * own. -ENOENT: no such library. -ENOSYS: it lacks *ret_missing, so it is too old. */
static inline int kvt_cu_load(struct kvt_cu_driver *driver, const char **ret_missing)
{
	struct kvt_cu_driver made = { .library = NULL };

	*ret_missing = NULL;
	made.library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
	if (!made.library)
		return -ENOENT;
		/* Function and object pointers have the same representation on all systems with
		 * dlsym. */
#define KVT_CU_FIND(symbol, name, arguments)                                                      \
	*(void **)(void *)&made.name = dlsym(made.library, #symbol);                              \
	if (!made.name && !*ret_missing)                                                          \
		*ret_missing = #symbol;
	KVT_CU_FUNCTIONS(KVT_CU_FIND)
#undef KVT_CU_FIND
	if (*ret_missing) {
		dlclose(made.library);
		return -ENOSYS;
	}
	*driver = made;
	return 0;
}

/**
 * While a thread captures a stream into a graph, the driver refuses calls that are not queued on a
 * stream (memory, modules, handles, waiting for an event), and the capture ends. In capture mode
 * "global", the default, this holds for the whole process. kvtrunk's own calls belong in no graph.
 * So it makes them between these two functions, in the calling thread's mode "relaxed", which has
 * no such rule. Other threads' modes stay unchanged. Calls that touch a captured stream are still
 * refused.
 *
 * kvt_cu_relax() needs cuInit(), but no context. If it fails, the caller may continue:
 * kvt_cu_restore() then ignores *ret_mode.
 */
static inline int kvt_cu_relax(const struct kvt_cu_driver *driver, int *ret_mode)
{
	int mode = KVT_CU_CAPTURE_MODE_RELAXED;
	int error = driver->capture_mode_exchange(&mode);

	*ret_mode = error ? -1 : mode;
	return error;
}

static inline void kvt_cu_restore(const struct kvt_cu_driver *driver, int mode)
{
	int again = mode;

	/* Try twice: on failure the caller's thread would keep the mode. */
	if (mode >= 0 && driver->capture_mode_exchange(&mode))
		driver->capture_mode_exchange(&again);
}

/** The driver's text for an error, never NULL: "out of memory". */
static inline const char *kvt_cu_text(const struct kvt_cu_driver *driver, int error)
{
	const char *text = NULL;

	driver->error_string(error, &text);
	return text ? text : "no text";
}

#endif
