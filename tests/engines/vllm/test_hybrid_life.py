# SPDX-License-Identifier: Apache-2.0
"""Requests of models with windows or states, from admission to their end: two of vLLM's own schedulers
on one pool, whose workers are a model of what is written where.

A cell of a page holds what its KV depends on: the group of layers, and all tokens up to its position.
A state's page holds the tokens that it is behind. Each step compares all that its layers would read,
and writes no page that is cached. Cells lie in the daemon's pool, so a store copies them.
"""
import contextlib
import dataclasses
import random
import re

import life
import measure_step
import numpy as np
import pytest
import stores
from conftest import geometry
from engine import counters, expect_nothing_held, until

from kvtrunk import ConnectionLost, InvalidArgument, testing
from kvtrunk.vllm import _cache


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
    blocks: int = 1
    """Blocks of a window in a page."""
    checkpoints: int = 0
    """Blocks for a state that a step passes."""
    whole: bool = True
    """Whether a request begins when there is room for all of it."""

    @property
    def groups(self):
        return self.page, self.windows, self.states, self.blocks

    @property
    def sides(self):
        return [int(pages) for pages in measure_step.trailing(*self.groups).split(",")]

    def geometry(self):
        """Options of a daemon."""
        return geometry(1, 1, 16, page_size=self.page, n_pages=self.pages,
                        max_private_pages=self.pages, sides=measure_step.trailing(*self.groups))


KINDS = {"window": Kind(16, 72, 14, 72, 150, windows=(40,)),
         "windows at page ends": Kind(16, 72, 14, 100, 120, windows=(33,), retention=64),
         "gemma": Kind(16, 120, 14, 72, 100, windows=(24,) * 5),
         "two blocks in a page": Kind(32, 120, 8, 100, 100, windows=(40,) * 3, blocks=2),
         "four blocks in a page": Kind(64, 136, 6, 150, 120, windows=(33,) * 5, blocks=4),
         "windows of large pages": Kind(96, 72, 7, 300, 80, windows=(150, 97)),
         "states": Kind(544, 48, 6, 1200, 60, states=3),
         "states of many steps": Kind(100, 44, 8, 70, 100, states=3),
         "states in passing": Kind(100, 44, 8, 350, 100, states=2, checkpoints=1),
         "window in chunks": Kind(16, 72, 14, 72, 150, windows=(40,), whole=False),
         "states in chunks": Kind(100, 44, 8, 70, 100, states=3, whole=False)}


class Pool:
    """Contents of each cell: a number for each position of a page."""

    def __init__(self, kind):
        self.kind = kind
        self.instances = set()
        self.reused = self.passed = 0

    def use(self, client):
        """Work on the pool of this client's daemon."""
        self.client = client
        self.instances.add(client.info.instance)
        first_head = np.asarray(client.pool.layer(0).k_bits)[:, 0]
        self.cells = first_head[:, :, :2].view(np.int64)[:, :, 0]

    def expect(self, row):
        """Reused positions are compared when the request's first step reads them."""
        self.reused += row.computed

    def parts(self, group, first, end):
        """Blocks of a row's positions: index, first cell, first position, end."""
        size = self.kind.page // (self.kind.blocks if group else 1)
        for index in range(first // size, -(-end // size)):
            yield index, max(first - index * size, 0), max(first, index * size), min(
                end, (index + 1) * size)

    def read(self, row, group, first, end):
        """All that attention sees is the request's own."""
        for index, cell, a, b in self.parts(group, first, end):
            number = row.tables[group][index]
            cells = self.cells[number, cell:][:b - a]
            assert number and (cells == row.values(group, a, b)).all(), (group, number, a, b)

    def expect_private(self, number):
        """No other may read a page that is written."""
        try:
            sealer = self.client.sealer(number)
        except (InvalidArgument, ConnectionLost):
            sealer = 0
        assert number and not sealer, number

    def write(self, row, group, first, end):
        for index, cell, a, b in self.parts(group, first, end):
            number = row.tables[group][index]
            self.expect_private(number)
            self.cells[number, cell:][:b - a] = row.values(group, a, b)

    def step_state(self, row, group, n):
        """Copy the state to the block of the step's end, and continue from it there. A state that the
        step passes at the end of a page is kept in the block before, if there is one."""
        page, table = self.kind.page, row.tables[group]
        source, target = (row.computed - 1) // page, -(-(row.computed + n) // page) - 1
        if self.kind.checkpoints and target - 1 > source and table[target - 1]:
            self.expect_private(table[target - 1])
            self.cells[table[target - 1]] = row.values(group, target * page - 1, target * page)
            self.passed += 1
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
            sides=measure_step.specs(*kind.groups, kind.checkpoints), retention=kind.retention,
            max_num_seqs=6, scheduler_reserve_full_isl=kind.whole,
            unit=kind.page // kind.blocks if kind.blocks > 1 else None,
            max_model_len=kind.longest * kind.page, max_num_batched_tokens=kind.budget)
        self.kind = kind

    def _forward(self, row, n):
        """Returns the sampled tokens of a request with n scheduled tokens."""
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

        def ask(n):
            life.run(chance, pair, n, lambda: prompt(kind, chance, heads))

        yield daemon, pair, ask
        life.until_resumed(pair, ask)
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
        assert bool(pair[0].pool.passed) == bool(kind.checkpoints)
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
        assert len(pair[0].pool.instances) == 4


@pytest.fixture
def patient(monkeypatch):
    """On a busy machine a store answers late, and loads long."""
    monkeypatch.setenv("KVTRUNK_FETCH_WAIT_MS", "60000")


# With the other kinds few loads are long enough that a BEGIN waits for them, or fit beside a match.
@pytest.mark.parametrize("name", ["states of many steps"])
@pytest.mark.usefixtures("patient")
def test_a_request_reads_what_a_store_brought_back(folder, monkeypatch, caplog, name):
    kind = KINDS[name]
    with lives(folder, monkeypatch, name, True) as (daemon, pair, run), \
            stores.running(daemon, "8M", "--min-positions=32", "--load-percent=50") as store:
        run(kind.requests)
        counts = store.settled(0)
        assert counts["loads"] > 1, counts
        assert pair[0].pool.reused > 50 * kind.page
    assert "KV stays private" not in caplog.text


@contextlib.contextmanager
def life_of_one(folder, monkeypatch, kind, asynchronous=False):
    """A daemon, and an engine on it."""
    with testing.daemon(**kind.geometry()) as daemon:
        monkeypatch.setenv("KVTRUNK_SOCKET", daemon.socket)
        engine = Engine(folder, kind, Pool(kind), random.Random(0), asynchronous)
        yield daemon, engine
        engine.theirs.shutdown()


def reused(engine, tokens, **more):
    """Positions that a request reuses, which ends."""
    before = engine.pool.reused
    engine.add(tokens, 1, **more)
    engine.drain()
    return engine.pool.reused - before


@pytest.mark.parametrize("name", ["window", "gemma", "states"])
@pytest.mark.usefixtures("patient")
def test_as_much_is_reused_of_what_a_store_brings_back(folder, monkeypatch, name):
    kind = KINDS[name]
    with life_of_one(folder, monkeypatch, kind) as (daemon, engine), \
            stores.running(daemon, "8M", "--min-positions=16", "--load-percent=50") as store, \
            daemon.connect(any_geometry=True) as client:
        tokens = tokens_of(kind, 5)
        assert reused(engine, tokens) == 0
        until(lambda: counters(daemon).private_pages == 0)
        pages = client.stats().cached_pages
        assert store.settled(pages)["pages"] == pages
        client.evict(kind.pages)
        assert client.stats().cached_pages == 0
        assert reused(engine, tokens) == 5 * kind.page
        assert store.settled(0)["loaded_pages"] == pages
        assert reused(engine, [*tokens, 0, 1]) == 5 * kind.page


def tokens_of(kind, pages, seed=0):
    """A prompt whose last token is behind whole pages."""
    return random.Random(seed).choices((0, 1), k=pages * kind.page + 1)


@pytest.mark.parametrize("name, first, more, left", [
    ("states of many steps", 2, 1, 3), ("states of many steps", 2, 3, 6), ("gemma", 2, 1, 10),
    ("gemma", 2, 2, 10), ("gemma", 2, 10, 20), ("window", 6, 2, 5)])
def test_a_request_drops_the_point_it_continued_from_when_it_ends(folder, monkeypatch, name, first,
                                                                  more, left):
    """If that has more pages than were computed since; but none that the new point needs."""
    kind = KINDS[name]
    with life_of_one(folder, monkeypatch, kind) as (daemon, engine):
        tokens = tokens_of(kind, first + more)
        assert reused(engine, tokens[:first * kind.page + 1]) == 0
        point = counters(daemon).side_pages
        assert point == sum(min(first, most) for most in kind.sides)
        name = engine.add(tokens, kind.page + 3)
        while engine.theirs.requests[name].num_output_tokens < kind.page + 2:
            engine.turn()  # it publishes a page of what it generates
        assert engine.pool.reused == first * kind.page
        both = sum(min(most, more) for most in kind.sides)
        until(lambda: counters(daemon).side_pages == point + both)
        engine.drain()
        until(lambda: counters(daemon).private_pages == 0)
        assert counters(daemon).side_pages == left
        assert reused(engine, tokens) == (first + more) * kind.page


@pytest.mark.parametrize("name, retention, found", [
    ("windows at page ends", 0, 0), ("windows at page ends", 64, 64),
    ("states of many steps", 0, 0), ("states of many steps", 200, 200)])
def test_a_prompt_parts_from_another_behind_a_point_that_retention_made(folder, monkeypatch, name,
                                                                       retention, found):
    kind = dataclasses.replace(KINDS[name], retention=retention)
    with life_of_one(folder, monkeypatch, kind) as (_, engine):
        tokens = tokens_of(kind, 7)
        assert reused(engine, tokens) == 0
        # Where most was known of the path: behind the first point, before the next.
        parts = max(found, kind.page) + kind.page // 2
        other = [*tokens[:parts], 1 - tokens[parts], *tokens_of(kind, 2, seed=1)]
        assert reused(engine, other) == found


def needed(folder, kind, monkeypatch, asynchronous):
    """Pages that the adapter wants for a session."""
    short = dataclasses.replace(kind, pages=kind.longest + 2)  # the main pages fit
    with pytest.raises(ValueError, match="may need") as caught, \
            life_of_one(folder, monkeypatch, short, asynchronous):
        pass
    whole, sides = re.search(r"may need (\d+) pages, and (\d+) for", str(caught.value)).groups()
    return int(whole) + int(sides)


def ended(engines, chance):
    """Whether all requests have, after some turns of each. The daemon has time between the calls."""
    for _ in range(20 * len(engines)):
        chance.choice(engines).turn()
    return not any(engine.theirs.requests for engine in engines)


LIMITS = {"0": 1, "75%": 0.75, "100%": 0.875}
"""max_private_pages, and what of the pool a session can have of it while another one is open."""


@pytest.mark.parametrize("n_engines, asynchronous, limit", [
    (1, False, "0"), (1, True, "0"), (2, True, "75%"), (2, True, "100%")])
@pytest.mark.parametrize("name", ["window", "gemma", "four blocks in a page", "states of many steps",
                                  "states in passing", "window in chunks", "states in chunks"])
def test_each_request_ends_in_the_smallest_pool_that_is_accepted(folder, monkeypatch, name,
                                                                 n_engines, asynchronous, limit):
    """Its lease locks what is cached of it, reused or not, and that may leave no room for its side
    pages."""
    monkeypatch.setattr(_cache, "RETRY_S", 0.0)
    least = needed(folder, KINDS[name], monkeypatch, asynchronous)
    usable = int(least / LIMITS[limit]) + (LIMITS[limit] < 1)
    kind = dataclasses.replace(KINDS[name], pages=usable + 1)
    chance, pool = random.Random(name), Pool(kind)
    tokens = tokens_of(kind, kind.longest - 1)
    with testing.daemon(**{**kind.geometry(), "max_private_pages": limit}) as daemon:
        monkeypatch.setenv("KVTRUNK_SOCKET", daemon.socket)
        engines = [Engine(folder, kind, pool, chance, asynchronous) for _ in range(n_engines)]
        for pages in [kind.longest - 1, kind.longest - 2,
                      *(chance.randrange(1, kind.longest - 1) for _ in range(8))]:
            for engine in engines:
                part = chance.choice((0, 0, 1))
                engine.add(tokens[:pages * kind.page - part], chance.choice((5, kind.page)))
            until(ended, engines, chance)
        for engine in engines:
            engine.theirs.shutdown()


@pytest.mark.parametrize("n_engines", [1, 2])
@pytest.mark.parametrize("name", ["window", "gemma", "states of many steps"])
def test_a_burst_computes_its_new_beginning_twice(folder, monkeypatch, name, n_engines):
    """The first prompt, and the second one, which makes the point. All others wait for it."""
    kind = dataclasses.replace(KINDS[name], pages=900)
    head = tokens_of(kind, kind.longest - 3)[:-1]
    pool, chance = Pool(kind), random.Random(0)
    with testing.daemon(**kind.geometry(), coalesce_threshold=0) as daemon:
        monkeypatch.setenv("KVTRUNK_SOCKET", daemon.socket)
        engines = [Engine(folder, kind, pool, chance, False) for _ in range(n_engines)]
        for number in range(12):
            tail = [number >> bit & 1 for bit in range(4)] * (kind.page // 4)
            engines[number % n_engines].add(head + tail, 2)
        while any(engine.theirs.requests for engine in engines):
            for engine in engines:
                engine.turn()
        assert 12 * len(head) - pool.reused <= 2 * len(head) + 2 * kind.page
        for engine in engines:
            engine.theirs.shutdown()


@pytest.mark.parametrize("name", ["window", "states of many steps"])
def test_a_request_lets_go_of_a_point_that_it_has_left_behind(folder, monkeypatch, name):
    kind = KINDS[name]
    with life_of_one(folder, monkeypatch, kind) as (daemon, engine):
        tokens = tokens_of(kind, 3)
        name = engine.add(tokens, 4 * kind.page)
        held = counters(daemon).evictable_pages
        while name in engine.theirs.requests and counters(daemon).evictable_pages == held:
            engine.turn()
        assert name in engine.theirs.requests and counters(daemon).evictable_pages > 0
        engine.abort()
        until(lambda: counters(daemon).private_pages == 0)
        assert reused(engine, tokens) == 3 * kind.page  # what was let go stays cached


def test_prompts_below_the_minimum_are_neither_read_nor_published(folder, monkeypatch):
    kind = KINDS["window"]
    monkeypatch.setenv("KVTRUNK_MIN_POSITIONS", str(4 * kind.page + 1))
    with life_of_one(folder, monkeypatch, kind) as (daemon, engine):
        tokens = tokens_of(kind, 4)
        assert reused(engine, tokens[:-1]) == 0
        assert daemon.connect(any_geometry=True).stats().cached_pages == 0
        assert reused(engine, tokens) == 0
        assert reused(engine, tokens[:-1]) == 0
        assert reused(engine, tokens) == 4 * kind.page
        other = [*tokens[:3 * kind.page], 2, *tokens]
        assert reused(engine, other) == 0  # its match is shorter


def test_salts_and_adapters_share_no_side_pages(folder, monkeypatch):
    from vllm.lora.request import LoRARequest

    kind = KINDS["window"]
    adapters = [LoRARequest(name, number, f"/{name}") for name, number in
                (("a", 1), ("b", 2), ("a again", 3))]
    spaces = [{}, {"salt": "one"}, {"salt": "two"}, {"lora_request": adapters[0]},
              {"lora_request": adapters[1]}, {"lora_request": adapters[0], "salt": "one"}]
    with life_of_one(folder, monkeypatch, kind) as (daemon, engine):
        monkeypatch.setattr(engine.theirs.kv_cache_manager.engine.watch, "load_adapter",
                            lambda _: {1: "digest a", 2: "digest b", 3: "digest a"})
        tokens = tokens_of(kind, 4)
        assert [reused(engine, tokens, **space) for space in spaces] == [0] * len(spaces)
        assert counters(daemon).side_pages == len(spaces) * kind.sides[0]
        same = {"lora_request": adapters[2]}
        assert [reused(engine, tokens, **space) for space in (*spaces, same)] == \
            [4 * kind.page] * (len(spaces) + 1)


def test_pages_of_a_step_in_flight_are_not_given_back(folder, monkeypatch):
    kind = KINDS["gemma"]
    with life_of_one(folder, monkeypatch, kind, True) as (daemon, engine):
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


def test_a_pool_without_room_for_the_longest_request_is_refused(folder, monkeypatch):
    kind = dataclasses.replace(KINDS["gemma"], pages=55)
    with testing.daemon(**kind.geometry()) as daemon:
        monkeypatch.setenv("KVTRUNK_SOCKET", daemon.socket)
        with pytest.raises(ValueError, match="may need 14 pages, and 35 for windows and states, but "
                                             "one session gets 48"):
            Engine(folder, kind, Pool(kind), random, False)


def test_parts_of_blocks_are_not_reused(folder, monkeypatch):
    kind = KINDS["states"]
    with testing.daemon(**kind.geometry()) as daemon:
        monkeypatch.setenv("KVTRUNK_SOCKET", daemon.socket)
        with pytest.raises(ValueError, match="start it without --prefix-match-unit"):
            measure_step.Scheduler(folder, True, pages=kind.pages, page=kind.page, unit=16,
                                   sides=measure_step.specs(*kind.groups))
