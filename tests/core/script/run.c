/* SPDX-License-Identifier: Apache-2.0 */

/**
 * @file run.c
 * run FILE [ARGUMENT...]: run one scenario of tests/core/script and check its answers.
 *
 * A scenario is a script of `kvtlab script`. Expectations are comments, which pass through to the
 * output and so follow their answer. FILE.sh is a shell script that prints the scenario. It runs
 * twice: on a core in one process (core.c), then against a daemon of its own with a process for
 * each session. A session `auditor` is added, which audits after every line, in long scenarios only
 * at the end: conservation of pages and the other invariants are checked after each step of every
 * case.
 *
 *     #daemon NAME=VALUE ...   options of the daemon and of the core
 *     #daemon-only             it needs processes: not on a core alone
 *     #exit N                  expected exit status of kvtlab, else 0
 *     #= FIELD=VALUE ...       the last answer has these; #=-1 is the one before it, and so on
 *     #let NAME                keep the last answer as $NAME
 *     #sum NAME FIELD          add a number of the last answer to a sum
 *     #total NAME=VALUE ...    what the sums are
 *     #say TEXT                print, with $NAME replaced by sums
 *
 * `run --json` only checks that its input is JSON.
 *
 * Between field and value stands = != < > <= or >=. A field may be LIST.n, the length of a list, or
 * OBJECT.FIELD. A value is JSON without blanks, a bare word, `absent`, or parts of kept answers
 * joined with '+': $x.pages, $x.pages[2..5], [7,8].
 */

#include <errno.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define MAX_NAMES 256
#define KEPT_ANSWERS 16
#define AUDITED_LINES 1000 /* of a scenario that is audited after every line */
#define AUDITOR "auditor"

struct variable {
	char name[32];
	json_t *value;
};

/* The program that runs a scenario, in BUILD. */
enum { ON_CORE, ON_DAEMON };
static const char *const programs[] = { "tests/core/script/core", "kvtlab" };
static const char *const program_names[] = { "core", "daemon" };

struct scenario {
	const char *path;
	int program;
	bool daemon_only;
	json_t *last[KEPT_ANSWERS]; /* [0] is the last answer */
	struct variable kept[MAX_NAMES], sums[MAX_NAMES];
	unsigned int n_kept, n_sums;
	char daemon[512];
	int exit_status;
	unsigned int line, n_answers, n_checks, n_failed, n_audits;
	unsigned int *source_line; /* of each line that kvtlab reads, unchanged */
	unsigned int n_lines;
};

static void fail(struct scenario *scenario, const char *format, ...)
	__attribute__((format(printf, 2, 3)));
static void fail(struct scenario *scenario, const char *format, ...)
{
	char *answer = scenario->last[0] ? json_dumps(scenario->last[0], JSON_COMPACT) : NULL;
	va_list arguments;

	printf("%s: %s: output line %u: ", scenario->path, program_names[scenario->program],
	       scenario->line);
	va_start(arguments, format);
	vprintf(format, arguments);
	va_end(arguments);
	printf("\n    after %.600s\n", answer ? answer : "nothing");
	free(answer);
	scenario->n_failed++;
}

static json_t *find(struct variable *variables, unsigned int n, const char *name)
{
	for (unsigned int i = 0; i < n; i++)
		if (strcmp(variables[i].name, name) == 0)
			return variables[i].value;
	return NULL;
}

static void keep(struct variable *variables, unsigned int *n, const char *name, json_t *value)
{
	unsigned int at = 0;

	while (at < *n && strcmp(variables[at].name, name) != 0)
		at++;
	if (at == MAX_NAMES)
		exit(2);
	if (at == *n)
		(*n)++;
	else
		json_decref(variables[at].value);
	snprintf(variables[at].name, sizeof(variables[at].name), "%s", name);
	variables[at].value = json_incref(value);
}

/* $NAME.FIELD or $NAME.FIELD[A..B]; a new reference or NULL. */
static json_t *part_value(struct scenario *scenario, const char *text)
{
	char name[64] = "", field[64] = "";
	unsigned int first, last;
	json_t *answer, *value, *slice;
	int n;

	n = sscanf(text, "$%63[^.].%63[^[][%u..%u]", name, field, &first, &last);
	answer = n >= 2 ? find(scenario->kept, scenario->n_kept, name) : NULL;
	value = answer ? json_object_get(answer, field) : NULL;
	if (!value || n == 2)
		return json_incref(value);
	if (n == 3)
		last = first;
	slice = json_array();
	for (; first <= last && json_is_array(value); first++)
		json_array_append(slice, json_array_get(value, first));
	return slice;
}

/* A new reference, NULL if there is no such field or item. */
static json_t *value_of(struct scenario *scenario, char *text)
{
	json_t *sum = NULL, *value;
	char *rest = text;

	if (*text != '$' && *text != '[') {
		value = json_loads(text, JSON_DECODE_ANY, NULL);
		return value ? value : json_string(text);
	}
	for (char *part = strsep(&rest, "+"); part; part = strsep(&rest, "+")) {
		value = *part == '$' ? part_value(scenario, part)
				     : json_loads(part, 0, NULL);
		if (!value || !rest) {
			if (!sum || !value) {
				json_decref(sum);
				return value;
			}
		}
		if (!sum)
			sum = json_array();
		json_array_extend(sum, value);
		json_decref(value);
	}
	return sum;
}

static bool compare(json_t *have, const char *operator, json_t *want)
{
	double left = json_number_value(have), right = json_number_value(want);

	if (strcmp(operator, "=") == 0)
		return json_equal(have, want);
	if (strcmp(operator, "!=") == 0)
		return !json_equal(have, want);
	if (!json_is_number(have) || !json_is_number(want))
		return false;
	return strcmp(operator, "<") == 0 ? left < right :
	       strcmp(operator, ">") == 0 ? left > right :
	       strcmp(operator, "<=") == 0 ? left <= right : left >= right;
}

/* FIELD of an answer: a new reference, NULL if absent. */
static json_t *field_of(json_t *answer, const char *name)
{
	size_t n = strlen(name);
	char list[64];

	if (n > 2 && strcmp(name + n - 2, ".n") == 0) {
		snprintf(list, sizeof(list), "%.*s", (int)(n - 2), name);
		answer = json_object_get(answer, list);
		return json_is_array(answer) ? json_integer((json_int_t)json_array_size(answer))
					     : NULL;
	}
	if (strchr(name, '.')) {
		n = strcspn(name, ".");
		snprintf(list, sizeof(list), "%.*s", (int)n, name);
		return json_incref(json_object_get(json_object_get(answer, list), name + n + 1));
	}
	return json_incref(json_object_get(answer, name));
}

static void check_one(struct scenario *scenario, json_t *answer, char *text)
{
	size_t at = strcspn(text, "=!<>"), n = strspn(text + at, "=!<>");
	char operator[4] = "", expected[1024];
	json_t *have, *want;
	char *shown;

	scenario->n_checks++;
	if (at == 0 || n == 0 || n > 2) {
		fail(scenario, "'%s' is no check", text);
		return;
	}
	memcpy(operator, text + at, n);
	text[at] = '\0';
	snprintf(expected, sizeof(expected), "%s", text + at + n);
	have = field_of(answer, text);
	if (strcmp(expected, "absent") == 0) {
		if (have)
			fail(scenario, "%s is there", text);
		json_decref(have);
		return;
	}
	want = value_of(scenario, text + at + n);
	if (!have || !want || !compare(have, operator, want)) {
		shown = have ? json_dumps(have, JSON_COMPACT | JSON_ENCODE_ANY) : NULL;
		fail(scenario, "%s is %s, expected %s%s", text, shown ? shown : "absent", operator,
		     expected);
		free(shown);
	}
	json_decref(have);
	json_decref(want);
}

static void check_all(struct scenario *scenario, json_t *answer, char *text)
{
	char *rest = text;

	if (!answer) {
		fail(scenario, "no answer to check");
		return;
	}
	for (char *one = strsep(&rest, " \n"); one; one = strsep(&rest, " \n"))
		if (*one)
			check_one(scenario, answer, one);
}

static void add_sum(struct scenario *scenario, const char *name, const char *field)
{
	json_t *sum = find(scenario->sums, scenario->n_sums, name), *value;
	json_int_t all = json_integer_value(sum);

	value = scenario->last[0] ? field_of(scenario->last[0], field) : NULL;
	if (!json_is_integer(value))
		fail(scenario, "#sum %s: no number %s in the answer", name, field);
	all += json_integer_value(value);
	json_decref(value);
	value = json_integer(all);
	keep(scenario->sums, &scenario->n_sums, name, value);
	json_decref(value);
}

static void check_totals(struct scenario *scenario, char *text)
{
	json_t *sums = json_object();

	for (unsigned int i = 0; i < scenario->n_sums; i++)
		json_object_set(sums, scenario->sums[i].name, scenario->sums[i].value);
	check_all(scenario, sums, text);
	json_decref(sums);
}

static void say(struct scenario *scenario, char *text)
{
	char *rest = text;

	for (char *word = strsep(&rest, " \n"); word; word = strsep(&rest, " \n")) {
		json_t *sum = *word == '$' ? find(scenario->sums, scenario->n_sums, word + 1)
					   : NULL;

		if (sum)
			printf("%lld ", (long long)json_integer_value(sum));
		else
			printf("%s ", word);
	}
	printf("\n");
}

static void take_audit(struct scenario *scenario, json_t *answer)
{
	const char *op = json_string_value(json_object_get(answer, "op"));
	char *text;

	if (op && strcmp(op, "audit") == 0) {
		scenario->n_audits++;
		if (!json_is_true(json_object_get(answer, "clean"))) {
			text = json_dumps(answer, JSON_COMPACT);
			fail(scenario, "an audit found something: %.2000s", text);
			free(text);
		}
	}
	json_decref(answer);
}

static void take_answer(struct scenario *scenario, const char *text)
{
	json_error_t error;
	json_t *answer = json_loads(text, JSON_REJECT_DUPLICATES, &error);
	const char *session;
	json_int_t line;

	if (!answer) {
		fail(scenario, "no JSON (%s): %.200s", error.text, text);
		return;
	}
	session = json_string_value(json_object_get(answer, "session"));
	if (session && strcmp(session, AUDITOR) == 0) {
		take_audit(scenario, answer);
		return;
	}
	scenario->n_answers++;
	line = json_integer_value(json_object_get(answer, "line"));
	if (line < 1 || line > scenario->n_lines)
		fail(scenario, "no line %lld in the scenario", (long long)line);
	else
		json_object_set_new(answer, "line", json_integer(scenario->source_line[line]));
	json_decref(scenario->last[KEPT_ANSWERS - 1]);
	memmove(scenario->last + 1, scenario->last, (KEPT_ANSWERS - 1) * sizeof(json_t *));
	scenario->last[0] = answer;
}

static void take_directive(struct scenario *scenario, char *text)
{
	char name[32], field[64];
	char *at = text + 2;
	long back;

	if (strncmp(text, "#=", 2) == 0) {
		back = *at == '-' ? -strtol(at, &at, 10) : 0;
		check_all(scenario, back < KEPT_ANSWERS ? scenario->last[back] : NULL, at);
	} else if (sscanf(text, "#let %31s", name) == 1 && scenario->last[0]) {
		keep(scenario->kept, &scenario->n_kept, name, scenario->last[0]);
	} else if (sscanf(text, "#sum %31s %63s", name, field) == 2) {
		add_sum(scenario, name, field);
	} else if (strncmp(text, "#total ", 7) == 0) {
		check_totals(scenario, text + 7);
	} else if (strncmp(text, "#say ", 5) == 0) {
		say(scenario, text + 5);
	}
}

static void put_line(struct scenario *scenario, FILE *to, const char *text, unsigned int source)
{
	scenario->source_line = realloc(scenario->source_line, (scenario->n_lines + 2) *
				sizeof(*scenario->source_line));
	if (!scenario->source_line)
		exit(2);
	scenario->source_line[++scenario->n_lines] = source;
	fputs(text, to);
}

static bool is_operation(const char *text)
{
	return text[0] != '#' && text[0] != '\n' && strncmp(text, "echo", 4) != 0;
}

/* Add what a scenario's own #daemon lines leave open: an option is given once. */
static void add_defaults(struct scenario *scenario)
{
	static const char *const defaults[] = { " page_bytes=64", " test_clock=yes",
						" hugepages=no", " max_leases=0",
						" max_private_pages=0" };

	for (size_t i = 0; i < sizeof(defaults) / sizeof(defaults[0]); i++) {
		int name = (int)(strchr(defaults[i], '=') - defaults[i]) + 1;
		char own[32];

		snprintf(own, sizeof(own), "%.*s", name, defaults[i]);
		if (!strstr(scenario->daemon, own))
			strncat(scenario->daemon, defaults[i],
				sizeof(scenario->daemon) - strlen(scenario->daemon) - 1);
	}
}

/* Write the scenario to a descriptor that kvtlab reads as its standard input, and parse its
 * head. */
static int put_scenario(struct scenario *scenario, FILE *from, FILE *to)
{
	unsigned int source = 0;
	char *text = NULL;
	size_t room = 0;

	put_line(scenario, to, AUDITOR " open\n", 0);
	while (getline(&text, &room, from) >= 0) {
		if (strncmp(text, "#daemon ", 8) == 0)
			snprintf(scenario->daemon + strlen(scenario->daemon),
				 sizeof(scenario->daemon) - strlen(scenario->daemon), " %s",
				 text + 7);
		sscanf(text, "#exit %d", &scenario->exit_status);
		if (strcmp(text, "#daemon-only\n") == 0)
			scenario->daemon_only = true;
		put_line(scenario, to, text, ++source);
		if (is_operation(text) && source <= AUDITED_LINES)
			put_line(scenario, to, AUDITOR " audit\n", source);
	}
	put_line(scenario, to, AUDITOR " audit\n", source);
	add_defaults(scenario);
	free(text);
	return fflush(to) || ferror(to) ? -1 : 0;
}

static int read_scenario(struct scenario *scenario, int argc, char **argv)
{
	const char *dot = strrchr(scenario->path, '.');
	int fd = memfd_create("scenario", 0);
	FILE *from, *to = fd < 0 ? NULL : fdopen(dup(fd), "w");
	char command[4096];
	int rc;

	snprintf(command, sizeof(command), "%s %s", dot && strcmp(dot, ".sh") == 0 ? "sh" : "cat",
		 scenario->path);
	for (int i = 2; i < argc; i++) {
		strcat(command, " ");
		strncat(command, argv[i], sizeof(command) - strlen(command) - 2);
	}
	from = popen(command, "r");
	if (!from || !to)
		return -1;
	rc = put_scenario(scenario, from, to);
	fclose(to);
	if (pclose(from) != 0 || rc)
		return -1;
	lseek(fd, 0, SEEK_SET);
	return fd;
}

static FILE *start(const struct scenario *scenario, int input, pid_t *ret_pid)
{
	char program[4096], *slash;
	ssize_t n = readlink("/proc/self/exe", program, sizeof(program) - 32);
	int ends[2];

	if (n < 0 || pipe(ends))
		return NULL;
	program[n] = '\0';
	/* BUILD, from the path of this program: BUILD/tests/core/script/run. */
	for (int i = 0; i < 4 && (slash = strrchr(program, '/')); i++)
		*slash = '\0';
	strcat(program, "/");
	strcat(program, programs[scenario->program]);
	*ret_pid = fork();
	if (*ret_pid == 0) {
		dup2(input, 0);
		dup2(ends[1], 1);
		close(ends[0]);
		close(ends[1]);
		execl(program, program, "script", "--daemon", scenario->daemon, "-", NULL);
		fprintf(stderr, "cannot run %s: %s\n", program, strerror(errno));
		_exit(127);
	}
	close(ends[1]);
	return fdopen(ends[0], "r");
}

static void finish(struct scenario *scenario, pid_t pid)
{
	int status = 0;

	waitpid(pid, &status, 0);
	if (!WIFEXITED(status) || WEXITSTATUS(status) != scenario->exit_status)
		fail(scenario, "%s ended with wait status 0x%x, expected exit %d",
		     programs[scenario->program], status, scenario->exit_status);
	if (scenario->n_audits == 0)
		fail(scenario, "no audit was answered");
	if (scenario->n_checks == 0)
		fail(scenario, "a scenario without checks");
}

static bool is_json(FILE *input)
{
	json_t *value = json_loadf(input, JSON_REJECT_DUPLICATES, NULL);
	bool is = value != NULL;

	json_decref(value);
	return is;
}

static void scenario_free(struct scenario *scenario)
{
	for (unsigned int i = 0; i < KEPT_ANSWERS; i++)
		json_decref(scenario->last[i]);
	for (unsigned int i = 0; i < scenario->n_kept; i++)
		json_decref(scenario->kept[i].value);
	for (unsigned int i = 0; i < scenario->n_sums; i++)
		json_decref(scenario->sums[i].value);
	free(scenario->source_line);
}

static void take_output(struct scenario *scenario, int input)
{
	pid_t pid = 0;
	FILE *output = start(scenario, input, &pid);
	char *text = NULL;
	size_t room = 0;

	while (output && getline(&text, &room, output) >= 0) {
		scenario->line++;
		if (text[0] == '{')
			take_answer(scenario, text);
		else
			take_directive(scenario, text);
	}
	finish(scenario, pid);
	free(text);
	if (output)
		fclose(output);
	printf("%s: %s: %u answers, %u checks, %u audits, %u failed\n", scenario->path,
	       program_names[scenario->program], scenario->n_answers, scenario->n_checks,
	       scenario->n_audits, scenario->n_failed);
}

/* 0: passed, 1: failed, 2: cannot run. */
static int run_on(int program, int argc, char **argv)
{
	struct scenario scenario = { .path = argv[1], .program = program };
	int input = read_scenario(&scenario, argc, argv), status = 2;

	if (input < 0) {
		fprintf(stderr, "run FILE [ARGUMENT...]: cannot run the scenario\n");
	} else {
		if (program == ON_DAEMON || !scenario.daemon_only)
			take_output(&scenario, input);
		status = scenario.n_failed > 0;
		close(input);
	}
	scenario_free(&scenario);
	return status;
}

int main(int argc, char **argv)
{
	int on_core, on_daemon;

	if (argc == 2 && strcmp(argv[1], "--json") == 0)
		return is_json(stdin) ? 0 : 1;
	if (argc < 2) {
		fprintf(stderr, "run FILE [ARGUMENT...]: no scenario\n");
		return 2;
	}
	setvbuf(stdout, NULL, _IOLBF, 0);
	on_core = run_on(ON_CORE, argc, argv);
	on_daemon = on_core == 2 ? 2 : run_on(ON_DAEMON, argc, argv);
	return on_core > on_daemon ? on_core : on_daemon;
}
