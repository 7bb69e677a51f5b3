# SPDX-License-Identifier: Apache-2.0
"""A store beside a daemon: evicted pages come back, for begin() and for schedulers."""
import asyncio
import signal
import time
from array import array

import pytest
import stores

from kvtrunk import testing
from kvtrunk.engine._ring import WAIT_MS, Ring

N = 1024


def publish(namespace, tokens):
    with namespace.begin(tokens) as sequence:
        reused = sequence.reusable
        sequence.commit(len(tokens))
    return reused


@pytest.fixture
def daemon():
    with testing.daemon() as made:
        yield made


def test_begin_reuses_what_the_store_loads(daemon):
    with stores.running(daemon) as store, daemon.connect(fetch_wait=60) as client:
        namespace = client.namespace(model="store")
        assert publish(namespace, range(N)) == 0
        store.settled(N // 16)
        client.evict(4095)
        assert publish(namespace, range(N)) == N - 16
        store.settled(N // 16)
        client.evict(4095)
        with daemon.connect(fetch_wait=0) as other:
            assert publish(other.namespace(model="store"), range(N)) == 0


def test_a_begin_that_would_reuse_nothing_asks_no_store(daemon):
    with stores.running(daemon) as store, daemon.connect(fetch_wait=60) as client:
        namespace = client.namespace(model="store")
        publish(namespace, range(N))
        store.settled(N // 16)
        client.evict(4095)
        before = store.counts()["fetches"]
        for more in {"min_positions": N + 1}, {"force_miss": True}:
            namespace.begin(range(N), **more).end()

            async def begin(more=more):
                await (await namespace.begin_async(range(N), **more)).end()

            asyncio.run(begin())
        ring, keys = Ring(client), array("I", range(N))
        assert ring.fetch(namespace._id, keys, min_positions=N + 1) == 0
        assert store.counts()["fetches"] == before
        assert ring.fetch(namespace._id, keys, min_positions=N) > 0
        assert store.counts()["fetches"] == before + 1


def test_a_scheduler_fetches_when_a_request_arrives(daemon):
    with daemon.connect(fetch_wait=60) as client:
        namespace = client.namespace(model="store")
        assert not namespace.fetch(range(N))
        assert client.fetched() is None
    with stores.running(daemon) as store, daemon.connect(fetch_wait=60,
                                                         store=store.path) as client:
        namespace = client.namespace(model="store")
        publish(namespace, range(N))
        store.settled(N // 16)
        client.evict(4095)
        assert namespace.fetch(range(N), tag=7)
        fetched = None
        while fetched is None:
            fetched = client.fetched()
        assert fetched[:3] == (7, 0, N)
        store.settled(N // 16)
        assert namespace.match(range(N)).positions == N
        assert not namespace.fetch(range(N))


def test_a_point_comes_back_with_its_side_pages():
    tokens, pages = range(20 * 16 + 1), 20
    with testing.daemon(page_size=16, n_pages=256, sides="2,1") as sided, \
            stores.running(sided, "1M", "--load-percent=50") as store, \
            sided.connect(sides=(2, 1), fetch_wait=60) as client:
        namespace = client.namespace(model="store")
        with namespace.begin(tokens) as sequence:
            for index, kind, page in zip((18, 19, 19), (0, 0, 1), client.alloc(3).tolist()):
                sequence.attach(index, kind, page)
            sequence.end(len(tokens))
        store.settled(pages + 3)
        client.evict(255)
        assert namespace.match(tokens).positions == 0
        assert namespace.fetch(tokens)
        while (fetched := client.fetched()) is None:
            pass
        assert fetched.positions == pages * 16
        assert store.settled(pages + 3)["loaded_pages"] == pages + 3
        assert namespace.match(tokens).usable == pages * 16
        with namespace.begin(tokens) as sequence:
            assert sequence.next == pages * 16
            assert [len(sequence.sides(kind)) for kind in (0, 1)] == [2, 1]


def begin(ring, namespace, keys, wait_ms):
    """Begin when what others load of it is there, or too late."""
    begun = ring.begin(namespace._id, keys, 0, force_miss=False, wait_ms=wait_ms)
    while begun.lease is None:
        wait_ms = await_notice(ring, begun.ticket)
        begun = ring.begin(namespace._id, keys, 0, force_miss=False, wait_ms=wait_ms)
    return begun


def await_notice(ring, ticket):
    while (wait_ms := ring.notice(ticket)) is None:
        pass
    return wait_ms


def test_a_ring_s_begin_behind_a_fetch_reuses_what_is_loaded(daemon):
    keys = array("I", range(N))
    with stores.running(daemon) as store, daemon.connect(fetch_wait=60) as client:
        namespace, ring = client.namespace(model="store"), Ring(client)
        assert await_notice(ring, ring.fetch(namespace._id, keys)) == WAIT_MS  # it has nothing
        publish(namespace, keys)
        store.settled(N // 16)
        client.evict(4095)
        wait_ms = await_notice(ring, ring.fetch(namespace._id, keys))
        assert wait_ms == 1000 + N // 4 + 60_000
        begun = begin(ring, namespace, keys, 60000)
        assert begun.reusable == N - 16
        ring.end(begun.lease, None)
        assert ring.fetch(namespace._id, keys) == 0  # nothing is missing


def test_a_stopped_store_holds_a_ring_s_requests_back_three_times(daemon):
    with stores.running(daemon) as store, daemon.connect(fetch_wait=0.02) as client:
        namespace, ring = client.namespace(model="store"), Ring(client)
        while not (ticket := ring.fetch(namespace._id, array("I", range(N)))):
            pass  # until it is connected
        # It answers in turn, so it has answered that one, perhaps late: no miss counts any more.
        store.counts()
        store.counts()
        await_notice(ring, ticket)
        store.freeze()
        held, began = 0, time.monotonic()
        for i in range(6):
            begun = time.monotonic()
            ticket = ring.fetch(namespace._id, array("I", range(i, N + i)))
            if ticket:
                held += 1
                assert await_notice(ring, ticket) == WAIT_MS
                assert time.monotonic() - begun >= 0.02
        # Again after a second, which may have passed on a busy machine.
        assert held == 3 or (held > 3 and time.monotonic() - began > 1)


def test_a_fetch_that_is_given_up_leaves_nothing(daemon):
    with stores.running(daemon), daemon.connect(fetch_wait=60) as client:
        namespace, ring = client.namespace(model="store"), Ring(client)
        ring.give_up(ring.fetch(namespace._id, array("I", range(N))))
        while ring._given_up:
            ring.notice(0)
        assert not ring._notices
