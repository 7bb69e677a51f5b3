/* SPDX-License-Identifier: Apache-2.0 */
#include "store/why.h"

#include <stdarg.h>
#include <stdio.h>

int kvt_store_fail(struct kvt_error *why, int code, const char *format, ...)
{
	va_list arguments;

	why->code = code;
	va_start(arguments, format);
	vsnprintf(why->text, sizeof(why->text), format, arguments);
	va_end(arguments);
	return code;
}
