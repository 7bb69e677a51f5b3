/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_TESTS_STORE_H
#define KVT_TESTS_STORE_H

/**
 * @file store.h
 * A kvtstored for one test, and a connection to it that speaks its messages by hand.
 */

#include "kvtrunk_wire_store.h"
#include "tests/lib/harness.h"

struct kvt_test_store {
	pid_t pid;
	int output; /* its standard error */
	char path[112];
};

struct kvt_test_peer {
	int fd;
	uint32_t *keys; /* the key area; NULL: not connected */
	struct kvt_store_welcome welcome;
};

/* An instance with its worker and, perhaps, its store. */
struct kvt_test_side {
	struct kvt_test_daemon daemon;
	struct kvt_test_store store; /* pid 0: none */
	struct kvt_test_peer peer;
	int64_t fetch_wait_ns; /* 0: a minute, for a store on a busy machine */
	struct kvt_client *worker;
	struct kvt_pool pool;
	uint32_t space; /* kvt_test_namespace("store") */
};

/** Start a store with `ram` bytes ("4M"), and wait until it serves. */
void kvt_test_store_start(struct kvt_test_store *store, const struct kvt_test_daemon *daemon,
			  const char *ram);
/** The same with further options, which end with NULL. */
void kvt_test_store_start_with(struct kvt_test_store *store,
			       const struct kvt_test_daemon *daemon, const char *ram,
			       const char *const *more);
/** Start a store without waiting. */
void kvt_test_store_spawn(struct kvt_test_store *store, const struct kvt_test_daemon *daemon,
			  const char *ram, const char *const *more);
/** Start one store for these daemons, and wait until it serves all. `ret_more`: where each of the
 * others finds it; there pid stays 0. */
void kvt_test_store_start_host(struct kvt_test_store *ret_store, struct kvt_test_store *ret_more,
			       const struct kvt_test_daemon *const *daemons, uint32_t n,
			       const char *ram, const char *const *more);
/** Wait for a line of its output that contains `text`. False: it ended before. */
bool kvt_test_store_await(struct kvt_test_store *store, const char *text);
/** Send SIGTERM and wait. Returns the exit status. Nothing is left behind. */
int kvt_test_store_stop(struct kvt_test_store *store);
/** Wait for its end. Returns the exit code. */
int kvt_test_store_wait(struct kvt_test_store *store);
/** Kill it and wait. */
void kvt_test_store_kill(struct kvt_test_store *store);
/** Remove the files of a store that is dead, or that another is to take the place of. */
void kvt_test_store_unlink(const struct kvt_test_store *store);

/** Connect a worker, and map its pool. */
void kvt_test_side_connect(struct kvt_test_side *side);
/** Start a store beside the side's daemon, as kvt_test_store_start_with(). */
void kvt_test_side_store(struct kvt_test_side *side, const char *ram, const char *const *more);
/** Serve a prompt by the worker, and check what is reused. Returns the positions reused. */
uint32_t kvt_test_side_serve(struct kvt_test_side *side, const uint32_t *keys, uint32_t n_keys);
/** Evict all that the pool caches. */
void kvt_test_side_evict(const struct kvt_test_side *side);
/** FETCH keys from the root of the worker's namespace. Returns the positions. */
uint32_t kvt_test_side_fetch(const struct kvt_test_side *side, const uint32_t *keys,
			     uint32_t n_keys);
/** End all that runs, with an audit. */
void kvt_test_side_end(struct kvt_test_side *side);

/** Connect and take WELCOME. False: refused, or nothing listens. */
bool kvt_test_peer_try(struct kvt_test_peer *peer, const struct kvt_test_store *store);
void kvt_test_peer_open(struct kvt_test_peer *peer, const struct kvt_test_store *store);
/** Close the connection, if it is open. */
void kvt_test_peer_close(struct kvt_test_peer *peer);
/** Ask for what it counts. */
struct kvt_store_status kvt_test_store_status(const struct kvt_test_peer *peer);
/** How many times a store measured. */
uint64_t kvt_test_store_times(const struct kvt_store_time *time);
/** Ask until nothing waits to be copied and nothing loads, and `pages` are there. */
struct kvt_store_status kvt_test_store_settled(const struct kvt_test_peer *peer, uint64_t pages);
/** Send DROP. Returns the answer. */
struct kvt_store_status kvt_test_store_drop(const struct kvt_test_peer *peer);
/** FETCH the keys from the root of a namespace of kvt_test_namespace(), or behind a handle and its
 * last page. Returns the positions. */
uint32_t kvt_test_fetch(const struct kvt_test_peer *peer, const uint64_t digest[2],
			struct kvt_handle handle, uint32_t anchor, const uint32_t *keys,
			uint32_t n_keys);

#endif
