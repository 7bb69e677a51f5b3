# SPDX-License-Identifier: Apache-2.0
"""Identity of an engine's KV: two engines share only pages of the same identity."""
from __future__ import annotations

import hashlib
import json
import logging
from typing import Any, Optional

import sglang
import torch
from sglang.srt.runtime_context import get_exec

from ..engine import _weights
from ..engine._built import built_digest, held_digest
from . import _drafts, _pool

logger = logging.getLogger(__name__)

# Load formats that read weights from the files of a folder only. npcache does not: it reads the copy
# that it made once, even if the files have changed.
FILE_FORMATS = ("auto", "pt", "safetensors", "instanttensor", "sharded_state", "gguf",
                "bitsandbytes", "mistral", "layered", "fastsafetensors", "runai_streamer")
_LOADER_OPTIONS = frozenset({
    "concurrency", "distributed", "enable_gds", "enable_multithread_load", "memory_limit",
    "num_threads"})
"""Extra options of loaders that choose no files."""
OPTIONS = ("kernel", "deterministic", "comm", "moe", "mamba", "overlap")
"""Groups of options that choose how layers compute. Others: graphs, offloading, features of
requests."""


def _format(given: Any) -> str:
    """SGLang's name of a load format."""
    return str(getattr(given, "value", given) or "auto")


def _unknown(load: Any, model: Any) -> Optional[str]:
    """Why the folder's files do not name what a runner has loaded. None: they do."""
    why = _weights.why_unnamed(_format(load.load_format), FILE_FORMATS,
                               load.model_loader_extra_config, _LOADER_OPTIONS)
    if why is not None:
        return why
    if getattr(load.modelopt_config, "checkpoint_restore_path", None):
        return "--modelopt-checkpoint-restore-path names other files"
    if getattr(model, "secondary_weights", ()):
        return f"{type(model).__name__} loads weights from other folders than its own, too"
    return None


class Files:
    """A model's files, and their digest, taken while SGLang loads them. Made before it begins."""

    def __init__(self, model: str, load_format: Any, options: Any,
                 revision: Optional[str] = None) -> None:
        """revision: None is that of the options."""
        self._model = model, revision or options.revision, options.download_dir
        self._format = _format(load_format)
        self._why = _weights.why_unnamed(self._format, FILE_FORMATS, None, _LOADER_OPTIONS)
        """Why they do not name what was loaded."""
        self._weights: Optional[_weights.Weights] = None
        self.tensors: Optional[dict[str, Any]] = None
        """Type and shape of each tensor by its name. None: not known."""
        if not _pool.follows():
            try:
                self._begin(options.weight_cache_mode == "off")
            except FileNotFoundError:
                pass  # SGLang downloads them, or fails

    def _begin(self, reads: bool) -> None:
        folder = _weights.model_folder(*self._model)
        if reads and self._why is None:
            self._weights = _weights.Weights(folder)
        self.tensors = _weights.tensor_shapes(folder)

    def loaded(self, load: Any, model: Any) -> None:
        """SGLang has loaded a model: from what, its LoadConfig tells then. A weight cache is named
        there and not in the arguments, "presharded" in the arguments only."""
        self._why = self._why or _unknown(load, model)
        if self._format != "dummy":
            self._format = _format(load.load_format)

    def digest(self) -> Optional[str]:
        """Digest of the loaded files, for Name. None: the loaded weights are not known, or this is not
        rank 0."""
        if self._format == "dummy":
            return ""
        if _pool.follows():
            return None
        why = self._why
        try:
            if why is None:
                if self._weights is None:
                    self._begin(True)
                assert self._weights is not None
                # A folder may have files of several formats.
                return f"{self._weights.result()} {self._format}"
        except OSError as error:
            why = str(error)
        logger.warning("kvtrunk: what was loaded from %s is not known, so this engine shares with "
                       "no other: %s", self._model[0], why)
        return None


def files_of(draft: bool, options: Any) -> Files:
    """Files of the model that an engine is started with, or of its draft. options: Resolved()."""
    if not draft:
        return Files(options.model_path, options.load_format, options)
    return Files(options.speculative_draft_model_path or options.model_path,
                 options.speculative_draft_load_format or options.load_format, options,
                 options.speculative_draft_model_revision)


def adapter_digest(adapter: Any) -> str:
    """Digest of a LoRAAdapter as it is loaded: its configuration, and every byte of its tensors.

    These may be views of a file, which a trainer may write into. So they become copies first.
    """
    groups = [*(layer.weights for layer in adapter.layers), adapter.embedding_layers,
              adapter.added_tokens_embeddings]
    for group in groups:
        for name in group:
            group[name] = group[name].clone()
    config = {name: value for name, value in adapter.config.hf_config.items()
              if name not in ("base_model_name_or_path", "revision")}
    return held_digest([config, adapter.config.added_tokens_config, adapter.scaling, groups])


def isa(device: str) -> str:
    """The instructions that kernels use on this machine."""
    if device.startswith("cuda"):
        return f"sm{torch.cuda.get_device_capability()}"
    return str(torch.backends.cpu.get_cpu_capability())


def _options(bag: Any) -> dict[str, str]:
    """SGLang's options of one group."""
    return {name: str(value) for name, value in vars(bag).items() if not name.startswith("_")}


def engine_digest(runner: Any, device: str) -> bytes:
    """32 bytes: of all but the weights that makes KV. All ranks call it, and get rank 0's.

    Beside the model as built that is what its layers look up while they compute: SGLang groups its
    options by what they reach.
    """
    reach = get_exec()
    parts = {
        "engine": ["sglang", sglang.__version__, torch.__version__],
        "built": built_digest(runner.model),
        "config": _weights.config_digest(runner.model_config.hf_config.to_dict()),
        "dtype": str(runner.model_config.dtype),
        "attention": [type(runner.attn_backend).__qualname__,
                      type(runner.decode_attn_backend).__qualname__],
        "options": {name: _options(getattr(reach, name)) for name in OPTIONS},
        "tf32": str(reach.features.enable_tf32_matmul),
        "compile": str(reach.graph.enable_torch_compile),
        "isa": isa(device),
        "drafts": _drafts.identity(_pool.follows()),
    }
    text = json.dumps(_pool.everyone(parts), sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).digest()
