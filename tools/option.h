/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_TOOLS_OPTION_H
#define KVT_TOOLS_OPTION_H

/** @file option.h: command lines of the programs. */

#include <getopt.h>

/** Read the next option as getopt_long() without short options does. Also '?', after saying so: an
 * option that takes one value is given twice. Of the rows, 64 at most, the one named `many` takes
 * several; it may be NULL. optind is 0 or 1 at the first call. */
int kvt_option_next(int argc, char **argv, const struct option *rows, const char *many);

/** Name of the option that was read last, for messages. */
const char *kvt_option_name(void);

#endif
