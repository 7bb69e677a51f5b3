# SPDX-License-Identifier: Apache-2.0
"""The cached pages of a pool, as the KV events that routers read: docs/events.md.

A Source follows the daemon's feed and gives events of chosen namespaces: each page is stored once,
after its parent, and removed once, from any engine. A Publisher sends them by ZeroMQ, as the
publishers of vLLM and SGLang do. It needs pyzmq and msgspec; all else needs neither.

    publisher = events.Publisher("tcp://*:5557", client.info.page_size)
    with events.Source() as source, publisher:
        source.share(client.namespace(model="prices"))
        while serving:
            publisher.publish(source.take())
            time.sleep(0.01)
"""
from __future__ import annotations

import collections
import hashlib
import importlib
import itertools
import os
import threading
import time
from array import array
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Callable, Iterable, NamedTuple, Optional, Sequence, Union

from ._client import Client, Namespace, connect
from ._errors import Closed, ConnectionLost, DaemonUnreachable, Error, Overflow, Timeout
from ._feed import Feed, FeedRecord
from ._own import Owner

_RETRY_S = 0.2
_TIMEOUT_S = 5.0
_UNSENT_MAX = 100_000
_ASKED_MAX = 16
"""Requests of subscribers that one publish() reads."""
_ANSWERED_MAX = 256
"""Messages that one publish() sends again."""
_TOKENS_END = 1 << 31
"""Keys from here on are no tokens: kvtrunk_keys.h."""


class Stored(NamedTuple):
    """Pages became cached, in the order of their path."""

    space: Any
    """The `space` that share() was given with their namespace."""
    digests: list[bytes]
    """Digest of each page."""
    parent: Optional[bytes]
    """Digest of the page before them. None: they begin a prompt."""
    tokens: list[int]
    """Tokens of all pages. With pairs one more: each position has its token, and the next one."""


class Removed(NamedTuple):
    """Pages stopped being cached."""

    digests: list[bytes]


class Cleared(NamedTuple):
    """Forget all pages stored so far. Events of those that are cached follow."""


Event = Union[Stored, Removed, Cleared]
Chain = Callable[[Any, Optional[bytes], Sequence[int]], bytes]
"""chain(space, parent, tokens): digest of a page, from its parent's and its tokens as in Stored."""


class Space(NamedTuple):
    """Names of a namespace in events for routers."""

    lora_name: Optional[str] = None
    cache_salt: Optional[str] = None


def sha256_chain(space: Space, parent: Optional[bytes], tokens: Sequence[int]) -> bytes:
    """SGLang's rule: SHA-256 of the parent's digest and the tokens, u32 little endian. A salt, and
    an adapter, is the parent of the first page."""
    if parent is None:
        parent = b""
        if space.lora_name is not None:
            parts = (b"\1%b%b" % (len(text).to_bytes(8, "little"), text) if text is not None else
                     b"\0" for text in (_utf8(space.lora_name), _utf8(space.cache_salt)))
            parent = hashlib.sha256(b"sglang-kv-event-namespace-v1" + b"".join(parts)).digest()
        elif space.cache_salt is not None:
            parent = hashlib.sha256(b"sglang-cache-salt-v1\0" +
                                    space.cache_salt.encode()).digest()
    return hashlib.sha256(parent + array("I", tokens).tobytes()).digest()


def sha256_pairs(space: Space, parent: Optional[bytes], tokens: Sequence[int]) -> bytes:
    """sha256_chain() of pairs: both tokens of each position."""
    return sha256_chain(space, parent,
                        [token for pair in zip(tokens, tokens[1:]) for token in pair])


def _utf8(text: Optional[str]) -> Optional[bytes]:
    return None if text is None else text.encode()


class _Page:
    """One cached page."""

    __slots__ = ("space", "parent", "behind", "digest", "last")

    def __init__(self, space: _Space, parent: int, digest: Optional[bytes], last: int) -> None:
        self.space = space
        self.parent = parent
        """Number of the page before it; 0: none."""
        self.behind: Optional[set[int]] = None
        """Numbers of the pages right after it."""
        self.digest = digest
        """Its digest in events. None: events have not told of it."""
        self.last = last
        """Its last key."""


class _Space:
    """The tree of a namespace and root key."""

    def __init__(self, spaces: _Spaces, digest: tuple[int, int], root: int) -> None:
        self._spaces, self._digest, self._root = spaces, digest, root
        self.pages = 0
        """How many it has."""
        self.shared = False
        self.value: Any = None
        self.waiting: dict[int, tuple[int, int, memoryview]] = {}
        """Its pages until it is shared, by number: parent, key before them, and keys."""

    def lose(self, pages: int) -> None:
        """Forget it, if it has no more pages and is not shared."""
        self.pages -= pages
        if not self.pages and not self.shared:
            roots = self._spaces.get(self._digest, {})
            if roots.get(self._root) is self:
                del roots[self._root]
                if not roots:
                    del self._spaces[self._digest]


_Spaces = dict[tuple[int, int], dict[int, _Space]]


class Index:
    """Index of a feed's pages, which turns its records into events."""

    def __init__(self, page_size: int, chain: Chain, pairs: bool = False) -> None:
        """pairs: keys are those of bigram_keys()."""
        self._page_size = page_size
        self._chain = chain
        self._pairs = pairs
        self._numbers: dict[int, tuple[int, int]] = {}
        """Digests of namespaces."""
        self._spaces: _Spaces = {}
        """Trees by namespace digest and root key."""
        self._pages: dict[int, _Page] = {}
        self._told: dict[bytes, int] = {}
        """How many pages have a digest: with pairs those that differ in the last one only."""

    def restart(self) -> list[Event]:
        """Forget all pages, before a snapshot. Namespaces stay shared."""
        self._numbers.clear()
        return self._clear()

    def forget(self) -> None:
        """Share no namespace any more. restart() follows."""
        self._spaces.clear()

    def _clear(self) -> list[Event]:
        self._pages.clear()
        self._told.clear()
        for space in [space for roots in self._spaces.values() for space in roots.values()]:
            space.waiting.clear()
            space.lose(space.pages)
        return [Cleared()]

    def share(self, digest: tuple[int, int], root_key: int, value: Any,
              most: int) -> tuple[list[Event], int]:
        """Tell pages of this tree: first those that are there, so many at most. Call it again while
        there are more. Returns how many pages it looked at, too."""
        space = self._space(digest, root_key)
        rows = [(page, *space.waiting.pop(page))
                for page in list(itertools.islice(space.waiting, most))]
        space.shared, space.value = not space.waiting, value
        return self._tell(space, rows), len(rows)

    def take(self, record: FeedRecord) -> list[Event]:
        """The next record of the feed, or of a snapshot."""
        if record.kind == "stored":
            return self._store(record)
        if record.kind == "removed":
            return self._remove(record.pages)
        if record.kind == "cleared":
            return self._clear()
        if record.kind == "namespace":
            self._name(record.namespace, record.digest)
        return []

    def _name(self, number: int, digest: tuple[int, int]) -> None:
        """A number is reused when nothing of its namespace is cached: forget that one."""
        old = self._numbers.get(number, digest)
        self._numbers[number] = digest
        if old != digest and old not in self._numbers.values():
            self._spaces.pop(old, None)

    def _space(self, digest: tuple[int, int], root_key: int) -> _Space:
        roots = self._spaces.setdefault(digest, {})
        root = 0 if self._pairs else root_key
        return roots.get(root) or roots.setdefault(root, _Space(self._spaces, digest, root))

    def _store(self, record: FeedRecord) -> list[Event]:
        last = 0
        if record.parent:
            before = self._pages.get(record.parent)
            if before is None:
                return []  # its path was removed
            space, last = before.space, before.last
        else:
            space = self._space(self._numbers[record.namespace], record.root_key)
            last = record.root_key - 1 if self._pairs else 0
        rows, parent, size = [], record.parent, self._page_size
        for i, page in enumerate(record.pages):
            keys = record.keys[i * size:(i + 1) * size]
            rows.append((page, parent, last, keys))
            parent, last = page, keys[-1]
        if space.shared:
            return self._tell(space, rows)
        for page, parent, last, keys in rows:
            self._add(page, _Page(space, parent, None, keys[-1]))
            space.waiting[page] = parent, last, keys
        return []

    def _tell(self, space: _Space,
              rows: Iterable[tuple[int, int, int, memoryview]]) -> list[Event]:
        """Pages, parents first: page, parent, key before them, keys."""
        runs: list[Event] = []
        end = 0  # page after which the last run may continue
        for page, parent, last, keys in rows:
            before = self._pages[parent].digest if parent else None
            tokens = keys.tolist()
            if max(tokens) >= _TOKENS_END or parent and before is None or last < 0:
                self._add(page, _Page(space, parent, None, tokens[-1]))
                continue
            row = [last, *tokens] if self._pairs else tokens
            digest = self._chain(space.value, before, row)
            self._add(page, _Page(space, parent, digest, tokens[-1]))
            times = self._told[digest] = self._told.get(digest, 0) + 1
            if times > 1:
                continue
            if parent and parent == end:
                run = runs[-1]
                assert isinstance(run, Stored)
                run.digests.append(digest)
                run.tokens.extend(tokens)
            else:
                runs.append(Stored(space.value, [digest], before, row))
            end = page
        return runs

    def _add(self, number: int, page: _Page) -> None:
        old = self._pages.get(number)  # if it waited to be told
        page.behind = old.behind if old is not None else None
        page.space.pages += old is None
        self._pages[number] = page
        if page.parent:
            before = self._pages[page.parent]
            before.behind = before.behind or set()
            before.behind.add(number)

    def _remove(self, pages: Iterable[int]) -> list[Event]:
        """Forget pages, and all after them, which match nothing any more."""
        digests, gone = [], {number for number in pages if number in self._pages}
        numbers = [number for number in gone if self._pages[number].parent not in gone]
        while numbers:
            number = numbers.pop()
            page = self._pages.pop(number)
            numbers.extend(page.behind or ())
            page.space.waiting.pop(number, None)
            page.space.lose(1)
            before = self._pages.get(page.parent)
            if before is not None and before.behind is not None:
                before.behind.discard(number)
            if page.digest is None:
                continue
            times = self._told[page.digest] - 1
            if times:
                self._told[page.digest] = times
            else:
                del self._told[page.digest]
                digests.append(page.digest)
        digests.reverse()  # parents last
        return [Removed(digests)] if digests else []


def _close(client: Client) -> None:
    try:
        client.close()
    except (ConnectionLost, Timeout):
        pass  # it is closed all the same


def _begin(call: Callable[[], tuple[Client, Feed]]) -> Future[tuple[Client, Feed]]:
    """Call it in a thread."""
    future: Future[tuple[Client, Feed]] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except Exception as error:  # pylint: disable=broad-exception-caught
            future.set_exception(error)

    threading.Thread(target=run, name="kvtrunk events", daemon=True).start()
    return future


def _drop(done: Future[tuple[Client, Feed]]) -> None:
    """Close a connection that came too late."""
    if done.exception() is None:
        _close(done.result()[0])


class Source(Owner):
    """Events of the namespaces that are shared, from a daemon's feed.

    One thread may call share() and forget(), and another the rest. It follows the daemon through
    restarts: then, and when it fell behind, Cleared comes, and then all that is cached.
    """

    def __init__(self, socket: Union[str, os.PathLike[str], None] = None,
                 chain: Optional[Chain] = None, *, pairs: bool = False,
                 label: str = "kv events") -> None:
        """socket: as in connect(). chain: what names a page; default: SGLang's rule. pairs: keys
        are those of bigram_keys(). Raises DaemonUnreachable; PermissionDenied, Unsupported: it has
        no feed."""
        self._socket, self._label = socket, label
        self._calls: collections.deque[Optional[tuple[tuple[int, int], int, Any]]] = (
            collections.deque())
        """Calls of share() that take() has not done. None: one of forget()."""
        self._tried_at = 0.0
        self._stale = True
        """A snapshot is due."""
        self._coming: Optional[Future[tuple[Client, Feed]]] = None
        """The next connection. None: connected, or closed."""
        self._client, self._feed = self._connect()
        self._index = Index(self._client.info.page_size,
                            chain or (sha256_pairs if pairs else sha256_chain), pairs)

    def share(self, namespace: Namespace, space: Any = Space()) -> None:
        """Give events of an open namespace from now on, also while it is closed. Call it each time
        when it was opened. space: for the chain, and in Stored."""
        self._calls.append((namespace.digest, namespace._root_key, space))

    def forget(self) -> None:
        """Give Cleared, and then events of those namespaces only that are shared after this."""
        self._calls.append(None)

    def take(self, most: int = 4096) -> list[Event]:
        """Events since the last call, or the first of them, of about `most` pages. Never waits,
        neither for a change nor for a daemon: while there is none, it returns none. Raises what
        __init__() raises, but DaemonUnreachable."""
        try:
            if self._coming is not None:
                if not self._coming.done():
                    return []
                self._client, self._feed = self._coming.result()
                self._coming, self._stale = None, True
            found = [] if self._stale else self._drain(most)
            if self._stale:
                self._feed.snapshot()
                self._stale = False
                found += self._index.restart()
            return found
        except Overflow:
            return []  # the next call tries again
        except Closed:
            raise
        except Error as error:
            self._coming = _begin(self._return)
            if isinstance(error, (ConnectionLost, DaemonUnreachable, Timeout)):
                return []
            raise

    def _connect(self) -> tuple[Client, Feed]:
        self._tried_at = time.monotonic()
        client = connect(self._socket, label=self._label, observe=True, connect_wait=0,
                         timeout=_TIMEOUT_S)
        try:
            return client, client.feed()
        except Error:
            _close(client)
            raise

    def _return(self) -> tuple[Client, Feed]:
        """Connect again. In a thread of its own: a daemon that accepts may never answer."""
        _close(self._client)
        time.sleep(max(0.0, self._tried_at + _RETRY_S - time.monotonic()))
        return self._connect()

    def _drain(self, most: int) -> list[Event]:
        events: list[Event] = []
        while most > 0:
            n = len(self._calls)  # earlier records open their namespaces
            try:
                record = self._feed.poll()
            except Overflow:
                self._stale = True
                break
            if record is not None:
                events += self._index.take(record)
                most -= 1 + len(record.pages)
                continue
            for _ in range(n):
                call = self._calls[0]
                if call is None:
                    self._index.forget()
                    self._stale = True
                else:
                    told, pages = self._index.share(*call, most)
                    events += told
                    most -= pages
                    if most <= 0:
                        return events  # the next call continues
                self._calls.popleft()
            break
        return events

    def close(self) -> None:
        """Unsubscribe."""
        coming, self._coming = self._coming, None
        if coming is not None:
            coming.add_done_callback(_drop)
        _close(self._client)

    def __enter__(self) -> Source:
        return self

    def __exit__(self, kind: Optional[type[BaseException]], error: Optional[BaseException],
                 trace: Optional[TracebackType]) -> None:
        self.close()


def _imported(name: str, package: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise ImportError(f"events are sent with {package}: pip install {package}") from None


def encode(events: Sequence[Event], block_size: int, stamp: float, rank: int = 0) -> bytes:
    """A message's payload, as SGLang has it. Digests of 8 bytes or more: the first 8, signed."""
    told = [_told(event, block_size) for event in events]
    return bytes(_imported("msgspec.msgpack", "msgspec").encode([stamp, told, rank]))


def _number(digest: bytes) -> int:
    return int.from_bytes(digest[:8], "big", signed=True)


def _told(event: Event, block_size: int) -> dict[str, Any]:
    if isinstance(event, Cleared):
        return {"type": "AllBlocksCleared"}
    hashes = [_number(digest) for digest in event.digests]
    if isinstance(event, Removed):
        return {"type": "BlockRemoved", "block_hashes": hashes, "medium": "GPU"}
    n = len(hashes) * block_size
    tokens: list[Any] = event.tokens
    if len(tokens) > n:
        tokens = list(zip(tokens, tokens[1:]))
    told = {"type": "BlockStored", "block_hashes": hashes,
            "parent_block_hash": None if event.parent is None else _number(event.parent),
            "token_ids": tokens, "block_size": block_size, "lora_id": None, "medium": "GPU"}
    told.update((name, value) for name, value in event.space._asdict().items() if value is not None)
    return told


class Publisher(Owner):
    """Sends events by ZeroMQ: frames topic, sequence number (8 bytes, big endian), payload.

    Numbers begin at the time in microseconds, so that they rise when a program starts again."""

    def __init__(self, endpoint: str, block_size: int, *, replay_endpoint: Optional[str] = None,
                 topic: str = "", buffer_steps: int = 10_000, rank: int = 0) -> None:
        """endpoint: bound. block_size: the daemon's page_size. replay_endpoint: bound, where
        subscribers ask for messages that they missed, of the last buffer_steps; answered by
        publish(). rank: of data parallelism. ImportError: no pyzmq or msgspec."""
        zmq = _imported("zmq", "pyzmq")
        _imported("msgspec.msgpack", "msgspec")
        self._block_size, self._rank, self._topic = block_size, rank, topic.encode()
        self._sent: collections.deque[bytes] = collections.deque(maxlen=buffer_steps)
        """Payloads of the last messages."""
        self._seq = time.time_ns() // 1000
        """Number of the next one."""
        self._missed: collections.deque[tuple[bytes, int]] = collections.deque()
        """Subscribers that asked, and the number of the message that each gets next."""
        self._context = zmq.Context()
        self._context.linger = 0
        self._pub = self._context.socket(zmq.XPUB)
        self._replay = self._context.socket(zmq.ROUTER) if replay_endpoint else None
        self._none_asks = zmq.Again
        self._no_wait = zmq.NOBLOCK
        try:
            self._pub.set_hwm(_UNSENT_MAX)
            self._pub.setsockopt(zmq.XPUB_VERBOSE, 1)
            self._pub.bind(endpoint)
            if self._replay is not None:
                self._replay.setsockopt(zmq.SNDHWM, buffer_steps + 1)  # it drops the rest
                self._replay.bind(replay_endpoint)
        except zmq.ZMQError as error:
            self.close()
            raise OSError(error.errno, f"{error}: {endpoint} or {replay_endpoint}") from None

    def publish(self, events: Sequence[Event]) -> None:
        """Send events as one message, and a part of what subscribers ask for. Without events a
        message is sent to new subscribers only: they see by its number that they missed some."""
        if self._received(self._pub) or events:
            payload = encode(events, self._block_size, time.time(), self._rank)
            self._pub.send_multipart((self._topic, self._seq.to_bytes(8, "big"), payload))
            self._sent.append(payload)
            self._seq += 1
        if self._replay is not None:
            self._answer()

    def _received(self, socket: Any) -> list[list[bytes]]:
        found: list[list[bytes]] = []
        try:
            while len(found) < _ASKED_MAX:
                found.append(socket.recv_multipart(self._no_wait))
        except self._none_asks:
            pass
        return found

    def _answer(self) -> None:
        """Send a part of what subscribers missed: the caller has other work."""
        if not self._missed:
            self._missed.extend((asked[0], int.from_bytes(asked[2], "big"))
                                for asked in self._received(self._replay) if len(asked) == 3)
        for _ in range(_ANSWERED_MAX):
            if not self._missed:
                break
            peer, seq = self._missed[0]
            seq = max(seq, self._seq - len(self._sent))
            if seq < self._seq:
                self._replay.send_multipart((peer, b"", self._topic, seq.to_bytes(8, "big"),
                                             self._sent[seq - self._seq]))
                self._missed[0] = peer, seq + 1
            else:
                self._replay.send_multipart((peer, b"", b"", b"\xff" * 8, b""))
                self._missed.popleft()

    def close(self) -> None:
        """Close the sockets."""
        self._context.destroy(linger=0)

    def __enter__(self) -> Publisher:
        return self

    def __exit__(self, kind: Optional[type[BaseException]], error: Optional[BaseException],
                 trace: Optional[TracebackType]) -> None:
        self.close()
