# SPDX-License-Identifier: Apache-2.0
"""pytest fixtures, by the entry point pytest11."""
from __future__ import annotations

from typing import Iterator

import pytest

from . import Client, testing


@pytest.fixture
def kvtrunk_daemon() -> Iterator[testing.Daemon]:
    """A daemon for one test: 4,096 pages of 16 positions and 1,024 bytes."""
    with testing.daemon() as daemon:
        yield daemon


@pytest.fixture
def kvtrunk_client(kvtrunk_daemon: testing.Daemon) -> Iterator[Client]:
    """A client of kvtrunk_daemon."""
    with kvtrunk_daemon.connect() as client:
        yield client
