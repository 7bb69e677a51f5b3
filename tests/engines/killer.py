# SPDX-License-Identifier: Apache-2.0
"""Kill a process of this engine right after its scheduler has submitted an operation. The
environment variable KILL names a file with both, as "COMMIT Worker", which a test writes when it is
time; the process is known by its command line. serving.py imports this in each process."""
import os
import pathlib

import deadly
from engine import find

from kvtrunk._native import lib
from kvtrunk.engine._server import processes

ORDER = pathlib.Path(os.environ["KILL"])


def victim(request):
    if not ORDER.exists():
        return None
    operation, word = ORDER.read_text().split()
    if request.op != getattr(lib, f"KVT_OP_{operation}"):
        return None
    return find(processes(os.getsid(0)), word)


deadly.kill(victim)
