# SPDX-License-Identifier: Apache-2.0
"""examples/python/proxy.py before two servers: prefill in one, decode in the other."""
import contextlib
import json
import pathlib
import subprocess
import sys
import time
import urllib.error
import urllib.request

from kvtrunk.engine._server import free_port

PROXY = pathlib.Path(__file__).parents[2] / "examples/python/proxy.py"


@contextlib.contextmanager
def proxy(prefill, decode):
    """The function that asks it, for ports of servers: path and body -> answer's text."""
    port = free_port()

    def ask(path, body=None):
        request = urllib.request.Request(f"http://127.0.0.1:{port}{path}",
                                         None if body is None else json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=300) as answer:
            return answer.read().decode()

    process = subprocess.Popen([sys.executable, str(PROXY), f"http://127.0.0.1:{prefill}",
                                f"http://127.0.0.1:{decode}", str(port)])
    try:
        while True:
            try:
                ask("/health")
                break
            except urllib.error.HTTPError:
                raise
            except (urllib.error.URLError, ConnectionError):
                assert process.poll() is None
                time.sleep(0.1)
        yield ask
    finally:
        process.kill()
        process.wait()
