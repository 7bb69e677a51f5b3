/* SPDX-License-Identifier: Apache-2.0 */

/* Trace files: the table of formats, objects of a file one by one, plain or gzip.
 *
 * Inputs: a file of JSON objects, one after the other or in one array. Invariant: errors name file,
 * line, field and the expected value; nothing of the file is trusted. Caller: trace.c. */

#include "lab/trace/read.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include "base/progress.h"
#include "lab/trace/reader.h"
#include "shm/size.h"

#define LOOK_EVERY 256 /* objects between two looks at the clock */

/* A line of each format, for those who gave another. */
#define MOONCAKE_LINE "{\"timestamp\": 0, \"input_length\": 1030, \"output_length\": 9, " \
		      "\"hash_ids\": [0, 1, 2]}"
#define AGENT_LINE "{\"s\": 1, \"a\": null, \"t\": 0, \"in\": 330, \"out\": 9, \"tt\": 64, " \
		   "\"st\": 36, \"r\": [[1, 5]]}"
#define JSONL_LINE "{\"keys\": [7, 8, [100, 3]], \"output\": 9} or {\"prompt\": \"...\"} or " \
		   "{\"messages\": [{\"role\": \"user\", \"content\": \"...\"}]}"
#define THIS_FORMAT "A line of this format: "

static const struct format {
	uint32_t format;
	uint32_t block;   /* positions per id, unless the caller says another number */
	const char *mark; /* no other format has this member; NULL: no format of the others */
	const char *expected;
	int (*read)(struct kvt_reader *reader, json_t *object);
} formats[] = {
	{ KVT_TRACE_MOONCAKE, 512, "hash_ids", THIS_FORMAT MOONCAKE_LINE, kvt_read_mooncake },
	{ KVT_TRACE_AGENT, 64, "r", THIS_FORMAT AGENT_LINE, kvt_read_agent },
	{ KVT_TRACE_JSONL, 1, NULL, THIS_FORMAT JSONL_LINE, kvt_read_jsonl },
};

static const char any_format[] = "A line of\nmooncake: " MOONCAKE_LINE "\nagent: " AGENT_LINE
				 "\njsonl: " JSONL_LINE;

/* Find a format's row. */
static const struct format *format_of(uint32_t format)
{
	const struct format *row = formats;

	while (row->format != format)
		row++;
	return row;
}

/* Find the format by a member that only it has. */
static const struct format *find_format(const json_t *object)
{
	const struct format *row = formats;

	while (row->mark && !json_object_get(object, row->mark))
		row++;
	return row;
}

/* ---- objects ---- */

/* Append a character to the object's text. */
static int keep(struct kvt_reader *reader, size_t n, int c)
{
	if (n == reader->text_bytes) {
		size_t wanted = n ? n * 2 : 65536;
		char *larger = realloc(reader->text, wanted);

		if (!larger)
			return -ENOMEM;
		reader->text = larger;
		reader->text_bytes = wanted;
	}
	reader->text[n] = (char)c;
	return 0;
}

static int next_character(struct kvt_reader *reader, gzFile file)
{
	int c = gzgetc(file);

	reader->next_line += c == '\n';
	return c;
}

/* Skip what may stand between two objects. Returns the first character of the next, or EOF. */
static int skip_to_object(struct kvt_reader *reader, gzFile file)
{
	bool first = !reader->n_objects;
	int c;

	for (;;) {
		c = next_character(reader, file);
		if ((c == '[' && first) || (c == ']' && reader->array)) {
			reader->array = c == '[';
			first = false;
		} else if (c == EOF || !strchr(reader->array ? " \t\r\n," : " \t\r\n", c)) {
			return c;
		}
	}
}

#define UTF16_CURE "UTF-16: convert it, iconv -f UTF-16 -t UTF-8"

/* Skip a byte order mark. Refuse what its first byte says is no UTF-8. */
static int read_head(struct kvt_reader *reader, gzFile file)
{
	int c = gzgetc(file);

	switch (c) {
	case 0xef:
		if (gzgetc(file) == 0xbb && gzgetc(file) == 0xbf)
			return 0;
		break;
	case 0xfe:
	case 0xff:
		return kvt_reader_complain(reader, UTF16_CURE);
	case '(':
		return kvt_reader_complain(reader, "zstd data: pipe it, zstd -dc FILE | "
						   "kvtlab ... -");
	case 0xfd:
		return kvt_reader_complain(reader, "xz data: pipe it, xz -dc FILE | kvtlab ... -");
	case 'B':
		return kvt_reader_complain(reader, "bzip2 data: pipe it, bzip2 -dc FILE | "
						   "kvtlab ... -");
	default:
		gzungetc(c, file);
		return 0;
	}
	return kvt_reader_complain(reader, "not a JSON object");
}

/* Read the text of one object, up to the brace that ends it. A line break in a string is an error
 * that JSON's parser names. Returns its bytes, 0 at EOF, or negative errno. */
static ssize_t next_object(struct kvt_reader *reader, gzFile file)
{
	uint32_t depth = 0;
	bool string = false, escaped = false;
	int c = skip_to_object(reader, file), code, rc;
	size_t n = 0;

	reader->line = reader->next_line;
	while (c != EOF) {
		if (c == '\0')
			return kvt_reader_complain(reader, UTF16_CURE);
		if (!n && c != '{')
			return kvt_reader_complain(reader, "not a JSON object");
		rc = keep(reader, n++, c);
		if (rc)
			return rc;
		if (string) {
			if (c == '\n')
				return (ssize_t)n;
			string = c != '"' || escaped;
			escaped = c == '\\' && !escaped;
		} else {
			string = c == '"';
			depth += c == '{' || c == '[';
			depth -= c == '}' || c == ']';
			if (!depth)
				return (ssize_t)n;
		}
		c = next_character(reader, file);
	}
	gzerror(file, &code);
	if (code != Z_OK && code != Z_STREAM_END)
		return kvt_reader_complain(reader, "%s", code == Z_BUF_ERROR ?
					   "the gzip data is cut short" : code == Z_ERRNO ?
					   strerror(errno) : "damaged gzip data");
	if (!n && reader->array)
		return kvt_reader_complain(reader, "the file ends inside its array");
	return (ssize_t)n;
}

/* Make numbers of integers above 64 bits, which are JSON, too: the last two digits become an
 * exponent. Where a reader wants an integer it still has none. */
static void shorten_integers(char *text, size_t bytes)
{
	bool string = false;
	size_t digits = 0;

	for (size_t i = 0; i < bytes; i++) {
		char c = text[i];

		if (string && c == '\\')
			i++;
		else if (c == '"')
			string = !string;
		if (!string && c >= '0' && c <= '9') {
			digits++;
			continue;
		}
		if (digits > 18 && !strchr(".eE", c) && !strchr(".eE", text[i - digits - 1]))
			memcpy(text + i - 2, "e2", 2);
		digits = 0;
	}
}

static json_t *parse(struct kvt_reader *reader, size_t bytes, json_error_t *error)
{
	const size_t flags = JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL;
	json_t *object = json_loadb(reader->text, bytes, flags, error);

	if (object || json_error_code(error) != json_error_numeric_overflow)
		return object;
	shorten_integers(reader->text, bytes);
	return json_loadb(reader->text, bytes, flags, error);
}

/* Refuse a line that holds only what is new in its session: read alone, it shares nothing. */
static int refuse_delta(struct kvt_reader *reader, json_t *object)
{
	const char *mode = json_string_value(kvt_reader_take(reader, object, "message_mode"));

	if (!json_is_number(json_object_get(object, "delay")) &&
	    (!mode || strcmp(mode, "delta") != 0))
		return 0;
	return kvt_reader_complain(reader, "a line with \"delay\" or \"message_mode\": \"delta\" "
				   "holds only what is new in its session: give each turn with "
				   "all that stands before it, and its time");
}

static int read_object(struct kvt_reader *reader, const struct format **format, size_t bytes)
{
	uint32_t n_requests = reader->builder->n_requests;
	json_error_t error;
	json_t *object = parse(reader, bytes, &error);
	int rc;

	if (!object)
		return kvt_reader_complain(reader, "not JSON: %.200s", error.text);
	reader->n_used = 0;
	if (!*format)
		*format = find_format(object);
	if (reader->n_objects || (*format)->mark)
		reader->expected = (*format)->expected;
	if (!reader->block)
		reader->block = (*format)->block;
	rc = refuse_delta(reader, object);
	if (!rc)
		rc = (*format)->read(reader, object);
	json_decref(object);
	reader->n_objects++;
	reader->n_empty += reader->builder->n_requests == n_requests;
	return rc;
}

/* Read all objects. *format: the file's, NULL: that of the first object. */
static int read_objects(struct kvt_reader *reader, gzFile file, const struct format **format,
			struct kvt_progress_line *progress)
{
	int rc = read_head(reader, file);
	ssize_t n;

	while (!rc && (n = next_object(reader, file)) != 0) {
		rc = n < 0 ? (int)n : read_object(reader, format, (size_t)n);
		if (progress && reader->n_objects % LOOK_EVERY == 0 && kvt_progress_due(progress))
			kvt_progress_print(progress, "%s: %u lines read", reader->path,
					   reader->n_objects);
	}
	if (!rc && !reader->builder->n_requests) {
		snprintf(reader->why, reader->why_bytes, "%s: holds no request. %s", reader->path,
			 reader->expected);
		rc = -EINVAL;
	}
	return rc;
}

/* Compose the sentence about what was not used. */
static void tell_unread(struct kvt_trace *trace, const struct kvt_reader *reader)
{
	size_t bytes = 0, n = json_object_size(reader->unread);
	const char *name, *comma = "";
	json_t *count;
	FILE *text;

	trace->empty = reader->n_empty;
	trace->texts = reader->texts;
	if (!n && !reader->n_empty)
		return;
	text = open_memstream(&trace->unread, &bytes);
	if (!text)
		return;
	fprintf(text, "%s: not used: ", reader->path);
	if (reader->n_empty) {
		fprintf(text, "%u object%s without a request", reader->n_empty,
			kvt_plural(reader->n_empty));
		comma = ", ";
	}
	json_object_foreach(reader->unread, name, count) {
		fprintf(text, "%s\"%s\" (%" PRIu64 ")", comma, name,
			(uint64_t)json_integer_value(count));
		comma = ", ";
	}
	fclose(text);
}

/* Count times from the earliest. */
static void count_from_first(struct kvt_trace_builder *builder)
{
	uint64_t first = UINT64_MAX;

	for (uint32_t i = 0; i < builder->n_requests; i++)
		if (builder->requests[i].at_us < first)
			first = builder->requests[i].at_us;
	for (uint32_t i = 0; i < builder->n_requests; i++)
		builder->requests[i].at_us -= first;
}

int kvt_trace_read(struct kvt_trace *trace, struct kvt_trace_builder *builder,
		   const struct kvt_trace_options *options, char *why, size_t why_bytes)
{
	const struct format *format = options->format == KVT_TRACE_ANY ? NULL :
				      format_of(options->format);
	struct kvt_reader reader = {
		.builder = builder, .path = options->path, .block = options->block, .why = why,
		.why_bytes = why_bytes, .expected = format ? format->expected : any_format,
	};
	bool piped = strcmp(options->path, "-") == 0;
	gzFile file = piped ? gzdopen(dup(STDIN_FILENO), "rb") : gzopen(options->path, "rb");
	struct stat there;
	int rc;

	if (file && !piped && stat(options->path, &there) == 0 && S_ISDIR(there.st_mode)) {
		gzclose(file);
		file = NULL;
		errno = EISDIR;
	}
	if (!file) {
		rc = errno ? -errno : -ENOMEM;
		snprintf(why, why_bytes, "%s: cannot open: %s", options->path, strerror(-rc));
		return rc;
	}
	gzbuffer(file, 1 << 17);
	rc = read_objects(&reader, file, &format, options->progress);
	gzclose(file);
	if (!rc && reader.since_1970)
		count_from_first(builder);
	tell_unread(trace, &reader);
	builder->n_sessions = reader.sessions.n;
	builder->n_streams = reader.streams.n ? reader.streams.n : reader.sessions.n;
	builder->n_heads = reader.heads.n;
	trace->format = rc ? options->format : format->format;
	trace->block = reader.block;
	json_decref(reader.sessions.numbers);
	json_decref(reader.streams.numbers);
	json_decref(reader.heads.numbers);
	json_decref(reader.unread);
	free(reader.text);
	return rc;
}
