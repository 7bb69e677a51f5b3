/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Growing text, JSON output, numbers, names (util.h). Callers: the tools and lab/. Input may be
 * any bytes: output is always valid JSON and UTF-8.
 */

#include "tools/util.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kvtrunk_keys.h"

void *kvt_tool_grow(void *old, size_t n, size_t element_bytes)
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

char *kvt_tool_copy(const char *text, size_t bytes)
{
	char *copy = kvt_tool_grow(NULL, bytes + 1, 1);

	memcpy(copy, text, bytes);
	copy[bytes] = '\0';
	return copy;
}

static volatile sig_atomic_t interrupted;

static void on_interrupt(int number)
{
	(void)number;
	interrupted = 1;
}

void kvt_catch_interrupts(void)
{
	struct sigaction action = { .sa_handler = on_interrupt };

	sigaction(SIGINT, &action, NULL);
	sigaction(SIGTERM, &action, NULL);
}

bool kvt_interrupted(void)
{
	return interrupted;
}

static void text_reserve(struct kvt_text *text, size_t n)
{
	if (text->room - text->used > n)
		return;
	text->room = text->room * 2 > text->used + n + 1 ? text->room * 2 : text->used + n + 256;
	text->bytes = kvt_tool_grow(text->bytes, text->room, 1);
}

void kvt_text_add(struct kvt_text *text, const char *bytes, size_t n)
{
	text_reserve(text, n);
	memcpy(text->bytes + text->used, bytes, n);
	text->used += n;
	text->bytes[text->used] = '\0';
}

static void text_vprint(struct kvt_text *text, const char *format, va_list arguments)
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
	text_vprint(text, format, arguments);
	va_end(arguments);
}

void kvt_text_free(struct kvt_text *text)
{
	free(text->bytes);
	*text = (struct kvt_text){ 0 };
}

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
	text_vprint(&value, format, arguments);
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

FILE *kvt_file_begin(const char *path)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
	FILE *file = fd < 0 ? NULL : fdopen(fd, "w");

	if (!file && fd >= 0)
		close(fd);
	return file;
}

int kvt_file_end(FILE *file)
{
	int rc = ferror(file) ? -(errno ? errno : EIO) : 0; /* stdio has no error after it */

	if (rc == 0 && fflush(file) != 0)
		rc = -errno;
	/* EINVAL: a pipe or a device. */
	if (rc == 0 && ftruncate(fileno(file), ftello(file)) != 0 && errno != EINVAL)
		rc = -errno;
	return fclose(file) != 0 && rc == 0 ? -errno : rc;
}

int kvt_number_parse(const char *text, size_t bytes, uint64_t max, uint64_t *ret_value)
{
	uint64_t value = 0;

	if (bytes == 0)
		return -EINVAL;
	for (size_t i = 0; i < bytes; i++) {
		unsigned int digit = (unsigned int)(unsigned char)text[i] - '0';

		if (digit > 9)
			return -EINVAL;
		if (value > UINT64_MAX / 10 || value * 10 > UINT64_MAX - digit)
			return -ERANGE;
		value = value * 10 + digit;
	}
	if (value > max)
		return -ERANGE;
	*ret_value = value;
	return 0;
}

const char *kvt_age_text(uint64_t ns, char *buffer, size_t bytes)
{
	double s = (double)ns / 1e9;

	if (s < 1e-3)
		snprintf(buffer, bytes, "%.0f us", s * 1e6);
	else if (s < 1)
		snprintf(buffer, bytes, "%.0f ms", s * 1e3);
	else if (s < 120)
		snprintf(buffer, bytes, "%.1f s", s);
	else if (s < 7200)
		snprintf(buffer, bytes, "%.0f min", s / 60);
	else
		snprintf(buffer, bytes, "%.1f h", s / 3600);
	return buffer;
}

const char *kvt_rate_text(uint64_t part, uint64_t all, char *buffer, size_t bytes)
{
	if (all)
		snprintf(buffer, bytes, "%.1f %%", kvt_percent(part, all));
	else
		snprintf(buffer, bytes, "-");
	return buffer;
}

const char *kvt_size_text(uint64_t size_bytes, char *buffer, size_t bytes)
{
	static const char *const units[] = { "B", "KiB", "MiB", "GiB", "TiB", "PiB" };
	double size = (double)size_bytes;
	size_t unit = 0;

	while (size >= 1024 && unit + 1 < sizeof(units) / sizeof(units[0])) {
		size /= 1024;
		unit++;
	}
	snprintf(buffer, bytes, unit && size < 100 ? "%.1f %s" : "%.0f %s", size, units[unit]);
	return buffer;
}

const char *kvt_policy_text(uint32_t policy)
{
	static const char *const names[KVT_POLICY_COUNT] = { "lru",  "slru", "lfu",     "fifo",
							     "filo", "mru",  "priority" };

	return policy < KVT_POLICY_COUNT ? names[policy] : "unknown";
}

const char *kvt_backend_text(uint32_t backend)
{
	static const char *const names[] = { "host", "cuda-ipc", "cuda-vmm" };

	return backend < sizeof(names) / sizeof(names[0]) ? names[backend] : "unknown";
}

const char *kvt_session_state_text(uint32_t state)
{
	static const char *const names[] = { "free", "open", "closing", "dying", "dead" };

	return state < sizeof(names) / sizeof(names[0]) ? names[state] : "unknown";
}

static int hex_digest(const char *text, uint64_t ret_digest[2])
{
	uint64_t digest[2] = { 0, 0 };

	if (strlen(text) != 32)
		return -EINVAL;
	for (size_t i = 0; i < 32; i++) {
		const char *digit = strchr("0123456789abcdef", text[i]);

		if (!digit)
			return -EINVAL;
		digest[i / 16] = digest[i / 16] << 4 | (uint64_t)(digit - "0123456789abcdef");
	}
	memcpy(ret_digest, digest, sizeof(digest));
	return 0;
}

int kvt_namespace_parse(const char *text, uint64_t ret_digest[2], char *why, size_t why_bytes)
{
	struct kvt_namespace_fields fields = { 0 };
	const char *slash = strchr(text, '/'), *adapter = slash ? slash + 1 : "";
	size_t salt_bytes = slash ? (size_t)(slash - text) : strlen(text);

	if (hex_digest(text, ret_digest) == 0)
		return 0;
	if (strncmp(text, "digest:", 7) == 0) {
		if (hex_digest(text + 7, ret_digest) == 0)
			return 0;
		snprintf(why, why_bytes, "namespace: 32 lower-case hex digits must follow digest:");
		return -EINVAL;
	}
	if (strchr(adapter, '/') || strlen(text) > 1024) {
		snprintf(why, why_bytes, "namespace: '%.40s' is neither NAME nor SALT/ADAPTER "
			 "(one '/', at most 1024 bytes)", text);
		return -EINVAL;
	}
	if (salt_bytes)
		fields.salt = KVT_FIELD_OF_BYTES(text, (uint32_t)salt_bytes);
	if (*adapter)
		fields.adapter = KVT_FIELD_OF_TEXT(adapter);
	return kvt_namespace_digest(&fields, ret_digest);
}
