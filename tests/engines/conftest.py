# SPDX-License-Identifier: Apache-2.0
"""What the tests of all engines share. Each result is a line that tests/run counts."""
import model
import pytest

pytest.register_assert_rewrite("engine", "sharing")
REPORTERS = []


@pytest.hookimpl(trylast=True)
def pytest_configure(config):
    REPORTERS.append(config.pluginmanager.get_plugin("terminalreporter"))


@pytest.hookimpl(tryfirst=True)
def pytest_report_teststatus(report):
    return (report.outcome, "", "") if report.when == "call" or report.skipped else None


@pytest.hookimpl(trylast=True)
def pytest_runtest_logreport(report):
    word = {"passed": "      OK", "failed": " FAILED", "skipped": "SKIPPED"}[report.outcome]
    if report.when == "call" or report.outcome != "passed":
        name = report.nodeid.split("::", 1)[-1].replace(" ", "_")
        REPORTERS[0].write_line(f"[ {word} ] {name}")


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
