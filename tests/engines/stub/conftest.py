# SPDX-License-Identifier: Apache-2.0
"""The engine of examples/python/batching.py, and the daemon whose pool it shares: what it needs is
what any engine needs."""
import pathlib

import engine
import pytest

from kvtrunk import testing

HERE = pathlib.Path(__file__).resolve().parent
PAGE, PAGES = 16, 256
KILLS = [(operation, "serve.py") for operation in ("BEGIN", "COMMIT", "EXTEND", "END")]
SMALL = {}
NEW_EPOCH = "forget"


class Engine(engine.Engine):
    """serve.py."""

    def __init__(self, folder, log, daemon=None, environment=()):
        super().__init__(HERE / "serve.py", folder, log, {}, dict(environment), daemon)


@pytest.fixture(scope="session")
def engine_class():
    return Engine


@pytest.fixture(scope="session")
def folder():
    """Its weights are in the example."""
    return HERE


OPTIONS = {"n_layers": 2, "n_kv_heads": 2, "head_dim": 16, "kv_type": "fp32", "page_size": PAGE,
           "n_pages": PAGES, "coalesce_threshold": 0, "coalesce_patience_ms": 30000}
"""Options of a daemon. Requests wait also for the last chunk of a prompt."""


@pytest.fixture(scope="module")
def daemon():
    """With a supervisor: killed, it continues."""
    with testing.daemon(supervise=True, **OPTIONS) as made:
        yield made
