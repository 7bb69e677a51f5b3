/* SPDX-License-Identifier: Apache-2.0 */

/* Common to both ways to compute: attention, by libkvtkernels, and errors. */

#include "compute.h"

#include <stdarg.h>
#include <stdio.h>

void compute_fail(struct compute *compute, int error, const char *format, ...)
{
	va_list args;

	if (compute->error)
		return;
	compute->error = error;
	va_start(args, format);
	vsnprintf(compute->why, sizeof(compute->why), format, args);
	va_end(args);
}

void compute_close(struct compute *compute)
{
	if (compute)
		compute->ops->close(compute);
}

void compute_attention(struct compute *compute, const struct kvt_attn_append *append,
		       const struct kvt_attn_prefill *prefill)
{
	int error = compute->error;

	if (error)
		return;
	error = kvt_attn_kv_append(compute->attention, append, compute->stream);
	if (!error)
		error = kvt_attn_append_prefill(compute->attention, prefill, compute->stream);
	if (error)
		compute_fail(compute, error, "%s", kvt_attn_error_text(compute->attention));
}
