/* SPDX-License-Identifier: Apache-2.0 */
#include "lab/trace/options.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/exit.h"
#include "base/number.h"
#include "base/output.h"

void kvt_usage_error(const char *command, const char *format, ...)
{
	va_list arguments;

	fprintf(stderr, "kvtlab %s: ", command);
	va_start(arguments, format);
	vfprintf(stderr, format, arguments);
	va_end(arguments);
	/* The one command whose --help has a part of them. */
	fprintf(stderr, "; kvtlab %s --help%s lists the options\n", command,
		strcmp(command, "replay") == 0 ? "-all" : "");
	exit(KVT_EXIT_USAGE);
}

FILE *kvt_output_option_open(const char *command, const char *option, const char *path)
{
	FILE *file = kvt_file_begin(path);

	if (file)
		return file;
	fprintf(stderr, "kvtlab %s: cannot write the file of --%s, %s: %s\n", command, option, path,
		strerror(errno));
	exit(KVT_EXIT_USAGE);
}

/* Read a number, or exit with an error. */
static uint64_t number_of(const char *command, const char *name, const char *text, uint64_t least,
			  uint64_t most)
{
	uint64_t value;

	if (kvt_number_parse(text, strlen(text), most, &value) || value < least)
		kvt_usage_error(command, "--%s takes a number from %llu to %llu, not '%s'", name,
				(unsigned long long)least, (unsigned long long)most, text);
	return value;
}

bool kvt_number_option_set(const char *command, const struct kvt_number_option *rows, size_t n,
			   int code, const char *text)
{
	for (size_t i = 0; i < n; i++) {
		if (rows[i].code == code) {
			*rows[i].to = (uint32_t)number_of(command, rows[i].name, text,
							  rows[i].least, rows[i].most);
			return true;
		}
	}
	return false;
}

bool kvt_trace_option_set(const char *command, struct kvt_trace_options *options, int code,
			  const char *text)
{
	const struct kvt_number_option numbers[] = {
		{ KVT_TRACE_OPTION_BLOCK, "block-size", &options->block, 1, 1u << 20 },
		{ KVT_TRACE_OPTION_REQUESTS, "requests", &options->requests, 0, UINT32_MAX },
		{ KVT_TRACE_OPTION_USERS, "users", &options->users, 1, 1u << 20 },
		{ KVT_TRACE_OPTION_CONTEXT, "context", &options->context, 0, UINT32_MAX },
		{ KVT_TRACE_OPTION_SESSIONS, "sessions", &options->sessions, 1, 1u << 20 },
		{ KVT_TRACE_OPTION_BURSTS, "bursts", &options->bursts, 1, 64 },
	};

	if (code == KVT_TRACE_OPTION_FORMAT) {
		if (kvt_trace_format_parse(text, &options->format))
			kvt_usage_error(command, "--format takes mooncake, agent, jsonl, generate "
					"or any, not '%s'", text);
		return true;
	}
	if (code == KVT_TRACE_OPTION_SEED) {
		options->seed = number_of(command, "seed", text, 0, UINT64_MAX);
		return true;
	}
	return kvt_number_option_set(command, numbers, sizeof(numbers) / sizeof(numbers[0]), code,
				     text);
}

void kvt_trace_option_file(const char *command, struct kvt_trace_options *options, int argc,
			   char **argv)
{
	bool generate = options->format == KVT_TRACE_GENERATE;

	if (optind < argc)
		options->path = argv[optind++];
	if (optind < argc)
		kvt_usage_error(command, "one FILE at a time, not also '%s'", argv[optind]);
	if (generate && options->path)
		kvt_usage_error(command, "--format generate reads no file, but '%s' is given",
				options->path);
	if (!generate && !options->path)
		kvt_usage_error(command,
				"FILE is missing (-: standard input; or --format generate)");
}
