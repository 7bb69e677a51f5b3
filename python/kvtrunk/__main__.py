# SPDX-License-Identifier: Apache-2.0
"""python -m kvtrunk: versions, the daemon's state, and what is missing. Exits with 1 without a
daemon."""
from __future__ import annotations

import importlib.util
import platform

from . import Error, __version__, connect
from ._options import Parser, run
from .testing import program


def _programs() -> None:
    for name in ("kvtrunkd", "kvtctl", "kvtlab"):
        try:
            print(f"{name}: {program(name)}")
        except FileNotFoundError as error:
            print(f"{name}: missing: {error}")


def _libraries() -> None:
    for name, what in (("numpy", "arrays on the pool in host memory"),
                       ("torch", "tensors on the pool")):
        there = importlib.util.find_spec(name) is not None
        print(f"{name}: {'installed' if there else f'missing: {what} need it'}")


def main() -> int:
    """Print, and return the exit status."""
    parser = Parser(prog="python -m kvtrunk", description=__doc__.split(": ")[1])
    parser.add_argument("--socket", help="the daemon's; default: $KVTRUNK_SOCKET, then "
                        "/run/kvtrunk/default.sock")
    arguments = parser.parse_args()
    print(f"kvtrunk {__version__}, Python {platform.python_version()}, Linux {platform.release()}")
    _programs()
    _libraries()
    try:
        client = connect(arguments.socket, observe=True, connect_wait=0, timeout=3)
    except Error as error:
        print(f"daemon: {error}")
        return 1
    with client:
        info = client.info
        print(f"daemon: pid {info.daemon_pid}, {info.n_pages} pages of {info.page_size} positions, "
              f"{info.page_bytes} bytes each, {info.n_slabs} slab(s), {info.backend}")
        print(f"geometry: {info.geometry or 'page_bytes only'}")
        if info.fingerprint:
            print(f"fingerprint: {info.fingerprint}")
    return 0


if __name__ == "__main__":
    run("kvtrunk", main)
