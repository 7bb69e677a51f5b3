# SPDX-License-Identifier: Apache-2.0
"""Instances that share nothing but a distributed store, which the tests start themselves."""
import contextlib
import hashlib
import itertools
import json
import os
import pathlib
import shlex
import struct
import subprocess
import sys
import threading

import pytest

from kvtrunk import testing
from kvtrunk._native import ffi, lib

N, PAGE, PAGE_BYTES = 1024, 16, 1024
COUNTS = ("ready", "starts", "read_pages", "bad_pages", "written_pages", "dropped_pages",
          "refused_pages", "garbage")
ROOT = pathlib.Path(sys.prefix) / "root"


def environment(**more):
    """With the libraries that tests/engines/environment unpacked."""
    folders = {str(path.parent) for path in ROOT.rglob("*.so*")}
    return {**os.environ, "LD_LIBRARY_PATH": os.pathsep.join(sorted(folders)), **more}


def program(path):
    """A server of the distribution or of the environment, which runs here."""
    said = subprocess.run([path, "--help"], env=environment(), capture_output=True, text=True,
                          check=False)
    if "error while loading shared libraries" in said.stderr:
        pytest.skip(said.stderr.strip())
    return path


def content(tokens, page):
    """The bytes of a page, which depend on all keys up to its end."""
    digest = hashlib.sha256(repr(list(tokens[:(page + 1) * PAGE])).encode()).digest()
    return digest * (PAGE_BYTES // len(digest))


class Side:
    """A daemon, its store, and a worker that checks all bytes."""

    def __init__(self, daemon, helper, **options):
        self.daemon = daemon
        self.command = [os.path.join(os.environ["KVTRUNK_BIN"], "kvtstored"),
                        f"--socket={daemon.socket}", "--ram-bytes=2M", "--min-positions=64",
                        f"--helper={shlex.join([sys.executable, '-m', 'kvtrunk.store', *helper])}",
                        *(f"--{name.replace('_', '-')}={value}" for name, value in
                          options.items())]
        self.client = daemon.connect(any_geometry=True, fetch_wait=60)
        native = ffi.new("struct kvt_pool *")
        assert lib.kvt_pool_map(self.client._handle, native) == 0
        self.pool = ffi.buffer(native.base, native.bytes)
        self.namespace = self.client.namespace(model="stores")

    def start(self):
        self.process = subprocess.Popen(self.command, env=environment(), stderr=subprocess.PIPE,
                                        text=True)
        assert "serving" in self.process.stderr.readline()
        self.reader = threading.Thread(target=self.process.stderr.read)  # it must not fill up
        self.reader.start()
        self.await_counts(lambda counts: counts["ready"])

    def stop(self):
        self.process.terminate()
        assert self.process.wait() == 0
        self.reader.join()
        self.process.stderr.close()
        self.client.close()
        print(self.daemon.kvtctl("audit"))

    def counts(self):
        """The store's counters of its helper."""
        # Its exit status is 1 while there is an alarm.
        command = [os.path.join(os.environ["KVTRUNK_BIN"], "kvtctl"), "--socket",
                   self.daemon.socket, "store", "status", "--json"]
        said = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=False).stdout)
        return {name: said[f"helper_{name}"] for name in COUNTS}

    def await_counts(self, good):
        while not good(counts := self.counts()):
            assert self.process.poll() is None
        return counts

    def names(self, tokens):
        """The keys of a prompt's pages, by the rule of store/chain.h."""
        info = self.client.info
        parent = hashlib.sha256(
            b"kvtrunk-store-1\0" + struct.pack("<QII", PAGE_BYTES, PAGE, 1) +
            info.fingerprint.encode() + b"\0" + struct.pack("<2QQ", *self.namespace.digest, 0))
        made = []
        for i in range(0, len(tokens), PAGE):
            parent = hashlib.sha256(parent.digest() +
                                    struct.pack(f"<{PAGE}I", *tokens[i:i + PAGE]))
            made.append(f"kvt:{parent.hexdigest()[:32]}")
        return made

    def serve(self, tokens):
        """As a worker does. Returns the positions that were reused; all their bytes are right."""
        with self.namespace.begin(tokens) as sequence:
            reused, pages = sequence.reusable, list(sequence.pages)
            for i, page in enumerate(pages[:len(tokens) // PAGE]):
                bytes_ = slice(page * PAGE_BYTES, (page + 1) * PAGE_BYTES)
                if i < reused // PAGE:
                    assert self.pool[bytes_] == content(tokens, i)
                else:
                    self.pool[bytes_] = content(tokens, i)
            sequence.commit(len(tokens))
        return reused

    def keep(self, tokens):
        """Serve a prompt that is new, and wait until it is stored."""
        before = self.await_counts(lambda counts: counts["ready"])["written_pages"]
        assert self.serve(tokens) == 0
        self.await_counts(lambda counts: counts["written_pages"] >= before + len(tokens) // PAGE)


@contextlib.contextmanager
def sides(helper_of, n=2, **options):
    """Instances with stores, whose helper has the arguments helper_of(i)."""
    with contextlib.ExitStack() as stack:
        made = []
        for i in range(n):
            daemon = stack.enter_context(testing.daemon())
            made.append(Side(daemon, helper_of(i), **{"helper_wait_ms": 60000, **options}))
            made[-1].start()
        try:
            yield made
        finally:
            for side in made:
                side.stop()


def until_shared(a, b, first):
    """Serve new prompts in a, until b loads one: what failed may need time to work again."""
    for number in itertools.count(first):
        before = a.await_counts(lambda counts: counts["ready"])
        a.serve(prompt(number))
        a.await_counts(lambda counts: sum(counts[name] - before[name] for name in (
            "written_pages", "dropped_pages", "refused_pages")) >= N // PAGE)
        b.await_counts(lambda counts: counts["ready"])
        if b.serve(prompt(number)) == N - PAGE:
            return


def prompt(number):
    return [number * 100000 + i for i in range(N)]
