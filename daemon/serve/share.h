/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_DAEMON_SERVE_SHARE_H
#define KVT_DAEMON_SERVE_SHARE_H

/**
 * @file share.h
 * Fair scheduling of the serving thread: between uids first, then between the sessions of each.
 *
 * A turn runs at most one entry of a session. Its cost is the time it took, in cycles, because a
 * client chooses more than its keys: missing pages in its memory cost time, too. Connections,
 * messages and fence polls are charged to their uid, so a flood of them uses up the same share.
 * `spent` of a session is its cycles so far; `spent` of a uid is the sum of its sessions' and its
 * own charges. `floor` is the least `spent` among those with work. One that is ahead of the floor
 * by more than KVT_SHARE_LEAD_US waits. One that was idle restarts at the floor.
 *
 *      spent    A ─────────────────────────┐ waits until the floor is near
 *               B ──────┐                  .
 *             floor     |<---- lead ---->| .
 *
 * A client that waits for each answer has no work right after it. So a uid that had an entry within
 * KVT_SHARE_GRACE_US keeps its time: while only others have work, the floor rises at a quarter of
 * the clock. An entry cannot be interrupted. If others ran all the time, each operation of the
 * small client would wait for half an entry of theirs. Between the sessions of one uid no time is
 * kept: one uid alone never leaves the daemon idle.
 */

#include <stdbool.h>
#include <stdint.h>

#define KVT_SHARE_LEAD_US 20
#define KVT_SHARE_GRACE_US 200
#define KVT_SHARE_MOST_US 1000 /* charged for one entry: beyond it, mostly preempted */
#define KVT_SHARE_LOOK_NS 500  /* a longer poll of a ring met a missing page */

/** A uid and what its sessions have used. */
struct kvt_account {
	uint64_t limit; /* its sessions with more `spent` wait; 0: all wait */
	uint64_t least; /* least `spent` of the sessions that had an entry in this turn */
	uint64_t next;  /* least `spent` of the sessions that waited */
	uint64_t floor; /* of its sessions */
	uint64_t spent; /* by its sessions, and charged to the uid */
	uint64_t seen;  /* when a session last had an entry */
	uint32_t uid;
	uint32_t n_served; /* sessions whose rings are looked at */
};

struct kvt_shares {
	struct kvt_account **served; /* those with n_served > 0 */
	uint32_t n_served;
	uint64_t floor, stamp;
	uint64_t lead, grace, most, look; /* cycles */
	struct kvt_account *accounts;
	uint32_t n_accounts; /* places */
};

/** -ENOMEM. */
int kvt_shares_init(struct kvt_shares *shares, uint32_t max_sessions, uint64_t cycles_per_us);
void kvt_shares_free(struct kvt_shares *shares);
/** Find or make the account of a uid. Valid until it has no served session. */
struct kvt_account *kvt_shares_account(struct kvt_shares *shares, uint32_t uid);
/** Count a served session in, or out (kvt_shares_leave()). */
void kvt_shares_join(struct kvt_shares *shares, struct kvt_account *account);
void kvt_shares_leave(struct kvt_shares *shares, struct kvt_account *account);
/** Charge a uid for work beside its entries: messages, connections. No effect without a session. */
void kvt_shares_charge_uid(struct kvt_shares *shares, uint32_t uid, uint64_t cycles);
/** Recompute floor and limits after a turn between several uids. */
void kvt_shares_settle(struct kvt_shares *shares, uint64_t stamp);

/** Charge an account that has a session. */
static inline void kvt_share_charge_account(const struct kvt_shares *shares,
					    struct kvt_account *account, uint64_t cycles)
{
	account->spent += cycles < shares->most ? cycles : shares->most;
}

/** Charge a session of `account`; *spent is the session's. */
static inline void kvt_share_charge(const struct kvt_shares *shares, struct kvt_account *account,
				    uint64_t *spent, uint64_t cycles)
{
	if (cycles > shares->most)
		cycles = shares->most;
	if (*spent < account->floor)
		*spent = account->floor;
	*spent += cycles;
	account->spent += cycles;
	if (*spent < account->least)
		account->least = *spent;
}

/** True if the session must wait. */
static inline bool kvt_share_waits(struct kvt_account *account, uint64_t spent)
{
	if (__builtin_expect(spent <= account->limit, 1))
		return false;
	if (spent < account->next)
		account->next = spent;
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

#endif
