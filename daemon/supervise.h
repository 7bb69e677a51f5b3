/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_DAEMON_SUPERVISE_H
#define KVT_DAEMON_SUPERVISE_H

/**
 * @file supervise.h
 * `kvtrunkd --supervise`: what a service manager does for kvtrunkd, where there is none.
 *
 * A small parent that starts the daemon, keeps the descriptors that it parks, and starts it again
 * with them when it ended abnormally. It speaks the service manager's protocol (sd_notify messages,
 * FDSTORE, LISTEN_FDS, WATCHDOG_USEC), and tells its own manager, if it has one, what the daemon
 * tells it. The daemon's messages come through an inherited socket pair: no other process can send
 * there, where a named socket takes messages of every uid (KVT_NOTIFY_PAIR in notify.h).
 *
 *     SIGTERM, SIGINT  stop: the daemon ends in order, and nothing is kept
 *     SIGUSR2          upgrade: the daemon ends between two operations and is started again, from
 *                      the program file as it is now, with everything that it had
 *     SIGHUP           passed on: the daemon reads its options again
 */

#include "daemon/config.h"

/** Returns the exit status of the process. `config` has the options of the daemon (already checked)
 * and argv its command line. `ready`: for kvt_background_ready() when the first daemon serves; or
 * -1. */
int kvt_supervise(const struct kvt_config *config, int argc, char **argv, int ready);

#endif
