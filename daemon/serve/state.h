/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_SERVE_STATE_H
#define KVT_SERVE_STATE_H

/**
 * @file state.h
 * The state of the daemon around the core, which every file of serve/ sees. What a file does to it
 * for others is declared in the header of the same name. docs/architecture.md draws the files.
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

#endif
