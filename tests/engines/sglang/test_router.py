# SPDX-License-Identifier: Apache-2.0
"""A real router's index of two whole SGLang engines on one pool."""
import router
from router import indexer, join, pool, workers  # noqa: F401

test_what_a_computed_is_found_for_b = router.test_what_a_computed_is_found_for_b
test_evictions_leave_the_index_of_each = router.test_evictions_leave_the_index_of_each
test_a_daemon_that_is_killed_keeps_the_index = router.test_a_daemon_that_is_killed_keeps_the_index
