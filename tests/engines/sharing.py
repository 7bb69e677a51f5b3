# SPDX-License-Identifier: Apache-2.0
"""Tests that hold for two engines of any kind on one pool: test_share.py of each imports them.
Fixture `engines`: one with a cache of its own, and two that share the daemon's."""
import itertools
import json

from conftest import NEW_EPOCH, PAGE
from engine import all_pages_are_back, counters, expect_nothing_held, prompt, until

SEEDS = itertools.count(1)


def whole(tokens, page=PAGE):
    """Positions of a prompt that can be reused: whole pages, but one position is left."""
    return (len(tokens) - 1) // page * page


def expect_checked_reuse(daemon, private, a, b, page=PAGE, **options):
    """b, which computes one page of each reuse itself and compares, reuses what a computed."""
    text = prompt(1)
    expected = private.generate(text, **options)[0]["tokens"]
    assert a.generate(text, **options)[0] == {"tokens": expected, "cached": 0}
    assert b.generate(text, **options)[0] == {"tokens": expected,
                                              "cached": whole(text, page) - page}
    more = text + expected + prompt(2, 40)
    expected = private.generate(more)[0]["tokens"]
    assert b.generate(more)[0]["tokens"] == expected
    assert a.generate(more)[0] == {"tokens": expected, "cached": whole(more, page)}
    expect_nothing_held(daemon)
    assert counters(daemon).suspected_pages == 0


def test_b_reuses_what_only_a_computed(daemon, engines):
    private, a, b = engines
    text = prompt(next(SEEDS))
    expected = private.generate(text)[0]
    assert expected["cached"] == 0
    assert a.generate(text)[0] == {"tokens": expected["tokens"], "cached": 0}
    assert b.generate(text)[0] == {"tokens": expected["tokens"], "cached": whole(text)}
    expect_nothing_held(daemon)


def test_one_prompt_in_both_at_once_is_computed_once(daemon, engines):
    private, a, b = engines
    for _ in range(3):
        text = prompt(next(SEEDS), 1500)
        expected = private.generate(text)[0]["tokens"]
        for engine in (a, b):
            engine.ask(do="generate", prompts=[text])
        answers = [engine.answer()[0] for engine in (a, b)]
        assert [answer["tokens"] for answer in answers] == [expected] * 2
        assert sorted(answer["cached"] for answer in answers) == [0, whole(text)]
    expect_nothing_held(daemon)


def test_one_prompt_twice_in_one_engine_is_computed_once(engines):
    private, a, _ = engines
    text = prompt(next(SEEDS), 600)
    answers = a.generate(text, text)
    assert [answer["tokens"] for answer in answers] == [private.generate(text)[0]["tokens"]] * 2
    assert sorted(answer["cached"] for answer in answers) == [0, whole(text)]


def test_the_next_turn_reuses_what_another_engine_generated(daemon, engines):
    private, a, b = engines
    first = prompt(next(SEEDS), 100)
    said = a.generate(first, max_tokens=64)[0]["tokens"]
    until(all_pages_are_back, daemon)
    turn = first + said + prompt(next(SEEDS), 40)
    expected = private.generate(turn)[0]["tokens"]
    # The last generated token's KV is computed only when something follows it.
    assert b.generate(turn)[0] == {"tokens": expected,
                                   "cached": (len(first) + 63) // PAGE * PAGE}


def test_a_salt_isolates(engines):
    private, a, b = engines
    text = prompt(next(SEEDS))
    expected = private.generate(text)[0]["tokens"]
    assert a.generate(text, salt="one")[0] == {"tokens": expected, "cached": 0}
    assert b.generate(text, salt="two")[0] == {"tokens": expected, "cached": 0}
    assert b.generate(text)[0] == {"tokens": expected, "cached": 0}
    assert b.generate(text, salt="one")[0] == {"tokens": expected, "cached": whole(text)}


def new_epoch(engine):
    engine.ask(do=NEW_EPOCH)
    assert engine.answer() is True


def test_a_new_epoch_forgets_for_one_engine_only(engines):
    _, a, b = engines
    text = prompt(next(SEEDS))
    expected = a.generate(text)[0]["tokens"]
    new_epoch(a)
    assert a.generate(text)[0] == {"tokens": expected, "cached": 0}
    assert a.generate(text)[0]["cached"] == whole(text)
    assert b.generate(text)[0]["cached"] == whole(text)


def test_a_new_epoch_closes_the_namespaces_before_it(daemon, engines):
    def opened():
        return sum(space["opened"] for space in json.loads(daemon.kvtctl("--json", "namespaces")))

    a = engines[1]
    before = opened()
    for _ in range(4):
        new_epoch(a)
        a.generate(prompt(next(SEEDS)))
    assert opened() <= before + 1  # the last but one is closed later if a lease was just ending


def test_a_daemon_that_is_killed_under_load_is_a_pause(daemon, engines):
    private, a, b = engines
    texts = [prompt(next(SEEDS), 300 + 40 * i) for i in range(4)]
    expected = [answer["tokens"] for answer in private.generate(*texts)]
    for engine in (a, b):
        engine.ask(do="generate", prompts=texts)
    daemon.kill()
    for engine in (a, b):
        assert [answer["tokens"] for answer in engine.answer()] == expected
    expect_nothing_held(daemon)
