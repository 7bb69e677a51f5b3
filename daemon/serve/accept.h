/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_SERVE_ACCEPT_H
#define KVT_SERVE_ACCEPT_H

#include <stdbool.h>
#include <stdint.h>

struct kvt_daemon;

/** Accepting from the listening socket. Changed by accept.c. */
struct kvt_accept {
	bool due;            /* the socket's queue may hold a connection */
	uint32_t generation; /* number of the socket's current poll */
	uint64_t again_ns;   /* time of the next try after a failure; 0: none */
	int failed;          /* errno of the failure that lasts; 0: none */
};

/** Length of the accept queue. It bounds the wait of a new connection: 20 to 100 us for each before
 * it, and three times as much for others. If the queue is full, connect() waits, in
 * kvt_client_connect() until its timeout. */
#define KVT_LISTEN_BACKLOG 64

/** The poll of the socket fired. */
void kvt_accept_event(struct kvt_daemon *daemon);
/** Accept a few connections. */
void kvt_accept_some(struct kvt_daemon *daemon);
/** Retry after a failure. Returns when to call again. */
uint64_t kvt_accept_again(struct kvt_daemon *daemon);
/** Stop accepting. */
void kvt_accept_stop(struct kvt_daemon *daemon);
/** Accept all that the queue of `fd` holds. */
void kvt_accept_rest(struct kvt_daemon *daemon, int fd);
/** Accept from listen_fd instead of `old`, whose queue comes first. */
void kvt_accept_moved(struct kvt_daemon *daemon, int old);

#endif
