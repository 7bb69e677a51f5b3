# SPDX-License-Identifier: Apache-2.0
"""Two OpenAI servers of SGLang, started as docs/sglang.md says."""
import contextlib
import json
import os
import pathlib
import shlex
import signal
import socket
import subprocess
import sys
import threading
import urllib.request

import pytest
from conftest import PAGE, geometry, printed
from proxied import proxy

from kvtrunk import testing

ON_A_CPU = ("--device cpu --attention-backend torch_native --sampling-backend pytorch "
            "--grammar-backend none --disable-cuda-graph --context-length 2048 "
            "--mem-fraction-static 0.5 --enable-cache-report")
READY = "The server is fired up and ready to roll"


class Server:
    """sglang.launch_server, with the command that `flags` prints."""

    def __init__(self, engine, daemon):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        standin = pathlib.Path(__file__).parent / "standin"
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "SGLANG_USE_CPU_ENGINE": "1",
                       # Without checks: the first reuse computes a page less.
                       "KVTRUNK_CHECK_EVERY": "0", "KVTRUNK_SOCKET": daemon.socket,
                       "PYTHONPATH": f"{standin}:{os.environ.get('PYTHONPATH', '')}"}
        words = [sys.executable, *shlex.split(f"{engine} {ON_A_CPU}")[1:], "--port", str(self.port)]
        self.process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                        text=True, env=environment, start_new_session=True)
        self.lines = []
        self.ready = threading.Event()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for line in self.process.stdout:
            self.lines.append(line)
            if READY in line:
                self.ready.set()
        self.ready.set()

    def complete(self, text, **more):
        """The text behind a prompt, and how much of it was cached."""
        assert self.ready.wait(600) and self.process.poll() is None, "".join(self.lines[-30:])
        body = {"model": "any", "prompt": text, "max_tokens": 12, "temperature": 0,
                "ignore_eos": True, **more}
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/v1/completions",
                                         json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=300) as answer:
            said = json.load(answer)
        details = said["usage"]["prompt_tokens_details"] or {}
        return said["choices"][0]["text"], details.get("cached_tokens", 0)

    def kill(self):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@pytest.fixture(scope="module")
def servers(folder):
    options, engine = printed(folder, 1 << 23)
    assert options.items() >= {name: str(value) for name, value in geometry().items()
                               if name != "n_pages"}.items()
    with testing.daemon(supervise=True, **options) as daemon:
        made = [Server(engine, daemon), Server(engine, daemon)]
        yield made
        for server in made:
            server.kill()


def test_servers_share_and_a_salt_isolates(servers):
    a, b = servers
    text = "The page of a prefix that one server computed is read by another. " * 5
    first, cached = a.complete(text)
    assert cached == 0
    whole = (len(text) - 1) // PAGE * PAGE
    assert b.complete(text) == (first, whole)
    assert b.complete(text, cache_salt="tenant") == (first, 0)
    assert a.complete(text, cache_salt="tenant") == (first, whole)


def test_prefill_here_decode_there(servers):
    """Through the proxy of examples/python."""
    a, b = servers
    text = "What the first engine computes for one token, the second reads for all of them. " * 8
    expected, _ = a.complete(text, cache_salt="apart")
    with proxy(a.port, b.port) as ask:
        said = json.loads(ask("/v1/completions", {
            "model": "any", "prompt": text, "max_tokens": 12, "temperature": 0,
            "ignore_eos": True}))
    assert said["choices"][0]["text"] == expected
    cached = said["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert 0 < said["usage"]["prompt_tokens"] - cached <= PAGE
