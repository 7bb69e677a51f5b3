# SPDX-License-Identifier: Apache-2.0
"""Figures: how many requests of models with windows or states run at once in a full pool, and how
often a burst of prompts computes a new beginning. vLLM's schedulers without a model, with caches of
their own and on one pool of as many pages. measure_hybrid.py asks whole engines. The model answers 7,
at once: so a request that found no room is looked at in each step, as in an engine, whose steps take
longer than the pause. The daemon keeps no pages for newcomers (max_private_pages).

    tests/engines/run vllm tests/engines/vllm/measure_admission.py -s
"""
import random

import measure_step
import numpy
import pytest
from conftest import geometry
from engine import prompt

from kvtrunk import testing
from kvtrunk.vllm import _cache

KINDS = {name: measure_step.KINDS[name] for name in ("gpt-oss", "Qwen3-Next")}
LONGEST, SAID = (350, 700, 900), 96
"""Tokens of a prompt, about; tokens of an answer."""
ROOM = {"gpt-oss": 9, "Qwen3-Next": 12}
"""Requests of 700 tokens that about fit."""
REQUESTS, WAITING = 80, 8
BURSTS = {16: 2048, 48: 4096}
"""Prompts, and tokens of their common beginning."""
OPTIONS = {"max_num_seqs": 64, "max_num_batched_tokens": 512}
"""Options of an engine. A full pool has no room for the length that a burst needs."""
RUNNING = {**OPTIONS, "max_model_len": 1024}
BURST = {**OPTIONS, "max_model_len": 2 * max(BURSTS.values())}
WAYS = {"stock": (1, False), "one": (1, True), "two stocks": (2, False), "two": (2, True)}
"""How many engines, and whether they share the pool. Two stocks have half of it each."""


class Engine(measure_step.Scheduler):
    """begin_step() and end_step() are one, so that whole engines step side by side."""

    def __init__(self, folder, shared, pages, groups, **options):
        super().__init__(folder, shared, pages=pages, page=groups[0],
                         sides=measure_step.specs(*groups), **options)
        self.rows = []
        """Requests that run, of each step in which others wait."""

    @property
    def waiting(self):
        return len(self.theirs.waiting)

    @property
    def busy(self):
        return self.theirs.has_unfinished_requests()

    def ask(self, name, tokens, said):
        self.theirs.add_request(self.request(name, tokens, said))

    def begin_step(self):
        self.step = self.theirs.schedule()

    def end_step(self):
        if self.waiting:
            self.rows.append(len(self.theirs.running))
        self.finish(self.step)


def ways(serve, folder, monkeypatch, groups, pages, options):
    """Results of serve(engines) for one and two engines, with caches of their own and on a pool."""
    said = {}
    for way, (n, shared) in WAYS.items():
        with testing.daemon(**geometry(
                1, 1, 16, page_size=groups[0], n_pages=pages, max_private_pages=0,
                coalesce_threshold=0, sides=measure_step.trailing(*groups))) as daemon:
            monkeypatch.setenv("KVTRUNK_SOCKET", daemon.socket)
            monkeypatch.setenv("KVTRUNK_CHECK_EVERY", "0")  # no workers compare pages
            monkeypatch.setattr(_cache, "RETRY_S", 0.0)
            engines = [Engine(folder, shared, pages if shared else pages // n, groups, **options)
                       for _ in range(n)]
            said[way] = serve(engines)
            for each in engines if shared else ():
                each.theirs.shutdown()
    return said


def turn(engines):
    for each in engines:
        each.begin_step()
    for each in engines:
        each.end_step()


def running(engines, longest, requests=REQUESTS):
    """Requests that run, on average while others wait."""
    chance = random.Random(longest)
    asked = 0
    for each in engines:
        each.rows = []
    while asked < requests or any(each.busy for each in engines):
        for each in engines:
            while asked < requests and each.waiting < WAITING:
                tokens = prompt(1000 * longest + asked, longest + chance.randrange(-30, 30))
                each.ask(f"{longest}-{asked}", tokens, SAID)
                asked += 1
        turn(engines)
    return sum(numpy.mean(each.rows) for each in engines)


def pages_for(room, page, sides, states):
    """For so many requests of 700 tokens and their answers. sides: side pages of each."""
    return room * (-(-(700 + SAID) // page) + sides + states)


def print_running(name, longest, said):
    print(f"\n{name}, prompts of {longest}, running on average: "
          f"{', '.join(f'{way} {mean:.2f}' for way, mean in said.items())}; of stock: one "
          f"{said['one'] / said['stock']:.2f}, two {said['two'] / said['two stocks']:.2f}")


@pytest.mark.parametrize("longest", LONGEST)
@pytest.mark.parametrize("name", KINDS)
def test_running(name, longest, folder, monkeypatch):
    page, windows, states = KINDS[name]
    sides = sum(-(-window // page) for window in windows) + states
    print_running(name, longest, ways(
        lambda engines: running(engines, longest), folder, monkeypatch, KINDS[name],
        pages_for(ROOM[name], page, sides, states), RUNNING))


def computed(engines, n, page):
    """How often the beginning of n prompts is computed, which come at once."""
    tokens = prompt(5 + n, BURSTS[n])
    before = sum(each.reused for each in engines)
    for i in range(n):
        engines[i % len(engines)].ask(f"burst {n}-{i}", tokens + prompt(100 + i, page + 8), 1)
    while any(each.busy for each in engines):
        turn(engines)
    return n - (sum(each.reused for each in engines) - before) / BURSTS[n]


def pages_for_burst(page, n):
    return 12 * (BURSTS[n] // page + n * 8)


def print_computed(name, n, said):
    print(f"\n{name}, {n} prompts on a new beginning of {BURSTS[n]}, computed: "
          f"{', '.join(f'{way} {times:.1f}' for way, times in said.items())}")


@pytest.mark.parametrize("n", BURSTS)
@pytest.mark.parametrize("name", KINDS)
def test_burst(name, n, folder, monkeypatch):
    page = KINDS[name][0]
    print_computed(name, n, ways(lambda engines: computed(engines, n, page), folder, monkeypatch,
                                 KINDS[name], pages_for_burst(page, n), BURST))
