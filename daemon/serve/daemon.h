/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_DAEMON_SERVE_DAEMON_H
#define KVT_DAEMON_SERVE_DAEMON_H

/**
 * @file daemon.h
 * The daemon around the core: its state, and the interfaces of its files. Four folders stand on
 * the core, each on those before it; main.c and start.c stand on all:
 *
 *     log/    log lines, the operation log
 *     setup/  options, geometry, pools, objects: everything made before the first client
 *     keep/   another process that holds descriptors for this one: fd store, supervisor
 *     serve/  the files below
 *
 *     clock.c      the clocks
 *     options.c    options that change process limits or the turn
 *     plan.c       sizes of pool and core from the options
 *     turn.c       the loop: rings, fences, background work, spinning and sleeping
 *     share.c      fair scheduling between sessions
 *     spin.c       whether to spin or to sleep
 *     group.c      groups: several processes of one session
 *     session.c    a session's areas, bells and end
 *     member.c     the processes of sessions
 *     connection.c control connections: slots, polls, sending
 *     socket.c     the listening socket and its name
 *     accept.c     accepting from the socket's queue
 *     control.c    messages of connections, and hang-ups
 *     admin.c      requests of kvtctl
 *     stored.c     the list of stored descriptors
 *     adopt.c      recovery from stored descriptors
 *     timers.c     work that is due by time, signals
 *     host.c       system calls that clients need, used once
 *     refused.c    system calls that the host refuses later
 *
 * One thread. Everything is sized at start: connections and sessions are slots of fixed tables.
 */

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include <bsd/sys/queue.h>

#include "daemon/core/core.h"
#include "daemon/core/ledger.h"
#include "daemon/keep/notify.h"
#include "daemon/log/lines.h"
#include "daemon/log/operations.h"
#include "daemon/serve/loop.h"
#include "daemon/serve/peer.h"
#include "daemon/serve/share.h"
#include "daemon/serve/spin.h"
#include "daemon/setup/config.h"
#include "daemon/setup/geometry.h"
#include "daemon/setup/object.h"
#include "daemon/setup/pool.h"
#include "shm/ring.h"

/** The source of a loop event; see kvt_tag(). */
enum kvt_tag_kind {
	KVT_TAG_NONE = 0, /* completions of cancellations */
	KVT_TAG_ACCEPT,
	KVT_TAG_SIGNAL,
	KVT_TAG_PULSE,
	KVT_TAG_NAME, /* the socket's file changed */
	KVT_TAG_CONNECTION,
	KVT_TAG_DOORBELL,
	KVT_TAG_PROCESS,
};

/** Pack kind, slot and the slot's generation. The generation exposes events of an earlier user. */
static inline uint64_t kvt_tag(enum kvt_tag_kind kind, uint32_t slot, uint32_t generation)
{
	return (uint64_t)kind << 56 | (uint64_t)(slot & 0xffffffu) << 32 | generation;
}

/** What a session held when it ended. Logged once all of it is returned. */
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
	uint64_t worked_turn;      /* when it last had an entry */
	uint64_t waiting_since_ns; /* oldest deferred operation without progress */
	struct kvt_session_share share; /* while open */
	struct kvt_pace pace;
	struct kvt_sqe held;

	struct kvt_member *members; /* rank 0 first; NULL: the slot is free */
	uint32_t generation;
	uint32_t connections; /* control sockets that have not hung up */
	uint32_t processes;   /* that have not exited */
	int doorbell, bell;   /* -1 = none; bell: our end of the completion socket */
	bool quiet; /* the pool backend: no writer is left */
	bool no_resume; /* ends with this daemon */
	uint32_t name_generation; /* the core's: part of the names of stored descriptors */
	uint64_t quiet_again_ns;
	uint64_t ended_ns;
	struct kvt_session_end end;
	uid_t uid;
	struct kvt_object areas;
	int mirror; /* memfd for its processes, never mapped here; -1 = none */
} KVT_ALIGNED(KVT_LINE);

#define KVT_SESSION_NONE                                                                          \
	((struct kvt_session){ .doorbell = -1, .bell = -1, .areas.fd = -1, .mirror = -1 })

/** A process of a session: rank 0, which opened it, or another rank of its group. The slot number
 * is the core's: rank 0 has its session's. */
struct kvt_member {
	struct kvt_member *next; /* of the same session */
	uint32_t index;
	uint32_t session;    /* 0 = free */
	uint32_t rank;
	uint32_t connection; /* slot of the control connection + 1, 0 = none */
	int pidfd;           /* -1 = none */
	bool pidfd_armed;
	bool told;           /* GOODBYE was sent, or the process is gone */
	bool kept;           /* the keeper has its descriptors; of rank 0: and the session's */
	pid_t pid;
	struct kvt_object segment; /* beyond rank 0 only its fence words and `gone` are used */
	struct kvt_segment_layout layout;
};

enum kvt_connection_state {
	KVT_CONNECTION_FREE = 0,
	KVT_CONNECTION_HALF_OPEN, /* no HELLO yet */
	KVT_CONNECTION_OBSERVER,
	KVT_CONNECTION_SESSION,
	KVT_CONNECTION_OVER, /* its session ended; kept to see the hang-up */
	KVT_CONNECTION_STATES,
};

struct kvt_connection {
	enum kvt_connection_state state;
	int fd;
	uint32_t generation;
	struct kvt_member *member; /* a session's process, NULL: none */
	struct kvt_peer peer;
	TAILQ_ENTRY(kvt_connection) half_open; /* while it is */
	TAILQ_ENTRY(kvt_connection) readable;
	enum kvt_connection_state queue; /* readable[queue] has it; KVT_CONNECTION_FREE: none */
	uint64_t accepted_ns; /* monotonic */
	uint64_t accepted_boot_ns;
	bool armed;
	bool hung_up; /* POLLHUP: no process has the other end */
	bool over;    /* hung up: its last messages are taken, then it is dropped */
	bool waiting; /* answer `request` once it is true */
	bool unsent;  /* a message could not be sent */
	uint32_t n_last;      /* messages taken since it hung up */
	struct kvt_message_admin request;
};
TAILQ_HEAD(kvt_connections, kvt_connection);

#define KVT_OP_KINDS 32
#define KVT_PATH_SAMPLES 1024

struct kvt_daemon_stats {
	uint64_t sleeps, spins, turns;
	uint64_t op_count[KVT_OP_KINDS];
	uint64_t op_histogram[KVT_OP_KINDS][KVT_HISTOGRAM_BUCKETS];
	uint64_t op_cycles[KVT_OP_KINDS];
	uint8_t path_nodes[KVT_PATH_SAMPLES]; /* of recent BEGINs, 255 = that or more */
	uint32_t n_path_nodes;
	uint64_t refused, accepted;
};

struct kvt_daemon {
	/* Used by each turn. */
	struct kvt_core *core;
	const struct kvt_counters *counters;
	struct kvt_session *sessions; /* [max_sessions + 1] */
	struct kvt_member *members;   /* [kvt_core_members() + 1] */
	uint32_t *served;             /* sessions whose rings are polled */
	uint32_t n_served, n_hot;     /* the first n_hot in every turn */
	uint32_t cold_next, cool_next;
	uint32_t n_deferred;          /* deferred operations of all sessions */
	uint32_t n_dying;
	uint32_t n_common;            /* deferred beyond their sessions' own_places */
	uint32_t own_places, common_places;
	bool sweep_due;               /* a dying session may be free to release */
	bool compact_due;
	bool look_due;                /* a session without a connection may be over */
	bool draining;
	bool test_clock;
	bool over;                    /* leave the loop */
	bool keep;                    /* leave everything to a successor */
	const char *refused;          /* system call whose refusal ends the daemon; NULL: none */
	bool waiters;                 /* a connection waits for an admin answer */
	bool oplog_dirty;
	int oplog_error;              /* why no log is written any more; 0: it is, or none was */
	uint64_t now_ns;              /* the cache's clock */
	uint64_t real_ns;             /* CLOCK_MONOTONIC, refreshed every few microseconds */
	uint64_t clock_stamp, clock_interval; /* cycles */
	uint64_t idle_since;          /* cycles; 0 = not idle */
	uint64_t turn_stamp;          /* cycles, when this turn began */
	uint64_t woken_cycles;        /* spent on waking clients for their answers */
	struct kvt_spin spin;
	uint64_t compact_after_cycles;
	uint64_t cycles_per_us;
	uint64_t units_per_cycle;     /* of the histograms' 64 ns, 32 bits after the point */
	uint64_t next_timer_ns;
	uint64_t stalled_since_ns;    /* a ring waits for room in its CQ; 0 = none */
	struct kvt_shares shares;
	struct kvt_loop loop;
	struct kvt_daemon_stats stats;

	struct kvt_config config;
	int argc;
	char **argv;
	struct kvt_core_config core_config;
	struct kvt_core_sizes sizes;
	struct kvt_object arena, ledger;
	struct kvt_object *leaving; /* [max_sessions], areas of ended sessions, freed bit by bit */
	uint32_t n_leaving;
	struct kvt_object oplog_tail;
	int arena_readonly;
	void *scratch;
	struct kvt_pool_plan plan;
	struct kvt_pool pool;
	struct kvt_lock_file lock;
	struct kvt_notify notify;
	struct kvt_fdstore passed; /* a predecessor's descriptors, until taken or dropped */
	uint32_t n_kept;
	bool adopted;     /* arena, ledger, pool and sessions are a predecessor's */
	bool listen_kept; /* the keeper has the socket */
	bool lock_kept;   /* the keeper has the lock: it outlives this process */
	struct kvt_oplog *oplog;
	struct kvt_connection *connections;
	struct kvt_connections readable[KVT_CONNECTION_STATES]; /* with a message, by state */
	uint64_t control_after[KVT_CONNECTION_STATES]; /* cycles: take none before */
	uint32_t n_readable;
	bool accept_due;        /* the socket's queue may hold a connection */
	uint32_t n_connections; /* slots */
	struct kvt_connections half_open; /* the oldest first */
	uint32_t n_half_open, n_observers;
	uint32_t *free_connections; /* stack of slots */
	uint32_t n_free_connections;
	int listen_fd, signal_fd;
	bool listen_passed, listening, socket_made;
	uint32_t generation; /* of slots, rising */
	uint32_t listen_generation; /* of the poll of listen_fd */
	char socket_path[108];
	uint64_t socket_file[2]; /* device and inode behind socket_path when bound; 0: none */
	gid_t socket_gid;        /* group of the file; -1: the daemon's */
	int name_fd;             /* inotify of the file, -1 = none */
	bool name_watched;       /* by name_fd */
	bool name_lost;          /* it has no name, and the log says so */
	uint64_t name_due_ns;    /* when to look at the name */
	pid_t socket_holder; /* pid that listens on the socket we were refused; 0 = unknown */
	gid_t admin_gid;
	char admin_group[KVT_CONFIG_TEXT_BYTES]; /* the name of admin_gid */
	uint64_t started_ns, drain_until_ns, accept_again_ns;
	uint64_t watchdog_at_ns, status_at_ns;
	int pulse_fd; /* eventfd: its event shows that the loop reports events; -1 = none */
	struct kvt_log_rates client_log;
	char status_text[160]; /* last STATUS sent to the service manager */
	uint8_t *message; /* KVT_MESSAGE_MAX bytes, as `answer` */
	uint8_t *answer;
};

/* ---- start.c */

/** Make everything and listen. On failure undo it and set `why`. */
int kvt_daemon_start(struct kvt_daemon *daemon, char why[KVT_WHY_BYTES]);
/** Check that this machine can serve the configuration; make nothing (--check-config). */
int kvt_daemon_check(struct kvt_daemon *daemon, char why[KVT_WHY_BYTES]);
/** Tell clients, publish GONE, remove every object. */
void kvt_daemon_stop(struct kvt_daemon *daemon);
/** Leave everything to a successor, which gets the stored descriptors. */
void kvt_daemon_leave(struct kvt_daemon *daemon);

/* ---- plan.c */

/** Plan pool and core from the configuration and the stored arena. On failure `why` says it. */
int kvt_daemon_plan(struct kvt_daemon *daemon, char why[KVT_WHY_BYTES]);
/** Check that a daemon with the options as they are now could recover what this one has. -ESTALE or
 * -EINVAL with `why`. */
int kvt_daemon_plan_successor(const struct kvt_daemon *daemon, char why[KVT_WHY_BYTES]);

/* ---- options.c */

/** Raise RLIMIT_NOFILE to what the configuration needs. Returns 1 if raised, 0 if it was high
 * enough. -EMFILE with `why`. */
int kvt_daemon_raise_nofile(const struct kvt_daemon *daemon, char why[KVT_WHY_BYTES]);
/** Copy the reloadable options into the fields that the turn uses. */
void kvt_daemon_apply(struct kvt_daemon *daemon);

/* ---- clock.c */

/** Read the clocks. */
void kvt_daemon_clock(struct kvt_daemon *daemon);

static inline uint64_t kvt_cycles(void)
{
#if defined(__x86_64__)
	return __builtin_ia32_rdtsc();
#elif defined(__aarch64__)
	uint64_t value;

	__asm__ volatile("mrs %0, cntvct_el0" : "=r"(value));
	return value;
#else
#error "kvtrunkd needs a cycle counter: add one for this processor"
#endif
}

/* ---- turn.c */

void kvt_daemon_run(struct kvt_daemon *daemon);
/** Core hook: a deferred operation took effect. */
void kvt_daemon_complete(void *context, uint32_t session, const struct kvt_cqe *cqe);

/* ---- host.c */

/** Use each system call that clients need. Negative errno with `why`: the host refuses one. */
int kvt_host_try(char why[KVT_WHY_BYTES]);

/* ---- refused.c */

#define KVT_HOST_CURE "allow it (a seccomp profile, a sandbox or a security module refuses it)"

/** End the daemon in words: it can serve no one without this call. `error` is positive. */
void kvt_host_ends(struct kvt_daemon *daemon, const char *call, int error);
/** End it if the host refuses the call, which no client can cause: EPERM, EACCES or ENOSYS. False:
 * another error. */
bool kvt_host_refuses(struct kvt_daemon *daemon, const char *call, int error);

/* ---- stored.c */

/** Store the instance's descriptors, if there is a keeper. Only with the lock held: the keeper's
 * next daemon takes them without checking for another one that serves. */
void kvt_keep_instance(struct kvt_daemon *daemon);
void kvt_forget_lock(struct kvt_daemon *daemon, int made_directory);
/** Store the socket in place of the one bound to `old_file` (device and inode), and_lock: the lock,
 * too. */
void kvt_keep_socket(struct kvt_daemon *daemon, const uint64_t old_file[2], bool and_lock);
/** Store a process's descriptors, with rank 0's its session's; remove them from the store. */
void kvt_keep_member(struct kvt_daemon *daemon, struct kvt_member *member);
void kvt_forget_member(struct kvt_daemon *daemon, struct kvt_member *member);
/** Empty the store: no successor follows. */
void kvt_forget_all(struct kvt_daemon *daemon);
/** Take the instance's stored descriptors into empty fields of `daemon`, and the pool's into
 * `slabs`. */
void kvt_take_instance(struct kvt_daemon *daemon, int slabs[KVT_MAX_SLABS]);
/** Take the stored ones of a slot. */
void kvt_take_member(struct kvt_daemon *daemon, struct kvt_member *member);

/* ---- connection.c */

/** Take a slot for `fd`, which has sent no message yet. A slot must be free. */
struct kvt_connection *kvt_connection_take(struct kvt_daemon *daemon, int fd,
					   const struct kvt_peer *peer);
/** Queue a connection that has a message. */
void kvt_connection_queue(struct kvt_daemon *daemon, struct kvt_connection *connection);
/** Take it out of the queue, if it is in one. */
void kvt_connection_unqueue(struct kvt_daemon *daemon, struct kvt_connection *connection);
/** Note that its first message came. */
void kvt_connection_is_open(struct kvt_daemon *daemon, struct kvt_connection *connection,
			    enum kvt_connection_state state);
/** Arm the poll for what the connection waits for. */
void kvt_connection_arm(struct kvt_daemon *daemon, struct kvt_connection *connection);
/** Replace an armed poll by one for what the connection waits for now: here, or in
 * kvt_control_event(), which gets -ECANCELED. */
void kvt_connection_rearm(struct kvt_daemon *daemon, struct kvt_connection *connection);
/** Close and free the slot, without telling session or member: see kvt_control_drop(). */
void kvt_connection_drop(struct kvt_daemon *daemon, struct kvt_connection *connection);
/** Have the kernel refuse descriptors that are sent to this socket, or to one accepted from it. */
void kvt_connection_refuse_fds(int fd);
/** Fill the head of a message of `bytes` bytes. `cookie`: of the request; 0: there is none. */
void kvt_message_fill(struct kvt_message *head, uint16_t type, size_t bytes, int result,
		      uint64_t cookie);
/** Send one message. Never blocks. False: the socket is full; connection->unsent is set. */
bool kvt_connection_send(struct kvt_daemon *daemon, struct kvt_connection *connection,
			 const void *message, size_t bytes, const int *fds, uint32_t n_fds);
/** Send GOODBYE with a text. */
void kvt_connection_goodbye(struct kvt_daemon *daemon, struct kvt_connection *connection,
			    int error, const char *text);

/* ---- member.c */

/** Make the pidfd and segment of the process behind `connection`; made->layout is its plan. On
 * failure too, kvt_member_release() it. */
int kvt_member_make(struct kvt_connection *connection, const char *name, struct kvt_member *made,
		    uint64_t *ret_start_time, char *why, size_t why_size);
/** Copy it into its slot, which must be free: watch, count and store it. */
void kvt_member_settle(struct kvt_daemon *daemon, struct kvt_connection *connection,
		       struct kvt_session *session, const struct kvt_member *made);
/** Add it to its session's list. Rank 0 comes first. */
void kvt_member_link(struct kvt_session *session, struct kvt_member *member);
/** Give it its control connection. */
void kvt_member_connect(struct kvt_daemon *daemon, struct kvt_member *member,
			struct kvt_connection *connection);
/** Poll its pidfd. */
void kvt_member_watch(struct kvt_daemon *daemon, struct kvt_member *member);
/** Free a slot, or one that was made and not settled. */
void kvt_member_release(struct kvt_daemon *daemon, struct kvt_member *member);
/** The fence words in its segment. */
struct kvt_fence_word *kvt_member_fences(const struct kvt_member *member);

/* ---- session.c */

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

/* ---- group.c */

/** Make a session's process rank 0 of n_ranks. The others join with `token`: the caller's, or if it
 * is 0 a random one. */
int kvt_group_open(struct kvt_daemon *daemon, struct kvt_connection *connection, uint32_t n_ranks,
		   uint64_t token[2], char *why, size_t why_size);
/** Join the process behind `connection` as a rank. ret_fds: segment, doorbell; borrowed. */
int kvt_group_join(struct kvt_daemon *daemon, struct kvt_connection *connection,
		   const struct kvt_message_hello *hello, const char *label,
		   struct kvt_message_welcome *welcome, int ret_fds[2], char *why, size_t why_size);

/* ---- socket.c */

/** Bind and listen at socket_path. -EADDRINUSE with `why`: a process listens there. */
int kvt_socket_bind(struct kvt_daemon *daemon, char *why);
/** Take listen_fd, which the service manager or a predecessor bound. */
void kvt_socket_passed(struct kvt_daemon *daemon);
/** Begin to watch the name. If it is gone, bind another socket. */
void kvt_socket_watch(struct kvt_daemon *daemon);
/** The file has changed. */
void kvt_socket_event(struct kvt_daemon *daemon);
/** Make the name again if it is gone or leads elsewhere. Returns when to look again. */
uint64_t kvt_socket_look(struct kvt_daemon *daemon);
/** Look if it is time. Returns when the next look is due. */
uint64_t kvt_socket_due(struct kvt_daemon *daemon);
/** Remove the name if we made it, and it leads to our socket. */
void kvt_socket_unlink(struct kvt_daemon *daemon);

/* ---- accept.c */

/** Length of the accept queue. It bounds the wait of a new connection: 20 to 100 us for each before
 * it, and three times as much for others. If the queue is full, connect() waits, in
 * kvt_client_connect() until its timeout. */
#define KVT_LISTEN_BACKLOG 64

/** Poll the listening socket. */
void kvt_accept_watch(struct kvt_daemon *daemon);
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

/* ---- control.c */

/** True if one more half-open connection can be taken now. */
bool kvt_control_has_room(const struct kvt_daemon *daemon);
void kvt_control_accepted(struct kvt_daemon *daemon, int fd);
/** Drop connections whose first message is overdue. Returns when the next one is. */
uint64_t kvt_control_end_half_open(struct kvt_daemon *daemon);
/** Handle a poll's end: its events, or a negative errno. kvt_control_take() takes the message. */
void kvt_control_event(struct kvt_daemon *daemon, struct kvt_connection *connection, int result);
/** Take one message of a queued connection. If its session ended since, it stays unread. */
void kvt_control_take(struct kvt_daemon *daemon, struct kvt_connection *connection);
/** Close and free the slot, and tell its session or member of the hang-up. */
void kvt_control_drop(struct kvt_daemon *daemon, struct kvt_connection *connection);
/** Answer waiting requests that are true now. */
void kvt_control_answer(struct kvt_daemon *daemon);

/* ---- admin.c */

void kvt_admin_handle(struct kvt_daemon *daemon, struct kvt_connection *connection,
		      const struct kvt_message_admin *request, const void *payload,
		      size_t payload_bytes);
/** Answer a request with an error. */
void kvt_admin_refuse(struct kvt_daemon *daemon, struct kvt_connection *connection,
		      const struct kvt_message_admin *request, int error, const char *text);
/** True if memory suffices for an audit. */
bool kvt_admin_may_audit(const struct kvt_daemon *daemon);
/** Answer the connection's waiting request, if it is true now. False: not yet. */
bool kvt_admin_answer(struct kvt_daemon *daemon, struct kvt_connection *connection);

/* ---- adopt.c */

/** Map the stored arena, ledger and pool. -ESTALE with `why`: one is missing or does not match. */
int kvt_adopt_objects(struct kvt_daemon *daemon, char why[KVT_WHY_BYTES]);
/** Serve the sessions of a recovered core. Those with all descriptors continue, the others end.
 * -ESTALE with `why`: a trial would end one that another process could recover. */
int kvt_adopt_sessions(struct kvt_daemon *daemon, char why[KVT_WHY_BYTES]);
/** Drop stored descriptors that were not taken. */
void kvt_adopt_rest(struct kvt_daemon *daemon);
/** Publish GONE in a stored arena that is not recovered, for processes that still map it. */
void kvt_adopt_say_gone(struct kvt_daemon *daemon);

/* ---- timers.c */

/** Do what is due, and set next_timer_ns. */
void kvt_timers_run(struct kvt_daemon *daemon);
/** The pulse arrived: feed the watchdog. */
void kvt_timers_pulse(struct kvt_daemon *daemon);
/** Handle signals. SIGTERM, SIGINT: drain, or exit on the second. SIGHUP: reload. SIGUSR2:
 * leave. */
void kvt_signal_handle(struct kvt_daemon *daemon);

#endif
