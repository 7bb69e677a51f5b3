/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/serve/share.h"

#include "shm/assert.h"

#define KEPT_PART 4 /* while time is kept for others, the floor rises with clock / KEPT_PART */

void kvt_shares_init(struct kvt_shares *shares, uint64_t cycles_per_us)
{
	KVT_ASSERT(cycles_per_us > 0);
	*shares = (struct kvt_shares){
		.lead = KVT_SHARE_LEAD_US * cycles_per_us,
		.grace = KVT_SHARE_GRACE_US * cycles_per_us,
		.most = KVT_SHARE_MOST_US * cycles_per_us,
		.heavy = KVT_SHARE_HEAVY_US * cycles_per_us,
	};
	for (int i = 0; i < KVT_SHARE_CLASSES; i++)
		shares->accounts[i] = (struct kvt_account){ .floor = 1, .limit = 1 + shares->lead,
							    .least = UINT64_MAX,
							    .next = UINT64_MAX };
}

static struct kvt_account *other_of(struct kvt_shares *shares, const struct kvt_account *account)
{
	return &shares->accounts[account == shares->accounts ? KVT_SHARE_HEAVY : KVT_SHARE_LIGHT];
}

static void join(struct kvt_shares *shares, struct kvt_session_share *share,
		 struct kvt_account *account)
{
	const struct kvt_account *other = other_of(shares, account);

	share->account = account;
	share->spent = account->floor;
	if (account->n_sessions++ || !other->n_sessions)
		return;
	/* A class that was alone took no time from the other: forgive its lead. */
	shares->floor = account->spent = other->spent;
	shares->both = true;
}

static void leave(struct kvt_shares *shares, const struct kvt_session_share *share)
{
	struct kvt_account *account = share->account, *other = other_of(shares, account);

	KVT_ASSERT(account->n_sessions > 0);
	KVT_ASSERT(shares->both == (other->n_sessions != 0));
	if (--account->n_sessions)
		return;
	shares->both = false;
	other->limit = other->floor + shares->lead; /* keep no time */
	account->limit = account->floor + shares->lead;
}

void kvt_share_begin(struct kvt_shares *shares, struct kvt_session_share *share)
{
	KVT_ASSERT(!share->account);
	share->weight = 0;
	join(shares, share, &shares->accounts[KVT_SHARE_LIGHT]);
}

void kvt_share_end(struct kvt_shares *shares, struct kvt_session_share *share)
{
	leave(shares, share);
	share->account = NULL;
}

void kvt_share_move(struct kvt_shares *shares, struct kvt_session_share *share)
{
	struct kvt_account *to = other_of(shares, share->account);

	leave(shares, share);
	join(shares, share, to);
}

void kvt_shares_settle(struct kvt_shares *shares, uint64_t stamp)
{
	uint64_t least = UINT64_MAX, next = UINT64_MAX, passed = stamp - shares->stamp;
	bool worked = false;

	shares->stamp = stamp;
	for (int i = 0; i < KVT_SHARE_CLASSES; i++) {
		struct kvt_account *account = &shares->accounts[i];

		if (account->least != UINT64_MAX)
			account->seen = stamp;
		worked |= account->least != UINT64_MAX;
		if (account->spent < shares->floor)
			account->spent = shares->floor;
		if (account->limit == 0 && account->next != UINT64_MAX)
			next = account->spent < next ? account->spent : next;
		else if (stamp - account->seen < shares->grace && account->spent < least)
			least = account->spent;
	}
	if (least == UINT64_MAX) { /* no class within its grace */
		if (next != UINT64_MAX)
			shares->floor = next;
	} else if (worked || next == UINT64_MAX) {
		shares->floor = least;
	} else {
		shares->floor += passed / KEPT_PART;
	}
	for (int i = 0; i < KVT_SHARE_CLASSES; i++) {
		struct kvt_account *account = &shares->accounts[i];
		bool ahead = account->spent > shares->floor + shares->lead;

		if (account->limit != 0)
			kvt_share_turn(account, shares->lead);
		account->least = account->next = UINT64_MAX;
		account->limit = ahead ? 0 : account->floor + shares->lead;
	}
}
