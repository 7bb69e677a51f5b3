/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_DAEMON_PREPARE_H
#define KVT_DAEMON_PREPARE_H

/**
 * @file prepare.h
 * Steps of a start that --check-config also takes, before anything is made. Each returns a negative
 * errno with `why`.
 */

#include "daemon/serve/state.h"

#define KVT_SOCKET_PATH_BYTES 108 /* of struct sockaddr_un */

/** Make the error of a path that an option gives that of a bad option: another try does not help.
 * Not beside a cache to recover, which a service manager drops when it does not try again. */
int kvt_daemon_named(const struct kvt_daemon *daemon, int error);
/** Set the limits of the process, and plan what it makes: its memory can be had. */
int kvt_daemon_prepare(struct kvt_daemon *daemon, char why[KVT_WHY_BYTES]);
/** Open the event loop. It polls each connection, member and session, and a few more. */
int kvt_daemon_open_loop(struct kvt_daemon *daemon, char why[KVT_WHY_BYTES]);
/** Sets no `why`. */
int kvt_daemon_socket_path(const struct kvt_config *config, char to[KVT_SOCKET_PATH_BYTES]);
/** Say that an option names a group that is none. Returns -EINVAL. */
int kvt_daemon_no_group(const char *option, const char *name, char why[KVT_WHY_BYTES]);
/** Check groups and files that options name. */
int kvt_daemon_check_names(const struct kvt_daemon *daemon, char why[KVT_WHY_BYTES]);

#endif
