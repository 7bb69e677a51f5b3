# SPDX-License-Identifier: Apache-2.0
"""Sequences in an event loop."""
import asyncio
import gc
import warnings

import pytest

import kvtrunk
from kvtrunk import testing

N = 1000


def run(main):
    return asyncio.run(asyncio.wait_for(main, 600))


@pytest.fixture(scope="module")
def large():
    with testing.daemon(n_pages=20000, page_bytes=64, max_leases=0) as daemon:
        yield daemon


@pytest.fixture
def ns(large):
    with large.connect() as client:
        yield client.namespace(salt="async")
        client.namespace(salt="async").remove_all()
        assert client.stats().live_leases == 0 and client.stats().private_pages == 0


def test_a_life_awaited(ns):
    async def main():
        async with await ns.begin_async(range(100), 20) as seq:
            assert (seq.matched, seq.next, seq.known, len(seq.pages)) == (0, 0, 100, 8)
            await seq.commit(50, chunked=True)
            assert seq.next == 50
            await seq.commit(100)
            await seq.extend(30)
            assert len(seq.pages) == 10
            await seq.commit(103, [7, 8, 9, 10])
            assert seq.known == 104 and seq.next == 103
            with pytest.raises(kvtrunk.InvalidArgument):
                await seq.commit(10000)
            await seq.end(112, range(20, 28))
            assert seq.ended
            await seq.end()
        grown = [*range(100), 7, 8, 9, 10, *range(20, 28)]
        assert ns.match(grown).positions == 112
        again = await ns.begin_async(grown, full=True)
        assert again.reusable == 112
        again.end_nowait()
        with pytest.raises(kvtrunk.Closed):
            await again.commit(112)

    run(main())


def test_a_thousand_in_flight(ns):
    """All begin before the first commits: they hold their pages at the same time."""
    begun, pages = [], set()

    async def one(number, gate):
        async with await ns.begin_async([number] * 100, extra=28) as seq:
            begun.append(seq)
            if len(begun) == N:
                gate.set()
            await gate.wait()
            assert seq.next == 0 and len(seq.pages) == 8
            pages.update(seq.pages)
            await seq.commit(100)
            await seq.end(128, [number + 1] * 28)

    async def main():
        gate = asyncio.Event()
        await asyncio.gather(*(one(i, gate) for i in range(N)))

    run(main())
    assert len(pages) == 8 * N
    found = ns.match_many([[i] * 100 + [i + 1] * 28 for i in range(N)])
    assert {match.positions for match in found} == {128}


def test_waiting_for_others_does_not_stop_the_loop(large, ns):
    """A thousand wait for what another process computes; the loop runs on."""
    async def main():
        with large.connect() as other:
            theirs = other.namespace(salt="async")
            before = other.stats().waits
            with theirs.begin(range(320)) as seq:
                waiting = [asyncio.ensure_future(ns.begin_async(range(320), 1))
                           for _ in range(100)]
                while other.stats().waits < before + 30:
                    await asyncio.sleep(0)
                assert not any(each.done() for each in waiting)
                waiting[5].cancel()
                waiting[99].cancel()
                # Calls that wait may take the loop's wake-up.
                assert ns.match(range(320)).positions == 0
                seq.commit(320)
            done = await asyncio.gather(*waiting, return_exceptions=True)
            assert sum(isinstance(each, asyncio.CancelledError) for each in done) == 2
            for each in done:
                if isinstance(each, kvtrunk.AsyncSequence):
                    assert each.reusable == 304
                    await each.end()

    run(main())


def test_cancelled_begins_hold_nothing(ns):
    async def main():
        for turns in range(6):
            tasks = [asyncio.ensure_future(ns.begin_async([i] * 50)) for i in range(300)]
            for _ in range(turns):
                await asyncio.sleep(0)
            for task in tasks:
                task.cancel()
            done = await asyncio.gather(*tasks, return_exceptions=True)
            for each in done:
                if isinstance(each, kvtrunk.AsyncSequence):
                    each.end_nowait()
            (await ns.begin_async([1])).end_nowait()
        while ns._client.stats().live_leases:
            await asyncio.sleep(0)

    run(main())


def test_what_is_dropped_is_ended(ns):
    async def main():
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            seq = await ns.begin_async(range(50))
            del seq
            gc.collect()
        assert [each.category for each in caught] == [ResourceWarning]
        async with await ns.begin_async([7]):
            pass
        while ns._client.stats().live_leases:
            await asyncio.sleep(0)

    run(main())


def test_errors_are_those_of_waiting_calls(ns):
    async def main():
        with pytest.raises(kvtrunk.NoSpace, match="pages needed") as caught:
            await ns.begin_async(range(16), extra=1 << 20)
        assert caught.value.needed > 60000
        with pytest.raises(TypeError):
            await ns.begin_async("text")
        seq = await ns.begin_async(range(64))
        await seq.commit(32)
        ns.remove(range(16))
        with pytest.raises(kvtrunk.Stale):
            await seq.commit(48)
        with pytest.raises(kvtrunk.Stale):
            await seq.commit(64)
        assert seq.next == 64
        seq.end_nowait()
        seq = await ns.begin_async(range(32))
        first = asyncio.ensure_future(seq.commit(16, fence=(2, 10**6)))
        second = asyncio.ensure_future(seq.commit(32))
        (await ns.begin_async([1])).end_nowait()
        assert not first.done() and not second.done() and seq.next == 32
        ns._client.raise_fence(2, 10**6)
        await first
        await second
        await seq.end()

    run(main())


def test_one_client_in_several_loops_one_after_the_other(ns):
    async def main():
        async with await ns.begin_async(range(32)) as seq:
            await seq.commit(32)

    for _ in range(3):
        run(main())


def test_a_lost_daemon_fails_what_waits():
    async def main():
        with testing.daemon() as daemon, daemon.connect() as client, daemon.connect() as other:
            seq = other.namespace().begin(range(320))
            ns = client.namespace()
            waiting = [asyncio.ensure_future(ns.begin_async(range(320))) for _ in range(5)]
            while other.stats().waits < 5:
                await asyncio.sleep(0)
            daemon.kill()
            done = await asyncio.gather(*waiting, return_exceptions=True)
            assert [type(each) for each in done] == [kvtrunk.ConnectionLost] * 5
            with pytest.raises(kvtrunk.ConnectionLost):
                await ns.begin_async([1])
            with pytest.raises(kvtrunk.ConnectionLost):
                seq.end()

    run(main())


def test_closing_fails_what_waits(large):
    async def main():
        client = large.connect()
        with large.connect() as other:
            before = other.stats().waits
            with other.namespace().begin(range(320)):
                waiting = asyncio.ensure_future(client.namespace().begin_async(range(320)))
                while other.stats().waits == before:
                    await asyncio.sleep(0)
                client.close()
                with pytest.raises(kvtrunk.Closed):
                    await waiting

    run(main())
