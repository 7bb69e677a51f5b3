# SPDX-License-Identifier: Apache-2.0
"""SGLang engines, and the daemon whose pool they share."""
import json
import os
import pathlib
import shlex
import sys

import engine
import printing
import pytest

from kvtrunk import Geometry, testing
from kvtrunk.engine._server import free_port
from kvtrunk.sglang import __main__

# SGLang asks once in a process which device there is.
os.environ["SGLANG_USE_CPU_ENGINE"] = "1"
HERE = pathlib.Path(__file__).resolve().parent
PAGE, PAGES = 16, 256
# EXTEND: in decode.
KILLS = [*((operation, "sglang::scheduler") for operation in ("BEGIN", "COMMIT", "EXTEND", "END")),
         ("COMMIT", "sglang::detokenizer"), ("END", "serve.py")]
SMALL = {}
STARTS = {"plain": {}}
NEW_EPOCH = "flush"
BEHIND = {
    "--attention-backend torch_native": "its own for CPUs is compiled, and in no package index",
    "--sampling-backend pytorch": "the same",
    "--grammar-backend none": "its libraries are for GPUs, and not installed",
    "--disable-cuda-graph": "it compiles for minutes on a CPU, too",
    "--mem-fraction-static 0.5": "the machine is small, and has several engines",
}
"""All that engines of the tests get behind what `flags` prints: why. Never the device, types, sizes or
the backend of the cache."""
IN_PROCESS = {
    "--skip-tokenizer-init": "prompts and answers are tokens",
    "--chunked-prefill-size 256": "prompts of a few hundred tokens have several chunks",
    "--context-length 2048": "rows for the model's 8192 are more than the tests need",
    "--max-running-requests 16": "the same",
    "--skip-server-warmup": "its prompt would be cached",
    "--sleep-on-idle": "the other engines need the processors",
    "--random-seed 1": "a test that fails does so again",
}
"""Options that engines of serve.py, which are no servers, get, too."""
NEVER = ("device", "dtype", "kv_cache_dtype", "max_total_tokens", "mem_fraction_static",
         "radix_cache_backend")
ON_A_CPU = [word for option in BEHIND for word in option.split()]
STANDIN = f"{HERE / 'standin'}:{os.environ.get('PYTHONPATH', '')}"
"""PYTHONPATH of an engine."""
sys.path.insert(0, str(HERE / "standin"))  # of these tests
ENGINE, PROVE, SERVE = "sglang", ["--page-size", str(PAGE)], ON_A_CPU


def geometry(**more):
    """Options of a daemon for the model of these tests: SGLang's own layout of KV."""
    return {"n_layers": 2, "n_kv_heads": 2, "head_dim": 64, "kv_type": "fp32", "kv_layout": "nhd",
            "kv_order": "layer", "page_size": PAGE, "n_pages": PAGES, **more}


def printed(folder, pool, n_ranks=1, page_size=PAGE, drafts=()):
    """Options of a daemon, and the command of an engine, that `flags` prints for a model."""
    daemon, _, engine = __main__.commands(str(folder), page_size, pool, None, n_ranks, drafts=drafts)
    options = dict(word[2:].split("=", 1) for word in daemon[1:] if "=" in word)
    return ({name.replace("-", "_"): value for name, value in options.items()},
            shlex.join(engine))


def fields(folder, pages, page_size, n_ranks, drafts):
    """Options that `flags` prints for engines on a pool of `pages` pages, and those after them."""
    most = 1 << 30
    options, _ = printed(folder, most, n_ranks, page_size, drafts)
    shape = Geometry(int(options["n_layers"]), int(options.get("n_kv_heads", 1)),
                     int(options["head_dim"]), options["kv_type"], options["kv_layout"],
                     options["kv_order"])
    _, command = printed(folder, pages * shape.page_bytes(page_size), n_ranks, page_size, drafts)
    words = shlex.split(command)
    behind = shlex.split(" ".join([*BEHIND, *IN_PROCESS]))
    return printing.parsed(printing.behind(words[words.index("--model-path"):], behind))


def events(port, replay):
    """Options of an engine that publishes KV events."""
    return {"kv_events_config": json.dumps({
        "publisher": "zmq", "endpoint": f"tcp://*:{port}", "replay_endpoint": f"tcp://*:{replay}"})}


class Engine(engine.Engine):
    """An SGLang engine: serve.py, a scheduler and a detokenizer. SGLang's own checks of the sums of
    its pool are on, at each step, and end it."""

    def __init__(self, folder, log, daemon=None, environment=(), program="serve.py", pages=PAGES,
                 page_size=PAGE, **options):
        """options: of this test, over what is printed for a pool of so many pages."""
        assert not set(options) & set(NEVER), options
        drafts = [value for value in (options.get("speculative_algorithm"),
                                      options.get("speculative_draft_model_path")) if value]
        options = {**fields(folder, pages, page_size, options.get("tp_size", 1), drafts), **options}
        if daemon is None:
            del options["radix_cache_backend"]
        if options.get("dp_size", 1) == 1:  # SGLang's choice may be that of another one that starts
            options.setdefault("nccl_port", free_port())
        super().__init__(HERE / program, folder, log, options,
                         {"SGLANG_USE_CPU_ENGINE": "1",
                          "SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_BUSY": "1",
                          "SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_IDLE": "1",
                          "SGLANG_CHECK_KV_PAGE_INVARIANTS": "1", "PYTHONPATH": STANDIN,
                          # More ranks than NUMA nodes, with gloo: a torch for CUDA brings NCCL.
                          "SGLANG_CPU_OMP_THREADS_BIND": "|".join(
                              str(i % os.cpu_count()) for i in range(
                                  options.get("tp_size", 1) * options.get("dp_size", 1))),
                          "SGLANG_NCCL_SO_PATH": "none",
                          **dict(environment)}, daemon)


@pytest.fixture(scope="session")
def engine_class():
    return Engine


@pytest.fixture(scope="module")
def daemon():
    """With a supervisor: killed, it continues. Requests wait also for the last chunk of a prompt."""
    with testing.daemon(supervise=True, coalesce_threshold=0, **geometry()) as made:
        yield made
