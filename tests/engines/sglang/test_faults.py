# SPDX-License-Identifier: Apache-2.0
"""Faults that no name knows, in an engine's model and in the pool's pages: the first check of two
whole engines finds each."""
import itertools
import re

import model
import pytest
from conftest import PAGE, geometry
from engine import counters, expect_nothing_held, prompt, started, until
from faults import layers, scrubber, sealed_by
from sharing import whole

from kvtrunk import testing

SEEDS = itertools.count(8000)
LENGTH = 200


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def dtype(request):
    return request.param


@pytest.fixture(scope="module")
def folder(dtype, tmp_path_factory):
    return model.write(tmp_path_factory.mktemp("model"), dtype=dtype)


@pytest.fixture(scope="module")
def daemon(dtype):
    with testing.daemon(**geometry(kv_type="fp32" if dtype == "float32" else "bf16")) as made:
        yield made


@pytest.fixture(scope="module")
def fault(tmp_path_factory):
    """The file of the second engine's fault."""
    path = tmp_path_factory.mktemp("planted") / "fault"
    path.write_text("")
    return path


@pytest.fixture(scope="module")
def pair(daemon, folder, start, fault):
    """One that computes, and one that checks each page of the other that it reads, with its prompts
    in other chunks."""
    return started(start(daemon, folder=folder),
                   start(daemon, folder=folder, chunked_prefill_size=64,
                         environment={"KVTRUNK_CHECK_EVERY": "1", "PLANT": str(fault)}))


@pytest.fixture
def trusting(pair, folder, fault):
    """The two engines, without the faults of earlier tests."""
    yield pair
    fault.write_text("")
    pair[1].generate(prompt(next(SEEDS)))
    # Weights from disk end its being alone.
    pair[1].ask(do="weights", model_path=str(folder))
    assert pair[1].answer() is True


def expect_found(daemon, engine, text, page):
    """The engine fails its next request, says why, and then computes alone. Returns its tokens."""
    before = counters(daemon).suspected_pages
    engine.ask(do="error", prompt=text)
    refused = engine.answer()
    assert refused.startswith("503") and "not what this engine computes" in refused
    assert counters(daemon).suspected_pages == before + 1
    assert f"page {page}, which session" in engine.said()
    again = engine.generate(text)[0]
    assert again["cached"] == 0
    assert engine.generate(text)[0] == {**again, "cached": whole(text)}  # its own
    expect_nothing_held(daemon)
    return again["tokens"]


def test_what_is_right_passes_chunked_and_batched(daemon, dtype, trusting):
    a, b = trusting
    texts = [prompt(next(SEEDS), 150 + 20 * i) for i in range(8)]
    a.generate(*texts)
    more = [[*text, *prompt(next(SEEDS), 100)] for text in texts]
    found = b.generate(*more)
    assert [answer["cached"] for answer in found] == [
        len(text) // PAGE * PAGE - PAGE for text in texts]
    if dtype == "float32":  # else other chunks may round to other tokens
        assert [answer["tokens"] for answer in found] == [
            answer["tokens"] for answer in a.generate(*more)]
    assert counters(daemon).suspected_pages == 0
    expect_nothing_held(daemon)


def test_a_stray_write_has_the_requests_that_read_it_computed_again(daemon, dtype, pair):
    """While they decode: their last tokens are those of right KV. And so are those of the next one."""
    a, text, more = pair[0], prompt(next(SEEDS), LENGTH), 30
    pages, expected = sealed_by(daemon, a, text)
    other = prompt(next(SEEDS), LENGTH)
    with scrubber(daemon) as store, daemon.connect(any_geometry=True) as observer:
        a.ask(do="generate", prompts=[text, [*text, 7], other], max_tokens=700)
        until(lambda: counters(daemon).private_pages)
        store.read_all()
        layers(observer)[0][pages[2], 1] = 0
        answers = [answer["tokens"] for answer in a.answer()]
    again = re.findall(r"written after they were sealed: (\d) requests are computed again", a.said())
    assert sum(map(int, again)) == 2
    assert [len(tokens) for tokens in answers] == [700] * 3
    if dtype == "float32":
        for asked, tokens in zip((text, [*text, 7]), answers):
            assert a.generate([*asked, *tokens[:-more]], max_tokens=more)[0]["tokens"] == tokens[-more:]
        assert a.generate(text)[0]["tokens"] == expected
    expect_nothing_held(daemon)


@pytest.mark.parametrize("at", [-1, 2], ids=["the last page", "one before it"])
def test_a_damaged_page_is_found(daemon, dtype, trusting, at):
    """The one before is found by what the last page's positions attend to."""
    a, b = trusting
    text, held = prompt(next(SEEDS), LENGTH), prompt(next(SEEDS), LENGTH)
    pages, expected = sealed_by(daemon, a, text)
    a.generate(held)
    with daemon.connect(any_geometry=True) as observer:
        for part in layers(observer):
            part[pages[at], 1] = 0
    tokens = expect_found(daemon, b, text, pages[-1])
    assert dtype != "float32" or tokens == expected
    assert b.generate(held)[0]["cached"] == 0


@pytest.mark.parametrize("what", ["norm", "rope"])
def test_another_model_is_found(daemon, trusting, fault, what):
    a, b = trusting
    text = prompt(next(SEEDS), LENGTH)
    pages, _ = sealed_by(daemon, a, text)
    fault.write_text(what)
    expect_found(daemon, b, text, pages[-1])
    assert a.generate(text)[0]["cached"] == whole(text)


def test_weights_from_disk_end_an_engine_s_being_alone(daemon, pair, folder):
    a, b = pair
    text = prompt(next(SEEDS), LENGTH)
    a.generate(text)
    assert b.generate(text)[0]["cached"] == whole(text) - PAGE
