# SPDX-License-Identifier: Apache-2.0
"""Starting an engine changes no cached page: test_start.py of each kind of engine imports this.
conftest.STARTS has options by which engines run other code before their first request.

Engines warm up: they profile, capture graphs and run each kernel once, on block numbers of their
own choice. In a shared pool these are pages of others."""
import pytest
from conftest import PAGE, STARTS
from engine import expect_nothing_held
from faults import bits, changed, layers, snapshot


@pytest.fixture(scope="module")
def full(daemon):
    """A pool full of sealed pages, a pattern in each: the client that sealed them, their keys and
    namespace, and the bits of all pages."""
    import torch

    with daemon.connect(any_geometry=True) as client:
        space = client.namespace(salt="pattern")
        keys = list(range(client.stats().free_pages * PAGE))
        with space.begin(keys) as seq:
            for i, part in enumerate(layers(client)):
                values = bits(part)
                values[1:] = torch.arange(i, i + values[1:].numel()).reshape(values[1:].shape)
            seq.commit(len(keys))
        yield client, space, keys, snapshot(client)


@pytest.mark.parametrize("options", STARTS.values(), ids=STARTS)
def test_starting_an_engine_changes_no_cached_page(options, daemon, full, start):
    client, space, keys, before = full
    for _ in range(2):
        engine = start(daemon, **options).wait()
        engine.kill()
        expect_nothing_held(daemon)
    assert space.match(keys).positions == len(keys)
    assert not changed(before, client)
