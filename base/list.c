/* SPDX-License-Identifier: Apache-2.0 */
#include "base/list.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/number.h"
#include "base/text.h"

/* A line may have megabytes. */
#define SHOWN_BYTES 40u

static int number_u32(const char *text, size_t bytes, uint32_t *ret_value)
{
	uint64_t value;
	int rc = kvt_number_parse(text, bytes, UINT32_MAX, &value);

	if (rc == 0)
		*ret_value = (uint32_t)value;
	return rc;
}

int kvt_run_parse(const char *name, const char *item, size_t bytes, struct kvt_run *ret_run,
		  char *why, size_t why_bytes)
{
	int shown = (int)(bytes < SHOWN_BYTES ? bytes : SHOWN_BYTES);
	const char *dots = bytes >= 2 ? memmem(item, bytes, "..", 2) : NULL;
	const char *times = !dots && bytes ? memchr(item, 'x', bytes) : NULL;
	size_t head = dots ? (size_t)(dots - item) : times ? (size_t)(times - item) : bytes;
	struct kvt_run run = { .repeat = 1 };
	int rc = number_u32(item, head, &run.first);

	run.last = run.first;
	if (rc == 0 && dots)
		rc = number_u32(dots + 2, bytes - head - 2, &run.last);
	else if (rc == 0 && times)
		rc = number_u32(times + 1, bytes - head - 1, &run.repeat);
	if (rc == -ERANGE)
		snprintf(why, why_bytes, "%s: %.*s does not fit into 32 bits", name, shown, item);
	else if (rc)
		snprintf(why, why_bytes, "%s: '%.*s' is no value; allowed: N, N..M, NxTIMES", name,
			 shown, item);
	else if (run.last < run.first)
		snprintf(why, why_bytes, "%s: the range %.*s ends before it begins", name, shown,
			 item);
	if (rc || run.last < run.first)
		return -EINVAL;
	*ret_run = run;
	return 0;
}

/* A growing list of keys. */
struct keys {
	uint32_t *keys;
	uint32_t n;
	uint64_t room;
};

static void add(struct keys *keys, const struct kvt_run *run, uint64_t n)
{
	if (keys->n + n > keys->room) {
		keys->room = (keys->n + n) * 2;
		keys->keys = kvt_memory_grow(keys->keys, keys->room, sizeof(uint32_t));
	}
	for (uint64_t i = 0; i < n; i++)
		keys->keys[keys->n++] = run->repeat == 1 ? (uint32_t)(run->first + i) : run->first;
}

static int parse(const char *text, size_t bytes, uint32_t max_keys, struct keys *keys, char *why,
		 size_t why_bytes)
{
	const char *end = text + bytes;

	if (bytes > 0 && end[-1] == ',') {
		snprintf(why, why_bytes, "keys: ends with a comma");
		return -EINVAL;
	}
	while (text < end) {
		const char *comma = memchr(text, ',', (size_t)(end - text));
		size_t item = (size_t)((comma ? comma : end) - text);
		struct kvt_run run;
		uint64_t n;
		int rc = kvt_run_parse("keys", text, item, &run, why, why_bytes);

		if (rc)
			return rc;
		n = ((uint64_t)run.last - run.first + 1) * run.repeat;
		if (n > max_keys - keys->n) {
			snprintf(why, why_bytes, "keys: more than %u keys in one line", max_keys);
			return -EINVAL;
		}
		add(keys, &run, n);
		text += item + (comma ? 1 : 0);
	}
	return 0;
}

int kvt_keys_parse(const char *text, size_t bytes, uint32_t max_keys, uint32_t **ret_keys,
		   uint32_t *ret_n_keys, char *why, size_t why_bytes)
{
	struct keys keys = { .n = 0 };
	int rc = parse(text, bytes, max_keys, &keys, why, why_bytes);

	if (rc) {
		free(keys.keys);
		return rc;
	}
	*ret_keys = keys.keys;
	*ret_n_keys = keys.n;
	return 0;
}
