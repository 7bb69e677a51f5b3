# SPDX-License-Identifier: Apache-2.0
"""Figures of two SGLang engines (agents.py).

    tests/engines/run sglang tests/engines/sglang/measure.py -s
"""
import agents
from conftest import PAGE, geometry

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
