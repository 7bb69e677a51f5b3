# SPDX-License-Identifier: Apache-2.0
"""What must be equal for KV to be equal in vLLM: the digests of kvtrunk._weights, its types and its
parallel layout; and digests of adapters."""
from __future__ import annotations

import hashlib
import json
import pathlib
from typing import Any

from .._weights import config_digest, digest_folder, model_folder, weight_files


def model_digest(vllm_config: Any) -> str:
    """SHA-256 of what makes a model's KV: configuration after overrides, weights, types,
    quantisation, parallel layout. 32 hex digits. FileNotFoundError."""
    model, load = vllm_config.model_config, vllm_config.load_config
    if load.load_format == "dummy":
        weights = f"dummy {model.seed}"
    else:
        weights = digest_folder(model_folder(model.model_weights or model.model, model.revision,
                                             load.download_dir))
    parts = [config_digest(model.hf_config.to_dict()), weights, str(model.dtype),
             str(model.quantization), json.dumps(model.quantization_config, default=str),
             str(vllm_config.cache_config.cache_dtype),
             str(vllm_config.parallel_config.tensor_parallel_size)]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


class Adapters:
    """Digests of LoRA adapters by their files. An engine may have loaded files before or after a
    change, so that those which change while it runs have no digest any more."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[Any, str]] = {}

    def digest(self, path: str) -> str:
        """OSError: it has no files here, or they changed."""
        folder = pathlib.Path(path)
        config = folder / "adapter_config.json"
        files = [*weight_files(folder), config] if folder.is_dir() else []
        state = [(file.name, (found := file.stat()).st_size, found.st_mtime_ns, found.st_ino)
                 for file in files]
        known = self._known.get(path)
        if known is None:
            known = self._known[path] = (state, digest_folder(folder, [config]))
        if known[0] != state:
            raise OSError(f"the files in {path} changed while this engine ran: load the new ones "
                          "from another folder")
        return known[1]
