/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_STORE_BENCH_H
#define KVT_STORE_BENCH_H

/** @file bench.h: what this machine's memory and disk give a store, each beside its floor. */

#include "store/file.h"

/** Print a line for each direction, of memory by 1, 2, 4, ... workers up to n and, with a path, of
 * a file that is made there and removed, by n. Returns an exit code. */
int kvt_store_bench(const struct kvt_file_options *options, uint32_t n_workers);

#endif
