# SPDX-License-Identifier: Apache-2.0
"""bench/engines.py beside a stand-in for the control program of MPS. tests/engines/device/test_bench.py
runs it with engines."""
import importlib.util
import os
import pathlib
import shutil
import signal
import tempfile
import threading

import pytest

import kvtrunk
from kvtrunk.engine import _server

ROOT = pathlib.Path(__file__).resolve().parents[2]
VARIABLES = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"


@pytest.fixture
def bench(monkeypatch):
    """The bench as a module."""
    spec = importlib.util.spec_from_file_location("engines", ROOT / "bench/engines.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    known = {each: signal.getsignal(each) for each in (*module.ENDING, signal.SIGALRM)}
    monkeypatch.setenv("PATH", f"{ROOT}/tests/engines/device/mps:{os.environ['PATH']}")
    yield module
    for number, handler in known.items():
        signal.signal(number, handler)


def expect_nothing_left(bench, folder):
    assert not bench.mps_processes(folder / "pipe")
    assert not (folder / "pipe").exists()
    assert not set(VARIABLES) & set(os.environ)


def test_mps_runs_in_the_block_and_then_nothing_of_it_is_left(bench, tmp_path):
    with bench.mps(tmp_path, tmp_path):
        assert bench.mps_processes(tmp_path / "pipe")
        assert os.environ["CUDA_MPS_PIPE_DIRECTORY"] == str(tmp_path / "pipe")
    expect_nothing_left(bench, tmp_path)
    with bench.mps(tmp_path, tmp_path):  # and again in the same folder
        assert bench.mps_processes(tmp_path / "pipe")
    expect_nothing_left(bench, tmp_path)


@pytest.mark.parametrize("fault, says", [
    ("start-fails", "status 1: An instance of this daemon is already running"),
    ("start-hangs", "-d: no end after 1 s"), ("absent", "nvidia-cuda-mps-control")])
def test_mps_that_does_not_start_is_named(bench, tmp_path, monkeypatch, fault, says):
    monkeypatch.setenv("STANDIN_MPS", fault)
    if fault == "start-hangs":
        bench.END_S = 1
    if fault == "absent":
        monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SystemExit, match=f"^--mps: .*{says}"), bench.mps(tmp_path, tmp_path):
        pytest.fail("it started")
    expect_nothing_left(bench, tmp_path)


@pytest.mark.parametrize("fault", ["quit-hangs", "stays"])
def test_mps_that_does_not_end_is_killed(bench, tmp_path, monkeypatch, fault):
    monkeypatch.setenv("STANDIN_MPS", fault)
    with bench.mps(tmp_path, tmp_path):
        bench.END_S = 1
    expect_nothing_left(bench, tmp_path)


def test_signals_and_the_limit_end_the_block_and_do_not_disturb_what_is_outside(bench):
    with pytest.raises(_server.Failed, match="--limit"), bench.bounded(1):
        threading.Event().wait()
    with pytest.raises(SystemExit, match=str(128 + signal.SIGTERM)), bench.bounded(0):
        signal.raise_signal(signal.SIGTERM)
    signal.raise_signal(signal.SIGINT)
    with pytest.raises(SystemExit, match=str(128 + signal.SIGINT)), bench.bounded(0):
        pytest.fail("it began")


@pytest.mark.parametrize("says, mib", [
    ("echo 1234; echo 5", 1234), ("echo '[N/A]'", "?"), ("exit 9", "?"), ("exec sleep 1000", "?"),
    (None, "?")])
def test_memory_that_nvidia_smi_does_not_tell_is_unknown(bench, tmp_path, monkeypatch, says, mib):
    if says and "sleep" in says:
        bench.END_S = 1
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    if says:
        program = tmp_path / "nvidia-smi"
        program.write_text(f"#!/bin/sh\n{says}\n")
        program.chmod(0o755)
    assert bench.memory("cuda", []) == mib


def test_a_daemon_that_ends_is_named_with_its_log(bench, tmp_path):
    with pytest.raises(_server.Failed, match="(?s)kvtrunkd ended: .*no-such-option"), \
            bench.daemon(["kvtrunkd", "--no-such-option=1"], tmp_path, tmp_path / "log"):
        pytest.fail("it serves")


def test_a_printed_folder_of_the_daemon_gives_way(bench, tmp_path):
    words = ["kvtrunkd", "--n-layers=1", "--n-kv-heads=1", "--head-dim=64", "--n-pages=64",
             "--runtime-dir=/nonexistent"]
    folder = pathlib.Path(tempfile.mkdtemp(prefix="kvt-"))  # a socket's path is short
    with bench.daemon(words, folder, tmp_path / "log") as (socket, _):
        kvtrunk.connect(socket, observe=True).close()
    shutil.rmtree(folder)
