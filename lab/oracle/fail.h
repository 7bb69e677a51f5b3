/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_LAB_ORACLE_FAIL_H
#define KVT_LAB_ORACLE_FAIL_H

/**
 * @file fail.h
 * How a step ends that finds no agreement. Steps return 0, or -EBADMSG after oracle_fail() has
 * written down what was expected.
 */

#include <stdint.h>

struct kvt_oracle;

#define TRY(step)                                                                                 \
	do {                                                                                      \
		int try_result = (step);                                                          \
		if (try_result != 0)                                                              \
			return try_result;                                                        \
	} while (0)

/** Returned by a step that refused the operation. Not a mismatch; the record is done. */
#define MODEL_REFUSED 1

int oracle_fail(struct kvt_oracle *o, const char *format, ...)
	__attribute__((format(printf, 2, 3)));
int oracle_expect(struct kvt_oracle *o, const char *what, uint64_t want, uint64_t got);

#endif
