# SPDX-License-Identifier: Apache-2.0
"""Cancelled calls: cancelling.py's engine at each step of a loop, and where loops, tasks and daemons
end."""
import asyncio
import contextlib
import copy
import gc
import pickle
import signal
import threading
import time

import pytest

import cancelling
import kvtrunk
import stores
from cancelling import OPTIONS, WAYS, World
from kvtrunk import events, store, testing
from kvtrunk.engine._ring import Ring
from kvtrunk.engine._server import Server

# The engines here drop sequences without an end: that is a part of the test.
pytestmark = [pytest.mark.filterwarnings("ignore::ResourceWarning"),
              pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning"),
              pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")]
P, Q = list(range(1, 201)), list(range(5001, 5201))


def eager_loop():
    loop = asyncio.new_event_loop()
    loop.set_task_factory(asyncio.eager_task_factory)
    return loop


def loops():
    """Kinds of event loops, and why some are not here."""
    yield pytest.param(asyncio.new_event_loop, id="asyncio")
    try:
        import uvloop
        yield pytest.param(uvloop.new_event_loop, id="uvloop")
    except ImportError:
        yield pytest.param(None, id="uvloop", marks=pytest.mark.skip("uvloop is not installed"))
    missing = not hasattr(asyncio, "eager_task_factory")
    yield pytest.param(None if missing else eager_loop, id="eager", marks=pytest.mark.skipif(
        missing, reason="eager_task_factory is of Python 3.12"))


@contextlib.contextmanager
def world_of(daemon_options=(), **options):
    with testing.daemon(**{**OPTIONS, **dict(daemon_options)}) as daemon:
        world = World(daemon, **options)
        yield world
        assert not world.wrong, (world.wrong, world.first)
        world.close()


@pytest.fixture
def world():
    with world_of() as made:
        yield made


@pytest.fixture(autouse=True)
def interrupts():
    """Ctrl-C as at a terminal: what a shell starts in the background ignores it."""
    old = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, old)


@pytest.mark.parametrize("loop", loops())
def test_a_call_that_is_cancelled_at_any_step_publishes_nothing_wrong(loop):
    with world_of(loop=loop) as world:
        assert cancelling.every_step(world, WAYS, (0, 2)) > 200
        assert world.audited > 500


def test_the_same_with_side_pages():
    with world_of({"sides": "1"}, sides=(1,)) as world:
        cancelling.every_step(world, ("on", "careful", "drop", "newloop"), (0, 2))


def test_the_same_with_a_store():
    """Each run finds in the store what the runs before computed."""
    with world_of({"n_pages": 128}, fetch_wait=1.0) as world, \
            stores.running(world.daemon, "1M", "--min-positions=16") as store:
        world.settle = lambda: store.settled(0)
        for at in range(16):
            for way in "on", "careful", "drop":
                cancelling.drive(world, way, at, 0, 1)
        assert store.counts()["loaded_pages"] > 20


@pytest.mark.parametrize("new_loop", [False, True])
def test_a_begin_gets_no_answer_of_a_cancelled_one(world, new_loop):
    for at in range(5):
        cancelling.begin_behind_another(world, at, new_loop, 1 + at)


def test_many_requests_cancelled_at_random(world):
    assert cancelling.soak(world, 12, 1) > 50


def test_a_failing_group_of_tasks_leaves_nothing():
    with world_of({"n_pages": 30000, "max_leases": 0}) as world:
        for run in range(6):
            cancelling.failing_group(world, run)
            assert world.leases_left() == 0
            world.forget()


@pytest.mark.parametrize("ends", ["kill", "restart"])
def test_a_daemon_that_ends_at_any_step_fails_what_waits(ends):
    for at in range(0, 24, 4):
        with testing.daemon(**OPTIONS, supervise=ends == "restart") as daemon:
            world = World(daemon)
            world.daemon_ends = ends == "kill"
            cancelling.drive(world, "on", at, 0, 1,
                             strike=daemon.kill)
            assert not world.wrong, (world.wrong, world.first)
            world.close()


def interrupted(call):
    """Run a call that a signal interrupts while it sleeps. Returns what it raised."""
    main, slept = threading.get_ident(), threading.Event()

    def strike():
        slept.wait()
        signal.pthread_kill(main, signal.SIGINT)

    striker = threading.Thread(target=strike)
    striker.start()
    try:
        call(slept.set)
    except BaseException as error:
        return error
    finally:
        slept.set()
        striker.join()
    return None


def waits(world, number):
    """Set the event when so many begins wait in the daemon."""
    def watch(then):
        before = world.other.stats().waits

        def look():
            while world.other.stats().waits < before + number:
                time.sleep(0)
            then()

        threading.Thread(target=look).start()

    return watch


def test_a_signal_ends_a_begin_that_waits_and_holds_nothing(world):
    ours, theirs = (client.namespace(salt="run") for client in (world.client, world.other))
    theirs_p = theirs.begin(P)

    def begin(then):
        waits(world, 1)(then)
        ours.begin(P)

    assert isinstance(interrupted(begin), KeyboardInterrupt)
    theirs_p.end()
    ours.begin([1, 2, 3]).end()
    assert world.leases_left() == 0 and world.other.stats().private_pages == 0


def test_a_signal_in_the_end_of_a_feed_is_raised_there(world):
    feed = world.client.feed()

    def close(then):
        threading.Timer(0, then).start()
        feed.close()

    world.stop()
    try:
        assert isinstance(interrupted(close), KeyboardInterrupt)
    finally:
        world.go()
    world.client.stats()


def test_a_handler_that_raises_something_else_ends_the_call_with_that(world):
    def handler(*_):
        raise LookupError("mine")

    old = signal.signal(signal.SIGINT, handler)
    theirs = world.other.namespace(salt="run").begin(P)

    def begin(then):
        waits(world, 1)(then)
        world.client.namespace(salt="run").begin(P)

    try:
        assert str(interrupted(begin)) == "mine"
        signal.signal(signal.SIGINT, lambda *_: theirs.end())
        assert interrupted(begin) is None  # a handler that returns: the call waits on
    finally:
        signal.signal(signal.SIGINT, old)
    gc.collect()
    assert world.leases_left() == 0


def reap(world, *_):
    world.client.submit([kvtrunk.Request("nop")])
    world.client.reap(1)


def settle(_, __, sequence):
    sequence.commit_nowait(200)
    sequence.settle()


WAITING = {
    "stats": lambda world, *_: world.client.stats(), "alloc": lambda world, *_: world.client.alloc(1),
    "namespace": lambda world, *_: world.client.namespace(salt="another"),
    "connect": lambda world, *_: world.daemon.connect(),
    "call": lambda world, *_: world.client.call(kvtrunk.Request("nop")), "reap": reap,
    "evict": lambda world, *_: world.client.evict(1),
    "begin": lambda _, space, __: space.begin(Q),
    "match": lambda _, space, __: space.match(P, lock=True),
    "match_many": lambda _, space, __: space.match_many([P, Q], lock=True),
    "remove": lambda _, space, __: space.remove_all(),
    "commit": lambda _, __, sequence: sequence.commit(200), "settle": settle,
    "extend": lambda _, __, sequence: sequence.extend(16),
    "end": lambda _, __, sequence: sequence.end(200),
}


@pytest.mark.parametrize("name", WAITING)
def test_a_signal_ends_each_call_that_waits_for_a_stopped_daemon(world, name):
    space = world.client.namespace(salt="run")
    sequence = space.begin(P)

    def waiting(then):
        threading.Timer(0, then).start()
        WAITING[name](world, space, sequence)

    world.stop()
    error = interrupted(waiting)
    world.go()
    assert isinstance(error, KeyboardInterrupt)
    del error
    world.client.stats()  # takes the late answer, and submits what gives its pages back
    with contextlib.suppress(kvtrunk.Stale):  # after remove_all()
        sequence.end()
    assert world.leases_left() == 0 and world.other.stats().private_pages == 0


def test_what_owns_something_is_neither_copied_nor_pickled(world):
    namespace = world.client.namespace(salt="run")

    async def begin():
        return await namespace.begin_async(Q)

    sequence, awaited = namespace.begin(P), asyncio.run(begin())
    sequence.commit(len(P))
    with world.client.feed() as feed, namespace.match(P, lock=True).lease as lease:
        for owner in (world.client, namespace, sequence, awaited, world.client.pool, feed, lease,
                      world.client.pool.layer(0).k, world.daemon):
            for way in copy.copy, copy.deepcopy, pickle.dumps:
                with pytest.raises(TypeError):
                    way(owner)
    for kind in (events.Source, events.Publisher, store.Memory, store.Mooncake, store.Redis, Ring,
                 Server):
        with pytest.raises(TypeError):
            copy.copy(kind.__new__(kind))
    sequence.end()
    awaited._drop()
    assert world.leases_left() == 0


def test_an_idle_client_gives_back_what_a_cancelled_begin_got(world):
    ours, theirs = (client.namespace(salt="run") for client in (world.client, world.other))
    computing = theirs.begin(P)

    async def cancelled():
        task = asyncio.ensure_future(ours.begin_async(P))
        while not world.other.stats().waits:
            await asyncio.sleep(0)
        task.cancel()

    asyncio.run(cancelled())
    computing.end(len(P))
    while world.other.stats().live_leases:  # nothing calls world.client
        time.sleep(0)


def test_an_idle_client_gives_back_what_a_begin_of_a_loop_that_ended_got(world):
    ours, theirs = (client.namespace(salt="run") for client in (world.client, world.other))
    computing = theirs.begin(P)
    loop = asyncio.new_event_loop()
    task = loop.create_task(ours.begin_async(P))
    while not world.other.stats().waits:
        cancelling.step(loop)
    loop.close()
    del task
    gc.collect()
    computing.end(len(P))
    while world.other.stats().live_leases:
        time.sleep(0)


def test_loops_in_several_threads_share_a_client(world):
    failed = []

    def run(base):
        async def request(number):
            namespace = world.client.namespace(salt="run")
            sequence = await namespace.begin_async([base + number] * 64, 16)
            await sequence.commit(64)
            await sequence.end(80, [7] * 16)

        async def many():
            await asyncio.gather(*map(request, range(10)))

        try:
            for _ in range(3):
                asyncio.run(many())
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=run, args=(1000 * number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    namespace = world.client.namespace(salt="run")
    found = namespace.match_many([[1000 * thread + number] * 64 + [7] * 16
                                  for thread in range(3) for number in range(10)])
    assert {match.positions for match in found} == {80}
    assert world.leases_left() == 0


def test_a_commit_passes_begins_that_wait():
    """A thousand wait, and the call that ends their waits has room."""
    async def main(world):
        ours, theirs = (client.namespace(salt="run") for client in (world.client, world.other))
        sequence, computing = await ours.begin_async(Q), theirs.begin(P)
        waiting = [asyncio.ensure_future(ours.begin_async(P)) for _ in range(1000)]
        while world.other.stats().waits < 32:
            await asyncio.sleep(0)
        await sequence.commit(len(Q))
        await sequence.end()
        assert not any(each.done() for each in waiting)
        computing.end(len(P))
        for each in asyncio.as_completed(waiting):
            found = await each
            assert found.next == 192
            found.end_nowait()

    with world_of({"n_pages": 4096, "max_leases": 0, "coalesce_patience_ms": 600000},
                  begin_wait=600) as world:
        asyncio.run(main(world))
        assert world.leases_left() == 0


def test_a_call_that_waits_has_room_behind_ends_that_nothing_awaits():
    """Each end is answered before the next is submitted, and no answer is taken meanwhile."""
    async def begin(world):
        ours = world.client.namespace(salt="run")
        return await asyncio.gather(*[ours.begin_async([number]) for number in range(600)])

    with world_of({"n_pages": 1024, "max_leases": 0}) as world:
        sequences = asyncio.run(begin(world))
        answers = world.client._answers()
        submit = answers._submit

        def answered(call):
            code = submit(call)
            world.other.stats()
            return code

        world.stop()
        for each in sequences:
            each.end_nowait()
        world.go()
        answers._submit = answered
        world.client.stats()
        world.client.alloc(1)
        assert world.leases_left() == 0


def test_calls_wait_for_room_that_ends_hold(world):
    """A stopped daemon; a signal's handler continues it while the call waits."""
    ours = world.client.namespace(salt="run")
    old = signal.signal(signal.SIGINT, lambda *_: world.go())
    try:
        for call in (world.client.stats, lambda: ours.match_many([P, Q]),
                     lambda: world.client.free(world.client.alloc(1)), lambda: ours.begin(P).end()):
            sequences = [ours.begin([number]) for number in range(100)]
            world.stop()
            with pytest.raises(kvtrunk.Again, match="64 operations without an answer"):
                for each in sequences:
                    each.end_nowait()

            def waiting(then, call=call):
                threading.Timer(0, then).start()
                call()

            assert interrupted(waiting) is None
            for each in sequences:
                each.end()
    finally:
        signal.signal(signal.SIGINT, old)
    assert world.leases_left() == 0


@pytest.mark.parametrize("cancelled", [False, True])
def test_begins_that_need_not_wait_pass_those_that_do(world, cancelled):
    """As many wait as may; those behind them are answered while they wait, the last one as soon as
    its own prompt is published."""
    async def main():
        ours, theirs = (client.namespace(salt="run") for client in (world.client, world.other))
        of_p, of_q = theirs.begin(P), theirs.begin(Q)
        waiting = [asyncio.ensure_future(ours.begin_async(P)) for _ in range(40)]
        while world.other.stats().waits < 32:
            await asyncio.sleep(0)
        if cancelled:
            for each in waiting:
                each.cancel()
        mine = await ours.begin_async([1, 2, 3])
        again = await ours.begin_async([1, 2, 3])  # of their own session
        behind = asyncio.ensure_future(ours.begin_async(Q))
        await (await ours.begin_async([4, 5, 6])).end()
        assert not behind.done()
        of_q.end(len(Q))
        found = await behind
        assert found.next == len(Q) // cancelling.PAGE * cancelling.PAGE
        for each in mine, again, found:
            await each.end()
        assert world.other.stats().live_leases == 1  # P's
        of_p.end(len(P))
        for each in waiting:
            with contextlib.suppress(asyncio.CancelledError):
                await (await each).end()

    asyncio.run(main())
    gc.collect()
    world.client.stats()
    assert world.leases_left() == 0
    world.forget()


def test_a_begin_with_more_keys_than_there_is_room_for_holds_up_none():
    """Begins that wait hold a part of the area for keys."""
    async def main(world):
        ours, theirs = (client.namespace(salt="run") for client in (world.client, world.other))
        of_p = theirs.begin(P)
        waiting = [asyncio.ensure_future(ours.begin_async(P)) for _ in range(8)]
        while world.other.stats().waits < 8:
            await asyncio.sleep(0)
        large = asyncio.ensure_future(ours.begin_async(range(3000)))
        await asyncio.sleep(0)  # its first step
        await (await ours.begin_async([1, 2, 3])).end()
        assert not large.done()
        of_p.end(len(P))
        for each in *waiting, large:
            await (await each).end()

    with world_of({"n_pages": 1024}, keys_count=4096) as world:
        asyncio.run(main(world))
        assert world.leases_left() == 0


def test_keys_after_a_cancelled_call_need_their_place(world):
    async def main():
        sequence = await world.client.namespace(salt="run").begin_async(P[:48], 48)
        await sequence.commit(48)
        task = asyncio.ensure_future(sequence.commit(64, Q[:16]))
        task.cancel()  # before its first step: the call has been made
        with pytest.raises(asyncio.CancelledError):
            await task
        for at in None, 48, 63, 65:
            with pytest.raises(kvtrunk.InvalidArgument, match="position 64"):
                await sequence.commit(80, Q[16:32], at=at)
        assert sequence.known == 64
        await sequence.commit(80, Q[16:32], at=64)
        await sequence.end(96, Q[32:48])  # all is known again

    asyncio.run(main())
    namespace = world.client.namespace(salt="run")
    assert namespace.match(P[:48] + Q[:48]).positions == 96
    assert namespace.match(P[:48] + Q[:16] + Q[:16]).positions == 64


def test_a_call_is_made_without_a_loop_and_awaited_in_any(world):
    async def begin():
        return await world.client.namespace(salt="run").begin_async(P)

    sequence = asyncio.run(begin())
    commit = sequence.commit(len(P))
    end = sequence.end()

    async def both():
        await commit
        await end

    asyncio.run(both())
    assert world.other.stats().live_leases == 0
    assert world.client.namespace(salt="run").match(P).positions == 192
