# SPDX-License-Identifier: Apache-2.0
"""vLLM's plan of a model's KV, from its configuration: no layer is built, no weight read.

Layers that only say what they keep stand for the model's. vLLM's own code makes of them the block
size, which a state may raise, and the groups. An engine's own plan decides: check_groups().
"""
from __future__ import annotations

import dataclasses
from typing import Any, Optional

from pydantic import ValidationError
from vllm.config import set_current_vllm_config
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
from vllm.model_executor.models import ModelRegistry
from vllm.platforms import current_platform
from vllm.utils.torch_utils import STR_DTYPE_TO_TORCH_DTYPE
from vllm.v1.attention.selector import get_attn_backend
from vllm.v1.core.kv_cache_utils import get_kv_cache_groups
from vllm.v1.kv_cache_interface import (ChunkedLocalAttentionSpec, FullAttentionSpec, MambaSpec,
                                        MLAAttentionSpec, SlidingWindowSpec)

from ..engine import check_rules, refuse
from ._groups import check_kinds, main_group
from ._pool import DTYPES
from ._refusals import MODELS

_STATES = ("mamba", "linear_attention", "conv")
_BOTH = ("falcon_h1",)
"""Models whose layers have attention and a state each."""


class _Layer(AttentionLayerBase):
    """Stands for a layer of the model."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend

    def get_attn_backend(self) -> Any:
        return self._backend

    def get_kv_cache_spec(self, vllm_config: Any) -> Any:
        return None


@dataclasses.dataclass(frozen=True)
class Plan:
    """Groups and pages that vLLM makes of a model."""

    groups: list[Any]
    page_size: int
    n_layers: int
    """Layers of a page."""
    # For the layers whose blocks are main pages:
    n_kv_heads: int
    head_dim: int
    kv_type: str
    latent: bool
    """MLA: one plane."""


def _kinds(model: Any) -> list[str]:
    """Kind of each layer's cache, by the names of config.json; "": it keeps nothing."""
    text, n = model.hf_text_config, model.get_total_num_hidden_layers()
    if getattr(text, "model_type", "") in _BOTH:
        return ["attention", "mamba"] * n
    if getattr(text, "linear_attn_config", None):  # KDA
        return ["linear_attention" if text.is_kda_layer(i) else "attention" for i in range(n)]
    return list(getattr(text, "layers_block_type", None) or getattr(text, "layer_types", None) or
                ["attention"] * n)


def _shapes(config: Any) -> list[dict[str, int]]:
    """KV heads of each entry of _kinds() on a rank, and their size."""
    model, n = config.model_config, len(_kinds(config.model_config))
    layers = model.get_total_num_hidden_layers()
    each = [model.model_arch_config[i * layers // n] for i in range(n)]
    return [{"num_kv_heads": model.get_num_kv_heads(config.parallel_config, arch),
             "head_size": arch.head_size} for arch in each]


def _state(config: Any) -> MambaSpec:
    """Spec of a layer with a state. After the block size is known."""
    cache = config.cache_config
    made, _ = ModelRegistry.resolve_model_cls(config.model_config.architecture,
                                              model_config=config.model_config)
    if not hasattr(made, "get_mamba_state_shape_from_config"):
        refuse(f"this vLLM runs {config.model_config.architectures[0]} as {made.__name__}, which "
               "does not say how large a state is: remove --kv-transfer-config for this model")
    return MambaSpec(shapes=made.get_mamba_state_shape_from_config(config),
                     dtypes=made.get_mamba_state_dtype_from_config(config),
                     block_size=cache.mamba_block_size, page_size_padded=cache.mamba_page_size_padded,
                     mamba_cache_mode=cache.mamba_cache_mode)


def _spec(kind: str, config: Any, keeps: dict[str, Any]) -> Optional[Any]:
    """Spec of a layer of a kind. None: it keeps nothing. keeps: of attention, without windows."""
    model = config.model_config
    window = model.get_sliding_window()
    if kind in _STATES:
        return _state(config)
    if kind == "sliding_attention" and window is not None:
        return SlidingWindowSpec(**keeps, sliding_window=window)
    if kind == "chunked_attention":
        return ChunkedLocalAttentionSpec(
            **keeps, attention_chunk_size=model.hf_text_config.attention_chunk_size)
    if "attention" not in kind:
        return None
    return (MLAAttentionSpec if model.use_mla else FullAttentionSpec)(**keeps)


def plan(config: Any) -> Plan:
    """vLLM's plan for a configuration. config.cache_config changes as in an engine."""
    model, cache = config.model_config, config.cache_config
    dtype = (model.dtype if cache.cache_dtype == "auto" else
             STR_DTYPE_TO_TORCH_DTYPE[cache.cache_dtype])
    cache.kv_cache_layout = "LBHNC"  # or another with all blocks of a layer in one piece
    with set_current_vllm_config(config):
        backend = get_attn_backend(model.get_head_size(), model.dtype, cache.cache_dtype,
                                   use_mla=model.use_mla)
        config.compilation_config.static_forward_context["kvtrunk"] = _Layer(backend)
        current_platform.update_block_size_for_backend(config)
        del config.compilation_config.static_forward_context["kvtrunk"]
        specs = {f"layers.{i}.{kind}": _spec(kind, config, {
            "block_size": cache.block_size, "dtype": dtype, **shape})
            for i, (kind, shape) in enumerate(zip(_kinds(model), _shapes(config), strict=True))}
        groups = get_kv_cache_groups(config, {name: spec for name, spec in specs.items() if spec})
    main = groups[main_group(groups)]
    keeps: Any = specs[main.layer_names[0]]
    return Plan(groups, main.kv_cache_spec.block_size,
                max(len(group.layer_names) for group in groups), keeps.num_kv_heads,
                keeps.head_size, DTYPES[dtype], model.use_mla)


def planned(folder: str, ranks: int, dtype: str, **cache: Any) -> Plan:
    """vLLM's plan for a folder with a config.json. cache: options of the KV cache. Refused: its KV
    has no place in the pages, or vLLM does not start it."""
    try:
        config = EngineArgs(model=folder, skip_tokenizer_init=True, dtype=dtype,
                            tensor_parallel_size=ranks,
                            distributed_executor_backend="mp" if ranks > 1 else "uni",
                            **cache).create_engine_config()
    except ValidationError as error:  # MLA with states on a CPU without AMX
        refuse("vLLM does not start this model here: " +
               "; ".join(str(each["msg"]) for each in error.errors()))
    check_rules(MODELS, config)
    made = plan(config)
    check_kinds(made.groups)
    return made
