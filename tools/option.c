/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/option.h"

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

static uint64_t given; /* rows that were read */
static const char *last = "";

int kvt_option_next(int argc, char **argv, const struct option *rows, const char *many)
{
	int at = 0, code;

	if (optind < 2)
		given = 0;
	code = getopt_long(argc, argv, "", rows, &at);
	if (code == '?' || code == -1)
		return code;
	last = rows[at].name;
	if (rows[at].has_arg == required_argument && (given >> at & 1) &&
	    (!many || strcmp(last, many) != 0)) {
		fprintf(stderr, "%s: --%s is given twice: keep one\n",
			program_invocation_short_name, last);
		return '?';
	}
	given |= 1ull << at;
	return code;
}

const char *kvt_option_name(void)
{
	return last;
}
