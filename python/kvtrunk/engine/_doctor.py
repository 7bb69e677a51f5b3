# SPDX-License-Identifier: Apache-2.0
"""Parts of the doctor commands of all engines: the report, and a look at the daemon."""
from __future__ import annotations

import contextlib
import errno
import json
import pathlib
import subprocess
import sys
from typing import Any, Callable, Iterable, Optional

from .. import Client, Error, Geometry, Info, __version__, connect
from ..testing import program
from ._replaced import Replaced
from ._socket import socket_of

ANSWER_S = 3.0
"""How long a daemon may take to answer, as for kvtctl."""


class Report:
    """Prints what is right, and what is wrong with its cure."""

    def __init__(self) -> None:
        self.wrong = 0

    def good(self, text: str) -> None:
        """Something that is as it should be."""
        print(f"ok    {text}")

    def note(self, text: str) -> None:
        """Something that is neither right nor wrong."""
        print(f"      {text}")

    def replaced(self, rows: Iterable[Replaced]) -> None:
        """The adapter's table."""
        for row in rows:
            self.note(f"replaces {row.what}: {row.why}")

    def bad(self, text: str, cure: str) -> None:
        """Something that is not, and what to do."""
        self.wrong += 1
        print(f"WRONG {text}\n      {cure}")

    def missing(self, package: str, engine: str, release: str) -> None:
        """An engine that is not installed. release: the one that was run with kvtrunk."""
        self.bad(f"{engine} is not installed in this Python ({sys.executable})",
                 f"install it beside kvtrunk: {sys.executable} -m pip install {package}=={release}")


def _n(n: int, noun: str) -> str:
    """A number with its noun, as "1 page" or "2 pages"."""
    return f"{n} {noun}{'' if n == 1 else 's'}"


def run(name: str, installed: Callable[[Report], None],
        fits: Callable[[Report, Info, Geometry], None], socket: Optional[str], device: str) -> int:
    """The command. Returns 1 if something is wrong."""
    report = Report()
    report.good(f"kvtrunk {__version__}")
    installed(report)
    info = daemon(report, socket, device, f"python -m kvtrunk.{name} flags MODEL")
    if info is not None and info.geometry is not None:
        fits(report, info, info.geometry)
    return 1 if report.wrong else 0


def daemon(report: Report, socket: Optional[str], device: str, flags: str) -> Optional[Info]:
    """Look at a daemon, its pool and its clients. device: "cpu" or "cuda", where the engine
    computes. flags: the command that prints the daemon's options. None: there is no daemon."""
    try:
        socket = socket_of(socket, 0 if device == "cuda" else None)
    except ValueError as error:
        problem, _, cure = str(error).rpartition(": ")
        report.bad(problem, cure)
        return None
    try:
        client = connect(socket, any_geometry=True, label="doctor", connect_wait=0,
                         timeout=ANSWER_S)
    except Error as error:
        problem, _, cure = str(error).rpartition(": ")
        if error.errno == errno.ETIMEDOUT:
            report.bad(problem, cure)
        else:
            report.bad(f"no daemon: {error}", f"start what `{flags}` prints")
        return None
    client.set_timeout(None)
    with contextlib.closing(client):
        info = client.info
        report.good(f"kvtrunkd, pid {info.daemon_pid}: {info.n_pages} pages of {info.page_size} "
                    f"positions, {info.page_bytes} bytes each, {_n(info.n_slabs, 'slab')}, "
                    f"fingerprint {info.fingerprint or 'not set'}")
        _pool(report, client, device, flags)
        if not info.kept:
            report.good("the cache ends with the daemon (kvtrunkd --supervise keeps it)")
        _look_at_clients(report, socket)
        _look_at_store(report, socket, info)
    if info.geometry is None:
        report.bad("the daemon has page_bytes and no geometry", f"start what `{flags}` prints")
    return info


def _pool(report: Report, client: Client, device: str, flags: str) -> None:
    backend = client.info.backend
    if (backend == "host") != (device == "cpu"):
        report.bad(f"the pool is {backend} memory, and the engine computes on {device}",
                   f"start the daemon with what `{flags}` prints for that device")
        return
    try:
        client.map_pool(0) if device == "cpu" else client.map_pool(device=0)
    except Error as error:
        report.bad(f"the pool is {backend} memory and cannot be mapped: {error}",
                   "docs/gpu.md says what a device and a container need" if device == "cuda" else
                   "docs/faq.md has the causes")
        return
    report.good(f"the pool, {backend} memory, can be mapped here")


def _is_stopped(pid: int) -> bool:
    try:
        stat = pathlib.Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] in ("T", "t")


def _kvtctl(socket: Optional[str], *words: str) -> subprocess.CompletedProcess[str]:
    command = [program("kvtctl"), *(["--socket", socket] if socket else []), "--json", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def _look_at_store(report: Report, socket: Optional[str], info: Info) -> None:
    said = _kvtctl(socket, "store", "status")
    if "there is no store" in said.stderr:
        report.good("no store (kvtstored): evicted prompts are computed again")
        return
    if not said.stdout:
        problem, _, cure = said.stderr.strip().partition("kvtctl store: ")[2].rpartition(": ")
        report.bad(problem, cure)
        return
    store = json.loads(said.stdout)
    if store["instance"] != info.instance:
        report.bad("the store beside the daemon's socket serves another daemon: clients do not "
                   "ask it", "restart kvtstored")
    elif store["alarm"]:
        report.bad(f"the store: {store['alarm']}", "docs/stores.md has the causes")
    else:
        report.good(f"a store with {store['pages']} pages, which answered {store['hits']} of "
                    f"{store['fetches']} fetches")


def _look_at_clients(report: Report, socket: Optional[str]) -> None:
    said = _kvtctl(socket, "clients")
    if said.returncode != 0:
        report.bad(f"kvtctl clients: {said.stderr.strip()}", "docs/faq.md has the causes")
        return
    rows: list[dict[str, Any]] = json.loads(said.stdout)
    sessions = {row["session"]: row for row in rows if row["rank"] == 0}
    for row in rows:
        who, held = f"{row['label']}, pid {row['pid']},", sessions.get(row["session"], row)
        if row["suspected"]:
            report.bad(f"{who} cached pages that other sessions computed otherwise: "
                       f"{_n(row['suspected'], 'report')}",
                       "end it; its model, weights or kernels differ from the others'. Then "
                       "`kvtctl reset` forgets what it cached")
        if row["exited"]:
            continue
        if row["quarantined"]:
            report.bad(f"{who} keeps {_n(row['quarantined'], 'page')} in quarantine: its session has "
                       "ended, the process lives",
                       f"end it, or `kvtctl fence {row['session']}` if it writes no more")
        elif (held["leases"] or held["private"]) and _is_stopped(row["pid"]):
            report.bad(f"{who} is stopped, and its session holds "
                       f"{_n(held['leases'], 'lease')} and {_n(held['private'], 'private page')}",
                       f"`kill -CONT {row['pid']}` lets it continue; its end gives all back")
