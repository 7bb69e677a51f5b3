# SPDX-License-Identifier: Apache-2.0
"""Side pages of sequences, in calls and in an event loop: a point is found where it was made, and a
page that the tree did not take is free after the end."""
import asyncio
import gc
import re
import warnings

import pytest

import kvtrunk
from kvtrunk import Request, testing
from kvtrunk._native import lib

PAGE = 16
TOKENS = list(range(64))


@pytest.fixture(scope="module")
def sided():
    with testing.daemon(page_size=PAGE, n_pages=256, sides="2,1",
                        coalesce_threshold=0) as daemon:
        yield daemon


@pytest.fixture
def client(sided):
    with sided.connect(sides=(2, 1)) as client:
        yield client
        client.namespace().remove_all()
        assert await_private(client) == 0 and client.stats().live_leases == 0


def await_private(client):
    """Private pages, when all that was submitted has taken effect."""
    client.call(Request("nop"))
    return client.stats().private_pages


def point(client, seq, last):
    """Attach both kinds for a point behind page `last`."""
    pages = client.alloc(3).tolist()
    for index, kind, page in zip((last - 1, last, last), (0, 0, 1), pages):
        seq.attach(index, kind, page)
    return pages


def run(main):
    return asyncio.run(asyncio.wait_for(main, 600))


def test_a_sequence_begins_behind_the_last_point(sided, client):
    ns = client.namespace()
    with ns.begin(TOKENS) as seq:
        assert list(seq.sides(0)) == list(seq.sides(7)) == []
        pages = point(client, seq, 1)
        seq.commit(32)
        seq.commit(64)
    assert "4 pages *32 " in sided.kvtctl("tree")
    assert re.search(r"^  cached sides +3 ", sided.kvtctl("status"), re.M)
    found = ns.match(TOKENS)
    assert (found.positions, found.usable) == (64, 32)
    assert [match.usable for match in ns.match_many([TOKENS, TOKENS[:16]])] == [32, 0]
    with ns.begin(TOKENS + [7]) as seq:
        assert (seq.matched, seq.reusable, seq.next) == (64, 32, 32)
        assert (seq.sides(0).tolist(), seq.sides(1).tolist()) == (pages[:2], pages[2:])
        assert seq.sides(0).readonly
        pages = point(client, seq, 3)
        seq.end(64)
    assert client.stats().side_pages == 6
    with ns.begin(TOKENS + [7]) as seq:
        assert seq.next == 64 and seq.sides(1).tolist() == pages[2:]
        point(client, seq, 3)
        seq.commit_nowait(64)
        seq.attach(3, 1, 0)
        seq.end_nowait(64)
    assert await_private(client) == 0
    assert client.stats().side_pages == 5


def test_the_same_in_an_event_loop(client):
    ns = client.namespace()

    async def main():
        async with await ns.begin_async(TOKENS) as seq:
            assert list(seq.sides(0)) == list(seq.sides(-1)) == []
            pages = point(client, seq, 1)
            await seq.commit(32)
            await seq.commit(64)
            assert len(seq.pages) == 4
        seq = await ns.begin_async(TOKENS + [7])
        assert (seq.matched, seq.reusable) == (64, 32)
        assert (seq.sides(0).tolist(), seq.sides(1).tolist()) == (pages[:2], pages[2:])
        point(client, seq, 1)  # places that are taken
        await seq.commit(48)
        pages = point(client, seq, 3)
        await seq.end(64)
        seq = await ns.begin_async(TOKENS + [7])
        assert seq.next == 64 and seq.sides(1).tolist() == pages[2:]
        point(client, seq, 3)
        seq.end_nowait(64)
        point(client, again := await ns.begin_async(TOKENS + [7]), 3)
        again.end_nowait()
        (await ns.begin_async([1])).end_nowait()
        await asyncio.sleep(0)

    run(main())
    while await_private(client):
        pass
    assert client.stats().side_pages == 6


def test_what_is_let_go_can_be_evicted_under_a_lock(client):
    ns = client.namespace()

    async def main():
        async with await ns.begin_async(TOKENS) as seq:
            await asyncio.sleep(0)
            seq.let_go(3, 1)
            await seq.commit(64)
            assert client.stats().evictable_pages == 1

    with ns.begin(TOKENS) as seq:
        pages = point(client, seq, 3)
        seq.commit(64)
        assert client.stats().evictable_pages == 0
        for kind in 0, 1:
            seq.let_go(3, kind)
        seq.commit(64)
        assert client.stats().evictable_pages == 2
        with ns.begin(TOKENS + [7]) as other:
            assert other.sides(1).tolist() == pages[2:]
            assert client.stats().evictable_pages == 0
    run(main())
    lease = client.call(Request("begin", ns, TOKENS)).lease
    request = Request("commit", lease=lease, arg=64, sides=[(3, 0, kvtrunk.SIDE_LET)],
                      flags=lib.KVT_F_KEEP | lib.KVT_F_NO_LIST)
    client.call(request)
    assert client.stats().evictable_pages == 1
    client.call(Request("end", lease=lease))
    assert client.stats().evictable_pages == client.stats().cached_pages


def test_a_declared_point_holds_others_back_until_it_is_made(client, sided):
    ns = client.namespace()
    with sided.connect(sides=(2, 1)) as other, ns.begin(TOKENS, point=48) as seq:
        theirs = other.namespace()
        request = Request("begin", theirs, TOKENS[:48] + [7], flags=lib.KVT_F_NO_WAIT, ttl=30)
        answer = other.call(request)
        assert isinstance(answer.error, kvtrunk.Again) and answer.announced == 48
        point(client, seq, 2)
        seq.commit(48)
        with theirs.begin(TOKENS[:48] + [7], point=kvtrunk.JUNCTION) as second:
            assert second.reusable == 48


def test_what_is_refused_is_free_after_the_end(client):
    ns = client.namespace()
    with ns.begin(TOKENS) as seq:
        for attach in (4, 0, 1), (0, 2, 1), (0, 0, 256):
            with pytest.raises(kvtrunk.InvalidArgument):
                seq.attach(*attach)
        pages = point(client, seq, 3)
        seq.attach(0, 0, pages[0])
        with pytest.raises(kvtrunk.InvalidArgument) as caught:
            seq.commit(64)
        assert caught.value.reason == "page_twice"
        seq.commit(64)

    async def main():
        async with await ns.begin_async(TOKENS) as seq:
            for attach in (4, 0, 1), (0, 2, 1), (-1, 0, 1), (0, 0, 256):
                with pytest.raises(kvtrunk.InvalidArgument, match="attach"):
                    seq.attach(*attach)
            pages = point(client, seq, 3)
            seq.attach(0, 0, pages[0])
            with pytest.raises(kvtrunk.InvalidArgument):
                await seq.commit(64)
            await seq.commit(64)
        with pytest.raises(kvtrunk.Closed):
            seq.attach(0, 0, 0)

    run(main())
    while await_private(client):
        pass
    assert client.stats().side_pages == 0


def test_what_is_dropped_in_an_event_loop_is_freed(client):
    ns = client.namespace()

    async def main():
        seq = await ns.begin_async(TOKENS)
        point(client, seq, 3)
        await seq.commit(64)
        seq = await ns.begin_async(TOKENS)  # drops the first
        point(client, seq, 3)
        await seq.commit(64)
        point(client, seq, 2)
        with pytest.warns(ResourceWarning):
            del seq
            gc.collect()
        while client.stats().private_pages:
            (await ns.begin_async([1])).end_nowait()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        run(main())


@pytest.mark.parametrize("sides", [(0,), (1025,), (-1, 2), (1,) * 33])
def test_sides_that_no_daemon_has_are_refused(sided, sides):
    with pytest.raises(ValueError, match="up to 32 numbers from 1 to 1024"):
        sided.connect(sides=sides)


def test_a_daemon_without_sides_says_which_option(shared):
    with shared.connect(any_geometry=True) as client, client.namespace().begin(TOKENS) as seq:
        with pytest.raises(kvtrunk.InvalidArgument, match="lacks the option sides"):
            seq.attach(0, 0, client.alloc(1)[0])


def test_requests_name_side_pages_and_answers_list_them(client):
    ns = client.namespace()
    begun = client.call(Request("begin", ns, TOKENS))
    pages = client.alloc(3).tolist()
    sides = [(2, 0, pages[0]), (3, 0, pages[1]), (3, 1, pages[2])]
    answer = client.call(Request("commit", lease=begun.lease, arg=64, sides=sides,
                                 flags=lib.KVT_F_KEEP | lib.KVT_F_NO_LIST))
    assert list(answer.pages) == []
    again = client.call(Request("begin", ns, TOKENS + [7]))
    assert (again.reusable, again.sides.tolist()) == (64, pages)
    assert client.call(Request("match", ns, TOKENS)).usable == 64
    for lease in begun.lease, again.lease:
        client.call(Request("end", lease=lease))
