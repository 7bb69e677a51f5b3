# SPDX-License-Identifier: Apache-2.0
"""Engines of two ranks: each has a worker process, a slab of the pool and one of two KV heads."""
import os
import signal

import pytest
from conftest import PAGE, Engine, flags
from engine import counters, expect_nothing_held, prompt, until
from sharing import test_b_reuses_what_only_a_computed  # noqa: F401

from kvtrunk import testing

TWO = {"tensor_parallel_size": 2}
SLOW = {**TWO, "max_num_batched_tokens": 64}
VICTIMS = "EngineCore", "Worker_TP0", "Worker_TP1"


@pytest.fixture(scope="module")
def daemon(folder):
    with testing.daemon(**flags(folder, "--tensor-parallel-size", "2")[0]) as made:
        yield made


@pytest.fixture(scope="module")
def victims(daemon, start):
    """Engines to kill, by which process."""
    return {name: start(daemon, **SLOW, processes=3 if name == "EngineCore" else 1)
            for name in VICTIMS}


@pytest.fixture(scope="module")
def engines(daemon, start, victims):
    """One with a cache of its own, and two that share the daemon's pool."""
    made = start(**TWO, processes=1), victims[VICTIMS[0]], start(daemon, **TWO, processes=1)
    for engine in (*made, *victims.values()):
        engine.wait()
    return made


def test_each_rank_lies_in_its_slab(daemon, engines):
    """Their KV heads differ, and so do their bytes."""
    engines[1].generate(prompt(400))
    with daemon.connect(any_geometry=True) as observer:
        assert observer.info.n_slabs == 2 and observer.info.geometry.n_kv_heads == 1
        slabs = [bytes(observer.map_pool(slab).raw) for slab in range(2)]
    assert slabs[0] != slabs[1] and all(any(slab) for slab in slabs)
    said = daemon.kvtctl("clients")
    assert said.count("rank 1 of 3") == said.count("rank 2 of 3") == 4


@pytest.mark.parametrize("victim", VICTIMS)
def test_a_killed_worker_gives_all_pages_back(daemon, engines, victims, victim):
    private, _, b = engines
    engine, text = victims[victim], prompt(300 + VICTIMS.index(victim), 1500)
    before = counters(daemon)
    engine.ask(do="generate", prompts=[text], max_tokens=400)
    until(lambda: counters(daemon).cached_pages >= before.cached_pages + 4)
    os.kill(engine.find(victim), signal.SIGKILL)
    until(lambda: counters(daemon).live_sessions < before.live_sessions)
    cached = counters(daemon).cached_pages - before.cached_pages
    assert 4 <= cached < (len(text) + 400) // PAGE  # in prefill, or soon after: it was not done
    expected = private.generate(text, max_tokens=20)[0]["tokens"]
    answer = b.generate(text, max_tokens=20)[0]
    assert answer == {"tokens": expected, "cached": min(cached, len(text) // PAGE) * PAGE}
    engine.kill()
    expect_nothing_held(daemon)


def test_one_rank_on_two_slabs_is_refused(daemon, folder, tmp_path):
    engine = Engine(folder, tmp_path / "log", daemon, processes=1)
    try:
        with pytest.raises(RuntimeError, match="start it with --tensor-parallel-size 2"):
            engine.wait()
    finally:
        engine.kill()
