# SPDX-License-Identifier: Apache-2.0
"""Leases of a scheduler's requests: kvtrunk.sglang._leases, without SGLang."""
import contextlib
import os
import signal
import subprocess
import sys
from array import array

import pytest
import stores

from kvtrunk import ConnectionLost, NoSpace, Request, testing
from kvtrunk.engine import _weights
from kvtrunk.engine._stall import LOST_S
from kvtrunk.sglang import _leases
from kvtrunk.sglang._leases import DECODE_POSITIONS, Leases

PAGE, PAGES, WORD = 16, 64, 3
NONE = array("I")


def keys(n, seed=0):
    return array("I", range(1000 * seed, 1000 * seed + n))


class Engine:
    """A scheduler's side of a connection."""

    def __init__(self, daemon):
        self.client = daemon.connect(any_geometry=True)
        self.leases = Leases(self.client, socket=daemon.socket)
        self.space = self.client.namespace(model="leases")

    def begin(self, name, n, seed=0, **more):
        return self.leases.begin(name, self.space, keys(n, seed), n, **more)

    def sum(self):
        """The parts of the pool, as SGLang adds them; rows are added by it."""
        reading, leases = self.leases.reading(), self.leases
        available = reading.free + leases.spare
        protected = reading.others - leases.spare - leases.rows
        assert min(available, reading.evictable, protected, leases.spare) >= 0
        return available + reading.evictable + protected + leases.rows


@pytest.fixture
def engines(monkeypatch):
    monkeypatch.setenv("KVTRUNK_CHECK_EVERY", "0")
    monkeypatch.setattr(_leases, "PATIENCE_S", 60.0)  # on a busy machine a daemon answers late
    with testing.daemon(page_size=PAGE, n_pages=PAGES) as daemon:
        made = [Engine(daemon), Engine(daemon)]
        yield made
        for engine in made:
            engine.client.close()


def await_notice(engine, name):
    while engine.leases.is_held_back(name):
        pass


def test_what_one_computes_holds_the_other_back_and_is_then_its(engines):
    a, b = engines
    first = a.begin("one", 100)
    assert first.reusable == 0 and len(first.pages) == 7 + DECODE_POSITIONS // PAGE
    assert b.begin("two", 100) is None and b.leases.is_held_back("two")
    a.leases.give(first, 100)
    assert a.leases.commit(first, 100, NONE, last=True) == 96
    await_notice(b, "two")
    second = b.begin("two", 100)
    assert second.reusable == 96 and second.pages[:6] == first.pages[:6]
    assert a.sum() == b.sum() == PAGES - 1


def test_a_second_request_of_the_same_engine_is_held_back_too(engines):
    a, _ = engines
    first = a.begin("one", 100)
    assert a.begin("two", 100) is None and a.leases.is_held_back("two")
    a.leases.end(first)
    await_notice(a, "two")
    assert a.begin("two", 100).reusable == 0


def test_no_room_is_none_and_not_held_back(engines):
    a, b = engines
    a.begin("one", 800)
    assert b.begin("two", 300, seed=2) is None and not b.leases.is_held_back("two")


def test_a_lease_grows_until_the_pool_is_full(engines):
    a, b = engines
    first = a.begin("one", 40)
    assert a.leases.spare == len(first.pages)
    assert a.leases.room(first, 500) and len(first.pages) >= 32
    assert not a.leases.room(first, PAGE * PAGES)
    assert len(b.begin("two", 200, seed=2).pages) >= 13
    assert a.sum() == b.sum() == PAGES - 1
    a.leases.give(first, PAGE * len(first.pages))
    assert a.leases.rows == len(first.pages) and a.sum() == PAGES - 1
    with pytest.raises(RuntimeError, match="a defect of kvtrunk.sglang"):
        a.leases.give(first, PAGE * len(first.pages) + 1)


def test_a_later_request_says_that_a_commit_was_refused(engines, caplog):
    leases = engines[0].leases
    leases.commit(engines[0].begin("one", 40), PAGE * PAGES, NONE, last=False)
    for name in ("two", "three"):  # the answer comes before that of "two"
        engines[0].begin(name, 40, seed=2)
    assert caplog.text.count("commit: EINVAL: positions beyond the page table") == 1


def test_the_parts_of_the_pool_always_add_up(engines):
    a, b = engines
    leases = a.leases
    one, other = a.begin("one", 70), b.begin("other", 50, seed=2)
    leases.give(one, 64)
    leases.commit(one, 64, NONE, last=False)
    leases.give(one, 70)
    assert leases.commit(one, 70, NONE, last=True) == 64 and leases.rows == 1
    leases.give(one, 81)
    assert leases.rows == 2 and a.sum() == b.sum() == PAGES - 1
    leases.end(one, 81, keys(81)[70:])
    leases.take_back(2)
    assert leases.rows == leases.spare == 0
    b.leases.end(other)
    again = a.begin("two", 90)
    assert again.reusable == 80 and a.sum() == PAGES - 1


def await_cached(engine, n, seed=0):
    """Wait until so many keys' pages are cached."""
    while engine.leases.probe(engine.space, keys(n, seed)) < n:
        pass


def test_who_reads_a_damaged_page_is_told_and_nothing_is_asked_without_damage(engines):
    a, b = engines
    first = a.begin("one", 100)
    a.leases.give(first, 100)
    a.leases.commit(first, 100, NONE, last=True)
    await_cached(b, 96)
    reader, other = b.begin("two", 100), b.begin("other", 50, seed=2)
    assert reader.reusable == 96
    before = b.client.counters().operations
    assert not b.leases.any_damaged([reader, other])
    assert b.client.counters().operations == before
    a.space.remove(list(keys(32)), damaged=True)
    while not b.leases.any_damaged([reader, other]):
        pass
    assert reader.damaged and not other.damaged
    while not a.leases.any_damaged([first]):
        pass
    late = b.begin("late", 50, seed=3)
    before = b.client.counters().operations
    assert not b.leases.any_damaged([other, late])
    assert b.client.counters().operations == before


def test_what_was_computed_twice_is_cached_once_and_its_own_until_its_end(engines):
    """Pages that a pass was launched on do not move."""
    a, b = engines
    one, two = a.begin("one", 128), b.begin("two", 128, reuse=False)
    mine = array("I", two.pages)
    a.leases.give(one, 128)
    b.leases.give(two, 128)
    a.leases.commit(one, 128, NONE, last=True)
    await_cached(a, 128)
    assert b.leases.commit(two, 64, NONE, last=False) == 64
    assert b.leases.commit(two, 128, NONE, last=True) == 128
    assert two.pages == mine and b.sum() == PAGES - 1
    assert a.client.stats().cached_pages == 8
    for engine, lease in ((a, one), (b, two)):
        engine.leases.end(lease)
    while a.client.counters()["private_pages"]:
        pass
    assert a.client.stats().cached_pages == 8


class Streams:
    """A device's stream that lags: pass n ends when it is told."""

    def __init__(self, client, monkeypatch):
        self.client, self.queued = client, 0
        monkeypatch.setattr(client, "record_fence", lambda _: (WORD, self.queued))

    def launch(self, leases, *prompts):
        self.queued += 1
        leases.launched(1, prompts)

    def end(self, n):
        self.client.raise_fence(WORD, n)


def test_a_prompt_is_published_when_its_own_pass_has_ended(engines, monkeypatch):
    """The scheduler does not wait for it, nor the pages for the pass that was launched behind it."""
    a, b = engines
    stream = Streams(a.client, monkeypatch)
    lease = a.begin("one", 100)
    a.leases.give(lease, 100)
    stream.launch(a.leases, lease)
    stream.launch(a.leases)  # the first decode
    assert a.leases.commit(lease, 100, NONE, last=True) == 96  # the scheduler continues at once
    b.client.stats()  # whatever the daemon had to do it has done
    assert b.leases.probe(b.space, keys(96)) == 0
    stream.end(1)
    await_cached(b, 96)
    # The end gives back what the second pass may still write.
    a.leases.end(lease)
    a.client.stats()
    assert b.client.counters()["private_pages"] > 0
    stream.end(2)
    while b.client.counters()["private_pages"]:
        pass


def test_chunks_are_published_one_by_one(engines, monkeypatch):
    a, b = engines
    stream = Streams(a.client, monkeypatch)
    lease = a.begin("one", 160)
    a.leases.give(lease, 160)
    for n, end in enumerate((64, 128), 1):
        stream.launch(a.leases, lease)
        assert a.leases.commit(lease, end, NONE, last=False) == end
    stream.end(1)
    await_cached(b, 64)
    assert b.leases.probe(b.space, keys(128)) == 64
    stream.end(2)
    await_cached(b, 128)


def test_a_full_pool_is_not_asked_again_until_it_changes(engines):
    a, b = engines
    held = a.begin("one", 900)
    assert b.begin("two", 300, seed=2) is None and b.leases.still_full()
    assert b.leases.still_full()
    a.leases.end(held)
    while b.leases.still_full():
        pass
    assert b.begin("two", 300, seed=2) is not None and not b.leases.still_full()


def test_pages_of_its_requests_count_once(engines):
    a, b = engines
    one = a.begin("one", 100)
    assert a.leases.held == len(one.pages) == 11 and b.leases.held == 0
    a.leases.give(one, 100)
    a.leases.commit(one, 100, NONE, last=True)
    await_cached(a, 96)
    two = a.begin("two", 100)
    assert two.reusable == 96 and a.leases.held == 11 + 5
    a.leases.room(two, 200)
    assert a.leases.held == 11 + len(two.pages) - 6
    for lease in (one, two):
        a.leases.end(lease)
    assert a.leases.held == 0


def test_only_keys_that_it_has_may_be_reused(engines):
    """The rest of a prompt is computed, whatever is cached of it, and published."""
    a, b = engines
    one = a.begin("one", 100)
    a.leases.give(one, 100)
    a.leases.commit(one, 100, NONE, last=True)
    await_cached(b, 96)
    two = b.leases.begin("two", b.space, keys(64), 100)
    assert two.reusable == 64 and two.pages[:4] == one.pages[:4] and two.known == 64
    b.leases.give(two, 100)
    assert b.leases.commit(two, 100, keys(100)[64:], last=True) == 96 and two.known == 100
    b.leases.end(two)
    b.client.stats()
    b.leases.reap()
    assert b.client.counters()["cached_pages"] == 6


def test_without_keys_nothing_is_shared(engines):
    a, b = engines
    lease = a.leases.begin("one", a.space, NONE, 50)
    assert len(lease.pages) >= 4
    assert a.leases.commit(lease, 50, NONE, last=True) == 0
    a.leases.end(lease, 50, NONE)
    assert b.begin("two", 50).reusable == 0


def test_after_new_weights_what_runs_publishes_nothing(engines):
    a, b = engines
    lease = a.begin("one", 100)
    assert b.begin("two", 100) is None
    a.leases.unshare()
    assert a.leases.commit(lease, 100, NONE, last=True) == 0
    a.leases.end(lease, 100)
    await_notice(b, "two")
    assert b.begin("two", 100).reusable == 0


def test_without_a_daemon_every_answer_is_that_of_a_full_pool(caplog):
    with testing.daemon(page_size=PAGE, n_pages=PAGES) as daemon:
        engine = Engine(daemon)
        lease = engine.begin("one", 100)
        engine.leases.give(lease, 100)
        daemon.kill()
        while not engine.leases.lost:  # its end is seen when its socket is closed
            assert engine.begin("two", 10) is None
        assert engine.leases.commit(lease, 100, NONE, last=True) == 0
        assert not engine.leases.room(lease, 5000)
        assert engine.leases.probe(engine.space, keys(50)) == 0
        engine.leases.end(lease, 100)
        assert engine.sum() == PAGES - 1
        assert [record.message for record in caplog.records if "gone" in record.message]
        with contextlib.suppress(ConnectionLost):
            engine.client.close()


def test_weights_are_told_apart_by_what_files_hold(tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    for folder, last in ((one, b"a"), (two, b"b")):
        folder.mkdir()
        (folder / "model.safetensors").write_bytes((8).to_bytes(8, "little") + b"{}      " +
                                                   bytes(1 << 20) + last)
    assert _weights.digest_folder(one) != _weights.digest_folder(two)
    (two / "model.safetensors").rename(two / "other-name.safetensors")
    (two / "other-name.safetensors").write_bytes((one / "model.safetensors").read_bytes())
    assert _weights.digest_folder(one) == _weights.digest_folder(two)
    with pytest.raises(FileNotFoundError, match="has no weights"):
        _weights.digest_folder(tmp_path)


def test_a_call_keeps_answers_of_others_for_reap(engines):
    a, _ = engines
    assert a.client.submit([Request("alloc", arg=3, tag="mine")]) == 1
    answer = a.client.call(Request("alloc", arg=2, tag="now"))
    assert answer.tag == "now" and len(answer.pages) == 2 and not answer.notice
    kept = a.client.reap(min=1)
    assert [one.tag for one in kept] == ["mine"] and len(kept[0].pages) == 3


def test_a_refused_call_is_an_answer(engines):
    a, _ = engines
    assert isinstance(a.client.call(Request("alloc", arg=PAGES + 5)).error, NoSpace)


def test_counters_are_those_of_a_round_trip(engines):
    a, _ = engines
    a.client.alloc(5)
    assert a.client.counters()["private_pages"] == a.client.stats()["private_pages"] == 5


def test_ranks_decide_alike_from_what_rank_0_saw():
    """Rank 1 follows behind: by then the daemon would answer otherwise."""
    def tell(lease):
        return lease and [getattr(lease, name) for name in lease.__slots__[:-1]]

    def run(leases):
        prompt, space = keys(100), spaces.get(leases)
        first = leases.begin("one", space, prompt, 100)
        seen = [tell(first), tell(leases.begin("two", space, prompt, 100)),
                leases.is_held_back("two"), tell(leases.begin("big", space, keys(900, 2), 900))]
        leases.give(first, 100)
        seen += [leases.commit(first, 100, NONE, last=True), leases.probe(space, prompt)]
        seen += [leases.room(first, 300), leases.any_damaged([first]),
                 leases.see(lambda: tuple(vars(leases.reading()).values()))]
        leases.end(first, 110, keys(110)[100:])
        leases.reap()
        seen += [leases.is_held_back("two"), tell(leases.begin("two", space, prompt, 100)),
                 tell(first), leases.spare, leases.rows]
        return seen

    with testing.daemon(page_size=PAGE, n_pages=PAGES) as daemon:
        rank0 = daemon.connect(any_geometry=True, mirror=True)
        rank1 = daemon.connect(any_geometry=True, group=rank0.group(2), rank=1)
        ranks = [Leases(client, n_ranks=2) for client in (rank0, rank1)]
        assert [leases.follows for leases in ranks] == [False, True]
        spaces = {ranks[0]: rank0.namespace(model="leases")}
        said = [run(leases) for leases in ranks]
        assert said[0] == said[1] and said[0][2] is True and said[0][3] is None
        rank0.close()
        with pytest.raises(ConnectionLost):
            ranks[1].probe(None, keys(16))
        with pytest.raises(ConnectionLost):
            rank1.close()


@pytest.fixture
def checking(engines, monkeypatch):
    """One that computed a prompt, and one that checks all that it reuses."""
    a, b = engines
    monkeypatch.setenv("KVTRUNK_CHECK_EVERY", "1")
    b.leases = Leases(b.client)
    lease = a.begin("one", 100)
    a.leases.give(lease, 100)
    a.leases.commit(lease, 100, NONE, last=True)
    a.leases.end(lease)
    await_cached(b, 96)
    return a, b


def cached(daemon_side):
    """The pages of the prompt in the tree."""
    return daemon_side.begin("look", 100).pages[:6]


def test_a_checked_page_is_computed_and_then_the_other_one_is_used(checking):
    a, b = checking
    theirs = cached(a)
    lease = b.begin("two", 100)
    assert lease.reusable == 80 and lease.pages[:5] == theirs[:5]
    assert lease.theirs == theirs[5] != lease.pages[5] == lease.own
    b.leases.give(lease, 100)
    assert b.sum() == PAGES - 1
    assert b.leases.commit(lease, 100, NONE, last=True) == 80  # not before the check
    b.leases.passed(lease)
    assert b.leases.commit(lease, 100, NONE, last=True) == 96 and lease.pages[:6] == theirs
    assert b.sum() == PAGES - 1
    b.leases.take_back(1)
    b.leases.end(lease)
    assert b.leases.spare == b.leases.rows == 0
    assert b.client.stats().private_pages == len(a.leases._live) * 5


def test_a_request_that_ends_before_its_check_is_checked_by_the_next(checking, caplog):
    _, b = checking
    b.leases._checks._every = 1000  # but for the first of a session
    lease = b.begin("two", 100)
    assert lease.theirs is not None
    b.leases.end(lease, 70, NONE)
    assert b.leases.spare == b.leases.rows == 0 and b.sum() == PAGES - 1
    again = b.begin("three", 100)
    assert again.theirs is not None
    b.leases.unshare()  # new weights: they may well differ
    assert again.theirs is None and not again.shared
    b.leases.end(again, 100, NONE)
    assert b.begin("four", 100).theirs is not None
    assert caplog.text.count("not made, because its request ended before. The next") == 1


def test_another_daemon_s_sessions_are_checked_whatever_their_numbers(checking):
    a, b = checking
    b.leases._checks._every = b.leases._check_every = 1000
    lease = b.begin("two", 100)
    b.leases.passed(lease)
    b.leases.end(lease)
    assert b.begin("three", 100).theirs is None
    b.leases.continue_with(b.client)
    assert b.begin("four", 100).theirs is not None


def test_what_this_engine_computed_itself_is_not_checked(checking):
    _, b = checking
    lease = b.begin("own", 100, seed=1)
    b.leases.give(lease, 100)
    b.leases.commit(lease, 100, NONE, last=True)
    b.leases.take_back(1)
    b.leases.end(lease)
    assert b.begin("again", 100, seed=1).reusable == 96


def test_a_pool_without_a_page_for_a_check_reuses_and_says_so(checking, caplog):
    a, b = checking
    held = a.client.alloc(a.client.stats().free_pages - 1)
    lease = b.begin("two", 100)
    assert lease.reusable == 96 and lease.theirs is None
    assert caplog.text.count("check was not made, because the pool had no page for it.") == 1
    a.client.free(held)
    b.leases.end(lease)
    assert b.begin("three", 100).theirs is not None


DEVICE = """
import ctypes, sys, threading, time
sys.path.insert(0, sys.argv[1])
from test_leases import NONE, PAGE, PAGES, Engine, _leases, keys
from kvtrunk import testing

_leases.PATIENCE_S = 60.0  # on a busy machine a daemon answers late
driver = ctypes.CDLL("libcuda.so.1")
context, stream = ctypes.c_void_p(), ctypes.c_void_p()
assert not driver.cuInit(0)
assert not driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
assert not driver.cuCtxPushCurrent_v2(context)
assert not driver.cuStreamCreate(ctypes.byref(stream), 1)
gates = []

@ctypes.CFUNCTYPE(None, ctypes.c_void_p)
def wait(number):
    gates[number or 0].wait()

def launch(engine, *prompts):
    gates.append(threading.Event())
    assert not driver.cuLaunchHostFunc(stream, wait, ctypes.c_void_p(len(gates) - 1))
    engine.leases.launched(stream.value, prompts)
    return gates[-1]

with testing.daemon(page_size=PAGE, n_pages=PAGES, n_layers=1, n_kv_heads=1, head_dim=8,
                    backend="cuda-vmm") as daemon:
    a, b = Engine(daemon), Engine(daemon)
    assert a.leases._fence() is None
    one, two = a.begin("one", 100), a.begin("two", 100, 1)
    for lease in (one, two):
        a.leases.give(lease, 100)
    first, second = launch(a, one), launch(a)  # its prompt, and its first token
    assert a.leases.commit(one, 100, NONE, last=True) == 96
    a.client.stats()
    assert b.leases.probe(b.space, keys(100)) == 0
    first.set()
    while b.leases.probe(b.space, keys(100)) != 96:
        time.sleep(0)

    fence, third = a.leases._fence(), launch(a)
    a.leases.end(two, 100)
    a.leases.end(one)
    assert a.leases._fence() == a.leases._fence() != fence
    a.leases.reap()
    free = b.leases.reading().free
    second.set()
    assert b.leases.probe(b.space, keys(100, 1)) == 0
    third.set()
    while b.leases.probe(b.space, keys(100, 1)) != 96 or b.leases.reading().free == free:
        time.sleep(0)
    for engine in (a, b):
        engine.client.close()
print("works")
"""


def test_on_a_device_everything_leaves_behind_the_forward_passes_so_far():
    folder = os.path.join(os.environ.get("KVTRUNK_BIN", "/nowhere"), "tests/cuda/standin")
    if not os.path.exists(folder):
        pytest.skip("the stand-in for the driver is not built (make tests)")
    ended = subprocess.run([sys.executable, "-c", DEVICE, os.path.dirname(__file__)], text=True,
                           env={**os.environ, "LD_LIBRARY_PATH": folder,
                                "KVTRUNK_CHECK_EVERY": "0"}, capture_output=True, check=False)
    assert ended.stdout == "works\n", ended.stderr


class Clock:
    """Clock of a Stall, which a test sets."""

    now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def stopped(engines, monkeypatch):
    """A daemon that is stopped, with an engine's lease on it; and the clock of its patience."""
    a, _ = engines
    clock = Clock()
    monkeypatch.setattr(a.leases.ring._stall, "_clock", clock)
    lease = a.begin("one", 100)
    monkeypatch.setattr(_leases, "PATIENCE_S", 0.01)
    pid = a.client.info.daemon_pid
    stores.freeze(pid)
    yield a, lease, clock
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


def test_beside_a_stopped_daemon_requests_run_and_others_wait(stopped, caplog):
    a, lease, clock = stopped
    assert a.begin("two", 50, seed=2) is None and a.leases.is_held_back("two")
    assert a.leases.is_stalled() and not a.leases.lost
    # Running requests need no answer.
    assert a.leases.room(lease, 160)
    a.leases.give(lease, 160)
    assert a.leases.commit(lease, 100, NONE, last=True) == 96
    clock.now += 2
    assert a.leases.is_held_back("two")
    assert f"kvtrunkd (pid {a.client.info.daemon_pid}, " in caplog.text
    assert "has not answered for 2 s" in caplog.text
    os.kill(a.client.info.daemon_pid, signal.SIGCONT)
    await_notice(a, "two")
    assert not a.leases.is_stalled() and "answers again" in caplog.text
    assert len(a.begin("two", 50, seed=2).pages) == 4 + DECODE_POSITIONS // PAGE
    assert a.sum() == PAGES - 1


def test_what_a_late_answer_begins_after_new_weights_is_given_back(stopped):
    a, lease, _ = stopped
    assert a.begin("two", 50, seed=2) is None
    a.leases.unshare()
    os.kill(a.client.info.daemon_pid, signal.SIGCONT)
    while a.leases.is_stalled():
        pass
    a.leases.end(lease)
    a.leases.reap()
    while a.client.counters()["private_pages"]:
        a.leases.reap()
    assert a.begin("two", 50, seed=2).known == 50


def test_a_session_without_an_answer_for_long_is_lost(stopped, caplog):
    a, _, clock = stopped
    assert a.begin("two", 50, seed=2) is None
    clock.now += LOST_S
    assert not a.leases.lost
    a.leases.is_held_back("two")
    assert a.leases.lost and "the daemon is gone: " in caplog.text
    assert a.begin("three", 50, seed=3) is None


def test_a_call_waits_until_its_session_counts_as_lost(engines, monkeypatch):
    a, _ = engines
    asked = []
    monkeypatch.setattr(a.client, "set_timeout", asked.append)
    a.leases._connect(a.client)
    monkeypatch.setattr(a.leases, "_n_ranks", 2)  # none may go on alone
    a.leases._connect(a.client)
    assert asked == [LOST_S, None]


def test_prompts_below_the_minimum_are_neither_read_nor_published(monkeypatch, engines):
    a, b = engines
    a.leases._min_positions = b.leases._min_positions = 4 * PAGE + 1
    lease = a.begin("a", 4 * PAGE)
    assert not lease.shared
    a.leases.end(lease)
    lease = a.begin("a", 4 * PAGE + 1)
    assert lease.shared and lease.reusable == 0
    a.leases.commit(lease, 4 * PAGE + 1, NONE, last=True)
    a.leases.end(lease)
    await_cached(b, 4 * PAGE)
    assert b.begin("b", 4 * PAGE).reusable == 0
    assert b.begin("c", 4 * PAGE + 1).reusable == 4 * PAGE
