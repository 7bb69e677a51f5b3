/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_LAB_TRACE_READER_H
#define KVT_LAB_TRACE_READER_H

/**
 * @file reader.h
 * What the readers of all formats share. A format is a row of the table in read.c.
 */

#include <jansson.h>

#include "lab/trace/trace.h"

#define KVT_TRACE_MAX_POSITIONS (1u << 30) /* of a request: above any model, below overflow */

#define KVT_READER_USED 32

/** Names seen, numbered in order of appearance. */
struct kvt_names {
	json_t *numbers;
	uint32_t n;
};

struct kvt_reader {
	struct kvt_trace_builder *builder;
	const char *path;
	uint32_t block;    /* positions per id; 0: that of the format, which is not known yet */
	uint32_t line;     /* of the object, from 0 */
	uint32_t next_line;
	uint32_t n_objects;
	bool array;        /* inside an array of all objects */
	const char *expected; /* a right line of the format, or of each while it is not known */
	char *why;
	size_t why_bytes;
	struct kvt_names sessions;
	struct kvt_names streams;
	struct kvt_names heads;
	double scale;      /* microseconds of a time's unit; 0: no time was read yet */
	bool since_1970;   /* times count from there */
	bool texts;        /* a byte of one was a key */
	uint32_t n_empty;  /* objects without a request */
	const char *used[KVT_READER_USED]; /* members of this object that were read */
	uint32_t n_used;
	json_t *unread;    /* how many objects had members that are not read, by name */
	char *text; /* the object */
	size_t text_bytes;
};

/** Say what is wrong with the object, and what a right one looks like. Returns -EINVAL. */
int kvt_reader_complain(struct kvt_reader *reader, const char *format, ...)
	__attribute__((format(printf, 2, 3)));
/** Give the number of a name. -ENOMEM. */
int kvt_reader_number(struct kvt_names *names, const char *name, uint32_t *ret_number);
/** Get a member of the line's object, which is thereby used. NULL: it has none. */
json_t *kvt_reader_take(struct kvt_reader *reader, json_t *object, const char *name);
/** Count the members of an object that are neither used nor one of `known`, which ends with NULL;
 * `known` may be NULL. where: what stands before their names. */
void kvt_reader_unread(struct kvt_reader *reader, json_t *object, const char *where,
		       const char *const *known);
/** Read a count of positions. A missing optional one leaves *ret_value unchanged. */
int kvt_reader_count(struct kvt_reader *reader, json_t *object, const char *name, bool required,
		     uint32_t *ret_value);
/** Read a time in units of `scale` microseconds; since 1970 in seconds, milliseconds, microseconds
 * or nanoseconds if the first of the file is above 10^8. A missing one leaves *ret_us unchanged. */
int kvt_reader_time(struct kvt_reader *reader, json_t *object, const char *name, double scale,
		    uint64_t *ret_us);
/** True for an integer that is a block id or a key. */
bool kvt_reader_is_id(const json_t *value);
/** Begin a request of this object, without ids. */
struct kvt_trace_request kvt_reader_request(const struct kvt_reader *reader);
/** Append ids to the request begun last, joining consecutive ones into runs. */
int kvt_reader_ids(struct kvt_reader *reader, struct kvt_trace_request *request, uint32_t first,
		   uint32_t count);
/** Append a request to the trace. */
int kvt_reader_add(struct kvt_reader *reader, struct kvt_trace_request *request);

/* ---- formats: read one object ---- */

int kvt_read_mooncake(struct kvt_reader *reader, json_t *object);
int kvt_read_agent(struct kvt_reader *reader, json_t *object);
int kvt_read_jsonl(struct kvt_reader *reader, json_t *object);

#endif
