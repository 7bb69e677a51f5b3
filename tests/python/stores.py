# SPDX-License-Identifier: Apache-2.0
"""A kvtstored beside a daemon, for tests: it runs in a block, and answers what it counts."""
import contextlib
import json
import os
import pathlib
import signal
import socket
import struct
import subprocess
import time

HEAD = struct.Struct("<IHHIiQ")
STATUS = 4


def freeze(pid):
    """Stop a process, and wait until all its threads stand: SIGSTOP returns before."""
    os.kill(pid, signal.SIGSTOP)
    tasks = pathlib.Path(f"/proc/{pid}/task")
    while any(task.joinpath("stat").read_text("ascii", "replace").rpartition(")")[2].split()[0] != "T"
              for task in tasks.iterdir()):
        time.sleep(0.001)


@contextlib.contextmanager
def stopped(*pids):
    """These processes stand meanwhile."""
    for pid in pids:
        freeze(pid)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


class Store:
    """One that runs."""

    def __init__(self, daemon, ram, *options):
        program = os.path.join(os.environ["KVTRUNK_BIN"], "kvtstored")
        self.path = f"{daemon.socket}.store"
        self.process = subprocess.Popen(
            [program, f"--socket={daemon.socket}", f"--ram-bytes={ram}", *options],
            stderr=subprocess.PIPE, text=True)
        self.hear("serving")
        shown = json.loads(daemon.kvtctl("--json", "store", "status"))
        self._names = [name for name, value in shown.items()
                       if isinstance(value, int) and name != "pid"]

    def hear(self, text):
        """Wait until it says this."""
        for line in self.process.stderr:
            if text in line:
                return
        raise AssertionError(f"the store ended and did not say {text!r}")

    def counts(self):
        """As `kvtctl store status`, but so fast that it sees loads."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as peer:
            peer.connect(self.path)
            magic, _, version, *_ = HEAD.unpack_from(peer.recv(4096))
            peer.send(HEAD.pack(magic, STATUS, version, HEAD.size, 0, 0))
            counts = peer.recv(4096)[HEAD.size:]
            numbers = memoryview(counts).cast("Q")[:len(self._names)]  # histograms follow
            return dict(zip(self._names, numbers, strict=True))

    def settled(self, pages):
        """Wait until it has so many pages at least, and nothing is copied or loaded."""
        while True:
            counts = self.counts()
            if counts["pages"] >= pages and not counts["queued_pages"] and not counts["open_loads"]:
                return counts

    def signal(self, number):
        self.process.send_signal(number)

    def freeze(self):
        """Stop it."""
        freeze(self.process.pid)

    def end(self):
        """End it, stopped or not. Returns its exit status."""
        self.signal(signal.SIGCONT)
        self.process.terminate()
        self.process.stderr.close()
        return self.process.wait()


@contextlib.contextmanager
def running(daemon, ram="1M", *options):
    """A store that ends well, unless it was killed."""
    store = Store(daemon, ram, *options)
    try:
        yield store
    finally:
        assert store.end() in (0, -signal.SIGKILL)
