# SPDX-License-Identifier: Apache-2.0
"""vLLM's own scheduler and requests with a worker that only notes what is written where."""
import collections

from measure_step import Scheduler


class Row:
    """A request as its worker knows it."""

    def __init__(self, tokens, computed, tables):
        self.tokens, self.computed = list(tokens), computed
        self.tables = [list(table) for table in tables]
        self.drafts = []

    @property
    def table(self):
        """That of full attention."""
        return self.tables[0]


class Engine(Scheduler):
    """A scheduler and its worker. A step is computed as late as it can be: when its output comes."""

    row = Row

    def __init__(self, folder, pool, chance, asynchronous, **options):
        super().__init__(folder, True, asynchronous, **options)
        self.pool, self.chance, self.n = pool, chance, 0
        self.rows, self.queue, self.depth = {}, collections.deque(), 2 if asynchronous else 1
        self.resumed = 0

    def add(self, tokens, max_tokens, **more):
        """Returns the request's name. more: as of request()."""
        self.n += 1
        self.theirs.add_request(self.request(str(self.n), tokens, max_tokens, **more))
        return str(self.n)

    def abort(self):
        from vllm.v1.request import RequestStatus

        if self.theirs.running:
            self.theirs.finish_requests(self.chance.choice(self.theirs.running).request_id,
                                        RequestStatus.FINISHED_ABORTED)

    def turn(self):
        """Schedule a step. If enough of them are in flight, compute the oldest; if it has no work,
        all of them, as vLLM does."""
        step = self.theirs.schedule()
        known = {name: list(self.theirs.requests[name].all_token_ids)
                 for name in step.num_scheduled_tokens}
        self.queue.append((step, known))
        while self.queue and (len(self.queue) >= self.depth or not step.num_scheduled_tokens):
            self.compute(*self.queue.popleft())

    def drain(self):
        while self.theirs.has_unfinished_requests() or self.queue:
            self.turn()
            if not self.theirs.has_unfinished_requests():
                while self.queue:
                    self.compute(*self.queue.popleft())

    def follow(self, step, known):
        """Requests that begin, come back, or have more blocks."""
        for new in step.scheduled_new_reqs:
            row = self.row(known[new.req_id], new.num_computed_tokens, new.block_ids)
            self.rows[new.req_id] = row
            self.pool.expect(row)
        cached = step.scheduled_cached_reqs
        for i, name in enumerate(cached.req_ids):
            blocks = cached.new_block_ids[i]
            if name in cached.resumed_req_ids:
                self.rows[name] = self.row(known[name], cached.num_computed_tokens[i], blocks)
                self.pool.expect(self.rows[name])
                self.resumed += 1
            elif blocks:
                for table, more in zip(self.rows[name].tables, blocks, strict=True):
                    table += more

    def answer(self, step, sampled):
        """Tokens of a step's requests."""
        from vllm.v1.outputs import ModelRunnerOutput

        names = list(step.num_scheduled_tokens)
        self.theirs.update_from_output(step, ModelRunnerOutput(
            names, {name: i for i, name in enumerate(names)}, sampled))


def run(chance, pair, requests, prompt):
    """Ask both engines for random requests until all have ended. prompt() returns tokens, and how
    many to generate."""
    for _ in range(requests):
        engine = chance.choice(pair)
        engine.add(*prompt())
        for _ in range(chance.randrange(8)):
            chance.choice(pair).turn()
        if chance.random() < 0.05:
            engine.abort()
    while any(engine.theirs.has_unfinished_requests() for engine in pair):
        for engine in pair:
            engine.turn()
    for engine in pair:
        engine.drain()


def until_resumed(pair, ask):
    """Ask for more requests until each engine has resumed one that it had preempted: when the pool
    is full depends on when the daemon gives pages back."""
    for _ in range(100):
        if all(engine.resumed for engine in pair):
            return
        ask(20)
    raise AssertionError("no request was preempted")
