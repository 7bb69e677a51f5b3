# SPDX-License-Identifier: Apache-2.0
"""Replaced parts of a running vLLM. No file of vLLM is changed."""
from __future__ import annotations

from ..engine import Replaced

REPLACED = (
    Replaced(
        "vllm.distributed.kv_transfer.kv_connector.factory.KVConnectorFactory._registry",
        "KvtrunkConnector is registered", "vLLM makes no engine with a connector that it does not "
        "find"),
    Replaced(
        "vllm.v1.executor.abstract.Executor.__init__",
        "each executor of an engine with this connector gets a watch", "an engine without a watch "
        "ends at its start"),
    Replaced(
        "vllm.v1.executor.abstract.Executor.collective_rpc",
        "of that executor: what may change weights changes the engine's name first", "the digest of "
        "the built model comes through the watch"),
    Replaced(
        "vllm.v1.engine.core.EngineCore.set_weight_version",
        "a trainer's version of the weights is a part of the engine's name", "made with the watch"),
    Replaced(
        "vllm.v1.core.kv_cache_manager.KVCacheManager",
        "the class of the scheduler's cache manager: blocks are pages of the pool", "an engine whose "
        "scheduler did not give its cache manager ends at its start"),
    Replaced(
        "vllm.v1.core.block_pool.BlockPool",
        "the class of its block pool, with side pages: free blocks are the daemon's", "made with the "
        "cache manager"),
    Replaced(
        "vllm.v1.core.single_type_kv_cache_manager.SingleTypeKVCacheManager."
        "_get_num_evictable_blocks",
        "of the managers of side pages: what a lease found is not counted twice", "made with the "
        "cache manager"),
    Replaced(
        "vllm.v1.core.sched.scheduler.Scheduler.make_stats",
        "counters of external caches stay at 0: nothing is loaded", "made with the cache manager"),
    Replaced(
        "torch.zeros",
        "in vLLM's context for connectors' memory, while it allocates KV: that is the pool",
        "a proof at the start: marks in the pool are seen in the KV tensors"),
    Replaced(
        "vllm.v1.worker.gpu_worker.Worker.compile_or_warm_up_model",
        "the second model runner warms up on page 0", "none here: read, and its calls are checked"),
    Replaced(
        "vllm.v1.worker.gpu.model_runner.GPUModelRunner.sample_tokens",
        "with draft layers, a step's output waits for its draft KV", "none here: read, and its calls "
        "are checked"),
    Replaced(
        "vllm.distributed.kv_events.EventPublisherFactory._registry",
        "with KV events, an entry stands in front of vLLM's publisher until that is made",
        "without a publisher the thread of events ends with an error in the log"),
    Replaced(
        "vllm.config.CacheConfig.num_gpu_blocks_override",
        "as many blocks as the pool has pages", "vLLM's plan is compared with the pool"),
    Replaced(
        "vllm.config.KVTransferConfig.kv_load_failure_policy",
        "\"recompute\": a failed check drops a step's tokens, and ends no request", "the scheduler "
        "reads it when it is made, behind this"),
    Replaced(
        "vllm.config.KVEventsConfig.publisher",
        "with KV events, the entry above until the publisher is made", "as the entry"),
)
