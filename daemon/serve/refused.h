/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_SERVE_REFUSED_H
#define KVT_SERVE_REFUSED_H

#include "daemon/serve/state.h"

#define KVT_HOST_CURE "allow it (a seccomp profile, a sandbox or a security module refuses it)"

/** End the daemon in words: it can serve no one without this call. `error` is positive. */
void kvt_host_ends(struct kvt_daemon *daemon, const char *call, int error);
/** End it if the host refuses the call, which no client can cause: EPERM, EACCES or ENOSYS. False:
 * another error. */
bool kvt_host_refuses(struct kvt_daemon *daemon, const char *call, int error);

#endif
