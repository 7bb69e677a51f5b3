/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/option.h"

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
	if (rows[at].has_arg == required_argument && (given >> at & 1) &&
	    (!many || strcmp(last, many) != 0)) {
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

const char *kvt_option_given(const char *const *names)
{
	for (; *names; names++)
		for (unsigned int i = 0; all[i].name; i++)
			if ((given >> i & 1) && strcmp(all[i].name, *names) == 0)
				return *names;
	return NULL;
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
