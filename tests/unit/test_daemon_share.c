/* SPDX-License-Identifier: Apache-2.0 */

#include "daemon/serve/share.h"
#include "tests/lib/cases.h"

#define CYCLES_PER_US 1000u
#define LONG_US 100u

struct two {
	struct kvt_shares shares;
	struct kvt_account *hog, *small;
	uint64_t hog_spent, small_spent, stamp;
};

static int start(void **state)
{
	static struct two two;

	two = (struct two){ .stamp = 1 };
	assert_int_equal(kvt_shares_init(&two.shares, 8, CYCLES_PER_US), 0);
	two.hog = kvt_shares_account(&two.shares, 1);
	kvt_shares_join(&two.shares, two.hog);
	two.small = kvt_shares_account(&two.shares, 2);
	kvt_shares_join(&two.shares, two.small);
	*state = &two;
	return 0;
}

static int end(void **state)
{
	kvt_shares_free(&((struct two *)*state)->shares);
	return 0;
}

/* A turn of one microsecond in which the small client wants nothing. Returns whether the hog may
 * run. */
static bool quiet_turn(struct two *two)
{
	bool waits = kvt_share_waits(two->hog, two->hog_spent);

	two->stamp += CYCLES_PER_US;
	if (!waits)
		return true;
	kvt_shares_settle(&two->shares, two->stamp);
	return false;
}

static void both_ran_an_entry(struct two *two)
{
	kvt_share_charge(&two->shares, two->small, &two->small_spent, CYCLES_PER_US);
	kvt_share_charge(&two->shares, two->hog, &two->hog_spent, LONG_US * CYCLES_PER_US);
	two->stamp += (LONG_US + 1) * CYCLES_PER_US;
	kvt_shares_settle(&two->shares, two->stamp);
}

/* A client that computes 50 us between two operations rarely meets a long one. */
TEST_WITH(time_is_kept_for_a_uid_that_comes_back_soon, start, end)
{
	struct two *two = *state;
	uint64_t us = 0;

	both_ran_an_entry(two);
	while (!quiet_turn(two))
		if (++us % 50 == 0)
			kvt_share_charge(&two->shares, two->small, &two->small_spent,
					 CYCLES_PER_US);
	assert_in_range(us, 2 * LONG_US, 5 * LONG_US);
}

TEST_WITH(nothing_is_kept_for_a_uid_that_wants_nothing_for_long, start, end)
{
	struct two *two = *state;

	both_ran_an_entry(two);
	two->stamp += KVT_SHARE_GRACE_US * CYCLES_PER_US;
	assert_false(quiet_turn(two));
	assert_true(quiet_turn(two) || quiet_turn(two));
}

TEST_WITH(what_is_done_beside_its_entries_is_charged_to_a_uid, start, end)
{
	struct two *two = *state;

	kvt_share_charge(&two->shares, two->small, &two->small_spent, CYCLES_PER_US);
	kvt_share_charge(&two->shares, two->hog, &two->hog_spent, CYCLES_PER_US);
	kvt_shares_charge_uid(&two->shares, 3, LONG_US * CYCLES_PER_US); /* it has no session */
	kvt_shares_settle(&two->shares, two->stamp += 2 * CYCLES_PER_US);
	assert_false(kvt_share_waits(two->hog, two->hog_spent));
	kvt_shares_charge_uid(&two->shares, 1, LONG_US * CYCLES_PER_US);
	kvt_share_charge(&two->shares, two->small, &two->small_spent, CYCLES_PER_US);
	kvt_shares_settle(&two->shares, two->stamp += 2 * CYCLES_PER_US);
	assert_true(kvt_share_waits(two->hog, two->hog_spent));
	assert_false(kvt_share_waits(two->small, two->small_spent));
}

/* What it used while alone was taken from no other uid. */
TEST_WITH(a_uid_that_was_alone_owes_nothing_to_one_that_comes, start, end)
{
	struct two *two = *state;
	uint32_t hog_ran = 0, small_ran = 0;

	kvt_shares_leave(&two->shares, two->small);
	for (int i = 0; i < 100000; i++) {
		kvt_share_charge(&two->shares, two->hog, &two->hog_spent, 10 * CYCLES_PER_US);
		kvt_share_turn(two->hog, two->shares.lead);
	}
	two->small = kvt_shares_account(&two->shares, 2);
	kvt_shares_join(&two->shares, two->small);
	/* It rests while the other uid, which has an entry in each turn, is served. */
	for (int turn = 0; turn < 1000; turn++) {
		if (!kvt_share_waits(two->small, two->small_spent) && ++small_ran)
			kvt_share_charge(&two->shares, two->small, &two->small_spent,
					 10 * CYCLES_PER_US);
		if (turn > 100 && !kvt_share_waits(two->hog, two->hog_spent) && ++hog_ran)
			kvt_share_charge(&two->shares, two->hog, &two->hog_spent,
					 10 * CYCLES_PER_US);
		two->stamp += 20 * CYCLES_PER_US;
		kvt_shares_settle(&two->shares, two->stamp);
	}
	assert_in_range(hog_ran, 400, 900);
	assert_in_range(small_ran, 500, 1000);
}
