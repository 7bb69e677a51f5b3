/* SPDX-License-Identifier: Apache-2.0 */
/* A build without the CUDA compiler: CUDA contexts cannot be opened, and say why. */

#include <errno.h>

#include "internal.h"

int kvt_cuda_open(struct kvt_attn_context *context, uint32_t device_index)
{
	(void)device_index;
	return kvt_attn_fail(context, -ENOTSUP, "this libkvtkernels was built without CUDA kernels: "
			     "build it with nvcc on PATH");
}

void kvt_cuda_close(struct kvt_attn_context *context)
{
	(void)context;
}

int kvt_cuda_append_prefill(struct kvt_attn_context *context, const struct kvt_attn_prefill *prefill,
			    void *stream)
{
	(void)context, (void)prefill, (void)stream;
	return -ENOTSUP;
}

int kvt_cuda_kv_append(struct kvt_attn_context *context, const struct kvt_attn_append *append,
		       void *stream)
{
	(void)context, (void)append, (void)stream;
	return -ENOTSUP;
}

int kvt_cuda_page_copy(struct kvt_attn_context *context, const struct kvt_attn_view *views,
		       uint32_t n_views, const struct kvt_attn_copy *copies, uint32_t n_copies,
		       void *stream)
{
	(void)context, (void)views, (void)n_views, (void)copies, (void)n_copies, (void)stream;
	return -ENOTSUP;
}
