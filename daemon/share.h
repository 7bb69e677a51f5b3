/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_DAEMON_SHARE_H
#define KVT_DAEMON_SHARE_H

/**
 * @file share.h
 * Whose entry runs next: the serving thread's time is shared between uids first, then between the
 * sessions of each.
 *
 * A turn runs at most one entry of a session. An entry's cost is the time that it took, in cycles
 * of the processor, because a client chooses more than its keys: pages of its memory that are
 * missing cost time, too. Each session has `spent` cycles so far and each uid the sum of its
 * sessions'. `floor` is the least of those that want something; one that is further ahead of it
 * than KVT_SHARE_LEAD_US waits, and one that wanted nothing for a while begins again at the floor.
 *
 *      spent    A ─────────────────────────┐ waits until the floor is near
 *               B ──────┐                  .
 *             floor     |<---- lead ---->| .
 *
 * A client that waits for each answer wants nothing in the moment after it. So the time of a uid
 * that had an entry within KVT_SHARE_GRACE_US is kept for it while others are ahead: the floor
 * then rises with a quarter of the clock. An entry cannot be interrupted, so half of it is what an
 * operation of the small client waits when it comes while one runs: that must be seldom. Between
 * the sessions of one uid nothing is kept: one uid alone never leaves the daemon idle.
 */

#include <stdbool.h>
#include <stdint.h>

#define KVT_SHARE_LEAD_US 20
#define KVT_SHARE_GRACE_US 200
#define KVT_SHARE_MOST_US 1000 /* of one entry: beyond it the thread was not running, mostly */
#define KVT_SHARE_LOOK_NS 500  /* a look at a ring that takes longer met a missing page */

/** A uid and what its sessions have used. */
struct kvt_account {
	uint64_t limit; /* sessions of it with more `spent` wait; 0: all of them */
	uint64_t least; /* least `spent` of the sessions that had an entry in this turn */
	uint64_t next;  /* and of those that were left out */
	uint64_t floor; /* of its sessions */
	uint64_t spent; /* by all of them */
	uint64_t seen;  /* when one of them had an entry */
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
/** The account of a uid, made if there is none. Valid until it serves no session. */
struct kvt_account *kvt_shares_account(struct kvt_shares *shares, uint32_t uid);
/** A session of it more, or less, whose ring is looked at. */
void kvt_shares_join(struct kvt_shares *shares, struct kvt_account *account);
void kvt_shares_leave(struct kvt_shares *shares, struct kvt_account *account);
/** A turn between several uids is over: see who may go on. */
void kvt_shares_settle(struct kvt_shares *shares, uint64_t stamp);

/** A session of `account`, with *spent so far, used so much more. */
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

/** Whether a session has to wait. */
static inline bool kvt_share_waits(struct kvt_account *account, uint64_t spent)
{
	if (__builtin_expect(spent <= account->limit, 1))
		return false;
	if (spent < account->next)
		account->next = spent;
	return true;
}

/** A turn is over: see which of the account's sessions may go on. */
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
