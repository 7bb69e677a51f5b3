# SPDX-License-Identifier: Apache-2.0
"""What kvtrunk.sglang does not do, each in a sentence that names the flag."""
from __future__ import annotations

from typing import Any, Callable, Optional

from .. import Error


class Refused(Error):
    """This engine cannot share its KV: the text names the flag and what to do."""


def _is_set(name: str) -> Callable[[Any], bool]:
    return lambda args: bool(getattr(args, name, None))


def _above_one(name: str) -> Callable[[Any], bool]:
    return lambda args: bool(getattr(args, name, 1) not in (None, 0, 1))


def _post_capture(_args: Any) -> bool:
    from sglang.srt.environ import envs
    return bool(envs.SGLANG_ENABLE_POST_CAPTURE_KV_SIZING.get())


STORE = ("leave it out. To keep in host memory what the pool evicts, start kvtstored beside the "
         "daemon")

# (what is refused, does it hold, what to do)
REFUSALS: list[tuple[str, Callable[[Any], bool], str]] = [
    ("--speculative-algorithm", _is_set("speculative_algorithm"),
     "draft layers have no place in the shared pages: leave it out"),
    ("--enable-hierarchical-cache", _is_set("enable_hierarchical_cache"),
     f"it is of one engine: {STORE}"),
    ("--enable-lmcache", _is_set("enable_lmcache"), f"it is another prefix cache: {STORE}"),
    ("--enable-flexkv", _is_set("enable_flexkv"), f"it is another prefix cache: {STORE}"),
    ("--enable-hisparse", _is_set("enable_hisparse"), "it moves KV out of its pages: leave it out"),
    ("--enable-unified-memory", _is_set("enable_unified_memory"),
     "its pool is not made of one kind of page: leave it out"),
    ("--enable-page-major-kv-layout", _is_set("enable_page_major_kv_layout"),
     "kvtrunk shares the plain layout (kv_layout=nhd, kv_order=layer): leave it out"),
    ("--enable-unified-cache-external-linker", _is_set("enable_unified_cache_external_linker"),
     f"it is another store behind the prefix cache: {STORE}"),
    ("--enable-memory-saver", _is_set("enable_memory_saver"),
     "the pool belongs to the daemon and cannot be released by an engine: leave it out"),
    ("--disaggregation-mode", lambda args: bool(args.disaggregation_mode not in (None, "null")),
     "two engines on one pool need no transfer: start them without it"),
    ("--enable-pdmux", _is_set("enable_pdmux"), "it is not supported: leave it out"),
    ("--nnodes", _above_one("nnodes"), "the ranks must be processes of this host: leave it out"),
    ("--pp-size", _above_one("pp_size"), "pipeline parallelism is not supported: leave it out"),
    ("--attn-dp-size", lambda args: bool(
        _above_one("attn_dp_size")(args) or _is_set("enable_dp_attention")(args)),
     "its ranks have requests of their own, and all ranks of an engine write each page: leave it and "
     "--enable-dp-attention out; --dp-size alone makes whole replicas"),
    ("--attn-cp-size", _above_one("attn_cp_size"), "KV sharding is not supported: leave it out"),
    ("--dcp-size", _above_one("dcp_size"), "KV sharding is not supported: leave it out"),
    ("--enable-kv-cache-sharding", _is_set("enable_kv_cache_sharding"),
     "KV sharding is not supported: leave it out"),
    ("--dllm-algorithm", _is_set("dllm_algorithm"), "diffusion models are not supported"),
    ("--enable-streaming-session", _is_set("enable_streaming_session"),
     "it keeps rows between requests: leave it out"),
    ("--enable-session-radix-cache", _is_set("enable_session_radix_cache"),
     "it is not supported: leave it out"),
    ("--kv-canary", lambda args: bool(getattr(args, "kv_canary", "none") not in (None, "none")),
     "it writes into pages of others: leave it out"),
    ("--startup-weight-load-mode overlap",
     lambda args: bool(getattr(args, "startup_weight_load_mode", None) == "overlap"),
     "the weights must be known before the first request: leave it out"),
    ("--prefill-only-disable-kv-cache", _is_set("prefill_only_disable_kv_cache"),
     "then there is no KV to share: leave it, or --radix-cache-backend kvtrunk, out"),
    ("--quantization-param-path", _is_set("quantization_param_path"),
     "it gives KV in fp8 scales, which the pages have no place for: leave it out"),
    ("--device", lambda args: bool(args.device not in ("cpu", "cuda")),
     "the pool is in the memory of the host or of a CUDA device: leave --radix-cache-backend out"),
    ("SGLANG_ENABLE_POST_CAPTURE_KV_SIZING", _post_capture,
     "the pool has one size, which the daemon gave it: set it to 0"),
]


def check(server_args: Any) -> None:
    """Raise Refused for the first thing that does not work."""
    for what, holds, cure in REFUSALS:
        if holds(server_args):
            raise Refused(f"--radix-cache-backend kvtrunk does not go with {what}: {cure}")


def check_config(config: Any) -> None:
    """The same for the model, before it is loaded. config: SGLang's ModelConfig."""
    why = _why_not(config)
    if why:
        raise Refused(f"--radix-cache-backend kvtrunk does not share the KV of "
                      f"{config.hf_config.architectures[0]}: {why}")


def _why_not(config: Any) -> Optional[str]:
    from sglang.srt.configs.hybrid_arch import mambaish_config
    from sglang.srt.configs.model_config import (AttentionArch, is_deepseek_dsa, is_deepseek_v4,
                                                 is_minimax_sparse)
    text = config.hf_text_config
    if config.is_encoder_decoder:
        return "it has an encoder, on which the KV of its decoder depends: leave the flag out"
    if is_deepseek_dsa(text) or is_deepseek_dsa(config.hf_config) or is_minimax_sparse(
            config.hf_config):
        return ("its attention is sparse: an index lies beside the KV, for which the pages have no "
                "place: leave the flag out")
    if is_deepseek_v4(config.hf_config):
        return "its layers keep KV of several kinds: leave the flag out"
    if mambaish_config(config) is not None:
        return ("some of its layers keep a state instead of KV, which cannot be shared by prefix: "
                "leave the flag out")
    if getattr(text, "num_kv_shared_layers", 0):
        return "some of its layers use the KV of others: leave the flag out"
    if config.is_hybrid_swa_compress:
        return "its layers with windows have heads of another size: leave the flag out"
    if config.is_hybrid_swa:
        return ("SGLang would keep its layers with sliding windows in a pool of their own: start it "
                "with --disable-hybrid-swa-memory, which keeps all positions of all layers")
    if config.attention_arch != AttentionArch.MLA and config.has_asymmetric_kv:
        return (f"a head has {config.head_dim} elements of K and {config.v_head_dim} of V, the pages "
                "as many of each: leave the flag out")
    return None


def _check_attention(name: str, layer: Any, kv_type: str) -> None:
    if layer.attn_type.value != "decoder":
        raise Refused(f"--radix-cache-backend kvtrunk does not share this model's KV: its tokens "
                      f"attend to later ones, too ({name}, {layer.attn_type.value}): leave the flag "
                      "out")
    scales = [float(scale or 1) for scale in (layer.k_scale, layer.v_scale)]
    if kv_type == "fp8_e4m3" and scales != [1, 1]:
        raise Refused(f"--radix-cache-backend kvtrunk shares KV in fp8 with scales of 1; this "
                      f"model's are {scales[0]:g} and {scales[1]:g} ({name}): start it with "
                      "--kv-cache-dtype bf16")


def check_model(model: Any, context_length: int, kv_type: str) -> None:
    """The same for the model as built: K of a position must be a function of the keys up to it, and
    a page must say what it holds. kv_type: as the daemon's."""
    from sglang.srt.layers.radix_attention import RadixAttention
    for name, module in model.named_modules():
        if isinstance(module, RadixAttention):
            _check_attention(name, module, kv_type)
        kinds = [kind.__name__ for kind in type(module).__mro__]
        if "Phi3LongRoPEScaledRotaryEmbedding" in kinds:
            most = module.original_max_position_embeddings
            if context_length > most:
                raise Refused(
                    f"--radix-cache-backend kvtrunk does not share this model's KV: SGLang turns "
                    f"K by the long rope factors in each batch that has a position above {most}, "
                    f"and else by the short ones ({name}, {kinds[0]}): start it with "
                    f"--context-length {most}, or leave --radix-cache-backend out")
        rope = str(getattr(module, "rope_type", ""))
        if hasattr(module, "original_inv_freq") and ("dynamic" in rope or rope == "longrope"):
            raise Refused(
                f"--radix-cache-backend kvtrunk does not go with --model-impl transformers for this "
                f"model: its rope factors change with the longest sequence so far ({name}, "
                f"{kinds[0]}, rope type {rope}): leave --model-impl out")
