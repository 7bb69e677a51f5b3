# SPDX-License-Identifier: Apache-2.0
"""Figures: what vLLM's schedulers reuse, without a model: with caches of their own and on one pool of
as many pages. One request at a time, and the model answers 7.

The agent sessions are those of measure.py, so its figures of a Llama come out here, too. The hour of
chats is scaled down by 16, and so are the pages and windows of published models: they are the same
numbers of pages. The model generates a 64th of each answer.

    tests/engines/run vllm tests/engines/vllm/measure_hits.py -s
"""
import gzip
import json
import os
import pathlib
import random

import agents
import measure_step
import model
import pytest
from conftest import PAGE, geometry

from kvtrunk import testing

TURNS = 20
SESSIONS = {"Llama": (PAGE, (), 0), "gpt-oss": (PAGE, (128,), 0), "Gemma 3": (PAGE, (128,) * 5, 0),
            "Qwen3-Next": (96, (), 3), "Granite 4": (256, (), 1)}
"""Page size, windows and states of the models of the whole engines' tests."""

TRACE = pathlib.Path(os.environ.get("KVT_DATA", "../shared/data"),
                     "mooncake_conversation.jsonl.gz").resolve()
SCALE, SAID = 16, 64
CHATS = {"gpt-oss 20B": (64, (128,), 0), "Gemma 3 27B": (64, (1024,) * 6, 0),
         "Qwen3 Next 80B": (544, (), 3), "Nemotron H 8B": (1056, (), 2)}
ID, LONGEST, STEP = (n // SCALE for n in (512, 1 << 17, 1 << 13))
"""Positions that an id of the trace stands for, of the longest request, and of a step."""


class Engine(measure_step.Scheduler):
    """Answers as those of engine.py."""

    def __init__(self, folder, shared, pages, groups, **options):
        super().__init__(folder, shared, pages=pages, page=groups[0],
                         sides=measure_step.specs(*groups), **options)
        self.n = 0

    def generate(self, tokens, max_tokens, salt=None):
        before, self.n = self.reused, self.n + 1
        self.run([(str(self.n), tokens, max_tokens, salt)])
        return [{"tokens": [7] * max_tokens, "cached": self.reused - before}]


def ways(serve, folder, monkeypatch, groups, pages, **options):
    """Print what serve(engines) says of one and two engines, with caches of their own and on a pool."""
    for way, n, shared in (("one, own cache", 1, False), ("one, on the pool", 1, True),
                           ("two, half each", 2, False), ("two, one pool", 2, True)):
        with testing.daemon(**geometry(
                1, 1, 16, page_size=groups[0], n_pages=pages, max_private_pages=pages,
                sides=measure_step.trailing(*groups))) as daemon:
            monkeypatch.setenv("KVTRUNK_SOCKET", daemon.socket)
            monkeypatch.setenv("KVTRUNK_CHECK_EVERY", "0")  # there are no workers to compare pages
            engines = [Engine(folder, shared, pages if shared else pages // n, groups, **options)
                       for _ in range(n)]
            print(f"{way}: {serve(engines)}", flush=True)
            for each in engines if shared else ():
                each.theirs.shutdown()


def pages_for(name):
    """As measure.py has for a Llama, for each group."""
    page, windows, states = SESSIONS[name]
    return (agents.positions(TURNS) // page + 27) * (1 + len(windows) + states)


@pytest.mark.parametrize("name", SESSIONS)
def test_agent_sessions(name, tmp_path, monkeypatch):
    pages, folder = pages_for(name), model.write(tmp_path)
    print(f"\n{name}, {pages} pages of {SESSIONS[name][0]}: positions computed; if sessions stay")
    ways(lambda engines: [agents.run(engines, sticky, str(sticky), TURNS)[0]
                          for sticky in (False, True)],
         folder, monkeypatch, SESSIONS[name], pages, max_model_len=2048)


def chats():
    """Tokens, and how many to generate."""
    with gzip.open(TRACE, "rt") as lines:
        for row in map(json.loads, lines):
            tokens = [token for i in row["hash_ids"] for token in range(i * ID, (i + 1) * ID)]
            yield tokens[:row["input_length"] // SCALE], max(1, row["output_length"] // SAID)


def share_reused(engines):
    """Percent, of positions of the hour of chats."""
    chance, asked = random.Random(5), 0
    for tokens, said in chats():
        chance.choice(engines).generate(tokens, said)
        asked += len(tokens)
    return round(100 * sum(each.reused for each in engines) / asked, 2)


@pytest.mark.parametrize("room", [1 << 21, 1 << 23])
@pytest.mark.parametrize("name", CHATS)
def test_hour_of_chats(name, room, tmp_path, monkeypatch):
    """room: positions that all pages hold."""
    page, windows, states = CHATS[name]
    groups = page // SCALE, tuple(window // SCALE for window in windows), states
    folder = model.write(tmp_path, max_position_embeddings=LONGEST)
    print(f"\n{name}, {room // page} pages of {page}: positions reused, percent")
    ways(share_reused, folder, monkeypatch, groups, room // page, max_model_len=LONGEST,
         max_num_batched_tokens=STEP)


@pytest.mark.parametrize("name", [name for name, (_, _, states) in SESSIONS.items() if states])
def test_hits_within_a_block(name, tmp_path):
    """Positions that vLLM's --prefix-match-unit saves with its own cache."""
    pages, folder = pages_for(name), model.write(tmp_path)
    print()
    for unit in (None, PAGE):
        engine = Engine(folder, False, pages, SESSIONS[name], unit=unit, max_model_len=2048)
        print(f"{name}, {pages} pages of {SESSIONS[name][0]}, unit {unit}: "
              f"{agents.run([engine], True, None, TURNS)[0]} positions computed", flush=True)
