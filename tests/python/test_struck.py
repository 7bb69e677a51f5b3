# SPDX-License-Identifier: Apache-2.0
"""A signal's handler that raises in a call, at each place where CPython runs handlers: after a call,
a jump back, the beginning of a function. No call loses what it got: pages, leases, answers."""
import asyncio
import dis
import functools
import gc
import pathlib
import sys

import pytest

import cancelling
import kvtrunk
from cancelling import World
from kvtrunk import Request, testing

PACKAGE = str(pathlib.Path(kvtrunk.__file__).parent)
LOOKS = ("CALL", "RESUME", "JUMP_BACKWARD", "JUMP_ABSOLUTE")
pytestmark = [  # what is struck may warn: it was not ended, nor awaited
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings(
        "ignore:coroutine 'AsyncSequence\\._waiting' was never awaited:RuntimeWarning")]
P = list(range(100, 300))


class Struck(Exception):
    """What the handler raises."""


@functools.lru_cache(maxsize=None)
def names(code):
    return {each.offset: each.opname for each in dis.get_instructions(code)}


class Handler:
    """Raises at the nth place in the package where a handler could run. In a finaliser Python would
    print it."""

    def __init__(self, n):
        self.left, self._before = n, {}

    def step(self, frame, offset):
        """Before each instruction of the package."""
        before = self._before.get(frame, "")
        self._before[frame] = names(frame.f_code)[offset]
        if before.startswith(LOOKS):
            self.left -= 1
            if self.left == 0:
                self._before.clear()
                raise Struck

    def caught(self, frame):
        """What follows is no place: it is not behind the instruction before."""
        self._before[frame] = ""


def of_package(code):
    return code.co_filename.startswith(PACKAGE) and code.co_name != "__del__"


class Traced(Handler):
    """Until Python 3.11."""

    def start(self):
        sys.settrace(self._frame)

    def stop(self):
        sys.settrace(None)

    def _frame(self, frame, event, _):
        if not of_package(frame.f_code):
            return None
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        if event == "exception":
            self.caught(frame)
        if event == "opcode":
            self.step(frame, frame.f_lasti)
        return self._frame


class Monitored(Handler):
    """From Python 3.12 on, where a trace function misses instructions of frames that run already."""

    def start(self):
        monitoring, events = sys.monitoring, sys.monitoring.events
        monitoring.use_tool_id(monitoring.DEBUGGER_ID, "struck")
        for event, call in ((events.INSTRUCTION, self._instruction),
                            (events.EXCEPTION_HANDLED, self._handled)):
            monitoring.register_callback(monitoring.DEBUGGER_ID, event, call)
        monitoring.set_events(monitoring.DEBUGGER_ID, events.INSTRUCTION | events.EXCEPTION_HANDLED)

    def stop(self):
        monitoring = sys.monitoring
        monitoring.set_events(monitoring.DEBUGGER_ID, 0)
        for event in monitoring.events.INSTRUCTION, monitoring.events.EXCEPTION_HANDLED:
            monitoring.register_callback(monitoring.DEBUGGER_ID, event, None)
        monitoring.free_tool_id(monitoring.DEBUGGER_ID)

    def _instruction(self, code, offset):
        if not of_package(code):
            return sys.monitoring.DISABLE
        if self.left > 0:
            self.step(sys._getframe(1), offset)
        return None

    def _handled(self, code, *_):
        if of_package(code):
            self.caught(sys._getframe(1))


class struck_at:
    """Yields a list, which is empty until a handler has raised in what runs meanwhile. No generator:
    its frame and the exception would hold each other, and what the call left, until a collection."""

    def __init__(self, n):
        self._handler = (Monitored if hasattr(sys, "monitoring") else Traced)(n)
        self._raised = []

    def __enter__(self):
        self._handler.start()
        return self._raised

    def __exit__(self, kind, error, trace):
        self._handler.stop()
        if self._handler.left <= 0:
            self._raised.append(True)
        return kind is Struck


@pytest.fixture(scope="module")
def world():
    with testing.daemon(**{**cancelling.OPTIONS, "sides": "1"}) as daemon:
        made = World(daemon, sides=(1,))
        space = made.other.namespace(salt="run")
        cached = made.other.alloc(12)
        space.insert(P[:192], cached)
        yield made
        assert not made.wrong, (made.wrong, made.first)
        made.close()


def space(world):
    return world.client.namespace(salt="run")


def held(world):
    """Leases and private pages that stay, although the client is called."""
    for _ in range(3):
        world.client.stats()
    counters = world.other.stats()
    return counters.live_leases, counters.private_pages


def at_each_place(call, undo, world):
    """Run a call, struck at the first place, at the second and so on. undo(what it returned)."""
    n = 0
    while True:
        n += 1
        got = None
        with struck_at(n) as raised:
            got = call()
        if got is not None:
            undo(got)
        del got
        assert held(world) == (0, 0), n
        if not raised:
            return n


def reap(world):
    """Answers that an earlier reap() did not return are still there."""
    client = world.client
    assert client.submit([Request("alloc", arg=2, tag=1), Request("nop", tag=2)]) == 2

    n = 0
    while True:
        n += 1
        found = []
        with struck_at(n) as raised:
            found = client.reap(2)
        while len(found) < 2:
            more = client.reap(2)
            assert more, (n, found)
            found += more
        assert sorted(answer.tag for answer in found) == [1, 2], n
        client.free(next(answer.pages for answer in found if answer.tag == 1))
        if not raised:
            return n
        assert client.submit([Request("alloc", arg=2, tag=1), Request("nop", tag=2)]) == 2


CALLS = {
    "begin": (lambda world: space(world).begin(P), lambda _, got: got.end()),
    "begin in a root": (lambda world: space(world).root(7).begin(P), lambda _, got: got.end()),
    "alloc": (lambda world: world.client.alloc(3), lambda world, got: world.client.free(got)),
    "match": (lambda world: space(world).match(P, lock=True), lambda _, got: got.lease.unlock()),
    "match in a root": (lambda world: space(world).root(7).match(P, lock=True),
                        lambda _, got: got.lease.unlock()),
    "lock": (lambda world: world.client.lock(space(world).match(P).handle),
             lambda _, got: got.unlock()),
    "match_many": (lambda world: space(world).match_many([P] * 5, lock=True),
                   lambda _, got: [each.lease.unlock() for each in got]),
    "call begin": (lambda world: world.client.call(Request("begin", space(world), P)),
                   lambda world, got: world.client.call(Request("end", lease=got.lease))),
    "call alloc": (lambda world: world.client.call(Request("alloc", arg=3)),
                   lambda world, got: world.client.free(got.pages)),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_that_is_struck_holds_nothing(world, name):
    call, undo = CALLS[name]
    assert at_each_place(lambda: call(world), lambda got: undo(world, got), world) > 10


def test_answers_are_given_once_by_some_reap(world):
    assert reap(world) > 10
    assert held(world) == (0, 0)


def test_a_life_that_is_struck_ends_once(world):
    """Another sequence takes the library's memory of one that has ended: it must not end, too."""
    def life():
        with space(world).begin(P, 32) as sequence:
            sequence.attach(11, 0, 0)
            sequence.commit(200)
            sequence.extend(16)
            sequence.commit_nowait(216, [1] * 16)
            sequence.settle()
            other.append(space(world).begin(P))
            sequence.end_nowait()
        return None

    n = 0
    while True:
        n += 1
        other = []
        with struck_at(n) as raised:
            life()
        gc.collect()
        world.client.stats()
        for each in other:
            each.commit(200)
            each.end()
        assert held(world) == (0, 0), n
        if not raised:
            break
    assert n > 50


def test_submissions_that_are_struck_hold_nothing(world):
    n = 0
    while True:
        n += 1
        with struck_at(n) as raised:
            world.client.submit([Request("alloc", arg=2), Request("match", space(world), P)])
        for answer in world.client.reap(2):
            if answer.op == "alloc":
                world.client.free(answer.pages)
        assert held(world) == (0, 0), n
        if not raised:
            break


def test_a_connection_that_is_struck_is_closed(world):
    n = 0
    while True:
        n += 1
        client = None
        with struck_at(n) as raised:
            client = world.daemon.connect(sides=(1,))
        if client is not None:
            client.close()
        if not raised:
            break
    assert n > 10
    while world.other.stats().live_sessions > 2:
        pass


def test_a_feed_that_is_struck_is_closed(world):
    assert at_each_place(world.client.feed, lambda feed: feed.close(), world) > 5


def test_awaited_calls_that_are_struck_hold_nothing_and_none_waits_for_ever(world):
    async def life():
        sequence = await space(world).begin_async(P, 32)
        try:
            await sequence.commit(200)
            await sequence.extend(16)
            await sequence.commit(216, [1] * 16)
            await sequence.end()
        except Struck:
            if not sequence.ended:
                sequence.end_nowait()
            raise

    def run():
        loop = asyncio.new_event_loop()
        loop.set_exception_handler(lambda *_: None)
        try:
            loop.run_until_complete(asyncio.wait_for(life(), 20))
        finally:
            loop.close()

    n = 1
    while True:
        n += 5  # of some two thousand places
        with struck_at(n) as raised:
            run()
        gc.collect()
        assert held(world) == (0, 0), n
        if not raised:
            break
    assert n > 100
