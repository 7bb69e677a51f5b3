# SPDX-License-Identifier: Apache-2.0
"""A daemon that does not answer, though it has not ended: stopped, or without a processor.

The session warns after WARN_S, and where a loss only costs time, counts itself as lost after LOST_S.
"""
from __future__ import annotations

import os
import pathlib
import socket as sockets
import struct
import time
from typing import Callable, Optional

from .. import ConnectionLost, Error, Info

WARN_S = 1.0
LOST_S = 10.0
"""A lost session costs all requests their KV, a stall only time: so it is long."""
_DEFAULT = "/run/kvtrunk/default.sock"
_PEER = struct.Struct("iII")
"""struct ucred."""


class Stalled(Error):
    """The daemon did not answer in time: try again when it answers."""


def connected_again(old: Info, new: Info) -> str:
    """The log line of a session after one that was lost."""
    cache = "was kept" if new.instance == old.instance else "starts empty"
    return (f"connected again as session {new.session}: running requests are computed again; the "
            f"cache {cache}")


class Stall:
    """Whether the daemon answers one session: warns, and ends the wait."""

    def __init__(self, socket: Optional[str], log: Callable[..., None], lost_s: Optional[float],
                 clock: Callable[[], float] = time.monotonic) -> None:
        """socket: as of connect(). log: as Logger.warning(). lost_s: without an answer for so long
        the session is lost; None: never."""
        self._path = socket or os.environ.get("KVTRUNK_SOCKET") or _DEFAULT
        self._log = log
        self._lost_s = lost_s
        self._clock = clock
        self.lost_ns = int(lost_s * 1e9) if lost_s is not None else 0
        """The deadline of other calls; 0: none."""
        self._warned: Optional[float] = None
        """Start of a wait that was logged. None: none was."""

    def now(self) -> float:
        """The clock's time, to give look() later."""
        return self._clock()

    def look(self, since: float) -> None:
        """Log an operation without an answer since `since`, once. ConnectionLost: since too long."""
        waited = self._clock() - since
        if waited >= WARN_S and self._warned is None:
            self._warned = since
            pid = _serving(self._path)
            self._log("kvtrunk: %s", f"{self._daemon(pid)} has not answered for {waited:.0f} s: it is "
                      "stopped, or has no processor. New requests wait, running ones continue while "
                      "they have pages. If it is stopped, "
                      f"{f'`kill -CONT {pid}`' if pid else 'SIGCONT'} continues it")
        if self._lost_s is not None and waited >= self._lost_s:
            pid = _serving(self._path)
            raise ConnectionLost(f"{self._daemon(pid)} has not answered for {waited:.0f} s")

    def answered(self) -> None:
        """An answer came."""
        if self._warned is not None:
            self._log("kvtrunk: %s", f"{self._daemon(_serving(self._path))} answers again, after "
                      f"{self._clock() - self._warned:.1f} s")
            self._warned = None

    def _daemon(self, pid: int) -> str:
        return f"kvtrunkd ({f'pid {pid}, ' if pid else ''}{self._path})"


def _serving(path: str) -> int:
    """Process id of the daemon that listens at a socket, a stopped one, too. 0: not known, because
    none listens, many connections wait, it ended, or it is in another pid namespace."""
    with sockets.socket(sockets.AF_UNIX, sockets.SOCK_SEQPACKET) as made:
        made.setblocking(False)
        try:
            made.connect(path)
            peer = made.getsockopt(sockets.SOL_SOCKET, sockets.SO_PEERCRED, _PEER.size)
            pid = int(_PEER.unpack(peer)[0])
            stat = pathlib.Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
        except OSError:
            return 0
    # The socket outlives a daemon, and names it until a successor listens.
    return 0 if stat.rpartition(")")[2].startswith((" Z", " X")) else pid
