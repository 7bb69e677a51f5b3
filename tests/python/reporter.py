# SPDX-License-Identifier: Apache-2.0
"""A plug-in of pytest: each result is a line that tests/run counts."""
import pytest

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
        if report.skipped and isinstance(report.longrepr, tuple):  # (file, line, "Skipped: reason")
            REPORTERS[0].write_line(f"skip: {report.longrepr[2].removeprefix('Skipped: ')}")
        REPORTERS[0].write_line(f"[ {word} ] {name}")
