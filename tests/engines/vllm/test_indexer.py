# SPDX-License-Identifier: Apache-2.0
"""A real router's index of what kvtrunk.events publishes, without engines: two publishers of one
pool, as two engines have them."""
import random

import pytest
from conftest import PAGE
from engine import until
from indexer import expect_index, free_port, indexer  # noqa: F401

from kvtrunk import events, testing

PAGES = 128


class Worker:
    """What an engine of one's own has for routers."""

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


class Pool:
    """A daemon, one client that caches, and two that publish."""

    def __init__(self, daemon, indexer):
        self.daemon, self.indexer = daemon, indexer
        self.chance = random.Random(1)
        self.heads = [self.tokens(200) for _ in range(4)]
        self.connect()
        self.workers = {number: Worker(daemon, indexer, number, self.space) for number in (1, 2)}

    def tokens(self, n):
        return [self.chance.randrange(1000) for _ in range(n)]

    def connect(self):
        self.client = self.daemon.connect()
        self.space = self.client.namespace(model="indexer")

    def cache(self, turns, publish=True):
        for _ in range(turns):
            text = self.chance.choice(self.heads)[:self.chance.randrange(200)] + self.tokens(
                self.chance.randrange(1, 200))
            with self.space.begin(text, full=True) as seq:
                seq.end(len(text))
            if publish:
                self.publish()

    def publish(self):
        for worker in self.workers.values():
            worker.publish()

    def expect(self):
        """Returns how many pages are cached."""
        return expect_index(self.indexer, self.daemon, self.workers, meanwhile=self.publish)

    def close(self):
        for number, worker in self.workers.items():
            self.indexer.unregister(number)
            worker.close()
        self.client.close()


@pytest.fixture
def pool(indexer):  # noqa: F811
    with testing.daemon(supervise=True, page_size=PAGE, page_bytes=1024, n_pages=PAGES,
                        feed_bytes="64K") as daemon:
        made = Pool(daemon, indexer)
        yield made
        made.close()


def test_the_index_of_each_is_the_pool(pool):
    pool.cache(60)
    assert pool.client.stats().evicted_pages > 0
    assert pool.expect() > PAGES // 2
    assert pool.client.evict(20) == 20
    assert pool.expect() > 0
    pool.client.reset()
    pool.cache(3)
    assert pool.expect() > 0


def test_a_lost_feed_ends_with_the_pool(pool):
    pool.cache(10)
    pool.cache(200, publish=False)
    pool.cache(5)
    assert pool.expect() > PAGES // 2


def test_a_publisher_that_starts_again_is_heard(pool):
    """A router ignores sequence numbers that it has seen."""
    pool.cache(20)
    assert pool.expect() > 0
    pool.workers[1].close()
    pool.cache(20, publish=False)
    pool.workers[1].begin()
    pool.cache(5)
    assert pool.expect() > PAGES // 2


def test_the_index_follows_the_daemon(pool):
    pool.cache(20)
    before = pool.expect()
    pool.daemon.kill()
    assert pool.expect() == before
    pool.client.close()
    pool.daemon.restart()
    pool.connect()
    pool.cache(2)
    assert 0 < pool.expect() < before


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
