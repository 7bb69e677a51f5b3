/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_CLIENT_H
#define KVT_CLIENT_H

/**
 * @file client.h
 * The inside of libkvtrunk, shared by its own files and by tests that want to reach behind the
 * public API (raw entries on a live ring, protocol steps). Not installed.
 *
 * A client is private memory around five mappings: the session's segment and areas (both sides
 * write), the arena (read-only, may be withheld), the pool (on request) and one page of its own
 * that the kernel wipes in a forked child, which detects a fork without a system call.
 *
 * Every operation in flight has a *slot*: its ranges of the key and list areas, the caller's
 * user_data, and what to give back when its deadline has passed. The entry's user_data is (slot
 * generation << 32 | slot number), so an answer to no operation in flight is noticed.
 *
 *      free ──submit──► flying ──answer──► done ──reap──► held ──release──► free
 *                         │ deadline                        ▲ kvt_call: directly
 *                         └──► abandoned ──answer──► giving back (UNLOCK, END, FREE) ──► free
 *      free ──asynchronous commit──► ahead ──answer──► its sequence changes ──► free
 */

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>

#include "kvtrunk.h"
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

/* ---------------------------------------------------------------- areas */

/** Free ranges of the key or the list area, in order of address. First fit keeps the low end warm
 * in both caches. Ranges are given back in any order and merged at once, so there are at most as
 * many holes as operations in flight plus one. */
struct kvt_extent {
	uint32_t at;
	uint32_t n;
};

struct kvt_area {
	struct kvt_extent *holes;
	uint32_t n_holes;
	uint32_t capacity;
	uint32_t count; /* words in all */
};

/** Prepare for at most `max_taken` ranges taken at a time. -ENOMEM. */
int kvt_area_init(struct kvt_area *area, uint32_t count, uint32_t max_taken);
void kvt_area_destroy(struct kvt_area *area);
/** Take at least n words (0 is legal and takes none). False when no hole is large enough. */
bool kvt_area_take(struct kvt_area *area, uint32_t n, struct kvt_extent *ret_extent);
void kvt_area_give(struct kvt_area *area, struct kvt_extent extent);

/* ---------------------------------------------------------------- steps */

/** Protocol steps at which a test build (-DKVT_TEST_STEPS) calls kvt_client_step_hook, in the order
 * in which one call passes them. X(enumerator, name). The last group is one step for each
 * operation: "after-begin" is when its answer has been taken and the caller not yet been told. */
#define KVT_CLIENT_STEPS(X)                                                                       \
	X(KVT_STEP_CONNECTED, "connected")             /* socket open, HELLO not sent */         \
	X(KVT_STEP_HELLO_SENT, "hello-sent")           /* no answer read yet */                  \
	X(KVT_STEP_WELCOMED, "welcomed")               /* session open, nothing mapped yet */    \
	X(KVT_STEP_ATTACHED, "attached")               /* everything mapped */                   \
	X(KVT_STEP_NAMESPACE_SENT, "namespace-sent")                                             \
	X(KVT_STEP_KEYS_WRITTEN, "keys-written")       /* keys in the area, no entry */          \
	X(KVT_STEP_ENTRY_PUT, "entry-put")             /* entry written, tail not published */   \
	X(KVT_STEP_TAIL_PUBLISHED, "tail-published")   /* visible, doorbell not rung */          \
	X(KVT_STEP_SUBMITTED, "submitted")             /* doorbell rung if it was needed */      \
	X(KVT_STEP_BEFORE_SLEEP, "before-sleep")       /* cq_need_wakeup set, about to sleep */  \
	X(KVT_STEP_COMPLETION_SEEN, "completion-seen") /* in the CQ, head not moved */           \
	X(KVT_STEP_COMPLETION_TAKEN, "completion-taken")                                         \
	X(KVT_STEP_FENCE_RAISED, "fence-raised")       /* word stored, daemon not woken */       \
	X(KVT_STEP_GIVE_BACK, "give-back")             /* a late answer is about to be undone */ \
	X(KVT_STEP_CLOSED, "closed")                   /* CLOSE answered, socket still open */   \
	X(KVT_STEP_AFTER_NOP, "after-nop")                                                       \
	X(KVT_STEP_AFTER_MATCH, "after-match")                                                   \
	X(KVT_STEP_AFTER_LOCK, "after-lock")                                                     \
	X(KVT_STEP_AFTER_UNLOCK, "after-unlock")                                                 \
	X(KVT_STEP_AFTER_ALLOC, "after-alloc")                                                   \
	X(KVT_STEP_AFTER_FREE, "after-free")                                                     \
	X(KVT_STEP_AFTER_INSERT, "after-insert")                                                 \
	X(KVT_STEP_AFTER_BEGIN, "after-begin")                                                   \
	X(KVT_STEP_AFTER_COMMIT, "after-commit")                                                 \
	X(KVT_STEP_AFTER_EXTEND, "after-extend")                                                 \
	X(KVT_STEP_AFTER_END, "after-end")                                                       \
	X(KVT_STEP_AFTER_REMOVE, "after-remove")                                                 \
	X(KVT_STEP_AFTER_PAGE, "after-page")                                                     \
	X(KVT_STEP_AFTER_EVICT, "after-evict")                                                   \
	X(KVT_STEP_AFTER_RESET, "after-reset")                                                   \
	X(KVT_STEP_AFTER_STATS, "after-stats")                                                   \
	X(KVT_STEP_AFTER_AUDIT, "after-audit")                                                   \
	X(KVT_STEP_AFTER_CLOSE, "after-close")

#define KVT_STEP_ENUM(e, n) e,
enum kvt_client_step_id { KVT_CLIENT_STEPS(KVT_STEP_ENUM) KVT_STEP_COUNT };
#undef KVT_STEP_ENUM

/** Name of a step for `kill@STEP`; NULL beyond the last. */
const char *kvt_client_step_name(unsigned int step);
/** Number of a step; -EINVAL: no such name. */
int kvt_client_step_parse(const char *name);

/** Called at each step in a test build; never elsewhere. `client` is NULL before it exists. */
typedef void kvt_client_step_fn(struct kvt_client *client, unsigned int step, void *context);

/** Test builds: the one hook of this process. Returns false in a library built without steps. */
bool kvt_client_step_hook(kvt_client_step_fn *hook, void *context);

#ifdef KVT_TEST_STEPS
void kvt_client_step(struct kvt_client *client, unsigned int step);
#else
static inline void kvt_client_step(struct kvt_client *client, unsigned int step)
{
	(void)client;
	(void)step;
}
#endif

/* ---------------------------------------------------------------- client */

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
	struct kvt_extent keys;
	struct kvt_extent list;
	struct kvt_cqe cqe; /* DONE, UNDO */
};

/** First in, first out, linked through kvt_slot.next; 0 = empty. */
struct kvt_slot_list {
	uint32_t first;
	uint32_t last;
};

/** A namespace that this client opened, by number. */
struct kvt_opened {
	uint64_t digest[2];
	uint32_t generation; /* at its opening, or of the last renewal here */
	bool open;
};

/** A slab of the pool as WELCOME described it. */
struct kvt_client_slab {
	struct kvt_slab_record record;
	int fd; /* the client's; -1 = none */
	struct kvt_device_mapping *mapped[2]; /* device memory: to write, and to read only */
	void *base; /* host memory; NULL: not mapped. Suspended: the address is reserved */
	uint64_t base_bytes;
};

struct kvt_client {
	uint32_t magic;
	uint32_t page_shift; /* log2 of the page size */
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
	uint32_t empty_reaps; /* since the control socket was last looked at */
	struct kvt_slot_list done;
	struct kvt_slot_list undo;
	int64_t spin_budget_ns; /* most; below 0: for ever */
	int64_t spin_ns;        /* before the next sleep, as recent sleeps taught */
	int64_t timeout_ns;
	int64_t begin_wait_ns; /* of kvt_seq_begin(); 0 or less: it does not wait */
	int64_t resume_ns;
	int64_t broken_ns; /* when the daemon was lost; 0: connected */
	int64_t tried_ns;  /* when a successor was last looked for */
	char *path;        /* of the control socket */
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
	void *segment, *areas;
	uint64_t segment_bytes, areas_bytes;
	uint64_t arena_bytes; /* mapped; 0 = withheld */
	struct kvt_client_slab slabs[KVT_MAX_SLABS];
	uint32_t n_slabs; /* 0: observer */
	struct kvt_streams *streams; /* NULL: no stream recorded a fence */
	uint32_t fences_taken; /* bits: words that the caller raises by itself */
	/* The highest value submitted that the caller has not raised the word to; 0: none. */
	uint64_t awaited[KVT_FENCE_WORDS];
	uint32_t fence_method; /* enum kvt_fence_method */
	struct kvt_seq *seqs;      /* all, in use or free */
	struct kvt_seq *free_seqs;
	struct kvt_seq *ending; /* waiting for room for their END; by next_free */
	uint8_t *packet; /* KVT_MESSAGE_MAX bytes for answers on the control socket */
	struct kvt_info info;
	struct kvt_error error;
	char farewell[KVT_TEXT_BYTES]; /* why the daemon ended the session */
};

/** What an answer says of a sequence. */
struct kvt_seq_view {
	uint32_t *pages; /* kvt_seq.capacity of them */
	uint32_t n_pages;
	uint32_t next; /* first position to compute, says the daemon */
	uint32_t known; /* positions whose keys the daemon knows */
	uint64_t seq;
};

/** Any call on the client takes answers from the CQ, but only calls on a sequence change what its
 * caller sees. Until then answers are collected in `coming`, in the order of their effects. */
struct kvt_seq {
	uint32_t magic;
	bool live;
	bool news; /* `coming` is later than `shown` */
	struct kvt_client *client;
	struct kvt_seq *next;      /* of the client */
	struct kvt_seq *next_free;
	struct kvt_lease lease;
	struct kvt_fence fence; /* of an END that found no room yet */
	struct kvt_seq_view shown, coming;
	uint32_t capacity;
	uint32_t matched, reusable, announced, shared;
	uint32_t position; /* shown.next, or what a commit in flight claims beyond it */
	uint32_t claimed;  /* `computed` of the last asynchronous commit */
	uint32_t n_late;  /* unanswered operations whose deadline passed */
	uint32_t n_ahead; /* asynchronous commits in flight */
	uint32_t n_muted; /* that many of these are behind a failed commit */
	uint32_t list_ahead; /* longest table that fits into all their answers */
	uint32_t known;      /* shown.known, advanced by commits in flight */
	uint32_t *held;      /* the caller's next keys, too early for the daemon */
	uint32_t n_held, held_capacity;
	uint32_t stale; /* enum kvt_reason why nothing more is shared; 0: sharing */
	int failed;          /* first unreported failure of an asynchronous commit */
	uint32_t failed_reason;
};

/** What a client is made of, for kvt_client_connect() and for tests that run both ends in one
 * process. The client owns the descriptors (-1 = none) and, with `own_mappings`, unmaps. */
struct kvt_client_parts {
	void *segment, *areas; /* NULL: observer; a member of a group has no areas */
	uint64_t segment_bytes, areas_bytes;
	struct kvt_segment_layout layout;
	struct kvt_arena_view arena; /* base NULL: withheld */
	struct kvt_mirror *mirror;   /* NULL: none */
	int control, doorbell, completion;
	struct kvt_client_slab slabs[KVT_MAX_SLABS];
	uint32_t n_slabs;
	int64_t spin_budget_ns, timeout_ns, begin_wait_ns, resume_ns;
	const char *path;                      /* NULL: never reconnects */
	const struct kvt_message_hello *hello; /* sent again there, with the session's secret */
	struct kvt_info info;
};

/** Create a client. -ENOMEM: the caller still owns all parts. */
int kvt_client_create(struct kvt_client **ret_client, const struct kvt_client_parts *parts);

/* ---------------------------------------------------------------- inside */

/** Detect a fork by pid, with a system call: for slow calls, and for kernels and emulators that do
 * not wipe the page. */
void kvt_client_check_fork(const struct kvt_client *client);

static inline bool kvt_client_forked(const struct kvt_client *client)
{
	if (KVT_UNLIKELY(client->ask_pid))
		kvt_client_check_fork(client);
	return *client->alive != KVT_ALIVE;
}

/** Record a failure for kvt_client_error() and return its code. */
int kvt_client_fail(struct kvt_client *client, int code, int reason, const char *format, ...)
	__attribute__((format(printf, 4, 5), cold));
/** The same for an answer of the daemon. */
int kvt_client_fail_result(struct kvt_client *client, const struct kvt_result *result)
	__attribute__((cold));
/** Describe a mapped slab. */
void kvt_client_describe_pool(const struct kvt_client *client, uint32_t slab, void *base,
			      struct kvt_pool *ret_pool);

/** Set an error, with the attach_state that `code` most likely means. */
void kvt_error_set(struct kvt_error *error, int code, int reason, const char *format, ...)
	__attribute__((format(printf, 4, 5), cold));

/** Get the size of a received object. -EPROTO: it is not sealed against shrinking. */
int kvt_client_sealed_bytes(int fd, uint64_t *ret_bytes);
/** Map an object read-write, out of forked children. `at`: in place of what is mapped there; NULL:
 * anywhere. */
int kvt_client_map_shared(int fd, uint64_t bytes, void *at, void **ret_base);

/** True for a session and for a member of a group. */
static inline bool kvt_client_has_fences(const struct kvt_client *client)
{
	return client->has_session || client->info.rank > 0;
}

/** Note that fence words may rise without a doorbell from now on: the daemon polls them. */
void kvt_client_raise_silently(struct kvt_client *client);

/** The cold half of kvt_client_usable(): the client is unusable; say why. */
int kvt_client_unusable(struct kvt_client *client) __attribute__((cold));

/** 0, or why this client cannot be used: -ECHILD in a forked child, -ECONNRESET. */
static inline int kvt_client_usable(struct kvt_client *client)
{
	if (KVT_UNLIKELY(!client || client->magic != KVT_CLIENT_MAGIC ||
			 kvt_client_forked(client) || client->dead))
		return kvt_client_unusable(client);
	return 0;
}

/** -ENXIO: the client is suspended; say so. */
int kvt_client_awake(struct kvt_client *client);

/** The limits of one blocking call, set when it first reads the clock. */
struct kvt_wait {
	int64_t deadline_ns;
	int64_t spin_until_ns;
	int64_t look_at_ns; /* when to look at the control socket while spinning */
	bool started;
};

int64_t kvt_client_now_ns(void);
/** Wait until the CQ holds something. -ETIMEDOUT, -ECONNRESET (also kvt_client.dead). */
int kvt_client_wait(struct kvt_client *client, struct kvt_wait *wait);
/** Empty the completion descriptor, so that the next sleep sleeps. */
void kvt_client_drain(struct kvt_client *client);
/** Poll the control socket for GOODBYE and hang-up. */
void kvt_client_look(struct kvt_client *client);
/** The same, but only once in many calls: for callers that poll. */
void kvt_client_look_now_and_then(struct kvt_client *client);
/** Handle a message in client->packet that answers no request: GOODBYE ends the session, anything
 * else came too late. */
void kvt_client_take_message(struct kvt_client *client, int bytes);
/** End the session for this client. */
void kvt_client_lost(struct kvt_client *client, int code, const char *why);
/** Record the lost session as the failure of a call; returns its code. */
int kvt_client_lost_error(struct kvt_client *client) __attribute__((cold));

/** Handle a hang-up: start looking for a successor, or lose the session. */
void kvt_client_hung_up(struct kvt_client *client);
/** Look for a successor once, unless connected or the last look was recent. */
void kvt_client_look_for_successor(struct kvt_client *client);
/** Wait for a successor. 0, -ETIMEDOUT, or why the session is lost. */
int kvt_client_await_successor(struct kvt_client *client, int64_t deadline_ns);
#define KVT_SUCCESSOR_POLL_NS 2000000

/** Submit and wait. `seq`: the sequence whose table a late answer changes, or NULL. On success the
 * caller releases the result. */
int kvt_client_call(struct kvt_client *client, const struct kvt_request *request,
		    struct kvt_seq *seq, struct kvt_result *ret_result);
/** The same, of an operation whose keys may begin behind a handle: send only those behind `start`,
 * or without one those that the tree lacks. If the handle is stale, send more within the same
 * deadline. `request` has all keys and no handle. */
int kvt_client_call_known(struct kvt_client *client, const struct kvt_request *request,
			  struct kvt_handle start, struct kvt_result *ret_result);
/** Probe for a request's keys and shorten it: its handle names those found. False: unchanged,
 * because nothing was found, or too few keys, or the tree cannot be read. */
bool kvt_client_shorten(struct kvt_client *client, struct kvt_request *request);
/** Shorten a request to what follows `start`. False: unchanged, `start` does not fit it. */
bool kvt_client_shorten_to(struct kvt_client *client, struct kvt_request *request,
			   struct kvt_handle start);
/** Submit without waiting; the answer goes to kvt_seq_answered(). -EAGAIN: no room. */
int kvt_client_submit_ahead(struct kvt_client *client, const struct kvt_request *request,
			    struct kvt_seq *seq);
/** Submit without waiting; the answer is dropped. -EAGAIN: no room. */
int kvt_client_submit_silently(struct kvt_client *client, const struct kvt_request *request);
/** Set the fields that result->op has an answer for; the operation succeeded. */
void kvt_client_decode_answer(struct kvt_result *result, const struct kvt_cqe *cqe);
/** Count operations that may still bring or hold a lease, a page or a fence: unanswered ones, but
 * for a notice that a BEGIN was promised, and ENDs that found no room. */
uint32_t kvt_client_unanswered(const struct kvt_client *client);
/** Take all available answers. */
int kvt_client_take_ready(struct kvt_client *client);
/** Wait for all late and asynchronous answers of a sequence. */
int kvt_client_settle(struct kvt_client *client, const struct kvt_seq *seq);
/** Detach a sequence from its outstanding answers. */
void kvt_seq_forget_answers(struct kvt_seq *seq);
/** Make room for n pages in both tables. -E2BIG, -ENOMEM. */
int kvt_seq_reserve(struct kvt_seq *seq, uint64_t n_pages);
/** Take the table that BEGIN or COMMIT answers: pages appended since its entry was submitted stay
 * behind it. Or append. Neither exceeds what was reserved. */
void kvt_seq_take_table(const struct kvt_seq *seq, struct kvt_seq_view *view,
			const struct kvt_result *result);
void kvt_seq_append(const struct kvt_seq *seq, struct kvt_seq_view *view, const uint32_t *pages,
		    uint32_t n);
/** Take the page table of a late COMMIT or EXTEND. */
void kvt_seq_late(struct kvt_seq *seq, const struct kvt_result *result);
/** The same for an asynchronous COMMIT; a failure is reported by the next call. */
void kvt_seq_answered(struct kvt_seq *seq, const struct kvt_result *result);
/** END a sequence as soon as there is room. Takes ownership. */
void kvt_client_end_later(struct kvt_client *client, struct kvt_seq *seq);
/** Free the handle for another sequence. */
void kvt_seq_recycle(struct kvt_seq *seq);
void kvt_seq_destroy_all(struct kvt_client *client);

/* ---------------------------------------------------------------- memory of the pool */

/** Unmap host slabs, and keep their addresses; map them there again. After a failure some are. */
int kvt_host_unmap_all(struct kvt_client *client);
int kvt_host_map_all(struct kvt_client *client);

struct kvt_cu_driver;

/** The driver, loaded and initialized. -ENODEV, -EIO. */
int kvt_device_driver(struct kvt_client *client, const struct kvt_cu_driver **ret_driver);
/** Give up what this client mapped. */
void kvt_device_unmap_all(struct kvt_client *client);
/** Unmap what this client mapped, unless others of the process use it, and keep the addresses where
 * the driver can; map it again. After a failure nothing has changed. */
void kvt_device_suspend(struct kvt_client *client);
int kvt_device_resume(struct kvt_client *client);
/** Detach the streams from a closing client. True: fences are outstanding, and the last one unmaps
 * the segment. */
bool kvt_streams_leave(struct kvt_client *client);
/** True if every fence that a stream recorded is reached. */
bool kvt_streams_idle(const struct kvt_client *client);
/** Whether a stream raises this fence word. */
bool kvt_streams_uses(const struct kvt_client *client, uint32_t slot);

/** Ask on the control socket; the answer is in client->packet. Returns its length. A daemon that
 * died with the question is asked again, so questions must bear that. */
int kvt_control_ask(struct kvt_client *client, struct kvt_message *head, size_t bytes,
		    const void *more, size_t more_bytes);

/** Socket part of kvt_client_connect(): connect and send HELLO, receive WELCOME. */
int kvt_control_open(const char *path, int64_t deadline_ns, int *ret_fd, struct kvt_error *error);
int kvt_control_send(int fd, const void *message, size_t bytes, const void *more,
		     size_t more_bytes, int64_t deadline_ns);
/** One message. Returns its length; -ECONNRESET when the other side hung up, -EPROTO when it is
 * no message. At most `max_fds` descriptors are kept, and none on failure. */
int kvt_control_receive(int fd, void *packet, size_t bytes, int *ret_fds, unsigned int max_fds,
			unsigned int *ret_n_fds, int64_t deadline_ns);

#endif
