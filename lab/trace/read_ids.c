/* SPDX-License-Identifier: Apache-2.0 */

/* Formats that name blocks by ids: mooncake and agent.
 *
 * Input: one object of the file. Invariant: ids fit the length of their request. Caller: read.c. */

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

#include "lab/trace/reader.h"

static bool fits(uint64_t n_ids, uint64_t block, uint32_t positions)
{
	return n_ids * block < positions + block && positions < (n_ids + 1) * block;
}

/* Refuse ids that are not one for each block, with or without the last one that is not full:
 * with the ids of another block, positions would be equal that never were. */
static int check_ids(struct kvt_reader *reader, const char *name, uint64_t n_ids,
		     const char *length, const struct kvt_trace_request *request)
{
	uint32_t floor = request->input / reader->block;
	uint64_t block = 1;
	char cure[64] = "";

	if (fits(n_ids, reader->block, request->input))
		return 0;
	while (block <= KVT_TRACE_MAX_POSITIONS && !fits(n_ids, block, request->input))
		block *= 2;
	if (block <= KVT_TRACE_MAX_POSITIONS)
		snprintf(cure, sizeof(cure), "; --block-size %" PRIu64 " would fit", block);
	return kvt_reader_complain(reader, "\"%s\" has %" PRIu64 " ids for %u positions (\"%s\"): "
				   "with %u an id they are %u or %u%s", name, n_ids,
				   request->input, length, reader->block, floor, floor + 1, cure);
}

/* ---- mooncake: timestamp, input_length, output_length, hash_ids ---- */

static int read_hash_ids(struct kvt_reader *reader, json_t *ids, struct kvt_trace_request *request)
{
	json_t *id;
	size_t i;
	int rc;

	if (!json_is_array(ids))
		return kvt_reader_complain(reader, "\"hash_ids\" must be an array of integers");
	rc = check_ids(reader, "hash_ids", json_array_size(ids), "input_length", request);
	if (rc)
		return rc;
	json_array_foreach(ids, i, id) {
		if (!kvt_reader_is_id(id))
			return kvt_reader_complain(reader, "\"hash_ids\" must hold integers from "
							   "0 to 2^32-1");
		rc = kvt_reader_ids(reader, request, (uint32_t)json_integer_value(id), 1);
		if (rc)
			return rc;
	}
	request->covered = (uint32_t)json_array_size(ids) * reader->block;
	return 0;
}

int kvt_read_mooncake(struct kvt_reader *reader, json_t *object)
{
	struct kvt_trace_request request = kvt_reader_request(reader);
	json_t *ids = kvt_reader_take(reader, object, "hash_ids"), *id;
	char name[32];
	int rc;

	rc = kvt_reader_count(reader, object, "input_length", true, &request.input);
	if (!rc)
		rc = kvt_reader_count(reader, object, "output_length", false, &request.output);
	if (!rc)
		rc = kvt_reader_time(reader, object, "timestamp", 1e3, &request.at_us);
	if (!rc)
		rc = read_hash_ids(reader, ids, &request);
	if (rc)
		return rc;
	/* Chats have no user: the second block is the first that differs between conversations. */
	id = json_array_get(ids, json_array_size(ids) > 1 ? 1 : 0);
	snprintf(name, sizeof(name), "%" PRIu64, id ? (uint64_t)json_integer_value(id) : 0);
	rc = kvt_reader_number(&reader->sessions, name, &request.session);
	request.stream = request.session;
	kvt_reader_unread(reader, object, "", NULL);
	return rc ? rc : kvt_reader_add(reader, &request);
}

/* ---- agent: s, a, t, in, out, tt, st, r ---- */

static int read_runs(struct kvt_reader *reader, json_t *object, struct kvt_trace_request *request)
{
	json_t *runs = kvt_reader_take(reader, object, "r"), *run;
	uint64_t n_ids = 0;
	size_t i;
	int rc;

	if (!json_is_array(runs))
		return kvt_reader_complain(reader, "\"r\" must be an array of [first, count]");
	json_array_foreach(runs, i, run) {
		json_t *first = json_array_get(run, 0), *count = json_array_get(run, 1);

		if (!kvt_reader_is_id(first) || !kvt_reader_is_id(count) ||
		    json_integer_value(first) + json_integer_value(count) > UINT32_MAX)
			return kvt_reader_complain(reader, "\"r\" must hold pairs [first, count]");
		n_ids += (uint64_t)json_integer_value(count);
		if (n_ids * reader->block > KVT_TRACE_MAX_POSITIONS)
			return kvt_reader_complain(reader, "\"r\" stands for too many positions");
		rc = kvt_reader_ids(reader, request, (uint32_t)json_integer_value(first),
				    (uint32_t)json_integer_value(count));
		if (rc)
			return rc;
	}
	request->covered = (uint32_t)n_ids * reader->block;
	return check_ids(reader, "r", n_ids, "in", request);
}

int kvt_read_agent(struct kvt_reader *reader, json_t *object)
{
	json_t *session = kvt_reader_take(reader, object, "s");
	json_t *agent = kvt_reader_take(reader, object, "a");
	struct kvt_trace_request request = kvt_reader_request(reader);
	uint32_t tools = 0, system = 0;
	char name[160];
	int rc;

	rc = kvt_reader_count(reader, object, "in", true, &request.input);
	if (!rc)
		rc = kvt_reader_count(reader, object, "out", false, &request.output);
	if (!rc)
		rc = kvt_reader_count(reader, object, "tt", false, &tools);
	if (!rc)
		rc = kvt_reader_count(reader, object, "st", false, &system);
	if (!rc)
		rc = kvt_reader_time(reader, object, "t", 1e6, &request.at_us);
	if (!rc)
		rc = read_runs(reader, object, &request);
	if (rc)
		return rc;
	if (!json_is_integer(session))
		return kvt_reader_complain(reader, "\"s\" must be the session's number");
	snprintf(name, sizeof(name), "%" PRIu64, (uint64_t)json_integer_value(session));
	rc = kvt_reader_number(&reader->sessions, name, &request.session);
	if (rc)
		return rc;
	request.scope = request.session;
	snprintf(name, sizeof(name), "%" PRIu64 "/%.100s", (uint64_t)json_integer_value(session),
		 json_is_string(agent) ? json_string_value(agent) : "");
	rc = kvt_reader_number(&reader->streams, name, &request.stream);
	if (rc)
		return rc;
	snprintf(name, sizeof(name), "%u/%u", tools, system);
	request.head = tools + system;
	rc = kvt_reader_number(&reader->heads, name, &request.head_id);
	kvt_reader_unread(reader, object, "", NULL);
	return rc ? rc : kvt_reader_add(reader, &request);
}
