/* SPDX-License-Identifier: Apache-2.0 */
/* Compiled only, where the CUDA toolkit is: what include/kvt_cuda.h declares is what cuda.h
 * declares: as many arguments, of the same sizes and kinds, and structures and constants alike. */
#include <cuda.h>
#include <type_traits>

extern "C" {
#define _Static_assert static_assert
#include "kvt_cuda.h"
}

template <class A, class B> struct alike {
	/* An enumeration travels as the integer of its size, and whatever is pointed to, a pointer
	 * is a pointer. CUuuid and the IPC handle are structures of bytes. */
	static constexpr bool value =
		sizeof(A) == sizeof(B) &&
		(std::is_pointer<A>::value == std::is_pointer<B>::value) &&
		(std::is_class<A>::value == std::is_class<B>::value) &&
		(std::is_floating_point<A>::value == std::is_floating_point<B>::value);
};

template <class F, class G> struct same;
template <class R, class... A, class S, class... B> struct same<R (*)(A...), S (*)(B...)> {
	template <bool equal, class = void> struct all {
		static constexpr bool value = false;
	};
	template <class unused> struct all<true, unused> {
		static constexpr bool value = (alike<A, B>::value && ... && true);
	};
	static constexpr bool value = alike<R, S>::value && all<sizeof...(A) == sizeof...(B)>::value;
};

#define SAME(symbol, name, arguments)                                                             \
	static_assert(same<decltype(&symbol), int(*) arguments>::value, #symbol);
KVT_CU_FUNCTIONS(SAME)

static_assert(sizeof(kvt_cu_ipc_handle) == sizeof(CUipcMemHandle), "IPC handle");
static_assert(sizeof(kvt_cu_uuid) == sizeof(CUuuid), "UUID");
static_assert(sizeof(kvt_cu_location) == sizeof(CUmemLocation), "location");
static_assert(sizeof(kvt_cu_allocation) == sizeof(CUmemAllocationProp), "allocation");
static_assert(offsetof(kvt_cu_allocation, handle_types) ==
		      offsetof(CUmemAllocationProp, requestedHandleTypes), "allocation");
static_assert(offsetof(kvt_cu_allocation, location) == offsetof(CUmemAllocationProp, location),
	      "allocation");
static_assert(offsetof(kvt_cu_allocation, flags) == offsetof(CUmemAllocationProp, allocFlags),
	      "allocation");
static_assert(sizeof(kvt_cu_access) == sizeof(CUmemAccessDesc), "access");
static_assert(offsetof(kvt_cu_access, flags) == offsetof(CUmemAccessDesc, flags), "access");

#define EQUAL(ours, theirs) static_assert((int)ours == (int)theirs, #ours)
EQUAL(KVT_CU_ERROR_INVALID_VALUE, CUDA_ERROR_INVALID_VALUE);
EQUAL(KVT_CU_ERROR_OUT_OF_MEMORY, CUDA_ERROR_OUT_OF_MEMORY);
EQUAL(KVT_CU_ERROR_NOT_INITIALIZED, CUDA_ERROR_NOT_INITIALIZED);
EQUAL(KVT_CU_ERROR_NO_DEVICE, CUDA_ERROR_NO_DEVICE);
EQUAL(KVT_CU_ERROR_INVALID_DEVICE, CUDA_ERROR_INVALID_DEVICE);
EQUAL(KVT_CU_ERROR_INVALID_CONTEXT, CUDA_ERROR_INVALID_CONTEXT);
EQUAL(KVT_CU_ERROR_MAP_FAILED, CUDA_ERROR_MAP_FAILED);
EQUAL(KVT_CU_ERROR_ALREADY_MAPPED, CUDA_ERROR_ALREADY_MAPPED);
EQUAL(KVT_CU_ERROR_PEER_ACCESS_UNSUPPORTED, CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
EQUAL(KVT_CU_ERROR_OPERATING_SYSTEM, CUDA_ERROR_OPERATING_SYSTEM);
EQUAL(KVT_CU_ERROR_INVALID_HANDLE, CUDA_ERROR_INVALID_HANDLE);
EQUAL(KVT_CU_ERROR_HOST_MEMORY_ALREADY_REGISTERED, CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
EQUAL(KVT_CU_ERROR_NOT_PERMITTED, CUDA_ERROR_NOT_PERMITTED);
EQUAL(KVT_CU_ERROR_NOT_SUPPORTED, CUDA_ERROR_NOT_SUPPORTED);
EQUAL(KVT_CU_ERROR_SYSTEM_DRIVER_MISMATCH, CUDA_ERROR_SYSTEM_DRIVER_MISMATCH);
EQUAL(KVT_CU_ERROR_MPS_CONNECTION_FAILED, CUDA_ERROR_MPS_CONNECTION_FAILED);
EQUAL(KVT_CU_ATTRIBUTE_MULTIPROCESSORS, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
EQUAL(KVT_CU_ATTRIBUTE_COMPUTE_MODE, CU_DEVICE_ATTRIBUTE_COMPUTE_MODE);
EQUAL(KVT_CU_ATTRIBUTE_UNIFIED_ADDRESSING, CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING);
EQUAL(KVT_CU_ATTRIBUTE_MAJOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
EQUAL(KVT_CU_ATTRIBUTE_MINOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
EQUAL(KVT_CU_ATTRIBUTE_SHARED_PER_SM, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR);
EQUAL(KVT_CU_ATTRIBUTE_SHARED_PER_BLOCK, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
EQUAL(KVT_CU_ATTRIBUTE_HOST_REGISTER, CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED);
EQUAL(KVT_CU_ATTRIBUTE_VMM, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED);
EQUAL(KVT_CU_ATTRIBUTE_POSIX_FD, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED);
EQUAL(KVT_CU_ATTRIBUTE_STREAM_MEM_OPS_64, CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS);
#if CUDA_VERSION >= 12080
EQUAL(KVT_CU_ATTRIBUTE_MPS_ENABLED, CU_DEVICE_ATTRIBUTE_MPS_ENABLED);
#endif
EQUAL(KVT_CU_COMPUTE_MODE_PROHIBITED, CU_COMPUTEMODE_PROHIBITED);
EQUAL(KVT_CU_COMPUTE_MODE_EXCLUSIVE_PROCESS, CU_COMPUTEMODE_EXCLUSIVE_PROCESS);
EQUAL(KVT_CU_FUNCTION_SHARED_BYTES, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES);
EQUAL(KVT_CU_EVENT_DISABLE_TIMING, CU_EVENT_DISABLE_TIMING);
EQUAL(KVT_CU_STREAM_NON_BLOCKING, CU_STREAM_NON_BLOCKING);
EQUAL(KVT_CU_IPC_LAZY_PEER_ACCESS, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
EQUAL(KVT_CU_ALLOCATION_PINNED, CU_MEM_ALLOCATION_TYPE_PINNED);
EQUAL(KVT_CU_HANDLE_POSIX_FD, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
EQUAL(KVT_CU_LOCATION_DEVICE, CU_MEM_LOCATION_TYPE_DEVICE);
EQUAL(KVT_CU_GRANULARITY_RECOMMENDED, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
EQUAL(KVT_CU_ACCESS_READ, CU_MEM_ACCESS_FLAGS_PROT_READ);
EQUAL(KVT_CU_ACCESS_READ_WRITE, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
EQUAL(KVT_CU_HOST_REGISTER_PORTABLE, CU_MEMHOSTREGISTER_PORTABLE);
EQUAL(KVT_CU_HOST_REGISTER_DEVICEMAP, CU_MEMHOSTREGISTER_DEVICEMAP);
