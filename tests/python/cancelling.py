# SPDX-License-Identifier: Apache-2.0
"""A model engine whose calls are cancelled at each step of an event loop, and an audit of what it
published: test_cancelled.py runs it.

The KV of position i is a function of the keys [0, i], and so is the state in a side page. An engine
writes both for the keys that it computed. Afterwards the feed's snapshot names each cached page
with its keys, and each must hold what its keys say. No lease and no private page may be left.

Exact: between two steps of the loop the daemon answers all that is in flight, or is stopped.

    PYTHONPATH=PACKAGE python3 cancelling.py [--groups N] [--soak SECONDS]   counts, for a report
"""
import asyncio
import collections
import contextlib
import gc
import inspect
import os
import random
import signal
import sys
import time
import warnings

import numpy

import kvtrunk
from kvtrunk import testing
from kvtrunk._native import ffi, lib

PAGE = 16
GEOMETRY = {"n_layers": 1, "n_kv_heads": 1, "head_dim": 16, "kv_type": "fp32", "page_size": PAGE}
OPTIONS = {**GEOMETRY, "n_pages": 512, "coalesce_patience_ms": 30000}
WAYS = ["on", "careful", "retry", "end", "drop", "newloop", "left"]
"""Reactions of an engine to a cancellation: nothing; asks `known`; repeats the call; ends; drops the
sequence; its loop is closed and another one begins; the same, but no task was cancelled."""
_TAKES_AT = "at" in inspect.signature(kvtrunk.AsyncSequence.commit).parameters


class Ended(Exception):
    """The engine ended its request: a call was refused in words, or it does so when cancelled."""


def kv(keys):
    """The KV of these positions."""
    value, values = 1, []
    for key in keys:
        value = (value * 31 + key + 7) % (1 << 23)
        values.append(float(value))
    return values


class World:
    """A daemon, the client of the engine, another one, and what was found wrong."""

    def __init__(self, daemon, sides=(), loop=asyncio.new_event_loop, **options):
        self.daemon, self.loop, self.sides = daemon, loop, sides
        self._options = {"sides": sides, "begin_wait": 5, **options}
        self.wrong = collections.Counter()
        self.first = {}
        self.audited = 0
        self.stopped = False
        self.daemon_ends = False
        self.settle = lambda: None
        self.connect()

    def connect(self):
        self.client, self.other = (self.daemon.connect(**self._options) for _ in range(2))
        self.k = numpy.asarray(self.client.pool.layer(0).k)

    def close(self):
        self.go()
        for client in self.client, self.other:
            with contextlib.suppress(kvtrunk.Error):
                client.close()

    def note(self, what, where):
        self.wrong[what] += 1
        self.first.setdefault(what, where)

    # ---- the daemon

    def stop(self):
        os.kill(self.daemon.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self.daemon.pid, os.WSTOPPED | os.WNOWAIT)
        self.stopped = True

    def go(self):
        if self.stopped:
            os.kill(self.daemon.pid, signal.SIGCONT)
        self.stopped = False

    def await_answers(self):
        """Wait until all calls in flight are answered, by one behind them. The library keeps their
        answers for the next look of a loop."""
        client, result = self.client, ffi.new("struct kvt_result *")
        if self.stopped or client._aio is None:
            return
        with client._lock:
            lib.kvt_call(client._handle, ffi.new("struct kvt_request *", {"op": lib.KVT_OP_NOP}),
                         result)
        client._aio.look_later()

    # ---- pages

    def check(self, pages, keys, n, where):
        values = kv(keys[:n])
        for i in range(n):
            if self.k[pages[i // PAGE], 0, i % PAGE, 0] != values[i]:
                self.note("a begin reuses wrong KV", f"{where}: position {i}")
                return

    def write(self, pages, keys, start, end):
        values = kv(keys[:end])
        for i in range(start, end):
            if i // PAGE < len(pages):
                self.k[pages[i // PAGE], 0, i % PAGE, 0] = values[i]

    def audit(self, where):
        """All that is cached holds what its keys say, and nothing is held."""
        paths = {0: []}
        with self.daemon.connect(observe=True) as observer, observer.feed() as feed:
            feed.snapshot()
            while (record := feed.poll()) is not None:
                if record.kind == "stored":
                    self._audit_run(paths, record, where)
                for page, _, side in record.sides:
                    if self.k[side, 0, 0, 0] != kv(paths[page])[-1]:
                        self.note("a state is cached for keys that it is not of", where)
        self.audited += len(paths) - 1
        self._await_nothing_held(where)

    def _audit_run(self, paths, record, where):
        keys = paths[record.parent]
        for at, page in enumerate(record.pages):
            keys = keys + list(record.keys[at * PAGE:(at + 1) * PAGE])
            paths[int(page)] = keys
            if [float(x) for x in self.k[page, 0, :, 0]] != kv(keys)[-PAGE:]:
                self.note("a page is cached under keys that it was not computed for", where)

    def _await_nothing_held(self, where):
        """The next calls on the client give back what nothing holds, in their order."""
        self.settle()
        for _ in range(3):
            self.client.stats()
            counters = self.other.stats()
            if not counters.live_leases and not counters.private_pages:
                return
        self.note(f"held without an owner: {counters.live_leases} leases, "
                  f"{counters.private_pages} private pages", where)
        self.close()
        self.connect()

    def leases_left(self):
        """Leases that stay, although the client is called. Each call gives back what has room."""
        for _ in range(20):
            self.client.stats()
            if not (left := self.other.stats().live_leases):
                break
        return left

    def forget(self):
        self.client.namespace(salt="run").remove_all()


class Engine:
    """One request. Each of its calls is a task: that is what is cancelled."""

    def __init__(self, world, way, salt):
        self.world, self.way = world, way
        self.namespace = world.client.namespace(salt="run")
        self.call, self.name, self.sequence = None, "", None
        self.cancelled = 0
        base = 1000 * salt
        self.keys = [base + i for i in range(40)]
        self.grown = [[base + 100 * part + i for i in range(n)]
                      for part, n in ((1, 12), (2, 13), (3, 15))]
        self.given = self.done = 0
        self._stock = world.client.alloc(8).tolist() if world.sides else []

    async def _do(self, name, make):
        async def inner():
            return await make()

        self.name, self.call = name, asyncio.ensure_future(inner())
        try:
            return await self.call
        except asyncio.CancelledError:
            self.cancelled += 1
            if self.way == "newloop":
                raise
            return None
        except kvtrunk.Error as error:
            if not self.cancelled and not self.world.daemon_ends:
                self.world.note(f"{name} fails, and nothing was cancelled: {error}", self.way)
            raise Ended(str(error)) from None
        finally:
            self.call = None

    async def _begin(self):
        while self.sequence is None:
            before = self.cancelled
            self.sequence = await self._do("begin", lambda: self.namespace.begin_async(self.keys))
            if self.sequence is None and (before or self.way in ("end", "drop")):
                raise Ended("a cancelled begin")
        self.world.check(list(self.sequence.pages), self.keys, self.sequence.next, "begin")
        self.given = len(self.keys)

    async def _give(self, name, computed):
        """Commit or end, with the keys that are new."""
        for _ in range(3):
            start, more, before = self.given, {}, self.cancelled
            if before and self.way in ("careful", "left"):
                start = self.sequence.known
                more = {"at": start} if _TAKES_AT else {}
            keys, call = self.keys[start:], getattr(self.sequence, name)
            self._attach(computed)
            await self._do(name, lambda: call(computed, keys or None, **(more if keys else {})))
            if self.cancelled == before or self.way != "retry":
                break
        self.given = len(self.keys)
        self._leave()

    def _attach(self, computed):
        """A point at the end of a commit of whole pages."""
        if not self.world.sides or computed % PAGE or self.sequence.ended:
            return
        if not self._stock:
            raise Ended("no page for a state")
        self.world.k[self._stock[-1], 0, 0, 0] = kv(self.keys[:computed])[-1]
        try:
            self.sequence.attach(computed // PAGE - 1, 0, self._stock[-1])
        except kvtrunk.Error as error:
            raise Ended(str(error)) from None
        self._stock.pop()

    def close(self):
        """Drop the sequence, if it has not ended, and free pages that were not attached."""
        self.sequence = None
        if self._stock:
            self.world.client.free(self._stock)
        self._stock = []

    def _leave(self):
        if self.cancelled and self.way in ("end", "drop"):
            raise Ended("cancelled")

    async def _extend(self, end):
        for _ in range(4):
            short = end - len(self.sequence.pages) * PAGE
            if short <= 0:
                return
            await self._do("extend", lambda: self.sequence.extend(short))
            self._leave()
        raise Ended("no room")

    async def _compute(self):
        await self._begin()
        for computed, grown in ((32, None), (40, None), (52, 0), (64, 1), (80, 2)):
            if computed <= self.done:
                continue
            if grown is not None:
                self.keys = self.keys[:(40, 52, 65)[grown]] + self.grown[grown]
            await self._extend(computed)
            self.world.write(list(self.sequence.pages), self.keys, self.sequence.next, computed)
            self.done = computed
            await self._give("end" if computed == 80 else "commit", computed)

    async def live(self):
        try:
            if self.sequence is None or not self.sequence.ended:
                await self._compute()
        except Ended:
            pass
        if self.way != "drop" and self.sequence is not None and not self.sequence.ended:
            try:
                await self.sequence.end()
            except (kvtrunk.Stale, kvtrunk.ConnectionLost) as error:
                if isinstance(error, kvtrunk.ConnectionLost) and not self.world.daemon_ends:
                    raise
        self.sequence = None


def step(loop, n=1):
    for _ in range(n):
        loop.call_soon(loop.stop)
        loop.run_forever()


def drive(world, way, at, late, salt, strike=None):
    """Run one request, cancelled at step `at`. late: the daemon is stopped so many steps before, and
    continues three steps later. strike: called at that step instead of cancelling. Returns the steps
    that the request took."""
    engine, loop = Engine(world, way, salt), world.loop()
    where = f"{way}, step {at}, {f'daemon stopped {late} steps before' if late else 'daemon runs'}"
    main, n = loop.create_task(engine.live()), 0
    while True:
        if late and n == at - late:
            world.stop()
        if n == at and engine.call is not None:
            where += f", in {engine.name}"
            if strike is not None:
                strike()
            elif way == "left":
                engine.cancelled += 1
                engine.way = "careful"
                loop, main = _leave(world, loop, main, engine)
            else:
                engine.call.cancel()
        if n == at + 3:
            world.go()
        step(loop)
        world.await_answers()
        n += 1
        if n > 5000:
            world.note("hangs", where)
            break
        if main.done():
            if not main.cancelled() and main.exception() is None:
                break
            if not main.cancelled():
                world.note(f"raises {main.exception()!r}", where)
                break
            engine.way = "careful"
            loop, main = _leave(world, loop, main, engine)
    world.go()
    loop.close()
    if not world.daemon_ends:
        engine.close()
    del engine, main
    gc.collect()
    if not world.daemon_ends:
        world.audit(where)
        world.forget()
    return n


def _leave(world, loop, main, engine):
    """Close a loop as it is, and go on in another one."""
    loop.close()
    engine.call = None
    loop = world.loop()
    return loop, loop.create_task(engine.live())


def begin_behind_another(world, at, new_loop, salt):
    """A begin of P that waits for another session is cancelled. Then a begin of Q, which waits, too,
    must not get its answer."""
    ours, theirs = (client.namespace(salt="run") for client in (world.client, world.other))
    prompts = [[1000 * salt + 500 * part + i for i in range(200)] for part in (0, 1)]
    where = f"begin of Q after one of P, cancelled at step {at}{', new loop' if new_loop else ''}"
    computing = [theirs.begin(prompt) for prompt in prompts]

    def publish(which):
        world.write(list(computing[which].pages), prompts[which], 0, 200)
        computing[which].end(200)

    loop = world.loop()
    task = loop.create_task(ours.begin_async(prompts[0]))
    step(loop, at)
    task.cancel()
    step(loop, 3)
    if new_loop:
        loop.close()
        loop = world.loop()
    task = loop.create_task(ours.begin_async(prompts[1]))
    step(loop, 3)
    publish(0)
    world.other.stats()  # the answer to the begin of P is in the ring
    step(loop, 6)
    if task.done():
        world.note("a begin is answered before its prompt is cached", where)
    publish(1)
    sequence = loop.run_until_complete(asyncio.wait_for(task, 20))
    world.check(list(sequence.pages), prompts[1], sequence.next, where)

    async def end():
        await sequence.end()

    loop.run_until_complete(end())
    loop.close()
    del task, sequence
    gc.collect()
    world.audit(where)
    world.forget()


def soak(world, rounds, seed):
    """Many requests at once, several of each prompt, cancelled at random; the daemon stops now and
    then. Returns how many calls were cancelled."""
    rng, cancels = random.Random(seed), 0
    for number in range(rounds):
        where, loop = f"soak {seed}, round {number}", world.loop()
        engines = [Engine(world, rng.choice(WAYS[:5]), 1 + rng.randrange(4)) for _ in range(12)]
        tasks = [loop.create_task(engine.live()) for engine in engines]
        stopped, until = 0, time.monotonic() + 30
        while not all(task.done() for task in tasks):
            if not stopped and rng.random() < 0.03:
                world.stop()
                stopped = 6
            for engine in engines:
                if engine.call is not None and rng.random() < 0.02:
                    engine.call.cancel()
                    cancels += 1
            step(loop)
            stopped -= stopped > 0
            if not stopped:
                world.go()
            if time.monotonic() > until:
                world.note("hangs", where)
                break
        world.go()
        for task in tasks:
            if task.done() and not task.cancelled() and task.exception() is not None:
                world.note(f"raises {task.exception()!r}", where)
        for engine in engines:
            engine.sequence = None
        del engines, engine, tasks, task
        loop.close()
        gc.collect()
        world.audit(where)
        world.forget()
    return cancels


def failing_group(world, base, n=200):
    """A task group of n requests. One fails after some steps: all others are cancelled."""
    namespace = world.client.namespace(salt="run")

    async def request(number):
        keys = [1000 * (base + number) + i for i in range(200)]
        sequence = await namespace.begin_async(keys, 40)
        await sequence.commit(200)
        await sequence.commit(216, [5] * 16)
        await sequence.end(232, [6] * 16)

    async def fails():
        for _ in range(base % 13):
            await asyncio.sleep(0)
        raise KeyError

    async def group():
        tasks = [asyncio.ensure_future(each) for each in [*map(request, range(n)), fails()]]
        try:
            await asyncio.gather(*tasks)
        except KeyError:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    loop = world.loop()
    loop.run_until_complete(group())
    loop.close()
    gc.collect()


def every_step(world, ways, lates, salt=2):
    """drive() each way, cancelled at each step. Returns the number of runs."""
    gc.collect()
    gc.freeze()  # so that the collections of drive() are short
    length, runs = min(drive(world, "on", -1, 0, 1) for _ in range(3)), 0
    for way in ways:
        for late in lates:
            for at in range(late, length + 2):
                drive(world, way, at, late, salt + runs)
                runs += 1
    gc.unfreeze()
    return runs


def _report(world, name, runs, more=""):
    print(f"{name}: {runs} runs, {world.audited} cached pages looked at{more}; wrong:",
          dict(world.wrong) or "nothing", flush=True)
    for what, where in world.first.items():
        print(f"    first {what}: {where}")
    world.wrong.clear()
    world.first.clear()
    world.audited = 0


def main(arguments):
    warnings.simplefilter("ignore")
    sys.unraisablehook = lambda *_: None
    import logging
    logging.disable(logging.CRITICAL)
    number = {name: float(value) for name, value in zip(arguments[::2], arguments[1::2])}
    print(kvtrunk.__file__)
    with testing.daemon(**OPTIONS) as daemon:
        world = World(daemon)
        _report(world, "every step", every_step(world, WAYS, (0, 1, 2, 3)))
        cases = [(at, new_loop) for at in range(5) for new_loop in (False, True)]
        for salt, case in enumerate(cases):
            begin_behind_another(world, *case, 3000 + salt)
        _report(world, "begin behind another", len(cases))
        until, rounds, cancels = time.monotonic() + number.get("--soak", 0), 0, 0
        while time.monotonic() < until:
            cancels += soak(world, 1, rounds)
            rounds += 1
        _report(world, "soak of 12 requests", rounds, f", {cancels} calls cancelled")
        world.close()
    with testing.daemon(**{**OPTIONS, "n_pages": 30000, "max_leases": 0}) as daemon:
        world = World(daemon)
        leaked = collections.Counter()
        for run in range(int(number.get("--groups", 0))):
            failing_group(world, run)
            left = world.leases_left()
            leaked[left] += 1
            if left:
                world.close()
                world.connect()
            world.forget()
        print(f"failing group of 200: runs by leases left: {dict(leaked)}", flush=True)
        world.close()


if __name__ == "__main__":
    main(sys.argv[1:])
