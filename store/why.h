/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_STORE_WHY_H
#define KVT_STORE_WHY_H

/** @file why.h: what a user reads when the store cannot start. */

#include "kvtrunk_client.h"

/** Write the sentence. Returns `code`. */
int kvt_store_fail(struct kvt_error *why, int code, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

/** Say that a size was cut to what the most pages take. */
void kvt_store_say_cut(const char *option, uint64_t given_bytes, uint64_t used_bytes);

#endif
