# SPDX-License-Identifier: Apache-2.0
"""The order of work on a device: two of vLLM's own asynchronous schedulers on one pool, whose
forward passes are queued on a stand-in for a stream, which lags. No page may be published before the
pass that writes it has run, and none be freed before the last pass that reads it.

A slot holds what its KV depends on, all tokens up to its position. A pass checks, when it runs, each
slot that it reads.
"""
import random

import life
import pytest
from conftest import PAGE, geometry
from engine import counters, expect_nothing_held
from lagging import Stream, prefixes

from kvtrunk import testing
from kvtrunk.engine._ring import Ring

PAGES, LONGEST, REQUESTS = 48, 224, 300


class Pool:
    """Contents of each slot."""

    def __init__(self):
        self.slots, self.reused = {}, 0

    def expect(self, row):
        self.reused += row.computed


class Engine(life.Engine):
    """A scheduler, and a worker whose passes run later. eager: see Stream."""

    def __init__(self, folder, pool, chance, eager):
        super().__init__(folder, pool, chance, True, pages=PAGES, max_model_len=LONGEST,
                         max_num_seqs=6, max_num_batched_tokens=72)
        self.stream = Stream(chance, eager)

    def turn(self):
        step = self.theirs.schedule()
        self.follow(step, {name: list(self.theirs.requests[name].all_token_ids)
                           for name in step.num_scheduled_tokens})
        sampled = [self.launch(self.rows[name], n)
                   for name, n in step.num_scheduled_tokens.items()]
        self.queue.append((step, (self.stream.launch(lambda: None), sampled)))
        while self.queue and (len(self.queue) >= self.depth or not step.num_scheduled_tokens):
            self.compute(*self.queue.popleft())

    def launch(self, row, n):
        """Queue a request's pass. Returns what it samples."""
        first, table, values = row.computed, list(row.table), prefixes(row.tokens)

        def run():
            slots = self.pool.slots
            for at in range(first):
                assert slots[table[at // PAGE], at % PAGE] == values[at], "a foreign slot was read"
            for at in range(first, first + n):
                slots[table[at // PAGE], at % PAGE] = values[at]

        self.stream.launch(run)
        row.computed += n
        if row.computed < len(row.tokens):
            return []
        row.tokens.append(values[-1] >> 7 & 1)
        return row.tokens[-1:]

    def compute(self, step, launched):
        """A step's output, behind its event."""
        event, sampled = launched
        self.stream.synchronize(event)
        self.answer(step, sampled)


def prompt(chance, heads):
    """Prompts with equal beginnings, which both engines ask for at about the same time."""
    if chance.random() < 0.3:
        heads[:] = [*heads[1:], chance.choices((0, 1), k=5 * PAGE)]
    head = chance.choice(heads)
    return (head[:chance.randrange(1, len(head) // PAGE + 1) * PAGE]
            + chance.choices((0, 1), k=chance.choice((1, 2, 30, 33))))


def work(folder, monkeypatch, seed):
    """Random requests in two engines, in a pool that is too small."""
    monkeypatch.setenv("KVTRUNK_CHECK_EVERY", "0")
    chance, pool = random.Random(seed), Pool()
    heads = [chance.choices((0, 1), k=5 * PAGE) for _ in range(2)]
    with testing.daemon(**geometry(n_pages=PAGES, max_private_pages=PAGES)) as daemon:
        monkeypatch.setenv("KVTRUNK_SOCKET", daemon.socket)
        # One lags, and the other uses at once what that one publishes or frees too early.
        pair = [Engine(folder, pool, chance, eager) for eager in (0.02, 0.8)]
        try:
            life.run(chance, pair, REQUESTS, lambda: (
                prompt(chance, heads), chance.choice((1, 2, 5, 40, LONGEST))))
            assert pool.reused > 50 * PAGE and counters(daemon).evicted_pages
        finally:
            for engine in pair:
                engine.theirs.shutdown()
        expect_nothing_held(daemon)


@pytest.mark.parametrize("seed", range(2))
def test_no_page_is_published_or_freed_before_its_work_has_run(folder, monkeypatch, seed):
    work(folder, monkeypatch, seed)


@pytest.mark.parametrize("operation", ["commit", "end"])
def test_an_early_publication_and_an_early_free_are_found(folder, monkeypatch, operation):
    """Planted: the operation has no fence."""
    original, at = getattr(Ring, operation), {"commit": 3, "end": 1}[operation]

    def early(ring, *values):
        return original(ring, *values[:at], None, *values[at + 1:])

    monkeypatch.setattr(Ring, operation, early)
    with pytest.raises((AssertionError, KeyError), match="foreign slot|^\\("):
        work(folder, monkeypatch, 0)
