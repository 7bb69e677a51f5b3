# SPDX-License-Identifier: Apache-2.0
"""A daemon for a test: `with kvtrunk.testing.daemon() as d: kvtrunk.connect(d.socket)`.

pytest finds the fixtures `kvtrunk_daemon` (a daemon for one test) and `kvtrunk_client` (a client of
it) when the package is installed.
"""
from __future__ import annotations

import contextlib
import importlib.metadata
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sysconfig
import tempfile
from typing import Any, Iterator, Optional, Union

from ._client import Client, connect
from ._native import lib
from ._own import Owner

Option = Union[str, int, bool]

_ANSWER_S = 300
"""On a busy machine a daemon is late."""


def program(name: str) -> str:
    """Path of a program of kvtrunk: $KVTRUNK_BIN/NAME, this package's, or the one in PATH.

    FileNotFoundError: there is none.
    """
    candidates = [pathlib.Path(sysconfig.get_path("scripts")) / name]
    if os.environ.get("KVTRUNK_BIN"):
        candidates = [pathlib.Path(os.environ["KVTRUNK_BIN"]) / name]
    else:
        candidates[:0] = _installed(name)
    for candidate in candidates:
        if os.access(candidate, os.X_OK):
            return str(candidate)
    found = None if os.environ.get("KVTRUNK_BIN") else shutil.which(name)
    if found is None:
        raise FileNotFoundError(f"{name} is neither in this package nor in PATH: install a wheel "
                                "that has it (make wheel), or name its folder in KVTRUNK_BIN")
    return found


def _installed(name: str) -> list[pathlib.Path]:
    """Paths at which this package's wheel put a program."""
    try:
        files = importlib.metadata.files("kvtrunk") or []
    except importlib.metadata.PackageNotFoundError:
        return []
    return [pathlib.Path(str(file.locate())).resolve() for file in files if file.name == name]


class Daemon(Owner):
    """A running daemon with a directory of its own."""

    def __init__(self, options: dict[str, Option], supervise: bool) -> None:
        self._options = options
        self._supervise = supervise
        self._process: Optional[subprocess.Popen[bytes]] = None
        self._notify: Optional[socket.socket] = None
        self.directory = pathlib.Path(tempfile.mkdtemp(prefix="kvtrunk-"))
        """Directory of all files of the daemon."""
        self.name = f"py-{os.getpid()}-{self.directory.name[8:]}"
        """Name of the instance."""
        self.socket = str(self.directory / "socket")
        """Path of its socket, for connect()."""
        self.log = self.directory / "log"
        """The daemon's log, a file."""

    @property
    def pid(self) -> int:
        """Process id: with supervise the supervisor's. 0: it does not run."""
        return self._process.pid if self._process is not None else 0

    @property
    def child(self) -> int:
        """Process id of the daemon itself: with supervise, that of the serving child."""
        if not self._supervise:
            return self.pid
        with connect(self.socket, observe=True) as client:
            return client.info.daemon_pid

    def start(self) -> None:
        """Start, and wait until it serves. RuntimeError, with its log: it ended instead."""
        options = {"instance": self.name, "runtime_dir": self.directory,
                   "socket_path": self.socket, **self._options}
        command = [program("kvtrunkd")] + (["--supervise"] if self._supervise else [])
        command += [_flag(name, value) for name, value in options.items()]
        path = self.directory / "notify"
        path.unlink(missing_ok=True)
        parent = os.getpid()
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify, \
                open(self.log, "ab") as log:
            notify.bind(str(path))
            environment = {name: value for name, value in os.environ.items()
                           if not name.startswith("KVTRUNKD_")}
            environment["NOTIFY_SOCKET"] = str(path)
            # pylint: disable=subprocess-popen-preexec-fn,consider-using-with
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment,
                preexec_fn=lambda: lib.kvtpy_end_with_parent(parent))
            self._await_ready(notify)
        path.unlink(missing_ok=True)

    def _await_ready(self, notify: socket.socket) -> None:
        process = self._process
        assert process is not None
        pidfd = os.pidfd_open(process.pid)
        try:
            import select  # pylint: disable=import-outside-toplevel
            poll = select.poll()
            poll.register(notify, select.POLLIN)
            poll.register(pidfd, select.POLLIN)
            while True:
                ready = {fd for fd, _ in poll.poll()}
                if notify.fileno() in ready and b"READY=1" in notify.recv(65536):
                    return
                if pidfd in ready:
                    process.wait()
                    self._process = None
                    raise RuntimeError(f"kvtrunkd ended: {self.said()[-2000:]}")
        finally:
            os.close(pidfd)

    def stop(self) -> None:
        """Stop orderly and wait. Does nothing if it does not run. RuntimeError: it failed."""
        self._stop(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL: a crash. With supervise this kills the serving child, and a successor continues;
        without, the daemon is gone until start()."""
        if self._supervise:
            os.kill(self.child, signal.SIGKILL)
        else:
            self._stop(signal.SIGKILL)

    def _stop(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(number)
        status = process.wait()
        if status not in (0, -number):
            raise RuntimeError(f"kvtrunkd ended with {status}: {self.said()[-2000:]}")

    def restart(self) -> None:
        """Stop and start: the cache is empty then."""
        self.stop()
        self.start()

    def said(self) -> str:
        """The log."""
        return self.log.read_text("utf-8", "replace") if self.log.exists() else ""

    def connect(self, **options: Any) -> Client:
        """connect() to it: with its geometry, unless `options` say with which."""
        if not options.keys() & {"geometry", "fingerprint", "any_geometry", "observe"}:
            options["any_geometry"] = True
        return connect(self.socket, **options)

    def kvtctl(self, *arguments: str) -> str:
        """Run kvtctl; returns its output. CalledProcessError."""
        return subprocess.run(
            [program("kvtctl"), f"--socket={self.socket}", f"--timeout={_ANSWER_S}", *arguments],
            check=True, capture_output=True, text=True).stdout


def _flag(name: str, value: object) -> str:
    if isinstance(value, bool):
        value = "yes" if value else "no"
    return f"--{name.replace('_', '-')}={value}"


@contextlib.contextmanager
def daemon(*, supervise: bool = False, **options: Option) -> Iterator[Daemon]:
    """Start a daemon in a temporary directory; stop it and remove the directory at the end.

    options: those of kvtrunkd.conf(5), as n_layers=2; default: 4,096 pages of 16 positions and
    1,024 bytes each. supervise: with a supervisor, so that the cache survives kill(). The daemon
    ends with this process, however that ends.
    """
    defaults: dict[str, Option] = {"page_size": 16, "n_pages": 4096, "hugepages": "no",
                                   "max_private_pages": 0, "coalesce_patience_ms": 0}
    if "n_layers" not in options:
        defaults["page_bytes"] = 1024
    made = Daemon({**defaults, **options}, supervise)
    try:
        made.start()
        yield made
    finally:
        try:
            made.stop()
        finally:
            shutil.rmtree(made.directory, ignore_errors=True)
