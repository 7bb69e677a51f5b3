# SPDX-License-Identifier: Apache-2.0
"""A real router's index of two vLLM engines on one pool: whole ones, and their schedulers and
publishers, whose model is chance."""
import random

import router
from engine import until
from indexer import expect_index, indexer  # noqa: F401
from router import join, pool, workers  # noqa: F401
from test_events import ask, pair

# In this order: a new epoch ends their sharing.
test_what_a_computed_is_found_for_b = router.test_what_a_computed_is_found_for_b
test_evictions_leave_the_index_of_each = router.test_evictions_leave_the_index_of_each
test_a_daemon_that_is_killed_keeps_the_index = router.test_a_daemon_that_is_killed_keeps_the_index
test_a_killed_engine_leaves_the_index_and_returns = (
    router.test_a_killed_engine_leaves_the_index_and_returns)
test_a_new_daemon_empties_the_index = router.test_a_new_daemon_empties_the_index
test_a_new_epoch_clears_the_index_of_one = router.test_a_new_epoch_clears_the_index_of_one


def test_the_index_of_each_is_the_pool(folder, monkeypatch, tmp_path, indexer):  # noqa: F811
    chance, workers = random.Random(2), {3: "a", 4: "b"}  # 1 and 2 are whole engines
    with pair(folder, monkeypatch, tmp_path) as (daemon, engines, _):
        for worker, name in workers.items():
            indexer.register(worker, f"ipc://{tmp_path}/{name}", f"ipc://{tmp_path}/{name}.replay")
        # The first message that an index gets shows it those before.
        until(lambda: ask(chance, engines, 3) or all(map(indexer.blocks, workers)))
        for _ in range(3):
            ask(chance, engines)
            assert expect_index(indexer, daemon, workers) > 0
        with daemon.connect() as client:
            assert client.stats().evicted_pages > 0
            client.reset()
        ask(chance, engines[:1], 5)
        assert expect_index(indexer, daemon, workers) > 0
        engines[0].theirs.shutdown()
        indexer.unregister(3)
        ask(chance, engines[1:], 20)
        assert expect_index(indexer, daemon, [4]) > 0
    indexer.unregister(4)
