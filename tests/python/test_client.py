# SPDX-License-Identifier: Apache-2.0
"""Connecting, sequences, matches, and every class of error."""
import asyncio
import contextlib
import errno
import gc
import json
import os
import pickle
import threading
import time
import warnings
from array import array

import pytest
import stores

import kvtrunk
from kvtrunk import _client, _errors, testing
from kvtrunk._native import ffi, lib
from conftest import GEOMETRY

CELL = [0]


@pytest.fixture
def ns(client):
    """A namespace that no other test has."""
    CELL[0] += 1
    return client.namespace(extra=CELL[0])


def leases(client):
    return client.stats().live_leases


def test_below_a_minimum_nothing_is_published_or_reused(client, ns):
    tokens = list(range(49))

    def reused(n, min_positions):
        with ns.begin(tokens[:n], min_positions=min_positions) as seq:
            seq.commit(n)
            return seq.reusable

    async def reused_async(n, min_positions):
        async with await ns.begin_async(tokens[:n], min_positions=min_positions) as seq:
            return seq.reusable

    assert reused(48, 49) == 0 and ns.match(tokens).positions == 0
    assert reused(49, 49) == 0 and ns.match(tokens).positions == 48
    assert reused(48, 49) == asyncio.run(reused_async(48, 49)) == 0
    assert reused(49, 49) == asyncio.run(reused_async(49, 49)) == 48
    tokens[20] = 99  # 16 of them match
    assert reused(49, 17) == 0 and reused(49, 16) == 48


def test_a_prompt_of_half_the_pool_begins_without_pages(client, ns):
    """Its keys are more than have slots: commits bring the others."""
    half = client.info.n_pages // 2 * 16
    tokens = list(range(half))
    client.evict(client.info.n_pages)
    with ns.begin(tokens, no_pages=True) as seq:
        assert (seq.reusable, seq.known, len(seq.pages)) == (0, half, 0)
        for computed in range(16, half + 1, 16):
            seq.extend(16)
            seq.commit(computed)
        assert seq.known == half and len(seq.pages) == half // 16
    assert ns.match(tokens).positions == half
    with ns.begin([*tokens, 1], no_pages=True) as seq:
        assert (seq.reusable, len(seq.pages)) == (half, half // 16)
    with pytest.raises(kvtrunk.InvalidArgument):
        ns.begin(tokens, extra=16, no_pages=True)
    client.evict(client.info.n_pages)


def test_two_of_half_the_pool_begin_without_pages_in_an_event_loop(client, ns):
    """The second one finds no slot: it announces nothing, and publishes all the same."""
    half = client.info.n_pages // 2 * 16 - 16
    client.evict(client.info.n_pages)

    async def begin(first):
        tokens = list(range(first, first + half))
        begun = asyncio.ensure_future(ns.begin_async(tokens, no_pages=True))
        await asyncio.sleep(0)
        tokens[:] = [0] * half  # copied before the first wait
        return await begun

    async def both():
        seqs = await asyncio.gather(begin(0), begin(half))
        assert [(seq.reusable, seq.known, len(seq.pages)) for seq in seqs] == [(0, half, 0)] * 2
        for seq in seqs:
            await seq.extend(half)
            for computed in half // 2, half:
                await seq.commit(computed)
            assert seq.known == half and len(seq.pages) == half // 16
            await seq.end()
        async with await ns.begin_async([*range(half), 1], no_pages=True) as seq:
            assert (seq.reusable, len(seq.pages)) == (half, half // 16)
        with pytest.raises(kvtrunk.InvalidArgument):
            await ns.begin_async(range(half), extra=16, no_pages=True)

    asyncio.run(both())
    for first in 0, half:
        assert ns.match(list(range(first, first + half))).positions == half
    client.evict(client.info.n_pages)


def test_a_sequence_lives_from_begin_to_end(client, ns):
    tokens = list(range(100))
    with ns.begin(tokens, extra=20) as seq:
        assert (seq.matched, seq.reusable, seq.announced, seq.next, seq.known) == (0, 0, 0, 0, 100)
        assert seq.pages.format == "I" and seq.pages.readonly
        assert len(seq.pages) == -(-120 // 16) and 0 not in seq.pages
        seq.commit(50, chunked=True)
        assert seq.next == 50
        seq.commit(100)
        table = seq.pages.tolist()
        seq.extend(30)
        assert seq.pages.tolist()[:8] == table and len(seq.pages) == 10
        stock = client.alloc(2)
        seq.extend_pages(stock)
        assert seq.pages.tolist()[10:] == stock.tolist()
        seq.commit(103, [7, 8, 9, 10])
        assert seq.known == 104
        seq.end(112, range(20, 28))
        assert seq.ended
    assert leases(client) == 0
    grown = tokens + [7, 8, 9, 10] + list(range(20, 28))
    found = ns.match(grown, lock=True)
    assert found.positions == 112 and found.lease.pages.tolist()[:6] == table[:6]
    assert leases(client) == 1
    found.lease.unlock()
    found.lease.unlock()
    with client.lock(found.handle) as lease:
        assert lease.pages.tolist()[:6] == table[:6]
    assert leases(client) == 0
    assert ns.probe(grown).positions <= 112
    with ns.begin(grown) as again:
        assert again.reusable == 96 and again.next == 96
    with ns.begin(grown, full=True) as again:
        assert again.reusable == 112
    with ns.begin(grown, force_miss=True) as again:
        assert again.reusable == 0
    ns.remove(tokens)
    assert ns.match(grown).positions == 80


def test_what_is_left_of_a_handle_and_of_the_pool(client, ns):
    ns.insert(range(160), client.alloc(10))
    found = ns.match(range(160))
    with pytest.raises(kvtrunk.Stale):
        while client.evict(1):
            client.lock(found.handle).unlock()
    with client.lock(found.handle, shorter=True) as lease:
        assert (lease.positions, len(lease.pages)) == (144, 9)
    pages = client.alloc((1 << 31) - 1, shorter=True)
    assert 0 < len(pages) < client.info.n_pages
    client.free(pages)


def test_commits_that_are_not_waited_for(client, ns):
    with ns.begin(range(160)) as seq:
        for end in range(16, 161, 16):
            seq.commit_nowait(end, fence=(3, end), chunked=True)
            assert seq.next == end
        assert ns.match(range(160)).positions == 0
        client.raise_fence(3, 80)
        while seq.poll() > 5:
            pass
        assert ns.match(range(160)).positions == 80
        client.raise_fence(3, 1000)
        seq.settle()
        assert ns.match(range(160)).positions == 160


def test_a_closed_namespace_gives_its_place_when_it_is_needed():
    with testing.daemon(max_namespaces=3) as daemon, daemon.connect() as client:
        for epoch in range(10):
            ns = client.namespace(extra=f"epoch {epoch}")
            with ns.begin(range(64)) as seq:
                assert seq.reusable == 0
                seq.commit(64)
                with pytest.raises(kvtrunk.Again, match="END and UNLOCK"):
                    ns.close()
            ns.close()
            with pytest.raises(kvtrunk.InvalidArgument):
                ns.match(range(64))
        last = client.namespace(extra="epoch 9")
        assert last._id == ns._id and last.match(range(64)).positions == 64
        client.namespace(extra="a")
        with pytest.raises(kvtrunk.NoSpace, match="max_namespaces=3") as caught:
            client.namespace(extra="b")
        assert caught.value.reason == "max_namespaces" and client.counters().refusals == 1


def test_processes_that_forget_at_the_same_time_share_again():
    with testing.daemon() as daemon, daemon.connect() as one, daemon.connect() as two:
        def salted(client, control):
            return client.namespace(extra="weights 1", salt=control.generation)

        controls = [each.namespace(extra="control") for each in (one, two)]
        salted(one, controls[0]).begin(range(64)).end(64)
        assert [control.generation for control in controls] == [0, 0]
        assert controls[0].renew() == 1
        assert salted(one, controls[0]).match(range(64)).positions == 0
        salted(one, controls[0]).begin(range(64)).end(64)
        assert salted(two, controls[1]).match(range(64)).positions == 64  # has not forgotten
        assert controls[1].renew() == 1 and controls[1].generation == 1
        assert salted(two, controls[1]).match(range(64)).positions == 64
        with daemon.connect() as late:
            assert late.namespace(extra="control").generation == 1
        assert controls[1].renew() == 2
        controls[0].close()
        with pytest.raises(kvtrunk.InvalidArgument, match="not open here"):
            controls[0].renew()


def test_namespaces_keep_apart(client):
    fields = [{}, {"salt": ""}, {"salt": 0}, {"salt": b"a"}, {"adapter": "a"}, {"extra": "a"},
              {"image": "a"}, {"model": "a"}, {"model": "a", "extra": "b"}, {"model": "ab"}]
    opened = [client.namespace(**each) for each in fields]
    assert len({each._id for each in opened}) == len(fields)
    with opened[3].begin(range(32)) as seq:
        seq.commit(32)
    assert [each.match(range(32)).positions for each in opened] == [0, 0, 0, 32, 0, 0, 0, 0, 0, 0]
    assert client.namespace(salt="a")._id == opened[3]._id
    opened[3].remove_all()
    assert opened[3].match(range(32)).positions == 0


def test_roots_keep_apart(client, ns):
    one, two = ns.root(1), ns.root(2**64 - 1)
    with one.begin(range(40), extra=8) as seq:
        seq.commit(40)
        seq.end(48, range(40, 48))
    roots = [ns, one, two, client.namespace(salt="other").root(1), ns.root(0)]
    assert [each.match(range(48)).positions for each in roots] == [0, 48, 0, 0, 0]
    assert [each.probe(range(48)).positions for each in roots] == [0, 48, 0, 0, 0]
    assert [found.positions for found in one.match_many([[], range(20), range(48)])] == [0, 16, 48]
    pages = client.alloc(3)
    assert two.insert(range(48), pages) == []
    client.submit([kvtrunk.Request("match", namespace=two, keys=range(48))])
    assert client.reap(1)[0].matched == 48

    async def again():
        seq = await two.begin_async(range(64))
        assert seq.reusable == 48
        await seq.end()
    asyncio.run(again())
    one.remove(range(1, 17))  # not a prefix
    one.remove(range(16))
    assert [each.match(range(48)).positions for each in roots] == [0, 0, 48, 0, 0]
    with pytest.raises(kvtrunk.InvalidArgument, match="whole namespace"):
        one.remove_all()
    ns.remove_all()
    assert two.match(range(48)).positions == 0
    for bad in (-1, 2**64):
        with pytest.raises(ValueError, match="root key"):
            ns.root(bad)
    assert "root 1" in repr(one)


def test_pages_without_sequences(client, ns):
    pages = client.alloc(4)
    assert isinstance(pages, array) and len(set(pages)) == 4
    assert ns.insert(range(64), pages) == []
    more = client.alloc(4)
    assert ns.insert(range(64), more) == list(zip(more, pages))
    client.free(more)
    assert ns.match(range(64)).positions == 64
    client.free(client.alloc(3))
    assert client.stats().private_pages == 0


def test_many_matches_at_a_time(client, ns):
    with ns.begin(range(320)) as seq:
        seq.commit(320)
    prompts = [range(n) for n in range(0, 321, 1)]
    found = ns.match_many(prompts)
    assert [match.positions for match in found] == [n // 16 * 16 for n in range(321)]
    found = ns.match_many(prompts[::16], lock=True)
    assert leases(client) == 21
    for match in found:
        match.lease.unlock()
    assert leases(client) == 0
    with pytest.raises(ValueError):
        ns.match_many([[1], [-1]])
    assert ns.match_many([]) == []


def test_submit_and_reap(client, ns):
    requests = [kvtrunk.Request("match", ns, keys=range(16 * i), tag=f"m{i}") for i in range(5)]
    assert client.submit(requests) == 5
    answers = client.reap(min=5)
    assert sorted(answer.tag for answer in answers) == [f"m{i}" for i in range(5)]
    assert client.reap() == [] and client.reap(min=3) == []
    assert client.submit([kvtrunk.Request("alloc", arg=3)]) == 1
    pages = client.reap(min=1)[0].pages
    assert client.submit([kvtrunk.Request("free", pages=pages), kvtrunk.Request("nop")]) == 2
    assert [answer.error for answer in client.reap(min=2)] == [None, None]
    assert client.submit([kvtrunk.Request("free", pages=[0])]) == 1
    refused = client.reap(min=1)[0]
    assert isinstance(refused.error, kvtrunk.Error) and refused.error.reason == "page_range"
    assert client.submit(kvtrunk.Request("nop", tag=i) for i in range(10000)) >= 64
    while client.reap(min=1):
        pass
    with pytest.raises(ValueError, match="no operation 'dance'"):
        client.submit([kvtrunk.Request("dance")])


def test_a_client_is_closed_with_answers_that_none_took(shared):
    with shared.connect(any_geometry=True, sq_entries=8, cq_entries=8) as other:
        while other.submit([kvtrunk.Request("alloc", arg=1)]):
            pass


def test_a_notice_follows_a_begin_that_does_not_wait(shared, client, ns):
    with shared.connect(any_geometry=True) as other:
        theirs = other.namespace(extra=CELL[0])
        request = kvtrunk.Request("begin", theirs, keys=range(320), flags=lib.KVT_F_NO_WAIT, ttl=60,
                                  tag="held")
        with ns.begin(range(320)) as seq:
            other.submit([request])
            first = other.reap(min=1)[0]
            assert first.tag == "held" and isinstance(first.error, kvtrunk.Again)
            assert first.announced == 320 or first.error.reason == "announced"
            seq.commit(320)
            notice = other.reap(min=1)[0]
            assert notice.tag == "held" and notice.error is None
            assert notice.state == lib.KVT_NOTICE_SEALED and notice.flags & lib.KVT_CQE_ASYNC


def test_a_wait_lets_other_threads_run(shared, client, ns):
    """With the interpreter's lock held this would never end."""
    with shared.connect(any_geometry=True) as other:
        theirs = other.namespace(extra=CELL[0])
        found = []

        def wait():
            with theirs.begin(range(320)) as seq:
                found.append(seq.reusable)

        with ns.begin(range(320)) as seq:
            thread = threading.Thread(target=wait)
            thread.start()
            while other.stats is None or client.stats().waits == 0:
                pass
            seq.commit(320)
            thread.join()
    assert found == [304]


def test_threads_share_a_client(client, ns):
    failures = []

    def work(number):
        try:
            for i in range(50):
                with ns.begin([number * 1000 + i] * 40, extra=5) as seq:
                    seq.commit(40)
                    assert len(seq.pages) == 3
        except Exception as error:  # pylint: disable=broad-except
            failures.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures and leases(client) == 0


# ---- errors

def test_no_space_says_how_much(client, ns):
    with pytest.raises(kvtrunk.NoSpace, match="6251 pages needed") as caught:
        ns.begin(range(16), extra=100000)
    assert caught.value.needed == 6251 and 0 < caught.value.available < 4096
    assert caught.value.reason == "too_large" and caught.value.errno == errno.ENOSPC
    with pytest.raises(kvtrunk.NoSpace):
        client.alloc(1 << 20)
    with ns.begin(range(16)) as seq:
        with pytest.raises(kvtrunk.NoSpace):
            seq.extend(4095 * 16)
        assert len(seq.pages) == 1


def test_an_empty_prefix_does_not_mean_everything(client, ns):
    ns.insert(range(32), client.alloc(2))
    for empty in ([], (), array("I"), array("Q"), range(0), iter([])):
        with pytest.raises(ValueError, match="remove_all"):
            ns.remove(empty)
    with pytest.raises(kvtrunk.InvalidArgument, match="empty"):
        client.submit([kvtrunk.Request("remove", namespace=ns, keys=array("I"))])
    assert ns.match(range(32)).positions == 32
    ns.remove_all()
    assert ns.match(range(32)).positions == 0


def test_a_session_that_no_successor_continues_is_lost_whatever_the_errno():
    error = ffi.new("struct kvt_error *", {"code": -errno.ESTALE})
    assert type(_errors.from_error(error, error.code)) is kvtrunk.Stale
    error.attach_state = lib.KVT_ATTACH_GONE
    assert type(_errors.from_error(error, error.code)) is kvtrunk.ConnectionLost
    assert type(_errors.from_error(error, error.code, attach=True)) is kvtrunk.Stale


@pytest.mark.parametrize("damaged, reason", [(False, "detached"), (True, "damaged")])
def test_stale_sequences_continue_alone(client, ns, damaged, reason):
    with ns.begin(range(64)) as seq:
        seq.commit(32)
        ns.remove(range(16), damaged=damaged)
        with pytest.raises(kvtrunk.Stale) as caught:
            seq.commit(64)
        assert (caught.value.errno, caught.value.reason) == (errno.ESTALE, reason)
        assert seq.next == 64 and len(seq.pages) == 4
    handle = None
    with ns.begin(range(64)) as seq:
        seq.commit(64)
        handle = ns.match(range(64)).handle
    ns.remove_all()
    with pytest.raises(kvtrunk.Stale):
        client.lock(handle)


def test_arguments_that_do_not_fit(client, ns):
    with ns.begin(range(16)) as seq:
        with pytest.raises(kvtrunk.InvalidArgument, match="beyond"):
            seq.commit(1000)
        with pytest.raises(ValueError):
            seq.commit(1000)
        with pytest.raises(kvtrunk.InvalidArgument):
            seq.commit(16, fence=(77, 1))
    for bad in (-1, 1 << 40):
        with pytest.raises((ValueError, OverflowError)):
            client.alloc(bad)
    with pytest.raises(kvtrunk.InvalidArgument):
        client.raise_fence(16, 1)
    with pytest.raises(kvtrunk.InvalidArgument):
        client.group(1)
    with pytest.raises(kvtrunk.InvalidArgument):
        client.map_pool(slab=5)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs a CPU for the daemon")
def test_a_pace_keeps_the_daemon_awake(shared):
    with testing.daemon(spin_budget_us=1) as daemon, daemon.connect() as client:
        ns = client.namespace()

        def spins():
            return json.loads(daemon.kvtctl("status", "--json"))["spins"]

        def gained(calls):
            before = spins()
            for _ in range(calls):
                ns.match(range(64))
                time.sleep(0.002)
            return spins() - before

        plain = gained(20)
        client.set_pace(0.05)
        deadline = time.monotonic() + 300  # others may need the CPU for a while
        while gained(20) < 100 * (plain + 20):
            assert time.monotonic() < deadline
        client.set_pace(0)
        with pytest.raises(ValueError, match="^seconds is 1e"):
            client.set_pace(1e300)


def test_an_end_that_is_not_waited_for(client, ns):
    seq = ns.begin(range(64))
    seq.end_nowait(64)
    assert seq.ended
    seq.end_nowait()
    with pytest.raises(kvtrunk.Closed):
        seq.commit(64)
    with ns.begin(range(65)) as seq:
        assert seq.reusable == 64  # operations take effect in their order


def test_who_sealed(shared):
    with shared.connect(any_geometry=True) as one, shared.connect(any_geometry=True) as other:
        one.namespace(extra=70007).begin(range(64)).end(64)
        for client, count in ((one, 0), (other, 64)):
            with client.namespace(extra=70007).begin(range(65)) as seq:
                assert (seq.reusable, seq.shared) == (64, count)


def test_limits_deadlines_and_areas(shared):
    with testing.daemon(max_leases=2) as daemon:
        with daemon.connect(keys_count=4096, list_count=4096) as client:
            ns = client.namespace()
            with pytest.raises(kvtrunk.TooLarge):
                ns.begin(range(5000))
            one, two = ns.begin(range(16)), ns.begin(range(16, 32))
            with pytest.raises(kvtrunk.QuotaExceeded, match="limit") as caught:
                ns.begin(range(64))
            assert caught.value.reason == "max_leases" and caught.value.needed == 2
            one.end()
            client.set_timeout(0.001)
            with pytest.raises(kvtrunk.Timeout):
                two.commit(16, fence=(2, 9))
            with pytest.raises(TimeoutError):
                two.settle()
            client.set_timeout(None)
            client.raise_fence(2, 9)
            two.settle()
            assert ns.match(range(16, 32)).positions == 16
            two.end()


def test_connecting_fails_in_words(shared, tmp_path):
    with pytest.raises(kvtrunk.DaemonUnreachable, match="start kvtrunkd") as caught:
        kvtrunk.connect(tmp_path / "none", connect_wait=0)
    assert caught.value.attach_state == "no_socket"
    with pytest.raises(ConnectionError):
        kvtrunk.connect(str(tmp_path / "none"), connect_wait=0)
    with pytest.raises(kvtrunk.GeometryMismatch) as caught:
        kvtrunk.connect(shared.socket)
    assert caught.value.attach_state == "wrong_geometry"
    with pytest.raises(kvtrunk.GeometryMismatch):
        shared.connect(geometry=kvtrunk.Geometry(2, 2, 16))
    with pytest.raises(ValueError, match="kv_layout is 'dnh'"):
        shared.connect(geometry=kvtrunk.Geometry(2, 2, 8, kv_layout="dnh"))
    with shared.connect(geometry=kvtrunk.Geometry(**GEOMETRY)) as client:
        assert client.info.geometry == kvtrunk.Geometry(2, 2, 8)
        assert client.info.geometry.page_bytes(16) == client.info.page_bytes
    with shared.connect(observe=True) as client:
        with pytest.raises(kvtrunk.Unsupported):
            client.stats()
        with pytest.raises(kvtrunk.Error, match="no such namespace"):
            client.namespace()
        with pytest.raises(kvtrunk.Unsupported):
            client.pool  # pylint: disable=pointless-statement
    with pytest.raises(kvtrunk.Error):
        kvtrunk.connect("/" + "x" * 200)
    with pytest.raises(ValueError, match="16 bytes"):
        shared.connect(group=b"short", rank=1)
    with pytest.raises(kvtrunk.Stale):
        shared.connect(any_geometry=True, group=bytes(range(16)), rank=1)
    with pytest.raises(kvtrunk.InvalidArgument, match="zeroes.* from rank 0"):
        shared.connect(any_geometry=True, group=bytes(16), rank=1)
    with pytest.raises(kvtrunk.InvalidArgument, match="no group token"):
        shared.connect(any_geometry=True, rank=1)
    with shared.connect(any_geometry=True) as client:
        with pytest.raises(kvtrunk.InvalidArgument, match="zeroes"):
            client.group(2, bytes(16))


class Inside:
    """The library, and a daemon that is inside an operation at the first readings."""

    def __init__(self, readings):
        self.left = readings

    def __getattr__(self, name):
        return getattr(lib, name)

    def kvt_counters_read(self, *arguments):
        self.left -= 1
        return -errno.EAGAIN if self.left >= 0 else lib.kvt_counters_read(*arguments)


def test_an_observer_reads_the_counters_of_a_daemon_inside_an_operation(shared, monkeypatch):
    monkeypatch.setattr(_client, "_COUNTER_TRIES", 4)
    with shared.connect(observe=True) as client:
        monkeypatch.setattr(_client, "lib", Inside(3))
        assert client.counters().free_pages > 0
        monkeypatch.setattr(_client, "lib", Inside(4))
        with pytest.raises(kvtrunk.Again):
            client.counters()


def test_each_errno_has_its_class():
    for number, kind in _errors._CLASSES.items():
        error = _errors.from_parts(-number, 0, "text")
        assert type(error) is kind and error.errno == number and str(error) == "text"
        copy = pickle.loads(pickle.dumps(error))
        assert type(copy) is kind and copy.errno == number
    assert type(_errors.from_parts(-errno.EIO, 0, "")) is kvtrunk.Error
    classes = {value for value in vars(kvtrunk).values()
               if isinstance(value, type) and issubclass(value, kvtrunk.Error)}
    assert classes - set(_errors._CLASSES.values()) == {
        kvtrunk.Error, kvtrunk.Closed, kvtrunk.GeometryMismatch}


def test_a_client_asks_for_the_sides_that_it_attaches():
    with testing.daemon(page_size=16, n_pages=64, sides="2,1") as daemon:
        with daemon.connect(sides=(2, 1)) as client:
            assert client.info.side_pages == (2, 1)
        with pytest.raises(kvtrunk.GeometryMismatch, match="put 'sides = 3,1' into"):
            daemon.connect(sides=[3, 1])
        with pytest.raises(kvtrunk.GeometryMismatch, match="drop 'sides' from"):
            daemon.connect(sides=())
        with daemon.connect() as client:
            assert client.info.side_pages == (2, 1)


def test_a_client_without_sides_is_no_stranger_to_a_daemon_without(shared):
    with shared.connect(any_geometry=True, sides=()) as client:
        assert client.info.side_pages == ()
    with pytest.raises(kvtrunk.GeometryMismatch, match="put 'sides = 1' into"):
        shared.connect(any_geometry=True, sides=[1])


def test_what_was_closed_says_so(shared):
    client = shared.connect(any_geometry=True)
    ns = client.namespace()
    seq = ns.begin(range(16))
    lease = ns.match(range(16), lock=True).lease
    seq.end()
    seq.end()
    for call in (lambda: seq.pages, lambda: seq.next, lambda: seq.commit(16), seq.poll):
        with pytest.raises(kvtrunk.Closed):
            call()
    left = ns.begin(range(16))
    client.close()
    client.close()
    assert client.closed and left.ended
    left.end()
    for call in (lambda: left.next, lambda: ns.begin([1]), client.stats, lease.unlock,
                 lambda: client.pool, lambda: client.submit([kvtrunk.Request("nop")]),
                 client.reap, lambda: client.namespace()):
        with pytest.raises(kvtrunk.Closed):
            call()


def test_what_is_dropped_is_ended(shared, client, ns):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        seq = ns.begin(range(100))
        del seq
        gc.collect()
    assert [each.category for each in caught] == [ResourceWarning]
    assert leases(client) == 0
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        other = shared.connect(any_geometry=True)
        assert client.stats().live_sessions == 2
        del other
        gc.collect()
    assert [each.category for each in caught] == [ResourceWarning]
    while client.stats().live_sessions > 1:
        pass  # its CLOSE waits a second at most


def test_a_group_reaches_fences_together(shared):
    with shared.connect(any_geometry=True) as rank0:
        token = rank0.group(2)
        assert rank0.group(2) == rank0.group(2, token) == token
        rank1 = shared.connect(any_geometry=True, group=token, rank=1)
        assert rank1.info.rank == 1 and rank1.info.n_ranks == 2
        ns = rank0.namespace(extra="group")
        seq = ns.begin(range(16))
        seq.commit_nowait(16, fence=(1, 5))
        rank0.raise_fence(1, 5)
        assert ns.match(range(16)).positions == 0
        rank1.raise_fence(1, 5)
        seq.settle()
        assert ns.match(range(16)).positions == 16
        rank1.check()
        seq.end()
        rank1.close()
        with pytest.raises(kvtrunk.ConnectionLost):
            while True:
                rank0.check()
    with pytest.raises(kvtrunk.Error):
        shared.connect(any_geometry=True, group=token, rank=1)


def test_a_mirror_brings_all_that_rank_0_wrote(shared):
    texts = [b"", b"a", bytes(range(256)) * 64, b"x" * 100_000]
    with shared.connect(any_geometry=True, mirror=True) as rank0:
        token = rank0.group(2)
        rank1 = shared.connect(any_geometry=True, group=token, rank=1)
        read = []
        reader = threading.Thread(target=lambda: read.extend(rank1.mirror_read() for _ in texts))
        reader.start()
        for text in texts:
            rank0.mirror_write(text)
        reader.join()
        assert read == texts
        with pytest.raises(kvtrunk.Unsupported, match="members read"):
            rank0.mirror_read()
    with pytest.raises(kvtrunk.ConnectionLost):
        rank1.mirror_read()
    with pytest.raises(kvtrunk.ConnectionLost):
        rank1.close()


def test_the_module_tells_what_is_there(shared, child):
    import subprocess
    import sys
    said = subprocess.run([sys.executable, "-m", "kvtrunk", "--socket", shared.socket], text=True,
                          capture_output=True, check=True).stdout
    assert f"kvtrunk {kvtrunk.__version__}" in said and f"pid {shared.child}" in said
    assert "kvtrunkd: " in said and "4096 pages of 16 positions" in said
    gone = subprocess.run([sys.executable, "-m", "kvtrunk", "--socket", "/nowhere"], text=True,
                          capture_output=True, check=False)
    assert gone.returncode == 1 and "start kvtrunkd" in gone.stdout
    with open("/dev/full", "wb") as full:
        lost = subprocess.run([sys.executable, "-m", "kvtrunk", "--socket", "/nowhere"], text=True,
                              stdout=full, stderr=subprocess.PIPE, check=False)
    assert (lost.returncode, lost.stderr) == (
        1, "kvtrunk: standard output: No space left on device\n")
    quiet = child(shared, "say(sorted(set(sys.modules) & {'numpy', 'torch', 'asyncio', 'ctypes'}))")
    assert "numpy" not in quiet.hear()


def test_fixtures(kvtrunk_daemon, kvtrunk_client):
    assert kvtrunk_client.info.daemon_pid == kvtrunk_daemon.pid
    assert kvtrunk_client.info.page_bytes == 1024


def test_a_namespace_that_was_not_closed_in_time_is_opened_again():
    with testing.daemon(page_size=16, n_pages=64) as daemon:
        with daemon.connect(any_geometry=True) as client:
            ns = client.namespace(salt="late")
            ns.insert(range(32), client.alloc(2))
            client.set_timeout(0.2)
            with stores.stopped(daemon.pid), pytest.raises(kvtrunk.Timeout):
                ns.close()
            while True:  # it may be late once more
                with contextlib.suppress(kvtrunk.Timeout):
                    assert client.namespace(salt="late").match(range(32)).positions == 32
                    break
