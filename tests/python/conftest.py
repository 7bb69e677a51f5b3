# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the tests."""
import subprocess
import sys

import pytest

from kvtrunk import testing

GEOMETRY = {"n_layers": 2, "n_kv_heads": 2, "head_dim": 8}


@pytest.fixture(scope="session")
def shared():
    """One daemon for all tests that leave nothing behind."""
    with testing.daemon(**GEOMETRY) as daemon:
        yield daemon


@pytest.fixture
def client(shared):
    with shared.connect(any_geometry=True) as made:
        yield made
    with shared.connect(observe=True):
        pass


class Child:
    """A Python process: its script says words, one a line."""

    def __init__(self, daemon, script):
        self.process = subprocess.Popen(
            [sys.executable, "-c", "import sys, kvtrunk\nsocket = sys.argv[1]\n"
             "def say(*words): print(*words, flush=True)\n" + script, daemon.socket],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def hear(self):
        return self.process.stdout.readline().strip()

    def tell(self, line=""):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def kill(self):
        self.process.kill()
        self.wait()

    def wait(self):
        self.process.stdin.close()
        said = self.process.stdout.read()
        self.process.stdout.close()
        assert self.process.wait() in (0, -9)
        return said


@pytest.fixture
def child():
    made = []

    def start(daemon, script):
        made.append(Child(daemon, script))
        return made[-1]

    yield start
    for process in made:
        if process.process.poll() is None:
            process.kill()
