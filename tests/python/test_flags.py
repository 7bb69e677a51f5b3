# SPDX-License-Identifier: Apache-2.0
"""What `flags` of the engines prints, without an engine."""
import json
import os
import shlex
import subprocess
import sys

import pytest

from kvtrunk import _flags

CONFIG = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": 2,
          "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 256,
          "vocab_size": 100, "torch_dtype": "bfloat16"}


def printed(tmp_path, engine, *options, **fields):
    """Words of the daemon's command and of the engine's, for a model with other fields."""
    (tmp_path / "config.json").write_text(json.dumps({**CONFIG, **fields}))
    said = subprocess.run([sys.executable, "-m", f"kvtrunk.{engine}", "flags", str(tmp_path),
                           *options], check=True, capture_output=True, text=True).stdout
    return [shlex.split(line) for line in said.splitlines() if not line.startswith("#")]


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_flags_supervise_a_pool_in_host_memory_where_no_device_is(tmp_path, engine):
    options = [] if _flags.device() == "cpu" or engine == "sglang" else ["--device=cpu"]
    daemon, command = printed(tmp_path, engine, *options)
    assert daemon[:2] == ["kvtrunkd", "--supervise"]
    assert not any(word.startswith("--backend=") for word in daemon)
    assert command[0] == "env" and any("OMP_THREADS_BIND=" in word for word in command)


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_engines_on_cpus_are_waited_for_longer_than_a_chunk(tmp_path, engine):
    """With the default of a second equal prompts at one moment are computed twice."""
    device = ["--device=cpu"] if engine == "vllm" else []
    daemon, _ = printed(tmp_path, engine, *device)
    patience = [word for word in daemon if word.startswith("--coalesce-patience-ms=")]
    assert len(patience) == 1 and int(patience[0].split("=")[1]) >= 10_000


def test_engines_on_a_device_need_no_patience(tmp_path):
    daemon, _ = printed(tmp_path, "vllm", "--device=cuda")
    assert not any("patience" in word for word in daemon)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_vllm_keeps_all_positions_of_a_model_with_windows(tmp_path, device):
    for window in (None, 4096):
        daemon, engine = printed(tmp_path, "vllm", f"--device={device}", sliding_window=window)
        assert "--n-layers=2" in daemon
        assert ("--disable-hybrid-kv-cache-manager" in engine) == (window is not None)


def test_flags_name_a_folder_that_can_be_written(tmp_path, monkeypatch):
    monkeypatch.setattr(_flags, "RUNTIME", tmp_path / "kvtrunk")
    assert _flags.daemon() == ["--supervise"] and not _flags.engine_environment()
    monkeypatch.setattr(_flags.os, "access", lambda *_: False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/7")
    assert _flags.daemon()[1:] == ["--runtime-dir=/run/user/7/kvtrunk"]
    assert _flags.engine_environment() == ["KVTRUNK_SOCKET=/run/user/7/kvtrunk/default.sock"]


@pytest.mark.parametrize("cpus, engines, ranks, shares", [
    (range(8), 2, 1, [["0-3"], ["4-7"]]), (range(8), 2, 2, [["0-1", "2-3"], ["4-5", "6-7"]]),
    (range(2), 2, 1, [["0"], ["1"]]), (range(1), 2, 1, [["0"], ["0"]]),
    ([0, 2, 4, 6], 2, 1, [["0,2"], ["4,6"]])])
def test_engines_have_cpus_of_their_own(monkeypatch, cpus, engines, ranks, shares):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(cpus))
    assert _flags.cpu_shares(engines, ranks) == shares
