/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_SHM_STDIO_H
#define KVT_SHM_STDIO_H

/** Prepare the standard streams; the first call of each program's main().
 *
 * A closed descriptor of 0 to 2 becomes /dev/null: else a file that is opened later takes
 * its place, and gets messages. If standard output could not be written when the program
 * ends with 0, it says so and ends with 1, also where it was closed; a reader that closed its pipe
 * is no news.
 *
 * @program  for the message. */
void kvt_stdio_begin(const char *program);

#endif
