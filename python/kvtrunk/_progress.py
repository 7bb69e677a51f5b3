# SPDX-License-Identifier: Apache-2.0
"""A line on stderr that says how far long work has come."""
from __future__ import annotations

import contextlib
import sys
import threading
import time
from typing import Any, Callable, Iterator, Optional, TextIO

SILENT_S = 2.0
TERMINAL_EVERY_S, PLAIN_EVERY_S = 0.2, 10.0
TERMINAL_STEP_S = 1.0


def _amount(n: float, unit: str) -> str:
    if unit != "bytes":
        return f"{n:,.0f} {unit}"
    for size in ("B", "KiB", "MiB", "GiB"):
        if n < 1024:
            return f"{n:.1f} {size}" if size != "B" and n < 100 else f"{n:.0f} {size}"
        n /= 1024
    return f"{n:.1f} TiB"


class progress:
    """Show how far work has come: `with progress("hashing weights", n_bytes) as p: p.add(n)`.

    Work of less than two seconds prints nothing. After that a terminal has one line that moves, and
    anything else a line every ten seconds. Lines are printed by add(), which any thread may call.
    total: 0 if it is not known. unit: what add() counts.
    """

    def __init__(self, what: str, total: int = 0, unit: str = "bytes", *,
                 file: Optional[TextIO] = None,
                 clock: Callable[[], float] = time.monotonic) -> None:
        self._what, self._total, self._unit = what, total, unit
        self._file = sys.stderr if file is None else file
        self._clock = clock
        self._lock = threading.Lock()
        self._done = 0
        self._start = clock()
        self._due = self._start + SILENT_S
        self._shown = False

    def __enter__(self) -> progress:
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        with self._lock:
            if self._shown:
                seconds = self._clock() - self._start
                how = "done" if kind is None else "stopped"
                self._print(f"{how}, {_amount(self._done, self._unit)} in {seconds:.0f} s", "\n")

    def add(self, n: int) -> None:
        """Count n more as done."""
        with self._lock:
            self._done += n
            now = self._clock()
            if now >= self._due:
                terminal = self._terminal()
                self._due = now + (TERMINAL_EVERY_S if terminal else PLAIN_EVERY_S)
                self._print(self._state(now - self._start), "" if terminal else "\n")
                self._shown = True

    def _state(self, seconds: float) -> str:
        text = _amount(self._done, self._unit)
        if self._total:
            text += f" of {_amount(self._total, self._unit)}"
        if 0 < self._done < self._total:
            left = seconds * (self._total - self._done) / self._done
            text += f", {100 * self._done // self._total} %, {left:.0f} s left"
        return text

    def _terminal(self) -> bool:
        return _is_terminal(self._file)

    def _print(self, text: str, end: str) -> None:
        _show(self._file, f"kvtrunk: {self._what}: {text}", end)


def _is_terminal(file: TextIO) -> bool:
    try:
        return file.isatty()
    except (AttributeError, ValueError):  # no stderr, or a closed one
        return False


def _show(file: TextIO, line: str, end: str) -> None:
    if _is_terminal(file):
        line = f"\r{line[:100]}\033[K"
    try:
        file.write(line + end)
        file.flush()
    except (AttributeError, OSError, ValueError):
        pass  # work does not fail for want of a place to print


class Steps:
    """Which step of how many runs, and for how many seconds: `with steps("ask both engines"):`

    A terminal has one line that moves, and is cleared. Anything else has a line when a step begins,
    and one every ten seconds.
    """

    def __init__(self, total: int, file: Optional[TextIO] = None) -> None:
        self._total, self._file = total, sys.stderr if file is None else file
        self._n = 0
        self._start = time.monotonic()

    @contextlib.contextmanager
    def __call__(self, what: str) -> Iterator[None]:
        self._n += 1
        begin = time.monotonic()
        line = f"kvtrunk: step {self._n} of {self._total}, {what}"
        terminal = _is_terminal(self._file)
        ended = threading.Event()

        def tick() -> None:
            while not ended.wait(TERMINAL_STEP_S if terminal else PLAIN_EVERY_S):
                now = time.monotonic()
                _show(self._file, f"{line}: {now - begin:.0f} s, {now - self._start:.0f} s in all",
                      "" if terminal else "\n")

        _show(self._file, line, "" if terminal else "\n")
        ticker = threading.Thread(target=tick, daemon=True)
        ticker.start()
        try:
            yield
        finally:
            ended.set()
            ticker.join()
            if terminal:
                _show(self._file, "", "")
