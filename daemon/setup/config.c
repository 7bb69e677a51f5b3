/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file config.c
 * The table of options and its readers: files, environment, flags; and --help, --dump-options.
 *
 * Inputs are text from users. Each row of options.h is parsed and printed here, so no option has
 * code of its own. A configuration is zeroed first and all texts are padded with zeroes: reload
 * compares bytes. Called by command.c, timers.c and admin.c.
 */
#include "kvtrunk_wire_admin.h"
#include "daemon/setup/config.h"

#include <bsd/string.h>
#include <ctype.h>
#include <errno.h>
#include <ini.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/core/config.h"
#include "shm/assert.h"
#include "shm/nearest.h"
#include "shm/size.h"

enum option_type {
	OPTION_TEXT,
	OPTION_NUMBER,
	OPTION_BYTES,
	OPTION_BOOL,
	OPTION_CHOICE,
	OPTION_SHARE,
	OPTION_BUDGET,
	OPTION_MODE,
};

enum option_when { WHEN_START, WHEN_RELOAD };

struct option_row {
	const char *key;
	enum option_type type;
	const char *fallback;
	int64_t minimum, maximum;
	const char *choices;
	enum option_when when;
	const char *help;
	size_t offset, size;
};

#define ROW(type, key, fallback, minimum, maximum, choices, when, help)                           \
	{ #key, OPTION_##type, fallback, minimum, maximum, choices, WHEN_##when, help,            \
	  offsetof(struct kvt_config, key), sizeof(((struct kvt_config *)0)->key) },

static const struct option_row option_rows[] = { KVT_DAEMON_OPTIONS(ROW) };

#define N_ROWS (sizeof(option_rows) / sizeof(option_rows[0]))
_Static_assert(N_ROWS == KVT_OPTION_COUNT, "one row for each option");

static const char *type_name(enum option_type type)
{
	static const char *const names[] = { "text",   "number", "bytes",  "yes|no",
					     "choice", "share",  "budget", "mode" };

	return names[type];
}

/* Compare keys, taking '-' and '_' as equal. */
static bool key_equal(const char *a, const char *b, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (a[i] != b[i] && !(a[i] == '-' && b[i] == '_'))
			return false;
	return b[n] == '\0';
}

static const struct option_row *row_find(const char *key, size_t n)
{
	for (size_t i = 0; i < N_ROWS; i++)
		if (key_equal(key, option_rows[i].key, n))
			return &option_rows[i];
	return NULL;
}

/* Return the closest key to a misspelt one, or NULL. */
static const char *nearest_key(const char *key)
{
	const char *nearest = NULL;
	size_t least = KVT_NEAREST_MOST + 1;

	for (size_t i = 0; i < N_ROWS; i++) {
		size_t distance = kvt_edit_distance(key, option_rows[i].key);

		if (distance < least) {
			least = distance;
			nearest = option_rows[i].key;
		}
	}
	return nearest;
}

static int unknown_key(const char *place, const char *key, char why[KVT_WHY_BYTES])
{
	const char *nearest = nearest_key(key);

	if (nearest)
		snprintf(why, KVT_WHY_BYTES, "%s: unknown option '%.64s'; did you mean '%s'?",
			 place, key, nearest);
	else
		snprintf(why, KVT_WHY_BYTES, "%s: unknown option '%.64s'; kvtrunkd --help-all "
			 "lists all", place, key);
	return -EINVAL;
}

/* Format the values that a row accepts, for messages and documentation. */
static void row_allowed(const struct option_row *row, char *to, size_t size)
{
	switch (row->type) {
	case OPTION_TEXT:
		snprintf(to, size, "%lld to %lld characters", (long long)row->minimum,
			 (long long)row->maximum);
		break;
	case OPTION_NUMBER:
		snprintf(to, size, "%lld to %lld", (long long)row->minimum,
			 (long long)row->maximum);
		break;
	case OPTION_BYTES:
		snprintf(to, size, "%lld to %lld, suffix K, M, G or T", (long long)row->minimum,
			 (long long)row->maximum);
		break;
	case OPTION_BOOL:
		strlcpy(to, "yes or no", size);
		break;
	case OPTION_CHOICE:
		strlcpy(to, row->choices, size);
		break;
	case OPTION_SHARE:
		snprintf(to, size, "%lld to %lld, or 0%% to 100%%", (long long)row->minimum,
			 (long long)row->maximum);
		break;
	case OPTION_BUDGET:
		snprintf(to, size, "%lld to %lld, suffix K, M, G or T, or 1%% to 100%%",
			 (long long)row->minimum, (long long)row->maximum);
		break;
	case OPTION_MODE:
		snprintf(to, size, "octal, %04llo to %04llo", (long long)row->minimum,
			 (long long)row->maximum);
		break;
	}
}

static int bad_value(const struct option_row *row, const char *place, const char *value,
		     char why[KVT_WHY_BYTES])
{
	char allowed[128];

	row_allowed(row, allowed, sizeof(allowed));
	snprintf(why, KVT_WHY_BYTES, "%s: option '%s' cannot be '%.80s'; allowed: %s", place,
		 row->key, value, allowed);
	return -EINVAL;
}

static bool parse_integer(const char *text, int base, int64_t *ret_value, const char **ret_end)
{
	char *end;
	long long value;

	if (!isdigit((unsigned char)text[text[0] == '-']))
		return false;
	errno = 0;
	value = strtoll(text, &end, base);
	if (errno || end == text)
		return false;
	*ret_value = value;
	*ret_end = end;
	return true;
}

/* Apply a suffix (powers of 1,024). False: unknown suffix, or overflow. */
static bool apply_suffix(const char *suffix, int64_t *value)
{
	unsigned int shift;

	if (kvt_size_unit(suffix, &shift) != 0 ||
	    __builtin_mul_overflow(*value, (int64_t)1 << shift, value))
		return false;
	return true;
}

static bool parse_bool(const char *text, bool *ret_value)
{
	static const char *const words[][2] = {
		{ "no", "yes" }, { "false", "true" }, { "off", "on" }, { "0", "1" }
	};

	for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
		for (int side = 0; side < 2; side++)
			if (strcmp(text, words[i][side]) == 0) {
				*ret_value = side;
				return true;
			}
	return false;
}

static bool parse_choice(const char *choices, const char *text, uint32_t *ret_index)
{
	size_t n = strlen(text);
	uint32_t index = 0;

	for (const char *at = choices; n; index++) {
		const char *bar = strchrnul(at, '|');

		if ((size_t)(bar - at) == n && memcmp(at, text, n) == 0) {
			*ret_index = index;
			return true;
		}
		if (!*bar)
			break;
		at = bar + 1;
	}
	return false;
}

static bool parse_number(const struct option_row *row, const char *text, int64_t *ret_value)
{
	const char *end;
	int64_t value;

	if (!parse_integer(text, row->type == OPTION_MODE ? 8 : 10, &value, &end))
		return false;
	if (row->type == OPTION_BYTES || row->type == OPTION_BUDGET ? !apply_suffix(end, &value)
								     : *end)
		return false;
	if (value < row->minimum || value > row->maximum)
		return false;
	*ret_value = value;
	return true;
}

/* Parse a percentage or a number. */
static bool parse_share(const struct option_row *row, const char *text,
			struct kvt_share *ret_share)
{
	const char *end;
	int64_t value;

	if (parse_integer(text, 10, &value, &end) && strcmp(end, "%") == 0) {
		if (value < (row->type == OPTION_BUDGET) || value > 100)
			return false;
		*ret_share = (struct kvt_share){ value, 1 };
		return true;
	}
	if (!parse_number(row, text, &value))
		return false;
	*ret_share = (struct kvt_share){ value, 0 };
	return true;
}

static int row_set(const struct option_row *row, struct kvt_config *config, const char *place,
		   const char *value, char why[KVT_WHY_BYTES])
{
	void *field = (char *)config + row->offset;
	size_t length = strlen(value);
	bool good = false;

	switch (row->type) {
	case OPTION_TEXT:
		good = (int64_t)length >= row->minimum && (int64_t)length <= row->maximum;
		if (good) { /* zero the rest, so that equal texts are equal bytes */
			memset(field, 0, row->size);
			strlcpy(field, value, row->size);
		}
		break;
	case OPTION_NUMBER:
	case OPTION_BYTES:
	case OPTION_MODE:
		good = parse_number(row, value, field);
		break;
	case OPTION_BOOL:
		good = parse_bool(value, field);
		break;
	case OPTION_CHOICE:
		good = parse_choice(row->choices, value, field);
		break;
	case OPTION_SHARE:
	case OPTION_BUDGET:
		good = parse_share(row, value, field);
		break;
	}
	if (!good)
		return bad_value(row, place, value, why);
	strlcpy(config->origins[row - option_rows], place, KVT_ORIGIN_BYTES);
	return 0;
}

void kvt_config_init(struct kvt_config *config)
{
	char why[KVT_WHY_BYTES];

	memset(config, 0, sizeof(*config));
	for (size_t i = 0; i < N_ROWS; i++) {
		int error = row_set(&option_rows[i], config, "default", option_rows[i].fallback,
				    why);

		KVT_ASSERT(!error); /* a row whose default is out of its range */
	}
}

int kvt_config_set(struct kvt_config *config, const char *place, const char *key,
		   const char *value, char why[KVT_WHY_BYTES])
{
	const struct option_row *row = row_find(key, strlen(key));

	if (!row)
		return unknown_key(place, key, why);
	return row_set(row, config, place, value, why);
}

/* A file being read. libinih parses names and values. Lines pass through our reader, so that errors
 * can name them and long ones are refused instead of split. */
struct file_state {
	struct kvt_config *config;
	FILE *file;
	const char *path;
	char *why;
	int line;
	int error;
	int read_error; /* errno, if the file has one */
	bool continued; /* the line starts with a blank: it continues the last value */
	char place[300];
	const struct option_row *last; /* that the file has set */
	int set_at[N_ROWS];            /* line of each option that the file has set; 0: none */
};

static int file_fail(struct file_state *state, const char *text)
{
	if (!state->error) {
		snprintf(state->why, KVT_WHY_BYTES, "%.200s:%d: %s", state->path, state->line,
			 text);
		state->error = -EINVAL;
	}
	return 0;
}

static char *file_reader(char *to, int size, void *context)
{
	struct file_state *state = context;
	size_t n;

	if (state->error)
		return NULL;
	if (!fgets(to, size, state->file)) {
		state->read_error = errno;
		return NULL;
	}
	state->line++;
	state->continued = to[0] == ' ' || to[0] == '\t';
	n = strlen(to);
	if (n + 1 == (size_t)size && to[n - 1] != '\n' && !feof(state->file)) {
		file_fail(state, "line too long (at most 198 bytes); a text can continue on a "
				 "next line that starts with a blank");
		return NULL;
	}
	return to;
}

/* Append a continuation line to a text. */
static int file_append(struct file_state *state, const struct option_row *row, const char *more)
{
	char text[2 * KVT_CONFIG_TEXT_BYTES];

	if (row->type != OPTION_TEXT)
		return file_fail(state, "only a text can continue on a second line");
	snprintf(text, sizeof(text), "%s%s", (const char *)state->config + row->offset, more);
	state->error = row_set(row, state->config, state->place, text, state->why);
	return !state->error;
}

static int file_handler(void *context, const char *section, const char *name, const char *value)
{
	struct file_state *state = context;
	const struct option_row *row = row_find(name, strlen(name));

	if (state->error)
		return 0;
	snprintf(state->place, sizeof(state->place), "%.200s:%d", state->path, state->line);
	if (*section && strcmp(section, "kvtrunkd") != 0)
		return file_fail(state, "unknown section; options stand in [kvtrunkd] or in none");
	if (!row) {
		state->error = unknown_key(state->place, name, state->why);
		return 0;
	}
	/* For a continuation line libinih repeats the last name. */
	if (state->continued && state->last == row)
		return file_append(state, row, value);
	if (state->set_at[row - option_rows]) {
		snprintf(state->why, KVT_WHY_BYTES, "%s: option '%s' is set twice, also in line "
			 "%d: keep one", state->place, row->key,
			 state->set_at[row - option_rows]);
		state->error = -EINVAL;
		return 0;
	}
	state->set_at[row - option_rows] = state->line;
	state->last = row;
	state->error = row_set(row, state->config, state->place, value, state->why);
	return !state->error;
}

int kvt_config_load(struct kvt_config *config, const char *path, char why[KVT_WHY_BYTES])
{
	struct file_state state = { .config = config, .path = path, .why = why };
	int line;

	state.file = fopen(path, "re");
	if (!state.file) {
		int error = -errno;

		snprintf(why, KVT_WHY_BYTES, "cannot read config file %.200s: %s", path,
			 strerror(-error));
		return error;
	}
	line = ini_parse_stream(file_reader, &state, file_handler, &state);
	if (!state.error && ferror(state.file)) {
		snprintf(why, KVT_WHY_BYTES, "cannot read config file %.200s: %s", path,
			 strerror(state.read_error));
		state.error = -EIO;
	}
	if (!state.error && line != 0) {
		state.line = line;
		file_fail(&state, "not a line of the form 'key = value', '[kvtrunkd]' or "
				  "'# comment'");
	}
	fclose(state.file);
	return state.error;
}

/* True for variables that Kubernetes sets beside a service named kvtrunkd. */
static bool is_service_link(const char *name)
{
	return strncmp(name, "SERVICE_", 8) == 0 || strncmp(name, "PORT=", 5) == 0 ||
	       strncmp(name, "PORT_", 5) == 0;
}

static int environment_option(struct kvt_config *config, const char *name, size_t n,
			      const char *value, char why[KVT_WHY_BYTES])
{
	char key[64] = "", place[96];
	const struct option_row *row;

	snprintf(place, sizeof(place), "$" KVT_CONFIG_VARIABLE "%.*s", (int)n, name);
	for (size_t i = 0; i < n && i + 1 < sizeof(key); i++)
		key[i] = (char)tolower((unsigned char)name[i]);
	row = row_find(key, strlen(key));
	if (row)
		return row_set(row, config, place, value, why);
	snprintf(why, KVT_WHY_BYTES, "%s: unknown option", place);
	if (nearest_key(key)) {
		strlcpy(key, nearest_key(key), sizeof(key));
		for (char *c = key; *c; c++)
			*c = (char)toupper((unsigned char)*c);
		snprintf(why, KVT_WHY_BYTES, "%s: unknown option; did you mean "
			 KVT_CONFIG_VARIABLE "%s?", place, key);
	}
	return -EINVAL;
}

int kvt_config_load_environment(struct kvt_config *config, char why[KVT_WHY_BYTES])
{
	const size_t prefix = strlen(KVT_CONFIG_VARIABLE);

	for (char **entry = environ; entry && *entry; entry++) {
		const char *name = *entry + prefix, *equals = strchr(*entry, '=');
		int error;

		if (!equals || strncmp(*entry, KVT_CONFIG_VARIABLE, prefix) != 0 ||
		    is_service_link(name) || strncmp(name, "CONFIG=", 7) == 0)
			continue;
		error = environment_option(config, name, (size_t)(equals - name), equals + 1, why);
		if (error)
			return error;
	}
	return 0;
}

int kvt_config_flag(struct kvt_config *config, int left, char **argv, char why[KVT_WHY_BYTES])
{
	const char *name = argv[0] + 2, *equals = strchrnul(name, '=');
	const struct option_row *row = row_find(name, (size_t)(equals - name));
	const char *value = *equals ? equals + 1 : NULL;
	char place[80];
	int used = 1, error;

	snprintf(place, sizeof(place), "%.*s", (int)(equals - argv[0]), argv[0]);
	if (!row && !value && strncmp(name, "no-", 3) == 0) {
		row = row_find(name + 3, strlen(name + 3));
		value = "no";
		if (row && row->type != OPTION_BOOL)
			row = NULL;
	}
	if (!row) {
		snprintf(place, sizeof(place), "%.*s", (int)(equals - name), name);
		return unknown_key("command line", place, why);
	}
	if (!value && row->type == OPTION_BOOL && (left < 2 || *argv[1] == '-')) {
		value = "yes";
	} else if (!value) {
		if (left < 2) {
			snprintf(why, KVT_WHY_BYTES, "%s needs a value", place);
			return -EINVAL;
		}
		value = argv[1];
		used = 2;
	}
	if (strncmp(config->origins[row - option_rows], "--", 2) == 0) {
		snprintf(why, KVT_WHY_BYTES, "%s is given twice: keep one", place);
		return -EINVAL;
	}
	error = row_set(row, config, place, value, why);
	return error ? error : used;
}

/* Rank of the place that an option was set at: default, file, variable, flag. */
static int strength(const char *place)
{
	return strcmp(place, "default") == 0 ? 0 : strncmp(place, "--", 2) == 0 ? 3 :
	       *place == '$'		     ? 2 : 1;
}

int kvt_config_settle_size(struct kvt_config *config, char why[KVT_WHY_BYTES])
{
	char *pages = config->origins[row_find("n_pages", 7) - option_rows];
	char *bytes = config->origins[row_find("pool_bytes", 10) - option_rows];
	bool by_bytes = strength(bytes) > strength(pages);

	if (!config->n_pages || strength(bytes) == 0)
		return 0;
	if (strength(bytes) == strength(pages)) {
		snprintf(why, KVT_WHY_BYTES, "n_pages (%s) and pool_bytes (%s) both give the size "
			 "of the pool: leave one of them out", pages, bytes);
		return -EINVAL;
	}
	snprintf(config->note, sizeof(config->note), "%s (%s) gives the size of the pool, and %s "
		 "(%s) is not used", by_bytes ? "pool_bytes" : "n_pages", by_bytes ? bytes : pages,
		 by_bytes ? "n_pages" : "pool_bytes", by_bytes ? pages : bytes);
	if (by_bytes) {
		config->n_pages = 0;
		strlcpy(pages, bytes, KVT_ORIGIN_BYTES);
	}
	return 0;
}

int kvt_config_check_vain(const struct kvt_config *config, char why[KVT_WHY_BYTES])
{
	const struct {
		const char *key;
		bool used;
		const char *of;
	} rows[] = {
		{ "devices", config->backend != KVT_POOL_HOST,
		  "for a CUDA pool, but backend is host" },
		{ "slru_threshold", config->policy == KVT_POLICY_SLRU,
		  "for policy = slru, but policy is another" },
	};

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		const char *place = config->origins[row_find(rows[i].key, strlen(rows[i].key)) -
						    option_rows];

		if (rows[i].used || strength(place) == 0)
			continue;
		snprintf(why, KVT_WHY_BYTES, "%s (%s) is %s: drop one of them", rows[i].key, place,
			 rows[i].of);
		return -EINVAL;
	}
	return 0;
}

void kvt_config_reload(struct kvt_config *config, const struct kvt_config *fresh,
		       char ret_changed[KVT_WHY_BYTES], char ret_fixed[KVT_WHY_BYTES])
{
	ret_changed[0] = ret_fixed[0] = '\0';
	for (size_t i = 0; i < N_ROWS; i++) {
		const struct option_row *row = &option_rows[i];
		char *list = row->when == WHEN_RELOAD ? ret_changed : ret_fixed;
		char *field = (char *)config + row->offset;
		const char *other = (const char *)fresh + row->offset;
		/* Both were zeroed and set by the same function, so bytes compare. */
		bool differs = memcmp(field, other, row->size) != 0;

		if (!differs || row->when == WHEN_RELOAD)
			memcpy(config->origins[i], fresh->origins[i], KVT_ORIGIN_BYTES);
		if (!differs)
			continue;
		if (*list)
			strlcat(list, " ", KVT_WHY_BYTES);
		strlcat(list, row->key, KVT_WHY_BYTES);
		if (row->when == WHEN_RELOAD)
			memcpy(field, other, row->size);
	}
}

const char *kvt_config_choice(const char *key, uint32_t index, char *to, size_t size)
{
	const struct option_row *row = row_find(key, strlen(key));
	const char *at = row && row->choices ? row->choices : "";

	while (index-- && *at) {
		at = strchrnul(at, '|');
		at += *at == '|';
	}
	snprintf(to, size, "%.*s", (int)(strchrnul(at, '|') - at), at);
	return to;
}

const char *kvt_config_get(const struct kvt_config *config, const char *key, char *to,
			   size_t size)
{
	const struct option_row *row = row_find(key, strlen(key));
	const void *field;

	to[0] = '\0';
	if (!row)
		return to;
	field = (const char *)config + row->offset;
	switch (row->type) {
	case OPTION_TEXT:
		strlcpy(to, field, size);
		break;
	case OPTION_NUMBER:
	case OPTION_BYTES:
		snprintf(to, size, "%lld", (long long)*(const int64_t *)field);
		break;
	case OPTION_MODE:
		snprintf(to, size, "%04llo", (long long)*(const int64_t *)field);
		break;
	case OPTION_BOOL:
		strlcpy(to, *(const bool *)field ? "yes" : "no", size);
		break;
	case OPTION_CHOICE:
		kvt_config_choice(key, *(const uint32_t *)field, to, size);
		break;
	case OPTION_SHARE:
	case OPTION_BUDGET: {
		const struct kvt_share *share = field;

		snprintf(to, size, "%lld%s", (long long)share->value, share->percent ? "%" : "");
		break;
	}
	}
	return to;
}

int kvt_config_sides(const struct kvt_config *config, uint32_t *ret_n,
		     uint32_t ret_pages[KVT_MAX_SIDES], char why[KVT_WHY_BYTES])
{
	const char *at = config->sides + strspn(config->sides, ", ");
	uint32_t n = 0, pages[KVT_MAX_SIDES] = { 0 };
	int64_t sum = 0, value;

	for (; *at; at += strspn(at, ", ")) {
		if (n == KVT_MAX_SIDES || !parse_integer(at, 10, &value, &at) ||
		    (*at && *at != ',' && *at != ' ') || value < 1 ||
		    value > KVT_MAX_SIDE_PAGES / 2 || (sum += value) > KVT_MAX_SIDE_PAGES) {
			snprintf(why, KVT_WHY_BYTES, "option 'sides' cannot be '%s'; allowed: up "
				 "to %u numbers from 1 to 1024, separated by commas or blanks, "
				 "together at most 2048", config->sides, KVT_MAX_SIDES);
			return -EINVAL;
		}
		pages[n++] = (uint32_t)value;
	}
	memcpy(ret_pages, pages, sizeof(pages));
	*ret_n = n;
	return 0;
}

/* True if a name is limits that commas separate, as in "a=10%,b". Names of the library quote what
 * users gave, in which this may stand. */
static bool is_limits(const char *name)
{
	const char *end;
	int64_t value;

	if (strchr(name, '\''))
		return false;
	for (; name; name = strchr(name, '=')) {
		name += strspn(name, "= ");
		if (!parse_integer(name, 10, &value, &end))
			continue;
		end += *end == '%';
		if (end[strspn(end, " ")] == ',')
			return true;
	}
	return false;
}

/* Parse one entry of namespace_pages: NAME=PAGES, or PAGES for all others. */
static bool take_limit(char *entry, struct kvt_core_config *to)
{
	char *equals = strrchr(entry, '='), *number = equals ? equals + 1 : entry;
	struct kvt_space_limit *limit = &to->space_limits[to->n_space_limits];
	const char *end;
	int64_t value;

	number += strspn(number, " ");
	if (!parse_integer(number, 10, &value, &end) || value < 0)
		return false;
	if (*end == '%')
		value = value <= 100 ? (int64_t)(to->n_pages - 1) * value / 100 : INT64_MAX;
	end += *end == '%';
	if (end[strspn(end, " ")] || value > UINT32_MAX)
		return false;
	if (!equals) {
		to->space_pages = (uint32_t)value;
		return true;
	}
	while (equals > entry && equals[-1] == ' ')
		equals--;
	*equals = '\0';
	if (!*entry || is_limits(entry) || to->n_space_limits == KVT_MAX_SPACE_LIMITS ||
	    strlcpy(limit->name, entry, sizeof(limit->name)) >= sizeof(limit->name))
		return false;
	limit->pages = (uint32_t)value;
	to->n_space_limits++;
	return true;
}

int kvt_config_limits(const struct kvt_config *config, struct kvt_core_config *to,
		      char why[KVT_WHY_BYTES])
{
	char text[KVT_CONFIG_TEXT_BYTES], *rest = NULL, *entry;

	to->space_pages = to->n_space_limits = 0;
	strlcpy(text, config->namespace_pages, sizeof(text));
	for (entry = strtok_r(text, ";", &rest); entry; entry = strtok_r(NULL, ";", &rest)) {
		entry += strspn(entry, " ");
		if (!*entry || take_limit(entry, to))
			continue;
		snprintf(why, KVT_WHY_BYTES, "option 'namespace_pages' cannot have '%s'; allowed: "
			 "NAME=PAGES or PAGES, a number or 0%% to 100%%, separated by semicolons, "
			 "as in 'a=10%%;b=5%%'; at most %u names of at most %u characters",
			 config->namespace_pages, KVT_MAX_SPACE_LIMITS, KVT_LABEL_BYTES - 1);
		return -EINVAL;
	}
	return 0;
}

bool kvt_config_describe(const struct kvt_config *config, uint32_t index,
			 struct kvt_admin_option *ret_option)
{
	const struct option_row *row = &option_rows[index];

	if (index >= N_ROWS)
		return false;
	memset(ret_option, 0, sizeof(*ret_option));
	strlcpy(ret_option->key, row->key, sizeof(ret_option->key));
	kvt_config_get(config, row->key, ret_option->value, sizeof(ret_option->value));
	strlcpy(ret_option->used, ret_option->value, sizeof(ret_option->used));
	strlcpy(ret_option->origin, config->origins[index], sizeof(ret_option->origin));
	ret_option->reload = row->when == WHEN_RELOAD;
	return true;
}

/* Print help text indented, in lines of at most 78 columns. */
static void print_wrapped(FILE *to, const char *text)
{
	size_t column = 0;

	while (*text) {
		size_t n = strcspn(text, " ");

		if (column && column + 1 + n > 70) {
			fputc('\n', to);
			column = 0;
		}
		fprintf(to, "%s%.*s", column ? " " : "        ", (int)n, text);
		column += n + 1;
		text += n + (text[n] == ' ');
	}
	fputc('\n', to);
}

/* One screen: what the daemon can be told, without the table of options. */
static const char short_help[] =
	"Usage: kvtrunkd [--config FILE] [--OPTION=VALUE | --OPTION VALUE]...\n"
	"Share the KV cache of LLM inference between the processes of this host.\n\n"
	"  -c, --config FILE   read options from FILE (see kvtrunkd.conf(5))\n"
	"  --pool-bytes SIZE   memory of the pool, as 8G or 50%\n"
	"  --n-layers N, --n-kv-heads N, --head-dim N   of the model: see kvtctl geometry\n"
	"  --instance NAME     one daemon serves one model (default)\n"
	"  --runtime-dir PATH  of the socket and the lock (/run/kvtrunk)\n"
	"  --supervise         run the daemon as a child; when it crashes, start it again\n"
	"                      with all that it had (see kvtctl upgrade)\n"
	"  --detach            return when the daemon serves, and let it run in the\n"
	"                      background; it logs to RUNTIME_DIR/INSTANCE.log where\n"
	"                      standard error is a terminal or a pipe\n"
	"  --check-config      say whether the configuration is good and what pool it\n"
	"                      makes here, and exit\n"
	"  --dump-options      print the table of options, and exit\n"
	"  --help-all          print all options, and exit\n"
	"  -h, --help          print this, and exit\n"
	"  --version           print the version and the commit, and exit\n";

void kvt_config_help(FILE *to, bool all)
{
	char allowed[128];

	fputs(short_help, to);
	if (!all)
		return;
	fputs("\nOptions, also accepted in the file as 'key = value' (there with _ for -) and in\n"
	      "the environment as KVTRUNKD_KEY (KVTRUNKD_POOL_BYTES=8G; KVTRUNKD_CONFIG is the\n"
	      "file). Flags win over the environment, and that over the file. Those marked *\n"
	      "are taken over on SIGHUP.\n\n", to);
	for (size_t i = 0; i < N_ROWS; i++) {
		const struct option_row *row = &option_rows[i];
		char flag[64];

		strlcpy(flag, row->key, sizeof(flag));
		for (char *c = flag; *c; c++)
			if (*c == '_')
				*c = '-';
		row_allowed(row, allowed, sizeof(allowed));
		fprintf(to, "  --%s%s (%s; default %s)\n", flag,
			row->when == WHEN_RELOAD ? " *" : "", allowed,
			*row->fallback ? row->fallback : "empty");
		print_wrapped(to, row->help);
	}
}

void kvt_config_dump(FILE *to)
{
	char allowed[128];

	for (size_t i = 0; i < N_ROWS; i++) {
		const struct option_row *row = &option_rows[i];

		row_allowed(row, allowed, sizeof(allowed));
		fprintf(to, "%s\t%s\t%s\t%s\t%s\t%s\n", row->key, type_name(row->type),
			row->fallback, allowed, row->when == WHEN_RELOAD ? "reload" : "start",
			row->help);
	}
}
