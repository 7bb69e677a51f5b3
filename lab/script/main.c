/* SPDX-License-Identifier: Apache-2.0 */

/* kvtlab script: options, the daemon, reading lines.
 *
 * Inputs: a script on stdin or in a file. Invariant: before the return every session's process has
 * ended and a daemon of our own is stopped. Caller: lab/main.c. */

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "base/exit.h"
#include "base/json.h"
#include "base/option.h"
#include "base/text.h"
#include "lab/daemon.h"
#include "lab/script/engine.h"

#define MAX_DAEMON_FLAGS 60

/* End the remaining processes: in order, unless an operation waits for a fence that will never be
 * raised. */
static void sessions_end(struct kvt_script *script)
{
	struct kvt_script_command close_command = {
		.order = KVT_ORDER_CALL, .op = KVT_OP_CLOSE, .fence = KVT_IDLE,
	};
	struct kvt_script_returned reply;

	while (script->sessions) {
		struct kvt_script_session *session = script->sessions;
		bool force = session->stopped;

		script->sessions = session->next;
		if (session->state == KVT_SCRIPT_OPEN && !session->stopped && !session->waiting &&
		    kvt_script_order(session, &close_command, NULL, NULL, NULL, &reply) == 0) {
			force = reply.head.stopped;
			kvt_script_reply_free(&reply);
		}
		kvt_script_process_end(script, session, force);
		kvt_script_waiting_cancel(script, session);
		free(session->ids);
		free(session->name);
		free(session);
	}
}

static int run_file(struct kvt_script *script, FILE *file, const char *first)
{
	char *text = NULL;
	size_t room = 0;
	int error = 0;
	ssize_t n;

	if (first) {
		script->line++;
		kvt_script_run_line(script, first, strlen(first));
	}
	while (!script->broken && (n = getline(&text, &room, file)) >= 0) {
		script->line++;
		kvt_script_run_line(script, text, (size_t)n);
	}
	if (ferror(file))
		error = errno;
	free(text);
	sessions_end(script);
	kvt_script_names_free(&script->names);
	kvt_json_free(&script->json);
	if (script->observer)
		kvt_client_abandon(script->observer);
	if (script->broken) /* the end of the program tells why */
		return KVT_EXIT_PROBLEM;
	if (error) {
		fprintf(stderr, "kvtlab script: cannot read the script: %s\n", strerror(error));
		return KVT_EXIT_USAGE;
	}
	return script->misunderstood ? KVT_EXIT_PROBLEM : KVT_EXIT_OK;
}

/* Run a script on the daemon at a socket. `first`: its first line, if that was read already. */
static int run_at(const char *socket_path, FILE *file, const char *first)
{
	struct kvt_script *script = kvt_memory_grow(NULL, 1, sizeof(*script));
	struct kvt_error error;
	int status;

	*script = (struct kvt_script){ .socket_path = socket_path };
	if (kvt_script_observe_open(script, &error)) {
		fprintf(stderr, "kvtlab script: %s\n", error.text);
		status = KVT_EXIT_CONNECT;
	} else {
		status = run_file(script, file, first);
	}
	free(script);
	return status;
}

/** Start a daemon with these options. `path`: the script whose first line has them, or NULL. */
static int daemon_start(struct kvt_own_daemon *daemon, const char *options, const char *path)
{
	const char *flags[MAX_DAEMON_FLAGS + 1] = { NULL };
	char *copy = kvt_text_copy(options, strlen(options)), *rest = NULL;
	char why[512] = "";
	unsigned int n = 0;
	int rc;

	for (char *word = strtok_r(copy, " \t\n", &rest); word && n < MAX_DAEMON_FLAGS;
	     word = strtok_r(NULL, " \t\n", &rest)) {
		char *flag = kvt_memory_grow(NULL, strlen(word) + 3, 1);

		sprintf(flag, "--%s", word);
		flags[n++] = flag;
	}
	/* The daemon's usual log lines would clutter the answers, and script lines may have
	 * millions of keys. A flag goes before a variable. */
	setenv("KVTRUNKD_LOG_LEVEL", "warning", 0);
	setenv("KVTRUNKD_MAX_OP_KEYS", "4194304", 0);
	rc = kvt_own_daemon_start(daemon, NULL, flags, -1, why, sizeof(why));
	if (rc)
		fprintf(stderr, "kvtlab script: %s%sno private daemon: %s\n",
			!path ? "" : strcmp(path, "-") == 0 ? "standard input" : path,
			path ? ":1: " : "", why);
	while (n > 0)
		free((char *)flags[--n]);
	free(copy);
	return rc;
}

static int daemon_stop(struct kvt_own_daemon *daemon)
{
	int status = kvt_own_daemon_stop(daemon);

	if (status == 0)
		return KVT_EXIT_OK;
	if (status > 0 && WIFSIGNALED(status))
		fprintf(stderr, "kvtlab script: the private daemon died by signal %d\n",
			WTERMSIG(status));
	else
		fprintf(stderr, "kvtlab script: the private daemon ended with status %d\n",
			status > 0 ? WEXITSTATUS(status) : status);
	return KVT_EXIT_PROBLEM;
}

static const char usage_text[] =
	"usage: kvtlab script [--daemon 'name=value ...' | --socket PATH] FILE|-\n";

static int usage(const char *why)
{
	fprintf(stderr, "%skvtlab script: %s\n", usage_text, why);
	return KVT_EXIT_USAGE;
}

static int help(void)
{
	fputs(usage_text, stdout);
	fputs("Runs operations line by line, each answered with one JSON object.\n\n"
	      "  --daemon OPTS   start a daemon with these options for this script only;\n"
	      "                  default: those of its first line, #daemon name=value ...\n"
	      "  --socket PATH   a daemon that runs: it does what the script says\n\n"
	      "The language: docs/script.md.\n", stdout);
	return KVT_EXIT_OK;
}

/* Run a script on a daemon of its own. */
static int run_own(const char *options, FILE *file, const char *first, const char *path)
{
	struct kvt_own_daemon daemon = { .pid = 0 };
	int status, rc = daemon_start(&daemon, options, path);

	if (rc)
		return rc == -EINVAL ? KVT_EXIT_USAGE : KVT_EXIT_CONNECT;
	status = run_at(daemon.socket_path, file, first);
	return daemon_stop(&daemon) ? KVT_EXIT_PROBLEM : status;
}

/* Run a script on a daemon with the options of its first line. Without such a line it is refused:
 * a script evicts and removes, and no daemon that happens to run here is meant. */
static int run_by_first_line(FILE *file, const char *path)
{
	static const char mark[] = "#daemon";
	const size_t n = sizeof(mark) - 1;
	char *first = NULL;
	size_t room = 0;
	ssize_t read = getline(&first, &room, file);
	int status;

	if (read < 0 && ferror(file)) {
		fprintf(stderr, "kvtlab script: cannot read the script: %s\n", strerror(errno));
		status = KVT_EXIT_USAGE;
	} else if (read < 0 || strncmp(first, mark, n) != 0 || !strchr(" \t\n", first[n])) {
		status = usage("no daemon: let the first line be '#daemon name=value ...', or give "
			       "--daemon 'name=value ...', or --socket PATH for one that runs");
	} else {
		status = run_own(first + n, file, first, path);
	}
	free(first);
	return status;
}

static int run_path(const char *path, const char *options, const char *socket_path)
{
	FILE *file = strcmp(path, "-") == 0 ? stdin : fopen(path, "re");
	int status;

	if (!file) {
		fprintf(stderr, "kvtlab script: cannot open %s: %s\n", path, strerror(errno));
		return KVT_EXIT_USAGE;
	}
	if (options)
		status = run_own(options, file, NULL, NULL);
	else if (socket_path)
		status = run_at(socket_path, file, NULL);
	else
		status = run_by_first_line(file, path);
	if (file != stdin)
		fclose(file);
	return status;
}

int kvt_script_main(int argc, char **argv)
{
	static const struct option rows[] = {
		{ "daemon", required_argument, NULL, 'd' },
		{ "socket", required_argument, NULL, 's' },
		{ "json", no_argument, NULL, 'j' }, /* accepted; answers are always JSON */
		{ "help", no_argument, NULL, 'h' },
		{ 0 },
	};
	const char *options = NULL, *socket_path = NULL;
	int option;

	optind = 0;
	while ((option = kvt_option_next(argc, argv, rows, NULL, "kvtlab script --help")) != -1) {
		if (option == 'h')
			return help();
		if (option == '?')
			return KVT_EXIT_USAGE;
		if (option == 'd')
			options = optarg;
		else if (option == 's')
			socket_path = optarg;
	}
	if (options && socket_path)
		return usage("--daemon starts a daemon, --socket names one: keep one");
	if (optind == argc)
		return usage("no FILE given; - is standard input");
	if (optind + 1 < argc)
		return usage("one FILE, or - for standard input");
	return run_path(argv[optind], options, socket_path);
}
