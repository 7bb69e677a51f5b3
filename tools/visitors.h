/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_TOOLS_VISITORS_H
#define KVT_TOOLS_VISITORS_H

/**
 * @file visitors.h
 * The connections of a small server that any local user may reach: each has a deadline for all of
 * its request, and when there are too many one gives way, so that idle ones keep nobody out.
 *
 * The oldest connection of the user that has most of them gives way. On TCP users cannot be told
 * apart; there a newcomer is served before KVT_VISITORS_MOST others have come after it. Giving way
 * is a shutdown(): the server reads the end of the connection and closes it.
 */

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define KVT_VISITORS_MOST 16  /* that are served at a time */
#define KVT_VISITORS_ROOM 64  /* with those that were shut down and are not closed yet */
#define KVT_VISITORS_ANYONE ((uid_t)-1) /* of connections whose user is not known */

struct kvt_visitor {
	int fd;
	uid_t uid;
	uint64_t came; /* in this order; 0 = the place is free */
	int64_t deadline_ns;
	bool leaving;  /* shut down */
};

/** `patience_ns` is from a connection's beginning to its end. All else begins as zero. Functions
 * may be called by any thread. */
struct kvt_visitors {
	pthread_mutex_t lock;
	int64_t patience_ns;
	uint64_t n_came;
	struct kvt_visitor at[KVT_VISITORS_ROOM];
};

/** A connection was accepted. False: there is no place at all, and it is shut down. */
bool kvt_visitors_came(struct kvt_visitors *visitors, int fd, uid_t uid, int64_t now_ns);
/** The server is about to close it. */
void kvt_visitors_left(struct kvt_visitors *visitors, int fd);
/** Shut down those whose time is over. Returns when the next one's is, or INT64_MAX. */
int64_t kvt_visitors_expire(struct kvt_visitors *visitors, int64_t now_ns);

#endif
