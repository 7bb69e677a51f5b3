# SPDX-License-Identifier: Apache-2.0
"""Events for routers: an index made from them has what is cached, and they are the bytes of SGLang."""
import collections
import itertools
import random
import struct
import time

import pytest

import kvtrunk
from kvtrunk import events, testing

PAGE = 4


@pytest.fixture
def daemon():
    with testing.daemon(page_size=PAGE, page_bytes=64, n_pages=256, feed_bytes="1M") as made:
        yield made


class Router:
    """An index made of events, as a router has one: it knows nothing of the pool."""

    def __init__(self):
        self.blocks = {}
        self.cleared = 0

    def take(self, found):
        for event in found:
            if isinstance(event, events.Cleared):
                self.blocks.clear()
                self.cleared += 1
            elif isinstance(event, events.Removed):
                for digest in event.digests:
                    del self.blocks[digest]
            else:
                assert event.parent is None or event.parent in self.blocks
                parent, n = event.parent, len(event.tokens) // len(event.digests)
                for i, digest in enumerate(event.digests):
                    assert digest not in self.blocks
                    self.blocks[digest] = parent, event.tokens[i * n:(i + 1) * n], event.space
                    parent = digest

    def follow(self, source):
        """Take what there is."""
        for found in iter(source.take, []):
            self.take(found)

    def prompts(self, space=events.Space()):
        """Tokens of all paths."""
        found = set()
        for digest, (_, _, of) in self.blocks.items():
            tokens = []
            while digest is not None and of == space:
                digest, own, _ = self.blocks[digest]
                tokens = own + tokens
            found.add(tuple(tokens))
        return found - {()}


def cache(client, *prompt, **name):
    with client.namespace(**name or {"model": "events"}).begin(prompt, full=True) as seq:
        seq.end(len(prompt))


def whole(prompts):
    """All beginnings of prompts that are whole pages."""
    return {prompt[:end] for prompt in prompts for end in range(PAGE, len(prompt) + 1, PAGE)}


def cached(space, asked):
    """Those of them that are cached."""
    return {prompt for prompt in whole(asked) if space.match(prompt).positions == len(prompt)}


def test_an_index_of_events_is_what_is_cached(daemon):
    chance, asked = random.Random(0), []
    with daemon.connect() as worker, events.Source(daemon.socket) as source:
        router, space = Router(), worker.namespace(model="events")
        source.share(space)
        heads = [tuple(chance.choices(range(1000), k=40)) for _ in range(4)]
        for turn in range(400):
            prompt = (*chance.choice(heads)[:chance.randrange(40)],
                      *chance.choices(range(1000), k=chance.randrange(1, 40)))
            cache(worker, *prompt)
            asked.append(prompt)
            if turn == 200:
                worker.reset()
            elif chance.random() < 0.1:
                space.remove(prompt[:8])
            if chance.random() < 0.3:
                router.follow(source)
        router.follow(source)
        assert worker.stats().evicted_pages and router.cleared == 2
        assert router.prompts() == cached(space, asked)
