/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Contexts: the choice of a path, its threads and memory; and the entry of the three operations.
 *
 * Inputs: the caller's options and operations. Invariants: every operation is checked before it
 * runs; rounding and denormals are the same for all. Callers: applications, by kvt_kernels.h.
 */

#include <errno.h>
#include <fenv.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "internal.h"

#define CONTEXT_MAGIC 0x4b56414eu
#define SCRATCH_BYTES_DEFAULT (256ull << 20)

int kvt_attn_abi(void)
{
	return KVT_ATTN_ABI;
}

static const char *const isa_names[] = { "auto", "portable", "avx2", "avx512", "avx512_bf16" };
#define ISA_LAST KVT_ATTN_ISA_AVX512_BF16

#if defined(__x86_64__)
/* clang 14 has no name for it. */
static bool has_f16c(void)
{
	uint32_t a, b, c, d;

	return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

/*
 * True if vdpbf16ps does fewer products a second than fma: half as many on Intel's cores, twice as
 * many on AMD's.
 */
static bool pairs_slow(void)
{
	uint32_t a, b, c, d;

	return __get_cpuid(0, &a, &b, &c, &d) && b == signature_INTEL_ebx &&
	       c == signature_INTEL_ecx && d == signature_INTEL_edx;
}
#endif

static bool isa_supported(enum kvt_attn_isa isa)
{
	switch (isa) {
	case KVT_ATTN_ISA_PORTABLE:
		return true;
#if defined(__x86_64__)
	/* These also ask the operating system if it saves the registers. */
	case KVT_ATTN_ISA_AVX2:
		return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
		       has_f16c();
	case KVT_ATTN_ISA_AVX512:
		return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
		       __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
	case KVT_ATTN_ISA_AVX512_BF16:
		return isa_supported(KVT_ATTN_ISA_AVX512) && __builtin_cpu_supports("avx512bf16") &&
		       __builtin_cpu_supports("avx512vbmi");
#endif
	default:
		return false;
	}
}

static struct kvt_isa isa_paths(enum kvt_attn_isa isa)
{
	switch (isa) {
#if defined(__x86_64__)
	case KVT_ATTN_ISA_AVX2:
		return (struct kvt_isa){ "avx2", &kvt_path_avx2_f32, &kvt_path_avx2_f32 };
	case KVT_ATTN_ISA_AVX512:
		return (struct kvt_isa){ "avx512", &kvt_path_avx512_f32, &kvt_path_avx512_f32 };
	case KVT_ATTN_ISA_AVX512_BF16:
		return (struct kvt_isa){ "avx512_bf16", &kvt_path_avx512_f32,
					 &kvt_path_avx512_bf16 };
#endif
	default:
		return (struct kvt_isa){ "portable", &kvt_path_portable_f32,
					 &kvt_path_portable_f32 };
	}
}

static int isa_from_environment(struct kvt_attn_context *context, enum kvt_attn_isa *isa)
{
	const char *name = getenv("KVT_ATTN_ISA");

	if (*isa != KVT_ATTN_ISA_AUTO || !name || !*name)
		return 0;
	for (int i = KVT_ATTN_ISA_AUTO; i <= ISA_LAST; i++) {
		if (strcmp(name, isa_names[i]) == 0) {
			*isa = (enum kvt_attn_isa)i;
			return 0;
		}
	}
	return kvt_attn_fail(context, -EINVAL,
			     "KVT_ATTN_ISA=%.40s names no path: use auto, portable, "
			     "avx2, avx512 or avx512_bf16",
			     name);
}

/*
 * Return the CPU's fastest path, by its family: timing would not always choose the same, and paths
 * differ in bits.
 */
static enum kvt_attn_isa isa_best(void)
{
	enum kvt_attn_isa isa = ISA_LAST;

	while (!isa_supported(isa))
		isa--;
#if defined(__x86_64__)
	if (isa == KVT_ATTN_ISA_AVX512_BF16 && pairs_slow())
		return KVT_ATTN_ISA_AVX512;
#endif
	return isa;
}

static int isa_choose(struct kvt_attn_context *context, uint32_t wanted)
{
	enum kvt_attn_isa isa = wanted;
	int r;

	if (wanted > ISA_LAST)
		return kvt_attn_fail(context, -EINVAL,
				     "options.isa is %u: use a value of enum kvt_attn_isa", wanted);
	r = isa_from_environment(context, &isa);
	if (r)
		return r;
	if (isa == KVT_ATTN_ISA_AUTO) {
		isa = isa_best();
	} else if (!isa_supported(isa)) {
		return kvt_attn_fail(context, -ENOTSUP,
				     "this CPU or its kernel cannot run the %s path: "
				     "use KVT_ATTN_ISA_AUTO, or unset KVT_ATTN_ISA",
				     isa_names[isa]);
	}
	context->isa = isa;
	context->paths = isa_paths(isa);
	return 0;
}

static uint32_t cpus_usable(void)
{
	cpu_set_t set;
	int n;

	if (sched_getaffinity(0, sizeof set, &set) < 0)
		return 1;
	n = CPU_COUNT(&set);
	return n < 1 ? 1 : (uint32_t)n;
}

static int cpu_open(struct kvt_attn_context *context, const struct kvt_attn_options *options)
{
	uint32_t n_threads = options->n_threads ? options->n_threads : cpus_usable();
	int r = isa_choose(context, options->isa);

	if (r)
		return r;
	if (n_threads > KVT_ATTN_THREADS_MAX)
		return kvt_attn_fail(context, -EINVAL, "options.n_threads is %u: use %u or less",
				     n_threads, KVT_ATTN_THREADS_MAX);
	context->workspaces = calloc(n_threads, sizeof *context->workspaces);
	if (!context->workspaces)
		return kvt_attn_fail(context, -ENOMEM, "no memory for %u threads", n_threads);
	r = kvt_pool_init(&context->pool, n_threads);
	if (r)
		return kvt_attn_fail(context, r,
				     "cannot start %u threads (%s): ask for fewer, or raise "
				     "the limit of tasks",
				     n_threads, strerror(-r));
	snprintf(context->description, sizeof context->description, "cpu %s, %u thread%s",
		 context->paths.name, n_threads, n_threads == 1 ? "" : "s");
	return 0;
}

static int context_init(struct kvt_attn_context *context, const struct kvt_attn_options *options)
{
	context->magic = CONTEXT_MAGIC;
	context->device = options->device;
	context->scratch_bytes =
		options->scratch_bytes ? options->scratch_bytes : SCRATCH_BYTES_DEFAULT;
	switch (options->device) {
	case KVT_ATTN_CPU:
		return cpu_open(context, options);
	case KVT_ATTN_CUDA:
		return kvt_cuda_open(context, options->device_index);
	default:
		return kvt_attn_fail(context, -EINVAL,
				     "options.device is %u: use a value of "
				     "enum kvt_attn_device",
				     options->device);
	}
}

int kvt_attn_open(const struct kvt_attn_options *options, struct kvt_attn_context **ret_context,
		  char *error_text, size_t error_text_bytes)
{
	static const struct kvt_attn_options defaults;
	struct kvt_attn_context *context;
	int r;

	/* The pool inside needs more alignment than malloc gives. */
	context = aligned_alloc(KVT_CPU_ALIGN, (sizeof *context + KVT_CPU_ALIGN - 1) /
						       KVT_CPU_ALIGN * KVT_CPU_ALIGN);
	if (!context) {
		if (error_text && error_text_bytes)
			snprintf(error_text, error_text_bytes, "no memory for a context");
		return -ENOMEM;
	}
	memset(context, 0, sizeof *context);
	pthread_mutex_init(&context->lock, NULL);
	r = context_init(context, options ? options : &defaults);
	if (r) {
		if (error_text && error_text_bytes)
			snprintf(error_text, error_text_bytes, "%s", context->error_text);
		kvt_attn_close(context);
		return r;
	}
	*ret_context = context;
	return 0;
}

void kvt_attn_close(struct kvt_attn_context *context)
{
	if (!context)
		return;
	if (context->workspaces) {
		uint32_t n_threads = context->pool.n_threads;

		kvt_pool_destroy(&context->pool);
		for (uint32_t i = 0; i < n_threads; i++)
			kvt_buffer_free(&context->workspaces[i]);
		free(context->workspaces);
	}
	kvt_cuda_close(context);
	kvt_buffer_free(&context->limits);
	kvt_buffer_free(&context->blocks);
	kvt_buffer_free(&context->jobs);
	kvt_buffer_free(&context->partials);
	pthread_mutex_destroy(&context->lock);
	context->magic = 0;
	free(context);
}

const char *kvt_attn_describe(const struct kvt_attn_context *context)
{
	return context->description;
}

int kvt_attn_context_isa(const struct kvt_attn_context *context)
{
	return (int)context->isa;
}

const char *kvt_attn_error_text(const struct kvt_attn_context *context)
{
	return context->error_text;
}

/* A CPU context has no streams. */
static int stream_check(struct kvt_attn_context *context, const void *stream)
{
	if (context->device == KVT_ATTN_CPU && stream)
		return kvt_attn_fail(context, -EINVAL,
				     "stream is not NULL, but the context's device is "
				     "the CPU: pass NULL, or open a CUDA context");
	return 0;
}

/*
 * Set rounding to nearest and denormals on until operation_end(), whatever the caller has set: else
 * the bits of results, conversions and a device's scale would differ.
 */
static void operation_begin(struct kvt_attn_context *context, fenv_t *callers)
{
	pthread_mutex_lock(&context->lock);
	fegetenv(callers);
	fesetenv(FE_DFL_ENV);
}

static void operation_end(struct kvt_attn_context *context, const fenv_t *callers)
{
	fesetenv(callers);
	pthread_mutex_unlock(&context->lock);
}

int kvt_attn_append_prefill(struct kvt_attn_context *context,
			    const struct kvt_attn_prefill *prefill, void *stream)
{
	struct kvt_attn_prefill filled = *prefill;
	fenv_t callers;
	int r;

	operation_begin(context, &callers);
	r = stream_check(context, stream);
	if (!r)
		r = kvt_check_prefill(context, prefill);
	if (!r) {
		kvt_prefill_strides(&filled);
		r = context->device == KVT_ATTN_CPU
			    ? kvt_cpu_append_prefill(context, &filled)
			    : kvt_cuda_append_prefill(context, &filled, stream);
	}
	operation_end(context, &callers);
	return r;
}

int kvt_attn_kv_append(struct kvt_attn_context *context, const struct kvt_attn_append *append,
		       void *stream)
{
	struct kvt_attn_append filled = *append;
	fenv_t callers;
	int r;

	operation_begin(context, &callers);
	r = stream_check(context, stream);
	if (!r)
		r = kvt_check_append(context, append);
	if (!r) {
		kvt_append_strides(&filled);
		r = context->device == KVT_ATTN_CPU ? kvt_cpu_kv_append(context, &filled)
						    : kvt_cuda_kv_append(context, &filled, stream);
	}
	operation_end(context, &callers);
	return r;
}

int kvt_attn_page_copy(struct kvt_attn_context *context, const struct kvt_attn_view *views,
		       uint32_t n_views, const struct kvt_attn_copy *copies, uint32_t n_copies,
		       void *stream)
{
	fenv_t callers;
	int r;

	operation_begin(context, &callers);
	r = stream_check(context, stream);
	if (!r)
		r = kvt_check_copies(context, views, n_views, copies, n_copies);
	if (!r)
		r = context->device == KVT_ATTN_CPU
			    ? kvt_cpu_page_copy(context, views, n_views, copies, n_copies)
			    : kvt_cuda_page_copy(context, views, n_views, copies, n_copies, stream);
	operation_end(context, &callers);
	return r;
}
