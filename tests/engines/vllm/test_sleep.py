# SPDX-License-Identifier: Apache-2.0
"""Engines that sleep, and engines whose weights change.

On the CPU vLLM's workers keep their memory when they sleep. The tests see what the engine's core asks
of the adapter: requests end, and the cache is kept, or forgotten for this engine.
"""
import pytest
from conftest import PAGE
from engine import expect_nothing_held, prompt, started


def cached(n):
    """Positions of a prompt of n that another request finds."""
    return (n - 1) // PAGE * PAGE


@pytest.fixture(scope="module", name="engines")
def make_engines(daemon, start):
    return started(start(daemon, processes=1), start(daemon, processes=1), start(processes=1))


def do(engine, what, **more):
    engine.ask(do=what, **more)
    return engine.answer()


def test_a_pause_keeps_the_cache(daemon, engines):
    a, b, private = engines
    text = prompt(6000, 300)
    expected = private.generate(text)[0]["tokens"]
    assert a.generate(text)[0] == {"tokens": expected, "cached": 0}
    do(a, "sleep", level=0)
    expect_nothing_held(daemon)
    assert b.generate(text)[0] == {"tokens": expected, "cached": cached(300)}
    do(a, "wake")
    assert a.generate(text)[0] == {"tokens": expected, "cached": cached(300)}


def test_sleep_forgets_for_one_engine_as_a_reset_does(daemon, engines):
    a, b, private = engines
    text = prompt(6001, 300)
    expected = private.generate(text)[0]["tokens"]
    assert a.generate(text)[0] == {"tokens": expected, "cached": 0}
    for level in (1, 2):
        do(a, "sleep", level=level)
        expect_nothing_held(daemon)
        assert b.generate(text)[0] == {"tokens": expected, "cached": cached(300)}
        do(a, "wake")
        assert a.generate(text)[0] == {"tokens": expected, "cached": 0}
        assert a.generate(text)[0] == {"tokens": expected, "cached": cached(300)}


def test_new_weights_find_nothing_that_the_old_ones_made(engines):
    a, b, private = engines
    text = prompt(6100, 300)
    old = private.generate(text)[0]["tokens"]
    assert a.generate(text)[0]["tokens"] == old
    for engine in (a, private):
        do(engine, "reweigh", factor=0.75)
        do(engine, "reset")
    new = private.generate(text)[0]
    assert new["cached"] == 0 and new["tokens"] != old
    assert a.generate(text)[0] == new
    assert b.generate(text)[0]["tokens"] == old
    assert a.generate(text)[0] == {"tokens": new["tokens"], "cached": cached(300)}
