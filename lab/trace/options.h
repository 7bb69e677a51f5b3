/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_LAB_TRACE_OPTIONS_H
#define KVT_LAB_TRACE_OPTIONS_H

/**
 * @file options.h
 * The command line of commands that read a trace: what they share, and their errors.
 */

#include "base/option.h"
#include "lab/trace/trace.h"

/** Codes of the shared options; a command's own begin at KVT_TRACE_OPTION_END. */
enum kvt_trace_option {
	KVT_TRACE_OPTION_FORMAT = 256,
	KVT_TRACE_OPTION_BLOCK,
	KVT_TRACE_OPTION_REQUESTS,
	KVT_TRACE_OPTION_USERS,
	KVT_TRACE_OPTION_CONTEXT,
	KVT_TRACE_OPTION_SESSIONS,
	KVT_TRACE_OPTION_BURSTS,
	KVT_TRACE_OPTION_SEED,
	KVT_TRACE_OPTION_END,
};

/** Rows for kvt_option_next(). */
#define KVT_TRACE_LONG_OPTIONS                                             \
	{ "format", required_argument, NULL, KVT_TRACE_OPTION_FORMAT },    \
	{ "block-size", required_argument, NULL, KVT_TRACE_OPTION_BLOCK }, \
	{ "requests", required_argument, NULL, KVT_TRACE_OPTION_REQUESTS }, \
	{ "users", required_argument, NULL, KVT_TRACE_OPTION_USERS },      \
	{ "context", required_argument, NULL, KVT_TRACE_OPTION_CONTEXT },  \
	{ "sessions", required_argument, NULL, KVT_TRACE_OPTION_SESSIONS }, \
	{ "bursts", required_argument, NULL, KVT_TRACE_OPTION_BURSTS },    \
	{ "seed", required_argument, NULL, KVT_TRACE_OPTION_SEED }

/** What --help says of all traces. */
#define KVT_TRACE_USAGE                                                                       \
	"  --format F          mooncake, agent, jsonl, generate (no FILE), or any: that of the\n" \
	"                      first object of FILE (any)\n"                                      \
	"                      A byte of a text is a position; for a model's tokens pass FILE\n"  \
	"                      through python3 -m kvtrunk.tokens MODEL FILE\n"                    \
	"  --block-size N      positions that a block id stands for (mooncake 512, agent 64)\n"   \
	"  --requests N        only the first N\n"                                                \
	"  --users N           agent, generate: users active at once (16)\n"

/** What --help says of generated traces and long requests. */
#define KVT_TRACE_MORE_USAGE                                                                  \
	"  --context N         leave out requests of more positions, answer included\n"           \
	"  --sessions N        generate: how many sessions (64)\n"                                \
	"  --bursts N          agent, generate: each sub-agent starts N times at once (1)\n"      \
	"  --seed N            of generate and of all keys (0)\n"

/** An option that takes a number. */
struct kvt_number_option {
	int code;
	const char *name;
	uint32_t *to;
	uint32_t least, most;
};

/** Print what is wrong with the command line of `kvtlab COMMAND`, and exit. */
void kvt_usage_error(const char *command, const char *format, ...)
	__attribute__((noreturn, format(printf, 2, 3)));
/** Store the number of the row with this code. False: none has it. */
bool kvt_number_option_set(const char *command, const struct kvt_number_option *rows, size_t n,
			   int code, const char *text);
/** Store a shared option. False: the code is none of theirs. */
bool kvt_trace_option_set(const char *command, struct kvt_trace_options *options, int code,
			  const char *text);
/** Open the file of --`option` for output, or exit with an error. */
FILE *kvt_output_option_open(const char *command, const char *option, const char *path);
/** Store FILE, the only word after the options, or exit with an error. */
void kvt_trace_option_file(const char *command, struct kvt_trace_options *options, int argc,
			   char **argv);

#endif
