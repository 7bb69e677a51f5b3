/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared by all files of the library: a context's error text, and memory that grows.
 */

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "internal.h"

int kvt_attn_fail(struct kvt_attn_context *context, int error, const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(context->error_text, sizeof context->error_text, format, arguments);
	va_end(arguments);
	return error;
}

int kvt_buffer_reserve(struct kvt_buffer *buffer, size_t bytes)
{
	void *data;

	if (bytes <= buffer->bytes)
		return 0;
	/*
	 * Round up to whole pages and add an eighth, so that a growing context does not allocate at
	 * each step.
	 */
	bytes = (bytes + bytes / 8 + 4095) & ~(size_t)4095;
	data = aligned_alloc(4096, bytes);
	if (!data)
		return -ENOMEM;
	free(buffer->data);
	buffer->data = data;
	buffer->bytes = bytes;
	return 0;
}

void kvt_buffer_free(struct kvt_buffer *buffer)
{
	free(buffer->data);
	*buffer = (struct kvt_buffer){ 0 };
}
