# SPDX-License-Identifier: Apache-2.0
"""Findings of `python -m kvtrunk.sglang prove` with SGLang, and engines that were not proved."""
import logging
import os
import types

import heads
import pytest
from conftest import STANDIN
from proving import expect_proved, test_engines_of_this_machine_are_proved  # noqa: F401


@pytest.fixture(autouse=True)
def standin(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", STANDIN)


@pytest.mark.skipif("ENGINES_LONG" not in os.environ, reason="with ENGINES_LONG=1")
@pytest.mark.parametrize("algorithm", ["NGRAM", "EAGLE", "NEXTN"])
def test_engines_that_draft_are_proved(algorithm, folder, tmp_path):
    model, options = heads.drafting(algorithm, folder, tmp_path)
    [proof] = expect_proved(model, *options, prompts=2)
    assert proof["drafts"] == algorithm.replace("NEXTN", "EAGLE")  # as SGLang calls it


@pytest.mark.parametrize("backend, proved", [("TorchNativeAttnBackend", True),
                                             ("IntelAMXAttnBackend", False)])
def test_an_engine_that_was_not_proved_says_so_or_ends(backend, proved, monkeypatch, tmp_path,
                                                       caplog):
    from kvtrunk.engine._refusals import Refused
    from kvtrunk.sglang import _cache

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(_cache._pool, "ranks", lambda: types.SimpleNamespace(world_size=1))
    monkeypatch.setattr(_cache, "get_schedule",
                        lambda: types.SimpleNamespace(disable_overlap_schedule=False))
    monkeypatch.setattr(_cache._drafts, "algorithm", lambda: "EAGLE")
    monkeypatch.setattr(_cache._drafts, "flags", lambda: " --speculative-algorithm EAGLE")
    runner = types.SimpleNamespace(attn_backend=type(backend, (), {})(),
                                   model_config=types.SimpleNamespace(dtype="torch.bfloat16"))
    pool = types.SimpleNamespace(device="cpu", dtype="torch.bfloat16", page_size=16)
    with caplog.at_level(logging.WARNING):
        _cache._say_unproved(runner, pool)
    command = "`python -m kvtrunk.sglang prove MODEL --speculative-algorithm EAGLE`"
    assert (command in caplog.text) is not proved
    assert proved or "drafts EAGLE, graphs none, scheduling overlapped" in caplog.text
    monkeypatch.setenv("KVTRUNK_REQUIRE_PROOF", "1")
    if proved:
        _cache._say_unproved(runner, pool)
    else:
        with pytest.raises(Refused, match=f"{backend}.*unset KVTRUNK_REQUIRE_PROOF"):
            _cache._say_unproved(runner, pool)
