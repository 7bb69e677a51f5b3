/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_STORE_WHY_H
#define KVT_STORE_WHY_H

/** @file why.h: what a user reads when the store cannot start. */

#include "kvtrunk_client.h"

/** Write the sentence. Returns `code`. */
int kvt_store_fail(struct kvt_error *why, int code, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

#endif
