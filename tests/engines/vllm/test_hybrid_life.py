# SPDX-License-Identifier: Apache-2.0
"""Requests of models with windows or states, from admission to their end: two of vLLM's own schedulers
on one pool, whose workers are a model of what is written where.

A cell of a page holds what its KV depends on: the group of layers, and all tokens up to its position.
A state's page holds the tokens that it is behind. Each step compares all that its layers would read,
and writes no page that is cached.
"""
import dataclasses
import random

import life
import numpy as np
import pytest
from conftest import geometry
from engine import counters, expect_nothing_held, until

from kvtrunk import InvalidArgument, testing


@dataclasses.dataclass
class Kind:
    """A model, its pool, and what is asked of it."""

    page: int
    pages: int
    longest: int
    """In pages."""
    budget: int
    """Positions of a step, at most."""
    requests: int
    windows: tuple[int, ...] = ()
    states: int = 0
    retention: int = 0

    @property
    def sides(self):
        return [-(-(window - 1) // self.page) for window in self.windows] + [1] * self.states

    def specs(self):
        import torch
        from vllm.v1.kv_cache_interface import MambaSpec, SlidingWindowSpec

        return [*(SlidingWindowSpec(block_size=self.page, num_kv_heads=2, head_size=64,
                                    dtype=torch.float32, sliding_window=window)
                  for window in self.windows),
                *(MambaSpec(block_size=self.page, shapes=((2, 64),), dtypes=(torch.float32,),
                            mamba_cache_mode="align") for _ in range(self.states))]


KINDS = {"window": Kind(16, 72, 14, 72, 150, windows=(40,)),
         "windows at page ends": Kind(16, 72, 14, 100, 120, windows=(33,), retention=64),
         "gemma": Kind(16, 120, 14, 72, 100, windows=(24,) * 5),
         "states": Kind(544, 48, 6, 1200, 60, states=3),
         "states of many steps": Kind(100, 44, 8, 70, 100, states=3)}


class Pool:
    """What is in each cell."""

    def __init__(self, kind):
        self.kind = kind
        self.cells = np.zeros((kind.pages, kind.page), np.int64)
        self.reused = 0

    def expect(self, row):
        """What a request reuses is compared when its first step reads it."""
        self.reused += row.computed

    def parts(self, first, end):
        """Pages of a row's positions: index, first cell, end."""
        page = self.kind.page
        for index in range(first // page, -(-end // page)):
            yield index, max(first, index * page), min(end, (index + 1) * page)

    def read(self, row, group, first, end):
        """All that attention sees is the request's own."""
        for index, a, b in self.parts(first, end):
            number = row.tables[group][index]
            cells = self.cells[number, a % self.kind.page:][:b - a]
            assert number and (cells == row.values(group, a, b)).all(), (group, number, a, b)

    def write(self, row, group, first, end, client):
        for index, a, b in self.parts(first, end):
            number = row.tables[group][index]
            assert number and not cached(client, number), (group, number)
            self.cells[number, a % self.kind.page:][:b - a] = row.values(group, a, b)

    def step_state(self, row, group, n, client):
        """Copy the state to the block of the step's end, and go on from it there."""
        page, table = self.kind.page, row.tables[group]
        source, target = (row.computed - 1) // page, -(-(row.computed + n) // page) - 1
        if row.computed:
            value = row.values(group, row.computed - 1, row.computed)
            assert table[source] and (self.cells[table[source]] == value).all(), (group, source)
        assert table[target] and not cached(client, table[target]), (group, table[target])
        self.cells[table[target]] = row.values(group, row.computed + n - 1, row.computed + n)


class Row(life.Row):
    """With a number for each beginning of its tokens."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.begins = np.zeros(0, np.int64)

    def grow(self):
        """Numbers for tokens that came since."""
        value, new = int(self.begins[-1]) if len(self.begins) else 1, []
        for token in self.tokens[len(self.begins):]:
            value = hash((value, token)) & 0xffffffffffff
            new.append(value)
        self.begins = np.concatenate((self.begins, np.array(new, np.int64)))

    def values(self, group, first, end):
        return self.begins[first:end] * 16 + group + 1


class Engine(life.Engine):
    """A scheduler and its worker."""

    row = Row

    def __init__(self, folder, kind, pool, chance, asynchronous):
        super().__init__(
            folder, pool, chance, asynchronous, pages=kind.pages, page=kind.page,
            sides=kind.specs(), retention=kind.retention, max_num_seqs=6,
            max_model_len=kind.longest * kind.page, max_num_batched_tokens=kind.budget)
        self.kind = kind

    def _forward(self, row, n, client):
        """Returns the sampled tokens of a request, of which n tokens were scheduled."""
        first, end, pool = row.computed, row.computed + n, self.pool
        row.grow()
        assert end <= len(row.tokens)
        pool.read(row, 0, 0, first)
        for group, window in enumerate(self.kind.windows, 1):
            pool.read(row, group, max(0, first - window + 1), first)
        for group in range(1 + len(self.kind.windows)):
            pool.write(row, group, first, end, client)
        for group in range(1 + len(self.kind.windows), len(row.tables)):
            pool.step_state(row, group, n, client)
        row.computed = end
        if end < len(row.tokens):
            return []
        row.tokens.append(int(row.begins[-1]) >> 7 & 1)
        return row.tokens[-1:]

    def compute(self, step, known):
        """A step's output."""
        client = self.manager.engine.ring.client
        self.follow(step, known)
        for number in step.new_block_ids_to_zero or ():
            assert not cached(client, number)
            self.pool.cells[number] = 0
        self.answer(step, [self._forward(self.rows[name], n, client)
                           for name, n in step.num_scheduled_tokens.items()])

    @property
    def manager(self):
        return self.theirs.kv_cache_manager


def cached(client, page):
    """Whether others may read a page."""
    try:
        return client.sealer(page)
    except InvalidArgument:
        return 0


def prompt(kind, chance, heads):
    """Prompts that part just before, at and behind the end of a page, or inside of one."""
    head, page = chance.choice(heads), kind.page
    part = chance.choice((-1, 0, 0, 1, page // 2))
    head = head[:chance.randrange(1, len(head) // page + 1) * page + part]
    most = min(kind.longest * page - len(head) - 1, 2 * page)
    tail = chance.choices((0, 1), k=chance.choice((1, 1, 2, 3, page - 2, page, most)))
    return head + tail, chance.choice((1, 2, 5, page, page + 30, min(3 * page, 300)))


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("name", KINDS)
def test_a_request_reads_its_own_tokens_windows_and_states(folder, monkeypatch, caplog, name,
                                                           asynchronous):
    from kvtrunk.vllm import connector
    monkeypatch.setattr(connector, "check_groups", lambda *_: None)
    monkeypatch.setattr(connector, "check_pages", lambda *_: None)
    kind = KINDS[name]
    chance, pool = random.Random(name), Pool(kind)
    heads = [chance.choices((0, 1), k=(kind.longest - 3) * kind.page) for _ in range(3)]
    heads.append(heads[0][:2 * kind.page] + heads[1][2 * kind.page:])
    options = geometry(1, 1, 16, page_size=kind.page, n_pages=kind.pages,
                       max_private_pages=kind.pages, sides=",".join(map(str, kind.sides)))
    with testing.daemon(**options) as daemon:
        monkeypatch.setenv("KVTRUNK_SOCKET", daemon.socket)
        pair = [Engine(folder, kind, pool, chance, asynchronous) for _ in range(2)]
        life.run(chance, pair, kind.requests, lambda: prompt(kind, chance, heads))
        now = counters(daemon)
        assert pool.reused > 50 * kind.page and now.evicted_pages and now.side_pages
        until(lambda: counters(daemon).private_pages == 0)
        for engine in pair:
            assert engine.resumed
            engine.theirs.shutdown()
        expect_nothing_held(daemon)
    assert "KV stays private" not in caplog.text
