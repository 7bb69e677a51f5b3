# SPDX-License-Identifier: Apache-2.0
"""Findings of `python -m kvtrunk.vllm prove` with vLLM, and engines that were not proved."""
import json
import types

import pytest
from proving import test_engines_of_this_machine_are_proved  # noqa: F401

from kvtrunk.engine._refusals import Refused


def config(ranks=1, eager=False):
    mode = types.SimpleNamespace(name="NONE" if eager else "FULL_AND_PIECEWISE")
    return types.SimpleNamespace(
        model_config=types.SimpleNamespace(dtype="torch.bfloat16", enforce_eager=eager),
        compilation_config=types.SimpleNamespace(cudagraph_mode=mode), use_v2_model_runner=True,
        scheduler_config=types.SimpleNamespace(async_scheduling=True),
        cache_config=types.SimpleNamespace(cache_dtype="auto", block_size=16),
        parallel_config=types.SimpleNamespace(tensor_parallel_size=ranks))


@pytest.fixture
def connector():
    """Not imported by the tests of whole engines: it takes as long as an engine's start."""
    from kvtrunk.vllm import connector

    return connector


@pytest.fixture
def said(connector, monkeypatch, tmp_path):
    """Logged lines."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("KVTRUNK_REQUIRE_PROOF", raising=False)
    lines = []
    monkeypatch.setattr(connector.logger, "warning",
                        lambda text, *arguments: lines.append(text % arguments))
    return lines


def test_an_engine_that_was_not_proved_says_so_once(connector, said, monkeypatch):
    from vllm.platforms import current_platform

    connector._say_unproved(config(), "LBHNC", "CPU_ATTN")
    assert not said
    monkeypatch.setattr(type(current_platform), "is_cpu", lambda _: False)
    monkeypatch.setattr(type(current_platform), "get_device_name", lambda *_: "a GPU")
    connector._say_unproved(config(2), "LBNHC", "FLASHINFER")
    assert len(said) == 1
    for word in ("device a GPU", "backend FLASHINFER", "layout LBNHC", "ranks 2", "runner second",
                 "graphs full_and_piecewise", "warm_up on", "scheduling asynchronous",
                 "python -m kvtrunk.vllm prove MODEL"):
        assert word in said[0]


def test_an_engine_that_was_not_proved_ends_where_a_proof_is_required(connector, said, monkeypatch):
    monkeypatch.setenv("KVTRUNK_REQUIRE_PROOF", "1")
    connector._say_unproved(config(), "LBHNC", "CPU_ATTN")
    with pytest.raises(Refused, match="backend TORCH_SDPA.*unset KVTRUNK_REQUIRE_PROOF"):
        connector._say_unproved(config(), "LBHNC", "TORCH_SDPA")


def test_an_engine_that_starts_otherwise_than_what_was_proved_says_in_what(
        connector, said, monkeypatch, tmp_path):
    monkeypatch.setattr(connector._proofs, "driver", lambda: "580.1")
    monkeypatch.setattr(type(connector.current_platform), "is_cpu", lambda _: False)
    monkeypatch.setattr(type(connector.current_platform), "get_device_name", lambda *_: "a GPU")
    monkeypatch.setenv("KVTRUNK_PROVING", str(tmp_path / "made"))
    connector._say_unproved(config(eager=True), "LBNHC", "FLASHINFER")
    monkeypatch.delenv("KVTRUNK_PROVING")
    connector._proofs.add(json.loads((tmp_path / "made").read_text()))
    connector._say_unproved(config(eager=True), "LBNHC", "FLASHINFER")
    assert not said
    connector._say_unproved(config(), "LBNHC", "FLASHINFER")
    assert "; the nearest proof is of graphs none, warm_up off. Run" in said[0]
