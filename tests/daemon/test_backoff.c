/* SPDX-License-Identifier: Apache-2.0 */
/* Pauses after failures, of the supervisor and of kvtstored. */
#include "daemon/keep/backoff.h"
#include "tests/lib/cases.h"

TEST(the_pause_doubles_with_each_failure_up_to_the_most)
{
	assert_int_equal(kvt_backoff_ns(0, 10, 1000), 0);
	assert_int_equal(kvt_backoff_ns(1, 10, 1000), 10);
	assert_int_equal(kvt_backoff_ns(2, 10, 1000), 20);
	assert_int_equal(kvt_backoff_ns(7, 10, 1000), 640);
	assert_int_equal(kvt_backoff_ns(8, 10, 1000), 1000);
	assert_int_equal(kvt_backoff_ns(UINT32_MAX, 10, 1000), 1000);
}
