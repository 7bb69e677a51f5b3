/* SPDX-License-Identifier: Apache-2.0 */

/* The parser of `kvtlab script` lines: see script.h.
 *
 * Inputs: one line of text, the limit on keys. Invariants: needs no daemon and no earlier line; on
 * -EINVAL `why` has cause and cure and the line can be cleared. Callers: engine.c, the fuzzer. */

#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/list.h"
#include "base/namespace.h"
#include "base/number.h"
#include "base/text.h"
#include "lab/script/script.h"

#define BIT(e) (1u << KVT_PARAMETER_##e)
enum {
	P_NS = BIT(NS), P_ROOT = BIT(ROOT), P_KEYS = BIT(KEYS), P_PAGES = BIT(PAGES),
	P_SIDES = BIT(SIDES), P_LEASE = BIT(LEASE), P_HANDLE = BIT(HANDLE), P_EXTRA = BIT(EXTRA),
	P_COMPUTED = BIT(COMPUTED), P_N = BIT(N),
	P_PRIORITY = BIT(PRIORITY), P_TTL = BIT(TTL), P_FENCE = BIT(FENCE), P_SLOT = BIT(SLOT),
	P_VALUE = BIT(VALUE), P_MS = BIT(MS), P_LABEL = BIT(LABEL),
	P_KEYS_COUNT = BIT(KEYS_COUNT), P_LIST_COUNT = BIT(LIST_COUNT), P_DEADLINE = BIT(DEADLINE),
	P_POINT = BIT(POINT), P_MIN = BIT(MIN),
};

static const struct {
	const char *word;
	int op;
	uint32_t takes, needs;
	bool flags;
} verbs[] = {
#define ROW(e, w, o, t, n, f) { w, o, t, n, f },
	KVT_SCRIPT_VERBS(ROW)
#undef ROW
};

static const struct {
	const char *name;
	const char *allowed;
} parameters[] = {
#define ROW(e, n, a) { n, a },
	KVT_SCRIPT_PARAMETERS(ROW)
#undef ROW
};

static const struct {
	const char *word;
	uint32_t flag;
} flag_words[] = {
	{ "lock", KVT_F_LOCK },       { "no_touch", KVT_F_NO_TOUCH }, { "chunked", KVT_F_CHUNKED },
	{ "keep", KVT_F_KEEP },       { "full", KVT_F_FULL },
	{ "force_miss", KVT_F_FORCE_MISS }, { "wait", KVT_F_WAIT },
	{ "no_wait", KVT_F_NO_WAIT },
	{ "shorter", KVT_F_SHORTER }, { "no_list", KVT_F_NO_LIST },
	{ "own_stream", KVT_F_OWN_STREAM }, { "no_pages", KVT_F_NO_PAGES },
	{ "uncounted", KVT_F_UNCOUNTED }, { "damaged", KVT_F_DAMAGED },
};

/* The text to parse, and the place of its error message. */
struct reader {
	const char *at, *end;
	struct kvt_script_line *line;
	uint32_t max_keys;
	char *why;
	size_t why_bytes;
};

struct word {
	const char *at;
	size_t n;
};

static int refuse(struct reader *reader, const char *format, ...)
	__attribute__((format(printf, 2, 3)));
static int refuse(struct reader *reader, const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(reader->why, reader->why_bytes, format, arguments);
	va_end(arguments);
	return -EINVAL;
}

/* Bound the part of a word that a message shows: a line may have megabytes. */
static int shown(struct word word)
{
	return word.n < 40 ? (int)word.n : 40;
}

static bool word_is(struct word word, const char *text)
{
	return word.n == strlen(text) && memcmp(word.at, text, word.n) == 0;
}

static bool word_is_name(struct word word)
{
	if (word.n == 0 || word.n > 63 || !(isalpha((unsigned char)*word.at) || *word.at == '_'))
		return false;
	for (size_t i = 1; i < word.n; i++)
		if (!isalnum((unsigned char)word.at[i]) && !strchr("_-.", word.at[i]))
			return false;
	/* strchr also matches the terminating NUL. */
	return memchr(word.at, '\0', word.n) == NULL;
}

static bool word_next(struct reader *reader, struct word *ret_word)
{
	while (reader->at < reader->end && isspace((unsigned char)*reader->at))
		reader->at++;
	ret_word->at = reader->at;
	while (reader->at < reader->end && !isspace((unsigned char)*reader->at))
		reader->at++;
	ret_word->n = (size_t)(reader->at - ret_word->at);
	return ret_word->n > 0;
}

/* Cut `word` at the first `separator`. Returns the part before; `word` keeps the rest. */
static struct word word_cut(struct word *word, char separator)
{
	const char *cut = word->n ? memchr(word->at, separator, word->n) : NULL;
	struct word head = { word->at, cut ? (size_t)(cut - word->at) : word->n };
	size_t used = cut ? head.n + 1 : word->n;

	word->at += used;
	word->n -= used;
	return head;
}

static int number_u32(struct word word, uint32_t *ret_value)
{
	uint64_t value;
	int rc = kvt_number_parse(word.at, word.n, UINT32_MAX, &value);

	if (rc == 0)
		*ret_value = (uint32_t)value;
	return rc;
}

/* In pages= of sides=: let go of what is there. */
#define LET "let"

/* Parse one item of pages=. */
static int run_parse(struct reader *reader, struct word item, struct kvt_script_run *ret_run)
{
	struct kvt_run run;
	int rc = kvt_run_parse("pages", item.at, item.n, &run, reader->why, reader->why_bytes);

	if (rc == 0)
		*ret_run = (struct kvt_script_run){ NULL, run.first, run.last, run.repeat };
	return rc;
}

/* Parse NAME or NAME[I] or NAME[I..J]. */
static int slice_parse(struct reader *reader, struct word item, struct kvt_script_run *ret_run)
{
	struct word inside = item, name = word_cut(&inside, '[');
	struct kvt_script_run run = { NULL, 0, UINT32_MAX, 1 };
	int rc;

	if (!word_is_name(name))
		return refuse(reader, "pages: '%.*s' is no name; a name is a letter, then letters, "
			      "digits, '_', '-', '.'", shown(name), name.at);
	if (name.n < item.n) {
		if (inside.n < 2 || inside.at[inside.n - 1] != ']')
			return refuse(reader, "pages: a slice is NAME[I] or NAME[FIRST..LAST]");
		inside.n--;
		rc = run_parse(reader, inside, &run);
		if (rc)
			return rc;
		if (run.repeat != 1)
			return refuse(reader, "pages: a slice is NAME[I] or NAME[FIRST..LAST]");
	}
	run.name = kvt_text_copy(name.at, name.n);
	*ret_run = run;
	return 0;
}

static int pages_parse(struct reader *reader, struct word value)
{
	struct kvt_script_line *line = reader->line;
	uint32_t room = 0;

	if (value.n > 0 && value.at[value.n - 1] == ',')
		return refuse(reader, "pages: ends with a comma");
	while (value.n > 0) {
		struct word item = word_cut(&value, ',');
		struct kvt_script_run run;
		bool digits = item.n > 0 && isdigit((unsigned char)*item.at);
		int rc = 0;

		if (word_is(item, LET))
			run = (struct kvt_script_run){ NULL, KVT_SIDE_LET, KVT_SIDE_LET, 1 };
		else
			rc = digits ? run_parse(reader, item, &run)
				    : slice_parse(reader, item, &run);
		if (rc)
			return rc;
		if (line->n_page_runs == room) {
			room = room * 2 + 16;
			line->pages = kvt_memory_grow(line->pages, room, sizeof(*line->pages));
		}
		line->pages[line->n_page_runs++] = run;
	}
	return 0;
}

/* Parse PAGE:KIND or FIRST..LAST:KIND. */
static int places_parse(struct reader *reader, struct word item, uint32_t *room)
{
	struct kvt_script_line *line = reader->line;
	struct word kind = item, pages = word_cut(&kind, ':');
	struct kvt_run run;
	uint32_t number;
	int rc = kvt_run_parse("sides", pages.at, pages.n, &run, reader->why, reader->why_bytes);

	if (rc)
		return rc;
	if (number_u32(kind, &number) || number >= KVT_MAX_SIDES || run.repeat != 1 ||
	    run.last > UINT32_MAX / KVT_MAX_SIDES)
		return refuse(reader, "sides: '%.*s' is not PAGE:KIND (kind 0 to %u)",
			      shown(item), item.at, KVT_MAX_SIDES - 1);
	if (run.last - run.first >= reader->max_keys - line->n_places)
		return refuse(reader, "sides: more than %u places", reader->max_keys);
	for (uint32_t page = run.first; page <= run.last; page++) {
		if (line->n_places == *room) {
			*room = *room * 2 + 16;
			line->places = kvt_memory_grow(line->places, *room, sizeof(*line->places));
		}
		line->places[line->n_places++] = KVT_SIDE_PLACE(page, number);
	}
	return 0;
}

static int sides_parse(struct reader *reader, struct word value)
{
	uint32_t room = 0;
	int rc = 0;

	while (value.n > 0 && rc == 0)
		rc = places_parse(reader, word_cut(&value, ','), &room);
	return rc;
}

/* Parse a name, or `n` numbers with colons between. */
static int reference_parse(struct reader *reader, int parameter, struct word value, size_t n,
			   struct kvt_script_reference *ret_reference)
{
	struct word rest = value;

	if (word_is_name(value)) {
		ret_reference->name = kvt_text_copy(value.at, value.n);
		return 0;
	}
	for (size_t i = 0; i < n; i++) {
		struct word head = word_cut(&rest, ':');
		bool last = rest.at == head.at + head.n;

		if (number_u32(head, &ret_reference->number[i]) || last != (i == n - 1))
			return refuse(reader, "%s: '%.*s' is not %s", parameters[parameter].name,
				      shown(value), value.at, parameters[parameter].allowed);
	}
	return 0;
}

static int fence_parse(struct reader *reader, struct word value)
{
	struct kvt_fence *fence = &reader->line->fence;
	struct word rest = value, slot = word_cut(&rest, ':');

	if (word_is(value, "idle"))
		return 0;
	if (number_u32(slot, &fence->slot) || fence->slot > UINT8_MAX ||
	    kvt_number_parse(rest.at, rest.n, UINT64_MAX, &fence->value))
		return refuse(reader, "fence: '%.*s' is not SLOT:VALUE (slot 0 to %u) or idle",
			      shown(value), value.at, KVT_FENCE_WORDS - 1);
	return 0;
}

static int ns_parse(struct reader *reader, struct word value)
{
	struct kvt_script_line *line = reader->line;
	uint64_t digest[2];

	if (value.n > 1 && *value.at == '#') {
		line->ns_number = true;
		if (kvt_number_parse(value.at + 1, value.n - 1, UINT32_MAX,
				     &line->number[KVT_PARAMETER_NS]))
			return refuse(reader, "ns: '%.*s' is not %s", shown(value), value.at,
				      parameters[KVT_PARAMETER_NS].allowed);
		return 0;
	}
	line->ns = kvt_text_copy(value.at, value.n);
	return kvt_namespace_parse(line->ns, digest, reader->why, reader->why_bytes);
}

static int priority_parse(struct reader *reader, struct word value)
{
	bool negative = value.n > 0 && *value.at == '-';
	uint64_t number;

	if (kvt_number_parse(value.at + negative, value.n - negative, INT32_MAX, &number))
		return refuse(reader, "priority: '%.*s' is not %s", shown(value), value.at,
			      parameters[KVT_PARAMETER_PRIORITY].allowed);
	reader->line->priority = negative ? -(int32_t)number : (int32_t)number;
	return 0;
}

static int plain_number_parse(struct reader *reader, int parameter, struct word value)
{
	bool wide = parameter == KVT_PARAMETER_VALUE || parameter == KVT_PARAMETER_ROOT;
	uint64_t max = wide ? UINT64_MAX
		       : parameter == KVT_PARAMETER_MS ? UINT64_MAX / 1000000 : UINT32_MAX;

	if (kvt_number_parse(value.at, value.n, max, &reader->line->number[parameter]))
		return refuse(reader, "%s: '%.*s' is not %s up to %llu", parameters[parameter].name,
			      shown(value), value.at, parameters[parameter].allowed,
			      (unsigned long long)max);
	return 0;
}

static int value_parse(struct reader *reader, int parameter, struct word value)
{
	struct kvt_script_line *line = reader->line;

	switch (parameter) {
	case KVT_PARAMETER_NS:
		return ns_parse(reader, value);
	case KVT_PARAMETER_KEYS:
		return kvt_keys_parse(value.at, value.n, reader->max_keys, &line->keys,
				      &line->n_keys, reader->why, reader->why_bytes);
	case KVT_PARAMETER_PAGES:
		return pages_parse(reader, value);
	case KVT_PARAMETER_SIDES:
		return sides_parse(reader, value);
	case KVT_PARAMETER_LEASE:
		return reference_parse(reader, parameter, value, 2, &line->lease);
	case KVT_PARAMETER_HANDLE:
		return reference_parse(reader, parameter, value, 3, &line->handle);
	case KVT_PARAMETER_FENCE:
		return fence_parse(reader, value);
	case KVT_PARAMETER_PRIORITY:
		return priority_parse(reader, value);
	case KVT_PARAMETER_POINT:
		if (!word_is(value, "junction"))
			return plain_number_parse(reader, parameter, value);
		line->number[parameter] = KVT_POINT_JUNCTION;
		return 0;
	case KVT_PARAMETER_LABEL:
		line->label = kvt_text_copy(value.at, value.n);
		return 0;
	default:
		return plain_number_parse(reader, parameter, value);
	}
}

/* List the names in a mask of parameters, for messages. */
static const char *names_of(uint32_t mask, char *buffer, size_t bytes)
{
	size_t used = 0;

	buffer[0] = '\0';
	for (int i = 0; i < KVT_PARAMETER_COUNT && used < bytes; i++)
		if (mask >> i & 1)
			used += (size_t)snprintf(buffer + used, bytes - used, "%s%s=",
						 used ? " " : "", parameters[i].name);
	return mask ? buffer : "no values";
}

static int argument_parse(struct reader *reader, struct word word)
{
	struct kvt_script_line *line = reader->line;
	struct word value = word, name = word_cut(&value, '=');
	char buffer[256];

	if (name.n == word.n) {
		for (size_t i = 0; i < sizeof(flag_words) / sizeof(flag_words[0]); i++) {
			if (!word_is(word, flag_words[i].word))
				continue;
			if (!verbs[line->verb].flags)
				return refuse(reader, "%s takes no flags", verbs[line->verb].word);
			line->flags |= flag_words[i].flag;
			return 0;
		}
		return refuse(reader, "'%.*s' is neither NAME=VALUE nor a flag; flags: lock "
			      "no_touch chunked keep full force_miss wait no_wait shorter no_list "
			      "own_stream no_pages uncounted damaged", shown(word), word.at);
	}
	for (int i = 0; i < KVT_PARAMETER_COUNT; i++) {
		if (!word_is(name, parameters[i].name))
			continue;
		if (!(verbs[line->verb].takes >> i & 1))
			break;
		if (line->given >> i & 1)
			return refuse(reader, "%s= is given twice", parameters[i].name);
		line->given |= 1u << i;
		return value_parse(reader, i, value);
	}
	return refuse(reader, "%s takes no '%.*s='; it takes %s", verbs[line->verb].word,
		      shown(name), name.at,
		      names_of(verbs[line->verb].takes, buffer, sizeof(buffer)));
}

static int verb_parse(struct reader *reader, struct word word)
{
	struct kvt_script_line *line = reader->line;
	struct word rest = word, head;

	if (memchr(word.at, '=', word.n)) {
		head = word_cut(&rest, '=');
		if (!word_is_name(head))
			return refuse(reader, "'%.*s' is no name to bind; a name is a letter, then "
				      "letters, digits, '_', '-', '.'", shown(head), head.at);
		if (line->bind)
			return refuse(reader, "a line binds one name");
		if (word_is(head, LET))
			return refuse(reader, "'" LET "' is no name to bind: in pages= it lets go "
				      "of a side page");
		line->bind = kvt_text_copy(head.at, head.n);
		word = rest;
	}
	rest = word;
	head = word_cut(&rest, '@');
	if (word_is(head, "kill") && head.n < word.n) {
		line->verb = KVT_VERB_KILL;
		if (line->step)
			return refuse(reader, "one kill@STEP in a line");
		line->step = kvt_text_copy(rest.at, rest.n);
		/* `kill@STEP begin ...`: the operation follows on the same line. */
		return word_next(reader, &word) ? verb_parse(reader, word) : 0;
	}
	for (int i = 0; i < KVT_VERB_COUNT; i++) {
		if (i == KVT_VERB_ECHO || i == KVT_VERB_COMMENT || !word_is(word, verbs[i].word))
			continue;
		line->verb = i;
		return 0;
	}
	return refuse(reader, "'%.*s' is no verb; verbs: open close kill kill@STEP drop stop cont "
		      "raise tick probe match lock unlock alloc free insert begin commit extend "
		      "end remove leave page evict reset stats audit nop", shown(word), word.at);
}

static int arguments_parse(struct reader *reader)
{
	struct kvt_script_line *line = reader->line;
	uint32_t missing;
	struct word word;
	char buffer[256];
	int rc = 0;

	while (rc == 0 && word_next(reader, &word))
		rc = argument_parse(reader, word);
	if (rc)
		return rc;
	missing = verbs[line->verb].needs & ~line->given;
	if ((line->verb == KVT_VERB_PAGE || line->verb == KVT_VERB_SUSPECT ||
	     line->verb == KVT_VERB_EXTEND) &&
	    !(line->given & (P_PAGES | P_N)))
		missing = P_N;
	if (missing)
		return refuse(reader, "%s needs %s", verbs[line->verb].word,
			      names_of(missing, buffer, sizeof(buffer)));
	return 0;
}

/* Return the rest of the line verbatim. */
static char *rest_of(struct reader *reader)
{
	while (reader->at < reader->end && isspace((unsigned char)*reader->at))
		reader->at++;
	return kvt_text_copy(reader->at, (size_t)(reader->end - reader->at));
}

static int line_parse(struct reader *reader)
{
	struct kvt_script_line *line = reader->line;
	const char *from;
	struct word word;
	int rc;

	if (!word_next(reader, &word))
		return 0;
	from = word.at;
	if (*from == '#') {
		line->verb = KVT_VERB_COMMENT;
		line->text = kvt_text_copy(from, (size_t)(reader->end - from));
		return 0;
	}
	if (word_is(word, "echo")) {
		line->verb = KVT_VERB_ECHO;
		line->text = rest_of(reader);
		return 0;
	}
	if (word_is(word, "tick")) {
		line->verb = KVT_VERB_TICK;
		return arguments_parse(reader);
	}
	if (!word_is_name(word))
		return refuse(reader, "a line begins with a session's name (a letter, then "
			      "letters, digits, '_', '-', '.'), 'tick', 'echo' or '#', not '%.*s'",
			      shown(word), word.at);
	line->session = kvt_text_copy(word.at, word.n);
	if (!word_next(reader, &word))
		return refuse(reader, "a verb must follow: SESSION VERB name=value ...");
	rc = verb_parse(reader, word);
	return rc ? rc : arguments_parse(reader);
}

int kvt_script_parse(const char *text, size_t bytes, uint32_t max_keys,
		     struct kvt_script_line *ret_line, char *why, size_t why_bytes)
{
	struct reader reader = {
		.at = text, .end = text + bytes, .line = ret_line,
		.max_keys = max_keys, .why = why, .why_bytes = why_bytes,
	};

	*ret_line = (struct kvt_script_line){ .verb = -1, .fence = KVT_IDLE };
	while (reader.end > text && isspace((unsigned char)reader.end[-1]))
		reader.end--;
	if (memchr(text, '\0', bytes))
		return refuse(&reader, "the line holds a zero byte: scripts are text");
	return line_parse(&reader);
}

void kvt_script_line_clear(struct kvt_script_line *line)
{
	for (uint32_t i = 0; i < line->n_page_runs; i++)
		free(line->pages[i].name);
	free(line->session);
	free(line->bind);
	free(line->step);
	free(line->text);
	free(line->ns);
	free(line->label);
	free(line->keys);
	free(line->pages);
	free(line->places);
	free(line->lease.name);
	free(line->handle.name);
	*line = (struct kvt_script_line){ .verb = -1 };
}

const char *kvt_script_verb_name(int verb)
{
	return verb >= 0 && verb < KVT_VERB_COUNT ? verbs[verb].word : "";
}

int kvt_script_verb_op(int verb)
{
	return verb >= 0 && verb < KVT_VERB_COUNT ? verbs[verb].op : -1;
}
