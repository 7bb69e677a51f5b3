/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_CORE_LEDGER_H
#define KVT_CORE_LEDGER_H

/**
 * @file ledger.h
 * The ledger: the daemon's private records of sessions, leases and page owners, in an object that a
 * successor recovers from. Clients never get it.
 *
 * Primary facts in the arena: node records (parent, run, sealed count, flags, generation, times,
 * policy fields), keys and pages of their runs, side pages of these, namespaces in use, the epoch,
 * monotonic counters.
 * Primary facts in the ledger: sessions, their processes and namespaces, leases with tails and
 * lists of pages, page owners, pending operations, labels, tallies, and the last numbers given
 * (seq, clock, tickets). Everything else is derived, and marked so in records.h: a successor
 * recomputes it without reading it. Orders are facts, kept as numbers: recency as times, free
 * records and a session's leases as tickets, pending operations as tokens. A free record has a
 * valid generation and ticket, and no other valid field. Slots in no run have no valid content.
 *
 * Facts change only while `mutation` is odd. If a successor finds it odd, it undoes the whole
 * effect: see undo_log.h.
 */

#include <stddef.h>
#include <stdint.h>

#include "kvtrunk_wire_arena.h"
#include "kvtrunk_wire_counts.h"

#define KVT_LEDGER_MAGIC 0x313047454c54564bull /* "KVTLEG01" */

enum kvt_ledger_section {
	KVT_LSECTION_SESSIONS = 0,
	KVT_LSECTION_LEASES = 1,
	KVT_LSECTION_TAILS = 2,
	KVT_LSECTION_OWNERS = 3,
	KVT_LSECTION_PENDING = 4,
	KVT_LSECTION_OPENED = 5,
	KVT_LSECTION_LABELS = 6, /* of namespaces, KVT_LABEL_BYTES each, by the first opener */
	KVT_LSECTION_UNDO = 7, /* struct kvt_undo_header, then 64-bit words of entries */
	KVT_LSECTION_MEMBERS = 8, /* processes: rank 0 of each session, then ranks of groups */
	KVT_LSECTION_TALLIES = 9, /* struct kvt_tally: 0 the instance's refusals, then sessions,
				     then namespaces by number */
	KVT_LEDGER_SECTIONS = 10,
};

/** First bytes of the ledger; the same rules as for the arena header. */
struct kvt_ledger_header {
	uint64_t magic;
	uint32_t abi;
	uint32_t header_bytes;
	uint64_t layout; /* kvt_ledger_layout() of the writer */
	uint64_t object_bytes;
	uint64_t instance[2]; /* instance of the arena it belongs to */
	uint64_t boot_id[2];
	uint64_t seq;         /* last effect */
	uint64_t clock;       /* logical time of the last touch */
	uint64_t tickets;     /* tickets given: the order of queues that a successor restores */
	uint32_t max_sessions;
	uint32_t n_leases;
	uint32_t n_pending;
	uint32_t n_sections;
	struct kvt_section sections[12];
	uint64_t running; /* what the daemon does now: enum kvt_running, or 0 */
	uint64_t fatal[2]; /* control requests in which daemons died, as in `running` */
	struct kvt_starts starts; /* when the cache began; the arena's generation counts on */
} KVT_ALIGNED(KVT_LINE);
_Static_assert(sizeof(struct kvt_ledger_header) % KVT_LINE == 0, "kvt_ledger_header");

/** The work that runs, in one word, so that each store of it is whole:
 *
 *   kind << 60 | deaths << 56 | what << 48 | session << 32 | number
 *   kind << 60 | deaths << 56 | what << 48 | digest of the request's content (REQUEST)
 *
 * It is written outside of mutations, and no rollback touches it. If the daemon dies, `deaths` is
 * how many died in the same so far, this one included. The successor copies that to where the next
 * attempt reads it: the session's or the pending record, or `fatal` above. Repeating the copy is
 * harmless. At KVT_FATAL_DEATHS the operation is refused and not run. */
enum kvt_running {
	KVT_RUNNING_ENTRY = 1,    /* what: enum kvt_op; number: its place in the SQ */
	KVT_RUNNING_DEFERRED = 2, /* what: enum kvt_op; number: its pending record */
	KVT_RUNNING_REQUEST = 3,  /* what: enum kvt_message_type, or KVT_RUNNING_ADMIN | enum
				     kvt_admin_what */
	KVT_RUNNING_WORK = 4,     /* what: enum kvt_work. It cannot be refused */
	KVT_RUNNING_LEFT = 5,     /* nothing: an orderly end, which forgets `fatal` */
};
#define KVT_RUNNING_ADMIN 0x80u
#define KVT_FATAL_DEATHS 2

enum kvt_work {
	KVT_WORK_EXPIRE = 0,
	KVT_WORK_SESSION = 1, /* a session that ended is taken down */
	KVT_WORK_STALE = 2,   /* what RESET left */
	KVT_WORK_RECLAIM = 3,
	KVT_WORK_COMPACT = 4,
};

#endif
