/* SPDX-License-Identifier: Apache-2.0 */

#include "daemon/serve/share.h"
#include "tests/lib/cases.h"

#define CYCLES_PER_US 1000u
#define LONG_US 100u

struct two {
	struct kvt_shares shares;
	struct kvt_session_share hog, small;
	uint64_t stamp;
};

static bool is_heavy(const struct two *two, const struct kvt_session_share *share)
{
	return share->account == &two->shares.accounts[KVT_SHARE_HEAVY];
}

/* A session that had enough long entries, and one with none. */
static int start(void **state)
{
	static struct two two;

	two = (struct two){ .stamp = 1 };
	kvt_shares_init(&two.shares, CYCLES_PER_US);
	kvt_share_begin(&two.shares, &two.hog);
	for (int i = 0; i < 10; i++)
		kvt_share_ran(&two.shares, &two.hog, LONG_US * CYCLES_PER_US, 0);
	kvt_share_begin(&two.shares, &two.small);
	assert_true(is_heavy(&two, &two.hog));
	assert_false(is_heavy(&two, &two.small));
	kvt_shares_settle(&two.shares, two.stamp);
	*state = &two;
	return 0;
}

/* A turn of one microsecond in which the small client wants nothing. Returns whether the hog may
 * run. */
static bool quiet_turn(struct two *two)
{
	bool waits = kvt_share_waits(&two->hog);

	two->stamp += CYCLES_PER_US;
	if (!waits)
		return true;
	kvt_shares_settle(&two->shares, two->stamp);
	return false;
}

static void both_ran_an_entry(struct two *two)
{
	kvt_share_ran(&two->shares, &two->small, CYCLES_PER_US, 0);
	kvt_share_ran(&two->shares, &two->hog, LONG_US * CYCLES_PER_US, 0);
	two->stamp += (LONG_US + 1) * CYCLES_PER_US;
	kvt_shares_settle(&two->shares, two->stamp);
}

/* A client that computes 50 us between two operations rarely meets a long one. */
TEST_WITH(time_is_kept_for_a_light_session_that_comes_back_soon, start, NULL)
{
	struct two *two = *state;
	uint64_t us = 0;

	both_ran_an_entry(two);
	while (!quiet_turn(two))
		if (++us % 50 == 0)
			kvt_share_ran(&two->shares, &two->small, CYCLES_PER_US, 0);
	assert_in_range(us, 2 * LONG_US, 5 * LONG_US);
}

TEST_WITH(nothing_is_kept_for_a_session_that_wants_nothing_for_long, start, NULL)
{
	struct two *two = *state;

	both_ran_an_entry(two);
	two->stamp += KVT_SHARE_GRACE_US * CYCLES_PER_US;
	assert_false(quiet_turn(two));
	assert_true(quiet_turn(two) || quiet_turn(two));
}

/* Its fence is polled in each turn, for as long as the GPU takes. */
TEST_WITH(nothing_is_kept_for_a_session_that_waits_for_a_fence, start, NULL)
{
	struct two *two = *state;
	uint64_t us = 0;

	both_ran_an_entry(two);
	do
		kvt_share_spend(&two->shares, &two->small, CYCLES_PER_US / 10);
	while (!quiet_turn(two) && ++us < 10 * KVT_SHARE_GRACE_US);
	assert_in_range(us, LONG_US, KVT_SHARE_GRACE_US + 2);
}

/* Give each session that need not wait an entry, all of the same length. */
static void turns(struct two *two, int n, uint32_t long_us, uint32_t *hog_ran, uint32_t *small_ran)
{
	for (int turn = 0; turn < n; turn++) {
		if (!kvt_share_waits(&two->small) && ++*small_ran)
			kvt_share_ran(&two->shares, &two->small, 10 * CYCLES_PER_US, 0);
		if (!kvt_share_waits(&two->hog) && ++*hog_ran)
			kvt_share_ran(&two->shares, &two->hog, long_us * CYCLES_PER_US, 0);
		two->stamp += 20 * CYCLES_PER_US;
		if (two->shares.both)
			kvt_shares_settle(&two->shares, two->stamp);
		else
			kvt_shares_turn(&two->shares);
	}
}

TEST_WITH(classes_share_time_by_what_they_use, start, NULL)
{
	struct two *two = *state;
	uint32_t hog_ran = 0, small_ran = 0;

	turns(two, 10000, LONG_US, &hog_ran, &small_ran);
	assert_in_range(small_ran, 9 * hog_ran, 11 * hog_ran);
}

/* What it used while alone was taken from no one. */
TEST_WITH(a_session_that_was_alone_owes_nothing_to_one_that_comes, start, NULL)
{
	struct two *two = *state;
	uint32_t hog_ran = 0, small_ran = 0;

	kvt_share_end(&two->shares, &two->small);
	for (int i = 0; i < 100000; i++) {
		kvt_share_ran(&two->shares, &two->hog, LONG_US * CYCLES_PER_US, 0);
		kvt_shares_turn(&two->shares);
	}
	kvt_share_begin(&two->shares, &two->small);
	turns(two, 1000, LONG_US, &hog_ran, &small_ran);
	assert_in_range(hog_ran, 50, 150);
	assert_in_range(small_ran, 500, 1000);
}

TEST_WITH(a_session_with_short_entries_is_light_again, start, NULL)
{
	struct two *two = *state;
	uint32_t ran = 0;

	while (is_heavy(two, &two->hog) && ++ran < 1000)
		kvt_share_ran(&two->shares, &two->hog, CYCLES_PER_US, 0);
	assert_in_range(ran, 2, 100);
	assert_false(two->shares.both);
}

/* Of each three runs one is preempted for a second; all wake a client, which takes long. */
TEST_WITH(a_busy_host_makes_no_session_heavy, start, NULL)
{
	struct two *two = *state;

	for (uint64_t i = 0; i < 1000; i++) {
		uint64_t us = i % 3 ? LONG_US : 1000000;

		kvt_share_ran(&two->shares, &two->small, us * CYCLES_PER_US,
			      LONG_US * CYCLES_PER_US);
		assert_false(is_heavy(two, &two->small));
	}
}

/* Within a class, each in its turn. */
TEST_WITH(sessions_of_one_class_share_time_by_what_they_use, start, NULL)
{
	struct two *two = *state;
	uint32_t hog_ran = 0, small_ran = 0;

	turns(two, 1000, 1, &hog_ran, &small_ran);
	assert_false(two->shares.both);
	hog_ran = small_ran = 0;
	turns(two, 10000, 15, &hog_ran, &small_ran);
	assert_false(two->shares.both);
	assert_in_range(2 * small_ran, 29 * hog_ran / 10, 31 * hog_ran / 10);
}
