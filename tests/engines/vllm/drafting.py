# SPDX-License-Identifier: Apache-2.0
"""An engine with a cache of its own, which does not draft, and two on the pool that draft. The last
one computes one page of each reuse itself, and compares."""
from conftest import PAGE
from engine import all_pages_are_back, counters, expect_nothing_held, prompt, until


def metric(engine, name):
    engine.ask(do="metric", name=f"vllm:spec_decode_num_{name}_tokens")
    return engine.answer()


def expect_drafts_reused(daemon, engines, asked, max_tokens, least):
    """a answers with more than `least` accepted drafts, and b reuses all of it but a page. Returns
    the next turns and what was said in them."""
    private, a, b = engines
    said = [answer["tokens"] for answer in private.generate(*asked, max_tokens=max_tokens)]
    assert [answer["tokens"] for answer in a.generate(*asked, max_tokens=max_tokens)] == said
    until(all_pages_are_back, daemon)
    assert metric(a, "draft") > metric(a, "accepted") > least
    turns = [text + more + prompt(100 + i, 30) for i, (text, more) in enumerate(zip(asked, said))]
    expected = [answer["tokens"] for answer in private.generate(*turns, max_tokens=60)]
    answers = b.generate(*turns, max_tokens=60)
    assert [answer["tokens"] for answer in answers] == expected
    cached = (len(asked[0]) + max_tokens - 1) // PAGE * PAGE
    assert [answer["cached"] for answer in answers] == [cached - PAGE] * len(asked)
    assert counters(daemon).suspected_pages == 0 and "was not made" not in b.said()
    expect_nothing_held(daemon)
    return turns, expected
