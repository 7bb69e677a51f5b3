# SPDX-License-Identifier: Apache-2.0
"""What the flags commands of all engines have in common: what this machine has."""
from __future__ import annotations

import json
import os
import pathlib
import subprocess
from typing import NamedTuple

from .testing import program

RUNTIME = pathlib.Path("/run/kvtrunk")
CPU_DAEMON = ["--coalesce-patience-ms=30000"]
"""Options of a daemon for engines on CPUs."""
CPU_DAEMON_WHY = ("# a CPU's first chunk takes seconds: with less patience engines compute equal prompts "
                  "twice")


class Commands(NamedTuple):
    """What to start for a model, as words."""

    daemon: list[str]
    variables: list[str]
    """Of an engine's environment."""
    engine: list[str]


def device() -> str:
    """"cuda" if there is a device of NVIDIA, else "cpu"."""
    return "cuda" if any(pathlib.Path("/dev").glob("nvidia[0-9]*")) else "cpu"


def daemon() -> list[str]:
    """Options of any daemon: a supervisor, and a folder that can be written if /run cannot."""
    folder = _folder()
    return ["--supervise", *([] if folder == RUNTIME else [f"--runtime-dir={folder}"])]


def engine_environment() -> list[str]:
    """Variables of any engine: the daemon's socket, unless all look there anyway."""
    folder = _folder()
    return [] if folder == RUNTIME else [f"KVTRUNK_SOCKET={folder}/default.sock"]


def _folder() -> pathlib.Path:
    if os.access(RUNTIME if RUNTIME.exists() else RUNTIME.parent, os.W_OK):
        return RUNTIME
    own = os.environ.get("XDG_RUNTIME_DIR")
    return pathlib.Path(own, "kvtrunk") if own else pathlib.Path(f"/tmp/kvtrunk-{os.getuid()}")


def has_windows(folder: pathlib.Path) -> bool:
    """Whether layers of a model that kvtctl accepts have windows or chunks. Then engines need an
    option to keep all positions."""
    said = subprocess.run([program("kvtctl"), "--json", "geometry", str(folder), "--kv-type=bf16"],
                          check=True, capture_output=True, text=True).stdout
    return bool(json.loads(said)["windows"])


def cpu_shares(n_engines: int, n_ranks: int) -> list[list[str]]:
    """CPUs of each rank of each engine, as "0-3": equal shares of those that this process may use.
    Ranks share CPUs if there are more ranks."""
    cpus = sorted(os.sched_getaffinity(0))
    size = max(1, len(cpus) // (n_engines * n_ranks))
    shares = [cpus[i * size:(i + 1) * size] or [cpus[i % len(cpus)]]
              for i in range(n_engines * n_ranks)]
    words = ["-".join(map(str, dict.fromkeys((share[0], share[-1]))))
             if share[-1] - share[0] + 1 == len(share) else ",".join(map(str, share))
             for share in shares]
    return [words[i * n_ranks:(i + 1) * n_ranks] for i in range(n_engines)]
