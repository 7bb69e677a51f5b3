# SPDX-License-Identifier: Apache-2.0
"""Log lines that a scheduler would repeat at every step."""
from __future__ import annotations

import time
from typing import Callable

EVERY_S = 60.0
_KINDS_MAX = 64


class LimitedLog:
    """Log a line, but of one kind at most one in EVERY_S. One thread."""

    def __init__(self, log: Callable[..., None],
                 clock: Callable[[], float] = time.monotonic) -> None:
        """log: as Logger.warning()."""
        self._log = log
        self._clock = clock
        self._said: dict[str, float] = {}

    def __call__(self, text: str, kind: str = "") -> None:
        """kind: of lines that differ in details. "": the text is its own kind."""
        kind, now = kind or text, self._clock()
        if now - self._said.get(kind, -EVERY_S) < EVERY_S:
            return
        self._said.pop(kind, None)
        self._said[kind] = now
        if len(self._said) > _KINDS_MAX:
            del self._said[next(iter(self._said))]
        self._log("kvtrunk: %s", text)
