# SPDX-License-Identifier: Apache-2.0
"""New weights and adapters of a running engine, as SGLang's scheduler gets them.

Weights are unknown from the first write on. They are known again when every rank has loaded files
whole, or an update with a version that the trainer gave. Requests that run meanwhile publish nothing
more. Every rank runs this, at the same points, and all agree on the outcome.
"""
from __future__ import annotations

import contextlib
import logging
import secrets
from typing import Any, Callable, Iterator, Optional

from ..engine import Name
from . import _drafts, _identity, _pool, _refusals

logger = logging.getLogger(__name__)

_HARMLESS_CALLS = ("save_remote_model", "save_sharded_model")
"""Methods of the scheduler that change no weights. Others are not known."""
_HARMLESS_CHECKS = ("snapshot", "compare", "checksum")

Original = Callable[[], Any]

current: Optional[Updates] = None
"""The Updates of this process, which has one scheduler."""


class Updates:
    """Weight updates of one engine. Calls `renamed`, with the reason, when the name has changed."""

    def __init__(self, name: Name, tensors: Optional[dict[str, Any]],
                 renamed: Callable[[str], None]) -> None:
        """tensors: those of the files that the engine was started with."""
        global current
        current = self
        self._name = name
        self._tensors = tensors
        self._renamed = renamed
        self._loaded = self._written = False
        self._open = False
        """Whether this is between begin_weight_update() and end_weight_update()."""
        self._open_loaded = False
        """Whether no part has failed in between so far."""
        self._versions: set[str] = set()
        """Versions given in between."""
        self.keeps = False
        """Whether a flush is a part of an update, or of a sleep: it forgets nothing."""

    # ---- what SGLang does meanwhile

    def writes(self) -> None:
        """Weights are written from here on."""
        self._written = True
        self._name.unknown()
        self._renamed("weights change")

    def loaded(self, original: Original, _version: Any) -> Any:
        """This rank has all of an update."""
        self._loaded = True
        return original()

    @contextlib.contextmanager
    def keeping(self) -> Iterator[None]:
        """A flush within forgets nothing."""
        self.keeps = True
        try:
            yield
        finally:
            self.keeps = False

    def _run(self, original: Original) -> Any:
        """Run an update. Then `_loaded`: every rank has all of it. `_written`: one has written."""
        self._loaded = self._written = False
        try:
            with self.keeping():
                return original()
        finally:
            mine = self._loaded, self._written
            self._loaded, self._written = False, True  # if the ranks cannot be asked
            ranks = _pool.everyone(mine)
            self._loaded = all(loaded for loaded, _ in ranks)
            self._written = any(written for _, written in ranks)

    def _known(self, version: Optional[str]) -> None:
        """The outcome of an update by a trainer."""
        if not self._loaded:
            self._name.failed()
            self._renamed("an update failed: it shares nothing until weights are loaded from disk")
        elif version is None:
            self._renamed("weights have no version: it shares nothing")
        else:
            self._renamed(self._versioned(version))

    def _versioned(self, version: str) -> str:
        """A trainer has called the weights so. Returns what to log."""
        why = self._name.version(version)
        return f"weights have version {version!r}" + (f", but it shares nothing: {why}" if why else "")

    # ---- SGLang's calls

    def from_disk(self, original: Original, request: Any) -> Any:
        """update_weights_from_disk(). SGLang tells of its first write."""
        files = _identity.Files(request.model_path, request.load_format, _refusals.Resolved())
        before = None if self._name.alone else str(self._name)
        try:
            return self._run(original)
        finally:
            if self._loaded:
                digest = files.digest()
                if digest and _drafts.runners:  # SGLang loads into them what the files have for them
                    digest = f"{digest} in drafts"
                if digest and (self._tensors is None or files.tensors != self._tensors):
                    # Tensors that they lack are as they were.
                    digest = before and f"{digest} over {before}"
                self._name.files(digest)
                self._renamed(f"weights from {request.model_path}")
            elif self._written:
                self._known(None)

    def part(self, original: Original, request: Any) -> Any:
        """update_weights_from_tensor(), update_weights_from_distributed(): a part of what comes
        until end_weight_update()."""
        if not self._open:
            return original()  # which refuses it
        self.writes()
        if request.weight_version is not None:
            self._versions.add(request.weight_version)
        try:
            return self._run(original)
        finally:
            self._open_loaded = self._open_loaded and self._loaded

    def begin(self, original: Original, _request: Any) -> Any:
        """begin_weight_update()."""
        if self._open:
            return original()
        self._open = self._open_loaded = True
        self._versions.clear()
        return original()

    def end(self, original: Original, _request: Any) -> Any:
        """end_weight_update()."""
        if not self._open:
            return original()
        self.writes()

        def last() -> Any:
            answer = original()
            self._loaded = self._open_loaded
            return answer

        self._open = False
        try:
            return self._run(last)
        finally:
            self._known(self._versions.pop() if len(self._versions) == 1 else None)

    def from_ipc(self, original: Original, request: Any) -> Any:
        """update_weights_from_ipc()."""
        self.writes()
        try:
            return self._run(original)
        finally:
            self._known(request.weight_version)

    def version(self, original: Original, request: Any) -> Any:
        """update_weight_version(): a name for the weights as they are."""
        if self._open:
            self._versions.add(request.new_version)
        else:
            before, text = str(self._name), self._versioned(request.new_version)
            if str(self._name) != before:
                self._renamed(text)
            elif self._name.alone:
                logger.warning("kvtrunk: %s", text)
        return original()

    def sleep(self, original: Original, _request: Any) -> Any:
        """release_memory_occupation(). The pool stays, and without the memory saver weights do."""
        with self.keeping():
            return original()

    def check(self, original: Original, request: Any) -> Any:
        """check_weights(), which resets weights, too."""
        return self._unless(request.action in _HARMLESS_CHECKS, original)

    def call(self, original: Original, request: Any) -> Any:
        """A method of the scheduler by its name, with any effect."""
        return self._unless(request.method in _HARMLESS_CALLS, original)

    def _unless(self, harmless: bool, original: Original) -> Any:
        if not harmless:
            self._name.failed()
            self._renamed("weights may have changed: it shares nothing until they are loaded from "
                          "disk")
        return original()


class Adapters:
    """Names of LoRA adapters by SGLang's number of them: digests of what was loaded. An adapter
    without one is shared within this engine only."""

    def __init__(self, manager: Any) -> None:
        """manager: SGLang's LoRAManager, with what --lora-paths names; or None."""
        self._manager = manager
        self._own = secrets.token_hex(16)
        self._digests: dict[str, str] = {}
        for number in sorted(manager.loras) if manager is not None else ():
            self._add(number)

    def _add(self, number: str) -> None:
        adapter = self._manager.loras.get(number)
        digests = _pool.everyone(adapter and _identity.adapter_digest(adapter))
        if digests[0] is not None and len(set(digests)) == 1:
            self._digests[number] = digests[0]

    def load(self, original: Original, request: Any) -> Any:
        """load_lora_adapter(), load_lora_adapter_from_tensors()."""
        answer = original()
        self._digests.pop(request.lora_id, None)
        self._add(request.lora_id)
        return answer

    def unload(self, original: Original, request: Any) -> Any:
        """unload_lora_adapter(), when no request uses it."""
        self._digests.pop(request.lora_id, None)
        return original()

    def name(self, number: Optional[str]) -> Optional[str]:
        """Name of an adapter in a namespace. None: no adapter."""
        return number and self._digests.get(number, f"{self._own} {number}")
