/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_SERVE_CONNECTIONS_H
#define KVT_SERVE_CONNECTIONS_H

/** @file connections.h: the table of control connections (connection.h). */

#include <stdint.h>

#include <bsd/sys/queue.h>

struct kvt_connection;

#define KVT_HALF_OPEN_MAX 64u /* connections without their first message; then the oldest goes */
#define KVT_OBSERVERS_MAX 64u /* connections without a session: kvtctl, metrics */

enum kvt_connection_state {
	KVT_CONNECTION_FREE = 0,
	KVT_CONNECTION_HALF_OPEN, /* no HELLO yet */
	KVT_CONNECTION_OBSERVER,
	KVT_CONNECTION_SESSION,
	KVT_CONNECTION_OVER, /* its session ended; kept to see the hang-up */
	KVT_CONNECTION_STATES,
};

TAILQ_HEAD(kvt_connection_queue, kvt_connection);

/** All control connections. Changed by start.c, then by connection.c. */
struct kvt_connections {
	struct kvt_connection *slots;
	uint32_t n_slots;
	uint32_t *free; /* stack of free slots */
	uint32_t n_free;
	struct kvt_connection_queue readable[KVT_CONNECTION_STATES]; /* those with a message */
	uint32_t n_readable;
	struct kvt_connection_queue half_open; /* half-open connections, the oldest first */
	uint32_t n_half_open, n_observers;
};

#endif
