#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""An engine as vLLM and SGLang are built, on kvtrunk.engine: a scheduler whose steps compute a chunk
of each prompt or a token of each answer, with the model of toy.py. A step waits for the daemon no
longer than an admission may take. Requests survive a full pool, a new daemon, and cancellations.

    batching.py [--tokens N] PROMPT...
"""
import argparse
import collections
import hashlib
import pathlib
import sys
import time
from array import array

import kvtrunk
from kvtrunk.engine import WAIT_MS, Hold, Name, Ring, Spaces, Stalled

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import toy  # noqa: E402

VOCABULARY = 512
MAX_RUNNING = 16
CHUNK = 64
"""Positions of a prompt that a step computes."""
PATIENCE_S = 0.1
"""How long a step waits for an admission."""
IDLE_S = 0.001
"""Between steps that find nothing to compute."""
HANDSHAKE_S = 2.0
"""How long one try to reach a new daemon may take."""
OF_OTHERS = "all_locked", "share"
"""Why there is no room, if it depends on others: it passes."""
LOST = kvtrunk.ConnectionLost, kvtrunk.Stale
"""Errors that end a session with all that it had."""


class Request:
    """Tokens to continue. ValueError: the model cannot."""

    def __init__(self, prompt, n, salt=None):
        self.tokens = list(prompt)
        """The prompt, and the answer so far."""
        if not self.tokens or not all(token in range(VOCABULARY) for token in self.tokens):
            raise ValueError(f"a prompt is one token or more, from 0 to {VOCABULARY - 1}")
        if n not in range(1 << 31):
            raise ValueError(f"{n} tokens cannot be generated")
        self.end = len(self.tokens) + n
        self.salt = salt
        self.error = ""
        """Why it is not answered."""
        self.cached = None
        """Positions that were cached when it first began."""
        self.asked = False
        """Whether a store was asked for its prompt."""
        self.ticket = 0
        """Above 0: held back until this notice."""
        self.wait_ms = WAIT_MS
        self.let_go()

    def let_go(self):
        """It has nothing of the pool."""
        self.hold = Hold()
        self.computed = 0
        """Positions whose KV is in the pages."""

    @property
    def done(self):
        return bool(self.error) or len(self.tokens) == self.end

    def keys(self):
        """Keys of computed positions that the daemon lacks."""
        return array("I", self.tokens[self.hold.known:self.computed])


class Engine:
    """A scheduler and its model. One thread."""

    def __init__(self, socket=None):
        """socket: as of kvtrunk.connect()."""
        self._socket = socket
        self.name = Name(hashlib.sha256(b"toy").digest(), f"seed {toy.SEED}")
        self.waiting, self.running = collections.deque(), []
        self._connect()

    def _connect(self, **limits):
        client = kvtrunk.connect(self._socket, geometry=toy.GEOMETRY, label="batching", **limits)
        client.set_timeout(None)
        self.ring = Ring(client)
        self.spaces = Spaces(self.ring, self._open, patience_s=PATIENCE_S)
        self.model = toy.Model(client, VOCABULARY)
        self.page_size = client.info.page_size
        self.positions = (client.info.n_pages - 1) * self.page_size
        """That the pool has room for."""
        self.lost = False

    def _open(self, name):
        value, salt = name
        return self.ring.client.namespace(model=value, salt=salt, label="batching")

    # ---- for callers

    def add(self, request):
        """Queue a request. ValueError: the pool is too small for it."""
        if self._too_large(request):
            raise ValueError(self._too_large(request))
        self.waiting.append(request)

    def _too_large(self, request):
        """Why a request never fits the pool, or ""."""
        if request.end <= self.positions:
            return ""
        return (f"{request.end} positions do not fit a pool of {self.positions}: ask for fewer "
                "tokens, or start the daemon with more n_pages")

    def cancel(self, request):
        """Forget a request. Pages that it published stay cached. ValueError: it is done, or of
        another engine."""
        (self.waiting if request in self.waiting else self.running).remove(request)
        try:
            self._give_up(request)
            self._end(request)
        except LOST:
            self._lose()

    def forget(self):
        """Find nothing that was cached so far."""
        for request in self.running:
            request.hold.shared = False
        try:
            for request in self.waiting:
                self._give_up(request)
            if self.name.forget():
                self.spaces.clear()
        except LOST:
            self._lose()

    def _give_up(self, request):
        """It waits for nothing, and a store is asked again."""
        ticket, request.ticket, request.asked = request.ticket, 0, False
        if ticket:
            self.ring.give_up(ticket)

    def step(self):
        """Compute something for each request that runs. Returns those that are done."""
        try:
            if self.lost:
                self._connect(connect_wait=0, timeout=HANDSHAKE_S)
            self.ring.announce(bool(self.running or self.waiting))
            self._reap()
            self._admit()
            for request in list(self.running):
                self._advance(request)
            done = [request for request in self.running if request.done]
            for request in done:
                self._end(request)
            self.running = [request for request in self.running if not request.done]
        except (kvtrunk.DaemonUnreachable, kvtrunk.Timeout):
            done = []  # there is no new one yet
        except LOST:
            self._lose()
            done = []
        if not self.running:
            time.sleep(IDLE_S)
        return done

    def run(self, requests):
        """Until all are done."""
        for request in requests:
            self.add(request)
        left = len(requests)
        while left:
            left -= len(self.step())

    # ---- a step

    def _reap(self):
        """Take the answers of commits."""
        for ticket, why in self.ring.reap():
            for request in list(self.running):
                if request.hold.refused(ticket, why) and request.hold.damaged:
                    self._preempt(request)

    def _admit(self):
        """Begin what waits and has room, first come, first served."""
        for request in list(self.waiting):
            if len(self.running) == MAX_RUNNING:
                break
            request.error = self._too_large(request)  # a new daemon may have fewer pages
            if request.error or self._begin(request):
                self.waiting.remove(request)
                self.running.append(request)
            elif not request.ticket:
                break  # no room; behind it others would starve it

    def _begin(self, request):
        """False: not now. With a ticket others compute or load what it needs, else there is no room.
        """
        try:
            if not request.asked and not request.ticket:
                request.asked = True
                request.ticket = self.ring.fetch(self._space(request), array("I", request.tokens))
            begun = None
            if request.ticket:
                wait_ms = self.ring.notice(request.ticket)
                if wait_ms is None:
                    return False
                begun = self.ring.begun(request.ticket)
                request.ticket, request.wait_ms = 0, wait_ms
            ahead = min(self.page_size, request.end - len(request.tokens))
            begun = begun or self.ring.begin(
                self._space(request), array("I", request.tokens), ahead,
                force_miss=False, wait_ms=request.wait_ms, patience_s=PATIENCE_S)
        except Stalled:
            return False
        except (kvtrunk.NoSpace, kvtrunk.QuotaExceeded) as error:  # no place for its namespace
            return self._refuse(request, str(error))
        request.ticket = begun.ticket
        if begun.lease is None:
            wait = begun.ticket or self.ring.limit in OF_OTHERS
            return not wait and self._refuse(request, self.ring.limit)
        request.hold.begin(begun, self.page_size)
        request.computed = begun.reusable
        if request.cached is None:
            request.cached = begun.reusable
        return True

    def _refuse(self, request, why):
        """Refuse a request, unless one of its own that ends may make room. Returns whether it did."""
        if not self.running:
            request.error = f"the daemon has no room for it: {why}"
        return bool(request.error)

    def _space(self, request):
        """The number of its namespace. Stalled: the daemon does not answer."""
        value = self.name.value(self.ring.client, lambda ask: self.ring.within(PATIENCE_S, ask))
        return self.spaces.find((value, request.salt)).id

    def _advance(self, request):
        """Compute a chunk, or the next token."""
        if request.done:
            return
        start, hold = request.computed, request.hold
        end = min(start + CHUNK, len(request.tokens))
        missing = -(-end // self.page_size) - len(hold.pages)
        if missing > 0:
            more = self.ring.extend(hold.number, missing)
            if more is None:
                self._preempt(request)
                return
            hold.pages += more
        logits = self.model.forward(request.tokens[start:end], start, hold.pages)
        request.computed = end
        self._commit(request)
        if end == len(request.tokens):
            request.tokens.append(int(logits.argmax()))

    def _commit(self, request):
        """Publish the pages that are complete."""
        hold, pages = request.hold, request.computed // self.page_size
        if not hold.shared or pages <= hold.committed:
            return
        upto, chunked = pages * self.page_size, request.computed < len(request.tokens)
        keys = array("I", request.tokens[hold.known:upto])
        ticket = self.ring.commit(hold.number, upto, keys, None, chunked)
        if ticket:  # else there was no room, and the next one publishes these, too
            hold.published(ticket, pages, len(keys))

    def _end(self, request):
        """Give back what a request has, and publish what it computed."""
        if request.hold.number is not None:
            computed = request.computed if request.hold.shared else 0
            request.hold.end(self.ring, None, computed, request.keys() if computed else ())
        request.let_go()

    def _preempt(self, request):
        """It begins again, with its tokens so far, when there is room."""
        self._end(request)
        self.running.remove(request)
        self.waiting.appendleft(request)

    def _lose(self):
        """The daemon is gone with all that requests had: they begin again on the next one."""
        self.lost = True
        self.name.forsake()
        try:
            self.ring.client.close()
        except LOST:
            pass  # it says so again
        self.waiting.extendleft(reversed(self.running))
        self.running = []
        for request in self.waiting:
            request.ticket, request.asked = 0, False
            request.let_go()


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("prompt", nargs="+")
    parser.add_argument("--tokens", type=int, default=8)
    options = parser.parse_args()
    try:
        requests = [Request(prompt.encode(), options.tokens) for prompt in options.prompt]
        Engine().run(requests)
    except (ValueError, kvtrunk.Error) as error:
        raise SystemExit(f"batching: {error}") from None
    for prompt, request in zip(options.prompt, requests):
        print(f"{prompt[:24]!r}: {request.error or request.tokens[-options.tokens:]}, "
              f"{request.cached} positions were cached")


if __name__ == "__main__":
    main()
