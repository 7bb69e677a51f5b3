# SPDX-License-Identifier: Apache-2.0
"""Pages of the pool, for tests that damage them: test_faults.py of each kind of engine."""
import contextlib
import json
import os
import subprocess

from conftest import PAGE
from engine import counters, expect_nothing_held, until

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
    """Pages that are not as in a snapshot, but for page 0, which is nobody's."""
    return {page for was, part in zip(before, layers(observer))
            for page in range(1, len(part)) if not was[page].equal(bits(part)[page])}


@contextlib.contextmanager
def scrubber(daemon):
    """A store that keeps nothing and reads the pool again and again. Yields a function that waits
    until all that is cached was read."""
    store = subprocess.Popen([testing.program("kvtstored"), "--socket", daemon.socket,
                              "--ram-bytes", "0", "--scrub", "1G"])

    def status():
        return json.loads(daemon.kvtctl("store", "status", "--json"))

    def read_all():
        enough = status()["scrubbed_pages"] + 4 * counters(daemon).cached_pages
        until(lambda: status()["scrubbed_pages"] >= enough)

    try:
        until(lambda: os.path.exists(f"{daemon.socket.removesuffix('.sock')}.store"))
        yield read_all
    finally:
        store.terminate()
        assert store.wait() == 0


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
