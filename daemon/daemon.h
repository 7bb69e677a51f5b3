/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_DAEMON_DAEMON_H
#define KVT_DAEMON_DAEMON_H

/**
 * @file daemon.h
 * The daemon around the core: its state, and what its files offer each other.
 *
 *     main.c       command line, signals' start, exit codes
 *     start.c      memory, core, pool, socket: made at start, unmade at the end
 *     turn.c       the loop: rings, fences, background work, spinning and sleeping
 *     share.c      whose entry runs next
 *     group.c      further processes that hold what one session holds
 *     session.c    a session's segment, descriptors and end
 *     control.c    connections and their messages
 *     half_open.c  those without their first message, by age and uid
 *     closer.c     another process, for last references to what clients can make slow
 *     admin.c      what kvtctl asks
 *     adopt.c      what outlives the daemon: parked while it runs, taken up by the next
 *     timers.c     everything that happens because time passed
 *
 * One thread. Everything is sized at start: connections and sessions are slots of fixed tables.
 */

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include <bsd/sys/queue.h>

#include "daemon/closer.h"
#include "daemon/config.h"
#include "daemon/core/core.h"
#include "daemon/geometry.h"
#include "daemon/half_open.h"
#include "daemon/log.h"
#include "daemon/loop.h"
#include "daemon/notify.h"
#include "daemon/object.h"
#include "daemon/oplog.h"
#include "daemon/peer.h"
#include "daemon/pool.h"
#include "daemon/share.h"
#include "shm/ring.h"

/** What an event of the loop is about; see kvt_tag(). */
enum kvt_tag_kind {
	KVT_TAG_NONE = 0, /* answers of withdrawals */
	KVT_TAG_ACCEPT,
	KVT_TAG_QUEUE, /* somebody waits in the queue of an inherited socket */
	KVT_TAG_SIGNAL,
	KVT_TAG_CONNECTION,
	KVT_TAG_DOORBELL,
	KVT_TAG_PROCESS,
	KVT_TAG_MEMBER,
};

/** kind, slot, and the slot's generation, so that an event for what was there before is known. */
static inline uint64_t kvt_tag(enum kvt_tag_kind kind, uint32_t slot, uint32_t generation)
{
	return (uint64_t)kind << 56 | (uint64_t)(slot & 0xffffffu) << 32 | generation;
}

/** What a session held when it ended, for the line that is logged once all of it is back. */
struct kvt_session_end {
	const char *how; /* NULL: it lives */
	uint64_t at_ns;
	uint64_t operations;
	uint32_t leases, pages;
	char label[KVT_LABEL_BYTES]; /* fit to be logged */
};

/** What waking a session cost the serving thread: its client chooses how many watches a wake-up has
 * to go through. Processor time, which a busy host does not change. The clock is read only for a
 * session that took long before. */
struct kvt_cost {
	uint64_t level_ns; /* charged; a hundredth of the time since `at_ns` is off */
	uint64_t at_ns;
	uint32_t suspect;  /* wake-ups that are still measured */
	bool over;         /* more than KVT_COST_MOST_NS: it is ended when the turn is over */
};
#define KVT_COST_SLOW_US 200            /* what a wake-up may cost */
#define KVT_COST_MOST_NS 100000000ull   /* beyond that, within ten seconds */

/** One client process as the daemon serves it. The slot number is the core's session index. The
 * first two lines are what a turn looks at. */
struct kvt_session {
	struct kvt_ring_end ring;
	uint32_t index;
	uint32_t deferred; /* operations that wait for fences: each has a place in the CQ */
	bool open;    /* entries are taken */
	bool holding; /* `held` was taken from the ring and waits for a place to wait in */
	bool doorbell_armed;
	bool dying;   /* some sign was seen: no more entries, records until the core is done */
	uint64_t worked_turn;      /* when it last had an entry */
	uint64_t waiting_since_ns; /* oldest deferred operation without progress */
	struct kvt_account *account; /* of its uid, while entries are taken */
	uint64_t spent;            /* cycles, on the clock of account->floor */
	struct kvt_sqe held;

	uint32_t generation;
	uint32_t connections; /* control sockets that have not hung up */
	uint32_t processes;   /* that have not exited */
	uint32_t connection;  /* slot of the control connection + 1, 0 = none */
	uint32_t n_ranks;     /* of its group, 0 = it has none */
	int pidfd, doorbell, bell; /* -1 = none; bell: our end of the completion socket */
	uint32_t hold; /* key of doorbell, bell and segment with the closer, 0 = none */
	bool pidfd_armed;
	bool used;  /* the slot is taken */
	bool quiet; /* the pool backend has agreed */
	bool parked; /* the service manager holds its descriptors, too */
	bool no_resume; /* it is to end with this daemon */
	uint32_t name_generation; /* the core's: part of their names */
	uint64_t quiet_again_ns;
	uint64_t ended_ns;
	struct kvt_cost cost;
	struct kvt_session_end end;
	pid_t pid;
	uid_t uid;
	struct kvt_object segment, areas;
	struct kvt_segment_layout layout;
} KVT_ALIGNED(KVT_LINE);

/** A rank of a group beyond the first. The slot number is the core's. */
struct kvt_member {
	uint32_t index;
	uint32_t session;    /* 0 = free */
	uint32_t generation;
	uint32_t connection; /* slot of the control connection + 1, 0 = hung up */
	int pidfd;           /* -1 = exited */
	bool pidfd_armed;
	bool told;           /* that the group is over */
	bool parked;
	uint32_t name_generation; /* that its parked descriptors are named by */
	pid_t pid;
	struct kvt_object segment; /* of which only the fence words and `gone` are used */
	struct kvt_segment_layout layout;
};

enum kvt_connection_state {
	KVT_CONNECTION_FREE = 0,
	KVT_CONNECTION_HALF_OPEN, /* no HELLO yet */
	KVT_CONNECTION_OBSERVER,
	KVT_CONNECTION_SESSION,
	KVT_CONNECTION_OVER, /* its session ended; kept to see the hang-up */
};

struct kvt_connection {
	enum kvt_connection_state state;
	int fd;
	uint32_t hold; /* its key with the closer, 0 = none */
	uint32_t generation;
	uint32_t session; /* 0 = none */
	uint32_t member;  /* of that session's group; 0 = the session's own */
	struct kvt_peer peer;
	struct kvt_cost cost; /* while it has no session */
	bool costly;          /* some system call on it took long */
	struct kvt_half_open half_open;
	uint64_t accepted_ns; /* monotonic */
	uint64_t accepted_boot_ns;
	bool armed;
	bool queued;  /* in daemon->readable */
	bool over;    /* it hung up: its last messages are taken, then it goes */
	bool waiting; /* `request` is answered when it has become true */
	bool adopted; /* a predecessor accepted it */
	uint32_t n_last;      /* messages taken since it hung up */
	uint64_t last_cookie; /* adopted: of the last request, which may come twice */
	TAILQ_ENTRY(kvt_connection) next_readable;
	struct kvt_message_admin request;
};
TAILQ_HEAD(kvt_readable, kvt_connection);

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
	uint64_t costly_sessions, costly_ns;
};

struct kvt_daemon {
	/* The turn's own. */
	struct kvt_core *core;
	const struct kvt_counters *counters;
	struct kvt_session *sessions; /* [max_sessions + 1] */
	struct kvt_member *members;   /* [max_members + 1] */
	uint32_t *served;             /* sessions whose rings are looked at */
	uint32_t n_served, n_hot;     /* the first n_hot in every turn */
	uint32_t cold_next, cool_next;
	uint32_t n_deferred;          /* operations that wait for fences, all sessions */
	uint32_t n_dying;
	uint32_t n_common;            /* of these, beyond their sessions' own_places */
	uint32_t own_places, common_places;
	bool sweep_due;               /* some dying session may be done with */
	bool compact_due;
	bool cost_due;                /* some session cost too much */
	bool draining;
	bool test_clock;
	bool over;                    /* leave the loop */
	bool keep;                    /* and everything as it is, for a successor */
	bool handed_over;             /* which has it already */
	bool waiters;                 /* some connection waits for an admin answer */
	bool oplog_failed, oplog_dirty;
	uint64_t now_ns;              /* the cache's clock */
	uint64_t real_ns;             /* CLOCK_MONOTONIC, refreshed every few microseconds */
	uint64_t clock_stamp, clock_interval; /* cycles */
	uint64_t idle_since;          /* cycles; 0 = not idle */
	uint64_t spin_cycles;         /* present budget; UINT64_MAX = for ever */
	uint64_t spin_most_cycles;
	uint64_t compact_after_cycles;
	uint64_t cycles_per_us;
	uint64_t units_per_cycle;     /* of the histograms' 64 ns, 32 bits after the point */
	uint64_t next_timer_ns;
	uint64_t stalled_since_ns;    /* some ring waits for room in its CQ; 0 = none */
	struct kvt_shares shares;
	struct kvt_loop loop;
	struct kvt_closer closer;
	struct kvt_daemon_stats stats;

	struct kvt_config config;
	int argc;
	char **argv;
	struct kvt_core_config core_config;
	struct kvt_core_sizes sizes;
	struct kvt_object arena, ledger;
	struct kvt_object oplog_tail; /* kept for a successor, as they are */
	int arena_readonly;
	void *scratch;
	struct kvt_pool_plan plan;
	struct kvt_pool pool;
	struct kvt_lock_file lock;
	struct kvt_notify notify;
	struct kvt_parcels passed; /* what a predecessor left, until it is taken up or dropped */
	uint32_t n_parked;
	bool adopted;     /* arena, ledger, pool and sessions are a predecessor's */
	bool listen_kept; /* the socket is */
	bool lock_parked; /* the manager holds the lock, too: it outlives this process */
	struct kvt_oplog *oplog;
	struct kvt_connection *connections;
	struct kvt_readable readable; /* connections with a message, served in this order */
	uint64_t message_after;       /* cycles: no message is taken before */
	uint32_t n_connections; /* slots */
	struct kvt_half_opens half_open;
	uint32_t n_observers;
	uint32_t *free_connections; /* stack of slots */
	uint32_t n_free_connections;
	int listen_fd, signal_fd;
	bool takeover;   /* everything comes from a running daemon, or we do not start */
	int takeover_fd; /* where it waits for our confirmation; -1: it does not */
	int takeover_pidfd; /* of that daemon; -1: whether it lives cannot be told */
	pid_t takeover_pid;
	int64_t takeover_asked_ms;
	bool listen_passed, listening, socket_made;
	uint32_t generation; /* of slots, rising */
	char socket_path[108];
	pid_t socket_holder; /* who listened on it when it was refused; 0 = unknown */
	gid_t admin_gid;
	char admin_group[KVT_CONFIG_TEXT_BYTES]; /* the name that admin_gid is of */
	uint64_t started_ns, drain_until_ns, accept_again_ns;
	uint64_t watchdog_at_ns, status_at_ns, fed_turn;
	uint64_t queue_until_ns; /* how long an inherited socket is watched doubly */
	struct kvt_log_rates client_log;
	char status_text[160]; /* what the service manager was told last */
	uint8_t *message; /* KVT_MESSAGE_MAX bytes in, and as many out */
	uint8_t *answer;
};

/* ---- start.c */

/** Make everything and begin to listen. On failure everything made is undone and `why` tells. */
int kvt_daemon_start(struct kvt_daemon *daemon, char why[KVT_WHY_BYTES]);
/** Whether a good configuration can be carried out here, as far as it can be told without making
 * anything (--check-config). */
int kvt_daemon_check(struct kvt_daemon *daemon, char why[KVT_WHY_BYTES]);
/** Tell clients, publish GONE, remove every object. */
void kvt_daemon_stop(struct kvt_daemon *daemon);
/** Take the reloadable options into the fields that the turn uses. */
void kvt_daemon_apply(struct kvt_daemon *daemon);

/** Leave everything as it is, for a successor that gets what was parked. */
void kvt_daemon_leave(struct kvt_daemon *daemon);

/** Who was to take over has failed and is gone: make all that is derived again, in place, from the
 * primary facts, and go on as its successor. Ends the process where these are damaged. */
void kvt_daemon_rebuild(struct kvt_daemon *daemon);
/** Let a successor that takes over go on with the operation log, if there is one. If it fails
 * kvt_daemon_rebuild() takes the log back. */
int kvt_daemon_hand_over_log(struct kvt_daemon *daemon);

/* ---- adopt.c */

/** Everything that a successor needs, by name, but for the connection on which it asked. fd -1:
 * there is none. */
typedef void kvt_parcel_fn(void *context, const char *name, int fd);
void kvt_each_parcel(struct kvt_daemon *daemon, const struct kvt_connection *asking,
		     kvt_parcel_fn *each, void *context);

/** Park arena, ledger, pool and listening socket, if the manager keeps descriptors. */
void kvt_park_objects(struct kvt_daemon *daemon);
/** Park the lock, if the manager keeps descriptors and has not got it. Not before the instance is
 * ours alone: the manager's next daemon takes it without a look at who serves. */
void kvt_park_lock(struct kvt_daemon *daemon);
void kvt_unpark_lock(struct kvt_daemon *daemon, int made_directory);
/** The lock that a predecessor parked or handed over, the caller's from now on; -1: none. */
int kvt_adopt_lock(struct kvt_daemon *daemon, int *ret_made_directory);
/** Park all that a daemon handed over which had no manager, or none that keeps anything. */
void kvt_park_taken(struct kvt_daemon *daemon);
/** Park a session, with its control socket; of one that is to end with this daemon only what tells
 * of its end. */
void kvt_park_session(struct kvt_daemon *daemon, struct kvt_session *session, int control);
void kvt_unpark_session(struct kvt_daemon *daemon, struct kvt_session *session);
/** Have the manager forget all of it: this daemon ends for good. */
void kvt_unpark_all(struct kvt_daemon *daemon);
/** Pages of the pool that a predecessor left, by its arena; 0: nothing was left. */
uint32_t kvt_adopt_n_pages(const struct kvt_daemon *daemon);
/** Map what a predecessor left: arena, ledger and pool. -ESTALE with `why`: something is missing,
 * or of another shape. */
int kvt_adopt_objects(struct kvt_daemon *daemon, char why[KVT_WHY_BYTES]);
/** A descriptor that a predecessor parked, the caller's from now on; -1: there is none. */
int kvt_adopt_fd(struct kvt_daemon *daemon, enum kvt_parcel_kind kind, uint32_t index,
		 uint32_t generation);
/** Park what a member has, `control` too, as its session's is; and no more. */
void kvt_park_member(struct kvt_daemon *daemon, struct kvt_member *member, int control);
void kvt_unpark_member(struct kvt_daemon *daemon, struct kvt_member *member);
/** Serve the sessions of an adopted core again: those whose descriptors were left go on where they
 * stood, the others end. */
void kvt_adopt_sessions(struct kvt_daemon *daemon);
/** The same core again, made anew: give it the sessions' memory back. */
void kvt_adopt_views(struct kvt_daemon *daemon);
/** Drop what was left and not taken up. */
void kvt_adopt_rest(struct kvt_daemon *daemon);
/** Who still maps the arena that was left learns that it is no longer served. */
void kvt_adopt_say_gone(struct kvt_daemon *daemon);

/* ---- turn.c */

void kvt_daemon_run(struct kvt_daemon *daemon);
/** Look at the queue of a socket that a predecessor listened on, too. */
void kvt_daemon_watch_queue(struct kvt_daemon *daemon);
/** Read the clocks now. */
void kvt_daemon_clock(struct kvt_daemon *daemon);
/** Core hook: a deferred operation took effect. */
void kvt_daemon_complete(void *context, uint32_t session, const struct kvt_cqe *cqe);

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

/* ---- session.c */

/** What a client asked for, checked and rounded. */
struct kvt_session_wish {
	uint32_t sq_entries, cq_entries;
	uint64_t keys_count, list_count;
	const char *label;
	bool no_resume; /* the session is to end with this daemon, however it does */
};

/** Open a session for the process behind `connection`. ret_fds: segment, areas, doorbell,
 * completion, in this order; the caller closes the last one after sending. */
int kvt_session_open(struct kvt_daemon *daemon, struct kvt_connection *connection,
		     const struct kvt_session_wish *wish, uint64_t secret[2],
		     uint32_t *ret_session, int ret_fds[4], char *why, size_t why_size);
/** Its memory, as the core may touch it. */
void kvt_session_view(const struct kvt_session *session, struct kvt_core_view *ret_view);
/** Give a session that a predecessor opened to the process behind `connection`, which knows its
 * secret. -ESTALE with `why`: there is none, or it is another process's. */
int kvt_session_resume(struct kvt_daemon *daemon, struct kvt_connection *connection,
		       const uint64_t secret[2], uint32_t *ret_session, char *why,
		       size_t why_size);
/** Note what it holds now that it ends: "closed", "died", "killed". The first one counts. */
void kvt_session_note_end(struct kvt_daemon *daemon, struct kvt_session *session,
			  const char *how);
/** The control socket hung up. */
void kvt_session_hangup(struct kvt_daemon *daemon, struct kvt_session *session);
/** The process exited. */
void kvt_session_exited(struct kvt_daemon *daemon, struct kvt_session *session);
/** End a session that broke the rules; `why` goes to the client and the log. */
void kvt_session_kill(struct kvt_daemon *daemon, struct kvt_session *session, int error,
		      const char *why);
/** An operator says that nothing of it writes any more. */
void kvt_session_fence(struct kvt_daemon *daemon, struct kvt_session *session);
/** A slot that a predecessor's session was put into: look at its ring and its process. `serve`:
 * take entries; else it is over and only its end is waited for. */
void kvt_session_adopted(struct kvt_daemon *daemon, struct kvt_session *session, bool serve);
/** Release slots of sessions that the core is done with, and ask backends again. */
void kvt_sessions_sweep(struct kvt_daemon *daemon);
/** Say in the segment that the session is over and wake whoever waits there. */
void kvt_session_say_gone(struct kvt_daemon *daemon, struct kvt_session *session, int error);
/** Have the closer hold what the session shares with its client. */
void kvt_session_hold(struct kvt_daemon *daemon, struct kvt_session *session);
/** Wake a client that sleeps on its completion descriptor. */
void kvt_session_ring_bell(struct kvt_daemon *daemon, struct kvt_session *session);
/** Before and after a system call that wakes whatever watches a descriptor of a client. What took
 * long is measured the next time, and charged. */
struct kvt_wake {
	uint64_t cycles, processor_ns;
};
struct kvt_wake kvt_cost_begin(const struct kvt_cost *cost);
/** True: it took long, or the thread may just not have run. */
bool kvt_cost_end(struct kvt_daemon *daemon, struct kvt_cost *cost, const struct kvt_wake *wake);
/** kvt_loop_poll() of a client's descriptor: whatever its client does with it at this time holds
 * the same spin lock. */
void kvt_cost_poll(struct kvt_daemon *daemon, struct kvt_cost *cost, int fd, uint32_t events,
		   uint64_t tag);
/** Unmap and close all that a slot holds. */
void kvt_session_release(struct kvt_daemon *daemon, struct kvt_session *session);

/** One of the processes that hold a session is gone: its socket, or (`exited`) itself. Its pages
 * can go when the last one's are. `who` is for the log. */
void kvt_session_part(struct kvt_daemon *daemon, struct kvt_session *session, bool exited,
		      const char *who);

/* ---- group.c */

/** Make a session's process rank 0 of n_ranks. `ret_token` is for the others to show. */
int kvt_group_open(struct kvt_daemon *daemon, struct kvt_connection *connection, uint32_t n_ranks,
		   uint64_t ret_token[2], char *why, size_t why_size);
/** The process behind `connection` comes as a rank. ret_fds: segment, doorbell; both stay ours. */
int kvt_group_join(struct kvt_daemon *daemon, struct kvt_connection *connection,
		   const struct kvt_message_hello *hello, const char *label,
		   struct kvt_message_welcome *welcome, int ret_fds[2], char *why, size_t why_size);
/** Take up the members of an adopted session: their processes count from now on. False: a member's
 * descriptors are lost or its process is gone, so the group cannot go on. */
bool kvt_group_adopt(struct kvt_daemon *daemon, struct kvt_session *session);
/** Then, when it is known whether the session goes on: their sockets and words. */
void kvt_group_adopted(struct kvt_daemon *daemon, struct kvt_session *session, bool lives);
/** Give the core the words of all members again. */
void kvt_group_views(struct kvt_daemon *daemon);
/** Tell the members of a session that it is over: once, however often it is called. */
void kvt_group_over(struct kvt_daemon *daemon, uint32_t session, int error, const char *why);
void kvt_member_hangup(struct kvt_daemon *daemon, struct kvt_member *member);
void kvt_member_exited(struct kvt_daemon *daemon, struct kvt_member *member);
/** The core is done with the session: free its members' slots and close their sockets. */
void kvt_group_release(struct kvt_daemon *daemon, uint32_t session);

/* ---- control.c */

void kvt_control_accepted(struct kvt_daemon *daemon, int fd);
/** End connections that are without their first message for too long. Returns when the next one
 * is. */
uint64_t kvt_control_end_half_open(struct kvt_daemon *daemon);
/** What the poll saw. A message is taken later, by kvt_control_work(). */
void kvt_control_event(struct kvt_daemon *daemon, struct kvt_connection *connection,
		       uint32_t revents);
/** Take one message of the first readable connection; there is one. Not before a pause that the
 * last message's cost demands. Returns 1: it is not yet time to sleep. */
uint32_t kvt_control_work(struct kvt_daemon *daemon);
/** Drop observers and newcomers that cost too much. */
void kvt_control_drop_costly(struct kvt_daemon *daemon);
/** Close and free the slot. Its session, if any, learns of the hang-up. */
void kvt_control_drop(struct kvt_daemon *daemon, struct kvt_connection *connection);
/** Send one message, never blocking. False: nobody reads at the other end, so the connection was
 * dropped, or the session behind it ended. Also false if the client cost too
 * much and this socket is a part of that. */
bool kvt_control_send(struct kvt_daemon *daemon, struct kvt_connection *connection,
		      const void *message, size_t bytes, const int *fds, uint32_t n_fds);
/** Send GOODBYE or REFUSED with a text. */
bool kvt_control_say(struct kvt_daemon *daemon, struct kvt_connection *connection, uint16_t type,
		     uint64_t cookie, int error, const char *text);
/** A session's control socket that a predecessor left, or with session NULL an observer's. False:
 * it is of no use; it was closed. */
bool kvt_control_adopted(struct kvt_daemon *daemon, int fd, struct kvt_session *session,
			 struct kvt_member *member);
/** Greet who is at the other end of these, so that they ask again what was not answered. */
void kvt_control_greet(struct kvt_daemon *daemon);
/** Go on with descriptors that leave (daemon/closer.h). Returns when to call again. */
uint64_t kvt_control_leave(struct kvt_daemon *daemon);
/** Give up a descriptor that a client shares, or did, and that became nothing here. */
void kvt_control_leave_unused(struct kvt_daemon *daemon, int fd);
/** Have the kernel refuse descriptors that are sent to this socket, or to one accepted from it. */
void kvt_control_refuse_fds(const struct kvt_daemon *daemon, int fd);
/** Arm the poll for what the connection waits for now. */
void kvt_control_arm(struct kvt_daemon *daemon, struct kvt_connection *connection);

/* ---- admin.c */

void kvt_admin_handle(struct kvt_daemon *daemon, struct kvt_connection *connection,
		      const struct kvt_message_admin *request, const void *payload,
		      size_t payload_bytes);
/** Answer those who wait for what may have become true. */
void kvt_admin_wake(struct kvt_daemon *daemon);

/* ---- timers.c */

/** Do what is due, and compute when something is due next. */
void kvt_timers_run(struct kvt_daemon *daemon);
/** SIGTERM, SIGINT: begin to stop; a second one stops at once. SIGHUP: read the options again. */
void kvt_signal_handle(struct kvt_daemon *daemon);
/** Tell the service manager how things are. */
void kvt_status_send(struct kvt_daemon *daemon);

#endif
