/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_BASE_TEXT_H
#define KVT_BASE_TEXT_H

/**
 * @file text.h
 * Growing memory, and text in it. Programs only: when memory is exhausted, kvt_memory_grow() ends
 * the program with a message.
 */

#include <stdarg.h>
#include <stddef.h>

/** realloc() n elements, or exit with a message. Never NULL for n > 0. */
void *kvt_memory_grow(void *old, size_t n, size_t element_bytes);
/** Copy `bytes` of `text` and end them with NUL. The caller frees them. */
char *kvt_text_copy(const char *text, size_t bytes);

/** Text that grows. All zero is empty. */
struct kvt_text {
	char *bytes; /* NUL-terminated once something was added */
	size_t used;
	size_t room;
};

void kvt_text_add(struct kvt_text *text, const char *bytes, size_t n);
void kvt_text_print(struct kvt_text *text, const char *format, ...)
	__attribute__((format(printf, 2, 3)));
void kvt_text_vprint(struct kvt_text *text, const char *format, va_list arguments);
void kvt_text_free(struct kvt_text *text);

#endif
