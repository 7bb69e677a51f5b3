# SPDX-License-Identifier: Apache-2.0
"""Engines of two ranks: each has a worker process, a slab of the pool and one of two KV heads."""
import pytest
import ranks
from conftest import Engine, flags
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
    ranks.expect_a_slab_for_each(daemon, engines[1])
    said = daemon.kvtctl("clients")
    assert said.count("rank 1 of 3") == said.count("rank 2 of 3") == 4


@pytest.mark.parametrize("victim", VICTIMS)
def test_a_killed_worker_gives_all_pages_back(daemon, engines, victims, victim):
    private, _, b = engines
    ranks.kill_one(daemon, private, b, victims[victim], victim, 300 + VICTIMS.index(victim))


def test_one_rank_on_two_slabs_is_refused(daemon, folder, tmp_path):
    engine = Engine(folder, tmp_path / "log", daemon, processes=1)
    try:
        with pytest.raises(RuntimeError, match="start it with --tensor-parallel-size 2"):
            engine.wait()
    finally:
        engine.kill()
