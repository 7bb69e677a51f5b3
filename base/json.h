/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_BASE_JSON_H
#define KVT_BASE_JSON_H

/** @file json.h: JSON values, built as text. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/text.h"

/** One JSON value under construction. Commas are added. Strings may hold any bytes: invalid UTF-8
 * becomes U+FFFD. With `name` NULL an element of a list, or the value itself, is added. */
struct kvt_json {
	struct kvt_text text;
	bool comma;
};

void kvt_json_open(struct kvt_json *json, const char *name, char bracket); /* '{' or '[' */
void kvt_json_close(struct kvt_json *json, char bracket);                  /* '}' or ']' */
void kvt_json_u64(struct kvt_json *json, const char *name, uint64_t value);
void kvt_json_i64(struct kvt_json *json, const char *name, int64_t value);
void kvt_json_double(struct kvt_json *json, const char *name, double value); /* null: not finite */
/** part / all; null of nothing, which has no rate. */
void kvt_json_rate(struct kvt_json *json, const char *name, uint64_t part, uint64_t all);
void kvt_json_seconds(struct kvt_json *json, const char *name, uint64_t ns);
void kvt_json_bool(struct kvt_json *json, const char *name, bool value);
void kvt_json_null(struct kvt_json *json, const char *name);
void kvt_json_string(struct kvt_json *json, const char *name, const char *value); /* NULL: null */
void kvt_json_bytes(struct kvt_json *json, const char *name, const char *value, size_t bytes);
void kvt_json_format(struct kvt_json *json, const char *name, const char *format, ...)
	__attribute__((format(printf, 3, 4)));
void kvt_json_u32_list(struct kvt_json *json, const char *name, const uint32_t *values, size_t n);
/** Write it with a newline, flush, and clear it. 0 or a negative errno (-EPIPE). */
int kvt_json_flush(struct kvt_json *json, FILE *to);
void kvt_json_free(struct kvt_json *json);

#endif
