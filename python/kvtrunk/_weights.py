# SPDX-License-Identifier: Apache-2.0
"""Which weights a folder holds, told by what the files hold and not by their names.

Engines whose KV may be shared must have loaded the same weights. Reading all of them would take
minutes, so a digest has each file's size, the header of safetensors files, and 64 blocks spread
evenly. Files that differ in none of these and yet differ are not told apart.
"""
from __future__ import annotations

import hashlib
import os
import pathlib
from typing import Iterable

BLOCKS, BLOCK_BYTES = 64, 4096
SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".gguf")


def digest(folder: str | os.PathLike[str]) -> str:
    """SHA-256, in hexadecimal, of a folder's weight files. FileNotFoundError: it has none."""
    path = pathlib.Path(folder)
    files = [path] if path.is_file() else sorted(
        file for file in path.iterdir() if file.suffix in SUFFIXES and file.is_file())
    if not files:
        raise FileNotFoundError(f"{path} has no weight file ({', '.join(SUFFIXES)})")
    return digest_of(files)


def digest_of(files: Iterable[pathlib.Path]) -> str:
    """digest() of these files. Their order counts, their names do not."""
    total = hashlib.sha256(b"kvtrunk weights 1")
    for file in files:
        total.update(_digest_file(file))
    return total.hexdigest()


def _digest_file(file: pathlib.Path) -> bytes:
    size = file.stat().st_size
    one = hashlib.sha256(size.to_bytes(8, "little"))
    with open(file, "rb") as data:
        if file.suffix == ".safetensors":
            n_bytes = int.from_bytes(data.read(8), "little")
            one.update(data.read(min(n_bytes, size)))
        for block in range(BLOCKS):
            data.seek(max(0, size - BLOCK_BYTES) * block // (BLOCKS - 1))
            one.update(data.read(BLOCK_BYTES))
    return one.digest()
