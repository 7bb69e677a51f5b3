/* SPDX-License-Identifier: Apache-2.0 */
#include "base/option.h"

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

static uint64_t given; /* rows that were read */
static const struct option *all = NULL;
static const char *last = "";

/* Say what is wrong with a word of the command line. `help` is the command that lists the options,
 * as "kvtlab replay --help-all": what is in front of its option speaks. */
static int refuse(const char *help, const char *word, const char *what)
{
	fprintf(stderr, "%.*s: %.*s %s; %s lists the options\n", (int)(strstr(help, " --") - help),
		help, (int)strcspn(word, "="), word, what, help);
	return '?';
}

int kvt_option_next(int argc, char **argv, const struct option *rows, const char *many,
		    const char *help)
{
	int at = 0, code;

	if (optind < 2)
		given = 0;
	opterr = 0;
	all = rows;
	code = getopt_long(argc, argv, ":", rows, &at);
	if (code == ':')
		return refuse(help, argv[optind - 1], "needs a value");
	if (code == '?')
		return refuse(help, argv[optind - 1], optopt ? "takes no value" : "is no option");
	if (code == -1)
		return code;
	last = rows[at].name;
	if ((given >> at & 1) && (!many || strcmp(last, many) != 0)) {
		fprintf(stderr, "%.*s: --%s is given twice: keep one\n",
			(int)(strstr(help, " --") - help), help, last);
		return '?';
	}
	given |= 1ull << at;
	return code;
}

const char *kvt_option_name(void)
{
	return last;
}

static bool is_given(const char *name)
{
	for (unsigned int i = 0; all[i].name; i++)
		if ((given >> i & 1) && strcmp(all[i].name, name) == 0)
			return true;
	return false;
}

const char *kvt_option_given(const char *const *names)
{
	while (*names && !is_given(*names))
		names++;
	return *names;
}

bool kvt_option_lacks(const struct kvt_option_need *rows, const char *help)
{
	for (; rows->name; rows++) {
		if (!is_given(rows->name) || is_given(rows->needs) ||
		    (rows->or && is_given(rows->or)))
			continue;
		fprintf(stderr, "%.*s: --%s needs --%s%s%s; %s lists the options\n",
			(int)(strstr(help, " --") - help), help, rows->name, rows->needs,
			rows->or ? " or --" : "", rows->or ? rows->or : "", help);
		return true;
	}
	return false;
}

bool kvt_option_word(int argc, char **argv)
{
	return optind < argc && *argv[optind] != '-' && kvt_option_rest(argc, argv);
}

bool kvt_option_rest(int argc, char **argv)
{
	if (optind < argc)
		fprintf(stderr, "%s: unexpected word '%s'; options start with --\n",
			program_invocation_short_name, argv[optind]);
	return optind < argc;
}
