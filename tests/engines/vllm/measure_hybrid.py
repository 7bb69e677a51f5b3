# SPDX-License-Identifier: Apache-2.0
"""Figures of whole engines of models with windows or states: what one reuses of agent sessions
(agents.py), how many requests of one and of two run at once in a full pool, and how often they compute
a new beginning (measure_admission.py); with vLLM's own caches, and on a pool of as many pages, which
are too few for all.

    tests/engines/run vllm tests/engines/vllm/measure_hybrid.py -s
"""
import agents
import conftest
import measure_admission
import model
import pytest
from engine import started
from test_hybrid import KINDS, WINDOW

from kvtrunk import testing

TURNS = 6
SHARE = 2
"""The pages are for one of so many of the positions, in each kind of pages."""
REQUESTS = 40


def plan(name, folder):
    """A model's folder, options of its daemon and of its engines."""
    folder = model.write(folder, **(model.states(name) if name in model.STATES else
                                    model.windows(name, sliding_window=WINDOW)))
    options = {"folder": folder, "processes": 1,
               "block_size": 256 if name == "Granite 4 Small" else 32}
    said, _ = conftest.flags(folder, "--block-size", str(options["block_size"]))
    del said["pool_bytes"]
    return said, options


@pytest.mark.parametrize("name", KINDS)
def test_hits(name, start, tmp_path):
    said, options = plan(name, tmp_path)
    options.update(max_num_seqs=4, max_num_batched_tokens=256)
    page, n_kinds = int(said["page_size"]), 1 + len(said["sides"].split(","))
    pages = max(agents.positions(TURNS) // page * n_kinds // SHARE, 12 * n_kinds) + 27
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
    if "dtype" not in KINDS[name]:
        assert rows["alone"][2] == rows["on the pool"][2]


class Stepped:
    """A whole engine as measure_admission.Engine."""

    def __init__(self, engine):
        self.engine = engine
        self.asked, self.rows = [], []
        self.running = self.queued = self.reused = 0

    @property
    def waiting(self):
        return self.queued + len(self.asked)

    @property
    def busy(self):
        return self.running or self.waiting

    def ask(self, name, tokens, said):
        self.asked.append((name, tokens, said))

    def begin_step(self):
        self.engine.ask(do="step", asked=self.asked)
        self.asked = []

    def end_step(self):
        self.running, self.queued, reused = self.engine.answer()
        self.reused += reused
        if self.queued:
            self.rows.append(self.running)


def ways(serve, start, said, options, pages):
    """As measure_admission.ways(), with whole engines."""
    answers = {}
    for way, (n, shared) in measure_admission.WAYS.items():
        with testing.daemon(**{**said, "n_pages": pages, "max_private_pages": 0,
                               "coalesce_threshold": 0}) as daemon:
            engines = started(*(
                start(daemon, **options) if shared else
                start(num_gpu_blocks_override=pages // n, **options) for _ in range(n)))
            answers[way] = serve([Stepped(engine) for engine in engines])
            print(f"{way}: {answers[way]}", flush=True)
            for engine in engines:
                engine.kill()
    return answers


def by_question(answers):
    """Answers by question and way, from answers by way and question."""
    return {asked: {way: said[asked] for way, said in answers.items()}
            for asked in next(iter(answers.values()))}


@pytest.mark.parametrize("name", measure_admission.KINDS)
def test_running(name, start, tmp_path):
    said, options = plan(name, tmp_path)
    n_sides = sum(map(int, said["sides"].split(",")))
    states = n_sides if name in model.STATES else 0
    pages = measure_admission.pages_for(measure_admission.ROOM[name], int(said["page_size"]),
                                        n_sides, states)
    rows = ways(lambda engines: {
        longest: measure_admission.running(engines, longest, REQUESTS)
        for longest in measure_admission.LONGEST}, start, said,
        {**measure_admission.RUNNING, **options}, pages)
    for longest, each in by_question(rows).items():
        measure_admission.print_running(name, longest, each)


@pytest.mark.parametrize("name", measure_admission.KINDS)
def test_burst(name, start, tmp_path):
    said, options = plan(name, tmp_path)
    page = int(said["page_size"])
    pages = max(measure_admission.pages_for_burst(page, n) for n in measure_admission.BURSTS)
    rows = ways(lambda engines: {n: measure_admission.computed(engines, n, page)
                                 for n in measure_admission.BURSTS}, start, said,
                {**measure_admission.BURST, **options}, pages)
    for n, each in by_question(rows).items():
        measure_admission.print_computed(name, n, each)
