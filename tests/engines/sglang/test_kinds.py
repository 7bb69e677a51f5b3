# SPDX-License-Identifier: Apache-2.0
"""Two engines of models whose KV is of another kind than Llama's: windows that SGLang turns off by
itself or by an option, and the latent row of MLA. Daemon and options are those that `flags` prints."""
import faults
import model
import pytest
from conftest import PAGES, printed
from engine import counters, expect_nothing_held, prompt, started
from kills import kill_at, order  # noqa: F401
from sharing import expect_checked_reuse

from kvtrunk import testing

YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 2.0, "mscale": 1.0,
        "mscale_all_dim": 1.0, "original_max_position_embeddings": 4096}
SWITCH = ["--disable-hybrid-swa-memory"]
# Name: the model, bytes of a page, an option of the engine that is printed, and a line of its log.
KINDS = {
    "Gemma 3": (model.windows("Gemma 3", layers=3, layer_types=model.TWO_OF_THREE,
                              tie_word_embeddings=True), 3 << 14, SWITCH,
                "2 of 3 layers have a window of 48 positions"),
    "Mellum 2": (model.windows("Mellum 2"), 3 << 14, SWITCH,
                 "2 of 3 layers have a window of 48 positions"),
    "MLA": (model.latent(rope_scaling=YARN, moe_layer_freq=1, topk_method="greedy"), 9 << 13,
            [], "KV of 2 layers is on the pool"),
}


@pytest.fixture(scope="module", params=KINDS)
def kind(request, tmp_path_factory):
    shape, page_bytes, options, line = KINDS[request.param]
    folder = model.write(tmp_path_factory.mktemp("model"), **shape)
    daemon, command = printed(folder, PAGES * page_bytes)
    assert all(option in command for option in options)
    return folder, daemon, line


@pytest.fixture(scope="module")
def daemon(kind):
    with testing.daemon(**kind[1]) as made:
        yield made


@pytest.fixture(scope="module")
def engines(kind, daemon, start, order):  # noqa: F811
    """One with a cache of its own, one that will be killed, and one that compares each reuse, with
    its prompts in other chunks."""
    folder, daemon_options, _ = kind
    options = {"program": "serve_latent.py"} if "latent" in daemon_options.values() else {}
    made = started(start(folder=folder, **options),
                   start(daemon, folder=folder, environment={"KILL": str(order)}, **options),
                   start(daemon, folder=folder, environment={"KVTRUNK_CHECK_EVERY": "1"},
                         chunked_prefill_size=128, **options))
    yield made
    for engine in made:
        engine.kill()


def test_b_reuses_what_only_a_computed(kind, daemon, engines):
    expect_checked_reuse(daemon, *engines)
    assert kind[2] in engines[1].said()


def test_a_pool_too_small_for_both_gives_the_private_texts(daemon, engines):
    private, *both = engines
    asked = [[prompt(100 * i + j, 240 + 16 * j) for j in range(10)] for i in (1, 2)]
    expected = [[private.generate(text, max_tokens=24)[0]["tokens"] for text in texts]
                for texts in asked]
    for engine, texts in zip(both, asked):
        engine.ask(do="generate", prompts=texts, max_tokens=24)
    assert [[answer["tokens"] for answer in engine.answer()] for engine in both] == expected
    expect_nothing_held(daemon)
    assert counters(daemon).suspected_pages == 0


test_no_engine_writes_a_sealed_page_and_what_else_does_is_found = \
    faults.test_no_engine_writes_a_sealed_page_and_what_else_does_is_found


def test_a_kill_in_prefill(daemon, engines, order):  # noqa: F811
    private, a, b = engines
    kill_at("COMMIT", "sglang::scheduler", daemon, order, [private, b, a])
