# SPDX-License-Identifier: Apache-2.0
"""Figures of two SGLang engines (agents.py).

    tests/engines/run sglang tests/engines/sglang/measure.py -s
"""
import os
import pathlib

import agents
from conftest import PAGE, geometry
from engine import prompt, until

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


WAITING, LINES = 100, 20
LINE = 40
"""Steps between two lines of the log."""


def cpu_s(pid):
    """Seconds of processors that a process has used."""
    return sum(map(int, pathlib.Path(f"/proc/{pid}/stat").read_text("ascii").rsplit(
        ")", 1)[1].split()[11:13])) / os.sysconf("SC_CLK_TCK")


def step_ms(engine, n_waiting):
    """Of a processor, for a step of one running request while others wait for its room."""
    said, pid = len(engine.said()), engine.find("sglang::scheduler")

    def lines():
        """Of steps while all others waited."""
        return engine.said()[said:].count(f"#queue-req: {n_waiting}\n")

    engine.ask(do="generate", prompts=[prompt(1, 20), *[prompt(2 + i, 1900) for i in range(n_waiting)]],
               max_tokens=1900)
    until(lambda: lines() > 2)
    before, first = cpu_s(pid), lines()
    until(lambda: lines() >= first + LINES)
    return (cpu_s(pid) - before) / (lines() - first) / LINE * 1000


def test_steps_while_requests_wait(start):
    """Stock twice, for the noise. A pool that holds one of the requests at a time."""
    with testing.daemon(**geometry(n_pages=130)) as daemon:
        engines = {"stock": start(pages=130), "on the pool": start(daemon, pages=130),
                   "stock again": start(pages=130)}
        for engine in engines.values():
            engine.wait()
        for n_waiting in 0, WAITING:
            for name, engine in engines.items():
                used = step_ms(engine, n_waiting)
                print(f"{n_waiting} wait, {name}: {used:.2f} ms of a processor a step")
                if n_waiting == 0:
                    engine.answer()
                else:
                    engine.kill()
