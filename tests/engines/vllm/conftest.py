# SPDX-License-Identifier: Apache-2.0
"""vLLM engines, and the daemon whose pool they share."""
import functools
import json
import pathlib
import shlex
import subprocess
import sys

import engine
import printing
import pytest

from kvtrunk import testing

HERE = pathlib.Path(__file__).resolve().parent
PAGE = 32
# EXTEND: in decode. An engine takes half a minute to start, so not each process at each operation.
KILLS = [*((operation, "EngineCore") for operation in ("BEGIN", "COMMIT", "EXTEND", "END")),
         ("COMMIT", "Worker"), ("END", "serve.py")]
SMALL = {"processes": 1}
STARTS = {"plain": {}}
NEW_EPOCH = "reset"
BEHIND = {
    "--enforce-eager": "it compiles for minutes on a CPU",
    "--max-model-len 2048": "the pools of the tests have no room for the model's 8192",
    "--max-num-seqs 16": "the same",
    "--skip-tokenizer-init": "prompts and answers are tokens",
}
"""All that engines of the tests get behind what `flags` prints: why. Never the device, types, sizes or
the connector."""
PRINTED = ("block_size", "data_parallel_size", "disable_hybrid_kv_cache_manager",
           "speculative_config", "tensor_parallel_size")
"""Options that a test gives to `flags`."""
NEVER = "device", "dtype", "gpu_memory_utilization", "kv_cache_dtype", "kv_cache_memory_bytes"
ENGINE, PROVE, SERVE = "vllm", ["--device", "cpu", "--block-size", str(PAGE)], ["--enforce-eager"]
TRANSFER = {"kv_connector": "KvtrunkConnector", "kv_role": "kv_both"}


def geometry(layers=2, kv_heads=2, head_dim=64, **more):
    """Options of a daemon for the model of these tests, as vLLM lays out KV on a CPU."""
    return {"n_layers": layers, "n_kv_heads": kv_heads, "head_dim": head_dim, "kv_type": "fp32",
            "kv_layout": "hknd", "page_size": PAGE, "n_pages": 256, **more}


@functools.cache
def said(folder, *more):
    """Output of `python -m kvtrunk.vllm flags`."""
    return subprocess.run([sys.executable, "-m", "kvtrunk.vllm", "flags", str(folder), *more],
                          check=True, capture_output=True, text=True).stdout


def flags(folder, *more):
    """Its output for a small pool: options of a daemon, and the first engine's command."""
    most = {"--block-size": str(PAGE), "--device": "cpu", "--pool-bytes": "16M"}
    printed = said(folder, *more, *(word for name, value in most.items() if name not in more
                                    for word in (name, value)))
    daemon, command, *_ = (line for line in printed.splitlines() if not line.startswith("#"))
    options = dict(word[2:].split("=", 1) for word in shlex.split(daemon)[1:] if "=" in word)
    return {**{name.replace("-", "_"): value for name, value in options.items()},
            "n_pages": 0}, command


def events(port, replay):
    """Options of an engine that publishes KV events."""
    return {"kv_events_config": {
        "enable_kv_cache_events": True, "publisher": "zmq", "endpoint": f"tcp://*:{port}",
        "replay_endpoint": f"tcp://*:{replay}"}}


def fields(command):
    """A printed command, and what stands behind it, as fields of vLLM's arguments. And variables."""
    words = shlex.split(command)
    at = words.index("--model") if "--model" in words else words.index("serve")
    variables = dict(word.split("=", 1) for word in words[1:at] if "=" in word)
    behind = printing.behind(words[at:], shlex.split(" ".join(BEHIND)))
    found = printing.parsed(["--model", *behind[1:]])
    found.pop("port", None)  # of a server
    return found, variables


def asked(options):
    """Words of `flags` for an engine with these options."""
    words = []
    for name in PRINTED:
        value = options.get(name)
        if value:
            words.append(f"--{name.replace('_', '-')}")
        if value and value is not True:
            words.append(json.dumps(value))
    return words


class Engine(engine.Engine):
    """A vLLM engine."""

    program = "serve.py"

    def __init__(self, folder, log, daemon=None, transfer=None, environment=(), processes=3,
                 command=None, **options):
        """processes: 3, as under `vllm serve` (API, EngineCore, worker), or 1. command: what `flags`
        printed; None: what it prints for these options. options: of this test, over that."""
        assert not set(options) & set(NEVER), options
        printed, variables = fields(
            command or flags(folder, "--pool-bytes", "128M", *asked(options))[1])
        options = {**printed, **options}
        if daemon is not None:
            options["kv_transfer_config"] = {**printed["kv_transfer_config"], **(transfer or {})}
        else:
            options.setdefault("num_gpu_blocks_override", 256)
            if options["kv_transfer_config"] == printed["kv_transfer_config"]:
                del options["kv_transfer_config"]
        super().__init__(HERE / self.program, folder, log, options,
                         {**variables, "OMP_NUM_THREADS": "1", "VLLM_NO_USAGE_STATS": "1",
                          "VLLM_CPU_CI_ENV": "1",
                          "VLLM_ENABLE_V1_MULTIPROCESSING": str(int(processes > 1)),
                          **dict(environment)}, daemon)


@pytest.fixture(scope="session")
def engine_class():
    return Engine


@pytest.fixture(scope="module")
def daemon():
    """Requests wait also for the last chunk of a prompt."""
    with testing.daemon(coalesce_threshold=0, **geometry()) as made:
        yield made
