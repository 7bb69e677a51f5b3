# SPDX-License-Identifier: Apache-2.0
"""Engines of two ranks: each has a worker process, a slab of the pool and one of two KV heads."""
import model
import pytest
import ranks
from conftest import PAGE, Engine, flags
from engine import all_pages_are_back, counters, expect_nothing_held, prompt, until
from faults import layers, sealed_by
from sharing import test_b_reuses_what_only_a_computed, whole  # noqa: F401

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
def sharing_one(daemon, start):
    """One that is not killed."""
    return start(daemon, **TWO, processes=1)


@pytest.fixture(scope="module")
def engines(start, victims, sharing_one):
    """One with a cache of its own, and two that share the daemon's pool."""
    made = start(**TWO, processes=1), victims[VICTIMS[0]], sharing_one
    for engine in (*made, *victims.values()):
        engine.wait()
    return made


def test_each_rank_lies_in_its_slab(daemon, engines):
    ranks.expect_a_slab_for_each(daemon, engines[1])
    said = daemon.kvtctl("clients")
    assert said.count("rank 1 of 3") == said.count("rank 2 of 3") == 4


def test_a_check_of_two_ranks_passes_unless_one_slab_is_damaged(daemon, sharing_one, start):
    checking = start(daemon, **TWO, processes=1, environment={"KVTRUNK_CHECK_EVERY": "1"})
    a, before = sharing_one, counters(daemon).suspected_pages
    text, damaged = prompt(410), prompt(411)
    _, tokens = sealed_by(daemon, a, text)
    assert checking.generate(text)[0] == {"tokens": tokens, "cached": whole(text) - PAGE}
    assert counters(daemon).suspected_pages == before
    pages, tokens = sealed_by(daemon, a, damaged)
    with daemon.connect(any_geometry=True) as observer:
        layers(observer, 1)[0][pages[-1], 0, 3] = 0
    assert checking.generate(damaged)[0]["tokens"] == tokens
    assert counters(daemon).suspected_pages == before + 1
    assert f"page {pages[-1]}, which session" in checking.said()
    expect_nothing_held(daemon)
    checking.kill()


@pytest.mark.parametrize("victim", VICTIMS)
def test_a_killed_worker_gives_all_pages_back(daemon, engines, victims, victim):
    private, _, b = engines
    ranks.kill_one(daemon, private, b, victims[victim], victim, 300 + VICTIMS.index(victim))


def test_ranks_have_side_pages_in_their_slabs(start, tmp_path_factory):
    folder = model.write(tmp_path_factory.mktemp("model"),
                         **model.windows("gpt-oss", sliding_window=128))
    said, _ = flags(folder, "--tensor-parallel-size", "2")
    assert (said["n_slabs"], said["sides"]) == ("2", "4")
    with testing.daemon(**said) as sided:
        a, b = (start(sided, folder=folder, **TWO, processes=1) for _ in range(2))
        head = prompt(420, 5 * PAGE)
        for i, (engine, cached) in enumerate(((a, 0), (b, 0), (a, len(head)))):
            text = head + prompt(421 + i, PAGE + 7)  # the second one makes a point behind the head
            tokens = engine.generate(text, salt="cold")[0]["tokens"]
            assert engine.generate(text)[0] == {"tokens": tokens, "cached": cached}
            other = b if engine is a else a
            assert other.generate(text)[0] == {"tokens": tokens, "cached": whole(text)}
            until(all_pages_are_back, sided)
        expect_nothing_held(sided)
        for engine in a, b:
            engine.kill()


def test_one_rank_on_two_slabs_is_refused(daemon, folder, tmp_path):
    engine = Engine(folder, tmp_path / "log", daemon, processes=1)
    try:
        with pytest.raises(RuntimeError, match="start it with --tensor-parallel-size 2"):
            engine.wait()
    finally:
        engine.kill()
