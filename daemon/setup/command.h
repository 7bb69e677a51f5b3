/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_DAEMON_SETUP_COMMAND_H
#define KVT_DAEMON_SETUP_COMMAND_H

/**
 * @file command.h
 * The command line, and the whole configuration: defaults, then file, environment, flags.
 */

#include "daemon/setup/config.h"

/** The action that the command line selects. */
enum kvt_command {
	KVT_COMMAND_RUN = 0,
	KVT_COMMAND_CHECK,
	KVT_COMMAND_HELP,
	KVT_COMMAND_HELP_ALL,
	KVT_COMMAND_VERSION,
	KVT_COMMAND_DUMP,
	KVT_COMMAND_SUPERVISE,
	KVT_COMMAND_DETACH = 0x100, /* a flag, with RUN or SUPERVISE */
};

/** Read defaults, --config's file, environment and flags, and check rules between options. Returns
 * the command, or a negative errno with `why`. */
int kvt_config_parse(struct kvt_config *config, int argc, char **argv, char why[KVT_WHY_BYTES]);

#endif
