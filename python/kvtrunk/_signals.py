# SPDX-License-Identifier: Apache-2.0
"""Signals in calls that wait: Python's handlers run at once, and what they raise ends the call."""
from __future__ import annotations

import signal
import threading
from typing import Any, Optional

from ._native import ffi, lib

_raised: list[BaseException] = []


def _keep(_kind: Any, error: BaseException, _trace: Any) -> None:
    _raised.append(error)


@ffi.def_extern(error=1, onerror=_keep)
def kvtpy_interrupted() -> int:
    """The library asks now and then whether a call that sleeps shall end. Handlers run in the main
    thread only."""
    if threading.current_thread() is not threading.main_thread():
        return 0
    if not _raised:
        signal.pthread_sigmask(signal.SIG_BLOCK, ())  # runs the handlers of what has come
    return len(_raised)


def raised() -> Optional[BaseException]:
    """The exception of a handler in a call that has ended. None: none, or not in the main thread."""
    if _raised and threading.current_thread() is threading.main_thread():
        return _raised.pop()
    return None


lib.kvt_set_interrupted(lib.kvtpy_interrupted)
