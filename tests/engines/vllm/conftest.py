# SPDX-License-Identifier: Apache-2.0
"""vLLM engines, and the daemon whose pool they share."""
import pathlib
import shlex
import subprocess
import sys

import engine
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
ENGINE, PROVE, SERVE = "vllm", ["--device", "cpu", "--block-size", str(PAGE)], ["--enforce-eager"]
TRANSFER = {"kv_connector": "KvtrunkConnector", "kv_role": "kv_both"}


def geometry(layers=2, kv_heads=2, head_dim=64, **more):
    """Options of a daemon for the model of these tests, as vLLM lays out KV on a CPU."""
    return {"n_layers": layers, "n_kv_heads": kv_heads, "head_dim": head_dim, "kv_type": "fp32",
            "kv_layout": "hknd", "page_size": PAGE, "n_pages": 256, **more}


def flags(folder, *more):
    """What `python -m kvtrunk.vllm flags` prints: options of a daemon, and the first engine's
    command."""
    most = {"--block-size": str(PAGE), "--device": "cpu", "--pool-bytes": "16M"}
    said = subprocess.run(
        [sys.executable, "-m", "kvtrunk.vllm", "flags", str(folder), *more,
         *(word for name, value in most.items() if name not in more for word in (name, value))],
        check=True, capture_output=True, text=True).stdout
    daemon, command, *_ = (line for line in said.splitlines() if not line.startswith("#"))
    options = dict(word[2:].split("=", 1) for word in shlex.split(daemon)[1:] if "=" in word)
    return {**{name.replace("-", "_"): value for name, value in options.items()},
            "n_pages": 0}, command


def events(port, replay):
    """Options of an engine that publishes KV events."""
    return {"kv_events_config": {
        "enable_kv_cache_events": True, "publisher": "zmq", "endpoint": f"tcp://*:{port}",
        "replay_endpoint": f"tcp://*:{replay}"}}


class Engine(engine.Engine):
    """A vLLM engine."""

    program = "serve.py"

    def __init__(self, folder, log, daemon=None, transfer=None, environment=(), processes=3,
                 **options):
        """processes: 3, as under `vllm serve` (API, EngineCore, worker), or 1."""
        if daemon is not None:
            options["kv_transfer_config"] = {**TRANSFER, **(transfer or {})}
        else:
            options.setdefault("num_gpu_blocks_override", 256)
        super().__init__(HERE / self.program, folder, log, options,
                         {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_NO_USAGE_STATS": "1",
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
