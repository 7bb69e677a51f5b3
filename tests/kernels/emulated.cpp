/* SPDX-License-Identifier: Apache-2.0 */
/* The attention kernels of kernels/cuda_attention.cuh, run on the CPU. test_cuda.c calls this. */

#include "tests/kernels/emulator.h"

#include "kernels/cuda_attention.cuh"

#include "tests/kernels/emulated.h"

namespace
{

template <int dim, bool bf16, bool f8> void attend_run(void *args)
{
	attend<dim, bf16, f8>(*static_cast<const kvt_cuda_prefill *>(args));
}

template <int dim, bool bf16, bool f8> void merge_run(void *args)
{
	merge<dim, bf16>(*static_cast<const kvt_cuda_prefill *>(args));
}

template <int dim, bool bf16, bool f8> void repair_run(void *args)
{
	repair<dim, bf16, f8>(*static_cast<const kvt_cuda_prefill *>(args));
}

typedef void run_fn(void *args);

template <int dim, bool bf16, bool f8> run_fn *run_of(enum emulated_kernel kernel)
{
	return kernel == EMULATED_ATTEND  ? attend_run<dim, bf16, f8>
	       : kernel == EMULATED_MERGE ? merge_run<dim, bf16, f8>
					  : repair_run<dim, bf16, f8>;
}

template <int dim> run_fn *run_of_types(enum emulated_kernel kernel, bool bf16, bool f8)
{
	if (bf16)
		return f8 ? run_of<dim, true, true>(kernel) : run_of<dim, true, false>(kernel);
	return f8 ? run_of<dim, false, true>(kernel) : run_of<dim, false, false>(kernel);
}

run_fn *run_of_all(enum emulated_kernel kernel, uint32_t dim, bool bf16, bool f8)
{
	switch (dim) {
	case 64:
		return run_of_types<64>(kernel, bf16, f8);
	case 80:
		return run_of_types<80>(kernel, bf16, f8);
	case 96:
		return run_of_types<96>(kernel, bf16, f8);
	case 128:
		return run_of_types<128>(kernel, bf16, f8);
	default:
		return run_of_types<256>(kernel, bf16, f8);
	}
}

} // namespace

extern "C" void emulated_launch(enum emulated_kernel kernel, uint32_t dim, bool bf16, bool f8,
				const struct kvt_cuda_prefill *args, uint32_t n_blocks)
{
	run_fn *run = run_of_all(kernel, dim, bf16, f8);
	struct kvt_cuda_prefill copy = *args;

	for (uint32_t i = 0; i < n_blocks; i++)
		emulator::block_run(i, run, &copy);
}
