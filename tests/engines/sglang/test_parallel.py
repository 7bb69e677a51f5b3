# SPDX-License-Identifier: Apache-2.0
"""Engines of two ranks: each is a scheduler process with a slab of the pool and one of two KV
heads. Both decide alike, from what rank 0 saw."""
import pytest
import ranks
import sharing
from conftest import PAGE, PAGES, Engine, printed
from engine import counters, expect_nothing_held, prompt, started, until
from faults import layers, sealed_by
from sharing import (SEEDS, test_a_salt_isolates, test_b_reuses_what_only_a_computed,  # noqa: F401
                     test_one_prompt_in_both_at_once_is_computed_once,
                     test_one_prompt_twice_in_one_engine_is_computed_once, whole)

from kvtrunk import testing

TWO = {"tp_size": 2}
SLOW = {**TWO, "chunked_prefill_size": 64}
VICTIMS = "sglang::scheduler_TP0", "sglang::scheduler_TP1"


@pytest.fixture(scope="module")
def daemon(folder):
    """With a supervisor: killed, it continues."""
    options, command = printed(folder, PAGES * PAGE * 1024, 2)
    assert "--tp-size 2" in command and f"--max-total-tokens {(PAGES - 1) * PAGE} " in command
    with testing.daemon(supervise=True, **options) as made:
        yield made


@pytest.fixture(scope="module")
def engines(daemon, start):
    """One with a cache of its own, and two that share the daemon's pool."""
    return started(start(**TWO), start(daemon, **TWO), start(daemon, **TWO))


def test_each_rank_lies_in_its_slab(daemon, engines):
    ranks.expect_a_slab_for_each(daemon, engines[1])
    assert daemon.kvtctl("clients").count("rank 1 of 2") == 2


def test_a_pool_too_small_for_both_gives_the_private_texts(daemon, engines):
    """Requests are retracted, by both ranks alike."""
    private, *shared = engines
    asked = {engine: [prompt(next(SEEDS), 400 + 16 * i) for i in range(8)] for engine in shared}
    expected = {engine: [private.generate(text, max_tokens=100)[0]["tokens"] for text in texts]
                for engine, texts in asked.items()}
    for engine, texts in asked.items():
        engine.ask(do="generate", prompts=texts, max_tokens=100)
    for engine in asked:
        assert [answer["tokens"] for answer in engine.answer()] == expected[engine]
    expect_nothing_held(daemon)


def test_a_killed_daemon_is_a_pause(daemon, engines):
    private, a, b = engines
    text = prompt(next(SEEDS), 600)
    expected = private.generate(text, max_tokens=100)[0]["tokens"]
    before = counters(daemon)
    a.ask(do="generate", prompts=[text], max_tokens=100)
    until(lambda: counters(daemon).inserted_pages > before.inserted_pages)
    daemon.kill()
    assert a.answer()[0]["tokens"] == expected
    assert b.generate(text, max_tokens=100)[0]["tokens"] == expected
    expect_nothing_held(daemon)


def test_a_check_of_two_ranks_passes_unless_one_slab_is_damaged(daemon, engines, start):
    checking = start(daemon, environment={"KVTRUNK_CHECK_EVERY": "1"}, **TWO).wait()
    a, text = engines[1], prompt(next(SEEDS))
    pages, tokens = sealed_by(daemon, a, text)
    assert checking.generate(text)[0] == {"tokens": tokens, "cached": whole(text) - PAGE}
    text = prompt(next(SEEDS))
    pages, tokens = sealed_by(daemon, a, text)
    with daemon.connect(any_geometry=True) as observer:
        layers(observer, 1)[0][pages[-1], 0, 3] = 0
    before = counters(daemon).suspected_pages
    checking.ask(do="error", prompt=text)
    assert checking.answer().startswith("503")
    assert counters(daemon).suspected_pages == before + 1
    assert f"page {pages[-1]}, which session" in checking.said()
    assert checking.generate(text)[0] == {"tokens": tokens, "cached": 0}
    expect_nothing_held(daemon)
    checking.kill()


test_a_new_epoch_forgets_for_one_engine_only = sharing.test_a_new_epoch_forgets_for_one_engine_only


@pytest.mark.parametrize("victim", VICTIMS)
def test_a_killed_rank_gives_all_pages_back(daemon, engines, start, victim):
    private, a, _ = engines  # a has forgotten, and shares with engines that start later
    engine = start(daemon, **SLOW).wait()
    ranks.kill_one(daemon, private, a, engine, victim, 300 + VICTIMS.index(victim))


def test_one_rank_on_two_slabs_is_refused(daemon, folder, tmp_path):
    engine = Engine(folder, tmp_path / "log", daemon)
    try:
        with pytest.raises(RuntimeError, match="n_kv_heads 1.* flags MODEL --tp-size 1"):
            engine.wait()
    finally:
        engine.kill()
