# SPDX-License-Identifier: Apache-2.0
"""A store beside a daemon: evicted pages come back, for begin() and for schedulers."""
import contextlib
import json
import os
import subprocess

import pytest

from kvtrunk import testing

N = 1024


@contextlib.contextmanager
def running_store(daemon):
    program = os.path.join(os.environ["KVTRUNK_BIN"], "kvtstored")
    process = subprocess.Popen([program, f"--socket={daemon.socket}", "--ram-bytes=1M"],
                               stderr=subprocess.PIPE, text=True)
    try:
        assert "serving" in process.stderr.readline()
        yield f"{daemon.socket}.store"
    finally:
        process.terminate()
        process.stderr.close()
        assert process.wait() == 0


def await_pages(daemon, n):
    """Ask the store until it has n pages and nothing waits."""
    ask = [testing.program("kvtctl"), "--socket", daemon.socket, "--json", "store", "status"]
    while True:
        counts = json.loads(subprocess.run(ask, capture_output=True, check=True).stdout)
        if counts["pages"] == n and counts["queued_pages"] == counts["open_loads"] == 0:
            return


def publish(namespace, tokens):
    with namespace.begin(tokens) as sequence:
        reused = sequence.reusable
        sequence.commit(len(tokens))
    return reused


@pytest.fixture
def daemon():
    with testing.daemon() as made:
        yield made


def test_begin_reuses_what_the_store_loads(daemon):
    with running_store(daemon), daemon.connect(fetch_wait=60) as client:
        namespace = client.namespace(model="store")
        assert publish(namespace, range(N)) == 0
        await_pages(daemon, N // 16)
        client.evict(4095)
        assert publish(namespace, range(N)) == N - 16
        await_pages(daemon, N // 16)
        client.evict(4095)
        with daemon.connect(fetch_wait=0) as other:
            assert publish(other.namespace(model="store"), range(N)) == 0


def test_a_scheduler_fetches_when_a_request_arrives(daemon):
    with daemon.connect(fetch_wait=60) as client:
        namespace = client.namespace(model="store")
        assert not namespace.fetch(range(N))
        assert client.fetched() is None
    with running_store(daemon) as path, daemon.connect(fetch_wait=60, store=path) as client:
        namespace = client.namespace(model="store")
        publish(namespace, range(N))
        await_pages(daemon, N // 16)
        client.evict(4095)
        assert namespace.fetch(range(N), tag=7)
        fetched = None
        while fetched is None:
            fetched = client.fetched()
        assert fetched[:3] == (7, 0, N)
        await_pages(daemon, N // 16)
        assert namespace.match(range(N)).positions == N
        assert not namespace.fetch(range(N))
