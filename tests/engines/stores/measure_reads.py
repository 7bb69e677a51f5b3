# SPDX-License-Identifier: Apache-2.0
"""Figures: what loads read from a distributed store, beside its client alone in the same run.

A computes prompts of 128 MiB, which B loads: the time of a BEGIN that waits for all of one. The
floor is the same client with the same batches, in two threads as a helper has, into memory that is
mapped as a store's, without kvtstored. With 30 ms, each call of the client takes so much longer.

    tests/engines/run stores --confcutdir=tests/engines/stores tests/engines/stores/measure_reads.py -s
"""
import argparse
import concurrent.futures
import contextlib
import json
import os
import pathlib
import shlex
import statistics
import subprocess
import sys
import threading
import time

import pytest
from afar import environment
from test_mooncake import running as mooncake

from kvtrunk import store, testing

PROMPT, PROMPTS, ROUNDS, BATCH, PAGE = 128 << 20, 3, 5, 16 << 20, 16
SEAL = 32


def slowed(seconds):
    """Mooncake with each call longer by so many seconds."""
    class Slow(store.Mooncake):
        def exists(self, pages):
            time.sleep(seconds)
            return super().exists(pages)

        def get(self, pages):
            time.sleep(seconds)
            return super().get(pages)

    return Slow if seconds else store.Mooncake


def options(arguments):
    """As a helper has them."""
    return store._parser().parse_args(arguments)  # pylint: disable=protected-access


class Side:
    """A daemon, a store and a worker."""

    def __init__(self, stack, page_bytes, helper, seconds):
        n = PROMPTS * PROMPT // page_bytes
        self.daemon = stack.enter_context(testing.daemon(page_bytes=page_bytes, n_pages=n + 64))
        command = [sys.executable, __file__, str(seconds), *helper]
        self.process = subprocess.Popen(
            [os.path.join(os.environ["KVTRUNK_BIN"], "kvtstored"), f"--socket={self.daemon.socket}",
             f"--ram-bytes={2 * PROMPTS * PROMPT >> 20}M", "--load-percent=100", "--min-positions=16",
             "--helper-wait-ms=60000", f"--helper={shlex.join(command)}"],
            env=environment(), stderr=subprocess.PIPE, text=True)
        stack.callback(self.stop)
        while "helper is ready" not in self.process.stderr.readline():
            assert self.process.poll() is None
        threading.Thread(target=self.process.stderr.read, daemon=True).start()
        self.client = stack.enter_context(self.daemon.connect(any_geometry=True, fetch_wait=60))
        self.namespace = self.client.namespace(model="reads")

    def stop(self):
        self.process.terminate()
        self.process.wait()

    def serve(self, tokens):
        """Seconds until all that is reused is there, and how much that is."""
        begun = time.monotonic()
        with self.namespace.begin(tokens) as sequence:
            took, reused = time.monotonic() - begun, sequence.reusable
            sequence.commit(len(tokens))
        return took, reused

    def forget(self):
        self.client.evict(self.client.info.n_pages)
        self.daemon.kvtctl("store", "drop")

    def count(self, name):
        return json.loads(self.daemon.kvtctl("store", "status", "--json"))[name]


def alone():
    """Print the bytes a second of the client by itself, for each prompt that is named."""
    seconds, page_bytes, path = float(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    keys = pathlib.Path(path).read_text(encoding="ascii").split()
    n, step = PROMPT // page_bytes, BATCH // page_bytes
    descriptor = os.memfd_create("memory")
    os.ftruncate(descriptor, n * (page_bytes + SEAL))
    memory = store.Memory(descriptor, n * (page_bytes + SEAL))
    memory.view[:] = bytes(memory.size)
    backend = slowed(seconds)(memory, options(sys.argv[5:]))
    print("ready", flush=True)
    for line in sys.stdin:
        number = int(line)
        names = keys[number * n:(number + 1) * n]
        pages = [store.Page(name, (store.Part(i * page_bytes, page_bytes),
                                   store.Part(n * page_bytes + i * SEAL, SEAL)))
                 for i, name in enumerate(names)]
        begun = time.monotonic()
        with concurrent.futures.ThreadPoolExecutor(2) as threads:
            for found in threads.map(backend.get, [pages[at:at + step]
                                                   for at in range(0, n, step)]):
                assert all(found)
        print(n * page_bytes / (time.monotonic() - begun), flush=True)


@pytest.mark.parametrize("seconds", (0.0, 0.03))
@pytest.mark.parametrize("page_bytes", (1 << 20, 64 << 10))
def test_loads(page_bytes, seconds, tmp_path, monkeypatch):
    n = PROMPT // page_bytes
    prompts = [[number * 1000000 + i for i in range(n * PAGE)] for number in range(PROMPTS)]
    monkeypatch.setenv("KVT_MEASURED_KEYS", str(tmp_path / "keys"))
    with mooncake() as master, contextlib.ExitStack() as stack:
        arguments = [*master.helper(0)[:-1], "1600M"]
        a = Side(stack, page_bytes, arguments, 0.0)
        monkeypatch.delenv("KVT_MEASURED_KEYS")
        b = Side(stack, page_bytes, [*arguments[:-1], "0"], seconds)
        for number, prompt in enumerate(prompts):
            a.serve(prompt)
            while a.count("helper_written_pages") < (number + 1) * n:
                time.sleep(0.01)
        floor, loads = [], []
        with subprocess.Popen([sys.executable, __file__, "alone", str(seconds), str(page_bytes),
                               str(tmp_path / "keys"), *arguments[:-1], "0"], env=environment(),
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                              bufsize=1) as client:
            assert client.stdout.readline() == "ready\n"
            # In turns: both see the same machine.
            for number, prompt in list(enumerate(prompts)) * ROUNDS:
                b.forget()
                print(number, file=client.stdin)
                floor.append(float(client.stdout.readline()))
                before = b.count("helper_read_pages")
                took, reused = b.serve(prompt)
                assert b.count("helper_read_pages") - before >= reused // PAGE
                loads.append(reused // PAGE * page_bytes / took)  # of a load that was late, less
            client.stdin.close()
        for name, of in ("median", statistics.median), ("best", max):
            print(f"\npages of {page_bytes >> 10} KiB, {seconds * 1000:.0f} ms, {name}: client "
                  f"alone {of(floor) / 1e9:.2f} GB/s, loads {of(loads) / 1e9:.2f} GB/s, "
                  f"{of(loads) / of(floor):.2f} of it")


def serve():
    """As kvtrunk.store, slowed. Notes the keys of what it stores."""
    seconds, arguments = float(sys.argv[1]), options(sys.argv[2:])
    path = os.environ.get("KVT_MEASURED_KEYS")

    class Noting(slowed(seconds)):
        def put(self, pages):
            with open(path or os.devnull, "a", encoding="ascii") as file:
                print(*(page.key for page in pages), file=file)
            return super().put(pages)

    store.serve(lambda memory: Noting(memory, arguments), kind="mooncake")


if __name__ == "__main__":
    if sys.argv[1] == "alone":
        alone()
    else:
        serve()
    os._exit(0)
