# SPDX-License-Identifier: Apache-2.0
"""A daemon that does not answer, though it has not ended: stopped, or without a processor.

The session warns after WARN_S, and where a loss only costs time, counts itself as lost after LOST_S.
"""
from __future__ import annotations

import time
from typing import Callable, Optional

from ._client import Client
from ._errors import ConnectionLost, Error

WARN_S = 1.0
LOST_S = 10.0
"""A lost session costs all requests their KV, a stall only time: so it is long."""


class Stalled(Error):
    """The daemon did not answer in time: try again when it answers."""


class Stall:
    """Of one session."""

    def __init__(self, client: Client, socket: Optional[str], log: Callable[..., None],
                 lost_s: Optional[float], clock: Callable[[], float] = time.monotonic) -> None:
        """socket: as of connect(). log: as Logger.warning(). lost_s: without an answer for so long
        the session is lost; None: never."""
        where = f", {socket}" if socket else ""
        self._daemon = f"kvtrunkd (pid {client.info.daemon_pid}{where})"
        self._pid = client.info.daemon_pid
        self._log = log
        self._lost_s = lost_s
        self._clock = clock
        self.lost_ns = int(lost_s * 1e9) if lost_s is not None else 0
        """The deadline of other calls; 0: none."""
        self._warned: Optional[float] = None
        """Since when there was no answer, if that was said."""

    def now(self) -> float:
        """To give look() later."""
        return self._clock()

    def look(self, since: float) -> None:
        """An operation has had no answer since then. ConnectionLost: for too long."""
        waited = self._clock() - since
        if waited >= WARN_S and self._warned is None:
            self._warned = since
            self._log("kvtrunk: %s", f"{self._daemon} has not answered for {waited:.0f} s: it is "
                      "stopped, or has no processor. New requests wait, running ones continue while "
                      f"they have pages. If it is stopped, `kill -CONT {self._pid}` continues it")
        if self._lost_s is not None and waited >= self._lost_s:
            raise ConnectionLost(f"{self._daemon} has not answered for {waited:.0f} s")

    def answered(self) -> None:
        """An answer came."""
        if self._warned is not None:
            self._log("kvtrunk: %s", f"{self._daemon} answers again, after "
                      f"{self._clock() - self._warned:.1f} s")
            self._warned = None
