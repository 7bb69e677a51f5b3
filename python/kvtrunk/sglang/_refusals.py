# SPDX-License-Identifier: Apache-2.0
"""Refusals of kvtrunk.sglang, each a sentence that names the flag."""
from __future__ import annotations

from typing import Any, Optional

from ..engine import Refused, Rule, check_rules
from . import _drafts


class Resolved:
    """SGLang's options by name, as SGLang resolved them in this process: what was typed, what a
    model's hooks and the platform made of it, and what was changed since. Refused: it has none of
    that name."""

    def __getattr__(self, name: str) -> Any:
        from sglang.srt.runtime_context import get_context
        try:
            return get_context().config_leaf(name)
        except ValueError as error:
            raise Refused(f"--radix-cache-backend kvtrunk needs to know SGLang's option {name}: "
                          f"{error} (python -m kvtrunk.sglang doctor)") from None


def _option(flag: str, name: str, works: tuple[Any, ...], cure: str) -> Rule:
    """An option. name: SGLang's, of its value. works: values that do."""
    def found(options: Any) -> str:
        value = getattr(options, name)
        why = _drafts.OTHERS.get(str(value))
        return "" if value in works else f"{value}: {why + ': ' if why else ''}"

    return found, f"{flag} {{}}{cure}"


def _variable(name: str, cure: str) -> Rule:
    """A variable of the environment."""
    def found(_: Any) -> bool:
        from sglang.srt.environ import envs
        return bool(getattr(envs, name).get())

    return found, f"{name}: {cure}"


_OFF = None, False, ""
_ONE = None, 0, 1
STORE = ("leave it out. To keep in host memory what the pool evicts, start kvtstored beside the "
         "daemon")

OPTIONS = (
    ("--speculative-algorithm", "speculative_algorithm", (*_OFF, *_drafts.ALGORITHMS),
     f"use one of {', '.join(_drafts.ALGORITHMS)}, NEXTN, or leave it out"),
    ("--enable-multi-layer-eagle", "enable_multi_layer_eagle", _OFF,
     "its draft layers depend on more than the next token: leave it out"),
    ("--enable-hierarchical-cache", "enable_hierarchical_cache", _OFF,
     f"it is of one engine: {STORE}"),
    ("--enable-lmcache", "enable_lmcache", _OFF, f"it is another prefix cache: {STORE}"),
    ("--enable-flexkv", "enable_flexkv", _OFF, f"it is another prefix cache: {STORE}"),
    ("--enable-hisparse", "enable_hisparse", _OFF,
     "it moves KV out of its pages: leave it out"),
    ("--enable-unified-memory", "enable_unified_memory", _OFF,
     "its pool is not made of one kind of page: leave it out"),
    ("--enable-page-major-kv-layout", "enable_page_major_kv_layout", _OFF,
     "kvtrunk shares the plain layout (kv_layout=nhd, kv_order=layer): leave it out"),
    ("--enable-unified-cache-external-linker", "enable_unified_cache_external_linker", _OFF,
     f"it is another store behind the prefix cache: {STORE}"),
    ("--enable-memory-saver", "enable_memory_saver", _OFF,
     "the pool belongs to the daemon and cannot be released by an engine: leave it out"),
    ("--disaggregation-mode", "disaggregation_mode", (None, "null"),
     "two engines on one pool need no transfer: start them without it"),
    ("--enable-pdmux", "enable_pdmux", _OFF, "it is not supported: leave it out"),
    ("--nnodes", "nnodes", _ONE, "the ranks must be processes of this host: leave it out"),
    ("--pp-size", "pp_size", _ONE, "pipeline parallelism is not supported: leave it out"),
    ("--attn-dp-size", "attn_dp_size", _ONE,
     "its ranks have requests of their own, and all ranks of an engine write each page: leave "
     "it, --enable-dp-attention and --dwdp-size out; --dp-size alone makes whole replicas"),
    ("--attn-cp-size", "attn_cp_size", _ONE, "KV sharding is not supported: leave it out"),
    ("--dcp-size", "dcp_size", _ONE, "KV sharding is not supported: leave it out"),
    ("--enable-kv-cache-sharding", "enable_kv_cache_sharding", _OFF,
     "KV sharding is not supported: leave it out"),
    ("--dllm-algorithm", "dllm_algorithm", _OFF, "diffusion models are not supported"),
    ("--enable-streaming-session", "enable_streaming_session", _OFF,
     "it keeps rows between requests: leave it out"),
    ("--enable-session-radix-cache", "enable_session_radix_cache", _OFF,
     "it is not supported: leave it out"),
    ("--kv-canary", "kv_canary", (None, "none"),
     "it writes into pages of others: leave it out, and start the pool's kvtstored with "
     "--scrub, which finds stray writes"),
    ("--startup-weight-load-mode", "startup_weight_load_mode", (None, "serial"),
     "the weights must be known before the first request: leave it out"),
    ("--prefill-only-disable-kv-cache", "prefill_only_disable_kv_cache", _OFF,
     "then there is no KV to share: leave it, or --radix-cache-backend kvtrunk, out"),
    ("--quantization-param-path", "quantization_param_path", _OFF,
     "it gives KV in fp8 scales, which the pages have no place for: leave it out"),
    ("--device", "device", ("cpu", "cuda"),
     "the pool is in the memory of the host or of a CUDA device: leave --radix-cache-backend "
     "out"),
)
"""Flag, SGLang's name of the value, values that work, and the cure."""
RULES = (
    *(_option(*row) for row in OPTIONS),
    _variable("SGLANG_ENABLE_POST_CAPTURE_KV_SIZING",
              "the pool has one size, which the daemon gave it: set it to 0"),
    _variable("SGLANG_SPEC_SKIP_ZERO_STEP_DRAFT_EXTEND",
              "then pages lack KV of draft layers: set it to 0"),
)


def check(options: Any) -> None:
    """Refused: by the first thing that does not work. options: Resolved()."""
    check_rules(RULES, options, "--radix-cache-backend kvtrunk does not go with ")


def check_config(config: Any) -> None:
    """check() for the model, before it is loaded. config: SGLang's ModelConfig."""
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
    """check() for the model as built: K of a position must be a function of the keys up to it, and
    a page must hold all of it. kv_type: as the daemon's."""
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
