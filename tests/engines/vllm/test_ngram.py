# SPDX-License-Identifier: Apache-2.0
"""Speculative decoding by n-grams of the prompt: no KV of a rejected draft is published."""
import pytest
from conftest import PAGE
from engine import counters, expect_nothing_held, prompt

DRAFTS = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3,
          "prompt_lookup_min": 1}
N = 6


@pytest.fixture(scope="module")
def engines(daemon, start):
    """One with a cache of its own that drafts nothing, and two that draft. The last one computes
    one page of each reuse itself, and compares."""
    made = (start(processes=1), start(daemon, speculative_config=DRAFTS),
            start(daemon, processes=1, speculative_config=DRAFTS,
                  environment={"KVTRUNK_CHECK_EVERY": "1"}))
    for engine in made:
        engine.wait()
    return made


def metric(engine, name):
    engine.ask(do="metric", name=f"vllm:spec_decode_num_{name}_tokens")
    return engine.answer()


def test_what_drafts_brought_is_reused(daemon, engines):
    private, a, b = engines
    asked = [prompt(i, 40) * 3 + prompt(i, 7) for i in range(1, N + 1)]
    said = [answer["tokens"] for answer in private.generate(*asked, max_tokens=120)]
    assert [answer["tokens"] for answer in a.generate(*asked, max_tokens=120)] == said
    assert metric(a, "draft") > metric(a, "accepted") > 0
    turns = [text + more + prompt(100 + i, 30) for i, (text, more) in enumerate(zip(asked, said))]
    expected = [answer["tokens"] for answer in private.generate(*turns, max_tokens=60)]
    answers = b.generate(*turns, max_tokens=60)
    assert [answer["tokens"] for answer in answers] == expected
    cached = (len(asked[0]) + len(said[0]) - 1) // PAGE * PAGE
    assert [answer["cached"] for answer in answers] == [cached - PAGE] * N
    assert counters(daemon).suspected_pages == 0 and "was not made" not in b.said()
    expect_nothing_held(daemon)
