# SPDX-License-Identifier: Apache-2.0
"""kill -9 right after a scheduler has submitted an operation."""
import os
import signal

from kvtrunk._native import lib
from kvtrunk.engine import _ring


class Library:
    """kvtrunk's, but for what submits."""

    def __init__(self, victim):
        """victim(request): the process to kill when this is submitted, or None."""
        self._victim = victim

    def __getattr__(self, name):
        return getattr(lib, name)

    def kvt_submit(self, handle, request):
        return self._submit(lib.kvt_submit, handle, request)

    def kvt_call(self, handle, request, result):
        return self._submit(lib.kvt_call, handle, request, result)

    def _submit(self, function, handle, request, *result):
        victim = self._victim(request)
        if victim == os.getpid():
            lib.kvt_submit(handle, request)  # no process lives to see the answer
        else:
            code = function(handle, request, *result)
        if victim is not None:
            os.kill(victim, signal.SIGKILL)
        return code


def kill(victim):
    """From now on, in this process."""
    _ring.lib = Library(victim)
