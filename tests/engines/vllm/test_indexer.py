# SPDX-License-Identifier: Apache-2.0
"""A real router's index of what kvtrunk.events publishes."""
import pytest
from conftest import PAGE
from engine import until
from indexer import indexer  # noqa: F401
from routed import (PAGES, pool, test_a_lost_feed_ends_with_the_pool,  # noqa: F401
                    test_the_index_follows_the_daemon, test_the_index_of_each_is_the_pool)

from kvtrunk import events
from kvtrunk.engine._server import free_port


class Worker:
    """An engine of one's own as far as it publishes events for routers."""

    def __init__(self, daemon, indexer, number, space):
        self._daemon, self._space = daemon, space
        self._ports = [f"tcp://127.0.0.1:{free_port()}" for _ in range(2)]
        indexer.register(number, *self._ports)
        self.begin()

    def begin(self):
        self.source = events.Source(self._daemon.socket)
        self.source.share(self._space)
        self._publisher = events.Publisher(self._ports[0], PAGE, replay_endpoint=self._ports[1])

    def publish(self):
        self._publisher.publish(self.source.take())

    def close(self):
        self._publisher.close()
        self.source.close()


@pytest.fixture
def worker_class():
    return Worker


def test_a_publisher_that_starts_again_is_heard(pool):
    """A router ignores sequence numbers that it has seen."""
    pool.cache(20)
    assert pool.expect() > 0
    pool.workers[1].close()
    pool.cache(20, publish=False)
    pool.workers[1].begin()
    pool.cache(5)
    assert pool.expect() > PAGES // 2


def test_a_salt_is_asked_for(pool):
    text = pool.tokens(3 * PAGE)
    for worker in pool.workers.values():
        worker.source.share(pool.client.namespace(model="indexer", salt="one"),
                            events.Space(cache_salt="one"))
    with pool.client.namespace(model="indexer", salt="one").begin(text, full=True) as seq:
        seq.end(len(text))
    until(lambda: pool.publish() or pool.indexer.found(text, cache_salt="one") == {
        1: len(text), 2: len(text)})
    assert pool.indexer.found(text) == {}
