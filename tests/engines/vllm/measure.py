# SPDX-License-Identifier: Apache-2.0
"""Figures of two vLLM engines (agents.py). With LMCACHE_PYTHON (with_lmcache.py says of what) two
engines with LMCache, too.

    tests/engines/run vllm tests/engines/vllm/measure.py -s
"""
import contextlib

import agents
import with_lmcache
from conftest import PAGE, geometry

from kvtrunk import testing

TURNS = 20
PAGES = agents.positions(TURNS) // PAGE + 27  # of each session a page is not full
# Blocks of each engine, pages of the server, positions of a chunk (LMCache's own choice: 256).
LMCACHE = {"LMCache, same memory": (PAGES // 4, PAGES // 2, 32),
           "LMCache, twice": (PAGES // 2, PAGES, 32),
           "LMCache, twice, 256": (PAGES // 2, PAGES, 256)}


def test_figures(start, folder, tmp_path):
    with (testing.daemon(**geometry(n_pages=PAGES, max_private_pages=PAGES)) as daemon,
          contextlib.ExitStack() as stack):
        options = {"processes": 1, "max_num_seqs": 4}
        private = [start(num_gpu_blocks_override=PAGES // 2, **options) for _ in range(2)]
        alone = start(num_gpu_blocks_override=PAGES, **options)
        shared = [start(daemon, **options) for _ in range(2)]
        copying = {name: stack.enter_context(with_lmcache.pair(
            folder, tmp_path / name, pages, chunk, num_gpu_blocks_override=blocks, **options))
            for name, (blocks, pages, chunk) in LMCACHE.items() if with_lmcache.PYTHON}
        more = [(name, pair.engines) for name, pair in copying.items()]
        for engine in (*private, alone, *shared, *(e for _, pair in more for e in pair)):
            engine.wait()
        agents.compare(TURNS, shared, private, alone, more)
        for name, pair in copying.items():
            stored, loaded = pair.copied()
            print(f"{name:20} copied {stored >> 20} MiB in, {loaded >> 20} MiB out")
        if not copying:
            print("LMCache was not measured: LMCACHE_PYTHON names no interpreter with it")
