/* SPDX-License-Identifier: Apache-2.0 */
/* Compiled only, with the CUDA toolkit: examples/worker/cublas.h against cublas_v2.h. */
#include <cublas_v2.h>

#include "tests/whole/cuda/declarations.hpp"

extern "C" {
#include "examples/worker/cublas.h"
}

#define SAME(symbol, name, arguments)                                                             \
	static_assert(same<decltype(&symbol), int(*) arguments>::value, #symbol);
CUBLAS_FUNCTIONS(SAME)
static_assert(same<decltype(&cublasGetStatusString), const char *(*)(int)>::value, "status");

#define EQUAL(ours, theirs) static_assert((int)ours == (int)theirs, #ours)
EQUAL(CUBLAS_NO_TRANSPOSE, CUBLAS_OP_N);
EQUAL(CUBLAS_TRANSPOSE, CUBLAS_OP_T);
EQUAL(CUBLAS_NO_ATOMICS, CUBLAS_ATOMICS_NOT_ALLOWED);
EQUAL(CUBLAS_PEDANTIC, CUBLAS_PEDANTIC_MATH);
