/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "daemon/share.h"

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

/* A turn of a microsecond in which the small client wants nothing. Whether the hog may run. */
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

/* A client that computes for 50 us between two operations is beside a long one seldom. */
static void time_is_kept_for_a_uid_that_comes_back_soon(void **state)
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

static void nothing_is_kept_for_a_uid_that_wants_nothing_for_long(void **state)
{
	struct two *two = *state;

	both_ran_an_entry(two);
	two->stamp += KVT_SHARE_GRACE_US * CYCLES_PER_US;
	assert_false(quiet_turn(two));
	assert_true(quiet_turn(two) || quiet_turn(two));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(time_is_kept_for_a_uid_that_comes_back_soon, start,
						end),
		cmocka_unit_test_setup_teardown(
			nothing_is_kept_for_a_uid_that_wants_nothing_for_long, start, end),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
