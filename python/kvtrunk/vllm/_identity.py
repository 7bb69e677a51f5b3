# SPDX-License-Identifier: Apache-2.0
"""Identity of an engine's KV, beside the model as its workers have built it: the configuration,
the weights that it loads, and digests of adapters."""
from __future__ import annotations

import hashlib
import json
import secrets
from typing import Any, Optional

from ..engine import config_digest, why_unnamed

FILE_FORMATS = frozenset({
    "auto", "fastsafetensors", "hf", "instanttensor", "mistral", "pt", "runai_streamer",
    "runai_streamer_sharded", "safetensors", "sharded_state"})
"""Load formats that read weights from the files of a folder only. npcache does not: it reads the
copy that it made once, even if the files have changed."""
_OPTIONS = frozenset({
    "concurrency", "distributed", "enable_multithread_load", "enable_weights_track",
    "memory_limit", "num_threads"})
"""Extra options of loaders that choose no files."""


def _long_rope(config: dict[str, Any], max_model_len: int) -> bool:
    """Whether such a model uses its long factors. The built model tells it, too."""
    for name in ("rope_parameters", "rope_scaling"):
        rope = config.get(name) or {}
        if "longrope" in (rope.get("rope_type"), rope.get("type")):
            limit = rope.get("original_max_position_embeddings") or config.get(
                "original_max_position_embeddings")
            return limit is not None and max_model_len > limit
    return False


def model_digest(vllm_config: Any) -> str:
    """SHA-256 of the configuration that makes a model's KV: after overrides, with types,
    quantisation, kernels and parallel layout. 32 hex digits."""
    model = vllm_config.model_config
    config = model.hf_config.to_dict()
    parts = [config_digest(config), str(model.dtype), str(model.quantization),
             json.dumps(model.quantization_config, default=str),
             str(vllm_config.cache_config.cache_dtype),
             str(vllm_config.parallel_config.tensor_parallel_size),
             str(_long_rope(config, model.max_model_len))]
    for name in ("attention_config", "kernel_config"):
        part = getattr(vllm_config, name, None)
        parts.append(part.compute_hash() if part is not None else "")
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


def unknown(load: Any) -> Optional[str]:
    """Why the folder's files do not name what is loaded. None: they do."""
    from vllm.model_executor.model_loader import get_model_loader

    why = why_unnamed(load.load_format, FILE_FORMATS, load.model_loader_extra_config, _OPTIONS)
    kind = type(get_model_loader(load)) if why is None else None
    if kind and not kind.__module__.startswith("vllm.model_executor.model_loader."):
        why = (f"--load-format {load.load_format} is {kind.__module__}.{kind.__qualname__} here, which "
               "is not vLLM's")
    return why


class Adapters:
    """Digests of LoRA adapters by vLLM's number, as the workers have loaded them. A step loads an
    adapter that is not there, so an engine has it loaded before a request begins."""

    def __init__(self) -> None:
        self._loaded: dict[Any, str] = {}

    def __contains__(self, number: Any) -> bool:
        return number in self._loaded

    def load(self, loaded: dict[int, str]) -> None:
        """These are loaded now, and no others."""
        self._loaded = dict(loaded)

    def clear(self) -> None:
        """Forget all adapters: those that are loaded may have changed."""
        self._loaded.clear()

    def digest(self, number: Any) -> str:
        """Digest of the adapter loaded under this number. A random number, which no other engine has,
        if the workers did not say."""
        return self._loaded.setdefault(number, f"unknown {secrets.token_hex(16)}")
