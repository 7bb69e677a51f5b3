# SPDX-License-Identifier: Apache-2.0
"""Digests of a model's weights and configuration, for all engines.

Every byte of the weights counts. Names and paths do not: another model under the same path has
another digest, the same model under another path has the same.

A file's digest is its SHA-256. The Hugging Face hub names the blobs of its cache by it, so those
are not read. The others are read in parallel, beside the engine's own loading, and kept in
$XDG_CACHE_HOME/kvtrunk/weights.json by device, inode, size and times.
"""
from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pathlib
import queue
import re
import tempfile
import threading
import time
from typing import Any, Callable, Collection, Iterable, Optional

from .._progress import progress

WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
KEPT_BYTES_MIN = 1 << 20
"""Smaller files are read again each time."""
_KEPT_MAX = 4096
_SETTLED_NS = 2 * 10**9
_BUFFER_BYTES = 4 << 20
_THREADS_MAX = 16
_HEADER_BYTES_MAX = 1 << 27
_SHA256 = re.compile("[0-9a-f]{64}")
# Fields of config.json that change no KV.
_IGNORED = ("_name_or_path", "transformers_version", "_commit_hash", "torch_dtype", "dtype",
            "context_len")

State = tuple[int, int, int, int, int]


def file_state(path: pathlib.Path) -> State:
    """State of a file, which changes with it: device, inode, size, mtime and ctime. A program can set
    mtime back, but not ctime. OSError."""
    found = path.stat()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def cache_file(name: str) -> pathlib.Path:
    """A file in which this user's processes keep what they found out."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return pathlib.Path(base) / "kvtrunk" / name


def replace_file(path: pathlib.Path, text: str) -> None:
    """Write a file, all or nothing. OSError."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False, encoding="utf-8") as file:
        try:
            file.write(text)
            file.flush()
            os.replace(file.name, path)
        except OSError:
            pathlib.Path(file.name).unlink(missing_ok=True)
            raise


class Kept:
    """Digests of files by their state, in a file. Without a folder to write to nothing is kept;
    what cannot be read counts as nothing."""

    def __init__(self, path: Optional[pathlib.Path] = None) -> None:
        self._path = cache_file("weights.json") if path is None else path
        self._found = self._read()

    def _read(self) -> dict[str, str]:
        try:
            found = json.loads(self._path.read_text("utf-8"))
        except (OSError, ValueError):
            return {}
        if not isinstance(found, dict):
            return {}
        return {name: digest for name, digest in found.items()
                if isinstance(digest, str) and _SHA256.fullmatch(digest)}

    def find(self, state: State) -> Optional[str]:
        """The digest of a file in this state."""
        return self._found.get(":".join(map(str, state)))

    def add(self, made: dict[State, str]) -> None:
        """Keep digests. Other processes may do the same: the last one's file stays, and what it
        lacks is computed again."""
        if not made:
            return
        found = self._read()
        for state, digest in made.items():
            found[":".join(map(str, state))] = digest
        with contextlib.suppress(OSError):
            replace_file(self._path, json.dumps(dict(list(found.items())[-_KEPT_MAX:]), indent=0))


def _blob_digest(path: pathlib.Path) -> Optional[str]:
    """The SHA-256 by which the hub's cache names a large file: models--x--y/blobs/SHA256."""
    blob = path.resolve()
    if (blob.parent.name == "blobs" and blob.parent.parent.name.startswith("models--")
            and _SHA256.fullmatch(blob.name)):
        return blob.name
    return None


def _file_digest(path: pathlib.Path, add: Callable[[int], None]) -> str:
    digest = hashlib.sha256()
    buffer = memoryview(bytearray(_BUFFER_BYTES))
    with path.open("rb", buffering=0) as file:
        while n := file.readinto(buffer):
            digest.update(buffer[:n])
            add(n)
    return digest.hexdigest()


class Weights:
    """The digest of files in the making: made where loading begins, asked when it has ended. Then
    what was loaded in between is what the digest names."""

    def __init__(self, folder: pathlib.Path, extra: Iterable[pathlib.Path] = (),
                 kept: Optional[Kept] = None) -> None:
        """Begin with a folder's weights, or with one file, and some other files.
        FileNotFoundError: no weights."""
        files = [folder] if folder.is_file() else weight_files(folder)
        if not files:
            raise FileNotFoundError(f"{folder} has no weights ({', '.join(WEIGHTS)})")
        self._folder, self._n_weights = folder, len(files)
        self._files = [*files, *extra]
        self._states = [file_state(path) for path in self._files]
        self._kept = Kept() if kept is None else kept
        self._begun_ns = time.time_ns()
        self._found: dict[int, str] = {}
        self._error: Optional[Exception] = None
        unread: queue.SimpleQueue[int] = queue.SimpleQueue()
        n_bytes = 0
        for i, path in enumerate(self._files):
            digest = _blob_digest(path) or self._kept.find(self._states[i])
            if digest is None:
                unread.put(i)
                n_bytes += self._states[i][2]
            else:
                self._found[i] = digest
        self._reader = threading.Thread(target=self._read_all, args=(unread, n_bytes), daemon=True)
        self._reader.start()

    def _read_all(self, unread: queue.SimpleQueue[int], n_bytes: int) -> None:
        before = set(self._found)
        with progress("hashing weights", n_bytes) as shown:
            n_threads = min(unread.qsize(), len(os.sched_getaffinity(0)), _THREADS_MAX)
            threads = [threading.Thread(target=self._read_some, args=(unread, shown.add),
                                        daemon=True) for _ in range(n_threads)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        # Two writes within one tick of the file system's clock leave one ctime.
        self._kept.add({
            self._states[i]: digest for i, digest in self._found.items() if i not in before
            and self._states[i][2] >= KEPT_BYTES_MIN
            and self._begun_ns - self._states[i][4] > _SETTLED_NS
            and self._same(i)})

    def _read_some(self, unread: queue.SimpleQueue[int], add: Callable[[int], None]) -> None:
        try:
            while self._error is None:
                i = unread.get_nowait()
                self._found[i] = _file_digest(self._files[i], add)
        except queue.Empty:
            pass
        except Exception as error:  # raised by result()
            self._error = error

    def _same(self, i: int) -> bool:
        try:
            return file_state(self._files[i]) == self._states[i]
        except OSError:
            return False

    def result(self) -> str:
        """SHA-256 of all of them. Waits. OSError: one cannot be read, or changed since."""
        self._reader.join()
        if self._error is not None:
            raise self._error
        if self._folder.is_dir() and weight_files(self._folder) != self._files[:self._n_weights]:
            raise OSError(f"the files in {self._folder} changed while they were read")
        for i, path in enumerate(self._files):
            if not self._same(i):
                raise OSError(f"{path} changed while it was read")
        digest = hashlib.sha256()
        for i in range(len(self._files)):
            digest.update(f"{self._found[i]}\n".encode())
        return digest.hexdigest()


def weight_files(folder: pathlib.Path) -> list[pathlib.Path]:
    """The files of a folder that hold weights, in an order that does not depend on the machine."""
    return sorted(path for path in folder.iterdir()
                  if path.suffix in WEIGHTS and path.is_file())


def tensor_shapes(folder: pathlib.Path) -> Optional[dict[str, Any]]:
    """Type and shape of each tensor in a folder's safetensors files, by name. None: a file is none,
    or damaged."""
    found: dict[str, Any] = {}
    for path in [folder] if folder.is_file() else weight_files(folder):
        try:
            with path.open("rb") as file:
                n_bytes = int.from_bytes(file.read(8), "little")
                header = json.loads(file.read(min(n_bytes, _HEADER_BYTES_MAX)))
            found.update({name: (tensor["dtype"], tensor["shape"])
                          for name, tensor in header.items() if name != "__metadata__"})
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None
    return found


def digest_folder(folder: pathlib.Path, extra: Iterable[pathlib.Path] = ()) -> str:
    """SHA-256 of a folder's weights, and of some other files. OSError: none, or they change."""
    return Weights(folder, extra).result()


_OTHER_HUB = ("VLLM_USE_MODELSCOPE", "SGLANG_USE_MODELSCOPE")


def why_unnamed(load_format: str, formats: Collection[str], extra: Optional[Iterable[str]],
                harmless: frozenset[str]) -> Optional[str]:
    """Why the files of a folder do not name what an engine loads. None: they do. formats: that read
    these files and no others. extra: options of its loader; harmless: those that choose no files."""
    if load_format not in formats:
        return f"--load-format {load_format} does not read the files of the model's folder"
    options = sorted(set(extra or ()) - harmless)
    return f"--model-loader-extra-config {', '.join(options)} may name other files" if options else None


def model_folder(model: str, revision: Any = None,
                 download_dir: Optional[str] = None) -> pathlib.Path:
    """Where a model's files are: a folder, or the local copy of a model on the Hugging Face hub.
    FileNotFoundError: neither."""
    path = pathlib.Path(model)
    if path.exists():
        return path
    if model.startswith(("/", ".", "~")):
        raise FileNotFoundError(f"{model} is no file or folder on this machine")
    for name in _OTHER_HUB:
        if os.environ.get(name, "").strip().lower() in ("1", "true"):
            raise FileNotFoundError(
                f"with {name} {model} is ModelScope's, and the Hugging Face hub may have other "
                "files of that name: give the model's folder")
    try:
        from huggingface_hub import snapshot_download
    except ModuleNotFoundError:
        raise FileNotFoundError(
            f"{model} is no file or folder on this machine, and this Python has no huggingface_hub "
            "that would find a downloaded model by that name") from None
    try:

        return pathlib.Path(snapshot_download(model, revision=revision, cache_dir=download_dir,
                                              local_files_only=True))
    except Exception as error:  # the hub's own classes
        raise FileNotFoundError(f"the files of {model} are not on this machine: {error}") from None


def plain_config(values: dict[str, Any]) -> dict[str, Any]:
    """The values of a config.json that can change KV."""
    return {name: plain_config(value) if isinstance(value, dict) else value
            for name, value in values.items() if name not in _IGNORED}


def config_digest(values: dict[str, Any]) -> str:
    """SHA-256 of the effective values of a config.json."""
    text = json.dumps(plain_config(values), sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()
