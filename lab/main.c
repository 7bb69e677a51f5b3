/* SPDX-License-Identifier: Apache-2.0 */

/**
 * @file main.c
 * kvtlab, the developers' program: drives daemons by scripts and traces, checks their logs,
 * kills them under load, measures them.
 */

#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "base/exit.h"
#include "base/program.h"
#include "kvtrunk_client.h"
#include "lab/analyze/analyze.h"
#include "lab/chaos/chaos.h"
#include "lab/replay/replay.h"
#include "lab/script/script.h"
#include "lab/verify.h"
#include "shm/commit.h"
#include "shm/stdio.h"

static const char *const bench_parts[] = { "attn", "restart" };
#define N_BENCH_PARTS (sizeof(bench_parts) / sizeof(bench_parts[0]))

/* Execute kvtbench. It is a separate program: it measures the library without protocol steps, and
 * parts of it need more libraries than kvtlab. */
static int bench(int argc, char **argv)
{
	char name[32] = "kvtbench";
	int rc;

	for (size_t i = 0; i < N_BENCH_PARTS; i++) {
		if (argc < 2 || strcmp(argv[1], bench_parts[i]) != 0)
			continue;
		snprintf(name, sizeof(name), "kvtbench-%s", bench_parts[i]);
		argv++;
		break;
	}
	argv[0] = name;
	signal(SIGPIPE, SIG_DFL);
	rc = kvt_program_exec(name, argv);
	if (rc == -ENOENT)
		fprintf(stderr, "kvtlab: %s is not installed: a checkout has it after make\n",
			name);
	else
		fprintf(stderr, "kvtlab: cannot run %s: %s\n", name, strerror(-rc));
	return KVT_EXIT_USAGE;
}

static const struct command {
	const char *name;
	const char *help;
	int (*run)(int argc, char **argv); /* argv[0] is the command */
} commands[] = {
	{ "script", "drive a daemon, one operation a line", kvt_script_main },
	{ "replay", "send a trace through worker processes", kvt_replay_main },
	{ "analyze", "say what a trace or batch has in common, before it runs", kvt_analyze_main },
	{ "verify", "compare a daemon's operation log with the model", kvt_verify_main },
	{ "chaos", "kill and stop workers and the daemon under load", kvt_chaos_main },
	{ "bench", NULL, bench }, /* help depends on what is installed */
};

#define N_COMMANDS (sizeof(commands) / sizeof(commands[0]))

/* List the benchmarks that are here. */
static void show_bench(FILE *to)
{
	char name[32];

	if (!kvt_program_exists("kvtbench"))
		return;
	fprintf(to, "  %-8s %s", "bench", "measure the daemon");
	for (size_t i = 0; i < N_BENCH_PARTS; i++) {
		snprintf(name, sizeof(name), "kvtbench-%s", bench_parts[i]);
		if (kvt_program_exists(name))
			fprintf(to, "; bench %s", bench_parts[i]);
	}
	fprintf(to, "\n");
}

static void usage(FILE *to)
{
	fprintf(to, "usage: kvtlab COMMAND [...]\n\n");
	for (size_t i = 0; i < N_COMMANDS; i++)
		if (commands[i].help)
			fprintf(to, "  %-8s %s\n", commands[i].name, commands[i].help);
	show_bench(to);
	fprintf(to, "\nkvtlab COMMAND --help says more. --version prints the version.\n");
}

static int refuse_word(const char *word)
{
	fprintf(stderr, "kvtlab: unexpected word '%s'; kvtlab --help lists the commands\n", word);
	return KVT_EXIT_USAGE;
}

static int run(int argc, char **argv)
{
	for (size_t i = 0; i < N_COMMANDS; i++)
		if (strcmp(argv[0], commands[i].name) == 0)
			return commands[i].run(argc, argv);
	fprintf(stderr, "kvtlab: no command '%s'; kvtlab --help lists them\n", argv[0]);
	return KVT_EXIT_USAGE;
}

/* List the commands, or have the named one print its help. */
static int help(int argc, char **argv)
{
	char *words[] = { argv[0], (char *)(uintptr_t)"--help", NULL };

	if (argc > 1)
		return refuse_word(argv[1]);
	if (argc == 1)
		return run(2, words);
	usage(stdout);
	return KVT_EXIT_OK;
}

int main(int argc, char **argv)
{
	kvt_stdio_begin("kvtlab");
	signal(SIGPIPE, SIG_IGN);
	if (argc < 2) {
		usage(stderr);
		fputs("\nkvtlab: no command is given\n", stderr);
		return KVT_EXIT_USAGE;
	}
	if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "help") == 0)
		return help(argc - 2, argv + 2);
	if (strcmp(argv[1], "--version") == 0) {
		if (argc > 2)
			return refuse_word(argv[2]);
		printf("kvtlab %s%s\n", kvt_version(), kvt_commit);
		return KVT_EXIT_OK;
	}
	return run(argc - 1, argv + 1);
}
