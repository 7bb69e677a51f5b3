# SPDX-License-Identifier: Apache-2.0
"""Figures: agent sessions on two engines, with one pool and with private caches of half the memory
each; one engine alone, with kvtrunk and without. It prints, and fails only on different tokens.

    tests/engines/run vllm tests/engines/vllm/measure.py -s
"""
import random
import statistics
import time

from conftest import geometry
from engine import prompt

from kvtrunk import testing

SESSIONS, TURNS, SYSTEM, NEW, SAID, PAGES = 6, 8, 400, 40, 16, 160


def requests():
    """(session, new tokens of its turn), interleaved by chance."""
    order = [session for session in range(SESSIONS) for _ in range(TURNS)]
    random.Random(7).shuffle(order)
    return [(session, prompt(9000 + i, NEW)) for i, session in enumerate(order)]


def run(engines, sticky, salt):
    """Positions computed, mean seconds of a request, and all that was said. The salt makes the
    cache as good as empty."""
    system = prompt(8000, SYSTEM)
    so_far = {session: list(system) for session in range(SESSIONS)}
    router, computed, seconds, said = random.Random(11), 0, [], []
    for session, new in requests():
        text = so_far[session] + new
        engine = engines[(session if sticky else router.randrange(2)) % len(engines)]
        begin = time.monotonic()
        answer = engine.generate(text, max_tokens=SAID, salt=salt)[0]
        seconds.append(time.monotonic() - begin)
        computed += len(text) - answer["cached"]
        so_far[session] = text + answer["tokens"]
        said.append(answer["tokens"])
    return computed, statistics.mean(seconds), said


def test_figures(start):
    with testing.daemon(**geometry(n_pages=PAGES, max_private_pages=PAGES)) as daemon:
        options = {"processes": 1, "max_model_len": 1024, "max_num_seqs": 4}
        private = [start(num_gpu_blocks_override=PAGES // 2, **options) for _ in range(2)]
        shared = [start(daemon, **options) for _ in range(2)]
        for engine in private + shared:
            engine.wait()
        rows = []
        for round_ in range(3):
            for name, engines, sticky in (
                    ("shared, random", shared, False), ("private, random", private, False),
                    ("private, sticky", private, True), ("one alone, shared", shared[:1], False),
                    ("one alone, private", private[:1], False)):
                rows.append((name, *run(engines, sticky, f"{name} {round_}")))
        print()
        for name in dict.fromkeys(row[0] for row in rows):
            mine = [row for row in rows if row[0] == name]
            print(f"{name:20} computed {[row[1] for row in mine]}, mean of a request "
                  f"{[round(1000 * row[2]) for row in mine]} ms")
        assert len({str(row[3]) for row in rows}) == 1
