# SPDX-License-Identifier: Apache-2.0
"""Figures: how many requests of models with windows or states run at once in a full pool, and how
often a burst of prompts computes a new beginning. vLLM's schedulers without a model, with caches of
their own and on one pool of as many pages. The model answers 7, at once: so a request that found no
room is looked at in each step, as in an engine, whose steps take longer than the pause. The daemon
keeps no pages for newcomers (max_private_pages).

    tests/engines/run vllm tests/engines/vllm/measure_admission.py -s
"""
import random

import measure_step
import numpy
import pytest
from conftest import geometry
from engine import prompt

from kvtrunk import testing
from kvtrunk.vllm import manager

KINDS = {name: measure_step.KINDS[name] for name in ("gpt-oss", "Qwen3-Next")}
LONGEST, SAID = (350, 700, 900), 96
"""Tokens of a prompt, about; tokens of an answer."""
ROOM = {"gpt-oss": 9, "Qwen3-Next": 12}
"""Requests of 700 tokens that about fit."""
REQUESTS, WAITING = 80, 8
BURSTS = {16: 2048, 48: 4096}
"""Prompts, and tokens of their common beginning."""


class Engine(measure_step.Scheduler):
    """Notes how many requests run, and what it computes."""

    def __init__(self, folder, shared, pages, groups, **options):
        super().__init__(folder, shared, pages=pages, page=groups[0],
                         sides=measure_step.specs(*groups), **options)
        self.rows, self.computed = [], 0

    def turn(self):
        step = self.theirs.schedule()
        self.computed += sum(step.num_scheduled_tokens.values())
        if len(self.theirs.waiting):
            self.rows.append(len(self.theirs.running))
        self.finish(step)


def ways(serve, folder, monkeypatch, groups, pages, **options):
    """What serve(engines) says of one and two engines, with caches of their own and on a pool."""
    said = {}
    for way, n, shared in (("stock", 1, False), ("one", 1, True),
                           ("two stocks", 2, False), ("two", 2, True)):
        with testing.daemon(**geometry(
                1, 1, 16, page_size=groups[0], n_pages=pages, max_private_pages=0,
                coalesce_threshold=0, sides=measure_step.trailing(*groups))) as daemon:
            monkeypatch.setenv("KVTRUNK_SOCKET", daemon.socket)
            monkeypatch.setenv("KVTRUNK_CHECK_EVERY", "0")  # no workers compare pages
            monkeypatch.setattr(manager, "RETRY_S", 0.0)
            engines = [Engine(folder, shared, pages if shared else pages // n, groups, **options)
                       for _ in range(n)]
            said[way] = serve(engines)
            for each in engines if shared else ():
                each.theirs.shutdown()
    return said


def running(engines, longest):
    """Requests that run, on average while others wait."""
    chance = random.Random(longest)
    asked = 0
    while asked < REQUESTS or any(each.theirs.has_unfinished_requests() for each in engines):
        for each in engines:
            while asked < REQUESTS and len(each.theirs.waiting) < WAITING:
                tokens = prompt(1000 + asked, longest + chance.randrange(-30, 30))
                each.theirs.add_request(each.request(str(asked), tokens, SAID))
                asked += 1
            each.turn()
    return sum(numpy.mean(each.rows) for each in engines)


def pages_for(name):
    """For ROOM requests of 700 tokens and their answers."""
    page, windows, states = KINDS[name]
    side = sum(-(-window // page) for window in windows) + 2 * states
    return ROOM[name] * (-(-(700 + SAID) // page) + side)


@pytest.mark.parametrize("longest", LONGEST)
@pytest.mark.parametrize("name", KINDS)
def test_running(name, longest, folder, monkeypatch):
    said = ways(lambda engines: running(engines, longest), folder, monkeypatch, KINDS[name],
                pages_for(name), max_num_seqs=64, max_num_batched_tokens=512)
    print(f"\n{name}, prompts of {longest}, running on average: "
          f"{', '.join(f'{way} {mean:.2f}' for way, mean in said.items())}")


def computed(engines, n, head, page):
    """How often the head of n prompts is computed, which come at once."""
    tokens, tail = prompt(5, head), page + 8
    for i in range(n):
        engine = engines[i % len(engines)]
        engine.theirs.add_request(engine.request(str(i), tokens + prompt(100 + i, tail), 1))
    while any(each.theirs.has_unfinished_requests() for each in engines):
        for each in engines:
            each.turn()
    return (sum(each.computed for each in engines) - n * tail) / head


@pytest.mark.parametrize("n", BURSTS)
@pytest.mark.parametrize("name", KINDS)
def test_burst(name, n, folder, monkeypatch):
    page, head = KINDS[name][0], BURSTS[n]
    pages = 12 * (head // page + n * 8)
    said = ways(lambda engines: computed(engines, n, head, page), folder, monkeypatch, KINDS[name],
                pages, max_num_seqs=64, max_num_batched_tokens=512, max_model_len=2 * head)
    print(f"\n{name}, {n} prompts on a new beginning of {head}, computed: "
          f"{', '.join(f'{way} {times:.1f}' for way, times in said.items())}")
