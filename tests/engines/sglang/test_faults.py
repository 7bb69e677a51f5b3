# SPDX-License-Identifier: Apache-2.0
"""Pages of the pool that are not what an engine computes: its first check finds them."""
import itertools

import pytest
from conftest import PAGE
from engine import counters, expect_nothing_held, prompt
from sharing import whole

SEEDS = itertools.count(8000)
LENGTH = 200


@pytest.fixture(scope="module")
def pair(daemon, start):
    """One that computes, and one that checks each page of the other that it reads, with its prompts
    in other chunks."""
    made = start(daemon), start(daemon, chunked_prefill_size=64,
                                environment={"KVTRUNK_CHECK_EVERY": "1"})
    for engine in made:
        engine.wait()
    return made


def sealed_by(observer, engine, text):
    """The pages that an engine computes of a prompt, in order, and what it generates."""
    import torch

    parts = [torch.from_dlpack(part) for layer in observer.pool.layers()
             for part in (layer.k, layer.v)]
    before = parts[0].clone()
    tokens = engine.generate(text)[0]["tokens"]
    changed = [page for page in range(1, len(before)) if not (before[page] == parts[0][page]).all()]
    return parts, changed[:len(text) // PAGE], tokens


def test_what_is_right_passes_chunked_and_batched(daemon, pair):
    a, b = pair
    texts = [prompt(next(SEEDS), 150 + 20 * i) for i in range(8)]
    a.generate(*texts)
    more = [[*text, *prompt(next(SEEDS), 100)] for text in texts]
    found = b.generate(*more)
    assert [answer["cached"] for answer in found] == [
        len(text) // PAGE * PAGE - PAGE for text in texts]
    assert [answer["tokens"] for answer in found] == [
        answer["tokens"] for answer in a.generate(*more)]
    assert counters(daemon).suspected_pages == 0
    expect_nothing_held(daemon)


@pytest.mark.parametrize("at", [-1, 2], ids=["the last page", "one before it"])
def test_a_damaged_page_is_found(daemon, pair, folder, at):
    """The one before is found by what the last page's positions attend to."""
    a, b = pair
    text, held = prompt(next(SEEDS), LENGTH), prompt(next(SEEDS), LENGTH)
    before = counters(daemon).suspected_pages
    with daemon.connect(any_geometry=True) as observer:
        parts, pages, tokens = sealed_by(observer, a, text)
        a.generate(held)
        for part in parts:
            part[pages[at], 1] = 0
    b.ask(do="error", prompt=text)
    refused = b.answer()
    assert refused.startswith("503") and "not what this engine computes" in refused
    assert counters(daemon).suspected_pages == before + 1
    assert f"page {pages[-1]}, which session" in b.said()
    assert b.generate(text)[0] == {"tokens": tokens, "cached": 0}
    assert b.generate(held)[0]["cached"] == 0
    assert b.generate(held)[0]["cached"] == whole(held)  # its own
    expect_nothing_held(daemon)
    # Weights from disk end its being alone.
    b.ask(do="weights", model_path=str(folder))
    assert b.answer() is True
    assert b.generate(held)[0]["cached"] == whole(held) - PAGE
