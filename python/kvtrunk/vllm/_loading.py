# SPDX-License-Identifier: Apache-2.0
"""Whether the files of a model's folder tell which weights an engine loads."""
from __future__ import annotations

from typing import Any, Optional

FILE_FORMATS = frozenset({
    "auto", "fastsafetensors", "hf", "instanttensor", "mistral", "pt", "runai_streamer",
    "runai_streamer_sharded", "safetensors", "sharded_state"})
"""What reads weights from the files of a folder, and from nowhere else. npcache does not: it reads
the copy that it made once, whatever the files are today."""
_OPTIONS = frozenset({
    "concurrency", "distributed", "enable_multithread_load", "enable_weights_track",
    "memory_limit", "num_threads"})
"""Extra options of loaders that choose no files."""


def unknown(load: Any) -> Optional[str]:
    """Why the folder's files do not name what is loaded. None: they do."""
    from vllm.model_executor.model_loader import get_model_loader

    name = f"--load-format {load.load_format}"
    if load.load_format not in FILE_FORMATS:
        return f"{name} does not read the files of the model's folder"
    options = sorted(set(load.model_loader_extra_config or ()) - _OPTIONS)
    if options:
        return f"--model-loader-extra-config {', '.join(options)} may name other files"
    kind = type(get_model_loader(load))
    if not kind.__module__.startswith("vllm.model_executor.model_loader."):
        return f"{name} is {kind.__module__}.{kind.__qualname__} here, which is not vLLM's"
    return None
