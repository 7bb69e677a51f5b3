/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Computes on a CUDA device: matrix products by cuBLAS, attention by libkvtkernels, the rest by the
 * worker's own kernels. The weights are copied to the device once.
 *
 * Inputs: the operations of compute.h. Invariants: all work runs in the order of one stream; the
 * primary context is current on the opening thread until it closes, as cuBLAS requires. Caller:
 * through compute_ops.
 */

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compute.h"
#include "compute_args.h"
#include "compute_images.h"
#include "cublas.h"
#include "kvt_cuda.h"

/* The most that cuBLAS uses, on Hopper. A workspace of its own does not depend on other calls. */
#define WORKSPACE_BYTES (32u << 20)
#define GRID_MOST 8192u

enum {
#define KERNEL_NUMBER(name) KERNEL_##name,
	COMPUTE_KERNELS(KERNEL_NUMBER)
	N_KERNELS
};

static const char *const kernel_name[] = {
#define KERNEL_NAME(name) "worker_" #name,
	COMPUTE_KERNELS(KERNEL_NAME)
};

struct cuda {
	struct compute base;
	struct kvt_cu_driver driver;
	struct cublas cublas;
	const struct model *model;
	int device;
	void *context; /* the primary context, retained and current */
	void *module;
	void *kernels[N_KERNELS];
	void *handle; /* cuBLAS's */
	uint64_t workspace;
	uint64_t weights; /* the model's tensors, laid out as in its file */
};

static struct cuda *cuda_of(struct compute *compute)
{
	return (struct cuda *)compute; /* base is its first member */
}

/* Record a driver error. Returns true if there was none. */
static bool done(struct cuda *cuda, int error, const char *doing)
{
	if (error)
		compute_fail(&cuda->base, error == KVT_CU_ERROR_OUT_OF_MEMORY ? -ENOMEM : -EIO,
			     "the CUDA driver failed while %s: %s (error %d)%s", doing,
			     kvt_cu_text(&cuda->driver, error), error,
			     kvt_cuda_image_cure(error));
	return !error;
}

static bool multiplied(struct cuda *cuda, int status, const char *doing)
{
	if (status)
		compute_fail(&cuda->base, -EIO, "cuBLAS failed while %s: %s (status %d)", doing,
			     cuda->cublas.status_string(status), status);
	return !status;
}

/* ---- memory */

static float *cuda_reserve(struct compute *compute, size_t n)
{
	struct cuda *cuda = cuda_of(compute);
	uint64_t address = 0;

	if (cuda->driver.memory_alloc(&address, n * sizeof(float)))
		return NULL;
	compute->ops->zero(compute, (float *)(uintptr_t)address, n);
	return (float *)(uintptr_t)address;
}

static void cuda_release(struct compute *compute, float *memory)
{
	struct cuda *cuda = cuda_of(compute);

	if (memory)
		cuda->driver.memory_free((uint64_t)(uintptr_t)memory);
}

/* Copy from pageable memory, which the driver has read on return. */
static void cuda_write(struct compute *compute, void *to, const void *from, size_t bytes)
{
	struct cuda *cuda = cuda_of(compute);

	if (!compute->error)
		done(cuda, cuda->driver.memory_upload((uint64_t)(uintptr_t)to, from, bytes,
						      compute->stream),
		     "numbers were copied to it");
}

static int cuda_wait(struct compute *compute)
{
	struct cuda *cuda = cuda_of(compute);

	return done(cuda, cuda->driver.stream_synchronize(compute->stream), "it computed") ? 0
											  : -EIO;
}

static int cuda_read(struct compute *compute, void *to, const void *from, size_t bytes)
{
	struct cuda *cuda = cuda_of(compute);

	if (!compute->error)
		done(cuda, cuda->driver.memory_download(to, (uint64_t)(uintptr_t)from, bytes,
							compute->stream),
		     "results were copied from it");
	cuda_wait(compute);
	return compute->error;
}

/* Return a weight's address on the device. */
static uint64_t weight_address(const struct cuda *cuda, const float *weight)
{
	return cuda->weights +
	       (uint64_t)((const char *)weight - (const char *)cuda->model->embedding);
}

/* ---- operations */

static void launch(struct compute *compute, unsigned int kernel, uint64_t n_blocks,
		   const struct compute_args *args)
{
	struct cuda *cuda = cuda_of(compute);
	void *arguments[] = { (void *)(uintptr_t)args }; /* copied before it returns */

	if (compute->error || n_blocks == 0)
		return;
	done(cuda, cuda->driver.launch(cuda->kernels[kernel],
				       (unsigned int)(n_blocks < GRID_MOST ? n_blocks : GRID_MOST),
				       1, 1, KVT_CUDA_THREADS, 1, 1, 0,
				       compute->stream, arguments, NULL), "a kernel was launched");
}

/* Launch one thread for each of the args->n elements. */
static void launch_each(struct compute *compute, unsigned int kernel,
			const struct compute_args *args)
{
	launch(compute, kernel, (args->n + KVT_CUDA_THREADS - 1) / KVT_CUDA_THREADS, args);
}

static void cuda_zero(struct compute *compute, float *to, size_t n)
{
	launch_each(compute, KERNEL_zero,
		    &(struct compute_args){ .to = (uint64_t)(uintptr_t)to, .n = n });
}

static void cuda_embed(struct compute *compute, float *to, const float *table,
		       const uint32_t *tokens, uint32_t n, uint32_t dim)
{
	launch_each(compute, KERNEL_embed,
		    &(struct compute_args){ .to = (uint64_t)(uintptr_t)to,
					    .from = (uint64_t)(uintptr_t)tokens,
					    .weight = weight_address(cuda_of(compute), table),
					    .n = (uint64_t)n * dim,
					    .width = dim });
}

static void cuda_rms_norm(struct compute *compute, float *to, const float *from,
			  const float *weight, uint32_t n_rows, uint32_t dim)
{
	launch(compute, KERNEL_rms_norm, (n_rows + KVT_CUDA_THREADS / 32 - 1) /
	       (KVT_CUDA_THREADS / 32),
	       &(struct compute_args){ .to = (uint64_t)(uintptr_t)to,
				       .from = (uint64_t)(uintptr_t)from,
				       .weight = weight_address(cuda_of(compute), weight),
				       .n = n_rows,
				       .width = dim,
				       .constant = RMS_EPSILON });
}

/* cuBLAS is column-major, so it sees our matrices transposed. It computes weight * from^T, whose
 * layout is that of from * weight^T. */
static void cuda_product(struct compute *compute, float *to, const float *from,
			 const float *weight, uint32_t n_rows, uint32_t n_in, uint32_t n_out)
{
	struct cuda *cuda = cuda_of(compute);
	/* A device address, which cuBLAS takes as a pointer. */
	const float *w = (const float *)(uintptr_t)weight_address(cuda, weight);
	const float one = 1.0f, nothing = 0.0f;

	for (uint32_t row = 0; row < n_rows && !compute->error; row += ROW_BLOCK)
		multiplied(cuda, cuda->cublas.sgemm(cuda->handle, CUBLAS_TRANSPOSE,
						    CUBLAS_NO_TRANSPOSE, (int)n_out, ROW_BLOCK,
						    (int)n_in, &one, w, (int)n_in,
						    from + (size_t)row * n_in, (int)n_in, &nothing,
						    to + (size_t)row * n_out, (int)n_out),
			   "a matrix product was queued");
}

static void cuda_rotate(struct compute *compute, float *x, uint32_t n_rows, uint32_t width,
			uint32_t head_dim, uint32_t position)
{
	launch_each(compute, KERNEL_rotate,
		    &(struct compute_args){ .to = (uint64_t)(uintptr_t)x,
					    .n = (uint64_t)n_rows * (width / 2),
					    .width = width,
					    .head_dim = head_dim,
					    .position = position,
					    .constant = ROPE_BASE });
}

static void cuda_swiglu(struct compute *compute, float *gate, const float *up, size_t n)
{
	launch_each(compute, KERNEL_swiglu,
		    &(struct compute_args){ .to = (uint64_t)(uintptr_t)gate,
					    .weight = (uint64_t)(uintptr_t)up,
					    .n = n });
}

static void cuda_add(struct compute *compute, float *to, const float *from, size_t n)
{
	launch_each(compute, KERNEL_add,
		    &(struct compute_args){ .to = (uint64_t)(uintptr_t)to,
					    .from = (uint64_t)(uintptr_t)from,
					    .n = n });
}

static void cuda_round(struct compute *compute, void *to, const float *from, size_t n,
		       uint32_t type)
{
	launch_each(compute, KERNEL_round,
		    &(struct compute_args){ .to = (uint64_t)(uintptr_t)to,
					    .from = (uint64_t)(uintptr_t)from,
					    .n = n,
					    .type = type });
}

/* ---- begin and end */

static void cuda_close(struct compute *compute)
{
	struct cuda *cuda = cuda_of(compute);

	if (compute->stream)
		cuda->driver.stream_synchronize(compute->stream);
	if (cuda->handle)
		cuda->cublas.destroy(cuda->handle);
	kvt_attn_close(compute->attention);
	if (cuda->workspace)
		cuda->driver.memory_free(cuda->workspace);
	if (cuda->weights)
		cuda->driver.memory_free(cuda->weights);
	if (compute->stream)
		cuda->driver.stream_destroy(compute->stream);
	if (cuda->module)
		cuda->driver.module_unload(cuda->module);
	if (cuda->context) {
		cuda->driver.context_pop(&(void *){ NULL });
		cuda->driver.primary_release(cuda->device);
	}
	free(cuda);
}

static const struct compute_ops cuda_ops = {
	.close = cuda_close,
	.reserve = cuda_reserve,
	.release = cuda_release,
	.write = cuda_write,
	.read = cuda_read,
	.wait = cuda_wait,
	.zero = cuda_zero,
	.embed = cuda_embed,
	.rms_norm = cuda_rms_norm,
	.product = cuda_product,
	.rotate = cuda_rotate,
	.swiglu = cuda_swiglu,
	.add = cuda_add,
	.round = cuda_round,
};

/* Open attention first: it needs the same and has the best messages. */
static void open_attention(struct cuda *cuda, uint32_t index)
{
	struct kvt_attn_options options = { .device = KVT_ATTN_CUDA, .device_index = index };
	char why[WORKER_WHY_BYTES];
	int error = kvt_attn_open(&options, &cuda->base.attention, why, sizeof(why));

	if (error)
		compute_fail(&cuda->base, error, "--device cuda is not possible: %s", why);
}

static void open_context(struct cuda *cuda, uint32_t index)
{
	struct kvt_cu_driver *driver = &cuda->driver;
	const char *missing;

	if (kvt_cu_load(driver, &missing) != 0) {
		compute_fail(&cuda->base, -ENODEV, "the NVIDIA driver is gone");
		return;
	}
	if (!done(cuda, driver->device_get(&cuda->device, (int)index), "a device was opened") ||
	    !done(cuda, driver->primary_retain(&cuda->context, cuda->device),
		  "its context was opened"))
		return;
	if (!done(cuda, driver->context_push(cuda->context), "its context was entered")) {
		driver->primary_release(cuda->device);
		cuda->context = NULL;
		return;
	}
	done(cuda, driver->stream_create(&cuda->base.stream, KVT_CU_STREAM_NON_BLOCKING),
	     "a stream was made");
}

static void open_kernels(struct cuda *cuda)
{
	struct kvt_cu_driver *driver = &cuda->driver;
	const struct kvt_cuda_image *image;
	int major = 0, minor = 0;

	if (cuda->base.error)
		return;
	if (!done(cuda, driver->device_attribute(&major, KVT_CU_ATTRIBUTE_MAJOR, cuda->device),
		  "it was asked") ||
	    !done(cuda, driver->device_attribute(&minor, KVT_CU_ATTRIBUTE_MINOR, cuda->device),
		  "it was asked"))
		return;
	image = kvt_cuda_image_choose(compute_images, major, minor);
	if (!image) {
		compute_fail(&cuda->base, -ENOTSUP, "this worker has no CUDA kernels for compute "
			     "capability %d.%d: build it by make kernels-cuda", major, minor);
		return;
	}
	/* Not the device's number, which differs between processes. */
	snprintf(cuda->base.arithmetic, sizeof(cuda->base.arithmetic), "cuda sm_%d%d: %s", major,
		 minor, image->name);
	if (!done(cuda, driver->module_load(&cuda->module, image->data), "kernels were loaded"))
		return;
	for (int i = 0; i < N_KERNELS; i++)
		if (!done(cuda, driver->module_function(&cuda->kernels[i], cuda->module,
							kernel_name[i]), "a kernel was looked up"))
			return;
}

static void load_cublas(struct cuda *cuda)
{
	char why[CUBLAS_WHY_BYTES];
	int version = 0, error;

	if (!done(cuda, cuda->driver.driver_version(&version), "it was asked for its version"))
		return;
	error = cublas_load(&cuda->cublas, version, why);
	if (error && version < 12000)
		compute_fail(&cuda->base, error, "matrix products on a CUDA device need cuBLAS 12 "
			     "or later, and that a driver of branch " KVT_CU_OLDEST " or later: "
			     "this one is for CUDA %d.%d", version / 1000, version % 1000 / 10);
	else if (error == -ENOENT)
		compute_fail(&cuda->base, error, "matrix products on a CUDA device need cuBLAS "
			     "(%s): install it (Debian package libcublas-12-*, or pip install "
			     "nvidia-cublas) and name its folder in LD_LIBRARY_PATH", why);
	else if (error)
		compute_fail(&cuda->base, error, "the cuBLAS found has no %s: install another",
			     why);
}

/* Fix the sums for each shape: no TF32, no atomics, one stream, a workspace of its own (set after
 * the stream, which selects cuBLAS's default one). */
static void open_cublas(struct cuda *cuda)
{
	struct cublas *cublas = &cuda->cublas;
	int version = 0;
	size_t used;

	if (!cuda->base.error)
		load_cublas(cuda);
	if (cuda->base.error ||
	    !done(cuda, cuda->driver.memory_alloc(&cuda->workspace, WORKSPACE_BYTES),
		  "a workspace was reserved") ||
	    !multiplied(cuda, cublas->create(&cuda->handle), "it was started "
			"(is the driver older than it wants, or the device's memory full?)") ||
	    !multiplied(cuda, cublas->set_stream(cuda->handle, cuda->base.stream),
			"it was given a stream") ||
	    !multiplied(cuda, cublas->set_workspace(cuda->handle,
						    (void *)(uintptr_t)cuda->workspace,
						    WORKSPACE_BYTES), "it was given a workspace") ||
	    !multiplied(cuda, cublas->set_math(cuda->handle, CUBLAS_PEDANTIC),
			"its arithmetic was chosen"))
		return;
	if (!multiplied(cuda, cublas->set_atomics(cuda->handle, CUBLAS_NO_ATOMICS),
			"its arithmetic was chosen") ||
	    !multiplied(cuda, cublas->get_version(cuda->handle, &version),
			"it was asked for its version"))
		return;
	used = strlen(cuda->base.arithmetic);
	snprintf(cuda->base.arithmetic + used, sizeof(cuda->base.arithmetic) - used,
		 "; cuBLAS %d", version);
}

static void upload_weights(struct cuda *cuda)
{
	const struct model *model = cuda->model;
	size_t bytes = (size_t)((const char *)model->map + model->map_bytes -
				(const char *)model->embedding);

	if (cuda->base.error)
		return;
	if (cuda->driver.memory_alloc(&cuda->weights, bytes)) {
		cuda->weights = 0;
		compute_fail(&cuda->base, -ENOMEM, "no %zu bytes of device memory for the weights: "
			     "the pool and other processes have it; give kvtrunkd fewer pages",
			     bytes);
		return;
	}
	cuda_write(&cuda->base, (void *)(uintptr_t)cuda->weights, model->embedding, bytes);
}

bool compute_cuda_is_built(void)
{
	return compute_images[0].data;
}

int compute_cuda_open(const struct model *model, uint32_t device, struct compute **ret_compute,
		      char *why)
{
	struct cuda *cuda = calloc(1, sizeof(*cuda));
	int error;

	if (!cuda) {
		snprintf(why, WORKER_WHY_BYTES, "no memory");
		return -ENOMEM;
	}
	cuda->base.ops = &cuda_ops;
	cuda->model = model;
	open_attention(cuda, device);
	if (!cuda->base.error)
		open_context(cuda, device);
	open_kernels(cuda);
	open_cublas(cuda);
	upload_weights(cuda);
	error = cuda->base.error;
	if (error) {
		snprintf(why, WORKER_WHY_BYTES, "%s", cuda->base.why);
		cuda_close(&cuda->base);
		return error;
	}
	*ret_compute = &cuda->base;
	return 0;
}
