# SPDX-License-Identifier: Apache-2.0
"""bench/engines.py and bench/deaths.py, with --device cuda and --mps, on stand-ins: what a device would
run. tests/python/test_bench.py has what needs no engine."""
import contextlib
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import pytest
from test_vllm import BEHIND, VARIABLES

ROOT = pathlib.Path(__file__).resolve().parents[3]
WORDS = ["--device", "cuda", "--mps", "--pool-bytes", "1G", "--head", "100", "--answer", "1"]
PAGE, PROMPT = 64, 200


@pytest.fixture
def begin(folder, tmp_path):
    """Starts a bench."""
    short = tempfile.mkdtemp(prefix="kvt-")  # a socket's path is short

    def bench(name, *words, does=""):
        environment = {
            **os.environ, **VARIABLES, "PATH": f"{ROOT}/tests/engines/device/mps:{os.environ['PATH']}",
            "KVT_STANDIN_MEMORY": str(32 << 30), "TMPDIR": short, "STANDIN_MPS": does,
            "OMP_NUM_THREADS": "1", "KVTRUNK_CHECK_EVERY": "0"}
        return subprocess.Popen(
            [sys.executable, ROOT / f"bench/{name}.py", "vllm", folder, *WORDS, "--logs",
             tmp_path / "logs", *words, "--", *BEHIND], env=environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    yield bench
    left = []
    for path in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"TMPDIR={short}".encode() in (path / "environ").read_bytes():
                left.append((path / "cmdline").read_bytes())
    assert not left and not list(pathlib.Path(short).glob("kvt-bench-*"))
    shutil.rmtree(short)


def test_private_and_shared_caches_have_a_row(begin):
    said, error = begin("engines", "--engines", "1", "--configurations", "private,shared", "--loads",
                        "common", "--requests", "2", "--new", "20").communicate()
    header, _, *rows = (line.strip("| ").split(" | ") for line in said.splitlines())
    rows = [dict(zip(header, row, strict=True)) for row in rows]
    assert [row["configuration"] for row in rows] == ["private", "shared"], error
    assert {row["MiB"] for row in rows} == {"?"}  # no nvidia-smi
    assert {row["prompt tokens"] for row in rows} == {"240"}


def test_an_engines_death_that_takes_all_others_along_is_told(begin):
    said, error = begin("deaths", "--long", str(PROMPT), does="deadly").communicate()
    told = dict(line.split(": ", 1) for line in said.splitlines())
    assert told["the killed engine"].startswith("pages are back after "), error
    assert " 0 requests failed" not in told["the other one"]
    assert told["the store"] == "ended with -9"
    assert told["the cache"].startswith("unknown (no answer: ")
    cached, _, of, *_ = told["after the MPS server ended"].split()
    assert PAGE <= int(cached) < int(of) == PROMPT


def test_a_bench_that_is_ended_ends_all_that_it_started(begin, tmp_path):
    process = begin("engines")
    while not (tmp_path / "logs/one-1.log").exists():
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    process.communicate()
    assert process.returncode == 128 + signal.SIGTERM
