# SPDX-License-Identifier: Apache-2.0
"""Whole vLLM engines beside a store: what the pool has lost comes back."""
import pytest
from conftest import geometry
from engine import started
from storing import (PATIENT, page, store,  # noqa: F401
                     test_a_daemon_that_starts_cold_is_filled_again,
                     test_a_load_that_is_interrupted_costs_a_computation,
                     test_what_an_engine_forgot_is_not_loaded,
                     test_what_other_traffic_evicted_is_loaded)

from kvtrunk import testing


@pytest.fixture(scope="module")
def daemon():
    with testing.daemon(**geometry(coalesce_threshold=0)) as made:  # it waits for whole loads
        yield made


@pytest.fixture(scope="module")
def engines(daemon, start):
    """One with a cache of its own, and two that share the daemon's pool."""
    return started(start(processes=1), start(daemon, environment=PATIENT),
                   start(daemon, processes=1, environment=PATIENT))
