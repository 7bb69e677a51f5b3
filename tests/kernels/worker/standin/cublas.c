/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The part of libcublas.so.13 that the worker uses, for hosts with the stand-in for the driver
 * (tests/lib/standin). A product is a function queued on the stream, so it lags like other work,
 * and is wrong if something overtakes it. It fills its workspace with garbage, as the real one may.
 *
 * The environment says what a process sees:
 *   KVT_STANDIN_CUBLAS_FAIL_AT  the n-th call fails, from 0
 *   KVT_STANDIN_CUBLAS_TRAITS   no-start: cublasCreate fails, as with a driver that is too old
 *   KVT_STANDIN_CUBLAS_VERSION  its version; 130000
 * Callers: examples/worker, which finds it by LD_LIBRARY_PATH.
 */
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "examples/worker/cublas.h"
#include "kvt_cuda.h"

#define EXPORT __attribute__((visibility("default")))

enum {
	NOT_INITIALIZED = 1,
	INVALID_VALUE = 7,
	INTERNAL_ERROR = 14,
};

/* Symbols of the stand-in for the driver, which is loaded with this. */
int cuLaunchHostFunc(void *stream, kvt_cu_host_fn *function, void *context);

struct handle {
	void *stream;
	void *workspace;
	size_t workspace_bytes;
	int math, atomics;
};

/* Column by column: c[m][n] = a[k][m]^T b[k][n]. */
struct product {
	int m, n, k;
	const float *a, *b;
	float *c;
	void *workspace;
	size_t workspace_bytes;
};

static bool fails(void)
{
	const char *at = getenv("KVT_STANDIN_CUBLAS_FAIL_AT");
	static int calls;

	return at && calls++ == atoi(at);
}

static void multiply(void *context)
{
	struct product *p = context;

	memset(p->workspace, 0xff, p->workspace_bytes < 4096 ? p->workspace_bytes : 4096);
	for (int j = 0; j < p->n; j++)
		for (int i = 0; i < p->m; i++) {
			const float *a = p->a + (size_t)i * (size_t)p->k;
			const float *b = p->b + (size_t)j * (size_t)p->k;
			float sums[8] = { 0 };

			for (int x = 0; x + 8 <= p->k; x += 8)
				for (int lane = 0; lane < 8; lane++)
					sums[lane] += a[x + lane] * b[x + lane];
			for (int x = p->k / 8 * 8; x < p->k; x++)
				sums[0] += a[x] * b[x];
			p->c[(size_t)j * (size_t)p->m + (size_t)i] =
				((sums[0] + sums[1]) + (sums[2] + sums[3])) +
				((sums[4] + sums[5]) + (sums[6] + sums[7]));
		}
	free(p);
}

#define DECLARE(symbol, name, arguments) EXPORT int symbol arguments;
CUBLAS_FUNCTIONS(DECLARE)
EXPORT const char *cublasGetStatusString(int status);

int cublasCreate_v2(void **handle)
{
	const char *traits = getenv("KVT_STANDIN_CUBLAS_TRAITS");

	if (fails() || (traits && strstr(traits, "no-start")))
		return NOT_INITIALIZED;
	*handle = calloc(1, sizeof(struct handle));
	return *handle ? 0 : INTERNAL_ERROR;
}

int cublasGetVersion_v2(void *handle, int *version)
{
	const char *wanted = getenv("KVT_STANDIN_CUBLAS_VERSION");

	if (fails())
		return INTERNAL_ERROR;
	*version = wanted ? atoi(wanted) : 130000;
	return 0;
}

int cublasDestroy_v2(void *handle)
{
	free(handle);
	return 0;
}

/* As the real one: setting a stream resets the workspace. */
int cublasSetStream_v2(void *handle, void *stream)
{
	struct handle *h = handle;

	if (fails())
		return INTERNAL_ERROR;
	h->stream = stream;
	h->workspace = NULL;
	return 0;
}

int cublasSetWorkspace_v2(void *handle, void *memory, size_t bytes)
{
	struct handle *h = handle;

	if (fails())
		return INTERNAL_ERROR;
	if ((uintptr_t)memory % 256)
		return INVALID_VALUE;
	h->workspace = memory;
	h->workspace_bytes = bytes;
	return 0;
}

int cublasSetMathMode(void *handle, int mode)
{
	if (fails())
		return INTERNAL_ERROR;
	((struct handle *)handle)->math = mode;
	return 0;
}

int cublasSetAtomicsMode(void *handle, int mode)
{
	if (fails())
		return INTERNAL_ERROR;
	((struct handle *)handle)->atomics = mode;
	return 0;
}

/* Only what the worker uses: any other arithmetic, or shape, is refused. */
int cublasSgemm_v2(void *handle, int transpose_a, int transpose_b, int m, int n, int k,
		   const float *alpha, const float *a, int lda, const float *b, int ldb,
		   const float *beta, float *c, int ldc)
{
	const struct handle *h = handle;
	struct product *product;

	if (fails())
		return INTERNAL_ERROR;
	if (transpose_a != CUBLAS_TRANSPOSE || transpose_b != CUBLAS_NO_TRANSPOSE ||
	    *alpha != 1.0f || *beta != 0.0f || lda != k || ldb != k || ldc != m || n != 16 ||
	    h->math != CUBLAS_PEDANTIC || h->atomics != CUBLAS_NO_ATOMICS || !h->workspace)
		return INVALID_VALUE;
	product = malloc(sizeof(*product));
	if (!product)
		return INTERNAL_ERROR;
	*product = (struct product){ m, n, k, a, b, c, h->workspace, h->workspace_bytes };
	if (cuLaunchHostFunc(h->stream, multiply, product) == 0)
		return 0;
	free(product);
	return INTERNAL_ERROR;
}

const char *cublasGetStatusString(int status)
{
	return status == NOT_INITIALIZED ? "the library was not initialized"
	       : status == INVALID_VALUE ? "an invalid value was passed"
					 : "an internal operation failed";
}
