/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_TOOLS_VISITORS_H
#define KVT_TOOLS_VISITORS_H

/**
 * @file visitors.h
 * The connections of a small server that any local user may reach. Each has a deadline for its
 * whole request. When there are too many, the oldest of the user that has most is shut down, if
 * possible one whose request is not there yet: so idle connections block no user.
 *
 * On TCP users cannot be told apart; there a newcomer is served if its request comes before
 * KVT_VISITORS_MOST others have come after it. The server reads the end of a shut-down connection
 * and closes it. While it cannot, because it waits for a stopped daemon, those beyond
 * KVT_VISITORS_ROOM are closed unread.
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
	bool asked;    /* its request was read */
	bool leaving;  /* shut down */
};

/** `patience_ns`: from a connection's beginning to its end. The rest starts as zero. Any thread may
 * call the functions. */
struct kvt_visitors {
	pthread_mutex_t lock;
	int64_t patience_ns;
	uint64_t n_came;
	struct kvt_visitor at[KVT_VISITORS_ROOM];
};

/** Add an accepted connection, before the server gets it. False: no place. */
bool kvt_visitors_came(struct kvt_visitors *visitors, int fd, uid_t uid, int64_t now_ns);
/** The server has read the head of its request. */
void kvt_visitors_asked(struct kvt_visitors *visitors, int fd);
/** Remove a connection, before the server closes it. */
void kvt_visitors_left(struct kvt_visitors *visitors, int fd);
/** Shut down expired connections. Returns the next deadline, or INT64_MAX. */
int64_t kvt_visitors_expire(struct kvt_visitors *visitors, int64_t now_ns);

#endif
