# SPDX-License-Identifier: Apache-2.0
"""What the doctor commands of all engines say of a daemon and its clients."""
import contextlib
import os
import signal

import pytest
from conftest import GEOMETRY

from kvtrunk import _doctor, testing

BEGUN = """
client = kvtrunk.connect(socket, any_geometry=True, label="an engine")
namespace = client.namespace(model="m")
sequence = namespace.begin(list(range(20)))
say("begun")
"""


@pytest.fixture
def examine(capsys):
    """Its number of findings, and what it says."""
    def run(socket, device="cpu"):
        report = _doctor.Report()
        info = _doctor.daemon(report, str(socket), device, "flags MODEL")
        return report.wrong, info, capsys.readouterr().out
    return run


@pytest.fixture
def daemon():
    with testing.daemon(n_pages=64, **GEOMETRY) as made:
        yield made


@contextlib.contextmanager
def stopped(pid):
    os.kill(pid, signal.SIGSTOP)
    try:
        os.waitpid(pid, os.WUNTRACED)
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def test_a_daemon_and_a_client_that_are_well(daemon, child, examine):
    assert child(daemon, BEGUN + "input()").hear() == "begun"
    wrong, info, said = examine(daemon.socket)
    assert (wrong, info.n_pages) == (0, 64)
    assert f"pid {info.daemon_pid}" in said and f"fingerprint {info.fingerprint}" in said
    assert "can be mapped here" in said


def test_a_daemon_that_is_not_there(tmp_path, examine):
    wrong, info, said = examine(tmp_path / "none")
    assert (wrong, info) == (1, None)
    assert "WRONG no daemon" in said and "start what `flags MODEL` prints" in said


def test_a_pool_that_is_elsewhere(daemon, examine):
    wrong, _, said = examine(daemon.socket, "cuda")
    assert wrong == 1
    assert "the pool is host memory, and the engine computes on cuda" in said


def test_pages_of_no_known_geometry(examine):
    with testing.daemon(page_bytes=4096) as made:
        wrong, info, said = examine(made.socket)
    assert (wrong, info.geometry) == (1, None)
    assert "page_bytes and no geometry" in said


def test_a_stopped_engine_that_holds_pages(daemon, child, examine):
    engine = child(daemon, BEGUN + "input()")
    assert engine.hear() == "begun"
    with stopped(engine.process.pid):
        wrong, _, said = examine(daemon.socket)
    assert wrong == 1
    assert f"an engine, pid {engine.process.pid}, is stopped, and its session holds 1 leases" in said
    assert f"kill -CONT {engine.process.pid}" in said
    assert examine(daemon.socket)[0] == 0


def test_a_stopped_process_that_holds_nothing(daemon, child, examine):
    idle = child(daemon, "client = kvtrunk.connect(socket, any_geometry=True)\nsay('here')\ninput()")
    assert idle.hear() == "here"
    with stopped(idle.process.pid):
        assert examine(daemon.socket)[0] == 0


def test_a_process_that_outlives_its_session(daemon, child, examine):
    gone = child(daemon, BEGUN + "import os\nos.execvp('cat', ['cat'])")
    assert gone.hear() == "begun"
    with daemon.connect(any_geometry=True) as client:
        while not client.stats().quarantined_pages:
            pass
    wrong, _, said = examine(daemon.socket)
    assert wrong == 1
    assert f"an engine, pid {gone.process.pid}, keeps" in said and "kvtctl fence" in said
