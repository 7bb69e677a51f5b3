# SPDX-License-Identifier: Apache-2.0
"""An engine in processes of its own, which tests ask: serve.py of the folder of its tests, and
serving.py in it. And how to tell that it holds nothing."""
import json
import os
import pathlib
import select
import signal
import subprocess
import sys
import time

from kvtrunk.engine._server import processes

START_S, ANSWER_S = 600, 300


def find(pids, word):
    found = [pid for pid, words in pids.items() if word in words]
    assert len(found) == 1, (word, pids)
    return found[0]


class Engine:
    """One program, serve.py; a subclass says with which options and environment."""

    interpreter = sys.executable

    def __init__(self, serve, folder, log, options, environment, daemon=None):
        self.log = pathlib.Path(log)
        # Without checks: the first reuse computes a page less.
        values = {**os.environ, "OMP_NUM_THREADS": "1", "KVTRUNK_CHECK_EVERY": "0",
                  "KVTRUNK_REQUIRE_PROOF": "1", **environment}  # _compat.TESTED knows each
        if daemon is not None:
            values["KVTRUNK_SOCKET"] = daemon.socket
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [self.interpreter, str(serve), str(folder), json.dumps(options)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, env=values,
                start_new_session=True)
        self.ready = False

    def _hear(self, seconds):
        """One answer. RuntimeError: none came."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if select.select([self.process.stdout], [], [], 0.5)[0]:
                line = self.process.stdout.readline()
                if not line:
                    break
                answer = json.loads(line)
                if "failed" in answer:
                    raise RuntimeError(answer["failed"] + self.said()[-4000:])
                return answer
        raise RuntimeError(f"the engine said nothing: {self.said()[-4000:]}")

    def wait(self):
        """Until it is ready."""
        if not self.ready:
            self._hear(START_S)
            self.ready = True
        return self

    def ask(self, **what):
        """Begin a request; answer() ends it."""
        self.wait()
        self.process.stdin.write(json.dumps(what) + "\n")
        self.process.stdin.flush()

    def answer(self):
        return self._hear(ANSWER_S)["done"]

    def generate(self, *prompts, **more):
        """Its answers to these prompts: tokens, and how many positions were cached."""
        self.ask(do="generate", prompts=[list(prompt) for prompt in prompts], **more)
        return self.answer()

    def said(self):
        return self.log.read_text("utf-8", "replace")

    def pids(self):
        """Its processes: the words of their command lines by number."""
        return processes(self.process.pid)

    def find(self, word):
        """The process with this word in its command line."""
        return find(self.pids(), word)

    def kill(self, signal_number=signal.SIGKILL):
        """End all its processes, once: later its number may be another one's."""
        if self.process.stdin.closed:
            return
        try:
            os.killpg(self.process.pid, signal_number)
        except ProcessLookupError:
            pass
        for pid in self.pids():
            try:
                os.kill(pid, signal_number)
            except ProcessLookupError:
                pass
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()


def started(*engines):
    """The engines, once all are ready."""
    for engine in engines:
        engine.wait()
    return engines


def prompt(seed, n=200):
    """n tokens of their own."""
    return [(seed * 7919 + 31 * i + i * i) % 500 + 2 for i in range(n)]


def until(what, *arguments):
    """Poll until it is true."""
    end = time.monotonic() + ANSWER_S
    while not what(*arguments):
        assert time.monotonic() < end, f"{what} did not come true within {ANSWER_S} s"
        time.sleep(0.01)


def counters(daemon):
    with daemon.connect(any_geometry=True) as observer:
        return observer.stats()


def all_pages_are_back(daemon):
    """No engine holds a page or a lock. The last END may still be under way: until()."""
    now = counters(daemon)
    return (now.private_pages, now.quarantined_pages, now.protected_pages) == (0, 0, 0)


def expect_nothing_held(daemon):
    until(all_pages_are_back, daemon)
    assert daemon.kvtctl("audit").startswith("clean")
