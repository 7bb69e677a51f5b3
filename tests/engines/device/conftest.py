# SPDX-License-Identifier: Apache-2.0
"""A daemon and engines on a device that the stand-in driver and emulated/ make up, started by what
`flags` prints for it."""
import contextlib
import shlex
import subprocess
import sys

import model
import pytest
import sitecustomize

from kvtrunk import _pool, _server, testing
from kvtrunk._pages import Pattern

sitecustomize.pool(_pool)  # pytest rewrites assertions of plugins, and so loads kvtrunk by itself

# Behind what is printed, and why. Nothing else.
BEHIND = [
    # Triton's interpreter runs this one's kernels. FlashAttention's are compiled.
    "--attention-backend", "TRITON_ATTN",
    # It compiles nothing, captures nothing, and calls no compiled operator.
    "--compilation-config", '{"mode": 0, "cudagraph_mode": "NONE", "custom_ops": ["none"]}',
    # It takes seconds for a hundred tokens, and the warm-up computes as many as a step may have.
    "--max-num-batched-tokens", "128", "--max-num-seqs", "4", "--max-model-len", "512",
    # Answers tell what was cached.
    "--enable-prompt-tokens-details",
]
NEVER = ("--device", "--dtype", "--kv-cache-dtype", "--block-size", "--kv-cache-memory-bytes",
         "--gpu-memory-utilization", "--kv-transfer-config", "--enforce-eager")
PATTERN = 12
"""Cached pages of nobody, at the lowest numbers: a warm-up without kvtrunk writes there."""


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    return model.write(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def printed(folder):
    """What `flags` prints for two engines: options of the daemon, and words of an engine."""
    said = subprocess.run(
        [sys.executable, "-m", "kvtrunk.vllm", "flags", str(folder), "--device", "cuda",
         "--device-bytes", "8G", "--engine-bytes", "1G", "--engines", "2", "--pool-bytes", "1G"],
        check=True, capture_output=True, text=True).stdout
    daemon, engine = (line for line in said.splitlines() if not line.startswith("#"))
    options = dict(word[2:].split("=", 1) for word in shlex.split(daemon)[1:] if "=" in word)
    return ({**{name.replace("-", "_"): value for name, value in options.items()}, "n_pages": 0},
            shlex.split(engine))


class Host:
    """The daemon, pages with a pattern, and engines."""

    def __init__(self, daemon, words, logs, stack):
        self.daemon, self._words, self._logs, self._stack = daemon, words, logs, stack
        self._n = 0
        self.client = stack.enter_context(daemon.connect(label="pattern"))
        self.pattern = Pattern(self.client, PATTERN)

    def start(self, **environment):
        """An engine."""
        self._n += 1
        server = _server.Server(
            [*self._words, *BEHIND],
            {"KVTRUNK_SOCKET": self.daemon.socket, "KVTRUNK_CHECK_EVERY": "0",
             "VLLM_USE_FLASHINFER_SAMPLER": "0", "VLLM_NO_USAGE_STATS": "1",
             "OMP_NUM_THREADS": "1", **environment}, self._logs / f"engine-{self._n}.log")
        self._stack.callback(server.kill)
        return server


@pytest.fixture
def host(printed, tmp_path):
    options, words = printed
    with contextlib.ExitStack() as stack:
        daemon = stack.enter_context(testing.daemon(supervise=True, **options))
        yield Host(daemon, words, tmp_path, stack)
