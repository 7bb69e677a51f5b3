/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/setup/command.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/setup/geometry.h"

/* Check rules between options. */
static int config_check(struct kvt_config *config, char why[KVT_WHY_BYTES])
{
	struct kvt_pool_plan plan;
	int error;

	for (const char *c = config->instance; *c; c++)
		if (!isalnum((unsigned char)*c) && !strchr("._-", *c)) {
			snprintf(why, KVT_WHY_BYTES, "option 'instance' cannot be '%s'; allowed: "
				 "letters, digits, '.', '_' and '-'", config->instance);
			return -EINVAL;
		}
	error = kvt_config_settle_size(config, why);
	if (!error)
		error = kvt_config_check_vain(config, why);
	if (!error)
		error = kvt_pool_plan_shape(config, &plan, why);
	if (!error && (config->n_pages || !config->pool_bytes.percent))
		error = kvt_pool_plan_pages(config, 0, 0, &plan, why);
	if (error)
		return error;
	if (!*config->socket_path &&
	    strlen(config->runtime_dir) + strlen(config->instance) + 7 > 108) {
		snprintf(why, KVT_WHY_BYTES, "RUNTIME_DIR/INSTANCE.sock is longer than the 107 "
			 "bytes of a socket name: set socket_path");
		return -EINVAL;
	}
	return 0;
}

static bool flag_is(const char *argument, const char *name)
{
	return strcmp(argument, name) == 0;
}

/* Find --config FILE or --config=FILE, else the variable. */
static int find_config(int argc, char **argv, const char **ret_path, char why[KVT_WHY_BYTES])
{
	const char *given = NULL, *before;

	for (int i = 1; i < argc; i++) {
		before = given;
		if (strncmp(argv[i], "--config=", 9) == 0) {
			given = argv[i] + 9;
		} else if (flag_is(argv[i], "--config") || flag_is(argv[i], "-c")) {
			if (++i == argc) {
				snprintf(why, KVT_WHY_BYTES, "--config needs a file name");
				return -EINVAL;
			}
			given = argv[i];
		} else {
			continue;
		}
		if (before) {
			snprintf(why, KVT_WHY_BYTES, "--config is given twice: keep one");
			return -EINVAL;
		}
	}
	*ret_path = given ? given : getenv(KVT_CONFIG_VARIABLE "CONFIG");
	return 0;
}

static int command_of(const char *argument)
{
	if (flag_is(argument, "--check-config"))
		return KVT_COMMAND_CHECK;
	if (flag_is(argument, "--help") || flag_is(argument, "-h"))
		return KVT_COMMAND_HELP;
	if (flag_is(argument, "--help-all"))
		return KVT_COMMAND_HELP_ALL;
	if (flag_is(argument, "--version"))
		return KVT_COMMAND_VERSION;
	if (flag_is(argument, "--dump-options"))
		return KVT_COMMAND_DUMP;
	if (flag_is(argument, "--supervise"))
		return KVT_COMMAND_SUPERVISE;
	if (flag_is(argument, "--detach"))
		return KVT_COMMAND_DETACH;
	return -1;
}

/* Return the command that wins, in any order: a check wins over a run. */
static int stronger(int a, int b)
{
	int detach = (a | b) & KVT_COMMAND_DETACH;
	static const int order[] = { KVT_COMMAND_CHECK, KVT_COMMAND_SUPERVISE };

	a &= ~KVT_COMMAND_DETACH;
	b &= ~KVT_COMMAND_DETACH;
	for (size_t i = 0; i < sizeof(order) / sizeof(order[0]); i++)
		if (a == order[i] || b == order[i])
			return order[i] | detach;
	return KVT_COMMAND_RUN | detach;
}

static int refuse_word(const char *word, char why[KVT_WHY_BYTES])
{
	snprintf(why, KVT_WHY_BYTES, "unexpected argument '%.80s'; options start with --", word);
	return -EINVAL;
}

int kvt_config_parse(struct kvt_config *config, int argc, char **argv, char why[KVT_WHY_BYTES])
{
	const char *path = NULL;
	int command = KVT_COMMAND_RUN, error;

	kvt_config_init(config);
	for (int i = 1; i < argc; i++) {
		int other = command_of(argv[i]);

		if (other != KVT_COMMAND_HELP && other != KVT_COMMAND_HELP_ALL &&
		    other != KVT_COMMAND_VERSION && other != KVT_COMMAND_DUMP)
			continue;
		return i + 1 < argc && *argv[i + 1] != '-' ? refuse_word(argv[i + 1], why) : other;
	}
	error = find_config(argc, argv, &path, why);
	if (!error && path)
		error = kvt_config_load(config, path, why);
	if (!error)
		error = kvt_config_load_environment(config, why);
	for (int i = 1; i < argc && !error; i++) {
		if (strncmp(argv[i], "--config=", 9) == 0)
			continue;
		if (flag_is(argv[i], "--config") || flag_is(argv[i], "-c")) {
			i++;
		} else if (command_of(argv[i]) >= 0) {
			command = stronger(command, command_of(argv[i]));
		} else if (strncmp(argv[i], "--", 2) != 0) {
			return refuse_word(argv[i], why);
		} else {
			int used = kvt_config_flag(config, argc - i, argv + i, why);

			if (used < 0)
				return used;
			i += used - 1;
		}
	}
	if (!error && command == (KVT_COMMAND_CHECK | KVT_COMMAND_DETACH)) {
		snprintf(why, KVT_WHY_BYTES, "--detach is for a daemon, and --check-config starts "
			 "none: drop one of them");
		error = -EINVAL;
	}
	if (!error)
		error = config_check(config, why);
	return error ? error : command;
}
