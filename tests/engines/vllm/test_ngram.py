# SPDX-License-Identifier: Apache-2.0
"""Speculative decoding by n-grams of the prompt: no KV of a rejected draft is published."""
import pytest
from drafting import expect_drafts_reused
from engine import prompt, started

DRAFTS = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3,
          "prompt_lookup_min": 1}
N = 6


@pytest.fixture(scope="module")
def engines(daemon, start):
    return started(start(processes=1), start(daemon, speculative_config=DRAFTS),
                   start(daemon, processes=1, speculative_config=DRAFTS,
                         environment={"KVTRUNK_CHECK_EVERY": "1"}))


def test_what_drafts_brought_is_reused(daemon, engines):
    asked = [prompt(i, 40) * 3 + prompt(i, 7) for i in range(1, N + 1)]
    expect_drafts_reused(daemon, engines, asked, 120, 0)
