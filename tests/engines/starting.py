# SPDX-License-Identifier: Apache-2.0
"""Starting an engine changes no cached page: test_start.py of each kind of engine imports this.
conftest.STARTS has options by which engines run other code before their first request.

Engines warm up: they profile, capture graphs and run each kernel once, on block numbers of their
own choice. In a shared pool these are pages of others."""
import pytest
from conftest import STARTS
from engine import until

from kvtrunk.engine._pages import Pattern


@pytest.fixture(scope="module")
def full(daemon):
    """A pool full of sealed pages, a pattern in each: the client that sealed them, and they."""
    with daemon.connect() as client:
        yield client, Pattern(client, client.stats().free_pages)


@pytest.mark.parametrize("options", STARTS.values(), ids=STARTS)
def test_starting_an_engine_changes_no_cached_page(options, daemon, full, start):
    client, pattern = full
    for _ in range(2):
        engine = start(daemon, **options).wait()
        engine.kill()
        until(lambda: client.stats().live_sessions == 1)
        assert daemon.kvtctl("audit").startswith("clean")
        assert not pattern.changed()
