# SPDX-License-Identifier: Apache-2.0
"""What the tests of all engines share."""
import model
import pytest

pytest.register_assert_rewrite("engine", "kills", "sharing")


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
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
