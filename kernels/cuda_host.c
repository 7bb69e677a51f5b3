/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The three operations on a CUDA device, by the driver API.
 *
 * libcuda.so.1 is loaded when a CUDA context is opened, so the library runs on hosts without it.
 * The kernels' binaries are in this library (cuda_images.c); the device's compute capability
 * selects one.
 *
 * Inputs: checked operations, the caller's stream. Invariant: calls run on the device in order,
 * whatever their streams: each waits for the one before, since they share the memory for plans and
 * partial results. Caller: context.c.
 */

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "convert.h"
#include "cuda_images.h"
#include "cuda_plan.h"
#include "kvt_cuda.h"

struct device_memory {
	uint64_t address;
	size_t bytes;
};

/* The kernels for one head dim, kind of products and kind of KV, looked up at first use. */
struct functions {
	char name[16];
	void *attend;
	void *merge;
	void *repair;
};

#define N_FUNCTIONS 25

/*
 * Pinned host memory for uploads, which the device reads later. From pageable memory a large copy
 * would make the caller wait for the stream.
 */
struct staging {
	void *memory;
	size_t bytes;
	void *copied; /* event: the device has read it */
};

#define N_STAGINGS 8 /* calls queued ahead of the device */

struct kvt_cuda {
	struct kvt_cu_driver driver;
	int device;
	void *context;
	void *module;
	void *done; /* event: the last call's work */
	struct kvt_cuda_room room;
	struct kvt_cuda_plan plan;
	struct staging stagings[N_STAGINGS];
	uint32_t n_uploads; /* upload i goes through staging i % N_STAGINGS */
	struct device_memory plan_memory;
	struct device_memory partials;
	struct functions functions[N_FUNCTIONS];
	uint32_t n_functions;
	void *append;
	void *copy;
};

static int driver_fail(struct kvt_attn_context *context, int error, const char *doing)
{
	return kvt_attn_fail(context, -EIO, "the CUDA driver failed while %s: %s (%d)%s", doing,
			     kvt_cu_text(&context->cuda->driver, error), error,
			     kvt_cuda_image_cure(error));
}

/* Call the driver, or return -EIO from the caller. */
#define DRIVER(context, call, doing)                                                               \
	do {                                                                                       \
		int error_ = (context)->cuda->driver.call;                                         \
		if (error_)                                                                        \
			return driver_fail(context, error_, doing);                                \
	} while (0)

/* Let captures into graphs on other streams continue: see kvt_cu_relax(). */
static int captures_spare(struct kvt_attn_context *context, int *ret_mode)
{
	int error = kvt_cu_relax(&context->cuda->driver, ret_mode);

	return error ? driver_fail(context, error, "it was told to spare stream captures") : 0;
}

static int driver_load(struct kvt_attn_context *context)
{
	const char *missing;
	int r = kvt_cu_load(&context->cuda->driver, &missing);

	if (r == -ENOENT)
		return kvt_attn_fail(context, -ENODEV,
				     "a CUDA context needs the NVIDIA driver: "
				     "libcuda.so.1 not found");
	if (r)
		return kvt_attn_fail(context, -ENODEV,
				     "the NVIDIA driver has no %s: it is too old, install "
				     KVT_CU_OLDEST " or later", missing);
	return 0;
}

static int device_choose(struct kvt_attn_context *context, uint32_t index)
{
	struct kvt_cuda *cuda = context->cuda;
	int count = 0, error = cuda->driver.init(0);

	if (error == KVT_CU_ERROR_NO_DEVICE)
		return kvt_attn_fail(context, -ENODEV, "the NVIDIA driver finds no device");
	if (error)
		return driver_fail(context, error, "it was initialized");
	DRIVER(context, device_count(&count), "devices were counted");
	if (index >= (uint32_t)count)
		return kvt_attn_fail(context, -ENODEV,
				     "options.device_index is %u, but there are %d "
				     "CUDA devices",
				     index, count);
	DRIVER(context, device_get(&cuda->device, (int)index), "the device was opened");
	return 0;
}

const struct kvt_cuda_image *kvt_cuda_image_choose(const struct kvt_cuda_image *images, int major,
						   int minor)
{
	for (const struct kvt_cuda_image *image = images; image->data; image++) {
		bool exact = image->major == major && image->minor == minor;

		if (image->ptx	   ? major > image->major
		    : image->exact ? exact
				   : image->major == major && image->minor <= minor)
			return image;
	}
	return NULL;
}

const char *kvt_cuda_image_cure(int error)
{
	switch (error) {
	case KVT_CU_ERROR_INVALID_IMAGE:
	case KVT_CU_ERROR_NO_BINARY_FOR_GPU:
	case KVT_CU_ERROR_INVALID_PTX:
	case KVT_CU_ERROR_UNSUPPORTED_PTX_VERSION:
		return "; the driver may be older than the nvcc that made them: install a later "
		       "driver, or build with the nvcc of an earlier toolkit";
	case KVT_CU_ERROR_JIT_COMPILER_NOT_FOUND:
		return "; the driver's libnvidia-ptxjitcompiler.so.1 is missing: in a container, "
		       "give it all of the driver";
	default:
		return "";
	}
}

static int module_open(struct kvt_attn_context *context, uint32_t index)
{
	struct kvt_cuda *cuda = context->cuda;
	const struct kvt_cuda_image *image;
	int major = 0, minor = 0, count = 0, shared = 0, block_shared = 0;

	DRIVER(context, device_attribute(&major, KVT_CU_ATTRIBUTE_MAJOR, cuda->device),
	       "it was asked");
	DRIVER(context, device_attribute(&minor, KVT_CU_ATTRIBUTE_MINOR, cuda->device),
	       "it was asked");
	DRIVER(context, device_attribute(&count, KVT_CU_ATTRIBUTE_MULTIPROCESSORS, cuda->device),
	       "it was asked");
	DRIVER(context, device_attribute(&shared, KVT_CU_ATTRIBUTE_SHARED_PER_SM, cuda->device),
	       "it was asked");
	DRIVER(context,
	       device_attribute(&block_shared, KVT_CU_ATTRIBUTE_SHARED_PER_BLOCK, cuda->device),
	       "it was asked");
	image = kvt_cuda_image_choose(kvt_cuda_images, major, minor);
	if (!image && major < 8)
		return kvt_attn_fail(context, -ENOTSUP,
				     "CUDA device %u has compute capability %d.%d: "
				     "the kernels need 8.0 or above",
				     index, major, minor);
	if (!image)
		return kvt_attn_fail(context, -ENOTSUP,
				     "this libkvtkernels has no kernels for compute "
				     "capability %d.%d: build it by make kernels-cuda",
				     major, minor);
	DRIVER(context, primary_retain(&cuda->context, cuda->device), "its context was opened");
	DRIVER(context, context_push(cuda->context), "its context was entered");
	int error = cuda->driver.module_load(&cuda->module, image->data);

	if (!error)
		error = cuda->driver.event_create(&cuda->done, KVT_CU_EVENT_DISABLE_TIMING);
	cuda->driver.context_pop(&(void *){ NULL });
	if (error)
		return driver_fail(context, error, "kernels were loaded");
	cuda->room = (struct kvt_cuda_room){ .n_multiprocessors = (uint32_t)count,
					     .shared_bytes = (uint32_t)shared,
					     .block_shared_bytes = (uint32_t)block_shared };
	snprintf(context->description, sizeof context->description,
		 "cuda %u, sm_%d%d: %s, mma.sync", index, major, minor, image->name);
	return 0;
}

int kvt_cuda_open(struct kvt_attn_context *context, uint32_t device_index)
{
	int r, mode = 0;

	if (!kvt_cuda_images[0].data)
		return kvt_attn_fail(context, -ENOTSUP,
				     "this libkvtkernels was built without CUDA "
				     "kernels: build it by make kernels-cuda");
	context->cuda = calloc(1, sizeof *context->cuda);
	if (!context->cuda)
		return kvt_attn_fail(context, -ENOMEM, "no memory for a CUDA context");
	r = driver_load(context);
	if (!r)
		r = device_choose(context, device_index);
	if (!r)
		r = captures_spare(context, &mode);
	if (r)
		return r;
	r = module_open(context, device_index);
	kvt_cu_restore(&context->cuda->driver, mode);
	return r;
}

void kvt_cuda_close(struct kvt_attn_context *context)
{
	struct kvt_cuda *cuda = context->cuda;
	int mode;

	if (!cuda)
		return;
	if (cuda->context) {
		kvt_cu_relax(&cuda->driver, &mode);
		cuda->driver.context_push(cuda->context);
		if (cuda->done)
			cuda->driver.event_synchronize(cuda->done);
		if (cuda->plan_memory.address)
			cuda->driver.memory_free(cuda->plan_memory.address);
		if (cuda->partials.address)
			cuda->driver.memory_free(cuda->partials.address);
		for (uint32_t i = 0; i < N_STAGINGS; i++) {
			if (cuda->stagings[i].memory)
				cuda->driver.host_free(cuda->stagings[i].memory);
			if (cuda->stagings[i].copied)
				cuda->driver.event_destroy(cuda->stagings[i].copied);
		}
		if (cuda->done)
			cuda->driver.event_destroy(cuda->done);
		if (cuda->module)
			cuda->driver.module_unload(cuda->module);
		cuda->driver.context_pop(&(void *){ NULL });
		cuda->driver.primary_release(cuda->device);
		kvt_cu_restore(&cuda->driver, mode);
	}
	kvt_cuda_plan_free(&cuda->plan);
	free(cuda);
	context->cuda = NULL;
}

static int function_find(struct kvt_attn_context *context, const char *name, void **function)
{
	if (*function)
		return 0;
	DRIVER(context, module_function(function, context->cuda->module, name),
	       "a kernel was looked up");
	return 0;
}

static int functions_load(struct kvt_attn_context *context, struct functions *functions,
			  uint32_t dim, uint32_t shared_bytes)
{
	int bytes = (int)shared_bytes, r;
	char name[64];

	snprintf(name, sizeof name, "kvt_attend_%s", functions->name);
	r = function_find(context, name, &functions->attend);
	snprintf(name, sizeof name, "kvt_merge_%u", dim);
	r = r ? r : function_find(context, name, &functions->merge);
	snprintf(name, sizeof name, "kvt_repair_%s", functions->name);
	r = r ? r : function_find(context, name, &functions->repair);
	if (r)
		return r;
	DRIVER(context, function_set(functions->attend, KVT_CU_FUNCTION_SHARED_BYTES, bytes),
	       "shared memory was asked for");
	DRIVER(context, function_set(functions->repair, KVT_CU_FUNCTION_SHARED_BYTES, bytes),
	       "shared memory was asked for");
	return 0;
}

static int functions_find(struct kvt_attn_context *context, const struct kvt_attn_prefill *prefill,
			  uint32_t shared_bytes, const struct functions **ret_functions)
{
	struct kvt_cuda *cuda = context->cuda;
	struct functions *functions = cuda->functions;
	struct functions *end = functions + cuda->n_functions;
	struct functions new = { .attend = NULL };
	int r;

	kvt_cuda_kernel_name(prefill, new.name, sizeof new.name);
	while (functions < end && strcmp(functions->name, new.name) != 0)
		functions++;
	if (functions == end) {
		r = functions_load(context, &new, kvt_cuda_dim(prefill->kv.head_dim), shared_bytes);
		if (r)
			return r;
		*functions = new;
		cuda->n_functions++;
	}
	*ret_functions = functions;
	return 0;
}

/* Reserve device memory. The call before may still use what it replaces. */
static int device_reserve(struct kvt_attn_context *context, struct device_memory *memory,
			  size_t bytes)
{
	struct kvt_cu_driver *driver = &context->cuda->driver;

	if (bytes <= memory->bytes)
		return 0;
	DRIVER(context, event_synchronize(context->cuda->done), "the last call was waited for");
	if (memory->address)
		driver->memory_free(memory->address);
	*memory = (struct device_memory){ 0 };
	bytes += bytes / 8;
	if (driver->memory_alloc(&memory->address, bytes)) {
		memory->address = 0;
		return kvt_attn_fail(context, -ENOMEM,
				     "no %zu bytes of device memory for partial "
				     "results: lower options.scratch_bytes",
				     bytes);
	}
	memory->bytes = bytes;
	return 0;
}

/* Take staging memory of at least that size that the device has finished reading. */
static int staging_take(struct kvt_attn_context *context, size_t bytes,
			struct staging **ret_staging)
{
	struct kvt_cuda *cuda = context->cuda;
	struct staging *staging = &cuda->stagings[cuda->n_uploads % N_STAGINGS];

	if (!staging->copied)
		DRIVER(context, event_create(&staging->copied, KVT_CU_EVENT_DISABLE_TIMING),
		       "an event was made");
	DRIVER(context, event_synchronize(staging->copied), "an earlier copy was waited for");
	if (bytes > staging->bytes) {
		if (staging->memory)
			cuda->driver.host_free(staging->memory);
		staging->memory = NULL;
		staging->bytes = 0;
		bytes += bytes / 8;
		if (cuda->driver.host_alloc(&staging->memory, bytes, 0)) {
			staging->memory = NULL;
			return kvt_attn_fail(context, -ENOMEM,
					     "no %zu bytes of page-locked host memory for what a "
					     "call uploads: raise the limits on locked memory",
					     bytes);
		}
		staging->bytes = bytes;
	}
	*ret_staging = staging;
	return 0;
}

/*
 * Upload a call's plan to plan_memory, after the last call's work. On return the caller's memory
 * has been read; the only wait was for the eighth-last copy.
 */
static int plan_upload(struct kvt_attn_context *context, const void *from, size_t bytes,
		       void *stream)
{
	struct kvt_cuda *cuda = context->cuda;
	struct staging *staging = NULL;
	int r = staging_take(context, bytes, &staging), error;

	if (r)
		return r;
	memcpy(staging->memory, from, bytes);
	DRIVER(context, stream_wait(stream, cuda->done, 0), "the last call was waited for");
	DRIVER(context,
	       memory_upload(cuda->plan_memory.address, staging->memory, bytes, stream),
	       "a plan was copied");
	cuda->n_uploads++;
	error = cuda->driver.event_record(staging->copied, stream);
	if (!error)
		return 0;
	cuda->driver.stream_synchronize(stream); /* no event tells when it was read */
	return driver_fail(context, error, "an event was recorded");
}

static int kernel_launch(struct kvt_attn_context *context, void *function, uint32_t grid_x,
			 uint32_t grid_y, uint32_t shared_bytes, void *stream, const void *args)
{
	/* The driver copies the arguments before it returns. */
	void *arguments[] = { (void *)(uintptr_t)args };

	DRIVER(context,
	       launch(function, grid_x, grid_y, 1, KVT_CUDA_THREADS, 1, 1, shared_bytes, stream,
		      arguments, NULL),
	       "a kernel was launched");
	return 0;
}

static int prefill_launch(struct kvt_attn_context *context, const struct kvt_attn_prefill *prefill,
			  const struct functions *functions, uint32_t shared_bytes, void *stream)
{
	struct kvt_cuda *cuda = context->cuda;
	const struct kvt_cuda_launch *launches = cuda->plan.launches.data;

	for (uint32_t i = 0; i < cuda->plan.n_launches; i++) {
		struct kvt_cuda_prefill args;
		int r;

		kvt_cuda_plan_args(&cuda->plan, &launches[i], prefill, cuda->plan_memory.address,
				   cuda->partials.address, &args);
		r = kernel_launch(context, functions->attend, launches[i].n_items, 1, shared_bytes,
				  stream, &args);
		if (!r && launches[i].n_split)
			r = kernel_launch(context, functions->merge, launches[i].n_blocks, 1, 0,
					  stream, &args);
		if (!r && launches[i].n_uneven)
			r = kernel_launch(context, functions->repair, launches[i].n_blocks, 1,
					  shared_bytes, stream, &args);
		if (r)
			return r;
	}
	return 0;
}

/* Queue the end of a call. Even a partial call comes before the next one's work. */
static int work_end(struct kvt_attn_context *context, void *stream, int r)
{
	int error = context->cuda->driver.event_record(context->cuda->done, stream);

	if (r || !error)
		return r;
	return driver_fail(context, error, "an event was recorded");
}

static int prefill_run(struct kvt_attn_context *context, const struct kvt_attn_prefill *prefill,
		       void *stream)
{
	struct kvt_cuda *cuda = context->cuda;
	uint32_t dim = kvt_cuda_dim(prefill->kv.head_dim);
	const struct kvt_cuda_fit fit = kvt_cuda_fit(prefill, &cuda->room);
	const struct functions *functions = NULL;
	int r;

	r = functions_find(context, prefill, fit.shared_bytes, &functions);
	if (r)
		return r;
	r = kvt_cuda_plan_make(&cuda->plan, prefill, &fit,
			       context->scratch_bytes / kvt_cuda_slot_bytes(dim));
	if (r == -EINVAL)
		return kvt_attn_fail(context, r,
				     "the batch is too large for one call on a CUDA device: "
				     "call with fewer queries at a time");
	if (r)
		return kvt_attn_fail(context, r, "no memory for the plan of a batch");
	if (!cuda->plan.n_items)
		return 0;
	r = device_reserve(context, &cuda->plan_memory, cuda->plan.bytes);
	if (!r)
		r = device_reserve(context, &cuda->partials,
				   cuda->plan.slots_max * kvt_cuda_slot_bytes(dim));
	if (r)
		return r;
	r = plan_upload(context, cuda->plan.memory.data, cuda->plan.bytes, stream);
	if (!r)
		r = prefill_launch(context, prefill, functions, fit.shared_bytes, stream);
	return work_end(context, stream, r);
}

typedef int run_fn(struct kvt_attn_context *context, const void *operation, void *stream);

/*
 * Refuse a capturing stream: a graph would launch the kernels again after their plan was
 * overwritten. The driver must not be asked: a refusal by it ends the caller's capture.
 */
static int stream_check(struct kvt_attn_context *context, void *stream)
{
	int capturing = 0, error = context->cuda->driver.stream_capturing(stream, &capturing);

	if (capturing || error == KVT_CU_ERROR_STREAM_CAPTURE_IMPLICIT)
		return kvt_attn_fail(context, -EBUSY,
				     "the stream, or one that the default stream waits for, is "
				     "being captured into a graph, and a call cannot be part of "
				     "one: call outside of the capture");
	if (error)
		return driver_fail(context, error, "a stream was asked for its state");
	return 0;
}

/* Run with the device's context current. */
static int run_current(struct kvt_attn_context *context, run_fn *run, const void *operation,
		       void *stream)
{
	int r;

	DRIVER(context, context_push(context->cuda->context), "its context was entered");
	r = stream_check(context, stream);
	if (!r)
		r = run(context, operation, stream);
	context->cuda->driver.context_pop(&(void *){ NULL });
	return r;
}

static int run_sparing(struct kvt_attn_context *context, run_fn *run, const void *operation,
		       void *stream)
{
	int mode, r = captures_spare(context, &mode);

	if (r)
		return r;
	r = run_current(context, run, operation, stream);
	kvt_cu_restore(&context->cuda->driver, mode);
	return r;
}

static int prefill_run_any(struct kvt_attn_context *context, const void *operation, void *stream)
{
	return prefill_run(context, operation, stream);
}

int kvt_cuda_append_prefill(struct kvt_attn_context *context,
			    const struct kvt_attn_prefill *prefill, void *stream)
{
	return run_sparing(context, prefill_run_any, prefill, stream);
}

/* Upload a small host array over the last call's plan. */
static int array_upload(struct kvt_attn_context *context, const void *array, size_t bytes,
			void *stream)
{
	int r = device_reserve(context, &context->cuda->plan_memory, bytes);

	return r ? r : plan_upload(context, array, bytes, stream);
}

static int append_run_any(struct kvt_attn_context *context, const void *operation, void *stream)
{
	const struct kvt_attn_append *append = operation;
	const struct kvt_attn_view *kv = &append->kv;
	struct kvt_cuda *cuda = context->cuda;
	struct kvt_cuda_append args = {
		.k_pages = (uint64_t)(uintptr_t)kv->k,
		.v_pages = (uint64_t)(uintptr_t)kv->v,
		.page_stride = kv->page_stride_bytes,
		.head_stride = kv->head_stride_bytes,
		.position_stride = kv->position_stride_bytes,
		.k = (uint64_t)(uintptr_t)append->k,
		.v = (uint64_t)(uintptr_t)append->v,
		.row_stride = append->row_stride_bytes,
		.row_head_stride = append->head_stride_bytes,
		.n_elements = (uint64_t)append->n_positions * kv->n_kv_heads * kv->head_dim,
		.page_shift = (uint32_t)__builtin_ctz(kv->page_size),
		.n_kv_heads = kv->n_kv_heads,
		.head_dim = kv->head_dim,
		.source_type = append->type,
		.target_type = kv->type,
		.k_scale = kv->k_scale,
		.v_scale = kv->v_scale,
	};
	uint64_t n_blocks = (args.n_elements + KVT_CUDA_THREADS - 1) / KVT_CUDA_THREADS;
	int r;

	if (!append->n_positions)
		return 0;
	r = function_find(context, "kvt_append", &cuda->append);
	if (!r)
		r = array_upload(context, append->slots,
				 append->n_positions * sizeof *append->slots, stream);
	args.slots = cuda->plan_memory.address;
	if (!r)
		r = kernel_launch(context, cuda->append,
				  (uint32_t)(n_blocks < 65536 ? n_blocks : 65536), 1, 0, stream,
				  &args);
	return work_end(context, stream, r);
}

int kvt_cuda_kv_append(struct kvt_attn_context *context, const struct kvt_attn_append *append,
		       void *stream)
{
	return run_sparing(context, append_run_any, append, stream);
}

struct copies {
	const struct kvt_attn_view *views;
	uint32_t n_views;
	const struct kvt_attn_copy *copies;
	uint32_t n_copies;
};

static int copies_run_any(struct kvt_attn_context *context, const void *operation, void *stream)
{
	const struct copies *all = operation;
	struct kvt_cuda *cuda = context->cuda;
	int r = function_find(context, "kvt_copy", &cuda->copy);

	if (!r)
		r = array_upload(context, all->copies, all->n_copies * sizeof *all->copies, stream);
	for (uint32_t i = 0; !r && i < all->n_views; i++) {
		const struct kvt_attn_view *kv = &all->views[i];
		struct kvt_cuda_copy args = {
			.k = (uint64_t)(uintptr_t)kv->k,
			.v = (uint64_t)(uintptr_t)kv->v,
			.page_stride = kv->page_stride_bytes,
			.head_stride = kv->head_stride_bytes,
			.position_stride = kv->position_stride_bytes,
			.copies = cuda->plan_memory.address,
			.n_kv_heads = kv->n_kv_heads,
			.row_bytes = kv->head_dim * kvt_type_size(kv->type),
		};

		r = kernel_launch(context, cuda->copy, all->n_copies, kv->n_kv_heads, 0, stream,
				  &args);
	}
	return work_end(context, stream, r);
}

int kvt_cuda_page_copy(struct kvt_attn_context *context, const struct kvt_attn_view *views,
		       uint32_t n_views, const struct kvt_attn_copy *copies, uint32_t n_copies,
		       void *stream)
{
	struct copies all = { views, n_views, copies, n_copies };

	if (!n_views || !n_copies)
		return 0;
	return run_sparing(context, copies_run_any, &all, stream);
}
