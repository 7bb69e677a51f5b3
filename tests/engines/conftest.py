# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the tests of all engines."""
import os
import time

import pytest

pytest.register_assert_rewrite("engine", "faults", "indexer", "kills", "ranks", "routed", "router",
                              "sharing", "storing")


def pytest_collection_modifyitems(items):
    """First what an engine is run for, lest the time ends before it."""
    items.sort(key=lambda item: item.path.stem != "test_share")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup():
    """Before a fixture starts an engine."""
    if time.time() > float(os.environ.get("ENGINES_UNTIL", "inf")):
        pytest.skip(f"not begun within ENGINES_SECONDS={os.environ['ENGINES_SECONDS']}")


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    import model  # tests of stores have no numpy

    return model.write(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def start(engine_class, folder, tmp_path_factory):
    """Start engines; they end with the module."""
    logs = tmp_path_factory.mktemp("logs")
    made = []

    def begin(daemon=None, **options):
        made.append(engine_class(options.pop("folder", folder), logs / f"{len(made)}.log", daemon,
                                 **options))
        return made[-1]

    yield begin
    for engine in made:
        engine.kill()
