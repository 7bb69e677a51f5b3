# SPDX-License-Identifier: Apache-2.0
"""`prove` with engines that are no engines: what it finds, and what it leaves."""
import contextlib
import itertools
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile

import pytest

from kvtrunk.engine import _server
from kvtrunk.engine._prove import most_positions
from kvtrunk.engine._server import Answer
from kvtrunk.engine._texts import Texts, distance, parting, text_of

ENGINE = str(pathlib.Path(__file__).with_name("fake_engine.py"))
DAEMON = {"n_layers": 1, "n_kv_heads": 1, "head_dim": 8, "kv_type": "fp32", "kv_layout": "nhd",
          "kv_order": "layer", "page_size": 16, "n_pages": 193, "coalesce_patience_ms": 30000}
# With a signal and a step: sends itself this signal twice in this step.
RUN = """
import json, os, sys, threading
from kvtrunk.engine import _prove, _texts

class Stderr:
    def __init__(self, number, step):
        self._file, self._number, self._begins = sys.stderr, int(number), f"step {step} of"

    def __getattr__(self, name):
        return getattr(self._file, name)

    def write(self, text):
        self._file.write(text)
        if self._number and self._begins in text:
            threading.Thread(target=self._signal, args=(self._number,)).start()
            self._number = 0

    def _signal(self, number):
        for _ in range(2):
            os.kill(os.getpid(), number)

if sys.argv[2:]:
    sys.stderr = Stderr(*sys.argv[2:])
daemon, engine, fault = json.loads(sys.argv[1])
command = ["python", engine]
shared = [*command, *fault]
private = shared if fault == ["noisy"] else command
plan = _prove.Plan("fake", daemon, shared, private, [[], []], "--a-flag")
sys.exit(_prove.run(lambda: plan, _texts.Size(6, 384)))
"""


@pytest.fixture
def scratch():
    """A folder with a short path, for sockets."""
    with tempfile.TemporaryDirectory() as made:
        yield pathlib.Path(made)


def prove(scratch, *fault, kv_type="fp32", signal_in=()):
    """Prove in a process of its own. Returns its exit status, rows by their first word, and what it
    said on stderr."""
    environment = {**os.environ, "TMPDIR": str(scratch), "XDG_CACHE_HOME": str(scratch / "cache")}
    ended = subprocess.run([sys.executable, "-c", RUN, json.dumps(
        [{**DAEMON, "kv_type": kv_type}, ENGINE, fault]), *map(str, signal_in)],
                           env=environment, capture_output=True, text=True, check=False)
    rows = {}
    for line in ended.stdout.splitlines():
        rows.setdefault(line.split(" ", 1)[0], []).append(line[6:])
    return ended.returncode, rows, ended.stderr


def left(scratch):
    """Processes and files that a proof left."""
    files = [path for path in scratch.iterdir() if path.name != "cache"]
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"TMPDIR={scratch}\0".encode() in path.read_bytes():
                found.append(path.parent.name)
        except OSError:
            continue
    return files + found


def test_engines_that_are_right(scratch):
    status, rows, err = prove(scratch)
    assert (status, rows.get("WRONG")) == (0, None), (rows, err)
    assert "step 1 of 10, start an engine without kvtrunk" in err and "step 10 of 10" in err
    assert [proof["engine"] for proof in json.loads(
        (scratch / "cache/kvtrunk/proofs.json").read_text())["proofs"]] == ["fake"]
    assert not left(scratch)


def test_an_engine_that_writes_a_foreign_page_at_its_start(scratch):
    status, rows, _ = prove(scratch, "start")
    assert status == 1
    assert all(row.startswith("foreign pages") for row in rows["WRONG"])
    assert "an engine starts on the pool: 1 of 72 cached pages" in rows["WRONG"][0]
    assert not (scratch / "cache/kvtrunk/proofs.json").exists()


def test_a_commit_of_a_page_too_many(scratch):
    status, rows, _ = prove(scratch, "commit")
    assert status == 1
    assert any(row.startswith("reads") for row in rows["WRONG"])
    assert not left(scratch)


@pytest.mark.parametrize("fault, row", [("deep", "reads"), ("swapped", "computes")])
def test_a_wrong_page_of_a_long_prefix(scratch, fault, row):
    """A prefix of more than ten pages; or two pages that no prompt has without each other, but those
    that part between them."""
    status, rows, _ = prove(scratch, fault)
    assert status == 1
    assert any(each.startswith(row) for each in rows["WRONG"]), rows
    assert not left(scratch)


def test_an_engine_whose_texts_are_never_exact_is_judged_by_itself(scratch):
    status, rows, _ = prove(scratch, "noisy", kv_type="bf16")
    assert (status, rows.get("WRONG")) == (0, None), rows
    said = " ".join(line for lines in rows.values() for line in lines)
    assert "its kernels round otherwise then" in said and "--a-flag makes them exact" in said


def test_an_engine_that_does_not_start(scratch):
    status, _, err = prove(scratch, "dies")
    assert status == 2
    assert "the first engine did not start" in err and "kvtrunk: this engine is refused" in err
    assert not left(scratch)


def test_the_first_traceback_tells_why_an_engine_does_not_start(scratch):
    status, _, err = prove(scratch, "fails")
    assert status == 2
    assert ("Its log has:\nTraceback (most recent call last):\n  File \"core.py\", line 1\n"
            "MemoryError: the cause\nIt was started by") in err
    assert "the core ended" not in err


@pytest.mark.parametrize("number, step", [(signal.SIGINT, 1), (signal.SIGTERM, 5),
                                          (signal.SIGINT, 9)])
def test_a_signal_leaves_nothing(scratch, number, step):
    status, _, err = prove(scratch, signal_in=(int(number), step))
    assert (status, "nothing is proved" in err) == (128 + number, True)
    assert not left(scratch)


@contextlib.contextmanager
def session(code, *words):
    """A process of a session of its own, after the code has run."""
    command = [sys.executable, "-c", f"{code}\nprint(flush=True)\ninput()", *words]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          start_new_session=True) as process:
        process.stdout.readline()
        yield process.pid
        process.communicate(b"\n")


def test_a_process_may_have_any_words():
    with session("", b"\xff") as pid:
        assert "\ufffd" in _server.processes(pid)[pid]


WITHOUT_WORDS = """
import ctypes
begin, end = open("/proc/self/stat").read().rpartition(")")[2].split()[45:47]
ctypes.memset(int(begin), 0, int(end) - int(begin))
"""


def test_a_process_inside_execve_lives():
    with session(WITHOUT_WORDS) as pid:
        assert _server.processes(pid) == {pid: ""}


@pytest.mark.parametrize("above", [(), (7,)])
def test_a_port_that_is_taken_is_not_given(above, monkeypatch):
    with socket.socket() as taken:
        first = _server.free_port(*above)
        taken.bind(("127.0.0.1", first + sum(above)))
        monkeypatch.setattr(_server, "_tried", itertools.count(_server._PORTS.index(first)))
        assert _server.free_port(*above) != first


def answer(tokens, logprobs):
    return Answer("", tuple(tokens), tuple(logprobs), 10, 0)


def test_the_distance_of_answers_ends_at_the_first_other_token():
    one = answer([1, 2, 3], [-0.1, -0.2, -0.3])
    assert distance(one, one) == 0
    assert distance(one, answer([1, 2, 3], [-0.1, -0.2, -0.7])) == pytest.approx(0.4)
    assert distance(one, answer([1, 9, 3], [-0.1, -0.25, -9.0])) == pytest.approx(0.05)
    assert distance(one, answer([], [])) == float("inf")


EXACT, NOISY = Texts(24, 24, 0.0), Texts(24, 20, 0.03)


@pytest.mark.parametrize("found, floor, kv_type, good", [
    (EXACT, EXACT, "fp32", True),
    (Texts(24, 23, 1e-6), EXACT, "fp32", False),  # exact kernels give exact texts
    (Texts(24, 24, 0.5), EXACT, "fp32", False),   # equal by luck
    (Texts(24, 23, 0.01), EXACT, "bf16", False),
    (Texts(24, 23, 0.01), Texts(24, 24, 0.01), "bf16", True),
    (Texts(24, 15, 0.05), NOISY, "bf16", True),
    (Texts(24, 9, 0.05), NOISY, "bf16", False),   # far more of them
    (Texts(24, 20, 0.5), NOISY, "bf16", False)])  # not by rounding
def test_texts_may_differ_as_much_as_those_of_the_engine_alone(found, floor, kv_type, good):
    assert found.within(floor, kv_type) is good


def test_prompts_are_repeatable_and_of_their_length():
    assert text_of(1, 500) == text_of(1, 500) != text_of(2, 500)
    assert len(text_of(1, 500)) == 500


def test_prompts_part_at_every_page_border():
    path, *others = parting(range(9), 6, 4)
    assert len(path) == 25 and len(others) == 5
    for n, other in enumerate(others, 1):
        assert other[:4 * n] == path[:4 * n] and other[4 * n] != path[4 * n]
        assert (len(other) - 1) // 4 == n + 1  # with a page of its own


def test_a_model_of_short_prompts_is_asked_short_ones(tmp_path):
    assert most_positions(str(tmp_path), 2048) == 2048
    (tmp_path / "config.json").write_text('{"text_config": {"max_position_embeddings": 1024}}')
    assert most_positions(str(tmp_path), 2048) == 1024
