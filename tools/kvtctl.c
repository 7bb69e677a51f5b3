/* SPDX-License-Identifier: Apache-2.0 */

/**
 * @file kvtctl.c
 * kvtctl: look at a kvtrunk daemon, change what it caches, drive it by scripts, replay traces.
 */

#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "tools/admin.h"
#include "tools/script.h"

#ifdef KVT_HAVE_REPLAY
int kvt_replay_main(int argc, char **argv);
#endif
#ifdef KVT_HAVE_VERIFY
int kvt_verify_main(int argc, char **argv);
#endif

static const struct command {
	const char *name;
	int (*run)(struct kvt_admin *admin);
	const char *help;
} commands[] = {
	{ "status", kvt_admin_status, "pages, tree, leases, hits, latency by operation" },
	{ "metrics", kvt_admin_metrics, "the same and more, in the text format of Prometheus" },
	{ "top", kvt_admin_top, "watch it work [--once] [--interval-ms N]; q leaves" },
	{ "clients", kvt_admin_clients, "sessions and what they hold" },
	{ "namespaces", kvt_admin_namespaces, "namespaces and what they cache" },
	{ "tree", kvt_admin_tree, "draw the tree [--lines N] [--depth N] [--namespace LABEL]" },
	{ "page", kvt_admin_page, "PAGE: what one page is" },
	{ "audit", kvt_admin_audit, "check every invariant; exit 1 if one does not hold" },
	{ "evict", kvt_admin_evict, "PAGES: free so many evictable pages" },
	{ "remove", kvt_admin_remove, "NAMESPACE [--keys LIST]: forget a namespace or a prefix" },
	{ "reset", kvt_admin_reset, "forget everything (new weights)" },
	{ "fence", kvt_admin_fence, "SESSION: declare that a dead session writes no more" },
};

static void help(FILE *to)
{
	fprintf(to, "usage: kvtctl [--socket PATH] [--json] COMMAND [...]\n\n");
	for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++)
		fprintf(to, "  %-11s %s\n", commands[i].name, commands[i].help);
	fprintf(to, "  %-11s %s\n", "script", "[--daemon 'name=value ...'] FILE|-: operations line "
		"by line");
	fprintf(to, "  %-11s %s\n", "replay", "--format FORMAT FILE ...: replay a trace");
	fprintf(to, "  %-11s %s\n", "verify", "LOG: check a daemon's operation log");
	fprintf(to, "\n  --socket PATH   default: $KVTRUNK_SOCKET, then /run/kvtrunk/default.sock\n"
		"  --json          one line of JSON instead of text\n"
		"  --help, --version\n\n"
		"exit: 0 done, 1 a problem was found or the daemon refused, 2 usage, "
		"3 cannot connect\n");
}

static int run_admin(const struct command *command, struct kvt_admin *admin,
		     const char *socket_path)
{
	struct kvt_options options = KVT_OPTIONS_INIT;
	struct kvt_error error = { .text = "" };
	int status;

	options.socket_path = socket_path;
	options.label = "kvtctl";
	options.flags = KVT_HELLO_OBSERVE;
	options.connect_wait_ns = -1;
	if (kvt_client_connect(&admin->client, &options, &error)) {
		fprintf(stderr, "kvtctl: %s\n", error.text);
		return KVT_EXIT_CONNECT;
	}
	status = command->run(admin);
	kvt_client_abandon(admin->client);
	return status;
}

static int run(const char *name, int argc, char **argv, const char *socket_path, bool json)
{
	struct kvt_admin admin = { .command = name, .json = json, .argc = argc, .argv = argv };

	if (strcmp(name, "script") == 0)
		return kvt_script_main(argc, argv, socket_path);
#ifdef KVT_HAVE_REPLAY
	if (strcmp(name, "replay") == 0)
		return kvt_replay_main(argc + 1, argv - 1);
#endif
#ifdef KVT_HAVE_VERIFY
	if (strcmp(name, "verify") == 0)
		return kvt_verify_main(argc + 1, argv - 1);
#endif
	for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++)
		if (strcmp(name, commands[i].name) == 0)
			return run_admin(&commands[i], &admin, socket_path);
	fprintf(stderr, "kvtctl: no command '%s'; kvtctl --help lists them\n", name);
	return KVT_EXIT_USAGE;
}

static bool keeps_its_options(const char *name)
{
	return strcmp(name, "replay") == 0 || strcmp(name, "verify") == 0;
}

/* --socket and --json may stand anywhere; what they leave is the command and its words. */
int main(int argc, char **argv)
{
	const char *socket_path = NULL;
	char **words = argv + 1; /* compacted in place */
	bool json = false;
	int n = 0, status;

	signal(SIGPIPE, SIG_IGN);
	for (int i = 1; i < argc; i++) {
		bool own = n == 0 || !keeps_its_options(words[0]);

		if (own && strcmp(argv[i], "--json") == 0) {
			json = true;
		} else if (own && strcmp(argv[i], "--socket") == 0 && i + 1 < argc) {
			socket_path = argv[++i];
		} else if (own && strncmp(argv[i], "--socket=", 9) == 0) {
			socket_path = argv[i] + 9;
		} else if (n == 0 && strcmp(argv[i], "--help") == 0) {
			help(stdout);
			return KVT_EXIT_OK;
		} else if (n == 0 && strcmp(argv[i], "--version") == 0) {
			printf("kvtctl %s\n", kvt_version());
			return KVT_EXIT_OK;
		} else {
			words[n++] = argv[i];
		}
	}
	words[n] = NULL;
	if (n == 0) {
		help(stderr);
		return KVT_EXIT_USAGE;
	}
	if (socket_path)
		setenv("KVTRUNK_SOCKET", socket_path, 1); /* for replay, which takes it there */
	status = run(words[0], n - 1, words + 1, socket_path, json);
	if (fflush(stdout) && status == KVT_EXIT_OK)
		status = KVT_EXIT_PROBLEM;
	return status;
}
