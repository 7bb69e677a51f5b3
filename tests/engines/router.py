# SPDX-License-Identifier: Apache-2.0
"""Tests that hold for engines of any kind that publish KV events to a real router's index:
test_router.py of each kind imports these. conftest.events() are the engine's options."""
import itertools
import random

import pytest
from conftest import PAGE, SMALL, events, geometry
from engine import counters, prompt, until
from indexer import cached, expect_index, indexer  # noqa: F401
from sharing import new_epoch, whole

from kvtrunk import testing
from kvtrunk.engine._server import free_port

SEEDS = itertools.count(9000)
FIRST, SECOND = 1, 2


@pytest.fixture(scope="module")
def pool():
    """With a supervisor: killed, it continues."""
    with testing.daemon(supervise=True, **geometry()) as made:
        yield made


def shown(indexer, number, engine):
    """Only an event shows a subscriber those before it."""
    engine.generate(prompt(next(SEEDS), 40))
    return indexer.blocks(number)


@pytest.fixture(scope="module")
def join(indexer, pool, start):
    """Start engines that publish, as workers of the index. Returns them by their numbers."""
    def begin(*numbers):
        ports = {number: (free_port(), free_port()) for number in numbers}
        made = {number: start(pool, **SMALL, **events(*ports[number])) for number in numbers}
        for number, engine in made.items():
            engine.wait()  # the index tries ports that do not listen more and more rarely
            indexer.register(number, *(f"tcp://127.0.0.1:{port}" for port in ports[number]))
            until(shown, indexer, number, engine)
        return made

    return begin


@pytest.fixture(scope="module")
def workers(join):
    return join(FIRST, SECOND)


def test_what_a_computed_is_found_for_b(indexer, pool, workers):
    text = prompt(next(SEEDS), 200)
    workers[FIRST].generate(text)
    expect_index(indexer, pool, workers)
    assert indexer.found(text) == dict.fromkeys(workers, len(text) // PAGE * PAGE)
    assert workers[SECOND].generate(text)[0]["cached"] == whole(text)


def test_evictions_leave_the_index_of_each(indexer, pool, workers):
    chance = random.Random(3)
    before = counters(pool).evicted_pages
    for _ in range(12):
        for engine in workers.values():
            stem = prompt(chance.randrange(4), 32 * chance.randrange(8))
            engine.ask(do="generate", max_tokens=chance.randrange(1, 50), prompts=[
                stem + prompt(next(SEEDS), chance.randrange(1, 200)) for _ in range(3)])
        for engine in workers.values():
            engine.answer()
    assert counters(pool).evicted_pages > before
    assert expect_index(indexer, pool, workers) > 0


def test_a_killed_engine_leaves_the_index_and_returns(indexer, pool, workers, join):
    """Its messages begin at 0 again, which the index takes of a worker that is registered again."""
    workers.pop(FIRST).kill()
    indexer.unregister(FIRST)
    workers[SECOND].generate(prompt(next(SEEDS), 300))
    assert expect_index(indexer, pool, workers) > 0
    assert indexer.blocks(FIRST) == 0
    workers.update(join(FIRST))
    assert expect_index(indexer, pool, workers) > 0


def test_a_daemon_that_is_killed_keeps_the_index(indexer, pool, workers):
    texts = [prompt(next(SEEDS), 200) for _ in range(4)]
    for engine in workers.values():
        engine.ask(do="generate", prompts=texts)
    pool.kill()
    for engine in workers.values():
        engine.answer()
    assert expect_index(indexer, pool, workers) > 0


def test_a_new_daemon_empties_the_index(indexer, pool, workers):
    text = prompt(next(SEEDS), 200)
    before = cached(pool)[1]
    pool.restart()
    for engine in workers.values():
        engine.generate(text)
    assert 0 < expect_index(indexer, pool, workers) < before


def test_a_new_epoch_clears_the_index_of_one(indexer, workers):
    """It shares nothing with the other one any more."""
    (one, engine), (other, _) = workers.items()
    before = indexer.blocks(other)
    new_epoch(engine)
    until(lambda: indexer.blocks(one) == 0)
    assert indexer.blocks(other) == before > 0
