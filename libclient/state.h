/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_CLIENT_STATE_H
#define KVT_CLIENT_STATE_H

/**
 * @file state.h
 * A client's private memory, which every file of the library sees. Each file declares in the header
 * of its name what it offers to others. Nothing of libclient/ is installed. Tests reach behind the
 * public API through these headers (raw entries on a live ring, protocol steps).
 *
 * A client is private memory around five mappings: the session's segment and areas (both sides
 * write), the arena (read-only, may be withheld), the pool (on request), and a page of its own. The
 * kernel wipes that page in a forked child, so a fork is detected without a system call.
 */

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>

#include "kvtrunk_client.h"
#include "kvtrunk_wire_control.h"
#include "kvtrunk_wire_operations.h"
#include "libclient/area.h"
#include "libclient/mirror.h"
#include "shm/arena.h"
#include "shm/assert.h"
#include "shm/ring.h"

#define KVT_CLIENT_MAGIC 0x4b56434cu /* "KVCL" */
#define KVT_SEQ_MAGIC 0x4b565351u    /* "KVSQ" */
#define KVT_BEGIN_WAIT_NS 30000000000ll /* kvt_seq_begin() waits so long for others */
/* From so many keys on the library probes by itself. Below, few lines cross between the cores, and
 * a probe costs about what it saves. */
#define KVT_PROBE_KEYS 1024u
#define KVT_ALIVE 0x616c6976u /* content of the page that a fork wipes */

#define KVT_LIKELY(x) __builtin_expect(!!(x), 1)
#define KVT_UNLIKELY(x) __builtin_expect(!!(x), 0)

/* The library leaves the caller's errno alone: declared in each function that makes syscalls or
 * allocates, this puts it back when that function returns. */
static inline void kvt_errno_restore(const int *kept)
{
	errno = *kept;
}
#define KVT_KEEP_ERRNO                                                                            \
	__attribute__((cleanup(kvt_errno_restore), unused)) const int kvt_kept_errno = errno

enum kvt_slot_state {
	KVT_SLOT_FREE = 0,
	KVT_SLOT_FLYING,    /* submitted; the answer is delivered */
	KVT_SLOT_DONE,      /* answered, not yet reaped */
	KVT_SLOT_HELD,      /* reaped; the caller still reads its list */
	KVT_SLOT_ABANDONED, /* deadline passed: undo what the answer brings */
	KVT_SLOT_UNDO,      /* answered; the undoing entry found no room yet */
	KVT_SLOT_SILENT,    /* an undoing entry in flight; its answer is dropped */
	KVT_SLOT_AHEAD,     /* submitted; the answer changes its sequence */
	KVT_SLOT_SPARE,     /* for the first of two answers; another slot's `twin` */
};

struct kvt_slot {
	uint64_t user_data; /* the caller's */
	struct kvt_seq *seq; /* whose page table the answer changes; AHEAD, ABANDONED */
	struct kvt_fence fence;
	uint32_t next;      /* in the list of free, done or to-undo slots */
	uint32_t pages_at;  /* INSERT: where its page numbers are in the key area */
	uint32_t n_pages;
	uint32_t twin; /* unanswered BEGIN with NO_WAIT: slot for "not now"; 0: none */
	uint16_t generation;
	uint16_t flags;
	uint8_t state; /* enum kvt_slot_state */
	uint8_t op;
	bool told; /* AHEAD: kvt_reap() gives the answer, too */
	bool waits; /* a BEGIN that the daemon may keep: counted in kvt_waiting */
	struct kvt_extent keys;
	struct kvt_extent list;
	uint32_t *copy; /* DONE, HELD: the list, if it left the list area; else NULL */
	struct kvt_cqe cqe; /* DONE, UNDO */
};

/** First in, first out, linked through kvt_slot.next; 0 = empty. */
struct kvt_slot_list {
	uint32_t first;
	uint32_t last;
	uint32_t n;
};

/** BEGINs in flight that may wait for others, and what they hold of the areas. */
struct kvt_waiting {
	uint32_t n;
	uint64_t key_words;
	uint64_t list_words;
};

/** A namespace that this client opened, by number. */
struct kvt_opened {
	uint64_t digest[2];
	uint32_t generation; /* generation at opening, or of the last renewal here */
	bool open;
};

/** A slab of the pool as WELCOME described it. */
struct kvt_client_slab {
	struct kvt_slab_record record;
	int fd; /* the client's descriptor; -1 = none */
	struct kvt_device_mapping *mapped[2]; /* device memory: to write, and to read only */
	void *base; /* host memory; NULL: not mapped. Suspended: the address is reserved */
	uint64_t base_bytes;
};

struct kvt_client {
	uint32_t magic;
	const volatile uint32_t *alive; /* KVT_ALIVE, 0 in a forked child */
	int dead;            /* 0, or why every call fails: -ECONNRESET, -EPROTO */
	bool armed;          /* the caller's loop asked for a wake-up */
	bool suspended;      /* no lease, and no slab is mapped */
	bool has_session;    /* false: observer */
	bool ask_pid;        /* this kernel wipes no pages: each call compares pids instead */
	int32_t pid;
	struct kvt_ring_end ring;
	struct kvt_area keys;
	struct kvt_area list;
	struct kvt_slot *slots; /* [1, n_slots) */
	uint32_t n_slots;
	uint32_t free_slot;
	uint32_t n_free;
	uint32_t n_flying; /* entries whose answer is outstanding; at most the CQ's entries */
	struct kvt_waiting waiting;
	uint32_t empty_reaps; /* reaps since the control socket was last looked at */
	struct kvt_slot_list done;
	struct kvt_slot_list undo;
	int64_t spin_budget_ns; /* spin before a sleep; below 0: for ever */
	int64_t timeout_ns;
	int64_t begin_wait_ns; /* longest wait of kvt_seq_begin(); 0 or less: none */
	int64_t resume_ns;
	int64_t broken_ns; /* time of the daemon's loss; 0: connected */
	int64_t tried_ns;  /* time of the last look for a successor */
	char *path;        /* path of the control socket */
	struct kvt_message_hello hello; /* with the session's secret */
	int control;
	int greeting; /* socket with an unanswered HELLO to a successor; -1: none */
	int doorbell;
	int completion;
	uint64_t cookie;
	struct kvt_arena_view arena;
	struct kvt_mirror_end mirror;
	struct kvt_opened *opened;
	uint32_t n_opened;
	bool leaving; /* a LEAVE was not answered in time: it may close a namespace yet */
	struct kvt_feed *feed; /* NULL: no subscription */
	struct kvt_store_end *store; /* NULL: this client has none */
	void *segment, *areas;
	uint64_t segment_bytes, areas_bytes;
	uint64_t arena_bytes; /* bytes mapped; 0 = withheld */
	struct kvt_client_slab slabs[KVT_MAX_SLABS];
	uint32_t n_slabs; /* 0: observer */
	struct kvt_streams *streams; /* NULL: no stream recorded a fence */
	uint32_t fences_taken; /* mask of words that the caller raises by itself */
	/* The highest value submitted that the caller has not raised the word to; 0: none. */
	uint64_t awaited[KVT_FENCE_WORDS];
	struct kvt_seq *seqs;      /* all sequences, in use or free */
	struct kvt_seq *free_seqs;
	struct kvt_seq *ending; /* list of those that have END or FREE to submit, by next_free */
	uint8_t *packet; /* KVT_MESSAGE_MAX bytes for answers on the control socket */
	struct kvt_info info;
	struct kvt_error error;
	char farewell[KVT_TEXT_BYTES]; /* why the daemon ended the session */
};

/** State of a sequence as of one answer. */
struct kvt_seq_view {
	uint32_t *pages; /* [kvt_seq.capacity] */
	uint32_t n_pages;
	uint32_t next; /* first position to compute */
	uint32_t known; /* positions whose keys the daemon knows */
};

/** Any call on the client takes answers from the CQ, but only calls on a sequence change what its
 * caller sees. Until then answers are collected in `coming`, in the order of their effects. */
struct kvt_seq {
	uint32_t magic;
	bool live; /* begun, and not free yet */
	bool news; /* `coming` is later than `shown` */
	struct kvt_client *client;
	struct kvt_seq *next;      /* next of the client */
	struct kvt_seq *next_free;
	struct kvt_lease lease; /* index 0: END has been submitted */
	struct kvt_fence fence; /* fence of the end, of what is still to be submitted for it */
	struct kvt_seq_view shown, coming;
	uint32_t capacity;
	uint32_t matched, reusable, announced, shared;
	uint32_t position; /* shown.next, or what a commit in flight claims beyond it */
	uint32_t claimed;  /* `computed` of the last asynchronous commit */
	uint32_t n_late;  /* unanswered operations whose deadline passed */
	uint32_t n_ahead; /* asynchronous commits and extensions in flight */
	uint32_t n_extending; /* of these, extensions */
	uint32_t n_muted; /* commits in flight behind a failed one */
	uint32_t list_ahead; /* longest table that fits into all their answers */
	uint32_t known;      /* shown.known, advanced by commits in flight */
	uint32_t *held;      /* the caller's next keys, too early for the daemon */
	uint32_t n_held, held_capacity;
	uint32_t stale; /* enum kvt_reason: nothing more is shared; 0: sharing */
	uint32_t *sides;     /* side pages of the point at `reusable`, by kind */
	struct kvt_side *given; /* attached since the last commit */
	uint32_t n_given, given_capacity;
	uint32_t *left;      /* attached pages that the tree did not take */
	uint32_t n_left, left_capacity;
	uint32_t n_attached; /* pages attached in its life */
	bool refused;        /* `left` may have pages that are not the session's */
	int failed;          /* first failure of an asynchronous commit that no call has seen */
	bool failed_told;    /* its answer reported it */
	uint32_t failed_reason;
};

#endif
