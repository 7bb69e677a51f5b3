# SPDX-License-Identifier: Apache-2.0
"""The order of work on a device under SGLang's overlap schedule: two schedulers on one pool, whose
forward passes are queued on a stand-in for a stream, which lags. No page may be published before the
pass that writes it has run, and none be freed before the last pass that reads or writes it.

A slot holds what its KV depends on, all tokens up to its position. A pass checks, when it runs, each
slot that it reads. kvtrunk.sglang._leases holds the leases, in the order in which SGLang's scheduler
calls it: batch N + 1 is launched before the results of batch N are looked at.
"""
import collections
import contextlib
import random
import time
from array import array

import lagging
import pytest
from lagging import prefixes

from kvtrunk import Timeout, testing
from kvtrunk.engine._ring import Ring
from kvtrunk.sglang._leases import Leases

PAGE, PAGES, WORD, CHUNK, LONGEST, REQUESTS = 16, 48, 3, 40, 224, 60
NONE = array("I")


class Stream(lagging.Stream):
    """A stream whose fence tells how far it is."""

    def __init__(self, client, chance):
        super().__init__(chance, 0.02)
        self.client = client
        client.record_fence = lambda _: (WORD, self.queued)

    def synchronize(self, number):
        while self.done < number:
            super().synchronize(self.done + 1)
            self.client.raise_fence(WORD, self.done)


class Request:
    def __init__(self, name, tokens, wanted):
        self.name, self.tokens = name, tokens
        self.end = len(tokens) + wanted
        self.lease, self.computed, self.finished = None, 0, False


class Scheduler:
    """SGLang's, as far as it holds pages."""

    def __init__(self, daemon, slots, chance):
        self.client = daemon.connect(any_geometry=True)
        self.leases = Leases(self.client)
        self.space = self.client.namespace(model="streams")
        self.slots, self.chance = slots, chance
        self.stream = Stream(self.client, chance)
        self.waiting, self.running, self.prefills = collections.deque(), [], []
        self.last, self.n, self.reused, self.retracted = None, 0, 0, 0

    @property
    def busy(self):
        return bool(self.waiting or self.running or self.prefills or self.last)

    def add(self, tokens, wanted):
        self.n += 1
        self.waiting.append(Request(f"{self.n}", tokens, wanted))

    def turn(self, meanwhile=lambda: None):
        """Launch a batch, and look at the results of the one before. meanwhile: what another one does
        before these are there."""
        self.admit()
        batch = self.prefill() or self.decode()
        before, self.last = self.last, batch
        meanwhile()
        if before is not None:
            number, rows = before
            self.stream.synchronize(number)
            for request, lease, computed, is_prompt in rows:
                if request.lease is lease and not request.finished:
                    self.result(request, lease, computed, is_prompt)

    def admit(self):
        for request in list(self.waiting):
            if self.leases.still_full():
                break
            if len(self.running) + len(self.prefills) >= 6 or self.leases.is_held_back(request.name):
                continue
            keys = array("I", request.tokens)
            lease = self.leases.begin(request.name, self.space, keys[:-1], len(keys), ahead=1)
            if lease is not None:
                self.waiting.remove(request)
                request.lease, request.computed = lease, lease.reusable
                request.n_prompt = len(keys)
                self.reused += lease.reusable
                self.prefills.append(request)

    def prefill(self):
        """A chunk of each prompt. Launched chunks are published before their results are there."""
        for request in self.prefills:
            if request.computed > request.lease.reusable:
                self.leases.commit(request.lease, request.computed, NONE, last=False)
        rows = [(request, min(request.computed + CHUNK, request.n_prompt))
                for request in self.prefills]
        return self.launch(rows, True)

    def decode(self):
        """A token of each request that runs, those included that end with the last results."""
        rows = []
        for request in list(self.running):
            if request.finished:
                continue
            if self.leases.room(request.lease, request.computed + 1):
                rows.append((request, request.computed + 1))
            else:
                self.retract(request)
        return self.launch(rows, False)

    def launch(self, rows, is_prompt):
        if not rows:
            return None
        launched = []
        for request, end in rows:
            self.leases.give(request.lease, end)
            self.stream.launch(self.work(request, end))
            request.computed = end
            if end == len(request.tokens):
                request.tokens.append(prefixes(request.tokens)[-1] >> 7 & 1)
                if is_prompt:
                    self.prefills.remove(request)
                    self.running.append(request)
            launched.append((request, request.lease, end, is_prompt))
        self.leases.launched(1, [request.lease for request, _ in rows] if is_prompt else ())
        return self.stream.queued, launched

    def work(self, request, end):
        """Work of a pass on the slots of a request."""
        first, table, values = request.computed, request.lease.pages[:], prefixes(request.tokens)

        def run():
            for at in range(first):
                assert self.slots[table[at // PAGE], at % PAGE] == values[at], "a foreign slot"
            for at in range(first, end):
                self.slots[table[at // PAGE], at % PAGE] = values[at]

        return run

    def result(self, request, lease, computed, is_prompt):
        keys = array("I", request.tokens)
        if computed + 1 >= min(request.end, LONGEST) and computed >= request.n_prompt:
            request.finished = True
            self.running.remove(request)
            self.leases.end(lease, computed, keys[lease.known:computed])
            self.leases.take_back(lease.given - lease.committed)
        elif is_prompt and computed >= request.n_prompt:
            self.leases.commit(lease, computed, keys[lease.known:computed], last=True)

    def retract(self, request):
        """Without its results, which are not looked at."""
        self.leases.end(request.lease)
        self.leases.take_back(request.lease.given - request.lease.committed)
        request.lease, request.computed = None, 0
        self.running.remove(request)
        self.waiting.append(request)
        self.retracted += 1


def prompt(chance, heads):
    """Prompts with equal beginnings, which both ask for at about the same time."""
    if chance.random() < 0.3:
        heads[:] = [chance.choices((0, 1), k=8 * PAGE)]
    [head] = heads
    return (head[:chance.randrange(1, len(head) // PAGE + 1) * PAGE]
            + chance.choices((0, 1), k=chance.choice((1, 2, 30, 33))))


def turn(chance, pair):
    """A turn of one, and some of the other while its stream lags."""
    one, other = chance.sample(pair, 2)

    def meanwhile():
        for _ in range(chance.randrange(6)):
            other.turn()

    one.turn(meanwhile)


def ask(chance, pair):
    """Random requests of both, until all have ended."""
    heads = [chance.choices((0, 1), k=8 * PAGE)]
    for _ in range(REQUESTS):
        for one in pair:
            one.add(prompt(chance, heads), chance.choice((1, 2, 5, 40, LONGEST)))
        for _ in range(chance.randrange(4)):
            turn(chance, pair)
    while any(one.busy for one in pair):
        turn(chance, pair)
    for one in pair:
        one.stream.synchronize(one.stream.queued)


def work(monkeypatch, seed):
    """In a pool that is too small for them."""
    monkeypatch.setenv("KVTRUNK_CHECK_EVERY", "0")
    chance, slots = random.Random(seed), {}
    with testing.daemon(page_size=PAGE, n_pages=PAGES, max_private_pages=PAGES) as daemon:
        pair = [Scheduler(daemon, slots, chance) for _ in range(2)]
        try:
            ask(chance, pair)
        finally:
            for one in pair:
                with contextlib.suppress(Timeout):  # a found fault leaves fences that are not reached
                    one.client.close()
        assert sum(one.reused for one in pair) > 20 * PAGE
        assert sum(one.retracted for one in pair)
        with daemon.connect(any_geometry=True) as observer:
            while (now := observer.stats()).private_pages or now.protected_pages:
                time.sleep(0.001)
            assert now.evicted_pages
        assert daemon.kvtctl("audit").startswith("clean")


@pytest.mark.parametrize("seed", range(2))
def test_no_page_is_published_or_freed_before_its_work_has_run(monkeypatch, seed):
    work(monkeypatch, seed)


@pytest.mark.parametrize("operation, at", [("commit", 3), ("end", 1)])
def test_an_early_publication_and_an_early_free_are_found(monkeypatch, operation, at):
    """Planted: the operation has no fence. A run meets it in every second case or so."""
    original = getattr(Ring, operation)

    def early(ring, *values):
        return original(ring, *values[:at], None, *values[at + 1:])

    monkeypatch.setattr(Ring, operation, early)
    with pytest.raises((AssertionError, KeyError), match="a foreign slot|^\\("):
        for seed in range(30):
            work(monkeypatch, seed)
