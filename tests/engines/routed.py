# SPDX-License-Identifier: Apache-2.0
"""Tests that hold for all that publishes a pool's KV events to a real router's index, without an
engine: test_indexer.py of each kind imports these. Fixture `worker_class`: a publisher of a
namespace, as an engine has one."""
import random

import pytest
from conftest import PAGE
from indexer import expect_index, indexer  # noqa: F401

from kvtrunk import testing

PAGES = 128


class Pool:
    """A daemon, one client that caches, and two that publish."""

    def __init__(self, daemon, indexer, worker_class):
        self.daemon, self.indexer = daemon, indexer
        self.chance = random.Random(1)
        self.heads = [self.tokens(200) for _ in range(4)]
        self.connect()
        self.workers = {number: worker_class(daemon, indexer, number, self.space)
                        for number in (1, 2)}

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
def pool(indexer, worker_class):  # noqa: F811
    with testing.daemon(supervise=True, page_size=PAGE, page_bytes=1024, n_pages=PAGES,
                        feed_bytes="64K") as daemon:
        made = Pool(daemon, indexer, worker_class)
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
