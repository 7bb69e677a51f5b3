/* SPDX-License-Identifier: Apache-2.0 */
#include "store/why.h"

#include <stdarg.h>
#include <stdio.h>

#include "base/number.h"
#include "store/index.h"

int kvt_store_fail(struct kvt_error *why, int code, const char *format, ...)
{
	va_list arguments;

	why->code = code;
	va_start(arguments, format);
	vsnprintf(why->text, sizeof(why->text), format, arguments);
	va_end(arguments);
	return code;
}

void kvt_store_say_cut(const char *option, uint64_t given_bytes, uint64_t used_bytes)
{
	char given[32], used[32];

	fprintf(stderr, "kvtstored: %s is %s, of which %s are used: a store has no more than %u "
		"pages there\n", option, kvt_size_text(given_bytes, given, sizeof(given)),
		kvt_size_text(used_bytes, used, sizeof(used)), KVT_INDEX_MAX);
}
