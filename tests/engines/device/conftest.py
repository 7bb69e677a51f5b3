# SPDX-License-Identifier: Apache-2.0
"""A daemon and engines on a device that the stand-in driver and emulated/ make up, started by what
`flags` prints for it."""
import contextlib
import shlex
import subprocess
import sys

import model
import printing
import pytest
import sitecustomize

from kvtrunk import _pool, testing
from kvtrunk.engine import _server
from kvtrunk.engine._pages import Pattern

sitecustomize.pool(_pool)  # pytest rewrites assertions of plugins, and so loads kvtrunk by itself

PATTERN = 12
"""Cached pages of no engine, at the lowest numbers: a warm-up without kvtrunk writes there."""


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    return model.write(tmp_path_factory.mktemp("model"))


def printed(engine, folder, *more):
    """The commands that `flags` prints: options of the daemon, and words of each engine, of two."""
    said = subprocess.run(
        [sys.executable, "-m", f"kvtrunk.{engine}", "flags", str(folder), "--device", "cuda",
         "--device-bytes", "8G", "--engine-bytes", "1G", *more],
        check=True, capture_output=True, text=True).stdout
    daemon, words = (line for line in said.splitlines() if not line.startswith("#"))
    options = dict(word[2:].split("=", 1) for word in shlex.split(daemon)[1:] if "=" in word)
    return ({name.replace("-", "_"): value for name, value in options.items()}, shlex.split(words))


class Host:
    """The daemon, pages with a pattern, and engines."""

    def __init__(self, daemon, words, variables, logs, stack):
        self.daemon, self._words, self._variables = daemon, words, variables
        self._logs, self._stack = logs, stack
        self._n = 0
        self.client = stack.enter_context(daemon.connect(label="pattern"))
        self.pattern = Pattern(self.client, PATTERN)

    def start(self, **environment):
        """An engine."""
        self._n += 1
        server = _server.Server(
            self._words,
            {"KVTRUNK_SOCKET": self.daemon.socket, "KVTRUNK_CHECK_EVERY": "0",
             "OMP_NUM_THREADS": "1", **self._variables, **environment},
            self._logs / f"engine-{self._n}.log")
        self._stack.callback(server.kill)
        return server

    def start_two(self):
        """Two engines, which are ready, on the driver's memory."""
        engines = self.start(), self.start()
        for each in engines:
            each.wait()
        assert self.client.info.backend == "cuda-vmm"
        said = engines[0].said()
        assert "was not proved" in said and "device Stand-in" in said
        return engines

    def expect_unharmed(self):
        """No page of others was changed, and all that the daemon knows agrees."""
        assert self.daemon.kvtctl("audit").startswith("clean")
        assert not self.pattern.changed()


@contextlib.contextmanager
def hosting(daemon_options, words, behind, variables, logs):
    """A daemon, and engines with these words, those behind them, and variables."""
    command = printing.behind(words, behind, on_cpu=False)
    with contextlib.ExitStack() as stack:
        daemon = stack.enter_context(testing.daemon(supervise=True, **daemon_options))
        yield Host(daemon, command, variables, logs, stack)
