/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_BASE_OPTION_H
#define KVT_BASE_OPTION_H

/** @file option.h: command lines of the programs. */

#include <getopt.h>
#include <stdbool.h>

/** An option that does nothing without one of the others; `or` may be NULL. */
struct kvt_option_need {
	const char *name, *needs, *or;
};

/** Read the next option as getopt_long() without short options does. '?' after saying, in one line,
 * what is wrong: it is none, its value is missing or too much, or it is given twice. At most 64
 * rows; the one named `many` is taken several times, it may be NULL. optind is 0 or 1 at the first
 * call.
 *
 * @help  the command that lists the options, as "kvtlab replay --help-all". */
int kvt_option_next(int argc, char **argv, const struct option *rows, const char *many,
		    const char *help);

/** Name of the option that was read last, for messages. */
const char *kvt_option_name(void);

/** Find the first of these names, which end with NULL, that was read. NULL: none was. */
const char *kvt_option_given(const char *const *names);

/** True, after saying what is missing, if an option of a row was read, and none that it needs. The
 * last row is zero. */
bool kvt_option_lacks(const struct kvt_option_need *rows, const char *help);

/** True, after saying so, if a word, which is no option, follows the option that was read last. */
bool kvt_option_word(int argc, char **argv);

/** True, after saying so, if words follow the options of a program that takes none. */
bool kvt_option_rest(int argc, char **argv);

#endif
