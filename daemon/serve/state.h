/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_SERVE_STATE_H
#define KVT_SERVE_STATE_H

/**
 * @file state.h
 * The state of the daemon around the core. A part that one file changes is declared in the header
 * of that file, and so is what the file offers. docs/architecture.md draws the files.
 *
 * One thread. Everything is sized at start: connections and sessions are slots of fixed tables.
 */

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "daemon/core/config.h"
#include "daemon/keep/notify.h"
#include "daemon/log/lines.h"
#include "daemon/serve/accept.h"
#include "daemon/serve/clock.h"
#include "daemon/serve/connections.h"
#include "daemon/serve/feed.h"
#include "daemon/serve/loop.h"
#include "daemon/serve/sessions.h"
#include "daemon/serve/share.h"
#include "daemon/serve/socket.h"
#include "daemon/serve/spin.h"
#include "daemon/serve/stored.h"
#include "daemon/serve/timers.h"
#include "daemon/serve/turn.h"
#include "daemon/setup/config.h"
#include "daemon/setup/geometry.h"
#include "daemon/setup/object.h"
#include "daemon/setup/pool.h"

struct kvt_core;
struct kvt_counters;
struct kvt_member;
struct kvt_oplog;

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

struct kvt_daemon {
	/* Used by each turn. */
	struct kvt_core *core;
	const struct kvt_counters *counters;
	struct kvt_sessions sessions;
	struct kvt_member *members; /* [kvt_core_members() + 1] */
	struct kvt_turn turn;
	struct kvt_clock clock;
	struct kvt_spin spin;
	struct kvt_shares shares;
	struct kvt_loop loop;
	struct kvt_daemon_stats stats;

	struct kvt_timers timers;
	struct kvt_accept accept;
	struct kvt_connections connections;
	struct kvt_feed_subscribers feed;
	struct kvt_listener listener;
	struct kvt_kept kept;
	struct kvt_notify notify;
	struct kvt_log_rates client_log;
	uint32_t generation; /* of slots of sessions and connections, rising */
	bool waiters;        /* a connection waits for an admin answer */
	uint8_t *message;    /* KVT_MESSAGE_MAX bytes, as `answer` */
	uint8_t *answer;

	/* How it ends: timers.c, refused.c. */
	bool draining;
	bool over;           /* leave the loop */
	bool keep;           /* leave everything to a successor */
	const char *refused; /* system call whose refusal ends the daemon; NULL: none */

	/* Made before the first client: start.c, plan.c, adopt.c. A reload changes options. */
	struct kvt_config config;
	int argc;
	char **argv;
	gid_t admin_gid;
	char admin_group[KVT_CONFIG_TEXT_BYTES]; /* the name of admin_gid */
	uint64_t started_ns;
	bool adopted; /* arena, ledger, pool and sessions are a predecessor's */
	struct kvt_core_config core_config;
	struct kvt_core_sizes sizes;
	struct kvt_object arena, ledger;
	int arena_readonly;
	void *scratch;
	struct kvt_pool_plan plan;
	struct kvt_pool pool;
	struct kvt_lock_file lock;

	/* The operation log: start.c, turn.c. */
	struct kvt_oplog *oplog;
	struct kvt_object oplog_tail;
	bool oplog_dirty;
	int oplog_error; /* why no log is written any more; 0: it is, or none was */
};

#endif
