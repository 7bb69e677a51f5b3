/* SPDX-License-Identifier: Apache-2.0 */

/* Prompts in full: keys, texts, requests of the OpenAI API, recorded conversations.
 *
 * Input: one object of the file. Invariants: a byte of text is a key, so equal beginnings of texts
 * give equal keys; a message begins with a key of its role, which is no byte. Caller: read.c. */

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lab/trace/reader.h"

#define N_ELEMENTS(array) (sizeof(array) / sizeof((array)[0]))

/* Roles as APIs and ShareGPT name them. A message's first key is 256 and its row's number. */
static const char *const roles[][6] = {
	{ "system", "developer" }, { "user", "human" },
	{ "assistant", "gpt", "chatgpt", "bing", "bard", "model" },
	{ "tool", "function", "observation" },
};
enum { SYSTEM = 0, ASSISTANT = 2 };
/* Members of a message, and of a part of its content. */
static const char *const of_message[] = { "role", "from", "content", "value", "tool_calls", NULL };
static const char *const of_part[] = { "type", "text", NULL };

/* Look up the first of these members that a message has. */
static json_t *first_of(json_t *object, const char *const names[], size_t n)
{
	json_t *value = NULL;

	for (size_t i = 0; i < n && !value; i++)
		value = json_object_get(object, names[i]);
	return json_is_null(value) ? NULL : value;
}

/* The same of the line's object, where it counts as used. want_array: of what is an array, or is a
 * string. */
static json_t *take_first(struct kvt_reader *reader, json_t *object, const char *const names[],
			  size_t n, bool want_array, const char **ret_name)
{
	for (size_t i = 0; i < n; i++) {
		json_t *value = json_object_get(object, names[i]);

		*ret_name = names[i];
		if (want_array ? json_is_array(value) : json_is_string(value))
			return kvt_reader_take(reader, object, names[i]);
	}
	return NULL;
}

static int add_keys(struct kvt_reader *reader, struct kvt_trace_request *request, uint32_t first,
		    uint32_t count)
{
	if (count > KVT_TRACE_MAX_POSITIONS - request->input)
		return kvt_reader_complain(reader, "too many keys");
	request->input += count;
	return kvt_reader_ids(reader, request, first, count);
}

/* Only "keys" have ranges: elsewhere a list of two is a prompt of two. */
static int read_keys(struct kvt_reader *reader, json_t *keys, const char *name,
		     struct kvt_trace_request *request)
{
	bool ranges = strcmp(name, "keys") == 0;
	json_t *key;
	size_t i;
	int rc;

	json_array_foreach(keys, i, key) {
		json_t *first = json_array_get(key, 0), *count = json_array_get(key, 1);

		if (kvt_reader_is_id(key)) {
			first = key;
			count = NULL;
		} else if (!ranges && (json_is_array(key) || json_is_string(key))) {
			return kvt_reader_complain(reader, "\"%s\" holds several prompts: give "
						   "each a line of its own", name);
		} else if (!ranges || json_array_size(key) != 2 ||
			   !kvt_reader_is_id(first) || !kvt_reader_is_id(count) ||
			   json_integer_value(first) + json_integer_value(count) > UINT32_MAX) {
			return kvt_reader_complain(reader, "\"%s\" must hold integers from 0 to "
						   "2^32-1%s", name,
						   ranges ? ", or [first, count]" : "");
		}
		rc = add_keys(reader, request, (uint32_t)json_integer_value(first),
			      count ? (uint32_t)json_integer_value(count) : 1);
		if (rc)
			return rc;
	}
	return 0;
}

static int read_bytes(struct kvt_reader *reader, const char *text, size_t bytes,
		      struct kvt_trace_request *request)
{
	int rc = 0;

	reader->texts = true;
	for (size_t i = 0; i < bytes && !rc; i++)
		rc = add_keys(reader, request, (unsigned char)text[i], 1);
	return rc;
}

static int read_text(struct kvt_reader *reader, const json_t *text,
		     struct kvt_trace_request *request)
{
	return read_bytes(reader, json_string_value(text), json_string_length(text), request);
}

/* Read what models see as text of their template: definitions of tools, calls. */
static int read_dump(struct kvt_reader *reader, const json_t *value,
		     struct kvt_trace_request *request)
{
	char *text;
	int rc;

	if (!value || json_is_null(value))
		return 0;
	text = json_dumps(value, JSON_COMPACT | JSON_SORT_KEYS | JSON_ENCODE_ANY);
	if (!text)
		return -ENOMEM;
	rc = read_bytes(reader, text, strlen(text), request);
	free(text);
	return rc;
}

/* ---- messages ---- */

static const char *role_text(json_t *message)
{
	static const char *const names[] = { "role", "from" };

	return json_string_value(first_of(message, names, N_ELEMENTS(names)));
}

/* The row of a message's role; behind the last one: it is none. */
static uint32_t role_of(json_t *message)
{
	const char *role = role_text(message);

	for (uint32_t row = 0; role && row < N_ELEMENTS(roles); row++)
		for (size_t i = 0; i < N_ELEMENTS(roles[row]) && roles[row][i]; i++)
			if (strcmp(role, roles[row][i]) == 0)
				return row;
	return N_ELEMENTS(roles);
}

/* Read a message's content: a text, or parts with texts. */
static int read_parts(struct kvt_reader *reader, json_t *content,
		      struct kvt_trace_request *request)
{
	json_t *part;
	size_t i;
	int rc = 0;

	if (json_is_string(content))
		return read_text(reader, content, request);
	json_array_foreach(content, i, part) {
		json_t *text = json_object_get(part, "text");

		if (!json_is_string(text))
			return kvt_reader_complain(reader, "a part of a message has no \"text\": "
						   "images and sounds have no known length");
		kvt_reader_unread(reader, part, "content[].", of_part);
		rc = read_text(reader, text, request);
		if (rc)
			break;
	}
	return rc;
}

static int read_message(struct kvt_reader *reader, json_t *message,
			struct kvt_trace_request *request)
{
	static const char *const names[] = { "content", "value" };
	json_t *content = first_of(message, names, N_ELEMENTS(names));
	uint32_t role = role_of(message);
	int rc;

	if (!role_text(message) ||
	    (content && !json_is_string(content) && !json_is_array(content)))
		return kvt_reader_complain(reader, "a message must have \"role\" and \"content\", "
						   "or \"from\" and \"value\"");
	if (role == N_ELEMENTS(roles))
		return kvt_reader_complain(reader, "a message's role is \"%.60s\": give system, "
					   "user, assistant or tool", role_text(message));
	kvt_reader_unread(reader, message, "messages[].", of_message);
	rc = add_keys(reader, request, 256 + role, 1);
	if (!rc)
		rc = read_parts(reader, content, request);
	return rc ? rc : read_dump(reader, json_object_get(message, "tool_calls"), request);
}

/* Add a request for what the conversation is so far; it may get longer. */
static int add_turn(struct kvt_reader *reader, const struct kvt_trace_request *so_far)
{
	struct kvt_trace_request request = *so_far;

	request.covered = request.input;
	return kvt_reader_add(reader, &request);
}

/* Add a request that ends before an answer. It and the next share their runs: `covered` ends it. */
static int read_answer(struct kvt_reader *reader, json_t *message,
		       struct kvt_trace_request *request)
{
	struct kvt_trace_request asked = *request;
	int rc = read_message(reader, message, request);

	asked.output = request->input - asked.input;
	return rc ? rc : add_turn(reader, &asked);
}

/* Read messages. If the last is the model's they are a recording, with a request for each answer;
 * else they are one request. */
static int read_messages(struct kvt_reader *reader, json_t *messages,
			 struct kvt_trace_request *request)
{
	size_t i, n = json_array_size(messages);
	bool recorded = n && role_of(json_array_get(messages, n - 1)) == ASSISTANT;
	json_t *message;
	int rc;

	if (!n)
		return 0;
	json_array_foreach(messages, i, message) {
		if (recorded && i && role_of(message) == ASSISTANT)
			rc = read_answer(reader, message, request);
		else
			rc = read_message(reader, message, request);
		if (rc)
			return rc;
	}
	return recorded ? 0 : add_turn(reader, request);
}

/* ---- one object ---- */

static int read_strings(struct kvt_reader *reader, json_t *strings,
			struct kvt_trace_request *request)
{
	json_t *string;
	size_t i;
	int rc;

	json_array_foreach(strings, i, string) {
		if (!json_is_string(string))
			return kvt_reader_complain(reader, "\"turns\" must hold strings");
		rc = read_text(reader, string, request);
		if (rc)
			return rc;
	}
	return 0;
}

/* Read a system prompt that stands beside the messages: it is the first of them. */
static int read_system(struct kvt_reader *reader, json_t *system,
		       struct kvt_trace_request *request)
{
	int rc;

	if (!system)
		return 0;
	if (!json_is_string(system) && !json_is_array(system))
		return kvt_reader_complain(reader, "\"system\" must be a text");
	rc = add_keys(reader, request, 256 + SYSTEM, 1);
	return rc ? rc : read_parts(reader, system, request);
}

/* Read the prompt and add its requests. */
static int read_content(struct kvt_reader *reader, json_t *object,
			struct kvt_trace_request *request)
{
	static const char *const keys[] = { "keys", "prompt_token_ids", "input_ids", "prompt" };
	static const char *const texts[] = { "text", "prompt", "question" };
	static const char *const chats[] = { "messages", "conversations", "conversation" };
	static const char *const turns[] = { "turns" };
	const char *name;
	json_t *value = take_first(reader, object, keys, N_ELEMENTS(keys), true, &name);
	int rc;

	if (value) {
		rc = read_keys(reader, value, name, request);
		return rc ? rc : add_turn(reader, request);
	}
	value = take_first(reader, object, texts, N_ELEMENTS(texts), false, &name);
	if (value) {
		rc = read_text(reader, value, request);
		return rc ? rc : add_turn(reader, request);
	}
	value = take_first(reader, object, turns, 1, true, &name);
	if (value) {
		rc = read_strings(reader, value, request);
		return rc ? rc : add_turn(reader, request);
	}
	value = take_first(reader, object, chats, N_ELEMENTS(chats), true, &name);
	if (!value)
		return kvt_reader_complain(reader, "needs \"keys\" (array), \"prompt\", \"text\" "
			"or \"question\" (string), \"turns\" (strings), or \"messages\" or "
			"\"conversations\" (objects)");
	rc = read_dump(reader, kvt_reader_take(reader, object, "tools"), request);
	if (!rc)
		rc = read_system(reader, kvt_reader_take(reader, object, "system"), request);
	return rc ? rc : read_messages(reader, value, request);
}

int kvt_read_jsonl(struct kvt_reader *reader, json_t *object)
{
	static const char *const outputs[] = { "output", "output_tokens", "output_length",
					       "max_completion_tokens", "max_tokens" };
	struct kvt_trace_request request = kvt_reader_request(reader);
	json_t *session = kvt_reader_take(reader, object, "session");
	json_t *body = json_object_get(object, "body"); /* in a line of a batch: the request */
	bool batch = json_is_object(body);
	char name[160];
	int rc = 0;

	if (!session)
		session = kvt_reader_take(reader, object, "session_id");
	if (batch) {
		kvt_reader_take(reader, object, "body");
		kvt_reader_unread(reader, object, "", NULL);
		object = body;
		reader->n_used = 0;
	}
	for (size_t i = N_ELEMENTS(outputs); i-- > 0 && !rc;)
		rc = kvt_reader_count(reader, object, outputs[i], false, &request.output);
	if (!rc)
		rc = kvt_reader_time(reader, object, "t", 1e6, &request.at_us);
	if (!rc)
		rc = kvt_reader_time(reader, object, "timestamp", 1e3, &request.at_us);
	if (rc)
		return rc;
	if (json_is_string(session))
		snprintf(name, sizeof(name), "s%.100s", json_string_value(session));
	else if (json_is_integer(session))
		snprintf(name, sizeof(name), "i%" PRIu64, (uint64_t)json_integer_value(session));
	else
		snprintf(name, sizeof(name), "object %u", reader->n_objects);
	rc = kvt_reader_number(&reader->sessions, name, &request.session);
	request.stream = request.session;
	if (!rc)
		rc = read_content(reader, object, &request);
	kvt_reader_unread(reader, object, batch ? "body." : "", NULL);
	return rc;
}
