/* SPDX-License-Identifier: Apache-2.0 */
/* What a store counts. */
#include "base/store.h"
#include "store/times.h"
#include "tests/lib/cases.h"

TEST(a_share_of_the_times_is_told_by_the_end_of_its_bucket)
{
	struct kvt_store_time time = { .sum_ns = 0 };

	assert_int_equal(kvt_store_time_ns(&time, 0.5), 0);
	kvt_store_time_add(&time, 0);
	kvt_store_time_add(&time, 16383);
	assert_int_equal(time.buckets[0], 2);
	kvt_store_time_add(&time, 16384);
	kvt_store_time_add(&time, UINT64_MAX / 2);
	assert_int_equal(time.buckets[1], 1);
	assert_int_equal(time.buckets[KVT_STORE_TIME_BUCKETS - 1], 1);
	assert_int_equal(time.sum_ns, 2 * 16383ull + 1 + UINT64_MAX / 2);
	assert_int_equal(kvt_store_time_ns(&time, 0.5), 16384);
	assert_int_equal(kvt_store_time_ns(&time, 0.75), 2 * 16384);
	assert_int_equal(kvt_store_time_ns(&time, 0.99), UINT64_MAX); /* it has no end */
}
