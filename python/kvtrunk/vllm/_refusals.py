# SPDX-License-Identifier: Apache-2.0
"""Refusals of the adapter, each a sentence that says what to do."""
from __future__ import annotations

from typing import Any

from ..engine import Rule, check_rules, refuse
from ._drafts import METHODS, in_pages

NAME = "KvtrunkConnector"
KEEP_CHUNKS = ("layers with chunks drop positions that the pages must keep: set "
               "--disable-hybrid-kv-cache-manager, in all engines of this model")
ALONE = ("a second KV connector would move pages that other engines read: name KvtrunkConnector alone "
         "in --kv-transfer-config, without MultiConnector, and remove --kv-offloading-size. To keep in "
         "host memory what the pool evicts, start kvtstored beside the daemon")
_OTHER_STATES = ("mamba_dt_rank", "conv_L_cache", "attn_type_list")
"""Fields of models with states of Mamba-1, convolutions, and linear attention."""
DRAFTS = ("ngram", "suffix", *METHODS)
"""Supported methods of speculative decoding."""


def _other_connector(config: Any) -> bool:
    transfer = config.kv_transfer_config
    return bool(transfer.kv_connector != NAME or config.cache_config.kv_offloading_size)


def _unequal_k_and_v(config: Any) -> bool:
    text = config.model_config.hf_text_config
    if getattr(text, "kv_lora_rank", None):  # MLA, or V is padded
        return False
    v_dim = getattr(text, "v_head_dim", None)
    return v_dim is not None and v_dim != config.model_config.get_head_size()


def _drops_chunks(config: Any) -> bool:
    """Whether vLLM frees blocks of earlier chunks."""
    return bool(getattr(config.model_config.hf_text_config, "attention_chunk_size", None) and
                not config.scheduler_config.disable_hybrid_kv_cache_manager)


def _keeps_other_state(config: Any) -> bool:
    """Whether layers keep a state that is not Mamba-2's or a gated delta net's."""
    text = config.model_config.hf_text_config
    return config.model_config.is_attention_free or config.model_config.is_hybrid and any(
        getattr(text, name, None) for name in _OTHER_STATES)


def _other_shape(config: Any) -> bool:
    """Whether draft layers have other KV than the model's."""
    if not in_pages(config):
        return False
    spec, model = config.speculative_config, config.model_config
    draft, ranks = spec.draft_model_config, config.parallel_config.tensor_parallel_size
    shapes = {(each.get_total_num_kv_heads(), each.get_head_size(), each.use_mla)
              for each in (model, draft)}
    return len(shapes) > 1 or spec.draft_tensor_parallel_size not in (None, ranks)


def _uneven(model: Any) -> bool:
    """Whether some layers keep more of a token than others."""
    layers = [model.model_arch_config[i] for i in range(model.get_total_num_hidden_layers())]
    return len({(each.total_num_kv_heads, each.head_size) for each in layers}) > 1


def _several_modules(config: Any) -> bool:
    return in_pages(config) and bool(
        config.speculative_config.use_multi_module_mtp() or
        config.speculative_config.use_step3p5_mtp())


def _reads_the_models_kv(config: Any) -> bool:
    return in_pages(config) and bool(config.speculative_config.use_gemma4_mtp())


MODELS: tuple[Rule, ...] = (
    (lambda c: c.model_config.runner_type != "generate",
     "only models that generate are supported: set --runner generate, or remove "
     "--kv-transfer-config"),
    (lambda c: c.model_config.is_encoder_decoder,
     "encoder-decoder models are not supported: remove --kv-transfer-config for this model"),
    (_keeps_other_state,
     "of layers that keep a state only Mamba-2, gated delta nets and KDA are supported, beside full "
     "attention: remove --kv-transfer-config for this model"),
    (lambda c: getattr(c.model_config.hf_text_config, "index_topk", None) is not None,
     "the index of sparse attention, which lies beside the KV, has no place in the pages: remove "
     "--kv-transfer-config for this model"),
    (lambda c: getattr(c.model_config.hf_text_config, "num_kv_shared_layers", None),
     "layers that share KV are not supported: remove --kv-transfer-config for this model"),
    (_unequal_k_and_v,
     "heads whose K and V differ in size have no place in the pages: remove --kv-transfer-config "
     "for this model"),
    (_drops_chunks, KEEP_CHUNKS),
)
"""Refused models. They come first: vLLM sets some options by itself for such models."""

OPTIONS: tuple[Rule, ...] = (
    (_other_connector, ALONE),
    (lambda c: c.kv_transfer_config.kv_role != "kv_both",
     'prefill and decode need no transfer here: set "kv_role":"kv_both" in --kv-transfer-config, in '
     "all engines"),
    (lambda c: c.ec_transfer_config is not None,
     "encoder disaggregation is not supported: remove --ec-transfer-config"),
    (lambda c: c.speculative_config is not None
     and c.speculative_config.method not in DRAFTS,
     "draft models, and draft layers other than those of EAGLE and MTP, are not supported: set "
     '"method" in --speculative-config to one of ' + ", ".join(DRAFTS) + ", or remove it"),
    (_several_modules,
     "several MTP modules make KV that depends on several tokens behind it: set "
     '"num_speculative_tokens":1 in --speculative-config, or remove it'),
    (_reads_the_models_kv,
     "draft layers that read the model's KV are not supported: remove --speculative-config"),
    (_other_shape,
     "the KV of these draft layers has other heads than the model's, so it has no place in the "
     "pages: use another draft model in --speculative-config, or remove it"),
    (lambda c: in_pages(c) and c.speculative_config.parallel_drafting,
     'drafting in parallel is not supported: remove "parallel_drafting" of --speculative-config'),
    (lambda c: in_pages(c) and c.speculative_config.disable_padded_drafter_batch
     and c.device_config.device_type != "cpu",
     "a step's output would come before its draft KV is written: remove "
     '"disable_padded_drafter_batch" of --speculative-config'),
    (lambda c: c.parallel_config.enable_elastic_ep,
     "elastic expert parallelism is not supported: remove --enable-elastic-ep"),
    (lambda c: c.parallel_config.pipeline_parallel_size > 1,
     "pipeline parallelism is not supported: set --pipeline-parallel-size 1"),
    (lambda c: c.parallel_config.decode_context_parallel_size > 1
     or c.parallel_config.prefill_context_parallel_size > 1,
     "context parallelism shards the KV of a page: remove --decode-context-parallel-size and "
     "--prefill-context-parallel-size"),
    (lambda c: c.parallel_config.distributed_executor_backend not in ("uni", "mp")
     or c.parallel_config.nnodes_within_dp > 1,
     "workers must be processes of this host: set --distributed-executor-backend mp and "
     "--data-parallel-backend mp, and do not divide one rank among hosts (--nnodes)"),
    (lambda c: c.model_config.use_mla and not c.cache_config.enable_prefix_caching
     and c.device_config.device_type == "cpu",
     "vLLM reuses no KV of MLA models on CPUs without AMX, so there is nothing to share: remove "
     "--kv-transfer-config"),
    (lambda c: not c.cache_config.enable_prefix_caching,
     "prefix caching is off, by --no-enable-prefix-caching or because of the model's non-causal "
     "attention, so there is nothing to share: remove that option, or --kv-transfer-config"),
    (lambda c: "per_token" in str(c.cache_config.cache_dtype)
     or str(c.cache_config.cache_dtype) not in (
         "auto", "bfloat16", "float16", "fp8", "fp8_e4m3"),
     "KV of this type, or with scales for each token, does not fit the pages: set --kv-cache-dtype "
     "to auto, bfloat16, float16 or fp8_e4m3"),
    (lambda c: c.cache_config.kv_sharing_fast_prefill,
     "layers that share KV are not supported: remove --kv-sharing-fast-prefill"),
    (lambda c: c.aux_output_config.enabled,
     "the experts that other engines routed tokens to are not known: remove "
     "--enable-return-routed-experts"),
    (lambda c: c.observability_config.kv_cache_metrics,
     "the pool's blocks are the daemon's, whose metrics kvtmetricsd has: remove --kv-cache-metrics"),
    (lambda c: c.model_config.enable_sleep_mode,
     "sleep mode is not supported: remove --enable-sleep-mode"),
    (lambda c: c.model_config.is_multimodal_model
     and c.model_config.multimodal_config.mm_processor_cache_type == "shm",
     "images in a cache that only workers read cannot be told apart: remove "
     "--mm-processor-cache-type, or set it to lru"),
)


def check_config(config: Any) -> None:
    """Refused: by a vLLM configuration."""
    check_rules(MODELS + OPTIONS, config)


def session_pages(info: Any) -> int:
    """The most pages that a session can have while another one is open and holds none: beside a
    limit, the last eighth is for sessions that hold less."""
    usable: int = info.n_pages - 1
    return min(info.max_private_pages, usable - usable // 8) if info.max_private_pages else usable


def check_pages(config: Any, info: Any) -> None:
    """Refused: the daemon's pages do not fit the engine's blocks."""
    cache, model, size = config.cache_config, config.model_config, info.page_size
    # With states vLLM raises it until a block holds a state, and with layers of several shapes until
    # all blocks have as many bytes, in workers first: see check_groups().
    if cache.block_size != size and not model.is_hybrid and not _uneven(model):
        refuse(f"start vLLM with --block-size {size}, the daemon's page_size (it has "
               f"{cache.block_size}), or the daemon with --page-size={cache.block_size}")
    ranks = config.parallel_config.tensor_parallel_size
    if ranks != info.n_slabs:
        refuse(f"the daemon's pool has a slab for each of {info.n_slabs} ranks, this engine has "
               f"{ranks}: start it with --tensor-parallel-size {info.n_slabs}, or the daemon with "
               "what `python -m kvtrunk.vllm flags MODEL --tensor-parallel-size "
               f"{ranks}` prints")
    if cache.num_gpu_blocks_override not in (None, info.n_pages):
        refuse(f"remove --num-gpu-blocks-override: the daemon has {info.n_pages} pages")
    most = session_pages(info) * size
    if model.max_model_len > most:
        refuse(f"a request of --max-model-len {model.max_model_len} may need more pages than one "
               f"session gets: set it to at most {most // size * size}, or give the daemon more "
               "n_pages or max_private_pages")
    sequences = config.scheduler_config.max_num_seqs
    if 0 < info.max_leases < sequences:
        refuse(f"the daemon gives one session {info.max_leases} leases, too few for --max-num-seqs "
               f"{sequences}: set it to at most {info.max_leases}, or raise the daemon's max_leases, "
               "max_nodes or n_pages")

