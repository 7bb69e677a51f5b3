# SPDX-License-Identifier: Apache-2.0
"""Two whole SGLang engines on one pool: what one computed, the other reads in place."""
import re

import faults
import pytest
import sharing
from conftest import PAGE, PAGES, geometry
from engine import all_pages_are_back, counters, expect_nothing_held, prompt, started, until
from lone import run_out
from sharing import (SEEDS, test_a_salt_isolates, test_b_reuses_what_only_a_computed,  # noqa: F401
                     test_one_prompt_in_both_at_once_is_computed_once,
                     test_one_prompt_twice_in_one_engine_is_computed_once,
                     test_the_next_turn_reuses_what_another_engine_generated, whole)
from stores import stopped

from kvtrunk import testing


@pytest.fixture(scope="module")
def engines(daemon, start):
    """One with a cache of its own, and two that share the daemon's pool. The last has metrics."""
    return started(start(), start(daemon), start(daemon, enable_metrics=True))


@pytest.mark.parametrize("since", [0, 100, 199])
def test_prompt_logprobs_reuse_what_lies_in_front_of_them(daemon, engines, since):
    _, a, b = engines
    text = prompt(next(SEEDS))
    first = a.generate(text)[0]["tokens"]
    assert b.generate(text, return_logprob=True, logprob_start_len=since)[0] == {
        "tokens": first, "cached": since // PAGE * PAGE}
    # All of it is published.
    other = prompt(next(SEEDS))
    first = b.generate(other, return_logprob=True, logprob_start_len=since)[0]["tokens"]
    assert a.generate(other)[0] == {"tokens": first, "cached": whole(other)}
    expect_nothing_held(daemon)


def test_used_tokens_are_those_of_this_engine(daemon, engines):
    _, _, b = engines
    with daemon.connect(any_geometry=True) as other:
        held = other.alloc(PAGES // 2)
        b.generate(prompt(next(SEEDS), 100), max_tokens=60)
        other.free(held)
    *_, (tokens, usage, pool) = re.findall(
        r"#token: (\d+), token usage: ([\d.]+), pool usage: ([\d.]+)", b.said())
    assert 0 < int(tokens) <= 256 and float(usage) < 0.1 and float(pool) > 0.5


def test_a_pool_too_small_for_both_gives_the_private_texts(daemon, engines):
    private, a, b = engines
    asked = {engine: [prompt(next(SEEDS), 240 + 16 * i) for i in range(10)] for engine in (a, b)}
    expected = {}
    for engine, texts in asked.items():
        expected[engine] = [private.generate(text, max_tokens=24)[0]["tokens"] for text in texts]
    for engine, texts in asked.items():
        engine.ask(do="generate", prompts=texts, max_tokens=24)
    for engine in asked:
        assert [answer["tokens"] for answer in engine.answer()] == expected[engine]
    expect_nothing_held(daemon)


def test_a_request_runs_on_what_another_leaves(daemon, engines):
    """Less than its longest answer takes. SGLang's own rule would wait for ever."""
    private, _, b = engines
    text = prompt(next(SEEDS), 540)
    expected = private.generate(text, max_tokens=150)[0]["tokens"]
    with daemon.connect(observe=True) as observer:
        with daemon.connect(any_geometry=True) as other:
            held = len(other.alloc(PAGES - 1 - 40))
            b.ask(do="generate", prompts=[text], max_tokens=150)
            while observer.counters().private_pages == held:
                pass
        assert b.answer()[0]["tokens"] == expected
    expect_nothing_held(daemon)


def test_a_lone_request_that_finds_no_more_room_is_given_back_once(daemon, engines):
    """It continues when there is room for its next token."""
    private, _, b = engines
    text = prompt(next(SEEDS), 108)
    expected = private.generate(text, max_tokens=100)[0]["tokens"]
    assert run_out(daemon, b, PAGES - 1 - 9, text) == (expected, 1)
    expect_nothing_held(daemon)


def test_a_waiting_request_gets_the_room_that_another_engine_frees(daemon, engines):
    """While one of its own still runs: SGLang would look again only when that has ended."""
    _, _, b = engines
    with daemon.connect(any_geometry=True) as other:
        free = 20
        held = other.alloc(PAGES - 1 - free)
        b.ask(do="beside", long=prompt(next(SEEDS), 100), short=prompt(next(SEEDS), 800),
              max_tokens=1200)
        # 11 pages for the first, and 4 more for its next tokens. The second has waited meanwhile.
        while other.counters()["free_pages"] > free - 15:
            pass
        other.free(held)
        then, at_last = b.answer()
    assert then < at_last == 1200
    expect_nothing_held(daemon)


def test_a_waiting_request_gets_the_room_of_the_other_engine_s_requests_when_they_end(daemon, engines):
    """Two engines, and nothing else: the same. Each stands until the other one is where it should be.
    """
    _, a, b = engines
    # 62 to 81 pages for each, 11 to 86 for the other engine's first, and 123 for its second.
    b.ask(do="generate", prompts=[prompt(next(SEEDS), 920) for _ in range(2)], max_tokens=300)
    with daemon.connect(observe=True) as observer:
        now = observer.counters()
        while now.private_pages + now.protected_pages < 2 * 62:
            now = observer.counters()
    with stopped(b.find("sglang::scheduler")):
        said = len(a.said())
        a.ask(do="beside", long=prompt(next(SEEDS), 100), short=prompt(next(SEEDS), 1900),
              max_tokens=1200)
        until(lambda: "#queue-req: 1" in a.said()[said:])
    with stopped(a.find("sglang::scheduler")):
        assert len(b.answer()) == 2
    then, at_last = a.answer()
    assert then < at_last == 1200
    expect_nothing_held(daemon)


def test_a_request_that_finds_no_room_is_counted_once(daemon, engines):
    """However often the daemon refuses it."""
    _, _, b = engines

    def refused():
        return max([0, *map(int, re.findall(r"pool usage: [\d.]+, refused requests: (\d+)",
                                            b.said()))])

    def metric():
        b.ask(do="counted", name="sglang:kvtrunk_refused_requests_total")
        return b.answer()

    before, counted = refused(), metric()
    with daemon.connect(any_geometry=True) as other:
        held = other.alloc(PAGES - 1 - 4)
        attempts = counters(daemon).refusals
        b.ask(do="generate", prompts=[prompt(next(SEEDS), 300)], max_tokens=40)
        until(lambda: counters(daemon).refusals > attempts)
        other.free(held)
        b.answer()
    assert refused() == before + 1
    assert metric() == {**counted, "all_locked": counted.get("all_locked", 0) + 1}
    expect_nothing_held(daemon)


def test_what_a_waiting_request_will_reuse_is_evicted_last(daemon, engines):
    """Though it is not tried: one in front of it has no room."""
    _, _, b = engines
    old, new = prompt(next(SEEDS)), prompt(next(SEEDS))
    for text in old, new:
        b.generate(text, max_tokens=1)
    until(all_pages_are_back, daemon)
    n = whole(old) // PAGE
    with daemon.connect(any_geometry=True) as other:
        held = other.alloc(PAGES - 1 - 2 * n)  # all others were older
        refusals = other.counters().refusals
        b.ask(do="generate", prompts=[prompt(next(SEEDS), 3 * n * PAGE), old], max_tokens=1)
        until(lambda: other.counters().refusals > refusals)
        before = other.counters().operations  # from now on only the waiting requests cause any
        until(lambda: other.counters().operations >= before + 6)
        held += other.alloc(n)
        other.free(held)
    assert [answer["cached"] for answer in b.answer()] == [0, whole(old)]
    expect_nothing_held(daemon)


def test_a_request_that_runs_is_answered_while_the_daemon_is_stopped(daemon, engines):
    """And one that comes meanwhile when it runs again."""
    private, _, b = engines
    texts = [prompt(next(SEEDS), 100) for _ in range(2)]
    expected = [private.generate(text, max_tokens=40)[0]["tokens"] for text in texts]
    with daemon.connect(observe=True) as observer:
        pid = observer.info.daemon_pid
        b.ask(do="generate", prompts=texts[:1], max_tokens=40)
        while not observer.counters().private_pages:
            pass
        with stopped(pid):
            assert b.answer()[0]["tokens"] == expected[0]
            b.ask(do="generate", prompts=texts[1:], max_tokens=40)
            until(lambda: "has not answered for" in b.said())
        assert b.answer()[0]["tokens"] == expected[1]
    expect_nothing_held(daemon)


test_a_daemon_that_is_killed_under_load_is_a_pause = \
    sharing.test_a_daemon_that_is_killed_under_load_is_a_pause
test_no_engine_writes_a_sealed_page_and_what_else_does_is_found = \
    faults.test_no_engine_writes_a_sealed_page_and_what_else_does_is_found


test_a_new_epoch_forgets_for_one_engine_only = sharing.test_a_new_epoch_forgets_for_one_engine_only
test_a_new_epoch_closes_the_namespaces_before_it = \
    sharing.test_a_new_epoch_closes_the_namespaces_before_it


def test_engines_that_flush_share_again(engines, start, daemon):
    _, a, b = engines
    for engine in (a, b):
        engine.ask(do="flush")
        assert engine.answer() is True
    text = prompt(next(SEEDS))
    expected = a.generate(text)[0]["tokens"]
    assert b.generate(text)[0] == {"tokens": expected, "cached": whole(text)}


def test_an_engine_killed_in_prefill_holds_nobody_up(daemon, engines, start):
    private, a, b = engines
    text = prompt(next(SEEDS), 1900)
    expected = private.generate(text)[0]["tokens"]
    with daemon.connect(observe=True) as observer:
        before = observer.counters().inserted_pages
        a.ask(do="generate", prompts=[text])
        while observer.counters().inserted_pages == before:
            pass
    a.kill()
    assert b.generate(text)[0]["tokens"] == expected
    expect_nothing_held(daemon)
    assert start(daemon).generate(text)[0] == {"tokens": expected, "cached": whole(text)}


def test_after_a_new_daemon_requests_are_computed_again(daemon, engines):
    """Without what the old one knew: a stop ends its sessions and its cache."""
    private, _, b = engines
    texts = [prompt(next(SEEDS), 300 + 40 * i) for i in range(4)]
    expected = [answer["tokens"] for answer in private.generate(*texts, max_tokens=40)]
    with daemon.connect(observe=True) as observer:
        before = observer.counters().inserted_pages
        b.ask(do="generate", prompts=texts, max_tokens=40)
        while observer.counters().inserted_pages == before:
            pass
    daemon.restart()
    assert [answer["tokens"] for answer in b.answer()] == expected
    b.generate(texts[0])
    assert b.generate(texts[0])[0]["cached"] == whole(texts[0])
    expect_nothing_held(daemon)


def test_pages_of_one_position(engines, start):
    private = engines[0]
    text = prompt(next(SEEDS), 301)
    expected = private.generate(text)[0]["tokens"]
    with testing.daemon(**geometry(page_size=1, n_pages=2048)) as fine:
        engine = start(fine, page_size=1, pages=2048)
        assert engine.generate(text)[0] == {"tokens": expected, "cached": 0}
        assert engine.generate(text)[0] == {"tokens": expected, "cached": 300}
        answers = engine.generate(*[text[:100 + 50 * i] + [7, 8, 9] for i in range(4)])
        assert [answer["cached"] for answer in answers] == [100, 150, 200, 250]
        expect_nothing_held(fine)
        engine.kill()
