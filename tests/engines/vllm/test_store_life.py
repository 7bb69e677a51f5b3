# SPDX-License-Identifier: Apache-2.0
"""vLLM's schedulers beside a store, without a model: what the pool has lost comes back."""
import contextlib
import itertools
import signal
import time

import pytest
import stores
from conftest import PAGE, geometry
from engine import expect_nothing_held, prompt, until
from measure_step import PAGES, Scheduler

from kvtrunk import testing
from kvtrunk.engine._ring import WAIT_MS

N = 1000
WHOLE = (N - 1) // PAGE * PAGE


@contextlib.contextmanager
def beside_a_store(monkeypatch, ram="16M", wait_ms=60000, **options):
    """A daemon and a store. Engines that are made meanwhile use them. wait_ms: for its answers, and
    for its loads beyond a second. Both take longer on a busy machine."""
    options = {"n_pages": PAGES, "coalesce_threshold": 0, **options}  # it waits for whole loads
    with testing.daemon(**geometry(**options)) as daemon, \
            stores.running(daemon, ram) as store:
        monkeypatch.setenv("KVTRUNK_SOCKET", daemon.socket)
        monkeypatch.setenv("KVTRUNK_CHECK_EVERY", "0")  # there is no worker
        monkeypatch.setenv("KVTRUNK_FETCH_WAIT_MS", str(wait_ms))
        yield daemon, store
        expect_nothing_held(daemon)


@contextlib.contextmanager
def engines(folder, n, **options):
    made = [Scheduler(folder, True, **options) for _ in range(n)]
    yield made
    for engine in made:
        engine.theirs.shutdown()


def reused(engine, tokens, names=iter(range(1000))):
    """Positions that a request reuses, which ends."""
    before = engine.reused
    engine.run([(str(next(names)), tokens, 1)])
    return engine.reused - before


def evict(daemon):
    """All pages. The last request's END may still be under way."""
    with daemon.connect() as client:
        until(lambda: not client.evict(1 << 20) and client.stats().cached_pages == 0)


def keep(daemon, store, engine, tokens):
    """Serve a prompt that the store copies and the pool loses."""
    pages = store.counts()["pages"]
    assert reused(engine, tokens) == 0
    store.settled(pages + len(tokens) // PAGE)
    evict(daemon)


def test_what_the_pool_lost_is_loaded_for_each_engine(folder, monkeypatch):
    tokens = prompt(1, N)
    with beside_a_store(monkeypatch) as (daemon, store), engines(folder, 2) as (a, b):
        keep(daemon, store, a, tokens)
        assert reused(b, tokens) == WHOLE
        assert reused(a, tokens) == WHOLE  # in place
        evict(daemon)
        assert reused(a, tokens + prompt(2, 10)) == N // PAGE * PAGE
        assert store.counts()["loads"] == 2


def test_a_store_loads_while_a_request_waits_in_the_queue(folder, monkeypatch):
    tokens = prompt(1, N)
    with beside_a_store(monkeypatch) as (daemon, store), engines(folder, 1) as (engine,):
        keep(daemon, store, engine, tokens)
        engine.theirs.add_request(engine.request("queued", tokens, 1))
        while store.settled(0)["loads"] == 0:
            pass
        with daemon.connect() as client:
            assert client.stats().cached_pages == N // PAGE
        engine.run([])
        assert engine.reused == WHOLE


def test_other_requests_run_until_the_answer_has_come(folder, monkeypatch):
    tokens = prompt(1, N)
    with beside_a_store(monkeypatch) as (daemon, store), engines(folder, 1) as (engine,):
        keep(daemon, store, engine, tokens)
        store.freeze()
        engine.theirs.add_request(engine.request("held", tokens, 1))
        engine.theirs.add_request(engine.request("short", prompt(2, 100), 1))
        step = engine.theirs.schedule()
        assert [new.req_id for new in step.scheduled_new_reqs] == ["short"]
        engine.finish(step)
        store.signal(signal.SIGCONT)
        engine.run([])
        assert engine.reused == WHOLE


def test_a_request_that_ends_before_the_answer_leaves_nothing(folder, monkeypatch):
    tokens = prompt(1, N)
    with beside_a_store(monkeypatch) as (daemon, store), engines(folder, 1) as (engine,):
        keep(daemon, store, engine, tokens)
        store.freeze()
        request = engine.request("aborted", tokens)
        engine.theirs.add_request(request)
        engine.theirs.finish_requests("aborted", request.status.FINISHED_ABORTED)
        store.signal(signal.SIGCONT)
        while store.settled(0)["loads"] == 0:
            pass
        assert reused(engine, tokens) == WHOLE
        assert not engine.theirs.kv_cache_manager.states


def test_a_stopped_store_costs_three_short_waits(folder, monkeypatch):
    """Then none is asked for a second. On a busy machine that may pass before the next request, which
    begins to count again."""
    known, others = prompt(1, N), (prompt(seed, N) for seed in itertools.count(2))
    with beside_a_store(monkeypatch, wait_ms=20) as (daemon, store), engines(folder, 1) as (engine,):
        ring = engine.theirs.kv_cache_manager.engine.ring
        keep(daemon, store, engine, known)
        until(lambda: store.settled(0) and not evict(daemon) and reused(engine, known))
        store.freeze()
        asked, fetch = [], ring.fetch
        monkeypatch.setattr(ring, "fetch", lambda *more: asked.append(fetch(*more)) or asked[-1])
        while all(asked):
            assert reused(engine, next(others)) == 0
        assert len(asked) > 1 and len(asked) % 3 == 1


def interrupted(store, engine, tokens, number):
    """Ask for a prompt, and signal the store when the request has begun to wait for the load. Returns
    whether it waited in vain, and how many seconds later it was served."""
    before, begun = engine.reused, time.monotonic()
    request = engine.request(f"interrupted {number} {tokens[:3]}", tokens, 1)
    engine.theirs.add_request(request)
    [state] = engine.theirs.kv_cache_manager.states.values()
    while state.wait_ms == WAIT_MS and not request.is_finished():
        engine.finish(engine.theirs.schedule())
    loads = state.wait_ms != WAIT_MS  # the answer came in time
    store.signal(number)
    engine.run([])
    return loads and engine.reused - before < WHOLE, time.monotonic() - begun


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_a_store_that_ends_or_stops_in_a_load_costs_a_computation(folder, monkeypatch, number):
    big = {"layers": 16, "kv_heads": 8, "n_pages": 320}  # 2 MiB a page
    for seed in range(20):
        tokens = prompt(seed, N)
        with beside_a_store(monkeypatch, "80M", wait_ms=2000, **big) as (daemon, store), \
                engines(folder, 1) as (engine,):
            keep(daemon, store, engine, tokens)
            in_vain, waited = interrupted(store, engine, tokens, number)
            store.signal(signal.SIGCONT)
            assert waited < WAIT_MS / 1000
            if in_vain:
                break
    else:
        raise AssertionError("no load was interrupted")
    if number == signal.SIGSTOP:
        assert waited > 1


def test_a_daemon_that_starts_cold_is_filled_again(folder, monkeypatch):
    tokens = prompt(1, N)
    with beside_a_store(monkeypatch) as (daemon, store), engines(folder, 2) as (a, b):
        keep(daemon, store, a, tokens)
        daemon.restart()
        store.hear("connected again")
        assert reused(a, tokens) == WHOLE
        assert reused(b, tokens) == WHOLE


def test_no_store_is_asked_if_its_name_is_empty(folder, monkeypatch):
    tokens = prompt(1, N)
    with beside_a_store(monkeypatch) as (daemon, store):
        monkeypatch.setenv("KVTRUNK_STORE", "")
        with engines(folder, 1) as (engine,):
            keep(daemon, store, engine, tokens)
            assert reused(engine, tokens) == 0
            assert store.counts()["fetches"] == 0


def test_what_an_engine_forgot_is_not_loaded(folder, monkeypatch):
    first, second = prompt(1, N), prompt(2, N)
    with beside_a_store(monkeypatch) as (daemon, store), engines(folder, 2) as (a, b):
        for tokens in first, second:
            keep(daemon, store, a, tokens)
        reused(b, prompt(3, PAGE))  # before: an engine that starts later has the new name
        a.theirs.reset_prefix_cache()
        assert reused(a, first) == 0
        assert reused(b, first) == WHOLE
        a.theirs.kv_cache_manager.engine.watch.version("other weights")
        assert reused(a, second) == 0
        assert reused(b, second) == WHOLE
        assert store.counts()["loads"] == 2
