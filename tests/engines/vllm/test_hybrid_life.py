# SPDX-License-Identifier: Apache-2.0
"""Requests of models with windows or states, from admission to their end: two of vLLM's own schedulers
on one pool, whose workers are a model of what is written where.

A cell of a page holds what its KV depends on: the group of layers, and all tokens up to its position.
A state's page holds the tokens that it is behind. Each step compares all that its layers would read,
and writes no page that is cached.
"""
import contextlib
import dataclasses
import random

import life
import measure_step
import numpy as np
import pytest
from conftest import geometry
from engine import counters, expect_nothing_held, until

from kvtrunk import ConnectionLost, InvalidArgument, testing


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
    def groups(self):
        return self.page, self.windows, self.states

    def geometry(self):
        """Options of a daemon."""
        return geometry(1, 1, 16, page_size=self.page, n_pages=self.pages,
                        max_private_pages=self.pages, sides=measure_step.trailing(*self.groups))


KINDS = {"window": Kind(16, 72, 14, 72, 150, windows=(40,)),
         "windows at page ends": Kind(16, 72, 14, 100, 120, windows=(33,), retention=64),
         "gemma": Kind(16, 120, 14, 72, 100, windows=(24,) * 5),
         "states": Kind(544, 48, 6, 1200, 60, states=3),
         "states of many steps": Kind(100, 44, 8, 70, 100, states=3)}


class Pool:
    """What is in each cell."""

    def __init__(self, kind):
        self.kind = kind
        self.pools = {}
        self.reused = 0

    def use(self, client):
        """Work on the pool of this client's daemon."""
        self.client = client
        self.cells = self.pools.setdefault(
            client.info.instance, np.zeros((self.kind.pages, self.kind.page), np.int64))

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

    def expect_private(self, number):
        """No other may read a page that is written."""
        try:
            sealer = self.client.sealer(number)
        except (InvalidArgument, ConnectionLost):
            sealer = 0
        assert number and not sealer, number

    def write(self, row, group, first, end):
        for index, a, b in self.parts(first, end):
            number = row.tables[group][index]
            self.expect_private(number)
            self.cells[number, a % self.kind.page:][:b - a] = row.values(group, a, b)

    def step_state(self, row, group, n):
        """Copy the state to the block of the step's end, and go on from it there."""
        page, table = self.kind.page, row.tables[group]
        source, target = (row.computed - 1) // page, -(-(row.computed + n) // page) - 1
        if row.computed:
            value = row.values(group, row.computed - 1, row.computed)
            assert table[source] and (self.cells[table[source]] == value).all(), (group, source)
        self.expect_private(table[target])
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
            sides=measure_step.specs(*kind.groups), retention=kind.retention, max_num_seqs=6,
            max_model_len=kind.longest * kind.page, max_num_batched_tokens=kind.budget)
        self.kind = kind

    def _forward(self, row, n):
        """Returns the sampled tokens of a request, of which n tokens were scheduled."""
        first, end, pool = row.computed, row.computed + n, self.pool
        row.grow()
        assert end <= len(row.tokens)
        pool.read(row, 0, 0, first)
        for group, window in enumerate(self.kind.windows, 1):
            pool.read(row, group, max(0, first - window + 1), first)
        for group in range(1 + len(self.kind.windows)):
            pool.write(row, group, first, end)
        for group in range(1 + len(self.kind.windows), len(row.tables)):
            pool.step_state(row, group, n)
        row.computed = end
        if end < len(row.tokens):
            return []
        row.tokens.append(int(row.begins[-1]) >> 7 & 1)
        return row.tokens[-1:]

    def compute(self, step, known):
        """A step's output."""
        self.pool.use(self.theirs.kv_cache_manager.engine.ring.client)
        self.follow(step, known)
        for number in step.new_block_ids_to_zero or ():
            self.pool.expect_private(number)
            self.pool.cells[number] = 0
        self.answer(step, [self._forward(self.rows[name], n)
                           for name, n in step.num_scheduled_tokens.items()])


def prompt(kind, chance, heads):
    """Prompts that part just before, at and behind the end of a page, or inside of one."""
    head, page = chance.choice(heads), kind.page
    part = chance.choice((-1, 0, 0, 1, page // 2))
    head = head[:chance.randrange(1, len(head) // page + 1) * page + part]
    most = min(kind.longest * page - len(head) - 1, 2 * page)
    tail = chance.choices((0, 1), k=chance.choice((1, 1, 2, 3, page - 2, page, most)))
    return head + tail, chance.choice((1, 2, 5, page, page + 30, min(3 * page, 300)))


@contextlib.contextmanager
def lives(folder, monkeypatch, name, asynchronous, seed=0):
    """Two engines on a daemon, what their requests need, and a model of the pool. Behind it nothing
    is held."""
    kind = KINDS[name]
    chance, pool = random.Random(f"{name} {seed}"), Pool(kind)
    heads = [chance.choices((0, 1), k=(kind.longest - 3) * kind.page) for _ in range(3)]
    heads.append(heads[0][:2 * kind.page] + heads[1][2 * kind.page:])
    with testing.daemon(**kind.geometry()) as daemon:
        monkeypatch.setenv("KVTRUNK_SOCKET", daemon.socket)
        pair = [Engine(folder, kind, pool, chance, asynchronous) for _ in range(2)]
        yield daemon, pair, lambda n: life.run(chance, pair, n, lambda: prompt(kind, chance, heads))
        for engine in pair:
            assert engine.resumed
        until(lambda: counters(daemon).private_pages == 0)
        for engine in pair:
            engine.theirs.shutdown()
        expect_nothing_held(daemon)


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("name", KINDS)
def test_a_request_reads_its_own_tokens_windows_and_states(folder, monkeypatch, caplog, name,
                                                           asynchronous):
    kind = KINDS[name]
    with lives(folder, monkeypatch, name, asynchronous) as (daemon, pair, run):
        run(kind.requests)
        now = counters(daemon)
        assert pair[0].pool.reused > 50 * kind.page and now.evicted_pages and now.side_pages
    assert "KV stays private" not in caplog.text


@pytest.mark.parametrize("name", ["window", "states of many steps"])
def test_requests_are_computed_again_on_a_daemon_that_comes_back_empty(folder, monkeypatch, name):
    with lives(folder, monkeypatch, name, True) as (daemon, pair, run):
        for _ in range(3):
            run(20)
            for engine in pair:
                engine.add([1, 0] * KINDS[name].page, KINDS[name].page)
                for _ in range(4):
                    engine.turn()
            daemon.restart()
            run(0)
        assert len(pair[0].pool.pools) == 4


def test_pages_of_a_step_in_flight_are_not_given_back(folder, monkeypatch):
    kind = KINDS["gemma"]
    with testing.daemon(**kind.geometry()) as daemon:
        monkeypatch.setenv("KVTRUNK_SOCKET", daemon.socket)
        engine = Engine(folder, kind, Pool(kind), random.Random(0), True)
        tokens = [0, 1] * kind.page
        engine.add(tokens, 5)
        step = engine.theirs.schedule()
        held = counters(daemon).private_pages
        assert held > 2 * len(kind.windows)
        engine.abort()
        empty = engine.theirs.schedule()
        assert counters(daemon).private_pages == held
        engine.compute(step, {"1": tokens})
        engine.compute(empty, {})
        until(lambda: counters(daemon).private_pages == 0)
        engine.theirs.shutdown()


def test_a_pool_without_room_for_the_longest_request_is_refused(folder, monkeypatch):
    kind = dataclasses.replace(KINDS["gemma"], pages=48)
    with testing.daemon(**kind.geometry()) as daemon:
        monkeypatch.setenv("KVTRUNK_SOCKET", daemon.socket)
        with pytest.raises(ValueError, match="may need 14 pages, and 35 for windows and states, but "
                                             "one session gets 47"):
            Engine(folder, kind, Pool(kind), random, False)


def test_parts_of_blocks_are_not_reused(folder, monkeypatch):
    kind = KINDS["states"]
    with testing.daemon(**kind.geometry()) as daemon:
        monkeypatch.setenv("KVTRUNK_SOCKET", daemon.socket)
        with pytest.raises(ValueError, match="start it without --prefix-match-unit"):
            measure_step.Scheduler(folder, True, pages=kind.pages, page=kind.page, unit=16,
                                   sides=measure_step.specs(*kind.groups))
