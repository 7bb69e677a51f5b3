# SPDX-License-Identifier: Apache-2.0
"""Figures of two SGLang engines (agents.py).

    tests/engines/run sglang tests/engines/sglang/measure.py -s
"""
import os
import pathlib
import statistics

import agents
from conftest import PAGE, geometry
from engine import prompt, until
from stores import stopped

from kvtrunk import testing

TURNS = 10
PAGES = agents.positions(TURNS) // PAGE + 19  # of each session a page is not full


HALF, WHOLE = ({"pages": n} for n in (PAGES // 2 + 1, PAGES))


def test_figures(start):
    with testing.daemon(**geometry(n_pages=PAGES)) as daemon:
        private = [start(**HALF) for _ in range(2)]
        shared = [start(daemon, **WHOLE) for _ in range(2)]
        for engine in (*private, *shared):
            engine.wait()
        agents.compare(TURNS, shared, private)


def test_one_alone(start):
    with testing.daemon(**geometry(n_pages=PAGES)) as daemon:
        engines = {"alone": start(**WHOLE), "alone again": start(**WHOLE),
                   "alone, on the pool": start(daemon, **WHOLE)}
        for engine in engines.values():
            engine.wait()
        agents.beside(TURNS, engines)


WAITING, ROUNDS = 100, 8
UNCHECKED = dict.fromkeys(("SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_BUSY",
                           "SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_IDLE",
                           "SGLANG_CHECK_KV_PAGE_INVARIANTS"), "0")
"""Without SGLang's own checks of the tests, which take time in each step."""
LINE, LINES = 40, 5
"""Steps between two lines of an engine's log; lines of it in a round."""


def cpu_s(pid):
    """Seconds of processors that a process has used."""
    return sum(map(int, pathlib.Path(f"/proc/{pid}/stat").read_text("ascii").rsplit(
        ")", 1)[1].split()[11:13])) / os.sysconf("SC_CLK_TCK")


def steps(engine, n_waiting):
    """Milliseconds of a processor for a step of one running request, for each next(); the others
    wait for its room. The scheduler stands in between."""
    said, pid = len(engine.said()), engine.find("sglang::scheduler")

    def lines():
        """Number of logged steps while all others waited."""
        return engine.said()[said:].count(f"#queue-req: {n_waiting}\n")

    engine.ask(do="generate", prompts=[prompt(1 + i, 140) for i in range(1 + n_waiting)],
               max_tokens=1900)
    until(lambda: lines() > 2)
    while True:
        with stopped(pid):
            yield
            before, first = cpu_s(pid), lines()
        until(lambda: lines() >= first + LINES)
        yield (cpu_s(pid) - before) / (lines() - first) / LINE * 1000


def test_steps_while_requests_wait(start):
    """Stock twice, for the noise. A pool that holds one of the requests at a time."""
    with testing.daemon(**geometry(n_pages=130)) as daemon:
        for n_waiting in 0, WAITING:
            engines = {name: start(on, pages=130, environment=UNCHECKED) for name, on in (
                ("stock", None), ("on the pool", daemon), ("stock again", None))}
            used = {name: [] for name in engines}
            running = {name: steps(engine.wait(), n_waiting) for name, engine in engines.items()}
            for each in running.values():
                next(each)
            for _ in range(ROUNDS):
                for name, each in running.items():
                    used[name].append(next(each))
                    next(each)
            for name, engine in engines.items():
                print(f"{n_waiting} wait, {name}: {statistics.median(used[name]):.2f} ms of a "
                      f"processor a step ({min(used[name]):.2f} to {max(used[name]):.2f})")
                engine.kill()
