# SPDX-License-Identifier: Apache-2.0
"""vLLM's own sizing, on devices whose sizes are made up: an engine that is started as
`flags` prints starts beside the pool and other engines, and takes no more than its share."""
import os
import shlex
import types

import model
import pytest
from conftest import PAGE, flags

GIB = 1 << 30
CONTEXT = GIB // 2
# Device, engines on it, weights, in GiB.
DEVICES = [(24, 2, 3), (80, 2, 16), (141, 3, 16), (141, 2, 61)]


@pytest.fixture
def started(tmp_path, monkeypatch):
    """A function that runs vLLM's sizing with the printed options, and what is free."""
    import torch
    from vllm.engine.arg_utils import EngineArgs
    from vllm.utils.argparse_utils import FlexibleArgumentParser
    from vllm.utils.mem_utils import MemorySnapshot
    from vllm.v1.worker import gpu_worker

    monkeypatch.setattr(torch.accelerator, "memory_stats", lambda _device: {})
    monkeypatch.setattr(torch.accelerator, "memory_reserved", lambda _device: 0)
    parser = EngineArgs.add_cli_args(FlexibleArgumentParser())
    parser.add_argument("--port", type=int)  # the server's

    def start(options, device, free):
        monkeypatch.setattr(torch.accelerator, "get_memory_info", lambda _device: (free, device))
        arguments = EngineArgs.from_cli_args(parser.parse_args(options))
        cache = types.SimpleNamespace(
            gpu_memory_utilization=arguments.gpu_memory_utilization,
            kv_cache_memory_bytes=arguments.kv_cache_memory_bytes)
        worker = object.__new__(gpu_worker.Worker)
        snapshot = MemorySnapshot(device=torch.device("cpu", 0))
        requested = gpu_worker.request_memory(snapshot, cache)
        vars(worker).update(
            cache_config=cache, init_snapshot=snapshot, requested_memory=requested,
            vllm_config=None, parallel_config=None, randomize_dummy_inputs=False,
            model_config=types.SimpleNamespace(multimodal_config=None),
            model_runner=types.SimpleNamespace(profile_run=lambda **_: None))
        monkeypatch.setattr(gpu_worker, "set_current_vllm_config", lambda _: memoryview(b""))
        return requested, worker.determine_available_memory()

    return start


@pytest.mark.parametrize("size, engines, weights", DEVICES)
def test_the_last_engine_on_a_device_starts(tmp_path, started, size, engines, weights):
    folder = model.write(tmp_path)
    os.truncate(folder / "model.safetensors", weights * GIB)
    options, command = flags(folder, "--device", "cuda", "--device-bytes", f"{size}G", "--engines",
                             str(engines), "--pool-bytes", "0")
    pool, device = int(options["pool_bytes"]), size * GIB
    share = (device - pool - GIB) // engines
    words = shlex.split(command)
    printed = words[words.index("--model"):]
    # The others have all of their shares, and this one's context is there.
    free = device - pool - (engines - 1) * share - CONTEXT
    requested, kv = started(printed, device, free)
    assert kv == pool and weights * GIB < requested <= share
    without = printed.index("--gpu-memory-utilization")
    with pytest.raises(ValueError, match="less than desired GPU memory utilization"):
        started(printed[:without] + printed[without + 2:], device, free)
