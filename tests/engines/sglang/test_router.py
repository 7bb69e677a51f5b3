# SPDX-License-Identifier: Apache-2.0
"""A real router's index of two whole SGLang engines on one pool."""
import router
from router import indexer, join, pool, workers  # noqa: F401

# In this order: a new epoch ends their sharing.
test_what_a_computed_is_found_for_b = router.test_what_a_computed_is_found_for_b
test_evictions_leave_the_index_of_each = router.test_evictions_leave_the_index_of_each
test_a_daemon_that_is_killed_keeps_the_index = router.test_a_daemon_that_is_killed_keeps_the_index
test_a_killed_engine_leaves_the_index_and_returns = (
    router.test_a_killed_engine_leaves_the_index_and_returns)
test_a_new_daemon_empties_the_index = router.test_a_new_daemon_empties_the_index
test_a_new_epoch_clears_the_index_of_one = router.test_a_new_epoch_clears_the_index_of_one
