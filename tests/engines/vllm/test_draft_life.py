# SPDX-License-Identifier: Apache-2.0
"""Requests with draft layers in the pages, from admission to their end: two of vLLM's own schedulers
on one pool, whose workers are a model of what is written where.

A slot holds the tokens that its KV depends on: the model's KV the tokens up to its position, the
draft layer's one token more. So a reused slot is right if its tokens are those of the request.
"""
import random

import life
import pytest
from conftest import PAGE, geometry
from engine import counters, expect_nothing_held

from kvtrunk import testing

PAGES, LONGEST, DRAFTS, REQUESTS, STREAMS = 48, 224, 3, 300, 40
WRONG = "a rejected draft's"


class Pool:
    """Contents of each slot: tokens of the model's KV, and of the draft layer's."""

    def __init__(self):
        self.target, self.draft = {}, {}
        self.reused = 0

    def expect(self, row):
        """All that a request reuses is its own."""
        self.reused += row.computed
        for at in range(row.computed):
            slot = row.table[at // PAGE], at % PAGE
            assert self.target[slot] == tuple(row.tokens[:at + 1]), (slot, at)
            assert self.draft[slot] == tuple(row.tokens[:at + 2]), (slot, at)

    def write(self, kind, row, at, tokens):
        """vLLM writes nothing beyond the longest request."""
        if at >= LONGEST:
            return
        page = row.table[at // PAGE]  # a position that is written has a page
        assert page != 0
        kind[page, at % PAGE] = tokens


class Engine(life.Engine):
    """A scheduler and its worker."""

    def __init__(self, folder, head, pool, chance, asynchronous, pages=PAGES):
        super().__init__(
            folder, pool, chance, asynchronous, pages=pages, max_model_len=LONGEST, max_num_seqs=6,
            max_num_batched_tokens=72, speculative_config={
                "method": "eagle", "model": str(head), "num_speculative_tokens": DRAFTS})
        self.accepted = self.rejected = self.undrafted = 0

    def _drafts(self, name, scheduled):
        """The drafts that a step tries. -1 is none, or with asynchronous steps the worker's own."""
        if self.depth == 1:
            return list(scheduled)
        return [*self.rows[name].drafts, *scheduled][:len(scheduled)]

    def _forward(self, row, n, drafts, skip):
        """Returns the sampled tokens of a request with n scheduled tokens."""
        pool, first = self.pool, row.computed
        given = row.tokens + drafts
        for at in range(first, first + n):
            pool.write(pool.target, row, at, tuple(given[:at + 1]))
        sampled = []
        if first + n >= len(row.tokens):
            for draft in [*drafts, None]:
                sampled.append(following(row.tokens + sampled))
                if sampled[-1] != draft:
                    break
            self.accepted += len(sampled) - 1
            self.rejected += len(drafts) - len(sampled) + 1
        row.computed += n - len(drafts) + max(len(sampled) - 1, 0)
        row.tokens += sampled
        if skip:
            self.undrafted += 1
            return sampled
        for at in range(first, row.computed):
            pool.write(pool.draft, row, at, tuple(row.tokens[:at + 2]))
        for at in range(row.computed, max(first + n, row.computed + DRAFTS - 1)):
            pool.write(pool.draft, row, at, WRONG)
        row.drafts = []
        for _ in range(DRAFTS):
            right = following(row.tokens + row.drafts)
            row.drafts.append(right if self.chance.random() < 0.6 else 1 - right)
        return sampled

    def compute(self, step, known):
        """A step's output."""
        from vllm.v1.outputs import DraftTokenIds

        self.follow(step, known)
        names = list(step.num_scheduled_tokens)
        given = {name: self._drafts(name, step.scheduled_spec_decode_tokens.get(name, ()))
                 for name in names}
        ends = [self.rows[name].computed + n for name, n in step.num_scheduled_tokens.items()]
        skip = max(ends, default=0) + DRAFTS > LONGEST
        sampled = [self._forward(self.rows[name], step.num_scheduled_tokens[name], given[name], skip)
                   for name in names]
        self.answer(step, sampled)
        if self.depth == 1:
            self.theirs.update_draft_token_ids(DraftTokenIds(
                names, [list(self.rows[name].drafts) for name in names]))


def following(tokens):
    """The model's next token: 0 or 1, which depends on all tokens."""
    return hash(tuple(tokens)) >> 7 & 1


def prompt(chance, heads):
    """Prompts that part just before, at and behind the end of a page."""
    head = chance.choice(heads)
    head = head[:chance.randrange(1, len(head) // PAGE + 1) * PAGE + chance.choice((-1, 0, 1))]
    return head + chance.choices((0, 1), k=chance.choice((1, 1, 2, 3, 30, 33)))


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("seed", range(2))
def test_what_is_reused_has_all_tokens_of_its_request(folder, tmp_path_factory, monkeypatch, caplog,
                                                      seed, asynchronous):
    import model

    monkeypatch.setenv("KVTRUNK_CHECK_EVERY", "0")
    head = model.write_eagle(tmp_path_factory.mktemp("head"))
    chance, pool = random.Random(seed), Pool()
    heads = [chance.choices((0, 1), k=5 * PAGE) for _ in range(3)]
    with testing.daemon(**geometry(n_pages=PAGES, max_private_pages=PAGES)) as daemon:
        monkeypatch.setenv("KVTRUNK_SOCKET", daemon.socket)
        pair = [Engine(folder, head, pool, chance, asynchronous) for _ in range(2)]

        def ask(n):
            life.run(chance, pair, n, lambda: (
                prompt(chance, heads), chance.choice((1, 2, 5, 40, LONGEST))))

        ask(REQUESTS)
        life.until_resumed(pair, ask)
        assert pool.reused > 50 * PAGE and counters(daemon).evicted_pages
        for engine in pair:
            assert engine.accepted > 1000 and engine.rejected > 1000
            assert engine.undrafted
            engine.theirs.shutdown()
        expect_nothing_held(daemon)
    assert "KV stays private" not in caplog.text


class Stream(Engine):
    """An engine whose requests may be streams: their input comes in chunks, and the last token that
    was sampled before a chunk is discarded."""

    def __init__(self, *given):
        super().__init__(*given)
        self.streams = {}
        """Number of chunks left of each stream."""
        self.parted = []
        """Tokens of ended streams, and where they discarded one."""

    def follow(self, step, known):
        """A stream reads pages that it wrote itself: it looks nothing up."""
        again = {new.req_id for new in step.scheduled_new_reqs if new.req_id in self.rows}
        expect, self.pool.expect = self.pool.expect, lambda row: None
        for new in [*step.scheduled_new_reqs]:
            if new.req_id not in again:
                expect(self.row(known[new.req_id], new.num_computed_tokens, new.block_ids))
        super().follow(step, known)
        self.pool.expect = expect

    def feed(self):
        """Give streams that wait for input their next chunk, or their end."""
        from vllm.v1.request import RequestStatus

        for name, left in list(self.streams.items()):
            request, chance = self.theirs.requests[name], self.chance
            # Fewer than vLLM 0.32 may have counted as computed behind a stop.
            if request.status != RequestStatus.WAITING_FOR_STREAMING_REQ:
                continue
            at = request.num_computed_tokens
            if at < request.num_tokens:
                self.parted.append((list(request.all_token_ids), at, request))
            chunk = chance.choices((0, 1), k=chance.choice((DRAFTS + 1, PAGE - 1, PAGE + 1)))
            more = left > 0 and request.num_tokens + len(chunk) < LONGEST - PAGE
            self.streams[name] = left - 1
            if not more:
                del self.streams[name]
            self.theirs.add_request(self.request(name, chunk, chance.choice((1, 2, 7, PAGE)),
                                                 resumable=more))

    def begin(self, tokens):
        name = self.add(tokens, self.chance.choice((1, 2, 7, PAGE)), resumable=True)
        self.streams[name] = self.chance.randrange(1, 4)

    def others(self):
        """Prompts as ended streams were, but with each token that was discarded in its place."""
        for before, at, request in self.parted:
            now = list(request.all_token_ids)
            for tokens in (now, [*now[:at], before[at], *now[at + 1:]], before):
                if 1 < len(tokens) < LONGEST - 2:
                    yield [*tokens, 0]


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("seed", range(2))
def test_a_stream_caches_nothing_of_a_token_that_it_discards(folder, tmp_path_factory, monkeypatch,
                                                             seed, asynchronous):
    import model

    monkeypatch.setenv("KVTRUNK_CHECK_EVERY", "0")
    head = model.write_eagle(tmp_path_factory.mktemp("head"))
    chance, pool = random.Random(seed), Pool()
    with testing.daemon(**geometry(n_pages=8 * PAGES, max_private_pages=8 * PAGES)) as daemon:
        monkeypatch.setenv("KVTRUNK_SOCKET", daemon.socket)
        pair = [Stream(folder, head, pool, chance, asynchronous, 8 * PAGES) for _ in range(2)]
        for _ in range(STREAMS):
            engine = chance.choice(pair)
            engine.begin(chance.choices((0, 1), k=chance.randrange(1, 2 * PAGE)))
            while engine.streams:
                engine.feed()
                engine.turn()
            engine.drain()
        parted = [each for engine in pair for each in engine.others()]
        assert len(parted) > STREAMS
        for tokens in parted:
            engine = chance.choice(pair)
            engine.add(tokens, 1)
            engine.drain()
        assert pool.reused > 10 * PAGE
        for engine in pair:
            engine.theirs.shutdown()
        expect_nothing_held(daemon)
