# SPDX-License-Identifier: Apache-2.0
"""KV events of the pool are what SGLang's own cache would publish, without an engine."""
import types
from array import array

import pytest
from engine import until
from sglang.srt.disaggregation.kv_events import AllBlocksCleared, BlockRemoved
from sglang.srt.mem_cache.events import KvEventLoraNames, KVCacheEventRecorder
from sglang.srt.mem_cache.radix_cache import RadixKey

from kvtrunk import bigram_keys, testing
from kvtrunk.engine._refusals import Refused
from kvtrunk.sglang import _refusals
from kvtrunk.sglang._events import Events

PAGE = 4
ADAPTER = "0123456789abcdef" * 2
NAMES = {"plain": (None, None), "a salt": (None, "s1"), "a key": ("e1", None),
         "an adapter": (ADAPTER, None), "all": ("e1" + ADAPTER, "s1")}


def params(dynamo=False, page_size=PAGE, is_eagle=False):
    names = KvEventLoraNames()
    names.register(types.SimpleNamespace(lora_id=ADAPTER, extra_key=ADAPTER), "sql")
    names.register(types.SimpleNamespace(lora_id=ADAPTER, extra_key="e1" + ADAPTER), "sql")
    return types.SimpleNamespace(page_size=page_size, dynamo_kv_event_format=dynamo,
                                 kv_event_lora_names=names, is_eagle=is_eagle)


@pytest.fixture
def daemon():
    with testing.daemon(page_size=PAGE, page_bytes=64, n_pages=64) as made:
        yield made


def cache(space, tokens):
    with space.begin(tokens, full=True) as seq:
        seq.end(len(tokens))


def taken(events):
    """All events so far. The first call has the snapshot."""
    return [event for some in iter(events.take, []) for event in some]


def hashes(found):
    return [one for event in found for one in event.block_hashes]


def recorded(given, *paths):
    """Events that SGLang records for nodes, each the child of the one before."""
    recorder = KVCacheEventRecorder(enabled=True, page_size=PAGE,
                                    dynamo_format=given.dynamo_kv_event_format,
                                    lora_names=given.kv_event_lora_names)
    extra_key, salt, paths = *paths[0], paths[1:]
    root = node = types.SimpleNamespace(parent=None, hash_value=[], event_hash_value=None,
                                        key=RadixKey(array("q"), extra_key, cache_salt=salt))
    for tokens in paths:
        node = types.SimpleNamespace(
            parent=node, hash_value=None, event_hash_value=None,
            key=RadixKey(array("q", tokens), extra_key, cache_salt=salt,
                         is_bigram=given.is_eagle))
        recorder.record_store(node)
    stored = recorder.take()
    while node is not root:
        recorder.record_remove(node)
        node = node.parent
    return stored, recorder.take()


@pytest.mark.parametrize("dynamo", [False, True], ids=["default", "dynamo"])
@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_events_are_those_of_sglang_s_own_cache(daemon, name, dynamo):
    given = params(dynamo)
    events = Events(given, daemon.socket)
    with daemon.connect() as client:
        space = client.namespace(model="events", adapter=name[0], salt=name[1])
        events.share(space, *name)
        assert taken(events) == [AllBlocksCleared()]
        cache(space, [*range(1, 9), 70])
        stored, removed = recorded(given, name, range(1, 9))
        assert taken(events) == stored
        cache(space, [*range(1, 9), *range(9, 17)])
        more, removed = recorded(given, name, range(1, 9), range(9, 17))
        whole, = more
        [tail] = taken(events)
        assert tail.parent_block_hash == whole.block_hashes[1]
        assert (tail.block_hashes, tail.token_ids) == (whole.block_hashes[2:], whole.token_ids[8:])
        space.remove_all()
        gone = []
        until(lambda: gone.extend(hashes(events.take())) or sorted(gone) == sorted(hashes(removed)))


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
@pytest.mark.parametrize("is_eagle", [True, False], ids=["EAGLE", "STANDALONE"])
def test_events_with_draft_layers_are_those_of_sglang_s_own_cache(daemon, is_eagle, name):
    """For EAGLE it has pairs of tokens, and for a model that drafts tokens."""
    given = params(is_eagle=is_eagle)
    events = Events(given, daemon.socket, pairs=True)
    with daemon.connect() as client:
        space = client.namespace(model="events", adapter=name[0], salt=name[1])
        events.share(space, *name)
        told = []
        for n in 9, 17:
            root, keys = bigram_keys(range(1, n + 1))
            cache(space.root(root), keys)
            told += [event for event in taken(events) if event != AllBlocksCleared()]
        stored, removed = recorded(given, name, range(1, 9 + is_eagle), range(9, 17 + is_eagle))
        assert hashes(told) == hashes(stored)
        assert [token for event in told for token in event.token_ids] == [
            token for event in stored for token in event.token_ids]
        assert told[1].parent_block_hash == stored[0].block_hashes[1]
        space.remove_all()
        gone = []
        until(lambda: gone.extend(hashes(events.take())) or sorted(gone) == sorted(hashes(removed)))


def test_the_published_vectors(daemon):
    """Hashes that SGLang's own router expects for two pages of 4."""
    events = Events(params(), daemon.socket)
    with daemon.connect() as client:
        space = client.namespace(model="vectors")
        events.share(space, None, None)
        cache(space, range(1, 9))
        stored = taken(events)[-1]
        assert stored.block_hashes == [-3488128144981237669, 5674439469042975057]
        assert stored.parent_block_hash is None and stored.token_ids == [*range(1, 9)]
        cache(space, [1, 2, 3, 4, 9, 9, 9, 9])
        [stored] = taken(events)
        assert stored.block_hashes == [-54982850985331377]
        assert stored.parent_block_hash == -3488128144981237669


def test_what_was_cached_before_is_told_when_it_is_asked_for(daemon):
    events = Events(params(), daemon.socket)
    with daemon.connect() as client:
        space = client.namespace(model="events")
        cache(space, range(8))
        assert taken(events) == [AllBlocksCleared()]
        for _ in range(3):
            events.share(space, None, None)
            assert len(hashes(taken(events))) in (2, 0)
        events.forget()
        found = []
        until(lambda: found.extend(events.take()) or found == [AllBlocksCleared()])
        events.share(space, None, None)
        assert len(hashes(taken(events))) == 2


def test_removals_are_told(daemon):
    events = Events(params(), daemon.socket)
    with daemon.connect() as client:
        space = client.namespace(model="events")
        events.share(space, None, None)
        cache(space, range(8))
        stored = taken(events)[-1]
        assert client.evict(2) == 2
        assert [type(event) for event in taken(events)] == [BlockRemoved]
        cache(space, range(8))
        assert taken(events) == [stored]


def test_a_daemon_without_a_feed_is_refused():
    with testing.daemon(arena_visible="no", page_size=PAGE, page_bytes=64) as hidden:
        with pytest.raises(Refused, match="--kv-events-config needs the daemon's feed"):
            Events(params(), hidden.socket)
