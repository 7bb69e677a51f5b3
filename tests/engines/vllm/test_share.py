# SPDX-License-Identifier: Apache-2.0
"""Two whole vLLM engines on one pool: what one computed, the other reads in place."""
import faults
import pytest
import sharing
from engine import expect_nothing_held, prompt, started
from sharing import (SEEDS, test_a_salt_isolates, test_b_reuses_what_only_a_computed,  # noqa: F401
                     test_one_prompt_in_both_at_once_is_computed_once,
                     test_one_prompt_twice_in_one_engine_is_computed_once,
                     test_the_next_turn_reuses_what_another_engine_generated)


@pytest.fixture(scope="module")
def engines(daemon, start):
    """One with a cache of its own, and two that share the daemon's pool."""
    return started(start(processes=1), start(daemon), start(daemon, processes=1))


def test_many_requests_in_both_are_the_private_engines(daemon, engines):
    private, a, b = engines
    system = prompt(next(SEEDS), 300)
    asked = [system + prompt(next(SEEDS), 20 + 13 * i) for i in range(12)]
    expected = [answer["tokens"] for answer in private.generate(*asked, max_tokens=40)]
    for engine in (a, b):
        engine.ask(do="generate", prompts=asked, max_tokens=40)
    for engine in (a, b):
        assert [answer["tokens"] for answer in engine.answer()] == expected
    expect_nothing_held(daemon)


def test_prompt_logprobs_read_nothing_from_the_cache(engines):
    _, a, b = engines
    text = prompt(next(SEEDS))
    first = a.generate(text)[0]["tokens"]
    assert b.generate(text, prompt_logprobs=1)[0] == {"tokens": first, "cached": 0}


test_no_engine_writes_a_sealed_page_and_what_else_does_is_found = \
    faults.test_no_engine_writes_a_sealed_page_and_what_else_does_is_found


# After these a shares nothing with b.
test_a_new_epoch_forgets_for_one_engine_only = sharing.test_a_new_epoch_forgets_for_one_engine_only
test_a_new_epoch_closes_the_namespaces_before_it = \
    sharing.test_a_new_epoch_closes_the_namespaces_before_it


def test_engines_with_other_weights_share_nothing(daemon, engines, start, tmp_path):
    import model

    _, a, _ = engines
    text = prompt(next(SEEDS))
    first = a.generate(text)[0]["tokens"]
    other = start(daemon, processes=1, folder=model.write(tmp_path / "model", seed=1))
    answer = other.generate(text)[0]
    assert answer["cached"] == 0 and answer["tokens"] != first
