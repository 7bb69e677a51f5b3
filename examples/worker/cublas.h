/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_WORKER_CUBLAS_H
#define KVT_WORKER_CUBLAS_H

/**
 * @file cublas.h
 * The part of cuBLAS that the worker uses, found at run time: as with the driver (kvt_cuda.h), one
 * binary serves hosts with it and without. What is declared here must agree with cublas_v2.h;
 * tests/whole/cuda/declarations compares them where the toolkit is. Every function returns a
 * cublasStatus_t, 0 for success.
 */

#include <dlfcn.h>
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/** As in cublas_api.h. */
enum cublas_constant {
	CUBLAS_NO_TRANSPOSE = 0,
	CUBLAS_TRANSPOSE = 1,
	CUBLAS_NO_ATOMICS = 0,
	CUBLAS_PEDANTIC = 2, /* true fp32: no TF32, no emulation, no heuristic splits */
};

#define CUBLAS_FUNCTIONS(FUNCTION)                                                                \
	FUNCTION(cublasCreate_v2, create, (void **handle))                                        \
	FUNCTION(cublasDestroy_v2, destroy, (void *handle))                                       \
	FUNCTION(cublasGetVersion_v2, get_version, (void *handle, int *version))                  \
	FUNCTION(cublasSetStream_v2, set_stream, (void *handle, void *stream))                    \
	FUNCTION(cublasSetWorkspace_v2, set_workspace,                                            \
		 (void *handle, void *memory, size_t bytes))                                      \
	FUNCTION(cublasSetMathMode, set_math, (void *handle, int mode))                           \
	FUNCTION(cublasSetAtomicsMode, set_atomics, (void *handle, int mode))                     \
	FUNCTION(cublasSgemm_v2, sgemm,                                                           \
		 (void *handle, int transpose_a, int transpose_b, int m, int n, int k,            \
		  const float *alpha, const float *a, int lda, const float *b, int ldb,           \
		  const float *beta, float *c, int ldc))

#define CUBLAS_MEMBER(symbol, name, arguments) int(*name) arguments;

struct cublas {
	void *library; /* NULL: not loaded */
	const char *(*status_string)(int status);
	CUBLAS_FUNCTIONS(CUBLAS_MEMBER)
};

#define CUBLAS_WHY_BYTES 200

/** Load the newest cuBLAS that a driver for CUDA `driver_version` (13010: 13.1) can run. Never
 * unloaded. -ENOENT: not loadable, with the reason for each name; -ENOSYS: it lacks the function in
 * why. */
static inline int cublas_load(struct cublas *cublas, int driver_version, char why[CUBLAS_WHY_BYTES])
{
	struct cublas made = { .library = NULL };
	const char *missing = NULL;
	int used = snprintf(why, CUBLAS_WHY_BYTES, "%s", "");

	for (int major = 13; major >= 12 && !made.library; major--) {
		char name[32];

		if (major > driver_version / 1000)
			continue;
		snprintf(name, sizeof(name), "libcublas.so.%d", major);
		made.library = dlopen(name, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
		if (!made.library && used < CUBLAS_WHY_BYTES)
			used += snprintf(why + used, (size_t)(CUBLAS_WHY_BYTES - used), "%s%s",
					 used ? "; " : "", dlerror());
	}
	if (!made.library)
		return -ENOENT;
	*(void **)(void *)&made.status_string = dlsym(made.library, "cublasGetStatusString");
	if (!made.status_string)
		missing = "cublasGetStatusString";
#define CUBLAS_FIND(symbol, name, arguments)                                                      \
	*(void **)(void *)&made.name = dlsym(made.library, #symbol);                              \
	if (!made.name && !missing)                                                               \
		missing = #symbol;
	CUBLAS_FUNCTIONS(CUBLAS_FIND)
#undef CUBLAS_FIND
	if (missing) {
		snprintf(why, CUBLAS_WHY_BYTES, "%s", missing);
		return -ENOSYS;
	}
	*cublas = made;
	return 0;
}

#endif
