# SPDX-License-Identifier: Apache-2.0
"""Output of the engines' `flags`, without an engine."""
import importlib
import importlib.util
import json
import os
import shlex
import subprocess
import sys

import pytest

from kvtrunk.engine import _prove
from kvtrunk.engine import _flags
from kvtrunk.testing import program as program_of

CONFIG = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": 2,
          "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 256,
          "vocab_size": 100, "torch_dtype": "bfloat16"}


DEVICE = ["--device=cuda", "--device-bytes=80G", "--engine-bytes=20G"]
STANDIN = os.path.join(os.environ.get("KVTRUNK_BIN", "/nowhere"), "tests/cuda/standin")


def printed(tmp_path, engine, *options, **fields):
    """Words of the daemon's command and of the engine's, for a model with other fields."""
    (tmp_path / "config.json").write_text(json.dumps({**CONFIG, **fields}))
    said = subprocess.run([sys.executable, "-m", f"kvtrunk.{engine}", "flags", str(tmp_path),
                           *options], check=True, capture_output=True, text=True).stdout
    return [shlex.split(line) for line in said.splitlines() if not line.startswith("#")]


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_flags_supervise_a_pool_in_host_memory_where_no_device_is(tmp_path, engine):
    options = [] if _flags.device() == "cpu" else ["--device=cpu"]
    daemon, command = printed(tmp_path, engine, *options)
    assert daemon[:2] == ["kvtrunkd", "--supervise"]
    assert not any(word.startswith("--backend=") for word in daemon)
    assert command[0] == "env" and any("OMP_THREADS_BIND=" in word for word in command)


def settings(words):
    """A daemon's options, without those that its unit has."""
    return sorted(word[2:].replace("-", "_", word[2:].partition("=")[0].count("-"))
                  for word in words[1:]
                  if not word.startswith(("--supervise", "--runtime-dir=", "--instance=")))


@pytest.mark.parametrize("engine, more", [
    ("vllm", ["--device=cpu"]), ("sglang", ["--device=cpu", "--radix-eviction-policy=slru"]),
    ("vllm", ["cuda", "--data-parallel-size=2"]), ("sglang", ["cuda", "--dp-size=2"]),
    ("vllm", ["cuda", "--engines=3", "--mps"]), ("sglang", ["--device=cpu", "--engines=3"])])
def test_conf_prints_the_same_as_files(tmp_path, engine, more):
    options = [*DEVICE, *more[1:]] if more[0] == "cuda" else more
    lines = printed(tmp_path, engine, *options)
    daemons = [words for words in lines if words[0] == "kvtrunkd"]
    command = lines[lines.index(daemons[-1]) + 1]
    command = command[:-2] if command[-2] == "--port" else command  # a router has the first one
    program = subprocess.run(
        [sys.executable, "-m", f"kvtrunk.{engine}", "flags", str(tmp_path), "--conf", "llama",
         *options], check=True, capture_output=True, text=True).stdout
    files, path = {}, None
    for line in program.splitlines():
        if line.startswith(("# /", "# then")):
            path = line[2:]
        elif path is not None and line and not line.startswith("#"):
            files.setdefault(path, []).append(line)
    names = ["llama"] if len(daemons) == 1 else ["gpu0", "gpu1"]
    for name, words in zip(names, daemons, strict=True):
        lines = files.pop(f"/etc/kvtrunk/{name}.conf")
        assert sorted(line.replace(" = ", "=") for line in lines) == settings(words)
        if more[0] != "cuda":
            (tmp_path / "own.conf").write_text("\n".join(lines))
            subprocess.run([program_of("kvtrunkd"), f"--config={tmp_path}/own.conf",
                            "--check-config"], check=True, stdout=subprocess.DEVNULL)
    for name in names if "--mps" in more else []:  # MPS's pipe is in /tmp
        assert files.pop(f"/etc/systemd/system/kvtrunkd@{name}.service.d/mps.conf")[:2] == [
            "[Service]", "PrivateTmp=no"]
    *units, start = files.items()
    assert start[1][-1].split()[3:] == [
        *(f"kvtrunkd@{name}.socket" for name in names), *(os.path.basename(path) for path, _ in units)]
    words = [word for word in command if word != "env" and not word.startswith("KVTRUNK_SOCKET=")]
    at = next(i for i, word in enumerate(words) if "=" not in word)
    for i, (_, lines) in enumerate(units):
        made = [unquoted(line.partition("=")[2]) for line in lines if line.startswith("ExecStart=")]
        port = str((8000 if engine == "vllm" else 30000) + i)
        assert made[0][1:] == [*words[at + 1:], "--port", port]
        set_to = [unquoted(line.partition("=")[2])[0] for line in lines
                  if line.startswith("Environment=")]
        socket = "gpu{device}" if len(names) > 1 else "llama"
        assert set_to[0] == f"KVTRUNK_SOCKET=/run/kvtrunk/{socket}.sock"
        if i == 0:
            assert set_to[1:] == words[:at]
        assert ("User=kvtrunk" in lines) == ("--mps" in more)
    assert ("runuser -u kvtrunk -- nvidia-cuda-mps-control -d" in start[1]) == ("--mps" in more)
    assert len(units) == (3 if "--engines=3" in more else 2)


def unquoted(text):
    """A line's words, as systemd reads them."""
    return [word.replace("%%", "%").replace("$$", "$") for word in shlex.split(text)]


@pytest.mark.parametrize("name", ["../x", "a b", ""])
def test_conf_takes_names_of_instances(tmp_path, name):
    with pytest.raises(subprocess.CalledProcessError) as failed:
        printed(tmp_path, "sglang", "--conf", name)
    assert "is no name of an instance" in failed.value.stderr


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_engines_on_cpus_are_waited_for_longer_than_a_chunk(tmp_path, engine):
    """With the default of a second equal prompts at one moment are computed twice."""
    daemon, _ = printed(tmp_path, engine, "--device=cpu")
    patience = [word for word in daemon if word.startswith("--coalesce-patience-ms=")]
    assert len(patience) == 1 and int(patience[0].split("=")[1]) >= 10_000


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_engines_on_a_device_need_no_patience(tmp_path, engine):
    daemon, command = printed(tmp_path, engine, *DEVICE)
    assert not any("patience" in word for word in daemon)
    assert "--backend=cuda-vmm" in daemon and "OMP" not in " ".join(command)


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_ranks_have_a_slab_on_a_device_each(tmp_path, engine):
    ranks = "--tensor-parallel-size=2" if engine == "vllm" else "--tp-size=2"
    daemon, _ = printed(tmp_path, engine, ranks, *DEVICE)
    assert "--devices=0 1" in daemon and not any("n-slabs" in word for word in daemon)


def test_the_pool_gets_what_engines_leave_of_a_device(tmp_path):
    daemon, command, *_ = printed(tmp_path, "vllm", *DEVICE, "--engines=3")
    assert f"--pool-bytes={19 << 30}" in daemon and str(19 << 30) in command
    assert command[command.index("--gpu-memory-utilization") + 1] == "0.25"


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_all_commands_of_several_engines_are_printed_in_order(tmp_path, engine):
    _, one = printed(tmp_path, engine, *DEVICE)
    mps, daemon, *engines, router = printed(tmp_path, engine, *DEVICE, "--engines=2", "--mps")
    assert mps == ["nvidia-cuda-mps-control", "-d"]
    assert daemon[0] == "kvtrunkd" and "--mps=yes" in daemon
    port = 8000 if engine == "vllm" else 30000
    assert engines == [[*one, "--port", str(port + i)] for i in (1, 2)]
    assert router[-3:] == ["--worker-urls", *(f"http://127.0.0.1:{port + i}" for i in (1, 2))]
    assert router[router.index("--port") + 1] == str(port)
    without = printed(tmp_path, engine, *DEVICE, "--engines=2")
    assert len(without) == 4 and "--mps=yes" not in without[0]


def test_each_of_several_engines_on_cpus_has_its_own(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    main = importlib.import_module("kvtrunk.sglang.__main__")
    assert main._cpus(4, 1) == [f"SGLANG_CPU_OMP_THREADS_BIND={i}-{i + 1}" for i in (0, 2, 4, 6)]
    monkeypatch.undo()
    _, *engines, _ = printed(tmp_path, "sglang", "--device=cpu", "--engines=2")
    bound = [[word for word in each if "THREADS_BIND" in word] for each in engines]
    assert bound == [[cpus] for cpus in main._cpus(2, 1)]


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_mps_without_a_device_is_refused(tmp_path, engine):
    with pytest.raises(subprocess.CalledProcessError) as failed:
        printed(tmp_path, engine, "--device=cpu", "--mps")
    assert "--mps is for engines on a CUDA device" in failed.value.stderr


@pytest.mark.parametrize("options, says", [
    (["--engines=4"], "4 engines of 20.0G"), (["--pool-bytes=40G"], "a pool of 40.0G"),
    (["--tensor-parallel-size=2", "--engines=4"], "no room"), (["--engine-bytes=x"], "16G")])
def test_a_device_that_is_too_small_is_refused(tmp_path, options, says):
    with pytest.raises(subprocess.CalledProcessError) as failed:
        printed(tmp_path, "vllm", *DEVICE, *options)
    assert says in failed.value.stderr


@pytest.mark.skipif(not os.path.exists(STANDIN), reason="the stand-in for the driver is not built")
@pytest.mark.parametrize("major, layout", [(9, "nhkd"), (10, "hnkd")])
def test_the_driver_says_what_a_device_is(tmp_path, monkeypatch, major, layout):
    monkeypatch.setenv("LD_LIBRARY_PATH", STANDIN)
    monkeypatch.setenv("KVT_STANDIN_MEMORY", str(40 << 30))
    monkeypatch.setenv("KVT_STANDIN_MAJOR", str(major))
    daemon, _ = printed(tmp_path, "vllm", "--device=cuda", "--engine-bytes=8G")
    assert f"--pool-bytes={23 << 30}" in daemon and f"--kv-layout={layout}" in daemon


def sized(path, gib):
    path.touch()
    os.truncate(path, gib << 30)


def test_an_engine_needs_its_weights_once(tmp_path):
    assert _flags.weights_bytes(tmp_path) == 0
    sized(tmp_path / "pytorch_model.bin", 3)
    assert _flags.weights_bytes(tmp_path) == 3 << 30
    for i in (1, 2):
        sized(tmp_path / f"model-{i}.safetensors", i)
    sized(tmp_path / "consolidated.safetensors", 3)
    assert _flags.weights_bytes(tmp_path) == 6 << 30
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(
        {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}))
    assert _flags.weights_bytes(tmp_path) == 3 << 30


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("engine, switch", [("vllm", "--disable-hybrid-kv-cache-manager"),
                                            ("sglang", "--disable-hybrid-swa-memory")])
def test_engines_keep_all_positions_of_a_model_with_windows(tmp_path, engine, switch, device):
    asked = [switch] if engine == "vllm" else []
    for window in (None, 4096):
        daemon, command = printed(tmp_path, engine, *DEVICE[1:], f"--device={device}", *asked,
                                  sliding_window=window)
        assert "--n-layers=2" in daemon
        assert (switch in command) == (window is not None)


@pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="vLLM is installed")
@pytest.mark.parametrize("field, otherwise", [("sliding_window", True), ("mamba_d_state", False)])
def test_only_vllm_groups_layers_that_differ(tmp_path, field, otherwise):
    with pytest.raises(subprocess.CalledProcessError) as failed:
        printed(tmp_path, "vllm", "--device=cpu", **{field: 4096})
    assert "Use the Python of the engine" in failed.value.stderr
    assert ("--disable-hybrid-kv-cache-manager" in failed.value.stderr) == otherwise


@pytest.mark.parametrize("engine, options", [
    ("vllm", ["--disable-hybrid-kv-cache-manager"]), ("sglang", [])])
def test_states_are_refused_where_all_layers_keep_all_positions(tmp_path, engine, options):
    with pytest.raises(subprocess.CalledProcessError) as failed:
        printed(tmp_path, engine, "--device=cpu", *options, mamba_d_state=16)
    assert "keep a state instead of KV" in failed.value.stderr


def test_a_proof_refuses_states(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({**CONFIG, "mamba_d_state": 16}))
    said = subprocess.run([sys.executable, "-m", "kvtrunk.vllm", "prove", str(tmp_path),
                           "--device=cpu"], check=False, capture_output=True, text=True)
    assert said.returncode == 2
    assert "keep a state instead of KV" in said.stderr and "prove, " in said.stderr


def test_sglang_has_one_plane_of_an_mla_model(tmp_path):
    daemon, command = printed(tmp_path, "sglang", "--device=cpu", "--pool-bytes=1G", kv_lora_rank=512,
                              qk_rope_head_dim=64)
    assert [word for word in daemon if "kv-layout" in word] == ["--kv-layout=latent"]
    pages = (1 << 30) // (2 * 576 * 2 * 16)
    assert f"--n-pages={pages}" in daemon
    assert command[command.index("--max-total-tokens") + 1] == str((pages - 1) * 16)


def test_sglang_keeps_kv_in_fp8(tmp_path):
    daemon, command = printed(tmp_path, "sglang", "--device=cpu", "--kv-type=fp8_e4m3")
    assert "--kv-type=fp8_e4m3" in daemon
    assert command[command.index("--kv-cache-dtype") + 1] == "fp8_e4m3"


REPLICAS = {"vllm": ("--data-parallel-size", "--tensor-parallel-size"),
            "sglang": ("--dp-size", "--tp-size")}


@pytest.mark.parametrize("engine", REPLICAS)
def test_replicas_on_devices_have_a_daemon_each(tmp_path, engine):
    replicas, ranks = REPLICAS[engine]
    *daemons, command = printed(tmp_path, engine, f"{replicas}=2", f"{ranks}=2", *DEVICE)
    assert [words[-2:] for words in daemons] == [["--instance=gpu0", "--devices=0 1"],
                                                   ["--instance=gpu2", "--devices=2 3"]]
    assert daemons[0][:-2] == daemons[1][:-2]
    assert any(word.startswith("KVTRUNK_SOCKET=") and word.endswith("/gpu{device}.sock")
               for word in command)
    assert command[command.index(replicas) + 1] == "2"


@pytest.mark.parametrize("engine", REPLICAS)
def test_replicas_on_cpus_have_one_daemon_and_shares_of_the_cpus(tmp_path, engine):
    daemon, command = printed(tmp_path, engine, f"{REPLICAS[engine][0]}=3", "--device=cpu")
    assert not any("instance" in word for word in daemon) and "device" not in " ".join(command)
    words = dict(word.split("=", 1) for word in command if "=" in word)
    if engine == "vllm":
        assert int(words["OMP_NUM_THREADS"]) == max(1, len(os.sched_getaffinity(0)) // 3)
    else:
        assert words["SGLANG_CPU_OMP_THREADS_BIND"].count("|") == 2


@pytest.mark.parametrize("engine", REPLICAS)
def test_no_replicas_are_refused(tmp_path, engine):
    with pytest.raises(subprocess.CalledProcessError) as refused:
        printed(tmp_path, engine, f"{REPLICAS[engine][0]}=0")
    assert refused.value.returncode == 2


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


@pytest.mark.parametrize("engine, page, theirs", [
    ("vllm", "--block-size=64", "--kv-transfer-config"),
    ("sglang", "--page-size=64", "--radix-cache-backend")])
def test_a_proof_starts_what_flags_prints(tmp_path, monkeypatch, engine, page, theirs):
    """With a small pool and short prompts, and the user's own options."""
    on = ["--device=cpu", page]
    _, command = printed(tmp_path, engine, *on)
    found = []
    monkeypatch.setattr(_prove, "run", lambda make, size, _: found.append((make(), size)) or 0)
    monkeypatch.setattr(sys, "argv", ["", "prove", str(tmp_path), *on, "--positions=512", "--",
                                      "--quantization", "fp8"])
    assert importlib.import_module(f"kvtrunk.{engine}.__main__").main() == 0
    [(plan, size)] = found
    assert size.positions == 512 and plan.daemon["n_pages"] == 8 * 512 // 64 + 1
    assert not {"pool_bytes", "runtime_dir", "supervise"} & plan.daemon.keys()
    words = [word for word in command[1:] if "=" not in word and not word.isdecimal()]
    assert [word for word in plan.shared if word in words] == words
    assert theirs in plan.shared and theirs not in plan.private
    for each in (plan.shared, plan.private):
        assert each[each.index("--quantization") + 1] == "fp8" and "512" in each
    assert all(any("OMP_THREADS_BIND" in word for word in own) for own in plan.variables)
