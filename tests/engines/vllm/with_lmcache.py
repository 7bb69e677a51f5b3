# SPDX-License-Identifier: Apache-2.0
"""vLLM engines with LMCache's multiprocess mode: they copy KV into the memory of its server, and out
of it. As a program: serve.py with LMCache.

LMCACHE_PYTHON names an interpreter with LMCache and the vLLM of these tests:

    vllm=~/.cache/kvtrunk/engines/vllm
    $vllm/bin/python -m venv FOLDER
    ls -d $vllm/lib/python3*/site-packages >$(ls -d FOLDER/lib/python3*/site-packages)/vllm.pth
    FOLDER/bin/pip install lmcache==0.5.6
"""
import contextlib
import os
import pathlib
import re
import subprocess
import urllib.request

import conftest
from engine import until
from serve import OPERATIONS, started
from serving import serve

from kvtrunk.engine._server import free_port

PYTHON = os.environ.get("LMCACHE_PYTHON")
POSITION = 2 * 2 * 2 * 64 * 4  # bytes: layers, K and V, heads, dim, fp32
ENVIRONMENT = {"LMCACHE_TRACK_USAGE": "false"}


class Engine(conftest.Engine):
    interpreter = PYTHON
    program = pathlib.Path(__file__).name


class Pair:
    """A server with memory for `pages`, kept in chunks of `chunk` positions, and two engines."""

    def __init__(self, folder, logs, pages, chunk, **options):
        self.chunk, self.metrics = chunk, free_port()
        port = free_port()
        logs.mkdir()
        self.server = subprocess.Popen(
            [PYTHON, "-m", "lmcache.v1.multiprocess.server", f"--port={port}",
             f"--prometheus-port={self.metrics}", f"--chunk-size={chunk}",
             f"--l1-size-gb={pages * conftest.PAGE * POSITION / 2**30}",
             "--eviction-policy=LRU", "--supported-transfer-mode=engine_driven",
             f"--shm-name=kvtrunk{os.getpid()}_{port}"],
            stdout=(logs / "server.log").open("w"), stderr=subprocess.STDOUT,
            env={**os.environ, **ENVIRONMENT, "OMP_NUM_THREADS": "1"})
        transfer = {
            "kv_connector": "LMCacheMPConnector", "kv_role": "kv_both",
            "kv_connector_module_path": "lmcache.integration.vllm.lmcache_mp_connector",
            "kv_connector_extra_config": {"lmcache.mp.host": "tcp://localhost",
                                          "lmcache.mp.port": port, "lmcache.mp.mq_timeout": 60}}
        self.engines = [Engine(folder, logs / f"{i}.log", environment=ENVIRONMENT,
                               kv_transfer_config=transfer, **options) for i in range(2)]

    def _server_counts(self, name):
        said = urllib.request.urlopen(f"http://localhost:{self.metrics}/metrics").read().decode()
        return sum(map(float, re.findall(rf"^lmcache_mp_{name}(?:{{.*}})? (\S+)$", said, re.M)))

    def copied(self):
        """Bytes of KV that engines stored in the server, and loaded from it."""
        until(lambda: self._server_counts("event_bus_queue_depth") == 0)
        loaded = 0
        for engine in self.engines:
            engine.ask(do="metric", name="vllm:external_prefix_cache_hits")
            loaded += engine.answer()
        stored = self._server_counts("l1_write_chunks_total") * self.chunk
        return int(stored) * POSITION, int(loaded) * POSITION

    def end(self):
        for engine in self.engines:
            engine.kill()
        self.server.terminate()
        self.server.wait()


@contextlib.contextmanager
def pair(*arguments, **options):
    made = Pair(*arguments, **options)
    try:
        yield made
    finally:
        made.end()


def hide_symbols_of_llvm():
    """vLLM reads `__dict__` of all that modules hold; llvmlite takes any name for a symbol."""
    from llvmlite.binding import ffi

    def attribute(self, name, symbol=ffi._lib_wrapper.__getattr__):
        if name == "__dict__":
            raise AttributeError(name)
        return symbol(self, name)

    ffi._lib_wrapper.__getattr__ = attribute


if __name__ == "__main__":
    hide_symbols_of_llvm()
    serve(started, OPERATIONS)
