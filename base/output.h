/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_BASE_OUTPUT_H
#define KVT_BASE_OUTPUT_H

/** @file output.h: files that a program writes. */

#include <stdio.h>

/** Open a file for output before work begins: what it had stays until kvt_file_end(). NULL with
 * errno. */
FILE *kvt_file_begin(const char *path);
/** Close a file that was only written to, and cut it there. 0, or the negative errno of a write
 * that failed. */
int kvt_file_end(FILE *file);

#endif
