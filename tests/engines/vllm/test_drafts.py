# SPDX-License-Identifier: Apache-2.0
"""Speculative decoding with a draft layer (EAGLE), whose KV is in the pages."""
import json

import model
import pytest
from conftest import PAGE, flags
from engine import counters, expect_nothing_held, prompt
from kills import kill_at, order  # noqa: F401

from kvtrunk import testing

N = 6


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return model.write(tmp_path_factory.mktemp("model"), embedding=150)


@pytest.fixture(scope="module")
def drafts(tmp_path_factory):
    head = model.write_eagle(tmp_path_factory.mktemp("head"))
    return {"method": "eagle", "model": str(head), "num_speculative_tokens": 3}


@pytest.fixture(scope="module")
def daemon(folder, drafts):
    options, command = flags(folder, "--speculative-config", json.dumps(drafts))
    assert options["n_layers"] == "3" and json.dumps(drafts) in command
    with testing.daemon(**options) as made:
        yield made


@pytest.fixture(scope="module")
def engines(daemon, drafts, start, order):  # noqa: F811
    """One with a cache of its own that drafts nothing, and two that draft. The last one computes
    one page of each reuse itself, and compares."""
    made = (start(processes=1), start(daemon, speculative_config=drafts,
                                      environment={"KILL": str(order)}),
            start(daemon, processes=1, speculative_config={**drafts, "num_speculative_tokens": 2},
                  environment={"KVTRUNK_CHECK_EVERY": "1"}))
    for engine in made:
        engine.wait()
    return made


def metric(engine, name):
    engine.ask(do="metric", name=f"vllm:spec_decode_num_{name}_tokens")
    return engine.answer()


def test_what_drafts_brought_is_reused(daemon, engines):
    private, a, b = engines
    asked = [prompt(i, 90) for i in range(1, N + 1)]
    said = [answer["tokens"] for answer in private.generate(*asked, max_tokens=135)]
    assert [answer["tokens"] for answer in a.generate(*asked, max_tokens=135)] == said
    assert metric(a, "draft") > metric(a, "accepted") > 100
    turns = [text + more + prompt(100 + i, 30) for i, (text, more) in enumerate(zip(asked, said))]
    expected = [answer["tokens"] for answer in private.generate(*turns, max_tokens=60)]
    # Each turn is computed once, and all but a page of it that is compared is reused.
    answers = b.generate(*turns, max_tokens=60)
    assert [answer["tokens"] for answer in answers] == expected
    cached = (90 + 135 - 1) // PAGE * PAGE
    assert [answer["cached"] for answer in answers] == [cached - PAGE] * N
    turns = [text + more + [7] for text, more in zip(turns, expected)]
    expected = [answer["tokens"] for answer in private.generate(*turns)]
    answers = a.generate(*turns)
    assert [answer["tokens"] for answer in answers] == expected
    assert [answer["cached"] for answer in answers] == [len(turns[0]) // PAGE * PAGE] * N
    assert counters(daemon).suspected_pages == 0 and "was not made" not in b.said()
    expect_nothing_held(daemon)


def test_a_page_is_found_only_with_the_token_behind_it(daemon, engines):
    """Its last draft KV depends on that token."""
    private, a, _ = engines
    head = prompt(50, 2 * PAGE)
    for behind, cached in ([7, 8], 0), ([7, 9], 2 * PAGE), ([8, 9], PAGE), ([8, 7], 2 * PAGE):
        expected = private.generate(head + behind)[0]["tokens"]
        assert a.generate(head + behind)[0] == {"tokens": expected, "cached": cached}
    expect_nothing_held(daemon)


def test_a_kill_while_it_drafts(daemon, engines, order):  # noqa: F811
    private, a, b = engines
    kill_at("EXTEND", "EngineCore", daemon, order, [private, b, a])
