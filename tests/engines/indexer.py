# SPDX-License-Identifier: Apache-2.0
"""A router's index of KV events, and what it is compared with: the pool."""
import contextlib
import json
import os
import pathlib
import subprocess
import time
import urllib.request

import pytest
from conftest import PAGE
from engine import ANSWER_S, expect_nothing_held

from kvtrunk.engine._server import free_port

ENVIRONMENT = pathlib.Path(__file__).with_name("environment")
MODEL = "model"


class Indexer:
    """dynamo.indexer: it subscribes to engines as Dynamo's router does, and tells what it knows."""

    def __init__(self, process, port):
        self.process = process
        self._port = port

    def ask(self, path, **body):
        request = urllib.request.Request(f"http://127.0.0.1:{self._port}/{path}",
                                         json.dumps(body).encode() if body else None,
                                         {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.loads(answer.read() or "null")

    def register(self, worker, endpoint, replay):
        self.ask("register", instance_id=worker, model_name=MODEL, block_size=PAGE,
                 endpoint=endpoint, replay_endpoint=replay)

    def unregister(self, worker):
        self.ask("unregister", instance_id=worker, model_name=MODEL)

    def blocks(self, worker):
        """How many it knows of a worker."""
        found = set()
        for told in self.ask("dump").get(f"{MODEL}:default", {"events": []})["events"]:
            if told["worker_id"] == worker:
                stored = told["event"]["data"]["stored"]
                hashes = [block["block_hash"] for block in stored["blocks"]]
                assert not found.intersection(hashes)
                found.update(hashes)
        return len(found)

    def found(self, tokens, **namespace):
        """By worker, how many leading tokens it has."""
        scores = self.ask("query", model_name=MODEL, token_ids=tokens, **namespace)["scores"]
        return {int(worker): ranks["0"] for worker, ranks in scores.items()}


@contextlib.contextmanager
def indexer_of(log):
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    said = subprocess.run([ENVIRONMENT, "dynamo"], check=False, capture_output=True, text=True,
                          env=own)
    if said.returncode == 77:
        pytest.skip(said.stdout.splitlines()[-1].removeprefix("skip: "))
    assert said.returncode == 0, said.stderr
    port = free_port()
    with log.open("w") as output, subprocess.Popen(
            [said.stdout.splitlines()[-1], "-m", "dynamo.indexer", "--port", str(port)],
            stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=own) as process:
        made = Indexer(process, port)
        try:
            while True:
                try:
                    made.ask("workers")
                    break
                except OSError:
                    assert process.poll() is None, log.read_text()
                    time.sleep(0.02)
            yield made
        finally:
            process.kill()


def cached(daemon):
    """The pool's cached prompts that nothing continues, and the number of its pages, from shared
    memory."""
    pages, inner = {}, set()
    with daemon.connect(observe=True) as observer, observer.feed() as feed:
        feed.snapshot()
        for record in iter(feed.poll, None):
            if record.kind == "stored":
                parent = record.parent
                for i, page in enumerate(record.pages):
                    inner.add(parent)
                    pages[page] = [*pages.get(parent, ()),
                                   *record.keys[i * PAGE:(i + 1) * PAGE]]
                    parent = page
    return [keys for page, keys in pages.items() if page not in inner], len(pages)


def expect_index(indexer, daemon, workers, meanwhile=lambda: None):
    """At rest the index has for each worker exactly what the pool has: all its prompts to their
    ends, and as many pages. Returns how many. meanwhile() is called until it has."""
    expect_nothing_held(daemon)
    prompts, n = cached(daemon)
    end = time.monotonic() + ANSWER_S
    while True:
        meanwhile()
        known = {worker: indexer.blocks(worker) for worker in workers}
        lacks = [(len(keys), found) for keys in prompts for found in [indexer.found(keys)]
                 if any(found.get(worker) != len(keys) for worker in workers)]
        if not lacks and set(known.values()) == {n}:
            return n
        assert time.monotonic() < end, (n, known, lacks)
        time.sleep(0.05)


@pytest.fixture(scope="module")
def indexer(tmp_path_factory):
    with indexer_of(tmp_path_factory.mktemp("indexer") / "log") as made:
        yield made
