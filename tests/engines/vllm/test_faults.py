# SPDX-License-Identifier: Apache-2.0
"""Faults that no name knows, in an engine's model and in the pool's pages: the first check of two
whole engines finds each."""
import itertools
import os

import model
import pytest
from conftest import PAGE, flags
from engine import counters, expect_nothing_held, prompt, started, until
from faults import bits, layers, scrubber, sealed_by
from sharing import whole
from stores import stopped

from kvtrunk import testing

pytestmark = pytest.mark.skipif("ENGINES_UNTIL" in os.environ, reason="four engines in turn take "
                                "minutes: make check-engines has the time")

SEEDS = itertools.count(5000)
LENGTH = 200


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def dtype(request):
    return request.param


@pytest.fixture(scope="module")
def folder(dtype, tmp_path_factory):
    return model.write(tmp_path_factory.mktemp("model"), layers=4, dtype=dtype)


@pytest.fixture(scope="module")
def daemon(folder):
    with testing.daemon(**flags(folder, "--pool-bytes", "64M")[0]) as made:
        yield made


@pytest.fixture(scope="module")
def pair(daemon, folder, start):
    """One that computes, and one that checks each page of the other that it reads. The second has
    its model in its own process, its prompts in other chunks, and two threads."""
    return started(start(daemon, folder=folder),
                   start(daemon, folder=folder, processes=1, max_num_batched_tokens=112,
                         environment={"KVTRUNK_CHECK_EVERY": "1", "OMP_NUM_THREADS": "2"}))


@pytest.fixture
def trusting(pair):
    """The two engines, without the faults of earlier tests."""
    ask(pair[1], "trust")
    return pair


@pytest.fixture
def exact(dtype):
    """The expected tokens. None: rounding of this type may change them."""
    return lambda tokens: tokens if dtype == "float32" else None


def ask(engine, what, **more):
    engine.ask(do=what, **more)
    return engine.answer()


def expect_found(daemon, engine, text, page, expected=None):
    """The engine's next request finds the fault, and answers as if there had been no other.
    expected: tokens, in fp32. Other types may round to others in other chunks."""
    before, lines = counters(daemon).suspected_pages, engine.said().count("K and V of page")
    answer = engine.generate(text)[0]
    assert counters(daemon).suspected_pages == before + 1
    assert engine.said().count(f"K and V of page {page}, which session") >= 1
    assert engine.said().count("K and V of page") == lines + 1
    again = engine.generate(text)[0]
    assert again["cached"] > 0
    if expected is not None:
        assert again["tokens"] == answer["tokens"] == expected
    assert counters(daemon).suspected_pages == before + 1
    expect_nothing_held(daemon)


def test_a_stray_write_has_the_request_that_reads_it_computed_again(daemon, pair, exact):
    """And the next one: it finds what lies in front of the page."""
    a, text = pair[0], prompt(next(SEEDS), LENGTH)
    pages, expected = sealed_by(daemon, a, text)
    with scrubber(daemon) as store, daemon.connect(any_geometry=True) as observer:
        pids = a.pids()
        a.ask(do="generate", prompts=[text], max_tokens=700)
        while not observer.counters().private_pages:
            pass
        with stopped(*pids):  # it still runs when the page is found
            store.read_all()
            layers(observer)[0][pages[2], 1] = 0
            until(lambda: store.found() == 1)
        assert len(a.answer()[0]["tokens"]) == 700
        assert "was written after it was sealed" in a.said()
        assert "page_damaged" in daemon.said()
        again = a.generate(text)[0]
        assert exact(again["tokens"]) == exact(expected)
    expect_nothing_held(daemon)


def test_what_is_right_passes_chunked_and_batched(daemon, trusting):
    a, b = trusting
    before = counters(daemon).suspected_pages
    texts = [prompt(next(SEEDS), 150 + 20 * i) for i in range(8)]
    a.generate(*texts)
    found = b.generate(*[[*text, *prompt(next(SEEDS), 30)] for text in texts])
    assert [answer["cached"] for answer in found] == [
        len(text) // PAGE * PAGE - PAGE for text in texts]
    assert counters(daemon).suspected_pages == before
    expect_nothing_held(daemon)


@pytest.mark.parametrize("fault", ["norm", "rope"])
def test_another_model_is_found(daemon, trusting, fault):
    a, b = trusting
    text = prompt(next(SEEDS), LENGTH)
    pages, _ = sealed_by(daemon, a, text)
    ask(b, "plant", fault=fault)
    expect_found(daemon, b, text, pages[-1])
    assert a.generate(text)[0]["cached"] == whole(text)


def flip(part, page):
    """The highest bit of an exponent."""
    bits(part)[page, 0, 3, 5] ^= 1 << (8 * part.itemsize - 2)


def blank(part, page):
    part[page, 1] = 0


SCRIBBLES = {"a flipped bit": flip, "a head of zeroes": blank}


@pytest.mark.parametrize("which", [0, -1], ids=["K of the first layer", "V of the last"])
@pytest.mark.parametrize("scribble", SCRIBBLES.values(), ids=SCRIBBLES)
def test_a_damaged_page_is_found(daemon, trusting, exact, scribble, which):
    a, b = trusting
    text = prompt(next(SEEDS), LENGTH)
    pages, expected = sealed_by(daemon, a, text)
    with daemon.connect(any_geometry=True) as observer:
        scribble(layers(observer)[which], pages[-1])
    expect_found(daemon, b, text, pages[-1], exact(expected))


def test_another_prompt_s_pages_are_found(daemon, trusting, exact):
    a, b = trusting
    text, other = prompt(next(SEEDS), LENGTH), prompt(next(SEEDS), LENGTH)
    pages, expected = sealed_by(daemon, a, text)
    others, _ = sealed_by(daemon, a, other)
    with daemon.connect(any_geometry=True) as observer:
        for part in layers(observer):
            for page, its in zip(pages, others):
                part[page] = part[its]
    expect_found(daemon, b, text, pages[-1], exact(expected))


def test_a_damaged_page_before_the_last_is_found(daemon, trusting, exact):
    """By what the last page's positions attend to."""
    a, b = trusting
    text = prompt(next(SEEDS), LENGTH)
    pages, expected = sealed_by(daemon, a, text)
    with daemon.connect(any_geometry=True) as observer:
        for part in layers(observer):
            blank(part, pages[2])
    expect_found(daemon, b, text, pages[-1], exact(expected))
