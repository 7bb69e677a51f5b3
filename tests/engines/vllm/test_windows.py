# SPDX-License-Identifier: Apache-2.0
"""Two engines of models whose layers have windows, which keep the KV of all positions, as with a
switch of vLLM's: as a gpt-oss, a Gemma 3 and a Mistral 7B v0.1. The engine with a cache of its own
frees what is out of a window."""
import conftest
import faults
import model
import pytest
from conftest import PAGE
from engine import all_pages_are_back, counters, prompt, started, until
from kills import kill_at, order  # noqa: F401
from sharing import expect_checked_reuse

from kvtrunk import testing

KEEP = {"disable_hybrid_kv_cache_manager": True}
WITHOUT = {"disable_hybrid_kv_cache_manager": None}
"""`flags` prints it for any model with windows."""
N_PAGES = 128
N, SAID = 8, 200
assert 2 * N * (150 + SAID) > N_PAGES * PAGE


WITH_WINDOWS = {"gpt-oss": "2 of 4", "Gemma 3": "5 of 6", "Mistral": "4 of 4"}
"""How many layers have windows, by the name of a model that vLLM runs by code of its own."""


@pytest.fixture(scope="module", params=WITH_WINDOWS)
def name(request):
    return request.param


@pytest.fixture(scope="module")
def folder(name, tmp_path_factory):
    return model.write(tmp_path_factory.mktemp("model"), **model.windows(name))


@pytest.fixture(scope="module")
def daemon(folder, name):
    options, engine = conftest.flags(folder, "--disable-hybrid-kv-cache-manager")
    assert "--disable-hybrid-kv-cache-manager" in engine
    del options["pool_bytes"]
    with testing.daemon(**{**options, "n_pages": N_PAGES, "max_private_pages": N_PAGES}) as made:
        yield made


@pytest.fixture(scope="module")
def engines(daemon, name, order, start):  # noqa: F811
    """One with a cache of its own, one that compares each reuse, and one that will be killed. With
    one window in all layers, the switch changes nothing."""
    chunks = {"max_num_batched_tokens": 256}  # equal: experts keep it
    return started(start(processes=1, num_gpu_blocks_override=2048),
                   start(daemon, processes=1, environment={"KVTRUNK_CHECK_EVERY": "1"}, **chunks,
                         **(WITHOUT if name == "Mistral" else KEEP)),
                   start(daemon, environment={"KILL": str(order)}, **chunks, **KEEP))


def test_b_reuses_what_only_a_computed(daemon, engines):
    private, b, a = engines
    expect_checked_reuse(daemon, private, a, b, max_tokens=40)


def test_the_log_says_once_what_is_kept(engines, name):
    for engine in engines[1:]:
        assert engine.said().count(f"{WITH_WINDOWS[name]} layers have windows of {model.WINDOW} "
                                   "tokens, and keep all tokens") == 1


def test_both_finish_all_in_a_pool_for_two_thirds(daemon, engines):
    private, *sharing = engines
    asked = [[prompt(100 * i + j, 150) for j in range(N)] for i in (1, 2)]
    for engine, prompts in zip(sharing, asked):
        engine.ask(do="generate", prompts=prompts, max_tokens=SAID)
    for engine, prompts in zip(sharing, asked):
        expected = [answer["tokens"] for answer in private.generate(*prompts, max_tokens=SAID)]
        assert [answer["tokens"] for answer in engine.answer()] == expected
    until(all_pages_are_back, daemon)
    assert counters(daemon).suspected_pages == 0


test_no_engine_writes_a_sealed_page_and_what_else_does_is_found = \
    faults.test_no_engine_writes_a_sealed_page_and_what_else_does_is_found


def test_a_kill_in_prefill(daemon, engines, order):  # noqa: F811
    kill_at("COMMIT", "EngineCore", daemon, order, engines)
