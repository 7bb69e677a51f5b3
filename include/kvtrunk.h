/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVTRUNK_H
#define KVTRUNK_H

/**
 * @file kvtrunk.h
 * libkvtrunk: share the KV cache of LLM inference between the processes of a host.
 *
 * A daemon, kvtrunkd, owns a pool of KV pages and a radix tree over token prefixes. A worker
 * connects, asks for a prefix, gets the page table of what is cached plus private pages for the
 * rest, computes the rest into those pages with its own kernels, and commits. From then on every
 * other worker finds those pages, in place: nothing is copied.
 *
 *     kvt_client_connect()                     once a process (or thread)
 *     kvt_namespace_open()                     once a model adapter / cache salt
 *     kvt_pool_map()                           once: where the pages are
 *       kvt_seq_begin(keys)                    match, lock, allocate: one round trip
 *         compute positions [reusable, n)
 *       kvt_seq_commit(computed)               after each prefill chunk: seal, dedupe, look on;
 *                                              kvt_seq_commit_async() does not wait for it
 *         decode; kvt_seq_extend() as it grows
 *       kvt_seq_end(generated keys)            publish or drop, unlock, free
 *     kvt_client_close()
 *
 * Conventions
 *  - Functions return 0 (or a count) or a negative errno and leave the global errno alone.
 *    Outputs are `ret_*` parameters, untouched on failure.
 *  - A key is a uint32_t that identifies one KV position (a token id, or see kvtrunk_keys.h).
 *    Counts of keys are positions; `pages` are page numbers in the pool, [1, n_pages).
 *  - The library has no threads and no signal handlers, never logs and never exits. Its only global
 *    state is the process's open device memory, behind a lock. A client handle belongs to one
 *    thread at a time; a process may have several.
 *  - Needs Linux >= 5.14 and libc. No io_uring in the client.
 *
 * Caveats
 *  - Page memory is shared by contract: a client may write only pages that are private to it.
 *    Every client of an instance can read all of the pool.
 *  - When the daemon dies and no keeper holds its state (kvt_info.kept is false), every waiting and
 *    every later call returns -ECONNRESET; -ESTALE if a successor started cold (kvt_group_check()
 *    tells it from a prefix that was reset). Fix: close and connect again.
 *    With a keeper, calls continue under the successor with all that the session had; only
 *    deadlines show the pause.
 *  - A forked child has no mapping (MADV_DONTFORK), and every call on the parent's client returns
 *    -ECHILD there. Fix: connect in the child. kvt_client_close() and kvt_client_abandon() free
 *    the handle in the child and leave the parent's session alone.
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
	/* What model and content of pages must have in common: fields name=value, see
	 * kvt_geometry_fingerprint(). Each must be one of the daemon's. NULL: take its. */
	const char *fingerprint;
	uint32_t page_size;      /* positions; 0: take the daemon's */
	uint32_t n_pages;
	uint64_t page_bytes;
	uint32_t sq_entries;     /* default 64, rounded up to a power of two */
	uint32_t cq_entries;     /* default 2 * sq_entries */
	uint32_t keys_count;     /* u32 elements of the key area; default 1 Mi (4 MiB) */
	uint32_t list_count;     /* u32 elements of the list area; default 256 Ki */
	int64_t spin_budget_ns;  /* most before a wait sleeps; default 50,000; -1: no limit */
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
 * frees what the late completion brings (leases, pages), during later calls. What the operation
 * frees (UNLOCK, FREE, END, CLOSE) still takes effect. After -ETIMEDOUT of INSERT its pages belong
 * to the library, which frees those that the tree does not take. A call that could not even be
 * submitted in time returns -EAGAIN instead: nothing happened. */
void kvt_client_set_timeout(struct kvt_client *client, int64_t timeout_ns);

/** Announce that from now on each call is followed by another within `pace_ns`: the time of a
 * scheduler's step, with some slack. The daemon then spins meanwhile instead of sleeping, so a call
 * costs microseconds instead of a wake-up. 0, the default: not announced; set it when the engine
 * has nothing to do. Takes effect with the next call and costs no message. The daemon believes
 * 50 ms at most, sleeps while others need its CPU, and does not believe a client that was
 * late for 16 times its pace. */
void kvt_client_set_pace(struct kvt_client *client, int64_t pace_ns);

/** Descriptors for the caller's own loop: readable when a completion came after kvt_client_arm(),
 * and when the daemon hung up. Both are sockets. Owned by the client; do not read them. */
int kvt_client_completion_fd(const struct kvt_client *client);
int kvt_client_control_fd(const struct kvt_client *client);

/** Ask for a wake-up through the completion descriptor. Returns the number of completions already
 * there: if above 0, reap before sleeping. kvt_reap() withdraws the request and empties the
 * descriptor; blocking calls may. So arm again before each sleep. */
int kvt_client_arm(struct kvt_client *client);

/** A namespace isolates trees that must never match each other. Opening one twice gives the same
 * number. `digest` from kvt_namespace_digest() (kvtrunk_keys.h). `label` for people, may be NULL.
 * Errors: -ENOSPC max_namespaces, -EACCES policy, -ECONNRESET. */
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
 * Errors: -EINVAL the namespace is not open, -EOVERFLOW, -ECONNRESET. */
int kvt_namespace_renew(struct kvt_client *client, uint32_t namespace_id, uint32_t seen,
			uint32_t *ret_generation);

/** Close a namespace, behind the operations submitted before: the number means nothing until it is
 * opened again. What is cached there stays, until it is evicted or its place is needed for another
 * namespace; kvt_remove() with keys NULL first forgets it at once.
 * Errors: -EBUSY this session has leases there, or operations that wait for a fence or for others
 * (nothing changed: END and UNLOCK them, then close again); -EINVAL it is not open. */
int kvt_namespace_close(struct kvt_client *client, uint32_t namespace_id);

/* ---------------------------------------------------------------- pool */

/** One slab, mapped. Where a page lies: kvt_pool_view(), and kvt_page_address() if all of it is in
 * one piece. */
struct kvt_pool {
	void *base;
	uint64_t bytes;    /* at least n_pages * kvt_client_info()->page_bytes */
	uint32_t n_pages;  /* page 0, the scratch page, included */
	uint32_t slab;     /* which one this is */
	uint64_t reserved; /* the library's own */
};

/** Map slab 0; a member of a group maps that of its rank. Once per client: later calls return the
 * same mapping. Unmapped by close.
 * Errors: -ENOTSUP backend not mappable here, -ENOMEM, -EPROTO differs from WELCOME. */
int kvt_pool_map(struct kvt_client *client, struct kvt_pool *ret_pool);

/** Map one slab of several. A page number names a page in each: a tensor-parallel rank maps the
 * slab of its rank, one process that drives all ranks maps them all. -EINVAL: there are only
 * kvt_client_info()->n_slabs. */
int kvt_pool_map_slab(struct kvt_client *client, uint32_t slab,
		      struct kvt_pool *ret_pool);

/** Address of the kvt_client_info()->page_bytes bytes of a page in a mapped slab. NULL if there is
 * no such page, or if it is not in one piece: in layer-major order, the default of a daemon with a
 * geometry, each layer of it is elsewhere (kvt_pool_view()). A device pointer if
 * the pool is device memory. */
void *kvt_page_address(const struct kvt_pool *pool, uint32_t page);

/** One layer of a slab: enough to build a tensor on the pages without a copy.
 *
 * Element `x` of position `t` of KV head `h` in page `p` lies at
 *
 *     k + p * page_stride_bytes + h * head_stride_bytes + t * position_stride_bytes
 *       + x * element_bytes
 *
 * and likewise from v. For PyTorch: a tensor on `k` of shape [n_pages, n_kv_heads, page_size,
 * head_dim] with the strides (page, head, position)_stride_bytes / element_bytes and 1. The
 * elements of a head are contiguous, everything lies within the slab, and no two elements of any
 * two planes share a byte; with KVT_LAYOUT_LATENT there is one plane, and v is k. Pages that are
 * cached are read only, by contract. */
struct kvt_pool_view {
	void *k;
	void *v;
	uint64_t page_stride_bytes;
	uint64_t head_stride_bytes;
	uint64_t position_stride_bytes;
	uint32_t element_bytes;
	uint32_t type; /* enum kvt_element_type */
	uint32_t n_pages;
	uint32_t page_size; /* positions */
	uint32_t n_kv_heads;
	uint32_t head_dim;  /* elements */
	float k_scale;      /* fp8: value = stored value * scale; else 1 */
	float v_scale;
};

/** Describe layer `layer` of a mapped slab. Pure arithmetic on the daemon's answer to HELLO: no
 * memory is touched, so `pool->base` may be an address of a device.
 * Errors: -ENODATA the daemon has page_bytes and no geometry, -EINVAL no such layer, or `pool`
 * is not of this client's size, -ECHILD in a forked child. */
int kvt_pool_view(struct kvt_client *client, const struct kvt_pool *pool, uint32_t layer,
		  struct kvt_pool_view *ret_view);

/** A geometry as texts for struct kvt_geometry (kvtrunk_keys.h). The daemon puts the same three
 * into its fingerprint, so both sides use the same words. -EINVAL: not a geometry (a field is 0 or
 * out of range); nothing was written. */
int kvt_pool_geometry_describe(const struct kvt_pool_geometry *geometry,
			       struct kvt_pool_geometry_text *ret_text);

/** Bytes of one page in one slab: planes * layers * heads * page_size * dim * element. 0: not a
 * geometry, or page_size is above 4,096. */
uint64_t kvt_pool_geometry_page_bytes(const struct kvt_pool_geometry *geometry,
				      uint32_t page_size);

#define KVT_DEVICE_CURRENT -1 /* the device of the calling thread's CUDA context */

enum kvt_map_flag {
	KVT_MAP_READ_ONLY = 1u << 0, /* cuda-vmm: kernels that write into it fail */
};

/** Map the slab of a pool in device memory that is on this CUDA device, into the device's primary
 * context (that of the CUDA runtime). `base` is a device pointer.
 *
 * @device  number in this process (CUDA_VISIBLE_DEVICES counts), or KVT_DEVICE_CURRENT. The slab is
 *          found by the device's UUID.
 * All clients of a process share one mapping per device. It closes with the last of them: no work
 * on it may be left then. Loads libcuda.so.1; makes the context if there is none. Neither mapping
 * nor closing ends a capture of this process's streams into CUDA graphs, or becomes part of one.
 * Errors: -ENOTSUP host pool, no CUDA IPC here, drivers that differ, or read-only by IPC or where
 * the driver cannot; -ENODEV no driver or no such device; -EXDEV no slab is on it (or it is another
 * MIG instance); -ENOTUNIQ this process and the daemon have the same pid in two PID namespaces;
 * -EPERM by IPC, and the daemon is another user; -ECONNRESET the daemon is gone; -EBUSY already
 * opened by other code of this process; -ENOMEM; -EIO the driver failed. kvt_client_error() says
 * what to do. */
int kvt_pool_map_cuda(struct kvt_client *client, int device, uint32_t flags,
		      struct kvt_pool *ret_pool);

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

/* ---------------------------------------------------------------- groups */

/** Secret of a group: its holder can join. Rank 0 sends it to the other ranks over the engine's own
 * channel, or all ranks derive it from a secret of the engine. */
struct kvt_group_token {
	uint64_t words[2];
};

/** Make this client rank 0 of a group: the processes of one tensor-parallel engine, one a slab.
 *
 * The others connect with options.group = the token and options.rank = 1 to n_ranks - 1. A member
 * maps its slab: kvt_pool_map() gives slab `rank`, or slab 0 if there is none of that number. It
 * has fence words of its own (kvt_fence_raise(), kvt_fence_word(), kvt_fence_record()) and no ring:
 * operations and sequences are rank 0's, whose page tables name pages in every slab.
 *
 * A fence (slot, value) of rank 0's operations is reached when the word `slot` of *every* process
 * of the group is at least `value`. For work of some ranks only, the other ranks raise theirs at
 * once. If rank 0 alone knows when the work of all has ended, the others raise theirs to UINT64_MAX
 * once. A member's words begin with rank 0's values. Missing ranks are not waited for: begin work
 * when all have joined.
 *
 * The group ends when any of its processes closes, exits or is killed. Then the others get
 * -ECONNRESET (kvt_group_check()), leases end, and private pages stay in quarantine until every
 * process has ended. In order: members stop, rank 0 closes, members close.
 *
 * @n_ranks  rank 0 included, 2 to KVT_MAX_RANKS. The same number again gives the same token.
 * @token    chosen by the caller, for ranks that know it beforehand: 128 bits that others cannot
 *           guess, such as the digest of a random id of the engine. NULL: a random one.
 * Errors: -EINVAL n_ranks, or a token of zeroes, -EALREADY a group of another size or token,
 * -EEXIST another group has the token, -ENOSPC max_members, -ENOTCONN an observer or a member,
 * -ECONNRESET. Connecting with a token: -EINVAL it is all 0, -ESTALE no such group (any more, or
 * not within options->connect_wait_ns), -ERANGE no such rank, -EEXIST the rank has already
 * joined. */
int kvt_group_open(struct kvt_client *client, uint32_t n_ranks,
		   const struct kvt_group_token *token, struct kvt_group_token *ret_token);

/** Check whether the session, and with it the group, still lives, without waiting. For loops that
 * make no other call, such as a member's: kvt_client_control_fd() is readable on a change. Returns
 * 0, or -ECONNRESET (-ESTALE: the daemon started cold, the session is lost); kvt_client_error()
 * names what ended it. */
int kvt_group_check(struct kvt_client *client);

/** Send a message from rank 0 to every member of its group, through shared memory.
 *
 * For engines whose every rank schedules and must decide alike. Rank 0 alone asks the daemon and
 * writes what it saw at each point, "nothing yet" included. The others read it at the same points.
 * Rank 0 connects with KVT_MIRROR in options->flags and opens the group first. Members receive the
 * same messages in the same order, each from the first one on, however late they join.
 *
 * @data   copied. @bytes: 0 to KVT_MIRROR_MESSAGE_MAX.
 * Waits while the slowest member has some 32 KiB unread; members that have not joined count. Spins
 * up to options->spin_budget_ns, then sleeps. Errors, after which nothing was sent: -EMSGSIZE bytes
 * is too large, -ETIMEDOUT (options->timeout_ns), -ENOTSUP no KVT_MIRROR, -ENOTCONN no group, or
 * not rank 0, -EBADMSG a member damaged the mirror, -ECONNRESET the group has ended: noticed within
 * 50 ms of a wait. */
int kvt_mirror_write(struct kvt_client *client, const void *data, uint32_t bytes);

/** Take the next message of rank 0; for members of a group.
 *
 * @buffer  of `size` bytes; KVT_MIRROR_MESSAGE_MAX suffices for any.
 * Returns the message's bytes, 0 or more. Waits for it as kvt_mirror_write() does. Errors:
 * -EMSGSIZE it is larger, and stays the next one, -ETIMEDOUT, -ENOTSUP the group has no mirror,
 * -ENOTCONN no member, -EBADMSG rank 0 damaged the mirror, -ECONNRESET the group has ended. */
int kvt_mirror_read(struct kvt_client *client, void *buffer, uint32_t size);

/* ---------------------------------------------------------------- fences */

/** Raise fence word `slot` to `value` (monotonic). Wakes a sleeping daemon if an operation of this
 * client may wait for the word; a member always does. */
int kvt_fence_raise(struct kvt_client *client, uint32_t slot, uint64_t value);

/** The word itself, for a device that writes it in stream order: the daemon polls it while an
 * operation waits. NULL if slot is out of range. */
uint64_t *kvt_fence_word(struct kvt_client *client, uint32_t slot);

/** How a stream raises its fence word. */
enum kvt_fence_method {
	KVT_FENCE_BY_DEFAULT = 0, /* as $KVTRUNK_FENCE says: host or write; else host */
	KVT_FENCE_BY_HOST = 1,    /* a host function (cuLaunchHostFunc): works everywhere */
	KVT_FENCE_BY_WRITE = 2,   /* a stream-ordered write to the registered segment
				   * (cuStreamWriteValue64), where the device can; else as host */
};

/** Fence for all work queued on a CUDA stream so far, for COMMIT, INSERT, END, FREE, UNLOCK or
 * CLOSE. Neither the caller nor the device waits.
 *
 * @stream  a CUstream or cudaStream_t. Each stream has a fence word of its own, from the last one
 *          downwards of those that kvt_fence_raise() and kvt_fence_word() were not used for;
 *          fences of one stream are reached in their order. The null stream is that of the current
 *          context.
 * Another stream may be captured into a CUDA graph meanwhile, on any thread: the capture continues.
 * In a group each rank records a fence for each of rank 0's, streams in the same order: then slots
 * and values agree. A stream whose context has failed reaches no fence: its operations wait until
 * the session ends, and its pages go to quarantine.
 * Errors: -ENOSPC all words are taken: kvt_fence_forget() unused streams; -EBUSY the stream, or one
 * that the null stream waits for, is being captured into a graph; -EINVAL a per-thread default
 * stream, or an observer; -ENODEV no driver; -EIO the driver failed; -ECONNRESET. */
int kvt_fence_record(struct kvt_client *client, void *stream, struct kvt_fence *ret_fence);

/** Free the fence word of a stream that will be destroyed. -EBUSY: not all of its fences are
 * reached. -ENOENT: it has none. A stream destroyed without this call keeps its word. Then all of
 * its fences must have been reached: the driver may reuse its handle for another stream, which
 * inherits the word. */
int kvt_fence_forget(struct kvt_client *client, void *stream);

/** The enum kvt_fence_method in use, KVT_FENCE_BY_DEFAULT before the first fence. */
int kvt_fence_method(const struct kvt_client *client);

/* ---------------------------------------------------------------- operations */

/** One operation. Unused fields stay 0. Pointers are read during kvt_submit() only.
 *
 * Root keys. Each `root_key` of a namespace, 0 included, has a tree of its own. The tree is made by
 * its first key and gone with its last. It costs neither a message nor a place of max_namespaces:
 * use it for salts, or for what precedes the first key. A handle has its root key, so give none
 * beside it. REMOVE without keys forgets the whole namespace and takes none.
 *
 * MATCH, BEGIN with a handle of kvt_probe(): give only the keys after the handle's prefix. The
 * answer counts all keys. -ESTALE: the prefix is gone, and nothing happened. Fix: submit all keys
 * and no handle.
 *
 * BEGIN while other leases compute a part of its prompt (`announced`):
 *
 *   no flag        It begins, and both compute that part.
 *   KVT_F_WAIT     It is answered when the part is cached, when no session computes it any more
 *                  (KVT_CQE_TAKEOVER), or after ttl_ms milliseconds (KVT_CQE_DEADLINE). Leases of
 *                  its own session do not count.
 *   KVT_F_NO_WAIT  It is answered -EAGAIN (KVT_REASON_ANNOUNCED) and holds nothing. Within ttl_ms
 *                  one notice with the same user_data follows: result 0, KVT_CQE_ASYNC, `matched`,
 *                  `state` = enum kvt_notice, no lease. Then submit it again. Leases of its own
 *                  session count: a scheduler holds back the second of two equal requests. Any
 *                  answer but -EAGAIN is that of a plain BEGIN, and no notice follows.
 *
 * kvt_seq_adopt() makes a sequence of a BEGIN that kvt_reap() answered.
 *
 * LOCK with KVT_F_SHORTER locks what is left of a handle whose last pages were evicted: `matched`
 * positions, n_pages pages, and their own handle. -ESTALE: nothing is left, it was removed, expired
 * or reset, or the daemon has restarted since the eviction. Fix: match the keys.
 *
 * ALLOC with KVT_F_SHORTER gives as many of `arg` pages as are free, evictable and within limits.
 * If there is none, it is refused like one of a single page.
 *
 * KVT_F_OWN_STREAM with BEGIN, ALLOC, and EXTEND by `arg`: the caller promises that the new pages
 * are written after all fences of this session, as on one stream. When free pages run out, the
 * daemon takes pages of this session's leases whose END waits for its fence, before it evicts. It
 * takes none that are cached, that a COMMIT before this END may publish, or that FREE gives up. A
 * COMMIT or END that waits then lists and frees fewer pages.
 * Caveat: wrong with a second stream that writes pages, or reads them after the END.
 *
 * COMMIT with KVT_F_KEEP and KVT_F_NO_LIST answers without the page table and takes no room in the
 * list area: for callers that keep a table of their own, whose pages stay theirs until END. If
 * `advanced` is above 0, others computed these positions: a COMMIT with the list names their pages.
 * A caller that computes them itself needs no list. */
struct kvt_request {
	uint32_t op;    /* enum kvt_op */
	uint32_t flags; /* enum kvt_sqe_flag */
	uint32_t namespace_id;
	uint32_t n_keys;
	const uint32_t *keys;
	const uint32_t *pages; /* INSERT: floor(n_keys / page_size); FREE, EXTEND: n_pages */
	uint32_t n_pages;
	uint32_t arg;          /* extra, computed, n or page, by op: see struct kvt_sqe */
	struct kvt_handle handle; /* LOCK; INSERT, MATCH, BEGIN: what `keys` continue */
	struct kvt_lease lease;
	struct kvt_fence fence; /* ops that take none ignore it; all 0: slot 0, value 0 */
	int32_t priority;
	uint32_t ttl_ms; /* INSERT with KVT_F_TTL; BEGIN with KVT_F_WAIT or KVT_F_NO_WAIT */
	uint32_t list_capacity; /* 0: enough for any answer */
	uint32_t reserved;
	uint64_t user_data;
	uint64_t root_key; /* MATCH, INSERT, BEGIN, REMOVE: which tree of the namespace */
};

/** One answer; fields that the operation does not answer are 0. */
struct kvt_result {
	uint64_t user_data;
	uint64_t seq;   /* the daemon's global order of effects */
	int32_t error;  /* 0 or negative errno */
	uint32_t reason; /* enum kvt_reason */
	uint32_t flags; /* enum kvt_cqe_flag */
	uint32_t op;
	struct kvt_handle handle;
	struct kvt_lease lease;
	uint32_t matched, reusable, announced; /* positions */
	uint32_t next, advanced, existed;      /* positions */
	uint32_t known; /* COMMIT: positions whose keys the daemon knows: the next begin there */
	uint32_t inserted, sealed, evicted, freed, duplicates; /* pages */
	uint32_t available; /* -ENOSPC: pages that this operation could have had */
	/* -ENOSPC for lack of pages: pages that it needs, with too_large those of the whole page
	 * table; -ENOBUFS: list words; -EDQUOT: the limit. */
	uint32_t needed;
	uint32_t state, owner, lock_ref, problems; /* PAGE, AUDIT; a notice: enum kvt_notice */
	uint32_t sealer; /* PAGE, of a cached one: as kvt_page_sealer() */
	uint32_t shared; /* BEGIN: of the reusable positions, those that another session sealed */
	uint32_t n_pages, n_twins;
	const uint32_t *pages; /* page table or page list; until kvt_result_release() */
	const uint32_t *twins; /* 2 * n_twins: (yours, the cached twin) */
	uint32_t slot;         /* the library's own */
};

/** Submit without waiting. Visible to the daemon at once. At most cq_entries operations are in
 * flight. -EAGAIN: rings or areas are full: reap and release first. -E2BIG: larger than the areas.
 * -EINVAL: n_pages of INSERT is not floor(n_keys / page_size), or a count without its array.
 * -ECONNRESET. */
int kvt_submit(struct kvt_client *client, const struct kvt_request *request);

/** Take up to `max` answers, waiting for the first `min` of them (deadline as set). Returns their
 * number: 0 with min 0 if there are none, fewer than `min` if no more are in flight. Each must be
 * released, in any order. An answer may be a refusal: see its `error`. If the deadline passes
 * (-ETIMEDOUT) the operations stay in flight: reap again. */
int kvt_reap(struct kvt_client *client, struct kvt_result *ret_results, int min, int max);
/** Free the list of an answer. Harmless twice, or for an answer without a list. */
void kvt_result_release(struct kvt_client *client, struct kvt_result *result);

/** Submit one and wait for its answer. Returns result->error; the result must be released when
 * the return value is 0 (a failed one holds nothing). */
int kvt_call(struct kvt_client *client, const struct kvt_request *request,
	     struct kvt_result *ret_result);

/** Blocking forms, without a root key (kvt_call() takes one), copying lists into the caller's
 * arrays. Each `capacity` and `n` in pages; -ENOBUFS when too short: nothing done, *ret_n = needed.
 *
 * kvt_match() of 1,024 keys or more probes first, as kvt_probe(), and sends only the keys that the
 * probe did not find; the answer is the same. */
int kvt_match(struct kvt_client *client, uint32_t namespace_id, const uint32_t *keys,
	      uint32_t n_keys, uint32_t flags, struct kvt_result *ret_result);
int kvt_lock(struct kvt_client *client, struct kvt_handle handle,
	     struct kvt_lease *ret_lease, uint32_t *ret_pages, uint32_t capacity,
	     uint32_t *ret_n);
int kvt_unlock(struct kvt_client *client, struct kvt_lease lease, struct kvt_fence fence);
int kvt_alloc(struct kvt_client *client, uint32_t n, uint32_t *ret_pages);
int kvt_free(struct kvt_client *client, const uint32_t *pages, uint32_t n,
	     struct kvt_fence fence);
/** Cache pages for keys. `start` of node 0 = from the root. On return the answer names the
 * duplicates; release it. */
int kvt_insert(struct kvt_client *client, uint32_t namespace_id, const uint32_t *keys,
	       uint32_t n_keys, const uint32_t *pages, struct kvt_handle start,
	       struct kvt_fence fence, uint32_t flags, struct kvt_result *ret_result);
/** Forget the last page of a prefix and all behind it. `keys` NULL: the whole namespace. -EINVAL:
 * an array of 0 keys. */
int kvt_remove(struct kvt_client *client, uint32_t namespace_id, const uint32_t *keys,
	       uint32_t n_keys);
int kvt_evict(struct kvt_client *client, uint32_t n, uint32_t *ret_evicted);
int kvt_reset(struct kvt_client *client);
int kvt_stats(struct kvt_client *client, struct kvt_counters *ret_counters);

/** Read the counters in shared memory, without the daemon and a round trip: for a scheduler that
 * looks at them each step. They agree with each other, as of the end of some operation; those
 * of this client's answered operations are in. Errors: -ENOTSUP the arena is withheld, -EAGAIN the
 * daemon is inside a long operation (kvt_stats() waits for it), -ECONNRESET. */
int kvt_counters_read(struct kvt_client *client, struct kvt_counters *ret_counters);

/** Number of the session that sealed a cached page, to compare with kvt_client_info()->sealer: each
 * session has another one, within 2^24 sessions. From shared memory if the arena is visible. 0: it
 * is not known. Errors: -EINVAL the page is not cached, or there is no such page. */
int kvt_page_sealer(struct kvt_client *client, uint32_t page, uint32_t *ret_sealer);

/** Report a cached page whose KV is not what this client computed for its keys. Hold a lease on the
 * page, else another may be there by now. Nothing happens to the page. The daemon logs who reports
 * which page of which session, and counts it: suspected_pages, `kvtctl clients`.
 * @ret_session  that of the sealer; 0: it has ended. May be NULL.
 * Errors: -EINVAL the page is not cached, or there is no such page. */
int kvt_page_suspect(struct kvt_client *client, uint32_t page, uint32_t *ret_session);

/** Walk the tree in shared memory without the daemon: a few hundred nanoseconds, never more than
 * MATCH would report, sometimes less. A hint: pages may be used only after LOCK of the handle.
 * Errors: -ENOTSUP the arena is withheld, -EAGAIN too many races (use MATCH), -ECONNRESET. */
int kvt_probe(struct kvt_client *client, uint32_t namespace_id, const uint32_t *keys,
	      uint32_t n_keys, struct kvt_handle *ret_handle, uint32_t *ret_matched);
/** The same under a root key (struct kvt_request). */
int kvt_probe_root(struct kvt_client *client, uint32_t namespace_id, uint64_t root_key,
		   const uint32_t *keys, uint32_t n_keys, struct kvt_handle *ret_handle,
		   uint32_t *ret_matched);

/* ---------------------------------------------------------------- sequences */

/** Begin a sequence: match `keys`, lock the match, announce the rest, and get a page table for
 * n_keys + extra positions. All or nothing. As kvt_match(), it sends only keys that a probe does
 * not find.
 *
 * @extra  positions beyond the prompt to have pages for (decode); kvt_seq_extend() gives more.
 * @flags  KVT_F_FULL, KVT_F_FORCE_MISS, KVT_F_OWN_STREAM (see struct kvt_request).
 *
 * If other processes are computing part of the same prompt, it waits, so that each position is
 * computed once. It returns when that part is cached, or when no process computes it any more: then
 * this sequence does. It waits at most options->begin_wait_ns and three quarters of the client's
 * own deadline. While it waits it holds neither pages nor locks. It never waits for a sequence of
 * the same client, or for a client that waits for this one. For a notice instead of waiting, submit
 * a BEGIN with KVT_F_NO_WAIT (kvt_submit()): see struct kvt_request. Errors: -ENOSPC
 * (kvt_client_error() gives the cause and how much was available), -EDQUOT, -ECONNRESET,
 * -ETIMEDOUT. The sequence is owned by the caller until kvt_seq_end(). */
int kvt_seq_begin(struct kvt_client *client, uint32_t namespace_id, const uint32_t *keys,
		  uint32_t n_keys, uint32_t extra, uint32_t flags,
		  struct kvt_seq **ret_seq);

/** Begin a sequence that continues one that has ended, as the next turn of a conversation does.
 * `start` is what kvt_seq_end_handle() gave, and `keys` are all keys. Only those after `start` are
 * sent, so a long conversation costs what its new turn does.
 *
 * The first start.positions keys MUST be those of the sequence that `start` is from, and that must
 * have been this client's. They are not compared unless the handle is stale, so with other keys
 * this sequence reuses wrong KV. Fix: forget handles when you connect again.
 * A stale handle, or one of 0 positions, costs time only: then as kvt_seq_begin(), within the same
 * deadline. Errors as kvt_seq_begin(); -EINVAL the handle is of another namespace, or of none. */
int kvt_seq_continue(struct kvt_client *client, uint32_t namespace_id, struct kvt_handle start,
		     const uint32_t *keys, uint32_t n_keys, uint32_t extra, uint32_t flags,
		     struct kvt_seq **ret_seq);

/** Begin a sequence as a BEGIN describes it. Reads namespace_id, root_key, keys and n_keys (all
 * keys), arg (the extra positions), flags, and handle (where it continues, or none). The rules of
 * kvt_seq_continue() hold, for the root key, too. */
int kvt_seq_start(struct kvt_client *client, const struct kvt_request *begin,
		  struct kvt_seq **ret_seq);

/** Make a sequence of a BEGIN that was submitted (kvt_submit()) and answered (kvt_reap()), so that
 * a scheduler waits for neither. `n_keys` counts all its keys, those of its handle included. The
 * answer is released, and its lease is the sequence's from then on.
 * Errors, which change nothing: -EINVAL it is no granted BEGIN, or has been released; -ENOMEM. */
int kvt_seq_adopt(struct kvt_client *client, struct kvt_result *begun, uint32_t n_keys,
		  struct kvt_seq **ret_seq);

/** The page table: entry i holds positions [i * page_size, (i + 1) * page_size). Valid until the
 * next call on this sequence, other than this one and those down to kvt_seq_known(), which only
 * read. Entries below kvt_seq_next() / page_size are cached pages of the tree, or soon will be:
 * read only. */
const uint32_t *kvt_seq_pages(const struct kvt_seq *seq, uint32_t *ret_n);
uint32_t kvt_seq_matched(const struct kvt_seq *seq);   /* positions cached at begin */
uint32_t kvt_seq_reusable(const struct kvt_seq *seq);  /* positions not to compute */
uint32_t kvt_seq_announced(const struct kvt_seq *seq); /* being computed by others */
uint32_t kvt_seq_shared(const struct kvt_seq *seq);    /* reusable ones that others sealed */
uint32_t kvt_seq_next(const struct kvt_seq *seq);      /* where to continue computing */
uint32_t kvt_seq_known(const struct kvt_seq *seq);     /* keys given so far */

/** Publish positions [0, computed): whole pages become visible to all. Duplicates are replaced in
 * the page table (with KVT_F_KEEP they stay readable until the end). Pages beyond that others
 * sealed meanwhile are taken over: kvt_seq_next() may jump.
 * @keys  only keys that the sequence does not have yet (generated ones), in order: they begin at
 *        position kvt_seq_known(). They may go beyond `computed` and beyond the page table, like
 *        that of a token just sampled: keys without a place wait for a later commit.
 * Errors: -ESTALE the prefix was reset or removed, or expired: nothing more is shared. Fix:
 * continue. The page table stays valid, kvt_seq_next() is at least `computed`, and each later
 * commit only advances it and returns -ESTALE again. Other errors change nothing: -EINVAL beyond
 * the page table or the keys given; -ENOSPC out of tree nodes. */
int kvt_seq_commit(struct kvt_seq *seq, uint32_t computed, const uint32_t *keys,
		   uint32_t n_keys, struct kvt_fence fence, uint32_t flags);

/** Publish without waiting: submit, and wake the daemon if it sleeps, but wait neither for its
 * answer nor for the fence. Meanwhile continue with the page table as it is: read [0, computed) and
 * compute what follows.
 *
 * Until the outcome is taken, the page table stays and kvt_seq_next() is at least `computed`. The
 * outcome is taken by the next kvt_seq_commit_async() or kvt_seq_poll() if it has come by then, by
 * kvt_seq_extend() if the daemon gives the pages after it, and in any case by kvt_seq_settle(),
 * kvt_seq_commit() and kvt_seq_end(). Then the table names cached pages for duplicates and for what
 * others computed beyond, and kvt_seq_next() may jump: continue there. A later commit whose
 * `computed` the jump passed publishes nothing; one beyond it publishes what comes after the jump.
 *
 * KVT_F_KEEP is implied: displaced pages, which queued work may still read or write, stay this
 * sequence's until its end. So duplicates occupy the pool until then; kvt_seq_commit() frees them
 * at its fence.
 *
 * Any number may be in flight; they take effect in their order, each at its fence.
 * @keys  as for kvt_seq_commit(), copied.
 * @flags KVT_F_CHUNKED
 * Errors: -EAGAIN rings or areas are full of operations in flight, or a call on this sequence whose
 * deadline passed is still unanswered: kvt_seq_settle() first; -ESTALE as kvt_seq_commit(); and the
 * daemon's answer to an earlier asynchronous commit. kvt_seq_commit(), this call, kvt_seq_poll()
 * and kvt_seq_settle() return that one instead of doing anything (kvt_seq_end() ends all the same):
 * the first failure, once. Commits in flight behind a failed one fail silently. Afterwards
 * kvt_seq_next() is how far commits took effect, and keys from kvt_seq_known() on must be given
 * again; but after -ESTALE kvt_seq_next() is how far it was computed. */
int kvt_seq_commit_async(struct kvt_seq *seq, uint32_t computed, const uint32_t *keys,
			 uint32_t n_keys, struct kvt_fence fence, uint32_t flags);

/** Take outcomes of asynchronous commits that have come, without waiting. Returns how many are
 * still in flight, or their first failure. To sleep until one comes, see kvt_client_arm(). */
int kvt_seq_poll(struct kvt_seq *seq);

/** Wait until none is in flight (deadline as set; -ETIMEDOUT leaves the rest in flight), and return
 * their first failure. */
int kvt_seq_settle(struct kvt_seq *seq);

/** Lengthen the page table by at least `n` positions: by whole private pages, so call it when the
 * table is full, not per token. Waits for no commit in flight, unless the table has grown by more
 * than 64 pages and an eighth meanwhile. Errors as kvt_seq_begin(): nothing changed. */
int kvt_seq_extend(struct kvt_seq *seq, uint32_t n);

/** Lengthen the page table by `n` pages that the session has from kvt_alloc() or an ALLOC, and wait
 * for nothing: a scheduler that keeps a stock of them makes no round trip here. They are the
 * sequence's from now on.
 * Errors: -EAGAIN the ring is full, or what is in flight has no room for a table so long: reap or
 * settle first; -ENOMEM. Nothing changed. A page that is not the
 * session's, in a sequence already or named twice is refused later, with all n: commits beyond the
 * table are then -EINVAL. */
int kvt_seq_extend_pages(struct kvt_seq *seq, const uint32_t *pages, uint32_t n);

/** End: with computed > 0 after a last commit. Frees the handle in any case. Commits in flight take
 * effect before it.
 * Errors: -ESTALE the prefix was removed, expired or reset: the last commit published nothing, and
 * earlier ones are not found any more; -EINVAL the last commit named positions or keys that do not
 * fit (kvt_client_error() says which); or the failure of an asynchronous commit that was not
 * reported yet. In these cases the sequence has ended all the same. -ETIMEDOUT: it ends when its
 * fence is reached and the ring has room. With a fence slot that does not exist it ends with the
 * session. */
int kvt_seq_end(struct kvt_seq *seq, uint32_t computed, const uint32_t *keys,
		uint32_t n_keys, struct kvt_fence fence, uint32_t flags);

/** The same, and name what stays cached of the sequence's keys: their leading whole pages. The next
 * turn begins there, see kvt_seq_continue(). *ret_handle is set in any case, to 0 positions if
 * nothing stays or the daemon did not answer. It gives no right to the pages. */
int kvt_seq_end_handle(struct kvt_seq *seq, uint32_t computed, const uint32_t *keys,
		       uint32_t n_keys, struct kvt_fence fence, uint32_t flags,
		       struct kvt_handle *ret_handle);

/** The same as kvt_seq_end(), without waiting for the daemon's answer: submit END, and free the
 * handle. Its outcome is not reported: if its last commit fails, that publishes nothing. Commits in
 * flight take effect before it. At its fence its pages become free.
 * Errors: -EAGAIN the rings are full of operations in flight: nothing happened, the sequence stays.
 * Fix: reap or poll, then try again. -EINVAL, -ECONNRESET and the like: it has ended, as with
 * kvt_seq_end(). */
int kvt_seq_end_async(struct kvt_seq *seq, uint32_t computed, const uint32_t *keys,
		      uint32_t n_keys, struct kvt_fence fence, uint32_t flags);

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
const char *kvt_version(void);

#pragma GCC visibility pop

#ifdef __cplusplus
}
#endif
#endif
