/* SPDX-License-Identifier: Apache-2.0 */

/* What readers of formats call: errors, members, requests. See reader.h. */

#include "lab/trace/reader.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>

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

int kvt_reader_count(struct kvt_reader *reader, json_t *object, const char *name, bool required,
		     uint32_t *ret_value)
{
	json_t *value = json_object_get(object, name);

	if ((!value || json_is_null(value)) && !required)
		return 0;
	if (!json_is_integer(value) || json_integer_value(value) < 0 ||
	    json_integer_value(value) > KVT_TRACE_MAX_POSITIONS)
		return kvt_reader_complain(reader, "\"%s\" must be an integer from 0 to %u", name,
					   KVT_TRACE_MAX_POSITIONS);
	*ret_value = (uint32_t)json_integer_value(value);
	return 0;
}

int kvt_reader_time(struct kvt_reader *reader, json_t *object, const char *name, double scale,
		    uint64_t *ret_us)
{
	json_t *value = json_object_get(object, name);

	if (!value)
		return 0;
	if (!json_is_number(value) || json_number_value(value) < 0 ||
	    json_number_value(value) > 1e12)
		return kvt_reader_complain(reader, "\"%s\" must be a time that is not negative",
					   name);
	*ret_us = (uint64_t)(json_number_value(value) * scale + 0.5);
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
