# SPDX-License-Identifier: Apache-2.0
"""SGLang's own sizing, on devices whose free memory is made up."""
import types

import model
import pytest
import torch
from conftest import PAGE, printed

from kvtrunk.sglang import _replaced

GIB = 1 << 30


@pytest.fixture
def sized(tmp_path, monkeypatch):
    """A function: positions of the pool that SGLang's sizing finds, with and without the hook."""
    from sglang.srt import runtime_context
    from sglang.srt.configs.model_config import ModelConfig
    from sglang.srt.mem_cache import kv_cache_configurator
    from sglang.srt.server_args import ServerArgs

    folder = model.write(tmp_path)
    configurator = kv_cache_configurator.KVCacheConfigurator

    def size(pool, free, weights, hooked, **options):
        words = printed(folder, pool)[1].split()
        positions = int(words[words.index("--max-total-tokens") + 1])
        arguments = ServerArgs(
            model_path=str(folder), device="cpu", page_size=PAGE, max_total_tokens=positions,
            radix_cache_backend="kvtrunk", skip_tokenizer_init=True, **options)
        runtime_context.publish(arguments, role="scheduler")
        monkeypatch.setattr(kv_cache_configurator, "get_available_gpu_memory",
                            lambda *_, **__: (free - weights) / GIB)
        one = object.__new__(configurator)
        for name, value in {
                "device": "cpu", "gpu_id": 0, "mambaish_config": None, "is_hybrid_swa": False,
                "kv_cache_dtype": torch.float32, "kv_cache_dtype_str": "auto",
                "use_mla_backend": False, "is_draft_worker": False, "attn_dp_size": 1, "pp_size": 1,
                "server_args": arguments, "kv_shard_spec": None, "kv_shard_size": 1,
                "post_capture_kv_active": False,
                "spec_algorithm": types.SimpleNamespace(
                    is_eagle=lambda: False, is_standalone=lambda: False, is_none=lambda: True,
                    is_dflash_family=lambda: False),
                "model_config": ModelConfig.from_server_args(arguments),
                "layer_info": types.SimpleNamespace(
                    num_effective_layers=2, start_layer=0, end_layer=2)}.items():
            setattr(one, name, value)
        with pytest.MonkeyPatch.context() as patch:
            if hooked:
                original = configurator._profile_available_bytes
                patch.setattr(configurator, "_profile_available_bytes",
                              lambda *taken: _replaced._budget(original, *taken))
            with runtime_context.get_parallel().override(
                    world_group=types.SimpleNamespace(cpu_group=None)):
                found = one._resolve_memory_pool_config(free / GIB)
        return positions, found.max_total_num_tokens

    return size


@pytest.mark.parametrize("size, pool, weights", [(24, 10, 5), (80, 50, 12), (141, 90, 20)])
def test_the_second_engine_on_a_device_takes_all_of_the_pool(sized, size, pool, weights):
    """Free memory at its start: without the pool, and without the first engine's weights."""
    free = (size - pool - weights) * GIB
    wanted, found = sized(pool * GIB, free, weights * GIB, True)
    assert found == wanted
    # SGLang's own rule takes KV from what is free, and finds too little with any fraction.
    for fraction in (0.8, 0.999):
        assert sized(pool * GIB, free, weights * GIB, False, mem_fraction_static=fraction)[1] < wanted


def test_without_the_daemons_size_the_engine_is_sized_as_alone(sized, monkeypatch):
    from sglang.srt import runtime_context

    sized(GIB, 8 * GIB, GIB, True)
    schedule = runtime_context.get_schedule()
    assert _replaced._budget(lambda *_: "own", None, 1) == 1 << 60
    monkeypatch.setattr(runtime_context, "get_schedule", lambda: types.SimpleNamespace(
        **{**vars(schedule), "max_total_tokens": None}))
    assert _replaced._budget(lambda *_: "own", None, 1) == "own"


@pytest.mark.parametrize("device, streams", [("cuda", [(7, ["node"])]), ("cpu", [])])
def test_fences_are_of_the_stream_that_runs_batches(device, streams):
    from kvtrunk.sglang import _pool

    seen = []
    allocator = object.__new__(_pool.KvtrunkAllocator)
    allocator.device, allocator._stream = device, None
    allocator.leases = types.SimpleNamespace(
        launched=lambda stream, nodes: seen.append((stream, list(nodes))))
    scheduler = types.SimpleNamespace(
        token_to_kv_pool_allocator=allocator, enable_overlap=True,
        forward_stream=types.SimpleNamespace(cuda_stream=7), running_batch="running",
        tree_cache=types.SimpleNamespace(look_again=lambda _: None))
    batch = types.SimpleNamespace(reqs=[types.SimpleNamespace(last_node="node")],
                                  forward_mode=types.SimpleNamespace(is_extend=lambda: True))
    assert _replaced._launch(lambda *_: "result", scheduler, batch) == "result"
    assert seen == streams
    scheduler.token_to_kv_pool_allocator = None  # an engine without kvtrunk
    assert _replaced._launch(lambda *_: "result", scheduler, batch) == "result"


@pytest.mark.parametrize("backend, device, says", [
    ("host", "cuda", "--device cuda"), ("cuda-vmm", "cpu", "--device cpu"),
    ("cuda-ipc", "cuda", None), ("host", "cpu", None)])
def test_a_pool_in_other_memory_is_refused(backend, device, says):
    from kvtrunk.engine._refusals import Refused
    from kvtrunk.sglang import _pool

    info = types.SimpleNamespace(backend=backend)
    if says is None:
        _pool.check_memory(info, device)
    else:
        with pytest.raises(Refused, match=says):
            _pool.check_memory(info, device)
