/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_CORE_H
#define KVT_CORE_H

/**
 * @file core.h
 * The core: a pure state machine over arena and ledger.
 *
 * No syscalls, no clock, no allocation: memory and time are passed in, effects leave through
 * completions and hooks. One thread. A log of operations can be replayed: the same calls on the
 * same configuration give the same states, page for page.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/core/config.h"
#include "daemon/core/hooks.h"
#include "kvtrunk_wire_counts.h"

struct kvt_core; /* lives at the start of the scratch memory */
struct kvt_core_view; /* view.h */
struct kvt_arena_header;
struct kvt_counters;
struct kvt_ledger_header; /* the ledger's records: ledger.h */
struct kvt_session_record;
struct kvt_member_record;
struct kvt_sqe;
struct kvt_fence_word;
struct kvt_admin_namespace;
struct kvt_admin_page;
struct kvt_admin_status;

/** Build an empty core in zeroed memory of at least the planned sizes, aligned to KVT_LINE.
 * Leaves the arena in state STARTING: kvt_core_publish() makes it READY. */
int kvt_core_init(struct kvt_core **ret_core, const struct kvt_core_config *config, void *arena,
		  void *ledger, void *scratch, const struct kvt_core_hooks *hooks,
		  uint64_t now_ns);
void kvt_core_publish(struct kvt_core *core, uint32_t state /* enum kvt_arena_state */);

/** Have changes told, with the hooks' context, or no more (NULL). Not inside an effect. */
void kvt_core_set_change(struct kvt_core *core, kvt_core_change_fn *change);

/** The namespace and the root key (0: none) of the path that a cached page of a node is on. */
void kvt_core_page_root(const struct kvt_core *core, uint32_t page, uint32_t *ret_namespace,
			uint64_t *ret_root_key);
/** True if the path of a cached page, which is no side page, has a time to live. */
bool kvt_core_page_ends(const struct kvt_core *core, uint32_t page);

/** The result of a recovery. */
struct kvt_core_adoption {
	bool rolled_back; /* the last daemon died inside a mutation, which was undone */
	uint32_t sessions; /* records in use, dead ones included */
	uint32_t leases;
	uint32_t waiting;  /* deferred operations */
	uint32_t nodes;
	uint64_t cached_pages;
	uint64_t generation; /* daemons that served the arena, this one included */
	uint64_t died_in;    /* work of the last daemon at its death: kvt_core_died_in() */
};

/** Check the headers of arena and ledger against this configuration: magic, ABI, layout, geometry,
 * sizes, fingerprint, boot, and the instance of both. Changes nothing. -ESTALE with a sentence in
 * `why`: they are of another build, model or boot. Ignores the configuration's `instance` and
 * `hash_seed`. */
int kvt_core_adoptable(const struct kvt_core_config *config, const void *arena,
		       const void *ledger, char *why, size_t why_size);

/** Continue where the last daemon of these objects stopped, even if it crashed.
 *
 * `arena` and `ledger` are writable mappings of at least the planned sizes, `scratch` is zeroed.
 * Rolls back an unfinished mutation, recomputes what is derived, and audits. Facts are not trusted:
 * each index and list is checked before it is followed. `mutation` is odd meanwhile. Clients that
 * walk the arena may miss nodes then.
 *
 * 0: the core is that of the predecessor, between two effects; its hooks get one ADOPT record.
 * Views are missing until kvt_core_session_attach(). Until then a session's deferred operations
 * wait, and none of its entries may be run. `ret_adoption` may be NULL.
 * -ESTALE: see kvt_core_adoptable(); nothing was changed. -EUCLEAN: the facts contradict each
 * other; `why` says where, `mutation` stays odd and the objects must not be used any more.
 * -EINVAL: configuration. */
int kvt_core_adopt(struct kvt_core **ret_core, const struct kvt_core_config *config, void *arena,
		   void *ledger, void *scratch, const struct kvt_core_hooks *hooks,
		   uint64_t now_ns, struct kvt_core_adoption *ret_adoption, char *why,
		   size_t why_size);

/** Say what a daemon was doing when it died. Returns how many daemons died in the same so far: from
 * KVT_FATAL_DEATHS on it is refused. 0: it died in nothing that is run again. */
uint32_t kvt_core_died_in(uint64_t died_in, char *text, size_t size);

/** Note that a request on a control socket is going to run. `what`: see KVT_RUNNING_REQUEST;
 * `digest`: 48 bits that name its content. Returns false if so many daemons died in an equal one
 * that it must be refused; else kvt_core_request_end() follows it. */
bool kvt_core_request_begin(struct kvt_core *core, uint32_t what, uint64_t digest);
/** The request ran; deaths in earlier attempts are forgotten. */
void kvt_core_request_end(struct kvt_core *core);
/** Note that the daemon leaves in order: its successor refuses no request for earlier deaths. */
void kvt_core_leave(struct kvt_core *core);

/** Refuse from now on (or no more) what would begin a lease: -ESHUTDOWN, reason draining. Such
 * refusals are effects like all others. Not remembered for a successor. */
void kvt_core_drain(struct kvt_core *core, bool draining, uint64_t now_ns);

struct kvt_core_peer {
	int32_t pid;
	uint32_t uid;
	bool privileged;
	uint64_t start_time;
	uint64_t secret[2];
	const char *label;
};

/** -EUSERS: max_sessions; the last place is kept for a privileged peer. -EDQUOT: uid_sessions. */
int kvt_core_session_open(struct kvt_core *core, const struct kvt_core_peer *peer,
			  const struct kvt_core_view *view, uint64_t now_ns,
			  uint32_t *ret_session);

/** Attach the memory of a recovered session. */
void kvt_core_session_attach(struct kvt_core *core, uint32_t session,
			     const struct kvt_core_view *view);

/** Report signs of an end (enum kvt_session_sign). The first HANGUP or EXITED ends the session: no
 * more entries are taken, and the view is not touched again. kvt_core_work() reclaims what it held.
 * Its pages leave quarantine when HANGUP, EXITED and QUIET are all there, or FENCED. */
void kvt_core_session_sign(struct kvt_core *core, uint32_t session, uint32_t signs,
			   uint64_t now_ns);

/** End a session for a violation: as HANGUP would, without the sign. */
void kvt_core_session_kill(struct kvt_core *core, uint32_t session, uint64_t now_ns);

/** The session's record, for display and to see whether it is DEAD or FREE. */
const struct kvt_session_record *kvt_core_session(const struct kvt_core *core, uint32_t session);

/** Make the session's process rank 0 of a group of n_ranks processes (2..KVT_MAX_RANKS), and
 * reserve records for the others. `token` names a new group; a repeated call gets the group's.
 * -EALREADY: a group of another size. -EEXIST: another group has the token. -ENOSPC: max_members.
 */
int kvt_core_group_open(struct kvt_core *core, uint32_t session, uint32_t n_ranks,
			uint64_t token[2]);
/** Find the member record of a rank by the group's token. -ESTALE: no such group (any more).
 * -ERANGE: no such rank, or rank 0. -EEXIST: the rank has joined already. */
int kvt_core_group_find(const struct kvt_core *core, const uint64_t token[2], uint32_t rank,
			uint32_t *ret_member);
/** Add a rank: from now on a fence of the session is reached when the words of all its processes
 * have reached it. `fences` are the rank's own words, valid as the session's view is. Each must be
 * at least rank 0's, so that a reached fence stays reached. */
void kvt_core_member_join(struct kvt_core *core, uint32_t member, const struct kvt_core_peer *peer,
			  const struct kvt_fence_word *fences);
/** Attach a recovered member's fence words, after its session's memory. */
void kvt_core_member_attach(struct kvt_core *core, uint32_t member,
			    const struct kvt_fence_word *fences);
/** Record signs of a member's end, for display and for a successor. The caller ends the session:
 * kvt_core_session_kill(), and the session's signs when no process is left. */
void kvt_core_member_sign(struct kvt_core *core, uint32_t member, uint32_t signs);
/** The record of a process, 1..kvt_core_members(). A session has the number of its rank 0. NULL if
 * the process is of no session that lives or is being reclaimed. */
const struct kvt_member_record *kvt_core_member(const struct kvt_core *core, uint32_t member);

/** The highest number of a process. */
static inline uint32_t kvt_core_members(const struct kvt_core_config *config)
{
	return config->max_sessions + config->max_members;
}

/** Open a namespace for a session (0: for an observer, nothing is counted; -ENOENT if unknown).
 * Idempotent. kvt_core_namespace_make_room() goes before it. -ENOSPC: max_namespaces. -EDQUOT:
 * max_opened. Both are counted. */
int kvt_core_namespace_open(struct kvt_core *core, uint32_t session, const uint64_t digest[2],
			    const char *label, uint64_t now_ns, uint32_t *ret_namespace);

/** Raise the generation of a namespace by one unless it is above `seen`, and give it. No operation
 * depends on it, so it has no record. -EINVAL: the session does not have it open. -EOVERFLOW: it is
 * UINT32_MAX. */
int kvt_core_namespace_renew(struct kvt_core *core, uint32_t session, uint32_t namespace_id,
			     uint32_t seen, uint32_t *ret_generation);

/** Make room for a namespace that the session is about to open. If there is no place, it empties
 * the least recently used namespace that is not open, in about `budget` small steps a call.
 * Returns true until there is room, or none can be made. */
bool kvt_core_namespace_make_room(struct kvt_core *core, uint32_t session, const uint64_t digest[2],
				  uint32_t budget, uint64_t now_ns);

/** Run one entry (a private copy). Returns true when *ret_cqe is the completion, false when the
 * operation waits for its fence: the complete hook answers it later. Back-pressure: before an entry
 * with an unreached fence is taken, kvt_core_can_defer() must be true. */
bool kvt_core_execute(struct kvt_core *core, uint32_t session, const struct kvt_sqe *sqe,
		      uint64_t now_ns, struct kvt_cqe *ret_cqe);
bool kvt_core_can_defer(const struct kvt_core *core);

/** Say whether a BEGIN executed next may wait, or leave a notice; else it runs as if nothing
 * were announced (KVT_CQE_NO_PLACE). The caller checks that its completion queue has room for one
 * more completion: after the -EAGAIN of a BEGIN with NO_WAIT a notice follows. */
void kvt_core_let_wait(struct kvt_core *core, bool allowed);

/** Say whether memory suffices for an AUDIT executed next; else it is refused with -ENOMEM. */
void kvt_core_let_audit(struct kvt_core *core, bool allowed);

/** Run BEGINs that need not wait any more, or whose deadlines have passed. Returns the number it
 * looked at. The functions below do this first, so that nothing evicts what these BEGINs waited
 * for. The daemon calls it so that they need not wait for another operation. */
uint32_t kvt_core_wake(struct kvt_core *core, uint64_t now_ns);

/** Let deferred operations of a session take effect whose fences are reached. Returns how many. */
uint32_t kvt_core_poll(struct kvt_core *core, uint32_t session, uint64_t now_ns);

/** Background work: expiry, dead sessions, detached subtrees, and with `idle` compaction. Does
 * about `budget` small steps (a page, a node) and returns how many it did: 0 = nothing left. */
uint32_t kvt_core_work(struct kvt_core *core, uint32_t budget, bool idle, uint64_t now_ns);
/** True if dead sessions or detached subtrees are left to reclaim. */
bool kvt_core_unsettled(const struct kvt_core *core);
/** When the next expiry or the next deadline of a BEGIN that waits is due, UINT64_MAX if none. */
uint64_t kvt_core_next_expiry_ns(const struct kvt_core *core);

/** The admin socket's forms of EVICT, REMOVE and RESET; logged with session 0. -EINVAL: a root key
 * without keys. */
uint32_t kvt_core_evict(struct kvt_core *core, uint32_t n, uint64_t now_ns);
void kvt_core_reset(struct kvt_core *core, uint64_t now_ns);
int kvt_core_remove(struct kvt_core *core, uint32_t namespace_id, uint64_t root_key,
		    const uint32_t *keys, uint32_t n_keys, uint64_t now_ns, bool *ret_removed);

/** Full check of every invariant against the primary facts. Calls `problem` for each finding;
 * returns how many. O(everything). */
typedef void kvt_core_problem_fn(void *context, const char *text);
uint32_t kvt_core_audit(const struct kvt_core *core, kvt_core_problem_fn *problem, void *context);
/** The cheap half: counters against each other. */
bool kvt_core_counters_ok(const struct kvt_core *core);

const struct kvt_counters *kvt_core_counters(const struct kvt_core *core);
/** Starts of the daemon so far, this one included. */
struct kvt_starts kvt_core_starts(const struct kvt_core *core);
/** Count the start of a new core. `before`: what was counted until then. */
void kvt_core_count_start(struct kvt_core *core, const struct kvt_starts *before,
			  enum kvt_cold_cause cause);
/** Read the starts of a cache that is not continued. Zero unless both objects are of this build. */
struct kvt_starts kvt_core_starts_of(const void *arena, uint64_t arena_bytes, const void *ledger,
				     uint64_t ledger_bytes);
/** Counts of what a session asked for and got; session 0: the instance's refusals, and 0 else. */
const struct kvt_tally *kvt_core_tally(const struct kvt_core *core, uint32_t session);
const struct kvt_arena_header *kvt_core_arena(const struct kvt_core *core);
const struct kvt_ledger_header *kvt_core_ledger(const struct kvt_core *core);

/** Work of the last operation, for tests of the O(1) claims and statistics. */
const struct kvt_core_effort *kvt_core_effort(const struct kvt_core *core);

/** Display: fill one record; false if there is none at this index. */
bool kvt_core_describe_namespace(const struct kvt_core *core, uint32_t namespace_id,
				 struct kvt_admin_namespace *ret_namespace);
bool kvt_core_describe_page(const struct kvt_core *core, uint32_t page,
			    struct kvt_admin_page *ret_page);
/** Oldest live BEGIN or MATCH lease and the number of leases that can never commit again. O(1). */
void kvt_core_describe_leases(const struct kvt_core *core, uint64_t now_ns,
			      struct kvt_admin_status *status);

/** Name of an eviction policy: "lru". */
const char *kvt_policy_name(uint32_t policy);

#endif
