# SPDX-License-Identifier: Apache-2.0
"""Figures of two SGLang engines (agents.py).

    tests/engines/run sglang tests/engines/sglang/measure.py -s
"""
import agents
from conftest import PAGE, geometry

from kvtrunk import testing

TURNS = 10
PAGES = agents.positions(TURNS) // PAGE + 19  # of each session a page is not full


def test_figures(start):
    with testing.daemon(**geometry(n_pages=PAGES)) as daemon:
        half, whole = ({"max_total_tokens": n * PAGE} for n in (PAGES // 2, PAGES - 1))
        private = [start(**half) for _ in range(2)]
        alone = start(**whole)
        shared = [start(daemon, **whole) for _ in range(2)]
        for engine in (*private, alone, *shared):
            engine.wait()
        agents.compare(TURNS, shared, private, alone)
