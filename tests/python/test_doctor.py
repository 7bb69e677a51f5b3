# SPDX-License-Identifier: Apache-2.0
"""Reports of the doctor commands of all engines on a daemon and its clients."""
import json
import os
import subprocess

import pytest
from conftest import GEOMETRY
from stores import stopped

import kvtrunk
from kvtrunk import testing
from kvtrunk.engine import _doctor

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


def test_a_daemon_that_is_stopped(daemon, examine, monkeypatch):
    monkeypatch.setattr(_doctor, "ANSWER_S", 0.1)
    with kvtrunk.connect(daemon.socket, observe=True) as client:
        pid = client.info.daemon_pid
    with stopped(pid):
        wrong, info, said = examine(daemon.socket)
    assert (wrong, info) == (1, None)
    assert "WRONG starting: no answer to HELLO in time" in said
    assert f"      the daemon is stopped, and kill -CONT {pid} continues it" in said


def test_a_socket_that_names_a_device(examine):
    wrong, _, said = examine("/nowhere/gpu{device}.sock")
    assert wrong == 1 and "WRONG the option socket is /nowhere/gpu{device}.sock, and" in said
    assert "      write the name of the socket without {device}" in said
    assert "/nowhere/gpu0.sock" in examine("/nowhere/gpu{device}.sock", "cuda")[2]


def test_a_pool_that_is_elsewhere(daemon, examine):
    wrong, _, said = examine(daemon.socket, "cuda")
    assert wrong == 1
    assert "the pool is host memory, and the engine computes on cuda" in said


def test_pages_of_no_known_geometry(examine):
    with testing.daemon(page_bytes=4096) as made:
        wrong, info, said = examine(made.socket)
    assert (wrong, info.geometry) == (1, None)
    assert "page_bytes and no geometry" in said


def test_an_engine_whose_pages_are_suspected(daemon, examine):
    with daemon.connect(any_geometry=True, label="culprit") as one, \
            daemon.connect(any_geometry=True, label="witness") as two:
        one.namespace().begin(range(40)).end(40)
        assert examine(daemon.socket)[0] == 0
        with two.namespace().match(range(40), lock=True).lease as lease:
            page = lease.pages[0]
            assert two.sealer(page) == one.info.sealer != two.info.sealer
            assert two.suspect(page) == two.suspect(page) == one.info.session
        with pytest.raises(kvtrunk.InvalidArgument, match="not cached"):
            two.sealer(0)
        assert two.stats().suspected_pages == 2
        rows = {row["label"]: row for row in json.loads(subprocess.run(
            [testing.program("kvtctl"), "--socket", daemon.socket, "--json", "clients"],
            capture_output=True, check=True).stdout)}
        assert (rows["culprit"]["suspected"], rows["culprit"]["suspects"]) == (2, 0)
        assert (rows["witness"]["suspected"], rows["witness"]["suspects"]) == (0, 2)
        wrong, _, said = examine(daemon.socket)
        assert wrong == 1 and "culprit, pid" in said and "2 reports" in said


def test_a_stopped_engine_that_holds_pages(daemon, child, examine):
    engine = child(daemon, BEGUN + "input()")
    assert engine.hear() == "begun"
    with stopped(engine.process.pid):
        wrong, _, said = examine(daemon.socket)
    assert wrong == 1
    assert f"an engine, pid {engine.process.pid}, is stopped, and its session holds 1 lease" in said
    assert f"kill -CONT {engine.process.pid}" in said
    assert examine(daemon.socket)[0] == 0


def test_a_store(daemon, examine):
    assert "ok    no store" in examine(daemon.socket)[2]
    kvtstored = os.path.join(os.environ["KVTRUNK_BIN"], "kvtstored")
    with subprocess.Popen([kvtstored, f"--socket={daemon.socket}", "--ram-bytes=1M"],
                          stderr=subprocess.PIPE, text=True) as store:
        try:
            assert "serving" in store.stderr.readline()
            wrong, _, said = examine(daemon.socket)
            assert wrong == 0
            assert "ok    a store with 0 pages, which answered 0 of 0 fetches" in said
            with stopped(store.pid):
                wrong, _, said = examine(daemon.socket)
            assert wrong == 1 and ".store: the store does not answer" in said
            assert f"\n      it is stopped, and kill -CONT {store.pid} continues it" in said
        finally:
            store.kill()
    wrong, _, said = examine(daemon.socket)
    assert wrong == 1 and "is gone and has left its socket\n      start kvtstored" in said


def test_a_store_that_is_wrong(daemon, examine, monkeypatch):
    def told(_, *words):
        assert words[0] == "store"
        return subprocess.CompletedProcess(words, 1, json.dumps(answer), "")
    with daemon.connect(any_geometry=True) as client:
        answer = {"instance": client.info.instance, "alarm": "nothing was loaded for 2 h"}
    monkeypatch.setattr(_doctor, "_look_at_clients", lambda *_: None)
    monkeypatch.setattr(_doctor, "_kvtctl", told)
    wrong, _, said = examine(daemon.socket)
    assert wrong == 1 and "WRONG the store: nothing was loaded for 2 h\n      docs/stores.md" in said
    answer["instance"] = "0" * 32
    wrong, _, said = examine(daemon.socket)
    assert wrong == 1 and "serves another daemon" in said


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
