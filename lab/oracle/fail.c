/* SPDX-License-Identifier: Apache-2.0 */
#include "lab/oracle/fail.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>

#include "lab/oracle/state.h"

int oracle_fail(struct kvt_oracle *o, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vsnprintf(o->why, o->why_bytes, format, args);
	va_end(args);
	return -EBADMSG;
}

int oracle_expect(struct kvt_oracle *o, const char *what, uint64_t want, uint64_t got)
{
	if (want == got)
		return 0;
	return oracle_fail(o, "%s: expected %llu, the record says %llu", what,
			   (unsigned long long)want, (unsigned long long)got);
}
