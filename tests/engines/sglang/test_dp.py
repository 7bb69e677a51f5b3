# SPDX-License-Identifier: Apache-2.0
"""Data-parallel ranks of one server: each is a scheduler with a session of its own on the pool."""
import json

import pytest
import ranks
from conftest import PAGE, PAGES
from engine import expect_nothing_held, prompt, started
from sharing import SEEDS, whole


@pytest.fixture(scope="module")
def engines(daemon, start):
    """One with a cache of its own, a server of two ranks, and an engine without."""
    return started(start(), start(daemon, dp_size=2, chunked_prefill_size=64), start(daemon))


def test_each_rank_is_an_engine_of_its_own(daemon, engines):
    clients = json.loads(daemon.kvtctl("--json", "clients"))
    assert len({row["session"] for row in clients}) == 3


def test_a_rank_reuses_what_only_another_computed(daemon, engines):
    private, server, other = engines
    for first in (0, 1):
        text = prompt(next(SEEDS))
        expected = private.generate(text)[0]["tokens"]
        assert server.generate(text, routed_dp_rank=first)[0] == {"tokens": expected, "cached": 0}
        reused = {"tokens": expected, "cached": whole(text)}
        assert server.generate(text, routed_dp_rank=1 - first)[0] == reused
        assert other.generate(text)[0] == reused
    expect_nothing_held(daemon)


def test_a_pool_too_small_for_both_gives_the_private_texts(daemon, engines):
    """SGLang's controller gives the prompts to the ranks in turn."""
    private, server, _ = engines
    texts = [prompt(next(SEEDS), 400 + 16 * i) for i in range(16)]
    assert sum(map(len, texts)) > PAGE * PAGES
    expected = [private.generate(text, max_tokens=60)[0]["tokens"] for text in texts]
    assert [answer["tokens"] for answer in server.generate(*texts, max_tokens=60)] == expected
    expect_nothing_held(daemon)


def test_a_killed_rank_gives_all_pages_back(daemon, engines):
    private, server, other = engines
    ranks.kill_one(daemon, private, other, server, "sglang::scheduler_DP0", 700, routed_dp_rank=0)
