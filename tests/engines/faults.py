# SPDX-License-Identifier: Apache-2.0
"""Pages of the pool, for tests that damage them: test_faults.py of each kind of engine."""
import contextlib
import json
import os
import subprocess

from conftest import PAGE
from engine import counters, expect_nothing_held, prompt, until

from kvtrunk import testing


def layers(observer, slab=0):
    """K and V of each layer of a slab, as torch tensors of the daemon's type."""
    import torch

    pool = observer.map_pool(slab)
    return [torch.from_dlpack(part) for layer in pool.layers() for part in (layer.k, layer.v)]


def bits(part):
    """Values as integers: a NaN equals nothing."""
    import torch

    return part.view(torch.int32 if part.itemsize == 4 else torch.int16)


def snapshot(observer):
    """The bits of all pages, for changed()."""
    return [bits(part).clone() for part in layers(observer)]


def changed(before, observer):
    """Pages that are not as in a snapshot, but for page 0, which is scratch."""
    return {page for was, part in zip(before, layers(observer))
            for page in range(1, len(part)) if not was[page].equal(bits(part)[page])}


class Scrubber:
    """A store that keeps nothing and reads the pool of a daemon again and again."""

    def __init__(self, daemon):
        self.daemon = daemon
        self.process = subprocess.Popen([testing.program("kvtstored"), "--socket", daemon.socket,
                                         "--ram-bytes", "0", "--scrub", "1G"])
        until(os.path.exists, f"{daemon.socket.removesuffix('.sock')}.store")

    def status(self):
        """An alarm makes its exit status 1."""
        return json.loads(subprocess.run(
            [testing.program("kvtctl"), f"--socket={self.daemon.socket}", "store", "status", "--json"],
            stdout=subprocess.PIPE, text=True).stdout)

    def read_all(self):
        """Wait until all that is cached was read again: each fourth may be of the round."""
        enough = self.status()["scrubbed_pages"] + 4 * counters(self.daemon).cached_pages
        until(lambda: self.status()["scrubbed_pages"] >= enough)

    def found(self):
        return self.status()["damaged_pages"]


@contextlib.contextmanager
def scrubber(daemon):
    scrubber = Scrubber(daemon)
    try:
        yield scrubber
    finally:
        scrubber.process.terminate()
        assert scrubber.process.wait() == 0


def stored_by(daemon, engine, text):
    """The pages that an engine computes of a prompt, from the first on."""
    with daemon.connect(any_geometry=True) as observer, observer.feed() as feed:
        while feed.poll() is not None:
            pass
        engine.generate(text)
        expect_nothing_held(daemon)
        pages = []
        while (record := feed.poll()) is not None:
            pages += record.pages if record.kind == "stored" else ()
    return pages


def test_no_engine_writes_a_sealed_page_and_what_else_does_is_found(daemon, engines):
    """A scrubber beside two engines of any kind: chunked prompts and batches, in both at once, reused
    and continued. Fixtures as in sharing.py, whose tests come before."""
    _, a, b = engines
    head, asked = prompt(7401, 150), {}
    for i, engine in enumerate((a, b)):
        texts = [head + prompt(7410 + 10 * i + j, 20 + 60 * j) for j in range(3)]
        asked[engine] = [*texts, prompt(7402, 400)]  # the last one in both
    with scrubber(daemon) as store:
        for _ in range(2):  # computed, then reused
            for engine, texts in asked.items():
                engine.ask(do="generate", prompts=texts, max_tokens=40)
            for engine in asked:
                engine.answer()
            store.read_all()
        assert store.found() == 0
        text = prompt(7403, 600)
        page = stored_by(daemon, a, text)[0]
        store.read_all()
        with daemon.connect(any_geometry=True) as observer:
            bits(layers(observer)[0])[page, 0, 0, 0] ^= 1
        until(lambda: store.found() == 1)
        assert b.generate(text)[0]["cached"] == 0
    expect_nothing_held(daemon)


def sealed_by(daemon, engine, text):
    """The pages that an engine computes of a prompt, in order, and what it generates."""
    with daemon.connect(any_geometry=True) as observer:
        before = snapshot(observer)
        tokens = engine.generate(text)[0]["tokens"]
        expect_nothing_held(daemon)
        pages = changed(before, observer)
    found = [(json.loads(daemon.kvtctl("--json", "page", str(page))), page) for page in pages]
    return [page for _, page in sorted(
        (row["position"], page) for row, page in found if row["state"] == "cached")][
            :len(text) // PAGE], tokens
