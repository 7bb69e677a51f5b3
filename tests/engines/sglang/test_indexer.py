# SPDX-License-Identifier: Apache-2.0
"""A real router's index of what SGLang's own publisher sends of a pool."""
import time

import pytest
from conftest import PAGE
from engine import until
from indexer import indexer  # noqa: F401
from routed import (pool, test_a_lost_feed_ends_with_the_pool,  # noqa: F401
                    test_the_index_follows_the_daemon, test_the_index_of_each_is_the_pool)
from sglang.srt.disaggregation.kv_events import (BlockRemoved, BlockStored, KVEventBatch,
                                                 ZmqEventPublisher)
from test_events import params

from kvtrunk.engine._server import free_port
from kvtrunk.sglang._events import Events


class Worker:
    """A scheduler as far as it publishes its cache's events."""

    def __init__(self, daemon, index, number, space):
        ports = free_port(), free_port()
        self._publisher = ZmqEventPublisher(0, *(f"tcp://*:{port}" for port in ports))
        index.register(number, *(f"tcp://127.0.0.1:{port}" for port in ports))
        # Until the index has connected, nothing arrives.
        first = BlockStored([1], None, [0] * PAGE, PAGE, None, "GPU")
        until(lambda: self._send([first]) or index.blocks(number) == 1)
        self._send([BlockRemoved([1], "GPU")])
        self.source = Events(params(page_size=PAGE), daemon.socket)
        self.source.share(space, None, None)

    def _send(self, found):
        if found:
            self._publisher.publish(KVEventBatch(ts=time.time(), events=found))

    def publish(self):
        self._send(self.source.take())

    def close(self):
        self._publisher.shutdown()
        self.source._source.close()


@pytest.fixture
def worker_class():
    return Worker
