# SPDX-License-Identifier: Apache-2.0
"""Tests that hold for two engines of any kind beside a store: test_store.py of each imports them.
Fixture `engines`: one with a cache of its own, and two that share the daemon's; `daemon`: one that
starts cold when it is started again."""
import itertools
import select
import signal
import time

import pytest
import stores
from conftest import PAGE
from engine import all_pages_are_back, counters, expect_nothing_held, prompt, until
from sharing import new_epoch, whole

from kvtrunk.engine._ring import WAIT_MS

N = 480
PATIENT = {"KVTRUNK_FETCH_WAIT_MS": "5000"}
"""Environment of an engine on a busy machine, where an answer and a load take longer."""
SEEDS = itertools.count(5000)


@pytest.fixture(scope="module")
def page():
    """Positions of a page."""
    return PAGE


@pytest.fixture
def store(daemon, engines):
    """One that both engines have asked."""
    with stores.running(daemon, "64M", "--load-percent=50") as store:
        for engine in engines[1:]:
            be_asked(store, engine)
        yield store


def be_asked(store, engine):
    """An engine looks for a store once a second."""
    asked = store.counts()["fetches"]
    until(lambda: engine.generate(prompt(next(SEEDS), N), max_tokens=1) and
          store.counts()["fetches"] > asked)


def copied(daemon, store):
    """Wait until the store has all that engines computed. Their last COMMIT may still be under way.
    """
    until(all_pages_are_back, daemon)
    store.settled(0)


def keep(daemon, store, engine):
    """A prompt that an engine computes, the store copies, and the pool loses. Returns it and its
    tokens."""
    text = prompt(next(SEEDS), N)
    tokens = engine.generate(text)[0]["tokens"]
    copied(daemon, store)
    with daemon.connect() as client:
        client.evict(1 << 20)
    return text, tokens


def test_what_other_traffic_evicted_is_loaded(daemon, engines, store, page):
    private, a, b = engines
    text = prompt(next(SEEDS), N)
    tokens = private.generate(text)[0]["tokens"]
    assert a.generate(text)[0]["tokens"] == tokens
    copied(daemon, store)
    now = counters(daemon)
    while counters(daemon).evicted_pages < now.evicted_pages + now.cached_pages:
        a.generate(prompt(next(SEEDS), N), max_tokens=1)
    loaded = store.counts()["loaded_pages"]
    assert b.generate(text)[0] == {"tokens": tokens, "cached": whole(text, page)}
    assert store.settled(0)["loaded_pages"] > loaded
    expect_nothing_held(daemon)


def test_a_daemon_that_starts_cold_is_filled_again(daemon, engines, store):
    _, a, b = engines
    text, tokens = keep(daemon, store, a)
    daemon.restart()
    store.hear("connected again")
    for engine in a, b:
        until(lambda: engine.generate(text)[0] == {"tokens": tokens, "cached": whole(text)})
    assert store.counts()["loads"]
    expect_nothing_held(daemon)


def interrupt(store, engine, number):
    """Send a signal in a load for an engine that was asked. False: it answers, and none was seen."""
    while not select.select([engine.process.stdout], [], [], 0)[0]:
        if store.counts()["open_loads"]:
            store.signal(number)
            return True
    return False


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_a_load_that_is_interrupted_costs_a_computation(daemon, engines, store, number):
    _, a, b = engines
    for _ in range(200):  # most loads end before they are seen
        text, tokens = keep(daemon, store, a)
        begun = time.monotonic()
        b.ask(do="generate", prompts=[text])
        seen = interrupt(store, b, number)
        answer = b.answer()[0]
        assert answer["tokens"] == tokens
        # One that was killed is not there for another try.
        if seen and (number == signal.SIGKILL or answer["cached"] < whole(text)):
            break
        store.signal(signal.SIGCONT)
    else:
        raise AssertionError("no load was interrupted")
    assert time.monotonic() - begun < WAIT_MS / 1000  # as another engine may hold it up
    store.signal(signal.SIGCONT)
    expect_nothing_held(daemon)


def test_what_an_engine_forgot_is_not_loaded(daemon, engines, store):
    """Not after a cold start either, when the daemon does not know of it."""
    _, a, b = engines
    first, tokens = keep(daemon, store, a)
    second, _ = keep(daemon, store, a)
    new_epoch(a)
    assert a.generate(first)[0] == {"tokens": tokens, "cached": 0}
    assert b.generate(first)[0] == {"tokens": tokens, "cached": whole(first)}
    daemon.restart()
    store.hear("connected again")
    be_asked(store, a)
    assert a.generate(second)[0]["cached"] == 0
