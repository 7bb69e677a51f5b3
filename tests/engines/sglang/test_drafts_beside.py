# SPDX-License-Identifier: Apache-2.0
"""Two engines that draft beside what else an engine does: a store behind the pool, adapters, new
weights, images, engines that do not draft."""
import os

import heads
import images
import pytest
from conftest import geometry
from engine import counters, expect_nothing_held, prompt, started
from sharing import whole
from storing import (PATIENT, page, store,  # noqa: F401
                     test_a_daemon_that_starts_cold_is_filled_again,
                     test_what_an_engine_forgot_is_not_loaded)
from test_drafts import EAGLE, GRAMS, accepted
from test_weights import SEEDS, TARGETS, K, V, adapter, ask, computes

from kvtrunk import testing

WITH_IMAGE = (121 + images.SIDE // images.PATCH * (images.SIDE // images.PATCH + 1) - 1) // 16 * 16
"""Shared positions of seen(): a row of patches ends with a token of its own."""

if "ENGINES_LONG" not in os.environ:
    pytest.skip("with ENGINES_LONG=1", allow_module_level=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """MiMo's layer for MTP is in the model's own files: new weights are its, too."""
    return heads.mimo(tmp_path_factory.mktemp("mimo"), embedding=150)


@pytest.fixture(scope="module")
def daemon():
    with testing.daemon(supervise=True, coalesce_threshold=0, **geometry(n_layers=3)) as made:
        yield made


@pytest.fixture(scope="module")
def engines(folder, daemon, start):
    """Two on one pool. That drafts change no text is test_drafts.py's."""
    options = {"speculative_algorithm": "NEXTN", "speculative_draft_model_path": folder,
               "enable_lora": True, "max_lora_rank": 8, "lora_backend": "torch_native",
               "lora_target_modules": TARGETS, "max_loras_per_batch": 2}
    return None, *started(*(start(daemon, environment={**PATIENT, "UNPINNED": "1"}, **options)
                            for _ in range(2)))


def expect_shared(a, b, text, **more):
    """b reads what only a computed, and answers as a. Returns the tokens."""
    tokens = computes(a, text, **more)
    assert b.generate(text, **more)[0] == {"tokens": tokens, "cached": whole(text)}
    return tokens


def test_an_adapter_is_shared_and_drafts_go_on(daemon, engines, tmp_path):
    _, a, b = engines
    path = adapter(tmp_path / "one", 1)
    for engine in a, b:
        assert ask(engine, do="adapter", lora_name="x", lora_path=path) is True
    text = prompt(next(SEEDS))
    assert expect_shared(a, b, text, lora_path=["x"]) != expect_shared(a, b, text)
    assert max(accepted(b)) > 1
    for engine in a, b:
        assert ask(engine, do="no adapter", name="x") is True
    expect_nothing_held(daemon)


def test_new_weights_of_model_and_draft_are_shared_with_who_loaded_the_same(
        daemon, engines, folder, tmp_path):
    """SGLang loads into draft layers what the files have for them. An engine that was started with
    such files may have another draft, and shares nothing with them (test_updates.py)."""
    _, a, b = engines
    text = prompt(next(SEEDS))
    old = expect_shared(a, b, text)
    new = heads.mimo(tmp_path / "new", seed=3, embedding=150)
    for engine in a, b:
        assert ask(engine, do="weights", model_path=new) is True
    assert expect_shared(a, b, text) != old
    for engine in a, b:
        assert ask(engine, do="weights", model_path=folder) is True
    assert expect_shared(a, b, text) == old  # under another name than at the start
    assert counters(daemon).suspected_pages == 0


def test_tensors_of_one_version_are_shared(engines, folder):
    _, a, b = engines
    text = prompt(next(SEEDS))
    old = computes(a, text)
    update = {"do": "scaled", "folder": folder, "names": [K, V], "factor": 1.5}
    assert ask(a, weight_version="step 1", **update) is True
    assert b.generate(text)[0] == {"tokens": old, "cached": whole(text)}
    assert ask(b, weight_version="step 1", **update) is True
    assert expect_shared(a, b, text) != old


def seen(engine, picture, at, **more):
    """The answer to a prompt with an image from position `at` on."""
    text = [token if token < images.IMAGE else 2 for token in prompt(1, 122)]
    text[at] = images.IMAGE
    return engine.generate(text, pictures=[picture], **more)[0]


@pytest.mark.parametrize("algorithm", ["NGRAM", "EAGLE"])
def test_an_image_is_shared_as_what_it_shows(algorithm, start, tmp_path):
    """With NGRAM, and an engine that does not draft. With draft layers that take images, as those for
    EAGLE3 do: SGLang's own of EAGLE for Llama and of MiMo's MTP do not."""
    options = {"folder": images.write_pixtral(tmp_path / "pixtral"), "skip_tokenizer_init": False}
    drafts, layers = GRAMS, 0
    if algorithm == "EAGLE":
        options |= {**EAGLE, "speculative_draft_model_path": heads.eagle3(tmp_path / "head")}
        drafts, layers = {}, 1
    with testing.daemon(**geometry(n_layers=2 + layers)) as daemon:
        a, b = started(start(daemon, **options, **drafts), start(daemon, **options))
        cold = [seen(a, picture, 70, salt=f"{picture}")["tokens"] for picture in (1, 2)]
        assert cold[0] != cold[1]
        assert seen(a, 1, 70) == {"tokens": cold[0], "cached": 0}
        assert seen(b, 1, 70) == {"tokens": cold[0], "cached": WITH_IMAGE}
        assert seen(b, 2, 70) == {"tokens": cold[1], "cached": 64}
        assert seen(a, 2, 70) == {"tokens": cold[1], "cached": WITH_IMAGE}
        expect_nothing_held(daemon)
        for engine in (a, b):
            engine.kill()


def test_an_engine_without_drafts_is_refused_where_pages_have_draft_layers(daemon, start):
    plain = start(daemon)
    with pytest.raises(RuntimeError):
        plain.wait()
    assert "kvtrunk.sglang flags MODEL --tp-size 1` prints" in plain.said()


def test_ngram_shares_with_an_engine_without_drafts(start):
    with testing.daemon(**geometry()) as daemon:
        a, b = started(start(daemon, **GRAMS), start(daemon))
        for one, other in (a, b), (b, a):
            expect_shared(one, other, prompt(next(SEEDS)))
        expect_nothing_held(daemon)
        for engine in (a, b):
            engine.kill()
