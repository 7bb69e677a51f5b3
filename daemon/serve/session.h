/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_SERVE_SESSION_H
#define KVT_SERVE_SESSION_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "daemon/serve/share.h"
#include "daemon/serve/spin.h"
#include "daemon/setup/object.h"
#include "kvtrunk_wire_operations.h"
#include "shm/ring.h"

struct kvt_connection;
struct kvt_core_view;
struct kvt_daemon;
struct kvt_member;
struct kvt_message_hello;

/** Holdings of a session at its end. Logged once all of it is returned. */
struct kvt_session_end {
	const char *how; /* NULL: not ended */
	uint64_t at_ns;
	uint64_t operations;
	uint32_t leases, pages;
	char label[KVT_LABEL_BYTES]; /* escaped for the log */
};

/** A session as the daemon serves it. The slot number is the core's session index. A turn touches
 * only the first two cache lines. */
struct kvt_session {
	struct kvt_ring_end ring;
	uint32_t index;
	uint32_t deferred; /* deferred operations: each has a CQ slot reserved */
	bool open;    /* entries are taken */
	bool holding; /* `held` was taken from the ring and waits for a pending place */
	bool doorbell_armed;
	bool dying;   /* a sign was seen: no more entries; the slot stays until the core is done */
	uint64_t worked_turn;      /* turn of its last entry */
	uint64_t waiting_since_ns; /* time since no deferred operation made progress */
	struct kvt_session_share share; /* valid while open */
	struct kvt_pace pace;
	struct kvt_sqe held;

	struct kvt_member *members; /* rank 0 first; NULL: the slot is free */
	uint32_t generation;
	uint32_t connections; /* control sockets that have not hung up */
	uint32_t processes;   /* processes that have not exited */
	int doorbell, bell;   /* -1 = none; bell: our end of the completion socket */
	bool quiet;           /* the pool backend found no writer left */
	bool unproved;        /* it could not find out, and the log says so */
	bool no_resume;       /* the session ends with this daemon */
	uint32_t name_generation; /* generation in the core, in names of stored descriptors */
	uint64_t quiet_again_ns;
	uint64_t ended_ns;
	struct kvt_session_end end;
	uid_t uid;
	struct kvt_object areas;
	int mirror; /* memfd for its processes, never mapped here; -1 = none */
} KVT_ALIGNED(KVT_LINE);

#define KVT_SESSION_NONE                                                                          \
	((struct kvt_session){ .doorbell = -1, .bell = -1, .areas.fd = -1, .mirror = -1 })

/** A client's request for a session, checked and rounded. */
struct kvt_session_wish {
	uint32_t sq_entries, cq_entries;
	uint64_t keys_count, list_count;
	const char *label;
	bool no_resume; /* the session ends with this daemon */
	bool mirror;
};

/** Open a session for the process behind `connection`. ret_fds: segment, areas, doorbell,
 * completion, in this order; the caller closes the last one after sending. */
int kvt_session_open(struct kvt_daemon *daemon, struct kvt_connection *connection,
		     const struct kvt_session_wish *wish, uint64_t secret[2], int ret_fds[4],
		     char *why, size_t why_size);
/** Describe the session's memory to the core. */
void kvt_session_view(const struct kvt_session *session, struct kvt_core_view *ret_view);
/** Give a recovered process its new connection, by secret and rank. -ESTALE with `why`:
 * no such process, or another one. */
int kvt_session_resume(struct kvt_daemon *daemon, struct kvt_connection *connection,
		       const struct kvt_message_hello *hello, char *why, size_t why_size);
/** Log that a session reported a page as not what it computed. `owner`: the session that sealed it,
 * 0 if it is not known. */
void kvt_session_log_suspect(struct kvt_daemon *daemon, const struct kvt_session *session,
			     uint32_t page, uint32_t owner);
/** Log that a session withdrew a damaged page, which so many leases held, and who may have written
 * it. */
void kvt_session_log_damage(struct kvt_daemon *daemon, const struct kvt_session *session,
			    uint32_t leases);
/** Note how it ends ("closed", "died", "killed") and what it holds. The first call counts. */
void kvt_session_note_end(struct kvt_daemon *daemon, struct kvt_session *session,
			  const char *how);
/** A process hung up, or (`exited`) exited. The first ends the session; after the last hang-up and
 * the last exit private pages can be freed. */
void kvt_session_lost(struct kvt_daemon *daemon, struct kvt_member *member, bool exited);
/** Tell this process and those after it in the session's list that the session is over.
 * Idempotent. */
void kvt_session_tell(struct kvt_daemon *daemon, struct kvt_member *member, int error,
		      const char *why);
/** End a session that broke the rules. `why` goes to the client and the log. */
void kvt_session_kill(struct kvt_daemon *daemon, struct kvt_session *session, int error,
		      const char *why);
/** Take an operator's word that nothing of the session writes any more. */
void kvt_session_fence(struct kvt_daemon *daemon, struct kvt_session *session);
/** Begin with a recovered session. `serve`: take its entries; else it is over, and only the end of
 * its processes is awaited. */
void kvt_session_adopted(struct kvt_daemon *daemon, struct kvt_session *session, bool serve);
/** Release slots of sessions that the core is done with, and ask the pool about the others. */
void kvt_sessions_sweep(struct kvt_daemon *daemon);
/** Free the slots of the session that had this process's place, if the core is done with it and
 * kvt_sessions_sweep() has not come yet. */
void kvt_session_vacate(struct kvt_daemon *daemon, uint32_t member);
/** Set `gone` in the segment and wake its waiters. */
void kvt_session_say_gone(struct kvt_daemon *daemon, const struct kvt_member *member, int error);
/** The doorbell's poll ended with this result. Empty the doorbell if it rang. */
void kvt_session_doorbell_event(struct kvt_daemon *daemon, struct kvt_session *session,
				int result);
/** Wake a client that sleeps on its completion descriptor. */
void kvt_session_ring_bell(struct kvt_daemon *daemon, struct kvt_session *session);
/** Unmap and close everything in a slot, and in those of its processes. */
void kvt_session_release(struct kvt_daemon *daemon, struct kvt_session *session);

#endif
