/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_DAEMON_SERVE_SHARE_H
#define KVT_DAEMON_SERVE_SHARE_H

/**
 * @file share.h
 * Fair scheduling of the serving thread between sessions.
 *
 * A turn runs at most a few entries of a session. Their cost is the time they took, in cycles.
 * `spent` of a session is its cycles so far. `floor` is the least `spent` among those with work. A
 * session that is ahead of the floor by more than KVT_SHARE_LEAD_US waits. One that was idle
 * restarts at the floor.
 *
 *      spent    A ─────────────────────────┐ waits until the floor is near
 *               B ──────┐                  .
 *             floor     |<---- lead ---->| .
 *
 * An entry cannot be interrupted. So sessions with long entries share half of the time, however
 * many they are. A session is in one of two classes, *light* or *heavy*. A run of its entries above
 * KVT_SHARE_HEAVY_US adds one to its weight, a shorter one takes two off. Runs are counted because
 * a busy host preempts some. Between the classes the same rule holds: `spent` of a class is the sum
 * of its sessions'.
 *
 * A client that waits for each answer has no work right after it. So a class that had an entry
 * within KVT_SHARE_GRACE_US keeps its time: while only the other has work, the floor rises at a
 * quarter of the clock. Else each operation of a light client would wait for half a long entry.
 * Within a class no time is kept: one class alone never leaves the daemon idle.
 */

#include <stdbool.h>
#include <stdint.h>

#define KVT_SHARE_LEAD_US 20
#define KVT_SHARE_GRACE_US 200
#define KVT_SHARE_MOST_US 1000 /* charged for one run: beyond it, mostly preempted */
#define KVT_SHARE_HEAVY_US 20
#define KVT_SHARE_WEIGHT 4

enum kvt_share_class { KVT_SHARE_LIGHT, KVT_SHARE_HEAVY, KVT_SHARE_CLASSES };

/** A class, and what its sessions have used. Times in cycles. */
struct kvt_account {
	uint64_t limit; /* its sessions with more `spent` wait; 0: all wait */
	uint64_t least; /* least `spent` of the sessions that had an entry in this turn */
	uint64_t next;  /* least `spent` of the sessions that waited */
	uint64_t floor; /* least `spent` among its sessions with work */
	uint64_t spent; /* time that its sessions used */
	uint64_t seen;  /* stamp of its last entry */
	uint32_t n_sessions;
};

/** A session's part. */
struct kvt_session_share {
	struct kvt_account *account; /* account of its class */
	uint64_t spent;              /* cycles, on the clock of account->floor */
	uint32_t weight;             /* 0: light; KVT_SHARE_WEIGHT: heavy; else as before */
};

struct kvt_shares {
	struct kvt_account accounts[KVT_SHARE_CLASSES];
	bool both; /* both classes have sessions */
	uint64_t floor, stamp;
	uint64_t lead, grace, most, heavy; /* cycles */
};

void kvt_shares_init(struct kvt_shares *shares, uint64_t cycles_per_us);
/** Begin with a session, as a light one, or end with it. */
void kvt_share_begin(struct kvt_shares *shares, struct kvt_session_share *share);
void kvt_share_end(struct kvt_shares *shares, struct kvt_session_share *share);
/** Recompute floor and limits after a turn with both classes. */
void kvt_shares_settle(struct kvt_shares *shares, uint64_t stamp);
/** Move a session to its other class. */
void kvt_share_move(struct kvt_shares *shares, struct kvt_session_share *share);

/** Charge a session for a look at its fences. Its class keeps no time for it. */
static inline void kvt_share_spend(const struct kvt_shares *shares,
				    struct kvt_session_share *share, uint64_t cycles)
{
	struct kvt_account *account = share->account;

	if (cycles > shares->most)
		cycles = shares->most;
	if (share->spent < account->floor)
		share->spent = account->floor;
	share->spent += cycles;
	account->spent += cycles;
}

/** Charge a session for a run of entries, and find its class. `woken` is the part of `cycles` that
 * woke the client, which is no cost of an entry. */
static inline void kvt_share_ran(struct kvt_shares *shares, struct kvt_session_share *share,
				 uint64_t cycles, uint64_t woken)
{
	bool is_heavy = share->account == &shares->accounts[KVT_SHARE_HEAVY];

	kvt_share_spend(shares, share, cycles);
	if (share->spent < share->account->least)
		share->account->least = share->spent;
	if (cycles > shares->heavy + woken)
		share->weight += share->weight < KVT_SHARE_WEIGHT;
	else
		share->weight -= share->weight < 2 ? share->weight : 2;
	if (__builtin_expect(share->weight == (is_heavy ? 0 : KVT_SHARE_WEIGHT), 0))
		kvt_share_move(shares, share);
}

/** True if the session must wait. */
static inline bool kvt_share_waits(const struct kvt_session_share *share)
{
	struct kvt_account *account = share->account;

	if (__builtin_expect(share->spent <= account->limit, 1))
		return false;
	if (share->spent < account->next)
		account->next = share->spent;
	return true;
}

/** Recompute the account's floor and limit after a turn. */
static inline void kvt_share_turn(struct kvt_account *account, uint64_t lead)
{
	uint64_t least = account->least != UINT64_MAX ? account->least : account->next;

	if (least == UINT64_MAX)
		return;
	if (least > account->floor)
		account->floor = least;
	account->limit = account->floor + lead;
	account->least = account->next = UINT64_MAX;
}

/** End a turn with one class. */
static inline void kvt_shares_turn(struct kvt_shares *shares)
{
	for (int i = 0; i < KVT_SHARE_CLASSES; i++)
		kvt_share_turn(&shares->accounts[i], shares->lead);
}

#endif
