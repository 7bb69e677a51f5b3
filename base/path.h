/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_BASE_PATH_H
#define KVT_BASE_PATH_H

/** @file path.h: where the sockets of a daemon and of the store beside it are. */

#include <stdbool.h>

#define KVT_STORE_PATH_BYTES 108u /* of a socket's name, NUL included */

/** The daemon's socket: `given`, or $KVTRUNK_SOCKET, or the default. */
const char *kvt_daemon_path(const char *given);
/** True, after saying so, if that is empty, which is refused instead of taken for the default. */
bool kvt_daemon_path_empty(const char *given);
/** Write the path of the store's socket, which is beside the daemon's. -ENAMETOOLONG. */
int kvt_store_path(const char *daemon_path, char ret_path[KVT_STORE_PATH_BYTES]);

#endif
