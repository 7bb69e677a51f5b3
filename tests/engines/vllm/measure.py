# SPDX-License-Identifier: Apache-2.0
"""Figures of two vLLM engines (agents.py). With LMCACHE_PYTHON (with_lmcache.py says of what) two
engines with LMCache, too.

    tests/engines/run vllm tests/engines/vllm/measure.py -s
"""
import contextlib
import os

import agents
import with_lmcache
from conftest import HERE, PAGE, geometry

from kvtrunk import testing

TURNS = 20
PAGES = agents.positions(TURNS) // PAGE + 27  # of each session a page is not full
# Blocks of each engine, pages of the server, positions of a chunk (LMCache's own choice: 256).
LMCACHE = {"LMCache, same memory": (PAGES // 4, PAGES // 2, 32),
           "LMCache, twice": (PAGES // 2, PAGES, 32),
           "LMCache, twice, 256": (PAGES // 2, PAGES, 256)}
OPTIONS = {"processes": 1, "max_num_seqs": 4}


def test_figures(start, folder, tmp_path):
    with (testing.daemon(**geometry(n_pages=PAGES, max_private_pages=PAGES)) as daemon,
          contextlib.ExitStack() as stack):
        private = [start(num_gpu_blocks_override=PAGES // 2, **OPTIONS) for _ in range(2)]
        shared = [start(daemon, **OPTIONS) for _ in range(2)]
        large = [start(num_gpu_blocks_override=PAGES, **OPTIONS)]
        copying = {name: stack.enter_context(with_lmcache.pair(
            folder, tmp_path / name, pages, chunk, num_gpu_blocks_override=blocks, **OPTIONS))
            for name, (blocks, pages, chunk) in LMCACHE.items() if with_lmcache.PYTHON}
        more = [("one engine, large", large),
                *((name, pair.engines) for name, pair in copying.items())]
        for engine in (*private, *shared, *(e for _, pair in more for e in pair)):
            engine.wait()
        agents.compare(TURNS, shared, private, more)
        for name, pair in copying.items():
            stored, loaded = pair.copied()
            print(f"{name:20} copied {stored >> 20} MiB in, {loaded >> 20} MiB out")
        if not copying:
            print("LMCache was not measured: LMCACHE_PYTHON names no interpreter with it")


def test_one_alone(start):
    """With a control, and with a connector that does nothing: what vLLM itself takes for one."""
    with testing.daemon(**geometry(n_pages=PAGES, max_private_pages=PAGES)) as daemon:
        nothing = {"kv_connector": "Idle", "kv_role": "kv_both",
                   "kv_connector_module_path": "idle_connector"}
        engines = {"alone": {}, "alone again": {}, "idle connector": {
            "kv_transfer_config": nothing,
            "environment": {"PYTHONPATH": f"{HERE}:{os.environ['PYTHONPATH']}"}}}
        started = {name: start(num_gpu_blocks_override=PAGES, **OPTIONS, **more)
                   for name, more in engines.items()}
        started["alone, on the pool"] = start(daemon, **OPTIONS)
        for engine in started.values():
            engine.wait()
        agents.beside(TURNS, started)
