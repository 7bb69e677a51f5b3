/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/serve/share.h"

#include <errno.h>
#include <stdlib.h>

#include "shm/assert.h"

#define KEPT_PART 4 /* while time is kept for others, the floor rises with clock / KEPT_PART */

int kvt_shares_init(struct kvt_shares *shares, uint32_t max_sessions, uint64_t cycles_per_us)
{
	uint32_t places = max_sessions + 1; /* at most one uid per session */

	*shares = (struct kvt_shares){
		.served = calloc(places, sizeof(*shares->served)),
		.accounts = calloc(places, sizeof(*shares->accounts)),
		.n_accounts = places,
		.lead = KVT_SHARE_LEAD_US * cycles_per_us,
		.grace = KVT_SHARE_GRACE_US * cycles_per_us,
		.most = KVT_SHARE_MOST_US * cycles_per_us,
		.look = KVT_SHARE_LOOK_NS * cycles_per_us / 1000,
	};
	return shares->served && shares->accounts ? 0 : -ENOMEM;
}

void kvt_shares_free(struct kvt_shares *shares)
{
	free(shares->served);
	free(shares->accounts);
	*shares = (struct kvt_shares){ 0 };
}

struct kvt_account *kvt_shares_account(struct kvt_shares *shares, uint32_t uid)
{
	struct kvt_account *unused = NULL;

	for (uint32_t i = 0; i < shares->n_accounts; i++) {
		struct kvt_account *account = &shares->accounts[i];

		if (account->n_served && account->uid == uid)
			return account;
		if (!account->n_served && !unused)
			unused = account;
	}
	KVT_ASSERT(unused != NULL);
	*unused = (struct kvt_account){ .uid = uid, .floor = 1, .limit = 1 + shares->lead,
					.least = UINT64_MAX, .next = UINT64_MAX,
					.spent = shares->floor };
	return unused;
}

void kvt_shares_join(struct kvt_shares *shares, struct kvt_account *account)
{
	if (account->n_served++)
		return;
	KVT_ASSERT(shares->n_served < shares->n_accounts);
	/* A uid that was alone took no time from others: forgive its lead. */
	if (shares->n_served == 1)
		shares->floor = shares->served[0]->spent;
	shares->served[shares->n_served++] = account;
}

void kvt_shares_leave(struct kvt_shares *shares, struct kvt_account *account)
{
	uint32_t at = 0;

	KVT_ASSERT(account->n_served > 0);
	if (--account->n_served)
		return;
	while (shares->served[at] != account)
		at++;
	shares->served[at] = shares->served[--shares->n_served];
	if (shares->n_served == 1) { /* keep no time for others */
		account = shares->served[0];
		account->limit = account->floor + shares->lead;
	}
}

void kvt_shares_charge_uid(struct kvt_shares *shares, uint32_t uid, uint64_t cycles)
{
	for (uint32_t i = 0; i < shares->n_served; i++)
		if (shares->served[i]->uid == uid)
			kvt_share_charge_account(shares, shares->served[i], cycles);
}

void kvt_shares_settle(struct kvt_shares *shares, uint64_t stamp)
{
	uint64_t least = UINT64_MAX, next = UINT64_MAX, passed = stamp - shares->stamp;
	bool worked = false;

	shares->stamp = stamp;
	for (uint32_t i = 0; i < shares->n_served; i++) {
		struct kvt_account *account = shares->served[i];

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
	if (least == UINT64_MAX) { /* no uid within its grace */
		if (next != UINT64_MAX)
			shares->floor = next;
	} else if (worked || next == UINT64_MAX) {
		shares->floor = least;
	} else {
		shares->floor += passed / KEPT_PART;
	}
	for (uint32_t i = 0; i < shares->n_served; i++) {
		struct kvt_account *account = shares->served[i];
		bool ahead = account->spent > shares->floor + shares->lead;

		if (account->limit != 0)
			kvt_share_turn(account, shares->lead);
		account->least = account->next = UINT64_MAX;
		account->limit = ahead ? 0 : account->floor + shares->lead;
	}
}
