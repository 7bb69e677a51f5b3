# SPDX-License-Identifier: Apache-2.0
"""The sockets of an engine: its daemon's and its store's. A name may have {device}: then each device
has a daemon of its own, and one name serves data-parallel ranks and replicas alike. Knows no engine."""
from __future__ import annotations

import os
from typing import Any, Optional, Sequence

FIELD = "{device}"
VARIABLE = "CUDA_VISIBLE_DEVICES"
WAIT_VARIABLE = "KVTRUNK_FETCH_WAIT_MS"
MIN_VARIABLE = "KVTRUNK_MIN_POSITIONS"


def socket_of(path: Optional[str], device: Optional[int],
              visible: Optional[Sequence[object]] = None, which: str = "socket") -> Optional[str]:
    """The socket's name for connect(). None: its default.

    path: as the user gave it. None: $KVTRUNK_SOCKET. device: index of the rank's first device in
    `visible`. None: the engine computes on the CPU. visible: numbers of devices. None: those of
    $CUDA_VISIBLE_DEVICES. which: "socket" of the daemon, or "store", for which "" is none.
    ValueError: it has no such name; a sentence with the cure.
    """
    variable = f"KVTRUNK_{which.upper()}"
    what = variable if path is None else f"the option {which}"
    if path is None:
        path = os.environ.get(variable)
    if not path or not set("{}") & set(path):
        return path
    what = f"{what} is {path}"
    if set("{}") & set(path.replace(FIELD, "")):
        raise ValueError(f"{what}, and {FIELD} is all that a socket's name may have in braces: "
                         f"write {FIELD}, or a name without braces")
    if device is None:
        raise ValueError(f"{what}, and an engine on the CPU has no device: write the name of the "
                         f"socket without {FIELD}")
    return path.replace(FIELD, str(_number(what, device, visible)))


def _number(what: str, device: int, visible: Optional[Sequence[object]]) -> int:
    """A device's number without CUDA_VISIBLE_DEVICES, as that of the daemon's option devices."""
    listed = os.environ.get(VARIABLE)
    if visible is None:
        if not listed:
            return device
        visible = listed.split(",")
    if device >= len(visible):
        raise ValueError(f"{what}, and this rank's first device would be number {device} of the "
                         f"{len(visible)} that it may use ({VARIABLE}={listed}): give it more")
    word = str(visible[device]).strip()
    if not word.isdecimal():
        raise ValueError(f"{what}, and {VARIABLE} names the device {word!r}, which is no number: "
                         f"give numbers there, or the socket's name without {FIELD}")
    return int(word)


def min_positions(option: Any = None) -> int:
    """The fewest positions worth sharing, from the engine's option, else from
    $KVTRUNK_MIN_POSITIONS, else 0. ValueError: it is no such number; a sentence with the cure."""
    where, given = ("min_positions", option) if option is not None else (
        MIN_VARIABLE, os.environ.get(MIN_VARIABLE) or 0)
    if not str(given).isdecimal() or int(given) >= 1 << 31:
        raise ValueError(f"{where} is {given!r}: set it to a number of tokens, as 1024, or to 0 to "
                         "share prompts of any length")
    return int(given)


def fetch_wait() -> Optional[float]:
    """Seconds that a store's answer may take, from $KVTRUNK_FETCH_WAIT_MS. None: connect()'s default.
    ValueError: it is no such number; a sentence with the cure."""
    given = os.environ.get(WAIT_VARIABLE)
    if not given:
        return None
    if not given.isdecimal() or int(given) == 0:
        raise ValueError(f"{WAIT_VARIABLE} is {given!r}: set it to milliseconds, as 5, or unset it. "
                         'For no store set KVTRUNK_STORE=""')
    return int(given) / 1000
