/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_TOOLS_UTIL_H
#define KVT_TOOLS_UTIL_H

/**
 * @file util.h
 * Shared by the tools: growing text, JSON output, numbers, exit codes.
 *
 * Tools may exit when memory is exhausted: kvt_tool_grow() does, with a message.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "shm/clock.h"
#include "shm/size.h"

/** Exit codes of every kvtctl command. */
enum kvt_exit {
	KVT_EXIT_OK = 0,
	KVT_EXIT_PROBLEM = 1, /* a problem was found, or the daemon refused */
	KVT_EXIT_USAGE = 2,
	KVT_EXIT_CONNECT = 3, /* no daemon, or an unusable one */
};

/** realloc() n elements, or exit with a message. Never NULL for n > 0. */
void *kvt_tool_grow(void *old, size_t n, size_t element_bytes);
char *kvt_tool_copy(const char *text, size_t bytes);
/** From now on SIGINT and SIGTERM only interrupt sleeps, and are told by kvt_interrupted(). */
void kvt_catch_interrupts(void);
bool kvt_interrupted(void);

static inline double kvt_percent(uint64_t part, uint64_t all)
{
	return all ? 100 * (double)part / (double)all : 0;
}

/** Text that grows. All zero is empty. */
struct kvt_text {
	char *bytes; /* NUL-terminated once something was added */
	size_t used;
	size_t room;
};

void kvt_text_add(struct kvt_text *text, const char *bytes, size_t n);
void kvt_text_print(struct kvt_text *text, const char *format, ...)
	__attribute__((format(printf, 2, 3)));
void kvt_text_free(struct kvt_text *text);

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

/** Open a file for output before work begins: what it had stays until kvt_file_end(). NULL with
 * errno. */
FILE *kvt_file_begin(const char *path);
/** Close a file that was only written to, and cut it there. 0, or the negative errno of a write
 * that failed. */
int kvt_file_end(FILE *file);

/** Read `text`, decimal digits only. -EINVAL, -ERANGE above `max`. */
int kvt_number_parse(const char *text, size_t bytes, uint64_t max, uint64_t *ret_value);
/** Write "1.5 s", "3 min", "2 h" into `buffer`, which is returned. */
const char *kvt_age_text(uint64_t ns, char *buffer, size_t bytes);
/** "48.0 %", or "-" of nothing, which has no rate. */
const char *kvt_rate_text(uint64_t part, uint64_t all, char *buffer, size_t bytes);
/** "1.5 GiB". */
const char *kvt_size_text(uint64_t size_bytes, char *buffer, size_t bytes);
/** "lru", "host", "open": names of enum kvt_policy, kvt_pool_backend, kvt_session_state; of any
 * other number "unknown". */
const char *kvt_policy_text(uint32_t policy);
const char *kvt_backend_text(uint32_t backend);
const char *kvt_session_state_text(uint32_t state);

/** Read a namespace: NAME (a cache salt), SALT/ADAPTER (an empty part is an absent field), or 32
 * hex digits as `kvtctl namespaces` shows them, also behind digest:. Empty: the plain namespace.
 * -EINVAL with a sentence in `why`. */
int kvt_namespace_parse(const char *text, uint64_t ret_digest[2], char *why, size_t why_bytes);

#endif
