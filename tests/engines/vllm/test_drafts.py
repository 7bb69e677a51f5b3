# SPDX-License-Identifier: Apache-2.0
"""Speculative decoding with a draft layer (EAGLE), whose KV is in the pages."""
import json

import faults
import model
import pytest
from conftest import PAGE, flags
from drafting import expect_drafts_reused
from engine import counters, expect_nothing_held, prompt, started
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
    return started(start(processes=1),
                   start(daemon, speculative_config=drafts, environment={"KILL": str(order)}),
                   start(daemon, processes=1,
                         speculative_config={**drafts, "num_speculative_tokens": 2},
                         environment={"KVTRUNK_CHECK_EVERY": "1"}))


def test_what_drafts_brought_is_reused(daemon, engines):
    private, a, _ = engines
    asked = [prompt(i, 90) for i in range(1, N + 1)]
    turns, expected = expect_drafts_reused(daemon, engines, asked, 135, 100)
    turns = [text + more + [7] for text, more in zip(turns, expected)]
    expected = [answer["tokens"] for answer in private.generate(*turns)]
    answers = a.generate(*turns)
    assert [answer["tokens"] for answer in answers] == expected
    assert [answer["cached"] for answer in answers] == [len(turns[0]) // PAGE * PAGE] * N
    assert counters(daemon).suspected_pages == 0
    expect_nothing_held(daemon)


def test_a_page_is_found_only_with_the_token_behind_it(daemon, engines):
    """Its last draft KV depends on that token."""
    private, a, _ = engines
    head = prompt(50, 2 * PAGE)
    for behind, cached in ([7, 8], 0), ([7, 9], 2 * PAGE), ([8, 9], PAGE), ([8, 7], 2 * PAGE):
        expected = private.generate(head + behind)[0]["tokens"]
        assert a.generate(head + behind)[0] == {"tokens": expected, "cached": cached}
    expect_nothing_held(daemon)


test_no_engine_writes_a_sealed_page_and_what_else_does_is_found = \
    faults.test_no_engine_writes_a_sealed_page_and_what_else_does_is_found


def test_a_kill_while_it_drafts(daemon, engines, order):  # noqa: F811
    private, a, b = engines
    kill_at("EXTEND", "EngineCore", daemon, order, [private, b, a])
