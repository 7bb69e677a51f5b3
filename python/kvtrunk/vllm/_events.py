# SPDX-License-Identifier: Apache-2.0
"""KV events: what the pool has in this engine's namespaces, through vLLM's own publisher.

vLLM publishes at the end of a step what its cache manager has done in it. Here other engines cache
and evict, too, while this one is idle. So a thread of EngineCore follows the daemon's feed, and vLLM's
own queue for KV events stays empty. Names of blocks are vLLM's own.
"""
from __future__ import annotations

import collections
import threading
import time
from typing import Any, Iterator, NamedTuple, Optional, Sequence

from vllm.distributed.kv_events import (MEDIUM_GPU, AllBlocksCleared, BlockRemoved, BlockStored,
                                        EventPublisherFactory, KVEventBatch)
from vllm.logger import init_logger
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.kv_cache_utils import (generate_block_hash_extra_keys, hash_block_tokens,
                                         maybe_convert_block_hash, resolve_none_hash_seed,
                                         to_event_extra_keys)
from vllm.v1.kv_cache_interface import KVCacheSpecKind

from .. import Error, Namespace, PermissionDenied, Unsupported, events
from .._limited_log import LimitedLog
from ..engine import refuse

logger = init_logger("vllm.kvtrunk")  # vLLM shows its own names only

_PAUSE_LEAST_S, _PAUSE_MOST_S = 0.001, 0.02
_FAILED_S = 1.0
_CLOSE_S = 5.0


class _Space(NamedTuple):
    """Common fields of a namespace's requests, by which vLLM names blocks."""

    lora_request: Any
    cache_salt: Optional[str]
    mm_features: tuple[()] = ()
    prompt_embeds: None = None

    def extra_keys(self, first: bool) -> Any:
        """Extra keys of a block. first: it begins a prompt."""
        return generate_block_hash_extra_keys(self, 0 if first else 1, 2, 0)[0]


class Events(threading.Thread):
    """The thread of an engine. start() it when the engine has its namespaces."""

    def __init__(self, config: Any, socket: Optional[str], label: str, pairs: bool) -> None:
        """Stands in front of the publisher that vLLM makes next. pairs: keys are those of draft
        layers."""
        super().__init__(name="kvtrunk-events", daemon=True)
        self._config = config.kv_events_config
        hash_of = get_hash_fn_by_name(config.cache_config.prefix_caching_hash_algo)
        none = hash_of(resolve_none_hash_seed(hash_of))

        def chain(space: _Space, parent: Optional[bytes], tokens: Sequence[int]) -> bytes:
            own = tokens[:-1] if pairs else tokens
            return bytes(hash_block_tokens(hash_of, parent or none, own,
                                           space.extra_keys(parent is None)))

        try:
            self._source = events.Source(socket, chain, pairs=pairs, label=f"{label} events")
        except (PermissionDenied, Unsupported) as error:
            refuse(f"--kv-events-config: {error}")
        self._chain, self._pairs = chain, pairs
        self._reports: collections.deque[tuple[_Space, list[int]]] = collections.deque()
        """Reused tokens that requests want published again, as in events.Stored."""
        self._warn = LimitedLog(logger.warning)
        self._end = threading.Event()
        self._publisher: Any = None
        self._kind: str = self._config.publisher
        name = f"kvtrunk {config.kv_transfer_config.engine_id}"
        EventPublisherFactory.register_publisher(name, self._make)
        self._config.publisher = name

    def _make(self, **options: Any) -> Any:
        """Make the publisher of the user's kind: EventPublisherFactory.create() calls this."""
        factory = EventPublisherFactory
        del factory._registry[self._config.publisher]
        self._config.publisher = self._kind
        self._publisher = factory._registry[self._kind](**options)
        return self._publisher

    def share(self, namespace: Namespace, lora: Any, salt: Optional[str]) -> None:
        """Tell pages of this namespace, each time when it was opened."""
        self._source.share(namespace, _Space(lora, salt))

    def forget(self) -> None:
        """Tell no pages of the namespaces so far."""
        self._source.forget()

    def report(self, request: Any, n_positions: int) -> None:
        """Tell again whole pages that a request has just found, and holds."""
        self._reports.append((_Space(request.lora_request, request.cache_salt),
                              list(request._all_token_ids[:n_positions + self._pairs])))

    def _reported(self) -> Iterator[events.Event]:
        while self._reports:
            space, tokens = self._reports.popleft()
            digests: list[bytes] = []
            for begin in range(0, len(tokens) - self._pairs, self._page_size):
                digests.append(self._chain(
                    space, digests[-1] if digests else None,
                    tokens[begin:begin + self._page_size + self._pairs]))
            yield events.Stored(space, digests, None, tokens)

    def begin(self, page_size: int, group: int, metadata: tuple[str, Optional[int]]) -> None:
        """Start. metadata: vLLM's of the main group."""
        self._page_size, self._group = page_size, group
        kind, window = metadata
        # Pages of windows are kept as all others, so routers may count on them.
        self._kind_of_group = KVCacheSpecKind.FULL_ATTENTION.value if window else kind
        self.start()

    def run(self) -> None:
        """The thread."""
        try:
            self._follow()
        except Exception:  # of vLLM, of its publisher
            logger.exception("kvtrunk: KV events have stopped: routers no longer learn what this "
                             "engine has, and requests are served as before. Start it again to "
                             "have them")
        finally:
            self._source.close()

    def _follow(self) -> None:
        pause = _PAUSE_LEAST_S
        while not self._end.wait(pause):
            try:
                found = self._source.take()
            except Error as error:  # a daemon that came back with other options
                self._warn(f"KV events wait: {error}")
                pause = _FAILED_S
                continue
            # In front: a page that a request found may have been removed before, and stored again.
            found = [*self._reported(), *found]
            pause = _PAUSE_LEAST_S if found else min(2 * pause, _PAUSE_MOST_S)
            if not found:
                continue
            try:
                self._publisher.publish(KVEventBatch(ts=time.time(),
                                                     events=[self._told(each) for each in found]))
            except RuntimeError:  # it is shut down
                break

    def _told(self, event: events.Event) -> Any:
        if isinstance(event, events.Cleared):
            return AllBlocksCleared()
        hashes = [maybe_convert_block_hash(digest) for digest in event.digests]
        if isinstance(event, events.Removed):
            return BlockRemoved(block_hashes=hashes, medium=MEDIUM_GPU, group_idx=self._group)
        space: _Space = event.space
        lora, first = space.lora_request, event.parent is None
        return BlockStored(
            block_hashes=hashes,
            parent_block_hash=None if first else maybe_convert_block_hash(event.parent),
            token_ids=event.tokens[:len(event.tokens) - self._pairs], block_size=self._page_size,
            lora_id=lora.adapter_id if lora else None, medium=MEDIUM_GPU,
            lora_name=lora.name if lora else None,
            extra_keys=to_event_extra_keys(
                [space.extra_keys(first and i == 0) for i in range(len(hashes))]),
            group_idx=self._group, kv_cache_spec_kind=self._kind_of_group)

    def close(self) -> None:
        """The engine ends."""
        self._end.set()
        if self.ident is not None:
            self.join(_CLOSE_S)


def events_of(config: Any, socket: Optional[str], label: str, pairs: bool) -> Optional[Events]:
    """Events of an engine. None: it publishes none."""
    asked = config.kv_events_config
    if asked is None or not asked.enable_kv_cache_events or asked.publisher == "null":
        return None
    return Events(config, socket, label, pairs)
