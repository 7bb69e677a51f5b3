/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_DAEMON_KEEP_SUPERVISE_H
#define KVT_DAEMON_KEEP_SUPERVISE_H

/**
 * @file supervise.h
 * `kvtrunkd --supervise`: a small parent that keeps a daemon alive where no service manager does.
 *
 * It starts the daemon, stores its descriptors, and restarts it with them after an abnormal end. It
 * implements the service manager's protocol (sd_notify messages, FDSTORE, LISTEN_FDS,
 * WATCHDOG_USEC) and forwards the daemon's messages to its own manager, if it has one. The daemon's
 * messages come through an inherited socket pair, in which no other process can send. A named
 * socket would accept messages of every uid (KVT_NOTIFY_PAIR in notify.h).
 *
 *     SIGTERM, SIGINT  stop: the daemon drains and exits, and the store is dropped
 *     SIGUSR2          restart: the daemon exits between two operations; the program file as it is
 *                      now starts on the store. If it is not READY in time, the old file does.
 *     SIGHUP           forwarded: the daemon reloads its options
 *
 * A daemon asks for an upgrade by a message (kvt_notify_upgrade()):
 *
 *     LEAVING  the daemon exits as by SIGUSR2
 *     TRYING   the new program starts on the store, never cold. If it is not READY in time, it is
 *              ended and the old program starts on the store.
 *
 * A start after a crash runs the same file as before: programs are run by their descriptors.
 */

#include "daemon/setup/config.h"

/** Run the supervisor. Returns the exit status of the process. `config` has the daemon's checked
 * options, `argv` its command line. `ready` is passed to kvt_background_ready() once a daemon
 * serves; -1: none. */
int kvt_supervise(const struct kvt_config *config, int argc, char **argv, int ready);

#endif
