/* SPDX-License-Identifier: Apache-2.0 */

#include "daemon/serve/readable.h"
#include "tests/lib/cases.h"

enum { FLOOD = 1000, ATTACKER = 65534, VICTIM = 1000, OTHER = 1001 };

static struct kvt_readables set;

static int start(void **state)
{
	kvt_readables_init(&set);
	return 0;
}

TEST_WITH(a_flood_of_one_uid_delays_another_by_one, start, NULL)
{
	static struct kvt_readable flood[FLOOD], victims[3];
	uint32_t taken = 0;

	for (uint32_t i = 0; i < FLOOD; i++)
		kvt_readable_add(&set, &flood[i], ATTACKER);
	for (uint32_t i = 0; i < 3; i++)
		kvt_readable_add(&set, &victims[i], VICTIM);
	for (uint32_t i = 0; i < 3; i++) {
		struct kvt_readable *one = kvt_readable_take(&set);

		if (one->uid == ATTACKER)
			one = kvt_readable_take(&set);
		assert_ptr_equal(one, &victims[i]);
	}
	while (set.filled)
		taken += kvt_readable_take(&set)->uid == ATTACKER;
	assert_in_range(taken, FLOOD - 3, FLOOD);
}

TEST_WITH(one_uid_is_served_in_order, start, NULL)
{
	static struct kvt_readable ones[3];

	for (uint32_t i = 0; i < 3; i++)
		kvt_readable_add(&set, &ones[i], VICTIM);
	assert_ptr_equal(kvt_readable_take(&set), &ones[0]);
	assert_false(ones[0].queued);
	kvt_readable_add(&set, &ones[0], VICTIM);
	kvt_readable_remove(&set, &ones[1]);
	kvt_readable_remove(&set, &ones[1]); /* it is not queued: nothing happens */
	assert_ptr_equal(kvt_readable_take(&set), &ones[2]);
	assert_ptr_equal(kvt_readable_take(&set), &ones[0]);
	assert_int_equal(set.filled, 0);
}

/* Uids of the first, a middle and the last queue. */
TEST_WITH(each_uid_gets_its_turn, start, NULL)
{
	static const uint32_t uids[3] = { KVT_READABLE_QUEUES, OTHER, KVT_READABLE_QUEUES - 1 };
	static struct kvt_readable ones[3][2];

	for (int i = 0; i < 3; i++)
		for (int k = 0; k < 2; k++)
			kvt_readable_add(&set, &ones[i][k], uids[i]);
	for (int k = 0; k < 2; k++) {
		uint32_t seen = 0;

		for (int i = 0; i < 3; i++)
			seen += kvt_readable_take(&set)->uid;
		assert_int_equal(seen, uids[0] + uids[1] + uids[2]);
	}
	assert_int_equal(set.filled, 0);
}
