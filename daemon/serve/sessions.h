/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_SERVE_SESSIONS_H
#define KVT_SERVE_SESSIONS_H

/** @file sessions.h: the table of sessions (session.h). */

#include <stdbool.h>
#include <stdint.h>

struct kvt_object;
struct kvt_session;

/** All sessions. Changed by start.c, then by session.c; turn.c sorts `served` and counts deferred
 * operations. */
struct kvt_sessions {
	struct kvt_session *slots;    /* [max_sessions + 1] */
	uint32_t *served;             /* sessions whose rings are polled */
	uint32_t n_served, n_hot;     /* the first n_hot in every turn */
	uint32_t n_deferred;          /* deferred operations of all sessions */
	uint32_t n_common;            /* deferred operations beyond their sessions' own_places */
	uint32_t own_places, common_places;
	uint32_t n_dying;
	bool sweep_due;               /* a dying session may be free to release */
	bool look_due;                /* a session without a connection may be over */
	struct kvt_object *leaving;   /* [max_sessions]: areas of ended sessions, to be freed */
	uint32_t n_leaving;
};

#endif
