# SPDX-License-Identifier: Apache-2.0
"""Figures: agent sessions on two engines, with one pool and with private caches of half the memory
each; one engine alone, with kvtrunk and without. With LMCACHE_PYTHON (with_lmcache.py says of what)
two engines with LMCache, too. It prints, and fails only on different tokens.

    tests/engines/run vllm tests/engines/vllm/measure.py -s
"""
import contextlib
import random
import statistics
import time

import with_lmcache
from conftest import geometry
from engine import prompt

from kvtrunk import testing

SESSIONS, TURNS, SYSTEM, NEW, SAID, PAGES = 6, 8, 400, 40, 16, 160
# Blocks of each engine, pages of the server, positions of a chunk (LMCache's own choice: 256).
LMCACHE = {"LMCache, same memory": (PAGES // 4, PAGES // 2, 32),
           "LMCache, twice": (PAGES // 2, PAGES, 32),
           "LMCache, twice, 256": (PAGES // 2, PAGES, 256)}


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


def test_figures(start, folder, tmp_path):
    with (testing.daemon(**geometry(n_pages=PAGES, max_private_pages=PAGES)) as daemon,
          contextlib.ExitStack() as stack):
        options = {"processes": 1, "max_model_len": 1024, "max_num_seqs": 4}
        private = [start(num_gpu_blocks_override=PAGES // 2, **options) for _ in range(2)]
        shared = [start(daemon, **options) for _ in range(2)]
        copying = {name: stack.enter_context(with_lmcache.pair(
            folder, tmp_path / name, pages, chunk, num_gpu_blocks_override=blocks, **options))
            for name, (blocks, pages, chunk) in LMCACHE.items() if with_lmcache.PYTHON}
        for engine in private + shared + [e for pair in copying.values() for e in pair.engines]:
            engine.wait()
        rows = []
        for round_ in range(3):
            for name, engines, sticky in (
                    ("shared, random", shared, False), ("private, random", private, False),
                    ("private, sticky", private, True), ("one alone, shared", shared[:1], False),
                    ("one alone, private", private[:1], False),
                    *((name, pair.engines, False) for name, pair in copying.items())):
                rows.append((name, *run(engines, sticky, f"{name} {round_}")))
        print()
        for name in dict.fromkeys(row[0] for row in rows):
            mine = [row for row in rows if row[0] == name]
            print(f"{name:20} computed {[row[1] for row in mine]}, mean of a request "
                  f"{[round(1000 * row[2]) for row in mine]} ms")
        for name, pair in copying.items():
            stored, loaded = pair.copied()
            print(f"{name:20} copied {stored >> 20} MiB in, {loaded >> 20} MiB out")
        if not copying:
            print("LMCache was not measured: LMCACHE_PYTHON names no interpreter with it")
        assert len({str(row[3]) for row in rows}) == 1
