/* SPDX-License-Identifier: Apache-2.0 */

/* What readers of formats call: errors, members, requests. See reader.h. */

#include "lab/trace/reader.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

int kvt_reader_complain(struct kvt_reader *reader, const char *format, ...)
{
	char what[256];
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(what, sizeof(what), format, arguments);
	va_end(arguments);
	snprintf(reader->why, reader->why_bytes, "%s:%u: %s. %s", reader->path, reader->line + 1,
		 what, reader->expected);
	return -EINVAL;
}

int kvt_reader_number(struct kvt_names *names, const char *name, uint32_t *ret_number)
{
	json_t *known;

	if (!names->numbers)
		names->numbers = json_object();
	known = json_object_get(names->numbers, name);
	if (known) {
		*ret_number = (uint32_t)json_integer_value(known);
		return 0;
	}
	if (json_object_set_new(names->numbers, name, json_integer(names->n)))
		return -ENOMEM;
	*ret_number = names->n++;
	return 0;
}

json_t *kvt_reader_take(struct kvt_reader *reader, json_t *object, const char *name)
{
	json_t *value = json_object_get(object, name);

	if (value && reader->n_used < KVT_READER_USED)
		reader->used[reader->n_used++] = name;
	return json_is_null(value) ? NULL : value;
}

static bool is_used(const struct kvt_reader *reader, const char *name, const char *const *known)
{
	for (; known && *known; known++)
		if (strcmp(name, *known) == 0)
			return true;
	for (uint32_t i = 0; !known && i < reader->n_used; i++)
		if (strcmp(name, reader->used[i]) == 0)
			return true;
	return false;
}

void kvt_reader_unread(struct kvt_reader *reader, json_t *object, const char *where,
		       const char *const *known)
{
	const char *name;
	json_t *value;
	char path[128];

	if (!reader->unread)
		reader->unread = json_object();
	json_object_foreach(object, name, value) {
		if (is_used(reader, name, known))
			continue;
		snprintf(path, sizeof(path), "%s%.80s", where, name);
		value = json_object_get(reader->unread, path);
		json_object_set_new(reader->unread, path,
				    json_integer(json_integer_value(value) + 1));
	}
}

int kvt_reader_count(struct kvt_reader *reader, json_t *object, const char *name, bool required,
		     uint32_t *ret_value)
{
	json_t *value = kvt_reader_take(reader, object, name);

	if (!value && !required)
		return 0;
	if (!json_is_integer(value) || json_integer_value(value) < 0 ||
	    json_integer_value(value) > KVT_TRACE_MAX_POSITIONS)
		return kvt_reader_complain(reader, "\"%s\" must be an integer from 0 to %u", name,
					   KVT_TRACE_MAX_POSITIONS);
	*ret_value = (uint32_t)json_integer_value(value);
	return 0;
}

#define SINCE_1970 1e8 /* 1973 in seconds, and 27 hours in milliseconds */
#define LATEST_US 1e17 /* in the year 5138 */

/* Microseconds of the unit of a time of our days. */
static double scale_since_1970(double time)
{
	return time < 1e11 ? 1e6 : time < 1e14 ? 1e3 : time < 1e17 ? 1 : 1e-3;
}

int kvt_reader_time(struct kvt_reader *reader, json_t *object, const char *name, double scale,
		    uint64_t *ret_us)
{
	json_t *value = kvt_reader_take(reader, object, name);
	double time = json_number_value(value);

	if (!value)
		return 0;
	if (!json_is_number(value) || time < 0)
		return kvt_reader_complain(reader, "\"%s\" must be a time that is not negative",
					   name);
	if (reader->scale == 0) {
		reader->since_1970 = time >= SINCE_1970;
		reader->scale = reader->since_1970 ? scale_since_1970(time) : scale;
	}
	if (reader->since_1970 && time < SINCE_1970)
		return kvt_reader_complain(reader, "\"%s\" is %g, and the first of the file counts "
					   "from 1970", name, time);
	if (time * reader->scale > LATEST_US)
		return kvt_reader_complain(reader, "\"%s\" is too late a time", name);
	*ret_us = (uint64_t)(time * reader->scale + 0.5);
	return 0;
}

bool kvt_reader_is_id(const json_t *value)
{
	return json_is_integer(value) && json_integer_value(value) >= 0 &&
	       json_integer_value(value) <= UINT32_MAX;
}

struct kvt_trace_request kvt_reader_request(const struct kvt_reader *reader)
{
	return (struct kvt_trace_request){ .user = KVT_TRACE_NONE, .previous = KVT_TRACE_NONE,
					   .line = reader->line,
					   .first_run = reader->builder->n_runs };
}

int kvt_reader_ids(struct kvt_reader *reader, struct kvt_trace_request *request, uint32_t first,
		   uint32_t count)
{
	struct kvt_trace_builder *builder = reader->builder;
	struct kvt_trace_run *last;
	int rc;

	if (!count)
		return 0;
	if (request->n_runs) {
		last = &builder->runs[builder->n_runs - 1];
		if (last->first + last->count == first && last->first <= first) {
			last->count += count;
			return 0;
		}
	}
	rc = kvt_trace_builder_run(builder, first, count);
	if (!rc)
		request->n_runs++;
	return rc;
}

int kvt_reader_add(struct kvt_reader *reader, struct kvt_trace_request *request)
{
	if (request->head > request->input)
		request->head = request->input;
	if (request->covered < request->head)
		request->covered = request->head;
	if (request->covered > request->input)
		request->covered = request->input;
	return kvt_trace_builder_request(reader->builder, request);
}
