# SPDX-License-Identifier: Apache-2.0
"""The names of SGLang that kvtrunk.sglang uses, checked against the installed release.

check() imports SGLang. problems() reads a folder or a wheel, for releases that do not run here.
"""
from __future__ import annotations

import ast
import functools
import inspect
from typing import Any, Optional

from ..engine import _calls, Refused
from ..engine._releases import RELEASES

OURS = RELEASES["sglang"]
TESTED = ({"version": OURS.run, "device": "cpu", "backend": "TorchNativeAttnBackend"},)
"""Configurations that the tests of whole engines run: values by the names of _proofs.made()."""

_UPDATER = "sglang.srt.managers.scheduler_components.weight_updater.SchedulerWeightUpdaterManager."
# Each name, and arguments that it must take (by this name, or by **).
NAMES: dict[str, tuple[str, ...]] = {
    "sglang.srt.mem_cache.registry.register_radix_cache_backend": ("name", "factory"),
    "sglang.srt.mem_cache.registry.default_radix_cache_factory": ("ctx",),
    "sglang.srt.plugins.hook_registry.HookRegistry.register": ("target", "hook", "hook_type"),
    "sglang.srt.runtime_context.get_memory": (),
    "sglang.srt.runtime_context.get_schedule": (),
    "sglang.srt.runtime_context.RuntimeContext.config_leaf": ("name",),
    "sglang.srt.distributed.parallel_state.get_tp_group": (),
    "sglang.srt.distributed.parallel_state.GroupCoordinator.broadcast_object": ("obj",),
    "sglang.srt.managers.tp_worker.BaseTpWorker.model_runner": (),
    "sglang.srt.layers.rotary_embedding.rope_variant.Phi3LongRoPEScaledRotaryEmbedding.forward": (
        "positions",),
    "sglang.srt.mem_cache.prefill_budget.PrefillBudget._available_and_evictable": ("self",),
    "sglang.srt.mem_cache.memory_pool.MHATokenToKVPool._create_buffers_normal": ("self",),
    "sglang.srt.mem_cache.memory_pool.MHATokenToKVPool._create_quantized_buffers": ("self",),
    "sglang.srt.mem_cache.memory_pool.MLATokenToKVPool._create_buffers": ("self",),
    "sglang.srt.mem_cache.memory_pool.MLATokenToKVPool.get_key_buffer": ("layer_id",),
    "sglang.srt.mem_cache.memory_pool.MHATokenToKVPool.get_key_buffer": ("layer_id",),
    "sglang.srt.mem_cache.memory_pool.MHATokenToKVPool.get_value_buffer": ("layer_id",),
    "sglang.srt.mem_cache.kv_cache_configurator.KVCacheConfigurator."
    "_build_token_to_kv_pool_allocator": ("sizes", "token_to_kv_pool",
                                          "token_to_kv_pool_allocator"),
    "sglang.srt.mem_cache.kv_cache_configurator.KVCacheConfigurator._profile_available_bytes": (
        "pre_model_load_memory",),
    "sglang.srt.mem_cache.kv_cache_configurator.KVCacheConfigurator.configure": (
        "pre_model_load_memory",),
    "sglang.srt.model_executor.model_runner_components.spec_aux_hidden_state."
    "SpecAuxHiddenStateConfig.eagle_draft_num_layers": (),
    "sglang.srt.runtime_context.get_spec": (),
    "sglang.srt.managers.scheduler.Scheduler.run_batch": ("batch",),
    "sglang.srt.managers.scheduler.Scheduler._prefetch_kvcache": ("req",),
    "sglang.srt.mem_cache.allocator.base.BaseTokenToKVPoolAllocator.__init__": (
        "size", "page_size", "dtype", "device", "kvcache", "need_sort"),
    "sglang.srt.mem_cache.allocator.base.BaseTokenToKVPoolAllocator.create_prefill_budget": (
        "tree_cache", "num_mixed_decode_tokens"),
    "sglang.srt.mem_cache.allocator.base.BaseTokenToKVPoolAllocator.check_decode_capacity": (
        "num_tokens", "tree_cache", "requests"),
    "sglang.srt.mem_cache.allocator.base.BaseTokenToKVPoolAllocator.free_segment": (
        "free_index", "start_pos"),
    "sglang.srt.mem_cache.allocation.alloc_for_extend": ("batch",),
    "sglang.srt.mem_cache.allocation.alloc_for_decode_default": ("batch", "token_per_req"),
    "sglang.srt.mem_cache.allocation.alloc_for_spec_decode": (
        "tree_cache", "reqs", "cur_kv_lens_cpu", "nxt_kv_lens_cpu"),
    "sglang.srt.mem_cache.allocation_sizing.get_alloc_reserve_per_decode": (),
    "sglang.srt.mem_cache.allocation_sizing.page_aligned_decode_alloc_lens": (
        "reqs", "reserve", "page_size"),
    "sglang.srt.managers.schedule_policy.PrefillAdder.add_one_req": ("req",),
    "sglang.srt.managers.schedule_policy.PrefillAdder.rem_total_tokens": (),
    "sglang.srt.managers.schedule_policy.CLIP_MAX_NEW_TOKENS": (),
    "sglang.srt.managers.schedule_policy.AddReqResult.CONTINUE": (),
    "sglang.srt.managers.schedule_policy.AddReqResult.NO_TOKEN": (),
    "sglang.srt.managers.schedule_policy.AddReqResult.OTHER": (),
    "sglang.srt.mem_cache.common.touch_waiting_prefix": ("req", "tree_cache"),
    "sglang.srt.managers.scheduler_components.pool_stats_observer.SchedulerPoolStatsObserver."
    "_get_token_info": ("self",),
    "sglang.srt.managers.scheduler_components.pool_stats_observer.PoolStats."
    "get_prefill_usage_msg_parts": ("self",),
    "sglang.srt.managers.scheduler_components.pool_stats_observer.PoolStats."
    "get_decode_usage_msg_parts": ("self",),
    "sglang.srt.managers.schedule_batch.ScheduleBatch.batch_is_full": (),
    "sglang.srt.managers.schedule_batch.ScheduleBatch.retract_decode": ("self",),
    "sglang.srt.managers.schedule_batch.ScheduleBatch.release_req": ("idx",),
    "sglang.srt.managers.schedule_batch.ScheduleBatch.filter_batch": ("keep_indices",),
    "sglang.srt.managers.schedule_batch.ScheduleBatch.check_decode_mem": ("selected_indices",),
    "sglang.srt.managers.schedule_batch.ScheduleBatch._get_decode_retraction_order": ("reqs",),
    "sglang.srt.managers.schedule_batch.Req._compute_max_prefix_len": ("input_len",),
    "sglang.srt.managers.schedule_batch.FINISH_ABORT.__init__": ("message", "status_code"),
    "sglang.srt.layers.moe.fused_moe_triton.layer.FusedMoE": (),
    "sglang.srt.layers.radix_attention.RadixAttention": (),
    "sglang.srt.layers.radix_attention.AttentionType.DECODER": (),
    "sglang.srt.configs.load_config.LoadConfig.load_format": (),
    "sglang.srt.configs.load_config.LoadConfig.modelopt_config": (),
    "sglang.srt.configs.hybrid_arch.mambaish_config": ("model_config",),
    "sglang.srt.configs.model_config.AttentionArch.MLA": (),
    "sglang.srt.configs.model_config.is_deepseek_dsa": ("config",),
    "sglang.srt.configs.model_config.is_deepseek_v4": ("config",),
    "sglang.srt.configs.model_config.is_minimax_sparse": ("config",),
    "sglang.srt.configs.model_config.ModelConfig._derive_hybrid_model": ("self",),
    "sglang.srt.managers.schedule_batch.Req.set_finish_with_abort": (),
    "sglang.srt.managers.scheduler.Scheduler.handle_update_weight_version": ("recv_req",),
    "sglang.srt.managers.scheduler.Scheduler.handle_rpc_request": ("recv_req",),
    "sglang.srt.managers.scheduler.Scheduler.load_lora_adapter": ("recv_req",),
    "sglang.srt.managers.scheduler.Scheduler.load_lora_adapter_from_tensors": ("recv_req",),
    "sglang.srt.managers.scheduler.Scheduler.unload_lora_adapter": ("recv_req",),
    _UPDATER + "record_weight_version_after_update": ("weight_version",),
    _UPDATER + "update_weights_from_disk": ("recv_req",),
    _UPDATER + "begin_weight_update": ("recv_req",),
    _UPDATER + "update_weights_from_tensor": ("recv_req",),
    _UPDATER + "update_weights_from_distributed": ("recv_req",),
    _UPDATER + "end_weight_update": ("recv_req",),
    _UPDATER + "update_weights_from_ipc": ("recv_req",),
    _UPDATER + "check_weights": ("recv_req",),
    _UPDATER + "release_memory_occupation": ("recv_req",),
    "sglang.srt.model_loader.loader.DefaultModelLoader.restore_weights_before_loading": ("model",),
    "sglang.srt.model_executor.model_runner.ModelRunner.load_model": ("self",),
    "sglang.srt.lora.lora_manager.LoRAManager.load_lora_weights": ("lora_ref",),
    "sglang.srt.runtime_context.get_exec": (),
    "sglang.srt.distributed.parallel_state.GroupCoordinator.all_gather_object": ("obj",),
    "sglang.srt.managers.scheduler_components.new_token_ratio_tracker.NewTokenRatioTracker."
    "estimate_new_token_ratio_after_retract": ("reqs",),
    "sglang.srt.mem_cache.base_prefix_cache.BasePrefixCache.checkpoint": ("req", "up_to"),
    "sglang.srt.mem_cache.base_prefix_cache.BasePrefixCache.lock": ("node",),
    "sglang.srt.mem_cache.base_prefix_cache.BasePrefixCache.unlock": ("lock",),
    "sglang.srt.mem_cache.base_prefix_cache.BasePrefixCache.prefix_device_indices": ("req",),
    "sglang.srt.mem_cache.base_prefix_cache.BasePrefixCache.release_aborted_request": ("handle",),
    "sglang.srt.mem_cache.base_prefix_cache.MatchResult": (),
    "sglang.srt.mem_cache.base_prefix_cache.BasePrefixCache.take_events": ("self",),
    "sglang.srt.mem_cache.cache_init_params.CacheInitParams.enable_kv_cache_events": (),
    "sglang.srt.mem_cache.cache_init_params.CacheInitParams.dynamo_kv_event_format": (),
    "sglang.srt.mem_cache.events.LoRANameTable.resolve": ("extra_key",),
    "sglang.srt.disaggregation.kv_events.BlockStored": (
        "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium",
        "cache_salt", "lora_name"),
    "sglang.srt.disaggregation.kv_events.BlockRemoved": ("block_hashes", "medium"),
    "sglang.srt.disaggregation.kv_events.AllBlocksCleared": (),
    "sglang.srt.disaggregation.kv_events.StorageMedium.GPU": (),
    "sglang.srt.disaggregation.kv_events.kv_event_namespace_seed": ("extra_key", "cache_salt"),
    "sglang.srt.disaggregation.kv_events.namespaced_block_hash": ("block_hash", "namespace_seed"),
    "sglang.srt.environ.envs": (),
}


def _missing(name: str) -> str:
    return (f"this SGLang has no {name}: kvtrunk.sglang was written for {OURS.newest}; install that "
            "release, or leave --radix-cache-backend out")


def check() -> None:
    """Refused: a name is missing."""
    import pkgutil
    for name, arguments in NAMES.items():
        try:
            found = pkgutil.resolve_name(name)
        except (ImportError, AttributeError):
            raise Refused(_missing(name)) from None
        if arguments:
            # Behind the wrappers of plug-ins.
            have = inspect.signature(found).parameters
            for argument in arguments:
                if argument not in have:
                    raise Refused(_missing(f"argument {argument!r} of {name}"))


def problems(root: _calls.Folder) -> list[str]:
    """Names that an installed package or a wheel lacks: sentences, none if it has everything."""
    return [text for text in (_in_file(root, name, arguments) for name, arguments in NAMES.items())
            if text is not None]


@functools.lru_cache(maxsize=None)
def _parsed(file: Any) -> ast.Module:
    """The tree of a file, kept because many names are in it."""
    return ast.parse(file.read_text("utf-8"))


def _in_file(root: _calls.Folder, name: str, arguments: tuple[str, ...]) -> Optional[str]:
    parts = name.split(".")
    for n in range(len(parts) - 1, 0, -1):
        file = root.joinpath(*parts[:n - 1], f"{parts[n - 1]}.py")
        if file.is_file():
            break
    else:
        return _missing(name)
    scope: Any = _parsed(file)
    for part in parts[n:]:
        scope = _member(scope, part)
        if scope is None:
            return _missing(name)
    if arguments and isinstance(scope, (ast.FunctionDef, ast.AsyncFunctionDef)):
        for argument in arguments:
            if argument not in _calls.arguments(scope):
                return _missing(f"argument {argument!r} of {name}")
    return None


def _member(scope: Any, name: str) -> Any:
    """The definition or assignment of a name in a module or class, also inside an `if`."""
    for node in getattr(scope, "body", []):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            if node.name == name:
                return node
        elif isinstance(node, ast.Assign):
            if any(isinstance(target, ast.Name) and target.id == name for target in node.targets):
                return node
        elif isinstance(node, ast.AnnAssign):
            if isinstance(node.target, ast.Name) and node.target.id == name:
                return node
        elif isinstance(node, (ast.If, ast.Try)):
            found = _member(node, name)
            if found is not None:
                return found
    return None
