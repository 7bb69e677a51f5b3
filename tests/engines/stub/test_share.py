# SPDX-License-Identifier: Apache-2.0
"""Two small engines on one pool: all that holds for vLLM and SGLang holds for them."""
import numpy as np
import pytest
import sharing
from conftest import OPTIONS, PAGE, PAGES
from engine import counters, expect_nothing_held, prompt, started, until
from faults import stored_by
from sharing import (SEEDS, test_a_salt_isolates, test_b_reuses_what_only_a_computed,  # noqa: F401
                     test_one_prompt_in_both_at_once_is_computed_once,
                     test_one_prompt_twice_in_one_engine_is_computed_once,
                     test_the_next_turn_reuses_what_another_engine_generated, whole)
from stores import stopped

from kvtrunk import testing


@pytest.fixture(scope="module")
def engines(daemon, start):
    """One without kvtrunk, and two that share the daemon's pool."""
    return started(start(), start(daemon), start(daemon))


def test_a_wrong_page_gives_another_text(daemon, engines):
    """So the other tests see one."""
    private, a, b = engines
    text = prompt(next(SEEDS))
    pages = stored_by(daemon, a, text)
    with daemon.connect() as other:
        for layer in other.pool.layers():
            for part in (layer.k, layer.v):
                values = np.asarray(part)
                values[pages[4]] = values[pages[7]]
        del values, part, layer
    answer = b.generate(text)[0]
    assert answer["cached"] == whole(text)
    assert answer["tokens"] != private.generate(text)[0]["tokens"]


def test_a_pool_too_small_for_both_gives_the_private_texts(daemon, engines):
    private, a, b = engines
    asked = {engine: [prompt(next(SEEDS), 240 + 16 * i) for i in range(14)] for engine in (a, b)}
    expected = {engine: [answer["tokens"] for answer in private.generate(*texts, max_tokens=100)]
                for engine, texts in asked.items()}
    refusals = counters(daemon).refusals
    for engine, texts in asked.items():
        engine.ask(do="generate", prompts=texts, max_tokens=100)
    for engine in asked:
        assert [answer["tokens"] for answer in engine.answer()] == expected[engine]
    assert counters(daemon).refusals > refusals
    expect_nothing_held(daemon)


def test_a_request_that_can_never_fit_is_refused_in_words(daemon, engines):
    engines[1].ask(do="error", prompt=prompt(next(SEEDS)), max_tokens=PAGES * PAGE)
    assert engines[1].answer() == (
        f"{PAGES * PAGE + 200} positions do not fit a pool of {(PAGES - 1) * PAGE}: ask for fewer "
        "tokens, or start the daemon with more n_pages")
    expect_nothing_held(daemon)


@pytest.mark.parametrize("steps", range(12))
def test_cancelled_requests_leave_nothing_and_change_no_answer(daemon, engines, steps):
    private, a, b = engines
    head = prompt(next(SEEDS), 150)
    texts = [head + prompt(next(SEEDS), 20 * i) for i in range(6)]
    expected = private.generate(*texts, max_tokens=40)
    a.ask(do="cancelled", prompts=texts, max_tokens=40, steps=steps)
    assert [answer["tokens"] for answer in a.answer()] == [
        answer["tokens"] for answer in expected[1::2]]
    expect_nothing_held(daemon)
    assert [answer["tokens"] for answer in b.generate(*texts, max_tokens=40)] == [
        answer["tokens"] for answer in expected]


def test_a_request_that_is_cancelled_before_its_lease_comes_gives_it_back(daemon, engines):
    engines[1].generate(prompt(next(SEEDS)))  # its namespace is open
    engines[1].ask(do="cancelled late", prompt=prompt(next(SEEDS)), pid=daemon.child)
    assert engines[1].answer() > 0
    expect_nothing_held(daemon)


def test_a_request_waits_while_the_daemon_is_stopped(daemon, engines):
    private, a, _ = engines
    text = prompt(next(SEEDS), 100)
    expected = private.generate(text)[0]["tokens"]
    with stopped(daemon.child):
        a.ask(do="generate", prompts=[text])
        until(lambda: "has not answered for" in a.said())
    assert a.answer()[0]["tokens"] == expected
    expect_nothing_held(daemon)


test_a_daemon_that_is_killed_under_load_is_a_pause = \
    sharing.test_a_daemon_that_is_killed_under_load_is_a_pause
test_a_new_epoch_forgets_for_one_engine_only = sharing.test_a_new_epoch_forgets_for_one_engine_only
test_a_new_epoch_closes_the_namespaces_before_it = \
    sharing.test_a_new_epoch_closes_the_namespaces_before_it


def test_a_step_ends_that_asks_a_stopped_daemon_for_its_name(daemon, engines):
    private, a, _ = engines
    text = prompt(next(SEEDS))
    a.ask(do="forgotten late", prompt=text, max_tokens=8, pid=daemon.child)
    assert a.answer() == private.generate(text, max_tokens=8)
    expect_nothing_held(daemon)


def test_after_a_new_daemon_requests_are_computed_again(engines, start):
    """Nothing continues the sessions of one that is killed. The last two wait for the first two."""
    texts = [prompt(next(SEEDS), 300 + 40 * i) for i in range(4)]
    texts += texts[:2]
    expected = [answer["tokens"] for answer in engines[0].generate(*texts, max_tokens=40)]
    with testing.daemon(**OPTIONS) as lone:
        engine = start(lone)
        with lone.connect(observe=True) as observer:
            engine.ask(do="generate", prompts=texts, max_tokens=40)
            while not observer.counters().inserted_pages:
                pass
            lone.kill()
        lone.start()
        assert [answer["tokens"] for answer in engine.answer()] == expected
        engine.generate(texts[0])
        assert engine.generate(texts[0])[0]["cached"] == whole(texts[0])
        expect_nothing_held(lone)
        engine.kill()
