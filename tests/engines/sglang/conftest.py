# SPDX-License-Identifier: Apache-2.0
"""Engines as processes, and the daemon whose pool they share."""
import json
import os
import pathlib
import select
import signal
import subprocess
import sys
import time

import model
import pytest

from kvtrunk import testing

HERE = pathlib.Path(__file__).resolve().parent
PAGE, PAGES = 16, 256
START_S, ANSWER_S = 600, 300


def geometry(**more):
    """Options of a daemon for the model of these tests: SGLang's own layout of KV."""
    return {"n_layers": 2, "n_kv_heads": 2, "head_dim": 64, "kv_type": "fp32", "kv_layout": "nhd",
            "kv_order": "layer", "page_size": PAGE, "n_pages": PAGES, **more}


class Engine:
    """An SGLang engine, serve.py: a process, its scheduler and its detokenizer. SGLang's own checks
    of the sums of its pool are on, at each step, and end it."""

    def __init__(self, folder, log, daemon=None, **options):
        self.log = pathlib.Path(log)
        page = options.setdefault("page_size", PAGE)
        options.setdefault("max_total_tokens", (PAGES - 1) * page)
        values = {**os.environ, "OMP_NUM_THREADS": "1", "SGLANG_USE_CPU_ENGINE": "1",
                  "SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_BUSY": "1",
                  "SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_IDLE": "1",
                  "SGLANG_CHECK_KV_PAGE_INVARIANTS": "1"}
        values["PYTHONPATH"] = f"{HERE / 'standin'}:{os.environ.get('PYTHONPATH', '')}"
        if daemon is not None:
            options["radix_cache_backend"] = "kvtrunk"
            values["KVTRUNK_SOCKET"] = daemon.socket
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "serve.py"), str(folder), json.dumps(options)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log.open("w"), text=True,
            env=values, start_new_session=True)
        self.ready = False

    def _hear(self, seconds):
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
        """Tokens for these prompts, and how many positions of each were cached."""
        self.ask(do="generate", prompts=[list(prompt) for prompt in prompts], **more)
        return [{"tokens": answer["tokens"], "cached": answer["cached"]}
                for answer in self.answer()]

    def said(self):
        return self.log.read_text("utf-8", "replace")

    def kill(self):
        """SIGKILL all its processes."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    return model.write(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def start(folder, tmp_path_factory):
    """Start engines; they end with the module."""
    logs = tmp_path_factory.mktemp("logs")
    made = []

    def begin(daemon=None, **options):
        made.append(Engine(options.pop("folder", folder), logs / f"{len(made)}.log", daemon,
                           **options))
        return made[-1]

    yield begin
    for engine in made:
        engine.kill()


@pytest.fixture(scope="module")
def daemon():
    """With a supervisor: killed, it continues."""
    with testing.daemon(supervise=True, **geometry()) as made:
        yield made


def prompt(seed, n=200):
    """n tokens of their own."""
    return [(seed * 7919 + 31 * i + i * i) % 500 + 2 for i in range(n)]
