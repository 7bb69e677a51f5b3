/* SPDX-License-Identifier: Apache-2.0 */

/* Readers of trace files: mooncake, agent and jsonl, plain or gzip.
 *
 * Inputs: a file of one JSON object a line. Invariant: errors name file, line, field and the
 * expected value; nothing of the file is trusted. Caller: trace.c. */

#include "lab/trace/read.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include "tools/progress.h"

#define LOOK_EVERY 256 /* lines between two looks at the clock */
#define MAX_POSITIONS (1u << 30) /* of one request: above any model, below overflow */

/* Names seen, numbered in order of appearance. */
struct names {
	json_t *numbers;
	uint32_t n;
};

struct reader {
	struct kvt_trace_builder *builder;
	const char *path;
	uint32_t format;
	uint32_t block; /* positions per id */
	uint32_t line;
	char *why;
	size_t why_bytes;
	struct names sessions;
	struct names streams;
	struct names heads;
	char *text; /* the line */
	size_t text_bytes;
};

/* A line of each format, for those who gave another. */
static const char *const examples[] = {
	[KVT_TRACE_MOONCAKE] = "{\"timestamp\": 0, \"input_length\": 1030, \"output_length\": 9, "
			       "\"hash_ids\": [0, 1, 2]}",
	[KVT_TRACE_AGENT] = "{\"s\": 1, \"a\": null, \"t\": 0, \"in\": 330, \"out\": 9, "
			    "\"tt\": 64, \"st\": 36, \"r\": [[1, 5]]}",
	[KVT_TRACE_JSONL] = "{\"keys\": [7, 8, [100, 3]], \"output\": 9} or {\"text\": \"...\"}",
};

/* Say what is wrong with the line, and what a right one looks like. Returns -EINVAL. */
static __attribute__((format(printf, 2, 3))) int complain(struct reader *reader,
							  const char *format, ...)
{
	char what[256];
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(what, sizeof(what), format, arguments);
	va_end(arguments);
	snprintf(reader->why, reader->why_bytes, "%s:%u: %s. A line of this format: %s",
		 reader->path, reader->line + 1, what, examples[reader->format]);
	return -EINVAL;
}

static bool fits(uint64_t n_ids, uint64_t block, uint32_t positions)
{
	return n_ids * block < positions + block && positions < (n_ids + 1) * block;
}

/* Refuse ids that are not one for each block, with or without the last one that is not full:
 * with the ids of another block, positions would be equal that never were. */
static int check_ids(struct reader *reader, const char *name, uint64_t n_ids, const char *length,
		     const struct kvt_trace_request *request)
{
	uint32_t floor = request->input / reader->block;
	uint64_t block = 1;
	char cure[64] = "";

	if (fits(n_ids, reader->block, request->input))
		return 0;
	while (block <= MAX_POSITIONS && !fits(n_ids, block, request->input))
		block *= 2;
	if (block <= MAX_POSITIONS)
		snprintf(cure, sizeof(cure), "; --block-size %" PRIu64 " would fit", block);
	return complain(reader, "\"%s\" has %" PRIu64 " ids for %u positions (\"%s\"): with %u "
			"an id they are %u or %u%s", name, n_ids, request->input, length,
			reader->block, floor, floor + 1, cure);
}

static int number_of(struct names *names, const char *name, uint32_t *ret_number)
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

/* Read a count of positions. A missing optional one leaves *ret_value unchanged. */
static int get_count(struct reader *reader, json_t *object, const char *name, bool required,
		     uint32_t *ret_value)
{
	json_t *value = json_object_get(object, name);

	if ((!value || json_is_null(value)) && !required)
		return 0;
	if (!json_is_integer(value) || json_integer_value(value) < 0 ||
	    json_integer_value(value) > MAX_POSITIONS)
		return complain(reader, "\"%s\" must be an integer from 0 to %u", name,
				MAX_POSITIONS);
	*ret_value = (uint32_t)json_integer_value(value);
	return 0;
}

static int get_time(struct reader *reader, json_t *object, const char *name, double scale,
		    uint64_t *ret_us)
{
	json_t *value = json_object_get(object, name);

	if (!value)
		return 0;
	if (!json_is_number(value) || json_number_value(value) < 0 ||
	    json_number_value(value) > 1e12)
		return complain(reader, "\"%s\" must be a time that is not negative", name);
	*ret_us = (uint64_t)(json_number_value(value) * scale + 0.5);
	return 0;
}

/* Add ids, joining consecutive ones into runs. */
static int add_ids(struct kvt_trace_builder *builder, struct kvt_trace_request *request,
		   uint32_t first, uint32_t count)
{
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

static bool is_id(json_t *value)
{
	return json_is_integer(value) && json_integer_value(value) >= 0 &&
	       json_integer_value(value) <= UINT32_MAX;
}

/* ---- mooncake: timestamp, input_length, output_length, hash_ids ---- */

static int read_mooncake(struct reader *reader, json_t *object, struct kvt_trace_request *request)
{
	json_t *ids = json_object_get(object, "hash_ids"), *id;
	char name[32];
	size_t i;
	int rc;

	rc = get_count(reader, object, "input_length", true, &request->input);
	if (!rc)
		rc = get_count(reader, object, "output_length", false, &request->output);
	if (!rc)
		rc = get_time(reader, object, "timestamp", 1e3, &request->at_us);
	if (rc)
		return rc;
	if (!json_is_array(ids))
		return complain(reader, "\"hash_ids\" must be an array of integers");
	rc = check_ids(reader, "hash_ids", json_array_size(ids), "input_length", request);
	if (rc)
		return rc;
	json_array_foreach(ids, i, id) {
		if (!is_id(id))
			return complain(reader, "\"hash_ids\" must hold integers from 0 to 2^32-1");
		rc = add_ids(reader->builder, request, (uint32_t)json_integer_value(id), 1);
		if (rc)
			return rc;
	}
	request->covered = (uint32_t)json_array_size(ids) * reader->block;
	/* Chats have no user: the second block is the first that differs between conversations. */
	id = json_array_get(ids, json_array_size(ids) > 1 ? 1 : 0);
	snprintf(name, sizeof(name), "%" PRIu64, id ? (uint64_t)json_integer_value(id) : 0);
	rc = number_of(&reader->sessions, name, &request->session);
	request->stream = request->session;
	reader->streams.n = reader->sessions.n;
	return rc;
}

/* ---- agent: s, a, t, in, out, tt, st, r ---- */

static int read_agent_runs(struct reader *reader, json_t *object,
			   struct kvt_trace_request *request)
{
	json_t *runs = json_object_get(object, "r"), *run;
	uint64_t n_ids = 0;
	size_t i;
	int rc;

	if (!json_is_array(runs))
		return complain(reader, "\"r\" must be an array of [first, count]");
	json_array_foreach(runs, i, run) {
		json_t *first = json_array_get(run, 0), *count = json_array_get(run, 1);

		if (!is_id(first) || !is_id(count) ||
		    json_integer_value(first) + json_integer_value(count) > UINT32_MAX)
			return complain(reader, "\"r\" must hold pairs [first, count]");
		n_ids += (uint64_t)json_integer_value(count);
		if (n_ids * reader->block > MAX_POSITIONS)
			return complain(reader, "\"r\" stands for too many positions");
		rc = add_ids(reader->builder, request, (uint32_t)json_integer_value(first),
			     (uint32_t)json_integer_value(count));
		if (rc)
			return rc;
	}
	request->covered = (uint32_t)n_ids * reader->block;
	return check_ids(reader, "r", n_ids, "in", request);
}

static int read_agent(struct reader *reader, json_t *object, struct kvt_trace_request *request)
{
	json_t *session = json_object_get(object, "s"), *agent = json_object_get(object, "a");
	uint32_t tools = 0, system = 0;
	char name[160];
	int rc;

	rc = get_count(reader, object, "in", true, &request->input);
	if (!rc)
		rc = get_count(reader, object, "out", false, &request->output);
	if (!rc)
		rc = get_count(reader, object, "tt", false, &tools);
	if (!rc)
		rc = get_count(reader, object, "st", false, &system);
	if (!rc)
		rc = get_time(reader, object, "t", 1e6, &request->at_us);
	if (!rc)
		rc = read_agent_runs(reader, object, request);
	if (rc)
		return rc;
	if (!json_is_integer(session))
		return complain(reader, "\"s\" must be the session's number");
	snprintf(name, sizeof(name), "%" PRIu64, (uint64_t)json_integer_value(session));
	rc = number_of(&reader->sessions, name, &request->session);
	if (rc)
		return rc;
	request->scope = request->session;
	snprintf(name, sizeof(name), "%" PRIu64 "/%.100s", (uint64_t)json_integer_value(session),
		 json_is_string(agent) ? json_string_value(agent) : "");
	rc = number_of(&reader->streams, name, &request->stream);
	if (rc)
		return rc;
	snprintf(name, sizeof(name), "%u/%u", tools, system);
	request->head = tools + system;
	return number_of(&reader->heads, name, &request->head_id);
}

/* ---- jsonl: keys or text, output, session, t ---- */

static int read_keys(struct reader *reader, json_t *keys, struct kvt_trace_request *request)
{
	json_t *key;
	size_t i;
	int rc;

	json_array_foreach(keys, i, key) {
		json_t *first = json_array_get(key, 0), *count = json_array_get(key, 1);

		if (is_id(key)) {
			first = key;
			count = NULL;
		} else if (!is_id(first) || !is_id(count) ||
			   json_integer_value(first) + json_integer_value(count) > UINT32_MAX) {
			return complain(reader, "\"keys\" must hold integers or [first, count]");
		}
		rc = add_ids(reader->builder, request, (uint32_t)json_integer_value(first),
			     count ? (uint32_t)json_integer_value(count) : 1);
		if (rc)
			return rc;
		request->input += count ? (uint32_t)json_integer_value(count) : 1;
		if (request->input > MAX_POSITIONS)
			return complain(reader, "too many keys");
	}
	return 0;
}

/* Read text, one key a byte: enough to find prefixes without a tokenizer. */
static int read_text(struct reader *reader, const char *text, struct kvt_trace_request *request)
{
	int rc = 0;

	for (const unsigned char *at = (const unsigned char *)text; *at && !rc; at++) {
		rc = add_ids(reader->builder, request, *at, 1);
		request->input++;
	}
	return rc;
}

static int read_jsonl_content(struct reader *reader, json_t *object,
			      struct kvt_trace_request *request)
{
	static const char *const names[] = { "text", "prompt", "question" };
	json_t *value = json_object_get(object, "keys");
	size_t i;
	int rc;

	if (json_is_array(value))
		return read_keys(reader, value, request);
	for (i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		value = json_object_get(object, names[i]);
		if (json_is_string(value))
			return read_text(reader, json_string_value(value), request);
	}
	value = json_object_get(object, "turns");
	if (!json_is_array(value))
		return complain(reader, "needs \"keys\" (array) or \"text\", \"prompt\", "
					"\"question\" (string) or \"turns\" (array of strings)");
	for (i = 0; i < json_array_size(value); i++) {
		if (!json_is_string(json_array_get(value, i)))
			return complain(reader, "\"turns\" must hold strings");
		rc = read_text(reader, json_string_value(json_array_get(value, i)), request);
		if (rc)
			return rc;
	}
	return 0;
}

static int read_jsonl(struct reader *reader, json_t *object, struct kvt_trace_request *request)
{
	json_t *session = json_object_get(object, "session");
	char name[160];
	int rc;

	rc = read_jsonl_content(reader, object, request);
	if (!rc)
		rc = get_count(reader, object, "output", false, &request->output);
	if (!rc)
		rc = get_time(reader, object, "t", 1e6, &request->at_us);
	if (rc)
		return rc;
	request->covered = request->input;
	if (json_is_string(session))
		snprintf(name, sizeof(name), "s%.100s", json_string_value(session));
	else if (json_is_integer(session))
		snprintf(name, sizeof(name), "i%" PRIu64, (uint64_t)json_integer_value(session));
	else
		snprintf(name, sizeof(name), "line %u", reader->line);
	rc = number_of(&reader->sessions, name, &request->session);
	request->stream = request->session;
	reader->streams.n = reader->sessions.n;
	return rc;
}

/* ---- lines ---- */

/* Read one line, of any length, without its end. 1: a line, 0: EOF, or negative errno. */
static int next_line(struct reader *reader, gzFile file)
{
	size_t n = 0;
	int code;

	for (;;) {
		if (reader->text_bytes - n < 2) {
			size_t wanted = reader->text_bytes ? reader->text_bytes * 2 : 65536;
			char *larger = realloc(reader->text, wanted);

			if (!larger)
				return -ENOMEM;
			reader->text = larger;
			reader->text_bytes = wanted;
		}
		if (!gzgets(file, reader->text + n, (int)(reader->text_bytes - n)))
			break;
		n += strlen(reader->text + n);
		if (n && reader->text[n - 1] == '\n') {
			reader->text[n - 1] = 0;
			return 1;
		}
	}
	gzerror(file, &code);
	if (code != Z_OK && code != Z_STREAM_END)
		return complain(reader, "damaged gzip data");
	return n > 0;
}

static int read_line(struct reader *reader)
{
	struct kvt_trace_request request = { .user = KVT_TRACE_NONE, .previous = KVT_TRACE_NONE };
	json_error_t error;
	json_t *object;
	int rc;

	object = json_loads(reader->text, JSON_REJECT_DUPLICATES, &error);
	if (!object)
		return complain(reader, "not JSON: %.200s", error.text);
	request.line = reader->line;
	request.first_run = reader->builder->n_runs;
	if (!json_is_object(object))
		rc = complain(reader, "not a JSON object");
	else if (reader->format == KVT_TRACE_MOONCAKE)
		rc = read_mooncake(reader, object, &request);
	else if (reader->format == KVT_TRACE_AGENT)
		rc = read_agent(reader, object, &request);
	else
		rc = read_jsonl(reader, object, &request);
	json_decref(object);
	if (rc)
		return rc;
	if (request.head > request.input)
		request.head = request.input;
	if (request.covered < request.head)
		request.covered = request.head;
	if (request.covered > request.input)
		request.covered = request.input;
	return kvt_trace_builder_request(reader->builder, &request);
}

int kvt_trace_read(struct kvt_trace_builder *builder, const struct kvt_trace_options *options,
		   uint32_t block, char *why, size_t why_bytes)
{
	struct reader reader = {
		.builder = builder, .path = options->path, .format = options->format,
		.block = block, .why = why, .why_bytes = why_bytes,
	};
	gzFile file = gzopen(options->path, "rb");
	int rc;

	if (!file) {
		rc = errno ? -errno : -ENOMEM;
		snprintf(why, why_bytes, "%s: cannot open: %s", options->path, strerror(-rc));
		return rc;
	}
	gzbuffer(file, 1 << 17);
	while ((rc = next_line(&reader, file)) > 0) {
		if (reader.text[strspn(reader.text, " \t\r")]) {
			rc = read_line(&reader);
			if (rc)
				break;
		}
		reader.line++;
		if (options->progress && reader.line % LOOK_EVERY == 0 &&
		    kvt_progress_due(options->progress))
			kvt_progress_print(options->progress, "%s: %u lines read", options->path,
					   reader.line);
	}
	gzclose(file);
	builder->n_sessions = reader.sessions.n;
	builder->n_streams = reader.streams.n;
	builder->n_heads = reader.heads.n;
	json_decref(reader.sessions.numbers);
	json_decref(reader.streams.numbers);
	json_decref(reader.heads.numbers);
	free(reader.text);
	if (!rc && !builder->n_requests) {
		snprintf(why, why_bytes, "%s: holds no request. A line of this format: %s",
			 options->path, examples[options->format]);
		return -EINVAL;
	}
	return rc;
}
