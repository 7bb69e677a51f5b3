/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernels' instructions. tests/kernels/emulator.h has the same functions
 * for the CPU, where the kernels' index arithmetic is tested without a GPU.
 */
#ifndef KVT_KERNELS_CUDA_DEVICE_CUH
#define KVT_KERNELS_CUDA_DEVICE_CUH

#include <stdint.h>

#define KVT_DEVICE static __device__ __forceinline__
#define KVT_MEMBER static constexpr __device__ __forceinline__
/* A kernel with registers for n_blocks resident thread blocks. */
#define KVT_KERNEL_BLOCKS(n_blocks)                                                                \
	extern "C" __global__ __launch_bounds__(KVT_CUDA_THREADS, n_blocks) void
#define KVT_KERNEL KVT_KERNEL_BLOCKS(2)

KVT_DEVICE uint32_t thread_index(void)
{
	return threadIdx.x;
}

KVT_DEVICE uint32_t block_index(void)
{
	return blockIdx.x;
}

KVT_DEVICE uint32_t block_index_y(void)
{
	return blockIdx.y;
}

KVT_DEVICE uint32_t grid_size(void)
{
	return gridDim.x;
}

KVT_DEVICE void barrier(void)
{
	__syncthreads();
}

/*
 * Hide the address from the compiler: a value needed once behind a loop is then not computed before
 * it and kept in a register.
 */
KVT_DEVICE const void *used_here(const void *address)
{
	asm volatile("" : "+l"(address));
	return address;
}

/* Synchronise the lanes of a warp. */
KVT_DEVICE void warp_barrier(void)
{
	__syncwarp();
}

KVT_DEVICE unsigned char *shared_memory(void)
{
	extern __shared__ __align__(128) unsigned char memory[];

	return memory;
}

/* Access shared memory by these and by the copies and matrices below only. */
template <typename type> KVT_DEVICE type shared_load(const void *source)
{
	return *(const type *)source;
}

template <typename type> KVT_DEVICE void shared_store(void *target, const type &value)
{
	*(type *)target = value;
}

KVT_DEVICE uint32_t shared_address(const void *pointer)
{
	return (uint32_t)__cvta_generic_to_shared(pointer);
}

/* Start an asynchronous copy of 16 bytes to shared memory, or of 16 zeros. */
KVT_DEVICE void copy_async(void *target, const void *source, bool valid)
{
	asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(target)),
		     "l"(source), "r"(valid ? 16 : 0)
		     : "memory");
}

KVT_DEVICE void copy_commit(void)
{
	asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Wait until at most n groups of this thread's copies are in flight. */
template <int n> KVT_DEVICE void copy_wait(void)
{
	asm volatile("cp.async.wait_group %0;" ::"n"(n) : "memory");
}

/* Four 8 x 8 matrices of 16-bit elements; lane i gives the address of row i % 8 of matrix i / 8. */
KVT_DEVICE void matrix_load(uint32_t *r, const void *row)
{
	asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
		     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
		     : "r"(shared_address(row))
		     : "memory");
}

KVT_DEVICE void matrix_load_transposed(uint32_t *r, const void *row)
{
	asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
		     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
		     : "r"(shared_address(row))
		     : "memory");
}

/* c[16][8] += a[16][16] b[16][8] */
template <bool bf16>
KVT_DEVICE void matrix_multiply(float *c, const uint32_t *a, uint32_t b0, uint32_t b1)
{
	if (bf16)
		asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
			     "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
			     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
			     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
	else
		asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
			     "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
			     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
			     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* Two floats as a pair of 16-bit elements, the first in the low half. */
template <bool bf16> KVT_DEVICE uint32_t pair_of(float first, float second)
{
	uint32_t pair;

	if (bf16)
		asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
	else
		asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
	return pair;
}

KVT_DEVICE float exchange(float value, int mask)
{
	return __shfl_xor_sync(0xffffffff, value, mask);
}

KVT_DEVICE float from_lane(float value, uint32_t lane)
{
	return __shfl_sync(0xffffffff, value, (int)lane);
}

/* 2^x; exactly 1 for 0, and 0 for minus infinity. */
KVT_DEVICE float exp2_of(float x)
{
	float y;

	asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
	return y;
}

/* Each rounded once: the compiler must not contract them. */
KVT_DEVICE float product(float a, float b)
{
	return __fmul_rn(a, b);
}

KVT_DEVICE float product_sum(float a, float b, float c)
{
	return __fmaf_rn(a, b, c);
}

KVT_DEVICE float quotient(float a, float b)
{
	return __fdiv_rn(a, b);
}

/* NaN if either is. */
KVT_DEVICE float higher(float a, float b)
{
	float y;

	asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
	return y;
}

KVT_DEVICE uint32_t float_bits(float value)
{
	return __float_as_uint(value);
}

KVT_DEVICE float bits_float(uint32_t bits)
{
	return __uint_as_float(bits);
}

#endif
