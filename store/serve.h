/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_STORE_SERVE_H
#define KVT_STORE_SERVE_H

/**
 * @file serve.h
 * The store's socket: peers, their key areas, FETCH and ANSWER. Nothing here waits for a peer: one
 * that does not read its answers, or sends what is no FETCH, loses its connection.
 */

#include <stdint.h>
#include <sys/epoll.h>

#include "base/socket.h"
#include "store/store.h"

#define KVT_STORE_PEERS 512u /* each is a descriptor, of 1,024 by default */
#define KVT_STORE_UID_PEERS (KVT_STORE_PEERS / 8 * 7) /* of one uid, as of the daemon's sessions */
#define KVT_STORE_EVENTS 16u /* peers that a turn serves */

struct kvt_peer;
struct kvt_parked;

struct kvt_server {
	struct kvt_store *store;
	int listener, epoll;
	struct kvt_name name;
	uint32_t *keys;         /* KVT_STORE_KEYS: a private copy of one FETCH's */
	struct kvt_peer *peers; /* list of all */
	struct epoll_event events[KVT_STORE_EVENTS];
	int n_events;
	uint32_t n_peers;
	struct kvt_parked *parked; /* FETCHes that wait for the helper, oldest first */
	uint32_t n_parked;
	struct kvt_chain *names; /* KVT_HELPER_PAGES: those that one FETCH asks for */
	uint64_t asked, answered; /* FETCHes; those with positions */
	int64_t accept_again_ns;  /* when to look at the listener again; 0: it is looked at */
	int accept_failed;        /* errno of the failure that lasts; 0: none */
	struct kvt_store_time fetch_time;
};

/** Take the path of its socket, before much is done in vain. -EADDRINUSE: another store has it.
 * `why` says what to do. */
int kvt_server_take(struct kvt_server *server, const char *path, struct kvt_error *why);
/** Listen there, with mode and group of the daemon's socket: who may use the pool may fetch. On
 * errors `why` says what to do. */
int kvt_server_open(struct kvt_server *server, struct kvt_store *store, struct kvt_error *why);
/** Also after an error of the others. */
void kvt_server_close(struct kvt_server *server);
/** Wait until peers sent something, for `wait_ms` at most, 1 if a FETCH waits. Returns true if they
 * did. */
bool kvt_server_wait(struct kvt_server *server, int wait_ms);
/** Take one message of each of these peers, and answer FETCHes that wait no longer for the helper.
 * What they probed must have been taken from the feed. */
void kvt_server_turn(struct kvt_server *server);
/** Drop all peers: they fetch for a pool that is gone. */
void kvt_server_drop_peers(struct kvt_server *server);

#endif
