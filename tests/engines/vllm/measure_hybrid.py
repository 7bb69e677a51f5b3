# SPDX-License-Identifier: Apache-2.0
"""What one engine of a model with windows or states reuses of agent sessions (agents.py): with vLLM's
own cache, and on a pool of as many pages, which are too few for all sessions.

    tests/engines/run vllm tests/engines/vllm/measure_hybrid.py -s
"""
import agents
import conftest
import model
import pytest
from test_hybrid import KINDS, WINDOW

from kvtrunk import testing

TURNS = 6
SHARE = 2
"""The pages are for one of so many of the positions, in each kind of pages."""


@pytest.mark.parametrize("name", KINDS)
def test_hits(name, start, tmp_path):
    kind = {"page_size": "32", "dtype": "float32", **KINDS[name]}
    page, n_kinds = int(kind["page_size"]), 1 + len(kind["sides"].split(","))
    folder = model.write(tmp_path, **(model.states(name) if name in model.STATES else
                                      model.windows(name, sliding_window=WINDOW)))
    options = {"folder": folder, "processes": 1, "dtype": kind["dtype"], "max_num_seqs": 4,
               "max_num_batched_tokens": 256,
               "block_size": page if name == "Granite 4 Small" else 32}
    pages = max(agents.positions(TURNS) // page * n_kinds // SHARE, 12 * n_kinds) + 27
    said, _ = conftest.flags(folder, "--block-size", str(options["block_size"]))
    del said["pool_bytes"]
    with testing.daemon(**{**said, "n_pages": pages, "max_private_pages": pages}) as daemon:
        engines = {"alone": start(num_gpu_blocks_override=pages, **options),
                   "on the pool": start(daemon, **options)}
        rows = {way: agents.run([engine], True, None, TURNS) for way, engine in engines.items()}
    lengths = dict.fromkeys(range(agents.SESSIONS), agents.SYSTEM)
    asked = 0
    for session, new in agents.requests(TURNS):
        lengths[session] += len(new)
        asked += lengths[session]
        lengths[session] += agents.SAID
    print()
    for way, (computed, seconds, _) in rows.items():
        print(f"{name:12} {way:12} {pages} pages of {page}: reused {asked - computed} of {asked} "
              f"positions, mean of a request {1000 * seconds:.0f} ms")
    if kind["dtype"] == "float32":
        assert rows["alone"][2] == rows["on the pool"][2]
