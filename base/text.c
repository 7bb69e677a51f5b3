/* SPDX-License-Identifier: Apache-2.0 */
#include "base/text.h"

#include <errno.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/exit.h"

void *kvt_memory_grow(void *old, size_t n, size_t element_bytes)
{
	void *grown = NULL;

	if (n == 0)
		n = 1;
	if (element_bytes <= SIZE_MAX / n)
		grown = realloc(old, n * element_bytes);
	if (!grown) {
		fprintf(stderr, "%s: out of memory (%zu x %zu bytes)\n",
			program_invocation_short_name, n, element_bytes);
		exit(KVT_EXIT_PROBLEM);
	}
	return grown;
}

char *kvt_text_copy(const char *text, size_t bytes)
{
	char *copy = kvt_memory_grow(NULL, bytes + 1, 1);

	memcpy(copy, text, bytes);
	copy[bytes] = '\0';
	return copy;
}

static void text_reserve(struct kvt_text *text, size_t n)
{
	if (text->room - text->used > n)
		return;
	text->room = text->room * 2 > text->used + n + 1 ? text->room * 2 : text->used + n + 256;
	text->bytes = kvt_memory_grow(text->bytes, text->room, 1);
}

void kvt_text_add(struct kvt_text *text, const char *bytes, size_t n)
{
	text_reserve(text, n);
	memcpy(text->bytes + text->used, bytes, n);
	text->used += n;
	text->bytes[text->used] = '\0';
}

void kvt_text_vprint(struct kvt_text *text, const char *format, va_list arguments)
{
	va_list again;
	int n;

	va_copy(again, arguments);
	n = vsnprintf(NULL, 0, format, again);
	va_end(again);
	if (n <= 0)
		return;
	text_reserve(text, (size_t)n);
	vsnprintf(text->bytes + text->used, (size_t)n + 1, format, arguments);
	text->used += (size_t)n;
}

void kvt_text_print(struct kvt_text *text, const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	kvt_text_vprint(text, format, arguments);
	va_end(arguments);
}

void kvt_text_free(struct kvt_text *text)
{
	free(text->bytes);
	*text = (struct kvt_text){ 0 };
}
