/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVTRUNK_CLIENT_H
#define KVTRUNK_CLIENT_H

/**
 * @file kvtrunk_client.h
 * A connection: open, close, wait, namespaces, sleep, errors. Included by kvtrunk.h.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kvtrunk_types.h"

#ifdef __cplusplus
extern "C" {
#endif

#pragma GCC visibility push(default)

struct kvt_client; /* one connection; opaque */
struct kvt_seq;    /* one sequence; opaque */

/** The prefix of `positions` keys on the path to a node. A name, not a right: it may go stale. */
struct kvt_handle {
	uint32_t node;
	uint32_t generation;
	uint32_t positions;
};

/** A session's hold on the tree. */
struct kvt_lease {
	uint32_t index;
	uint32_t generation;
};

/** When work launched earlier no longer touches a page: when fence word `slot` has reached `value`.
 * KVT_IDLE: no such work (right for host pools and finished kernels). */
struct kvt_fence {
	uint32_t slot;
	uint64_t value;
};
#define KVT_IDLE ((struct kvt_fence){ KVT_FENCE_IDLE, 0 })
/** KVT_IDLE, for languages without macros. */
struct kvt_fence kvt_fence_idle(void);

/** Why a call failed, for people. */
struct kvt_error {
	int code;    /* negative errno */
	int reason;  /* enum kvt_reason */
	int attach_state; /* enum kvt_attach_state, of a failed kvt_client_connect() */
	uint32_t available, needed; /* as in struct kvt_result: -ENOSPC, -ENOBUFS, -EDQUOT */
	char text[KVT_TEXT_BYTES];
};

/* ---------------------------------------------------------------- connection */

/** How to connect. Start from KVT_OPTIONS_INIT; 0 always means the default. */
struct kvt_options {
	size_t size;             /* sizeof(struct kvt_options), set by KVT_OPTIONS_INIT */
	const char *socket_path; /* default: $KVTRUNK_SOCKET, then /run/kvtrunk/default.sock */
	const char *label;       /* shown by `kvtctl clients`; default: the program's name */
	/* What must be equal in model and content of pages: fields name=value, see
	 * kvt_geometry_fingerprint(). Each must be one of the daemon's. NULL: take its. A client
	 * that attaches side pages adds "sides=16,16", as the daemon's option `sides`, and one that
	 * attaches none "sides=": it would find nothing again in a daemon that has sides. */
	const char *fingerprint;
	uint32_t page_size;      /* positions; 0: take the daemon's */
	uint32_t n_pages;
	uint64_t page_bytes;
	uint32_t sq_entries;     /* default 64, rounded up to a power of two */
	uint32_t cq_entries;     /* default 2 * sq_entries */
	uint32_t keys_count;     /* u32 elements of the key area; default 1 Mi (4 MiB) */
	uint32_t list_count;     /* u32 elements of the list area; default 256 Ki */
	/* How long a wait spins before it sleeps; default 50,000, -1: no limit. It does not spin
	 * while the daemon runs on the caller's CPU. */
	int64_t spin_budget_ns;
	int64_t timeout_ns;      /* of each blocking call; default: 0 = no deadline */
	uint32_t flags;          /* enum kvt_hello_flag; KVT_ANY_GEOMETRY */
	/* How long kvt_seq_begin() waits for what other processes compute of the same prompt;
	 * default 30 s, -1: not at all. */
	int64_t begin_wait_ns;
	int64_t resume_ns;       /* how long to wait for a daemon's successor; default 30 s */
	const struct kvt_pool_geometry *geometry; /* must be the daemon's; NULL: take its */
	const struct kvt_group_token *group; /* join that group instead of opening a session */
	uint32_t rank;           /* with group: 1 to n_ranks - 1, each once */
	uint32_t reserved;
	/* How long kvt_client_connect() waits for a daemon that is not there yet, within its
	 * deadline. Default: 5 s if a socket path was given (here or by $KVTRUNK_SOCKET), or if the
	 * socket exists without a listener; else not at all. -1: not at all. With `group`, if it is
	 * given: also for rank 0, which has not opened a group with this token yet. */
	int64_t connect_wait_ns;
	/* Socket of a store (kvtstored) to fetch from. NULL: that beside the daemon's socket, if
	 * there is one; "": none. */
	const char *store_path;
	/* How long kvt_seq_begin() waits for the answer of a store, which is mostly no, and for
	 * its load beyond a second and 250 us for each position. Default 5 ms, -1: it does not
	 * ask. */
	int64_t fetch_wait_ns;
};
#define KVT_OPTIONS_INIT ((struct kvt_options){ .size = sizeof(struct kvt_options) })
/** KVT_OPTIONS_INIT, for languages without macros. `size` is sizeof(struct kvt_options) there. */
void kvt_options_init(struct kvt_options *ret_options, size_t size);

/** The daemon's answer to HELLO. */
struct kvt_info {
	uint32_t session;
	uint32_t page_size;  /* positions per page */
	uint32_t n_pages;    /* page 0, the scratch page, included */
	uint64_t page_bytes; /* per slab */
	uint64_t pool_bytes; /* per slab */
	uint64_t epoch;      /* at HELLO */
	uint64_t instance[2];
	uint32_t backend;    /* enum kvt_pool_backend */
	uint32_t n_slabs;
	uint32_t max_leases;
	uint32_t max_private_pages;
	uint32_t policy;     /* enum kvt_policy */
	bool privileged;
	bool disabled;
	bool arena_visible;
	bool test_clock;
	bool kept;           /* sessions outlive the daemon and continue under its successor */
	int32_t daemon_pid;
	char fingerprint[KVT_FINGERPRINT_BYTES];
	struct kvt_pool_geometry geometry; /* n_layers 0: the daemon has page_bytes only */
	uint32_t rank;       /* above 0: a member of rank 0's group, without a ring of its own */
	uint32_t n_ranks;    /* of the group that a member joined; 0: not a member */
	uint32_t sealer;     /* of this session's pages: kvt_page_sealer(); 0: an observer's */
	uint32_t n_sides;    /* kinds of side pages */
	uint32_t side_pages[KVT_MAX_SIDES]; /* of each: trailing pages of a path that need one */
};

/** "no_socket" of KVT_ATTACH_NO_SOCKET; "unknown" for other numbers. */
const char *kvt_attach_state_name(enum kvt_attach_state state);

/** Connect to a daemon and open a session.
 *
 * @ret_client  owned by the caller, freed by kvt_client_close().
 * @error       may be NULL; else filled on failure with cause and cure.
 *
 * All writers of pages must agree on their content. If the daemon has a geometry or a fingerprint,
 * options->geometry or options->fingerprint must name it, or the connection is refused. Exempt are
 * observers, and sessions with KVT_ANY_GEOMETRY in options->flags: those that write no page, or
 * follow kvt_pool_view() for any geometry.
 * Errors: -ENOENT / -ECONNREFUSED no daemon (after options->connect_wait_ns), -EACCES permission,
 * -EPROTO version or layout, -EINVAL geometry differs or was not named, -EAGAIN starting, -EUSERS
 * too many sessions, -EDQUOT too many of this uid, -ESHUTDOWN draining, -ETIMEDOUT (without
 * options->timeout_ns after 30 s: a socket-activated daemon makes its pool first). */
int kvt_client_connect(struct kvt_client **ret_client, const struct kvt_options *options,
		       struct kvt_error *error);

/** Close the session: ends every lease at `fence`, frees every private page, unmaps, frees the
 * handle (also on error). Sequences of this client must not be used afterwards. Waits until the
 * fence is reached; past the deadline (-ETIMEDOUT) the connection is dropped and the pages stay in
 * quarantine until this process ends. -ECONNRESET: the daemon was gone; a successor that has the
 * session ends it then. */
int kvt_client_close(struct kvt_client *client, struct kvt_fence fence);

/** Drop the connection without CLOSE, as a crash would. For tests. Frees the handle. */
void kvt_client_abandon(struct kvt_client *client);

/** Valid until the client is closed. */
const struct kvt_info *kvt_client_info(const struct kvt_client *client);

/** Cause of this client's last failed call, never NULL. Valid until the next call. */
const struct kvt_error *kvt_client_error(const struct kvt_client *client);

/** Deadline of each blocking call from its start, 0 = none. After -ETIMEDOUT the library itself
 * frees what the late completion brings (leases, pages), during later calls. An operation that
 * frees (UNLOCK, FREE, END, CLOSE) still takes effect. After -ETIMEDOUT of INSERT its pages belong
 * to the library, which frees those that the tree does not take. A call that could not even be
 * submitted in time returns -EAGAIN instead: nothing happened. It waits for room that operations in
 * flight hold; answers that were not reaped hold none from it. */
void kvt_client_set_timeout(struct kvt_client *client, int64_t timeout_ns);

/** Ask `interrupted` about every 50 ms while a call of this process sleeps, on the caller's thread,
 * and after each signal. If it returns other than 0, the call ends with -EINTR, as -ETIMEDOUT would
 * end it: nothing is held, and what was submitted still takes effect. For languages whose signal
 * handlers run between calls. NULL, the default: signals end no call. The function may not call the
 * library. Thread-safe. */
void kvt_set_interrupted(int (*interrupted)(void));

/** Announce that from now on each call is followed by another within `pace_ns`: the time of a
 * scheduler's step, with some slack. The daemon then spins meanwhile instead of sleeping, so a call
 * costs microseconds instead of a wake-up. 0, the default: not announced; set it when the engine
 * has nothing to do. Takes effect with the next call and costs no message. The daemon believes
 * 50 ms at most, sleeps while others need its CPU, and does not believe a client that was
 * late for 16 times its pace. */
void kvt_client_set_pace(struct kvt_client *client, int64_t pace_ns);

/** Descriptors for the caller's own loop: readable when a completion came after kvt_client_arm(),
 * and when the daemon hung up. Both are sockets. Owned by the client; do not read them. With a
 * successor of the daemon the control descriptor has the same number, but epoll_ctl() must add it
 * again. */
int kvt_client_completion_fd(const struct kvt_client *client);
int kvt_client_control_fd(const struct kvt_client *client);

/** Ask for a wake-up through the completion descriptor. Returns the number of completions already
 * there: if above 0, reap before sleeping. kvt_reap() withdraws the request and empties the
 * descriptor; blocking calls may. So arm again before each sleep. */
int kvt_client_arm(struct kvt_client *client);

/** A namespace isolates trees that must never match each other. Opening one twice gives the same
 * number. `digest` from kvt_namespace_digest() (kvtrunk_keys.h). `label` for people, may be NULL.
 * Errors: -ENOSPC all max_namespaces are open or locked, -EDQUOT this session has seven eighths of
 * them open, -ENOENT the client observes and it is not there, -ECONNRESET. */
int kvt_namespace_open(struct kvt_client *client, const uint64_t digest[2],
		       const char *label, uint32_t *ret_namespace);

/** Generation of a namespace that is open here: as of its opening, or of this client's last
 * renewal. It begins with 0. All clients see one number, over restarts of the daemon. The tree does
 * not know it: an engine writes it into the fields of its other namespaces. So renewing one
 * namespace, held open, makes the engine forget all that it cached. It then shares with every
 * engine that renewed to the same generation or was started since.
 * Caveat: once no session has the namespace open, its generation may be 0 again. Fix: hold it open.
 * Errors: -EINVAL it is not open. */
int kvt_namespace_generation(struct kvt_client *client, uint32_t namespace_id,
			     uint32_t *ret_generation);

/** Raise the generation by one, unless it is above `seen` already, and give it. With the one that
 * kvt_namespace_generation() gave as `seen`, two clients that forget at the same time share again.
 * Errors: -EINVAL the namespace is not open, -EOVERFLOW it is UINT32_MAX, -ECONNRESET. */
int kvt_namespace_renew(struct kvt_client *client, uint32_t namespace_id, uint32_t seen,
			uint32_t *ret_generation);

/** Close a namespace, behind the operations submitted before: the number means nothing until it is
 * opened again. Its cached pages stay, until they are evicted or its place is needed for another
 * namespace; kvt_remove() with keys NULL first forgets it at once.
 * Errors: -EBUSY this session has leases there, or operations that wait for a fence or for others
 * (nothing changed: END and UNLOCK them, then close again); -EINVAL it is not open. */
int kvt_namespace_close(struct kvt_client *client, uint32_t namespace_id);

/* ---------------------------------------------------------------- sleep */

/** Hold nothing of the pool: for an engine that sleeps, and before a snapshot of the process. Slabs
 * in host and device memory are unmapped. The connection, its session, namespaces and streams stay,
 * and so does what this client has cached: for others, and for itself after kvt_client_resume().
 *
 * Refused with -EBUSY, and nothing changed, while the session holds something:
 * kvt_client_error() says how many leases, private pages and unanswered operations. They are not
 * ended here: a sequence would name pages that others soon write, and only the caller knows when
 * its kernels no longer touch them. Waits for no fence.
 *
 * Until resumed, calls that would bring a lease, pages or a mapping return -ENXIO: kvt_pool_map*(),
 * kvt_seq_begin(), kvt_lock(), kvt_alloc(), kvt_insert(), kvt_match() with KVT_F_LOCK, and the like
 * by kvt_submit(). kvt_match(), kvt_probe(), counters, namespaces, kvt_group_check() and
 * kvt_client_close() work. The pool's addresses stay reserved, and must not be touched: SIGSEGV in
 * host memory, a fault of the device in device memory. Another client of the process that has the
 * same slab on the same device keeps it mapped. The device's primary context stays retained.
 *
 * In a group each process suspends its own mapping: rank 0, which has the leases, first, and
 * resumes after the others. An observer has nothing to give up. A second call does nothing.
 * Errors: -EBUSY, also if a stream has not reached its last fence; -ENOMEM; -ECONNRESET, -ESTALE,
 * -ETIMEDOUT. */
int kvt_client_suspend(struct kvt_client *client);

/** Map again what was mapped, at the same addresses: struct kvt_pool and tensors made of it are
 * right again. Only by cuda-ipc the driver chooses the address: call kvt_pool_map_cuda() again.
 * A client that is not suspended stays as it is.
 * Errors: -ECONNRESET or -ESTALE: the daemon ended or started cold meanwhile, as every call says;
 * those of kvt_pool_map() and kvt_pool_map_cuda(). The client stays suspended: try again, or close
 * it. */
int kvt_client_resume(struct kvt_client *client);

/* ---------------------------------------------------------------- admin, text */

struct kvt_message_admin; /* kvtrunk_wire.h */

/** Make one admin request on the control socket (enum kvt_admin_what, kvtrunk_wire.h).
 * `ret_records` receives up to `bytes` of records. Returns the number of records. Blocking. */
int kvt_admin(struct kvt_client *client, struct kvt_message_admin *request,
	      const void *payload, size_t payload_bytes, void *ret_records, size_t bytes);

/** Names and sentences; static strings, never NULL. */
const char *kvt_reason_name(int reason); /* "all_locked" */
const char *kvt_reason_text(int reason); /* a sentence with the cure */
const char *kvt_errno_name(int error);   /* "ENOSPC", for either sign */
const char *kvt_op_name(int op);         /* "begin" */
const char *kvt_version(void);           /* "0.1.0": of the library that runs */

#pragma GCC visibility pop

#ifdef __cplusplus
}
#endif
#endif
