/* SPDX-License-Identifier: Apache-2.0 */

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

#include "daemon/keep/supervise.h"
#include "daemon/serve/turn.h"
#include "daemon/setup/background.h"
#include "daemon/setup/command.h"
#include "daemon/setup/mps_gone.h"
#include "daemon/start.h"
#include "shm/commit.h"
#include "shm/stdio.h"

/* Exit codes that a service manager may distinguish. */
#define EXIT_USAGE 2   /* bad options: a restart does not help */
#define EXIT_IN_USE 3  /* a live daemon serves this instance or socket */

static int exit_code(int error)
{
	return error == -EADDRINUSE ? EXIT_IN_USE : error == -EINVAL ? EXIT_USAGE : EXIT_FAILURE;
}

int main(int argc, char **argv)
{
	static struct kvt_daemon daemon; /* large, and zeroed */
	char why[KVT_WHY_BYTES] = "";
	int command, error, ready = -1, status;

	kvt_stdio_begin("kvtrunkd");
	if (argc > 1 && strcmp(argv[1], KVT_MPS_GONE_COMMAND) == 0)
		return kvt_mps_gone_main(argc - 2, argv + 2);
	command = kvt_config_parse(&daemon.config, argc, argv, why);
	if (command < 0) {
		fprintf(stderr, "kvtrunkd: %s\n", why);
		return EXIT_USAGE;
	}
	if (command & KVT_COMMAND_DETACH) {
		error = kvt_background(&daemon.config, &ready, &status, why);
		if (error < 0)
			fprintf(stderr, "kvtrunkd: %s\n", why);
		if (error)
			return error > 0 ? status : error == -EINVAL ? EXIT_USAGE : EXIT_FAILURE;
	}
	switch ((enum kvt_command)(command & ~KVT_COMMAND_DETACH)) {
	case KVT_COMMAND_HELP:
		kvt_config_help(stdout, false);
		return 0;
	case KVT_COMMAND_HELP_ALL:
		kvt_config_help(stdout, true);
		return 0;
	case KVT_COMMAND_VERSION:
		printf("kvtrunkd " KVT_VERSION "%s\n", kvt_commit);
		return 0;
	case KVT_COMMAND_DUMP:
		kvt_config_dump(stdout);
		return 0;
	case KVT_COMMAND_CHECK:
		error = kvt_daemon_check(&daemon, why);
		if (error) {
			fprintf(stderr, "kvtrunkd: %s\n", why);
			return exit_code(error);
		}
		kvt_pool_plan_print(&daemon.config, &daemon.plan, stdout);
		if (*daemon.config.note)
			printf("note: %s\n", daemon.config.note);
		if (*daemon.pool.note)
			printf("note: %s\n", daemon.pool.note);
		printf("configuration is good\n");
		return 0;
	case KVT_COMMAND_SUPERVISE:
		return kvt_supervise(&daemon.config, argc, argv, ready);
	case KVT_COMMAND_RUN:
	case KVT_COMMAND_DETACH:
		break;
	}
	prctl(PR_SET_NAME, "kvtrunkd"); /* after exec of a descriptor the name is its number */
	daemon.argc = argc;
	daemon.argv = argv;
	error = kvt_daemon_start(&daemon, why);
	if (error) {
		kvt_log(KVT_LOG_ERROR, "start_failed", "error=%d why=\"%s\"", -error, why);
		return exit_code(error);
	}
	kvt_background_ready(&ready);
	kvt_daemon_run(&daemon);
	if (daemon.keep)
		kvt_daemon_leave(&daemon);
	else
		kvt_daemon_stop(&daemon);
	return daemon.refused ? EXIT_FAILURE : 0;
}
