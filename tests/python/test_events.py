# SPDX-License-Identifier: Apache-2.0
"""Events for routers: an index made from them has what is cached, and they are the bytes of SGLang."""
import pathlib
import random
import select
import socket
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

    def __init__(self, pairs=0):
        self.blocks, self.pairs = {}, pairs
        self.cleared = 0

    def take(self, found):
        for event in found:
            if isinstance(event, events.Cleared):
                self.blocks.clear()
                self.cleared += 1
            elif isinstance(event, events.Removed):
                for digest in event.digests:
                    assert digest not in {parent for parent, *_ in self.blocks.values()}
                    del self.blocks[digest]
            else:
                assert event.parent is None or event.parent in self.blocks
                parent = event.parent
                assert len(event.tokens) == len(event.digests) * PAGE + self.pairs
                for i, digest in enumerate(event.digests):
                    assert digest not in self.blocks
                    self.blocks[digest] = parent, event.tokens[i * PAGE:(i + 1) * PAGE], event.space
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


def test_a_namespace_is_told_from_when_it_is_shared(daemon):
    with daemon.connect() as worker, events.Source(daemon.socket) as source:
        router = Router()
        router.follow(source)
        for name in ("a", "b"):
            cache(worker, *range(8), model=name)
        router.follow(source)
        assert not router.blocks
        for name in ("a", "b"):
            cache(worker, *range(4), *range(100, 108), model=name)
            source.share(worker.namespace(model=name), events.Space(cache_salt=name))
            source.share(worker.namespace(model=name), events.Space(cache_salt=name))
        router.follow(source)
        want = {(*range(4),), (*range(8),), (*range(4), *range(100, 104)),
                (*range(4), *range(100, 108))}
        assert [router.prompts(events.Space(cache_salt=name)) for name in "ab"] == [want, want]
        source.forget()
        source.share(worker.namespace(model="b"))
        router.follow(source)
        assert router.cleared == 2 and router.prompts() == want and len(router.blocks) == 4


def test_what_is_cached_no_more_and_not_shared_is_forgotten(daemon):
    with daemon.connect() as worker, events.Source(daemon.socket) as source:
        router, space = Router(), worker.namespace(model="events")
        source.share(space.root(7))
        for root in range(200):
            with space.root(root).begin(range(root, root + 8), full=True) as seq:
                seq.end(8)
            router.follow(source)
        assert router.prompts() == set()  # evicted
        assert len(source._index._spaces[space.digest]) <= 1 + worker.stats().cached_pages
        worker.evict(255)
        router.follow(source)
        assert list(source._index._spaces[space.digest]) == [7]
        for forget in (lambda: worker.evict(255), worker.reset):
            cache(worker, *range(8), model="other")
            router.follow(source)
            assert len(source._index._spaces) == 2
            forget()
            router.follow(source)
            assert list(source._index._spaces) == [space.digest]


def test_one_call_takes_a_part_of_much(daemon):
    with daemon.connect() as worker, events.Source(daemon.socket) as source:
        router, space = Router(), worker.namespace(model="events")
        source.share(space)
        router.follow(source)
        for first in range(0, 300, 30):
            cache(worker, *range(first, first + 20))
        assert [len(event.digests) for event in source.take(10)] == [5, 5]
        router.follow(source)
        assert len(router.prompts()) == 40


def test_a_tree_that_is_shared_late_is_told_in_parts(daemon):
    with daemon.connect() as worker, events.Source(daemon.socket) as source:
        router, space = Router(), worker.namespace(model="events")
        paths = [tuple(range(first, first + 20)) for first in range(0, 300, 30)]
        for path in paths:
            cache(worker, *path)
        router.follow(source)
        source.share(space)
        told = source.take(13)
        assert sum(len(event.digests) for event in told) == 13
        router.take(told)
        longer = (*paths[-1], *range(4))  # behind what waits
        cache(worker, *longer)
        space.remove(paths[2][:8])  # of this path three pages were told
        router.follow(source)
        assert router.prompts() == whole([*paths[:2], paths[2][:4], *paths[3:], longer])


def test_a_root_key_is_a_tree_of_its_own(daemon):
    with daemon.connect() as worker, events.Source(daemon.socket) as source:
        router, space = Router(), worker.namespace(model="events")
        source.share(space.root(7), events.Space(cache_salt="seven"))
        for root in (0, 7, 8):
            with space.root(root).begin(range(root, root + 4), full=True) as seq:
                seq.end(4)
        router.follow(source)
        assert router.prompts(events.Space(cache_salt="seven")) == {(7, 8, 9, 10)}
        assert len(router.blocks) == 1


def test_pairs_that_differ_in_the_last_token_are_one_block_of_vllm(daemon):
    def chain(space, parent, tokens):
        return events.sha256_chain(space, parent, tokens[:-1])

    with daemon.connect() as worker, events.Source(daemon.socket, chain, pairs=True) as source:
        router, space = Router(pairs=1), worker.namespace(model="events")
        source.share(space)
        for last in (8, 9):
            root, keys = kvtrunk.bigram_keys([*range(8), last])
            with space.root(root).begin(keys, full=True) as seq:
                seq.end(8)
        router.follow(source)
        assert worker.stats().cached_pages == 3 and len(router.blocks) == 2
        assert router.prompts() == {(*range(4),), (*range(8),)}
        worker.evict(1)
        router.follow(source)
        assert len(router.blocks) == 2  # one of the two is left
        worker.evict(2)
        router.follow(source)
        assert not router.blocks


def test_images_and_what_follows_them_are_not_told(daemon):
    with daemon.connect() as worker, events.Source(daemon.socket) as source:
        source.share(worker.namespace(model="events"))
        cache(worker, *range(4), *kvtrunk.image_keys((1, 2), 8), *range(8))
        router = Router()
        router.follow(source)
        assert worker.stats().cached_pages == 5 and router.prompts() == {(0, 1, 2, 3)}


def test_what_is_behind_a_removed_page_is_removed_with_it(daemon):
    with daemon.connect() as worker, events.Source(daemon.socket) as source:
        router, space = Router(), worker.namespace(model="events")
        source.share(space)
        asked = [(*range(8), *range(100 * i, 100 * i + 12)) for i in range(3)]
        for prompt in asked:
            cache(worker, *prompt)
        router.follow(source)
        before = len(router.blocks)
        space.remove(asked[0][:8])
        cache(worker, *asked[1])  # while what was removed may wait to be reclaimed
        router.follow(source)
        assert before == 11 and router.prompts() == whole(asked[1:2])


def test_behind_lost_records_all_is_told_again(daemon):
    with daemon.connect() as worker, events.Source(daemon.socket) as source:
        router, space, asked = Router(), worker.namespace(model="events"), []
        source.share(space)
        router.follow(source)
        for i in range(1000):
            asked.append(tuple(range(1000 * i, 1000 * i + 600)))
            cache(worker, *asked[-1])
        router.follow(source)
        assert router.cleared == 2 and router.prompts() == cached(space, asked[-2:])


@pytest.mark.parametrize("supervise", [True, False], ids=["kept", "cold"])
def test_a_daemon_that_restarts_is_followed(supervise):
    with testing.daemon(supervise=supervise, page_size=PAGE, page_bytes=64) as made, \
            events.Source(made.socket) as source:
        router = Router()
        with made.connect() as worker:
            source.share(worker.namespace(model="events"))
            cache(worker, *range(8))
            router.follow(source)
            assert len(router.blocks) == 2
        made.kill()
        if not supervise:
            assert source.take() == source.take() == []
            made.start()
        end = time.monotonic() + 300
        while router.cleared < 2:
            router.take(source.take())
            assert time.monotonic() < end
        router.follow(source)
        assert len(router.blocks) == (2 if supervise else 0)
        with made.connect() as worker:
            cache(worker, *range(4, 12))
            router.follow(source)
        assert len(router.blocks) == (4 if supervise else 2)


def test_a_daemon_that_hangs_holds_up_no_caller(daemon, monkeypatch):
    monkeypatch.setattr(events, "_TIMEOUT_S", 60.0)
    with events.Source(daemon.socket) as source:
        router = Router()
        router.follow(source)
        daemon.kill()
        pathlib.Path(daemon.socket).unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as hung:
            hung.bind(daemon.socket)
            hung.listen()
            while not select.select([hung], [], [], 0)[0]:
                assert source.take() == []
            for _ in range(1000):  # asked, and never answered
                begin = time.monotonic()
                assert source.take() == []
                assert time.monotonic() - begin < events._TIMEOUT_S / 2
        pathlib.Path(daemon.socket).unlink()
        daemon.start()
        with daemon.connect() as worker:
            source.share(worker.namespace(model="events"))
            cache(worker, *range(8))
            end = time.monotonic() + 300
            while len(router.blocks) < 2:
                router.take(source.take())
                assert time.monotonic() < end
        assert router.cleared == 2


def test_a_source_may_be_closed_while_its_daemon_hangs(daemon, monkeypatch):
    monkeypatch.setattr(events, "_TIMEOUT_S", 60.0)
    source = events.Source(daemon.socket)
    assert source.take() == [events.Cleared()]
    daemon.kill()
    pathlib.Path(daemon.socket).unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as hung:
        hung.bind(daemon.socket)
        hung.listen()
        while not select.select([hung], [], [], 0)[0]:
            assert source.take() == []
        begin = time.monotonic()
        source.close()
        assert time.monotonic() - begin < events._TIMEOUT_S / 2


def test_pages_are_named_by_the_rule_of_sglang():
    def number(*arguments):
        return int.from_bytes(events.sha256_chain(*arguments)[:8], "big", signed=True)

    plain = events.Space()
    first = events.sha256_chain(plain, None, [1, 2, 3, 4])
    assert first.hex() == "cf97adeedb59e05bfd73a2b4c2a8885708c4f4f70c84c64b27120e72ab733b72"
    assert number(plain, None, [1, 2, 3, 4]) == -3488128144981237669
    assert number(plain, first, [5, 6, 7, 8]) == 5674439469042975057
    assert number(plain, first, [9, 9, 9, 9]) == -54982850985331377
    assert number(events.Space(cache_salt="s1"), None, [1, 2, 3, 4]) == 8751685944416650314
    assert len({number(events.Space(*name), None, [1]) for name in (
        (None, None), ("a", None), (None, "a"), ("a", "a"), ("b", "a"))}) == 5


def test_pairs_are_named_by_the_rule_of_sglang():
    digest = events.sha256_pairs(events.Space(), None, [1, 2, 3, 4, 5])
    assert digest.hex().startswith("f721fe42aac11dcb")


def test_what_sends_events_is_named_if_it_is_missing(monkeypatch):
    import sys

    for module, package in (("zmq", "pyzmq"), ("msgspec", "msgspec")):
        with monkeypatch.context() as missing:
            missing.setitem(sys.modules, "zmq", object())
            missing.setitem(sys.modules, module, None)
            with pytest.raises(ImportError, match=f"pip install {package}"):
                events.Publisher("inproc://events", 16)
