/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_DAEMON_TAKEOVER_H
#define KVT_DAEMON_TAKEOVER_H

/**
 * @file takeover.h
 * `kvtrunkd --takeover`: a daemon hands everything to another one, where no service manager keeps
 * anything.
 *
 *     new  HELLO (observer), ADMIN request TAKEOVER        new  takes up what was sent
 *     old  finishes its turn                               new  HANDOVER without names: "I have it"
 *     old  HANDOVER messages: names and descriptors        old  exits, touching nothing
 *
 * The old one waits at the point between two turns where it sent the last message. A new one that
 * hangs up instead of confirming has failed: the old one makes all that is derived again, because
 * the other may have begun to, and serves on.
 */

#include "daemon/daemon.h"

/** New: ask the daemon at `path`. On success what it has is in daemon->passed, and `takeover_fd`
 * is where to confirm. -EPERM, -ECONNREFUSED, ... with `why`. */
int kvt_takeover_ask(struct kvt_daemon *daemon, const char *path, char why[KVT_WHY_BYTES]);
/** New: everything was taken up; the old one may go. -ECONNRESET: it did not wait so long. */
int kvt_takeover_confirm(struct kvt_daemon *daemon);

/** Old: hand over to the privileged process behind `connection`. Does not return if that one took
 * over; else the daemon serves on and the connection was dropped. */
void kvt_takeover_serve(struct kvt_daemon *daemon, struct kvt_connection *connection);

#endif
