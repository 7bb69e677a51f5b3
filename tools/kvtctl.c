/* SPDX-License-Identifier: Apache-2.0 */

/**
 * @file kvtctl.c
 * kvtctl: look at a kvtrunk daemon, change what it caches. Some commands are kvtlab's.
 */

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/exit.h"
#include "base/program.h"
#include "base/text.h"
#include "kvtrunk_client.h"
#include "shm/commit.h"
#include "shm/stdio.h"
#include "tools/admin.h"

#define DEFAULT_TIMEOUT_NS 3000000000
#define MAX_TIMEOUT_S 86400

static const struct command {
	const char *name;
	const char *arguments;
	const char *help;    /* one line */
	/* More, for `help COMMAND`; lines that end with '\n'. NULL: a command of kvtlab, which
	 * reads what follows. */
	const char *details;
	int (*run)(struct kvt_admin *admin); /* NULL: asks no daemon */
	bool patient; /* may take the daemon longer than --timeout */
} commands[] = {
	{ "status", "", "version, pages, tree, leases, hits, latency by operation", "",
	  kvt_admin_status, false },
	{ "pid", "", "the daemon's process, as in kill $(kvtctl pid)", "", kvt_admin_pid, false },
	{ "list", "", "the instances of this host, and those that cannot be asked",
	  "Of the folder of the socket in use, /run/kvtrunk and $XDG_RUNTIME_DIR/kvtrunk, where\n"
	  "-i looks, too, in this order. Exit 1 if one does not answer, or a folder may not be\n"
	  "read.\n", kvt_admin_list, false },
	{ "ping", "", "does it answer, and how soon", "", kvt_admin_ping, false },
	{ "config", "", "options in use: value, and where it was set",
	  "in use      the effective value (n_pages = 0: as many as fit)\n"
	  "configured  the value that was set, if different\n"
	  "from        default, --flag, or FILE:LINE\n"
	  "change by   reload: SIGHUP after the file was changed; restart\n",
	  kvt_admin_config, false },
	{ "metrics", "", "the same as status and more, in the text format of Prometheus", "",
	  kvt_admin_metrics, false },
	{ "top", "[--once | --lines] [--interval-ms N]", "watch it work; q leaves",
	  "--once            one frame: rates since cache, process, session began\n"
	  "--lines           one line for each interval, until interrupted; also into a pipe\n"
	  "--interval-ms N   50 to 3600000 (1000)\n",
	  kvt_admin_top, false },
	{ "clients", "", "sessions and what they hold", "", kvt_admin_clients, false },
	{ "namespaces", "", "namespaces and what they cache", "", kvt_admin_namespaces, false },
	{ "tree", "[--lines N] [--depth N] [--namespace NAMESPACE]", "draw the tree",
	  "The most used runs first. NAMESPACE is its label, or as for remove.\n",
	  kvt_admin_tree, false },
	{ "page", "PAGE", "a page's state, its owner or place", "PAGE is its number.\n",
	  kvt_admin_page, false },
	{ "feed", "[--snapshot]", "what becomes cached, and what stops being so",
	  "A line for each change, until interrupted: its order (seq), what happened, pages.\n"
	  "With --json a line of JSON each, with all keys.\n"
	  "--snapshot   what is cached now, and end; seq is 0\n",
	  kvt_admin_feed, false },
	{ "audit", "", "check every invariant; exit 1 if one does not hold", "", kvt_admin_audit,
	  true },
	{ "evict", "PAGES", "free so many evictable pages", "", kvt_admin_evict, true },
	{ "remove", "NAMESPACE [--all | --keys LIST [--root-key N]]",
	  "forget a namespace or a prefix",
	  "NAMESPACE is a label or a digest that kvtctl namespaces shows, what the digest is made\n"
	  "of (NAME or SALT/ADAPTER), or '' for the plain namespace. LIST is a prefix as in\n"
	  "scripts, 1,2,3..9.\n"
	  "--all          the whole namespace, as without --keys; '' needs it\n"
	  "--root-key N   the root of the prefix, if it has one (kvtctl tree shows it)\n",
	  kvt_admin_remove, true },
	{ "reset", "", "forget everything (new weights)", "", kvt_admin_reset, true },
	{ "upgrade", "[--binary PATH]", "replace the daemon's program; clients see a pause",
	  "For a daemon under kvtrunkd --supervise; elsewhere it says what to run instead. The\n"
	  "new program first recovers a copy of the cache. If it cannot, within 5 s, nothing\n"
	  "happens; if it is not ready in time after that, the old one is started again.\n"
	  "--binary PATH   this program, for uid 0 and the daemon's uid; without it, the file\n"
	  "                that the present one was started from, as it is now\n",
	  kvt_admin_upgrade, true },
	{ "fence", "SESSION", "declare that a dead session writes no more",
	  "SESSION is its number in kvtctl clients. If it is not true, another client's KV is\n"
	  "overwritten.\n", kvt_admin_fence, false },
	{ "store", "status | list | drop", "the store beside the daemon: what it has and loads",
	  "status   copies, fetches, loads; exit 1 if something is wrong with it\n"
	  "list     all stores of the folder that the daemon's socket is in\n"
	  "drop     forget all that it has; for uid 0 and the store's own user. What the pool\n"
	  "         has is copied again when it is stored again: reset or remove it first\n",
	  kvt_admin_store, false },
	{ "geometry", "MODEL [--tensor-parallel N] [--kv-type TYPE] [--page-size N]",
	  "kvtrunkd's options for a model; asks no daemon",
	  "MODEL is a folder with a config.json, or such a file, as Hugging Face has them.\n"
	  "--tensor-parallel N   ranks, each with a slab and its part of the KV heads (1)\n"
	  "--kv-type TYPE        bf16, fp16, fp32, fp8_e4m3 (that of the weights)\n"
	  "--page-size N         positions a page, the engine's block size (64)\n"
	  "As in: kvtrunkd $(kvtctl geometry MODEL) --pool-bytes=8G\n",
	  kvt_admin_geometry, false },
	{ "script", "", "run kvtlab script: operations line by line", NULL, NULL, false },
	{ "replay", "", "run kvtlab replay: a trace through worker processes", NULL, NULL, false },
	{ "verify", "", "run kvtlab verify: check a daemon's operation log", NULL, NULL, false },
	{ "help", "[COMMAND]", "this list, or more about a command", "", NULL, false },
	{ "version", "", "the version of kvtctl; status shows the daemon's", "", NULL, false },
};

#define N_COMMANDS (sizeof(commands) / sizeof(commands[0]))

/* Print one screen; `all`: also kvtlab's commands, the options and the exit codes. */
static void help(FILE *to, bool all)
{
	fprintf(to, "usage: kvtctl [-i NAME | --socket PATH] [--timeout SECONDS] [--json] "
		"COMMAND [...]\n\n");
	for (size_t i = 0; i < N_COMMANDS; i++)
		if (all || commands[i].run)
			fprintf(to, "  %-11s %s\n", commands[i].name, commands[i].help);
	if (!all) {
		fprintf(to, "\nkvtctl help COMMAND: more about one. kvtctl --help-all: options, "
			"and all else.\n");
		return;
	}
	fprintf(to, "\n  -i NAME             an instance of this host, as kvtctl list shows them"
		"\n  --socket PATH       default: $KVTRUNK_SOCKET, then "
		"/run/kvtrunk/default.sock\n"
		"  --timeout SECONDS   how long a daemon may take to answer (3); audit, evict,\n"
		"                      remove, reset, upgrade may take longer unless it is given\n"
		"  --json              one line of JSON instead of text\n"
		"  --help, --help-all, --version\n\n"
		"exit: 0 done, 1 a problem was found or the daemon refused, 2 usage, "
		"3 cannot connect\n");
}

static const char *command_name(const void *list, size_t i)
{
	(void)list;
	return i < N_COMMANDS ? commands[i].name : NULL;
}

/* Say that a word is no `what`, and which one it is near to. */
static void say_unknown(const char *what, const char *word,
			const char *(*name_of)(const void *list, size_t i))
{
	const char *nearest = kvt_admin_nearest(word, name_of, NULL);

	if (nearest)
		fprintf(stderr, "kvtctl: no %s '%s'; did you mean '%s'?\n", what, word, nearest);
	else
		fprintf(stderr, "kvtctl: no %s '%s'; kvtctl --help-all lists them\n", what, word);
}

/* Find a command. NULL after printing the nearest. */
static const struct command *find(const char *name)
{
	for (size_t i = 0; i < N_COMMANDS; i++)
		if (strcmp(name, commands[i].name) == 0)
			return &commands[i];
	say_unknown("command", name, command_name);
	return NULL;
}

/* Replace this program by kvtlab, which uses no other daemon than one that --socket names. Returns
 * only on failure. */
static int run_lab(int n, char **words, const char *socket_path, bool json)
{
	char **argv = kvt_memory_grow(NULL, (size_t)n + 5, sizeof(*argv));
	int rc, used = 0;

	argv[used++] = (char *)(uintptr_t)"kvtlab";
	for (int i = 0; i < n; i++)
		argv[used++] = words[i];
	if (socket_path && strcmp(words[0], "verify") != 0) {
		argv[used++] = (char *)(uintptr_t)"--socket";
		argv[used++] = (char *)(uintptr_t)socket_path;
	}
	if (json)
		argv[used++] = (char *)(uintptr_t)"--json";
	argv[used] = NULL;
	rc = kvt_program_exec("kvtlab", argv);
	if (rc == -ENOENT)
		fprintf(stderr, "kvtctl: %s is a command of kvtlab, which is not installed: "
			"install the package kvtrunk-lab\n", words[0]);
	else
		fprintf(stderr, "kvtctl: cannot run kvtlab: %s\n", strerror(-rc));
	free(argv);
	return KVT_EXIT_USAGE;
}

static int help_of(const struct command *command)
{
	char *words[] = { (char *)(uintptr_t)command->name, (char *)(uintptr_t)"--help" };

	if (!command->details)
		return run_lab(2, words, NULL, false);
	printf("usage: kvtctl [-i NAME | --socket PATH] [--timeout SECONDS] [--json] "
	       "%s %s\n%s\n%s%s",
	       command->name, command->arguments, command->help, *command->details ? "\n" : "",
	       command->details);
	return KVT_EXIT_OK;
}

static int run_help(int argc, char **argv)
{
	const struct command *command = NULL;

	if (argc > 1) {
		fprintf(stderr, "usage: kvtctl help [COMMAND]\nkvtctl help: unexpected word '%s'\n",
			argv[1]);
		return KVT_EXIT_USAGE;
	}
	if (argc == 0) {
		help(stdout, false);
		return KVT_EXIT_OK;
	}
	command = find(argv[0]);
	return command ? help_of(command) : KVT_EXIT_USAGE;
}

static int run_admin(const struct command *command, struct kvt_admin *admin, bool timeout_given)
{
	int status;

	admin->command = command->name;
	admin->arguments = command->arguments;
	admin->patient = command->patient && !timeout_given;
	status = command->run(admin);
	if (admin->client)
		kvt_client_abandon(admin->client);
	return status;
}

/* Options before the command, and its words. */
struct invocation {
	const char *socket_path;
	const char *instance; /* its name, instead of a path */
	int64_t timeout_ns; /* 0: not given */
	bool json;
	int n; /* words: the command and its arguments */
	char **words;
};

static int run(const struct invocation *given)
{
	char named[KVT_ADMIN_PATH_BYTES];
	struct kvt_admin admin = {
		.socket_path = given->instance ? named : given->socket_path,
		.timeout_ns = given->timeout_ns ? given->timeout_ns : DEFAULT_TIMEOUT_NS,
		.json = given->json, .argc = given->n - 1, .argv = given->words + 1,
		.command = given->words[0], .arguments = "",
	};
	const struct command *command = find(given->words[0]);

	if (!command)
		return KVT_EXIT_USAGE;
	if (given->instance && kvt_admin_find(given->instance, named) != 0)
		return KVT_EXIT_CONNECT;
	if (command->run)
		return run_admin(command, &admin, given->timeout_ns != 0);
	if (strcmp(command->name, "help") == 0)
		return run_help(admin.argc, admin.argv);
	if (!command->details)
		return run_lab(given->n, given->words, admin.socket_path, given->json);
	if (kvt_admin_words(&admin, NULL, NULL, 0))
		return KVT_EXIT_USAGE;
	printf("kvtctl %s%s\n", kvt_version(), kvt_commit);
	return KVT_EXIT_OK;
}

static bool keeps_its_options(const char *name)
{
	for (size_t i = 0; i < N_COMMANDS; i++)
		if (!commands[i].details && strcmp(name, commands[i].name) == 0)
			return true;
	return false;
}

static int read_timeout(const char *text, int64_t *ret_ns)
{
	char *end;
	double seconds = strtod(text, &end);

	if (end == text || *end || !(seconds >= 0.001) || seconds > MAX_TIMEOUT_S) {
		fprintf(stderr, "kvtctl: --timeout takes seconds from 0.001 to %d, not '%s'\n",
			MAX_TIMEOUT_S, text);
		return -EINVAL;
	}
	*ret_ns = (int64_t)(seconds * 1e9);
	return 0;
}

/* The value of an option that may be written `--name VALUE` or `--name=VALUE`; NULL if argv[*i] is
 * not this option. Without a value the text is "". */
static const char *value_of(const char *name, char **argv, int *i)
{
	size_t n = strlen(name);

	if (strncmp(argv[*i], name, n) != 0)
		return NULL;
	if (argv[*i][n] == '=')
		return argv[*i] + n + 1;
	if (argv[*i][n] || !argv[*i + 1])
		return argv[*i][n] ? NULL : "";
	return argv[++*i];
}

static const char *own_option(const void *list, size_t i)
{
	static const char *const names[] = { "--socket", "--timeout", "--json", "--help",
					     "--help-all", "--version" };

	(void)list;
	return i < sizeof(names) / sizeof(names[0]) ? names[i] : NULL;
}

static int name_instance(struct invocation *given, const char *name)
{
	given->instance = name;
	if (*name && !strchr(name, '/'))
		return 0;
	fprintf(stderr, "kvtctl: -i needs the name of an instance, not '%s': kvtctl list shows "
		"them, --socket takes a path\n", name);
	return 1;
}

static bool names_one(const struct invocation *given)
{
	return given->socket_path || given->instance;
}

static bool is_twice(bool given, const char *what)
{
	if (given)
		fprintf(stderr, "kvtctl: %s is given twice: keep one\n", what);
	return given;
}

/* One of our own options, which may stand anywhere. Negative: it is none; 0: taken; 1: it is
 * wrong, and that was said. */
static int take_own(struct invocation *given, char **argv, int *i)
{
	const char *value;

	if (strcmp(argv[*i], "--json") == 0) {
		if (is_twice(given->json, "--json"))
			return 1;
		given->json = true;
		return 0;
	}
	value = value_of("--socket", argv, i);
	if (value) {
		if (!*value)
			fprintf(stderr, "kvtctl: --socket needs a path\n");
		if (!*value || is_twice(names_one(given), "one of -i and --socket"))
			return 1;
		given->socket_path = value;
		return 0;
	}
	value = value_of("-i", argv, i);
	if (value)
		return is_twice(names_one(given), "one of -i and --socket") ||
		       name_instance(given, value);
	value = value_of("--timeout", argv, i);
	if (value)
		return is_twice(given->timeout_ns, "--timeout") ||
		       read_timeout(value, &given->timeout_ns) != 0;
	return -1;
}

/* True if there is an argument, and it is no option. */
static bool is_word(const char *argument)
{
	return argument && *argument != '-';
}

static int help_all(const char *next)
{
	if (is_word(next)) {
		fprintf(stderr, "kvtctl: --help-all: unexpected word '%s'\n", next);
		return KVT_EXIT_USAGE;
	}
	help(stdout, true);
	return KVT_EXIT_OK;
}

static void say_no_command(const struct invocation *given)
{
	if (names_one(given))
		fprintf(stderr, "\nkvtctl: no command; '%s' was taken for the %s\n",
			given->instance ? given->instance : given->socket_path,
			given->instance ? "name of -i" : "path of --socket");
	else
		fprintf(stderr, "\nkvtctl: no command\n");
}

int main(int argc, char **argv)
{
	/* The words are compacted in place. */
	struct invocation given = { .words = argv + 1 };
	const struct command *command;

	kvt_stdio_begin("kvtctl");
	signal(SIGPIPE, SIG_IGN);
	for (int i = 1; i < argc; i++) {
		bool own = given.n == 0 || !keeps_its_options(given.words[0]);
		int taken = own ? take_own(&given, argv, &i) : -1;

		if (taken > 0)
			return KVT_EXIT_USAGE;
		if (taken == 0)
			continue;
		if (own && (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0)) {
			if (given.n == 0)
				return run_help(is_word(argv[i + 1]) ? argc - i - 1 : 0,
						argv + i + 1);
			command = find(given.words[0]);
			return command ? help_of(command) : KVT_EXIT_USAGE;
		}
		if (given.n == 0 && strcmp(argv[i], "--help-all") == 0)
			return help_all(argv[i + 1]);
		if (given.n == 0 && strcmp(argv[i], "--version") == 0)
			argv[i] = (char *)(uintptr_t)"version";
		if (given.n == 0 && argv[i][0] == '-') {
			say_unknown("option", argv[i], own_option);
			return KVT_EXIT_USAGE;
		}
		given.words[given.n++] = argv[i];
	}
	given.words[given.n] = NULL;
	if (given.n == 0) {
		help(stderr, false);
		say_no_command(&given);
		return KVT_EXIT_USAGE;
	}
	return run(&given);
}
