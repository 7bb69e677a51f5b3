# SPDX-License-Identifier: Apache-2.0
"""Tests of engines of two ranks, for any engine: test_parallel.py of each."""
import os
import signal

from conftest import PAGE
from engine import counters, expect_nothing_held, prompt, until


def expect_a_slab_for_each(daemon, engine):
    """Their KV heads differ, and so do their bytes."""
    engine.generate(prompt(400))
    with daemon.connect(any_geometry=True) as observer:
        assert observer.info.n_slabs == 2 and observer.info.geometry.n_kv_heads == 1
        slabs = [bytes(observer.map_pool(slab).raw) for slab in range(2)]
    assert slabs[0] != slabs[1] and all(any(slab) for slab in slabs)


def kill_one(daemon, private, other, engine, victim, seed, **more):
    """Kill a process of an engine that computes, alone: the other one reads what it cached, and all
    pages come back. more: of its request."""
    text, pid = prompt(seed, 1500), engine.find(victim)
    daemon.kvtctl("reset")  # no page is evicted for what is counted
    until(lambda: counters(daemon).cached_pages == 0)
    engine.ask(do="generate", prompts=[text], max_tokens=400, **more)
    until(lambda: counters(daemon).cached_pages >= 4)
    os.kill(pid, signal.SIGKILL)
    expect_nothing_held(daemon)
    cached = counters(daemon).cached_pages
    assert cached >= 4  # in prefill; a fast engine may have gone further
    expected = private.generate(text, max_tokens=20)[0]["tokens"]
    answer = other.generate(text, max_tokens=20)[0]
    assert answer == {"tokens": expected, "cached": min(cached, len(text) // PAGE) * PAGE}
    engine.kill()
    expect_nothing_held(daemon)
