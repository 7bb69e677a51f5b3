/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_BASE_PROGRAM_H
#define KVT_BASE_PROGRAM_H

/**
 * @file program.h
 * Running another program of kvtrunk: from the same folder, or from PATH.
 */

#include <stdbool.h>
#include <stddef.h>

/** Write the path of program `name`: beside the running program, else the bare name, for execvp().
 */
void kvt_program_find(const char *name, char *ret_path, size_t bytes);

/** Check whether program `name` is beside the running program or in PATH. */
bool kvt_program_exists(const char *name);

/** Replace this process by program `name` with `argv`. Returns only if that fails, with -errno;
 * -ENOENT: not installed. */
int kvt_program_exec(const char *name, char **argv);

#endif
