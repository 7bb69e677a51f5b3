# SPDX-License-Identifier: Apache-2.0
"""SGLang's KV pool and prefix cache on kvtrunk's pages: --radix-cache-backend kvtrunk.

SGLang finds this as a plug-in (entry point group "sglang.srt.plugins") in each of its processes.
Without the flag, or with --disable-radix-cache, SGLang runs as if it were not installed.

    __init__    the plug-in: which of SGLang's functions are wrapped
    _leases     what requests hold, and its sizes, on kvtrunk._ring (no SGLang, no torch)
    _keys       tokens as keys; which requests must not share
    _pool       tensors on the pool, their proof, the allocator
    _cache      SGLang's prefix cache interface; admission
    _events     what is cached, for SGLang's publisher of KV events
    _identity   what makes KV equal: weights, config, kernels
    _updates    new weights and adapters of an engine that runs
    _refusals   what does not work, in words
    compat      the names of SGLang that all of this uses
"""
from __future__ import annotations

from typing import Any

NAME = "kvtrunk"


def wanted() -> bool:
    """Whether this engine was started with the flag, and with a prefix cache."""
    from sglang.srt.runtime_context import get_memory
    memory = get_memory()
    return bool(memory.radix_cache_backend == NAME and not memory.disable_radix_cache)


def register() -> None:
    """The plug-in: called by SGLang in each process. Imports nothing heavy unless it is used."""
    from sglang.srt.mem_cache.registry import register_radix_cache_backend
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    register_radix_cache_backend(NAME, make_cache)
    for target, hook in HOOKS.items():
        HookRegistry.register(target, hook, HookType.AROUND)


def make_cache(ctx: Any) -> Any:
    """The factory of --radix-cache-backend kvtrunk."""
    if not wanted():
        from sglang.srt.mem_cache.registry import default_radix_cache_factory
        return default_radix_cache_factory(ctx)
    from . import _cache
    return _cache.make(ctx)


# SGLang ignores a plug-in that raises, and hooks that cannot be applied. So a hook does nothing
# but decide whether it is wanted, and _cache.make() checks that each is in place.

def _buffers(original: Any, pool: Any) -> Any:
    if not wanted():
        return original(pool)
    from . import _pool
    return _pool.attach(pool)


def _allocator(original: Any, configurator: Any, **arguments: Any) -> Any:
    if not wanted() or arguments.get("token_to_kv_pool_allocator") is not None:
        return original(configurator, **arguments)
    from . import _pool
    return _pool.make_allocator(configurator, **arguments)


def _budget(original: Any, configurator: Any, *arguments: Any, **options: Any) -> Any:
    """Bytes for KV, which SGLang divides by those of a position, up to --max-total-tokens. It takes
    them from what is free when it starts, and the pool is not."""
    from sglang.srt.runtime_context import get_schedule
    if not wanted() or get_schedule().max_total_tokens is None:
        return original(configurator, *arguments, **options)
    return 1 << 60


def _launch(original: Any, scheduler: Any, batch: Any, *arguments: Any, **options: Any) -> Any:
    result = original(scheduler, batch, *arguments, **options)
    launched = getattr(scheduler.token_to_kv_pool_allocator, "launched", None)
    if launched is not None:
        launched(scheduler, batch)
        scheduler.tree_cache.look_again(scheduler.running_batch)
    return result


def _extend(original: Any, batch: Any, *arguments: Any, **options: Any) -> Any:
    return _with_batch(original, batch, arguments, options, 0)


def _decode(original: Any, batch: Any, *arguments: Any, **options: Any) -> Any:
    return _with_batch(original, batch, arguments, options, 1)


def _with_batch(original: Any, batch: Any, arguments: Any, options: Any, decoded: int) -> Any:
    allocator = batch.tree_cache.token_to_kv_pool_allocator
    if getattr(allocator, "leases", None) is None:
        return original(batch, *arguments, **options)
    with allocator.rows_of(batch, decoded):
        return original(batch, *arguments, **options)


def _arrive(original: Any, scheduler: Any, req: Any, *arguments: Any, **options: Any) -> Any:
    arrived = getattr(scheduler.tree_cache, "arrived", None)
    if arrived is not None:
        arrived(req)
    return original(scheduler, req, *arguments, **options)


def _admit(original: Any, adder: Any, req: Any, *arguments: Any, **options: Any) -> Any:
    admit = getattr(adder.tree_cache, "admit", None)
    if admit is None:
        return original(adder, req, *arguments, **options)
    return admit(adder, req, lambda: original(adder, req, *arguments, **options))


def _retract(original: Any, batch: Any, *arguments: Any, **options: Any) -> Any:
    retract = getattr(batch.tree_cache, "retract", None)
    if retract is None:
        return original(batch, *arguments, **options)
    return retract(batch)


def _load_model(original: Any, runner: Any, *arguments: Any, **options: Any) -> Any:
    if wanted() and not runner.is_draft_worker:
        from . import _identity, _refusals
        resolved = _refusals.Resolved()
        _refusals.check_config(runner.model_config)
        _refusals.check(resolved)
        runner.kvtrunk_files = _identity.Files(resolved.model_path, resolved.load_format, resolved)
    return original(runner, *arguments, **options)


def _writes(original: Any, *arguments: Any, **options: Any) -> Any:
    from . import _updates
    if _updates.current is not None:
        _updates.current.writes()
    return original(*arguments, **options)


def _update(name: str) -> Any:
    """A hook of what Updates and Adapters have a method for. SGLang has it in its scheduler, or in
    what the scheduler has for it."""
    def hook(original: Any, owner: Any, *arguments: Any, **options: Any) -> Any:
        cache = getattr(owner, "scheduler", owner).tree_cache
        part = getattr(cache, name.split(".")[0], None)
        if part is None:
            return original(owner, *arguments, **options)
        return getattr(part, name.split(".")[1])(
            lambda: original(owner, *arguments, **options), *arguments, **options)
    return hook


_SCHEDULER = "sglang.srt.managers.scheduler.Scheduler."
_UPDATER = "sglang.srt.managers.scheduler_components.weight_updater.SchedulerWeightUpdaterManager."
HOOKS = {
    "sglang.srt.mem_cache.memory_pool.MHATokenToKVPool._create_buffers_normal": _buffers,
    "sglang.srt.mem_cache.memory_pool.MHATokenToKVPool._create_quantized_buffers": _buffers,
    "sglang.srt.mem_cache.memory_pool.MLATokenToKVPool._create_buffers": _buffers,
    "sglang.srt.mem_cache.kv_cache_configurator.KVCacheConfigurator."
    "_build_token_to_kv_pool_allocator": _allocator,
    "sglang.srt.mem_cache.kv_cache_configurator.KVCacheConfigurator._profile_available_bytes": _budget,
    _SCHEDULER + "run_batch": _launch,
    _SCHEDULER + "_prefetch_kvcache": _arrive,
    "sglang.srt.mem_cache.allocation.alloc_for_extend": _extend,
    "sglang.srt.mem_cache.allocation.alloc_for_decode_default": _decode,
    "sglang.srt.managers.schedule_policy.PrefillAdder.add_one_req": _admit,
    "sglang.srt.managers.schedule_batch.ScheduleBatch.retract_decode": _retract,
    "sglang.srt.model_executor.model_runner.ModelRunner.load_model": _load_model,
    "sglang.srt.model_loader.loader.DefaultModelLoader.restore_weights_before_loading": _writes,
    _UPDATER + "record_weight_version_after_update": _update("updates.loaded"),
    _UPDATER + "update_weights_from_disk": _update("updates.from_disk"),
    _UPDATER + "begin_weight_update": _update("updates.begin"),
    _UPDATER + "update_weights_from_tensor": _update("updates.part"),
    _UPDATER + "update_weights_from_distributed": _update("updates.part"),
    _UPDATER + "end_weight_update": _update("updates.end"),
    _UPDATER + "update_weights_from_ipc": _update("updates.from_ipc"),
    _UPDATER + "check_weights": _update("updates.check"),
    _UPDATER + "release_memory_occupation": _update("updates.sleep"),
    _SCHEDULER + "handle_update_weight_version": _update("updates.version"),
    _SCHEDULER + "handle_rpc_request": _update("updates.call"),
    _SCHEDULER + "load_lora_adapter": _update("adapters.load"),
    _SCHEDULER + "load_lora_adapter_from_tensors": _update("adapters.load"),
    _SCHEDULER + "unload_lora_adapter": _update("adapters.unload"),
}
