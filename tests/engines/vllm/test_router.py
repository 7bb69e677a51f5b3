# SPDX-License-Identifier: Apache-2.0
"""A real router's index of two vLLM engines on one pool: their schedulers and publishers, whose
model is chance."""
import random

from engine import until
from indexer import expect_index, indexer  # noqa: F401
from test_events import ask, pair


def test_the_index_of_each_is_the_pool(folder, monkeypatch, tmp_path, indexer):  # noqa: F811
    chance, workers = random.Random(2), {1: "a", 2: "b"}
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
        indexer.unregister(1)
        ask(chance, engines[1:], 20)
        assert expect_index(indexer, daemon, [2]) > 0
    indexer.unregister(2)
