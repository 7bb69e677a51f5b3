# SPDX-License-Identifier: Apache-2.0
"""Replaced parts of a running SGLang, and their replacements. No file of SGLang is changed.

SGLang ignores a plug-in that raises, and hooks that cannot be applied. So a hook does nothing but
decide whether it is wanted, and _cache.make() checks that each is in place.
"""
from __future__ import annotations

import logging
from typing import Any

from ..engine import Replaced
from . import NAME, wanted

logger = logging.getLogger(__name__)


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


def _configure(original: Any, configurator: Any, *arguments: Any, **options: Any) -> Any:
    if not wanted():
        return original(configurator, *arguments, **options)
    from . import _drafts
    with _drafts.configuring(configurator):
        return original(configurator, *arguments, **options)


def _launch(original: Any, scheduler: Any, batch: Any, *arguments: Any, **options: Any) -> Any:
    result = original(scheduler, batch, *arguments, **options)
    launched = getattr(scheduler.token_to_kv_pool_allocator, "launched", None)
    if launched is not None:
        launched(scheduler, batch)
        scheduler.tree_cache.look_again(scheduler.running_batch)
    return result


def _extend(original: Any, batch: Any, *arguments: Any, **options: Any) -> Any:
    """A part of each prompt."""
    return _with_rows(batch.tree_cache,
                      lambda: zip(batch.reqs, batch.prefix_lens, batch.seq_lens_cpu.tolist()),
                      lambda: original(batch, *arguments, **options))


def _decode(original: Any, batch: Any, *arguments: Any, **options: Any) -> Any:
    """Slots of one token of each request."""
    return _with_rows(batch.tree_cache,
                      lambda: ((req, length, length + 1) for req, length in
                               zip(batch.reqs, batch.seq_lens_cpu.tolist())),
                      lambda: original(batch, *arguments, **options))


def _speculate(original: Any, cache: Any, *arguments: Any, **options: Any) -> Any:
    """Slots of draft tokens; a request keeps those of accepted ones."""
    return _with_rows(cache, lambda: zip(options["reqs"], options["cur_kv_lens_cpu"].tolist(),
                                         options["nxt_kv_lens_cpu"].tolist()),
                      lambda: original(cache, *arguments, **options))


def _with_rows(cache: Any, rows: Any, original: Any) -> Any:
    """Let SGLang allocate rows: requests, and the positions of each, from and to."""
    allocator = cache.token_to_kv_pool_allocator
    if getattr(allocator, "leases", None) is None:
        return original()
    with allocator.rows_of(list(rows())):
        return original()


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


def _touch(original: Any, req: Any, tree: Any) -> None:
    touch = getattr(tree, "touch", None)  # which SGLang's own caches lack
    if touch is None:
        original(req, tree)
    else:
        touch(req)


def _usage(original: Any, observer: Any) -> Any:
    usage = getattr(observer.tree_cache, "usage", None)
    return original(observer) if usage is None else usage(original(observer))


def _retract(original: Any, batch: Any, *arguments: Any, **options: Any) -> Any:
    retract = getattr(batch.tree_cache, "retract", None)
    if retract is None:
        return original(batch, *arguments, **options)
    return retract(batch)


def _say_off() -> None:
    """Log if SGLang has no prefix cache, for whatever reason: SGLang does not mention the flag."""
    from sglang.srt.runtime_context import get_memory
    if get_memory().radix_cache_backend == NAME and not wanted():
        logger.warning(
            "kvtrunk: this engine shares nothing: SGLang's prefix cache is off, by "
            "--disable-radix-cache, or because of another option or the model (see its log above)")


def _load_model(original: Any, runner: Any, *arguments: Any, **options: Any) -> Any:
    _say_off()
    if wanted():
        from . import _drafts, _identity, _refusals
        resolved = _refusals.Resolved()
        _refusals.check_config(runner.model_config)
        _refusals.check(resolved)
        runner.kvtrunk_files = _identity.files_of(runner.is_draft_worker, resolved)
        if runner.is_draft_worker:
            _drafts.runners.append(runner)
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


_SRT = "sglang.srt."
_POOLS = _SRT + "mem_cache.memory_pool."
_SIZES = _SRT + "mem_cache.kv_cache_configurator.KVCacheConfigurator."
_MANAGERS = _SRT + "managers."
_SCHEDULER = _MANAGERS + "scheduler.Scheduler."
_COMPONENTS = _MANAGERS + "scheduler_components."
_UPDATER = _COMPONENTS + "weight_updater.SchedulerWeightUpdaterManager."
_PROOF = "an engine ends at its start if SGLang did not wrap it"
_TENSORS = "the start proves address, strides and content of each layer's tensors"
_WEIGHTS = "new weights change the engine's name first"
_ADAPTERS = "an adapter is known by its bytes"


def _row(what: str, why: str, hook: Any, proof: str = _PROOF) -> tuple[Replaced, Any]:
    return Replaced(what, why, proof), hook


REPLACED = dict((
    _row(_POOLS + "MHATokenToKVPool._create_buffers_normal",
         "K and V of each layer are tensors on the pool", _buffers, _TENSORS),
    _row(_POOLS + "MHATokenToKVPool._create_quantized_buffers", "the same in fp8", _buffers,
         _TENSORS),
    _row(_POOLS + "MLATokenToKVPool._create_buffers", "the same of MLA", _buffers, _TENSORS),
    _row(_SIZES + "configure", "KV of draft layers lies behind the model's", _configure),
    _row(_SIZES + "_build_token_to_kv_pool_allocator", "rows are pages that leases have",
         _allocator),
    _row(_SIZES + "_profile_available_bytes",
         "with `--max-total-tokens`, memory for KV is the daemon's", _budget),
    _row(_SCHEDULER + "run_batch", "fences behind passes; and waiting requests are looked at again "
         "when other engines gave room", _launch),
    _row(_SCHEDULER + "_prefetch_kvcache", "a store is asked when a request arrives", _arrive),
    _row(_SRT + "mem_cache.allocation.alloc_for_extend", "rows are for requests, not for a batch",
         _extend),
    _row(_SRT + "mem_cache.allocation.alloc_for_decode_default", "the same of the next token",
         _decode),
    _row(_SRT + "mem_cache.allocation.alloc_for_spec_decode", "the same of draft tokens",
         _speculate),
    _row(_MANAGERS + "schedule_policy.PrefillAdder.add_one_req",
         "a request is admitted with a lease", _admit),
    _row(_SRT + "mem_cache.common.touch_waiting_prefix",
         "what waiting requests will reuse is not evicted before the rest", _touch),
    _row(_COMPONENTS + "pool_stats_observer.SchedulerPoolStatsObserver._get_token_info",
         "used tokens are this engine's", _usage),
    _row(_MANAGERS + "schedule_batch.ScheduleBatch.retract_decode",
         "the last request goes back to the queue, too", _retract),
    _row(_SRT + "model_executor.model_runner.ModelRunner.load_model",
         "options and model are judged, and files read for the name", _load_model),
    _row(_SRT + "model_loader.loader.DefaultModelLoader.restore_weights_before_loading", _WEIGHTS,
         _writes),
    _row(_UPDATER + "record_weight_version_after_update", _WEIGHTS, _update("updates.loaded")),
    _row(_UPDATER + "update_weights_from_disk", _WEIGHTS, _update("updates.from_disk")),
    _row(_UPDATER + "begin_weight_update", _WEIGHTS, _update("updates.begin")),
    _row(_UPDATER + "update_weights_from_tensor", _WEIGHTS, _update("updates.part")),
    _row(_UPDATER + "update_weights_from_distributed", _WEIGHTS, _update("updates.part")),
    _row(_UPDATER + "end_weight_update", _WEIGHTS, _update("updates.end")),
    _row(_UPDATER + "update_weights_from_ipc", _WEIGHTS, _update("updates.from_ipc")),
    _row(_UPDATER + "check_weights", _WEIGHTS, _update("updates.check")),
    _row(_UPDATER + "release_memory_occupation", "its flush forgets nothing",
         _update("updates.sleep")),
    _row(_SCHEDULER + "handle_update_weight_version", _WEIGHTS, _update("updates.version")),
    _row(_SCHEDULER + "handle_rpc_request", _WEIGHTS, _update("updates.call")),
    _row(_SCHEDULER + "load_lora_adapter", _ADAPTERS, _update("adapters.load")),
    _row(_SCHEDULER + "load_lora_adapter_from_tensors", _ADAPTERS, _update("adapters.load")),
    _row(_SCHEDULER + "unload_lora_adapter", _ADAPTERS, _update("adapters.unload")),
))
"""The rows, each with its hook."""
