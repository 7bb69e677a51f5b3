# SPDX-License-Identifier: Apache-2.0
"""Progress lines of long work."""
import io
import threading

import pytest

from kvtrunk import _progress
from kvtrunk._progress import Steps, progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


def work(file, seconds, step=0.5, *, total=0, unit="bytes", n=1 << 20):
    clock = Clock()
    with progress("reading", total, unit, file=file, clock=clock) as shown:
        for _ in range(int(seconds / step)):
            clock.now += step
            shown.add(n)
    return file.getvalue()


def test_short_work_prints_nothing():
    assert work(io.StringIO(), 1.5) == work(Terminal(), 1.5) == ""


def test_a_pipe_has_a_line_every_ten_seconds():
    text = work(io.StringIO(), 25, total=100 << 20)
    assert text.splitlines() == [
        "kvtrunk: reading: 4.0 MiB of 100 MiB, 4 %, 48 s left",
        "kvtrunk: reading: 24.0 MiB of 100 MiB, 24 %, 38 s left",
        "kvtrunk: reading: 44.0 MiB of 100 MiB, 44 %, 28 s left",
        "kvtrunk: reading: done, 50.0 MiB in 25 s"]


def test_a_terminal_has_one_line_that_moves():
    text = work(Terminal(), 5, unit="tokens", n=1000)
    assert text.count("\n") == 1 and text.endswith("reading: done, 10,000 tokens in 5 s\033[K\n")
    assert text.count("\r") == 8 and "reading: 4,000 tokens\033[K\r" in text


def test_work_that_fails_is_not_called_done():
    clock, file = Clock(), io.StringIO()
    with pytest.raises(KeyError), progress("reading", file=file, clock=clock) as shown:
        clock.now += 3
        shown.add(5)
        raise KeyError
    assert file.getvalue().endswith("reading: stopped, 5 B in 3 s\n")


def test_threads_lose_no_count():
    clock, file = Clock(), io.StringIO()
    with progress("reading", unit="files", file=file, clock=clock) as shown:
        threads = [threading.Thread(target=lambda: [shown.add(1) for _ in range(2000)])
                   for _ in range(4)]
        [each.start() for each in threads]
        [each.join() for each in threads]
        clock.now += 2
        shown.add(0)
    assert "reading: done, 8,000 files" in file.getvalue()


def test_a_closed_stderr_does_not_stop_the_work(monkeypatch):
    file = io.StringIO()
    file.close()
    clock = Clock()
    for each in (file, None):
        monkeypatch.setattr("sys.stderr", None)
        with progress("reading", file=each, clock=clock) as shown:
            clock.now += 3
            shown.add(1)


def test_steps_are_counted_in_a_pipe():
    file = io.StringIO()
    steps = Steps(2, file)
    with steps("start an engine"):
        pass
    with pytest.raises(ValueError), steps("ask it"):
        raise ValueError
    assert file.getvalue().splitlines() == ["kvtrunk: step 1 of 2, start an engine",
                                            "kvtrunk: step 2 of 2, ask it"]


def test_steps_leave_no_line_on_a_terminal(monkeypatch):
    monkeypatch.setattr(_progress, "TERMINAL_STEP_S", 0.001)
    file = Terminal()
    with Steps(2, file)("start an engine"):
        while file.getvalue().count("\r") < 3:
            pass
    assert "\r\rkvtrunk" not in file.getvalue() and "\n" not in file.getvalue()
    assert "step 1 of 2, start an engine: 0 s, 0 s in all" in file.getvalue()
    assert file.getvalue().endswith("\r\033[K")
