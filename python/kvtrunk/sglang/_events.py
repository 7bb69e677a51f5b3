# SPDX-License-Identifier: Apache-2.0
"""Cached pages of the pool as KV events, for SGLang's own publisher: --kv-events-config.

Hashes and formats are those of SGLang's own cache. That publishes its own pages; this one those of
all engines, in the namespaces that its own requests have had.
"""
from __future__ import annotations

import logging
import weakref
from typing import Any, NamedTuple, Optional, Sequence

from sglang.srt.disaggregation.kv_events import (AllBlocksCleared, BlockRemoved, BlockStored,
                                                 StorageMedium, kv_event_namespace_seed,
                                                 namespaced_block_hash)

from .. import Error, Namespace
from .._limited_log import LimitedLog
from ..events import Chain, Event, Removed, Source, Space, Stored, sha256_chain, sha256_pairs
from ..engine import Refused

logger = logging.getLogger(__name__)


class Told(NamedTuple):
    """Fields of a namespace in events."""

    cache_salt: Optional[str]
    lora_name: Optional[str]
    seed: Optional[bytes]
    """Seed with which published hashes are hashed once more."""


def _number(digest: bytes) -> int:
    """The first 8 bytes, as SGLang publishes them."""
    return int.from_bytes(digest[:8], "big", signed=True)


def name_page(told: Told, parent: Optional[bytes], tokens: Sequence[int],
              chain: Chain = sha256_chain) -> bytes:
    """The published hash of a page, followed by the digest that the next page's is made from."""
    digest = chain(Space(cache_salt=told.cache_salt), parent and parent[8:], tokens)
    hashed: int = namespaced_block_hash(_number(digest), namespace_seed=told.seed)
    return hashed.to_bytes(8, "big", signed=True) + digest


class Events:
    """KV events of the scheduler of rank 0."""

    def __init__(self, params: Any, socket: Optional[str], pairs: bool = False) -> None:
        """params: of SGLang's cache. pairs: keys are those of draft layers. Refused: the daemon has
        no feed for this engine."""
        self._pairs, self._bigrams = pairs, params.is_eagle
        try:
            self._source = Source(socket, self._name, pairs=pairs, label="sglang events")
        except Error as error:
            raise Refused(f"--kv-events-config needs the daemon's feed: {error}") from None
        self._page_size = params.page_size
        self._dynamo = params.dynamo_kv_event_format
        self._lora_names = params.kv_event_lora_names
        self._shared: weakref.WeakSet[Namespace] = weakref.WeakSet()
        self._warn = LimitedLog(logger.warning)

    def share(self, namespace: Namespace, extra_key: Optional[str], salt: Optional[str]) -> None:
        """Tell what is cached in an open namespace. extra_key: SGLang's, with the adapter's number.
        """
        if namespace not in self._shared:
            self._shared.add(namespace)
            self._source.share(namespace, self._told(extra_key, salt))

    def _told(self, extra_key: Optional[str], salt: Optional[str]) -> Told:
        """As KVCacheEventRecorder: without --kv-events-config's "dynamo" only adapters and salts
        tell hashes apart."""
        name = self._lora_names.resolve(extra_key)
        if self._dynamo:
            seed = kv_event_namespace_seed(extra_key=extra_key, cache_salt=salt)
        else:
            seed = kv_event_namespace_seed(extra_key=extra_key if name else None, cache_salt=None)
        return Told(salt, name, seed)

    def _name(self, told: Told, parent: Optional[bytes], tokens: Sequence[int]) -> bytes:
        """SGLang's own cache has pairs for EAGLE, and tokens for a model that drafts."""
        if self._pairs and not self._bigrams:
            tokens = tokens[:-1]
        return name_page(told, parent, tokens, sha256_pairs if self._bigrams else sha256_chain)

    def _tokens(self, tokens: list[int]) -> list[Any]:
        if self._bigrams:
            return list(zip(tokens, tokens[1:]))
        return tokens[:-1] if self._pairs else tokens

    def forget(self) -> None:
        """The namespaces so far are this engine's no more."""
        self._shared.clear()
        self._source.forget()

    def take(self) -> list[Any]:
        """Events since the last call."""
        try:
            return [self._event(event) for event in self._source.take()]
        except Error as error:
            self._warn(f"no KV events are published: {error}")
            return []

    def _event(self, event: Event) -> Any:
        if isinstance(event, Stored):
            return BlockStored(
                block_hashes=[_number(digest) for digest in event.digests],
                parent_block_hash=event.parent and _number(event.parent),
                token_ids=self._tokens(event.tokens), block_size=self._page_size, lora_id=None,
                medium=StorageMedium.GPU, cache_salt=event.space.cache_salt,
                lora_name=event.space.lora_name)
        if isinstance(event, Removed):
            return BlockRemoved(block_hashes=[_number(digest) for digest in event.digests],
                                medium=StorageMedium.GPU)
        return AllBlocksCleared()
