/* SPDX-License-Identifier: Apache-2.0 */
/*
 * JSON (json.h). Input may be any bytes: output is always valid JSON and UTF-8. Callers: the tools,
 * lab/ and the example worker.
 */
#include "base/json.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Length of the UTF-8 sequence at `at`, 0 if there is none. */
static size_t utf8_length(const unsigned char *at, size_t n)
{
	uint32_t code;
	size_t length;

	if (at[0] < 0x80)
		return 1;
	length = at[0] >= 0xf0 ? 4 : at[0] >= 0xe0 ? 3 : 2;
	if (at[0] < 0xc2 || at[0] > 0xf4 || n < length)
		return 0;
	code = at[0] & (0x7fu >> length);
	for (size_t i = 1; i < length; i++) {
		if ((at[i] & 0xc0) != 0x80)
			return 0;
		code = code << 6 | (at[i] & 0x3f);
	}
	if ((length == 3 && code < 0x800) || (length == 4 && (code < 0x10000 || code > 0x10ffff)))
		return 0;
	return code >= 0xd800 && code <= 0xdfff ? 0 : length;
}

static void json_quote(struct kvt_text *text, const char *value, size_t bytes)
{
	const unsigned char *at = (const unsigned char *)value;

	kvt_text_add(text, "\"", 1);
	for (size_t i = 0; i < bytes;) {
		size_t n = utf8_length(at + i, bytes - i);

		if (n == 0) {
			kvt_text_add(text, "\\ufffd", 6);
			n = 1;
		} else if (at[i] == '"' || at[i] == '\\') {
			kvt_text_print(text, "\\%c", at[i]);
		} else if (at[i] < 0x20 || at[i] == 0x7f) {
			kvt_text_print(text, "\\u%04x", at[i]);
		} else {
			kvt_text_add(text, value + i, n);
		}
		i += n;
	}
	kvt_text_add(text, "\"", 1);
}

static void json_name(struct kvt_json *json, const char *name)
{
	if (json->comma)
		kvt_text_add(&json->text, ",", 1);
	json->comma = true;
	if (!name)
		return;
	json_quote(&json->text, name, strlen(name));
	kvt_text_add(&json->text, ":", 1);
}

void kvt_json_open(struct kvt_json *json, const char *name, char bracket)
{
	json_name(json, name);
	kvt_text_add(&json->text, &bracket, 1);
	json->comma = false;
}

void kvt_json_close(struct kvt_json *json, char bracket)
{
	kvt_text_add(&json->text, &bracket, 1);
	json->comma = true;
}

void kvt_json_u64(struct kvt_json *json, const char *name, uint64_t value)
{
	json_name(json, name);
	kvt_text_print(&json->text, "%llu", (unsigned long long)value);
}

void kvt_json_i64(struct kvt_json *json, const char *name, int64_t value)
{
	json_name(json, name);
	kvt_text_print(&json->text, "%lld", (long long)value);
}

void kvt_json_double(struct kvt_json *json, const char *name, double value)
{
	if (!(value - value == 0)) {
		kvt_json_null(json, name);
		return;
	}
	json_name(json, name);
	kvt_text_print(&json->text, "%.9g", value);
}

void kvt_json_rate(struct kvt_json *json, const char *name, uint64_t part, uint64_t all)
{
	if (all)
		kvt_json_double(json, name, (double)part / (double)all);
	else
		kvt_json_null(json, name);
}

void kvt_json_seconds(struct kvt_json *json, const char *name, uint64_t ns)
{
	json_name(json, name);
	kvt_text_print(&json->text, "%llu.%06llu", (unsigned long long)(ns / 1000000000),
		       (unsigned long long)(ns % 1000000000 / 1000));
}

void kvt_json_bool(struct kvt_json *json, const char *name, bool value)
{
	json_name(json, name);
	kvt_text_print(&json->text, "%s", value ? "true" : "false");
}

void kvt_json_null(struct kvt_json *json, const char *name)
{
	json_name(json, name);
	kvt_text_add(&json->text, "null", 4);
}

void kvt_json_bytes(struct kvt_json *json, const char *name, const char *value, size_t bytes)
{
	json_name(json, name);
	json_quote(&json->text, value, bytes);
}

void kvt_json_string(struct kvt_json *json, const char *name, const char *value)
{
	if (value)
		kvt_json_bytes(json, name, value, strlen(value));
	else
		kvt_json_null(json, name);
}

void kvt_json_format(struct kvt_json *json, const char *name, const char *format, ...)
{
	struct kvt_text value = { 0 };
	va_list arguments;

	va_start(arguments, format);
	kvt_text_vprint(&value, format, arguments);
	va_end(arguments);
	kvt_json_bytes(json, name, value.used ? value.bytes : "", value.used);
	kvt_text_free(&value);
}

void kvt_json_u32_list(struct kvt_json *json, const char *name, const uint32_t *values, size_t n)
{
	kvt_json_open(json, name, '[');
	for (size_t i = 0; i < n; i++) {
		char digits[12], *at = digits + sizeof(digits);
		uint32_t rest = values[i];

		/* Without printf: lists have millions of elements. */
		do
			*--at = (char)('0' + rest % 10);
		while ((rest /= 10) > 0);
		if (i > 0)
			*--at = ',';
		kvt_text_add(&json->text, at, (size_t)(digits + sizeof(digits) - at));
	}
	kvt_json_close(json, ']');
}

int kvt_json_flush(struct kvt_json *json, FILE *to)
{
	size_t written;

	kvt_text_add(&json->text, "\n", 1);
	written = fwrite(json->text.bytes, 1, json->text.used, to);
	if (fflush(to) != 0 || written != json->text.used)
		return -EPIPE;
	json->text.used = 0;
	json->comma = false;
	return 0;
}

void kvt_json_free(struct kvt_json *json)
{
	kvt_text_free(&json->text);
}
