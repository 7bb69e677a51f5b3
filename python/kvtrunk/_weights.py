# SPDX-License-Identifier: Apache-2.0
"""What must be equal for KV to be equal: digests of a model's configuration and weights, for all
engines.

Names and paths are not in it: another model under the same path has another digest, the same model
under another path has the same.
"""
from __future__ import annotations

import hashlib
import json
import pathlib
from typing import Any, Iterable, Optional

WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
SAMPLES, SAMPLE_BYTES = 64, 4096
_MAX_HEADER = 1 << 27
# Fields of config.json that change no KV.
_IGNORED = ("_name_or_path", "transformers_version", "_commit_hash", "torch_dtype", "dtype")


def digest_file(digest: Any, path: pathlib.Path) -> None:
    """Add a file: its size, the header of a safetensors file, and 64 blocks of 4 KiB evenly spread
    over it (all of a small file)."""
    size = path.stat().st_size
    digest.update(f"file {size};".encode())
    with path.open("rb") as file:
        if size <= SAMPLES * SAMPLE_BYTES:
            digest.update(file.read())
            return
        if path.suffix == ".safetensors":
            n_bytes = int.from_bytes(file.read(8), "little")
            digest.update(file.read(min(n_bytes, _MAX_HEADER)))
        for i in range(SAMPLES):
            file.seek((size - SAMPLE_BYTES) * i // (SAMPLES - 1))
            digest.update(file.read(SAMPLE_BYTES))


def weight_files(folder: pathlib.Path) -> list[pathlib.Path]:
    """The files of a folder that hold weights, in an order that does not depend on the machine."""
    return sorted(path for path in folder.iterdir()
                  if path.suffix in WEIGHTS and path.is_file())


def digest_folder(folder: pathlib.Path, extra: Iterable[pathlib.Path] = ()) -> str:
    """SHA-256 of a folder's weights, and of some other files. FileNotFoundError: no weights."""
    files = [folder] if folder.is_file() else weight_files(folder)
    if not files:
        raise FileNotFoundError(f"{folder} has no weights ({', '.join(WEIGHTS)})")
    digest = hashlib.sha256()
    for path in [*files, *extra]:
        digest_file(digest, path)
    return digest.hexdigest()


def model_folder(model: str, revision: Any = None,
                 download_dir: Optional[str] = None) -> pathlib.Path:
    """Where a model's files are: a folder, or the local copy of a model on the Hugging Face hub.
    FileNotFoundError: neither."""
    path = pathlib.Path(model)
    if path.exists():
        return path
    try:
        from huggingface_hub import snapshot_download

        return pathlib.Path(snapshot_download(model, revision=revision, cache_dir=download_dir,
                                              local_files_only=True))
    except Exception as error:  # the hub's own classes
        raise FileNotFoundError(f"the files of {model} are not on this machine: {error}") from None


def config_digest(values: dict[str, Any]) -> str:
    """SHA-256 of the effective values of a config.json."""
    kept = {name: value for name, value in values.items() if name not in _IGNORED}
    return hashlib.sha256(json.dumps(kept, sort_keys=True, default=str).encode()).hexdigest()
