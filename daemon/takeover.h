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
 * The old one waits at the point between two turns where it sent the last message, and all
 * clients with it, so a new one that fails must not keep it there:
 *
 * - Whoever has sent anything behind its request, or has hung up, is no successor: nothing is
 *   handed over to it.
 * - One that hangs up or says anything but that it has everything has 1 s to end, then it is
 *   killed; one that says nothing has 10 s more. Two must not write: only when its process is gone
 *   does the old one write again. Where that cannot be had (the kernel gives no pidfd, or does not
 *   let this daemon's user kill that one's) it serves on and says so in its log.
 * - The old one is then its own successor: it makes all that is derived again, because the other
 *   may have begun to, and goes on with the operation log behind what the other wrote. What the
 *   other does before it confirms shows nowhere else: it accepts nobody and greets nobody.
 */

#include "daemon/daemon.h"

/** New: say HELLO to the daemon at `path`, whose answer can be read as soon as it serves. A
 * descriptor, or a negative errno with `why`. */
int kvt_takeover_hail(const char *path, char why[KVT_WHY_BYTES]);

/** New: ask the daemon at `path`. On success what it has is in daemon->passed, and `takeover_fd`
 * is where to confirm. -EPERM, -ECONNREFUSED, ... with `why`. */
int kvt_takeover_ask(struct kvt_daemon *daemon, const char *path, char why[KVT_WHY_BYTES]);
/** New: everything was taken up; the old one may go. -ECONNRESET: it did not wait so long. */
int kvt_takeover_confirm(struct kvt_daemon *daemon);

/** Old: whether the process behind `connection` may take over now. 0, or with a sentence: -EBUSY: a
 * service manager keeps what is needed; -EINVAL: it is a client; -ESHUTDOWN: the daemon ends;
 * -EPROTO: it does not keep quiet, or hung up. */
int kvt_takeover_check(const struct kvt_daemon *daemon, const struct kvt_connection *connection,
		       const char **ret_why);
/** Old: hand over to the privileged process behind `connection`, which may take over. Does not
 * return if that one took over; else it is gone, the connection was dropped, and the daemon serves
 * on with no more descriptors than before. */
void kvt_takeover_serve(struct kvt_daemon *daemon, struct kvt_connection *connection);

#endif
