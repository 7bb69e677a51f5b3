# SPDX-License-Identifier: Apache-2.0
"""The feed: which pages became cached, and which stopped being so."""
from __future__ import annotations

import time
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

from . import _signals
from ._errors import Closed
from ._native import ffi, lib
from ._own import Owner

if TYPE_CHECKING:
    from ._client import Client

_PAUSE_LEAST_S, _PAUSE_MOST_S = 0.001, 0.02
_NONE = memoryview(b"").cast("I")


class FeedRecord(NamedTuple):
    """One record. Fields that its kind does not name are 0 or empty. Arrays are copies, u32.

    kind "namespace": a session opened the namespace of this number and digest. "stored": `pages`
    became cached, in the order of their path after `parent`, with page_size `keys` each; at a root
    parent is 0, and namespace and root_key name the tree. Those that `ends` have a time to live, until
    "lasting" names them: it was lifted. "side": side pages were attached, (page,
    kind, side page) each. "removed": `pages` stopped being cached; ignore those that are not known.
    "cleared": nothing cached before matches any more: forget all pages. "used": n pages were
    reused, the last one is `parent`.
    """

    kind: str
    seq: int
    """Order of the effect, Result.order; 0: of a snapshot."""
    n: int = 0
    pages: memoryview = _NONE
    keys: memoryview = _NONE
    parent: int = 0
    namespace: int = 0
    root_key: int = 0
    sealer: int = 0
    ends: bool = False
    digest: tuple[int, int] = (0, 0)
    epoch: int = 0
    sides: tuple[tuple[int, int, int], ...] = ()


_KINDS = {getattr(lib, f"KVT_FEED_{kind.upper()}"): kind
          for kind in ("namespace", "stored", "side", "removed", "cleared", "used",
                      "lasting")}


def _copy(words: Any, n: int) -> memoryview:
    return memoryview(bytes(ffi.buffer(words, 4 * n))).cast("I") if words and n else _NONE


class Feed(Owner):
    """A subscription: Client.feed(). Iterating waits for records, without end.

    Rule for copies of pages: see kvtrunk_feed.h; poll() until None, after the copy.
    """

    def __init__(self, client: Client) -> None:
        out = ffi.new("struct kvt_feed **")
        self._client = client
        self._page_size = client.info.page_size
        self._record = ffi.new("struct kvt_feed_record *")
        self._handle: Any = None
        with client._lock:
            try:
                client._check(lib.kvt_feed_open(client._open(), out))
                self._handle = out[0]
                client._feed = self
            except BaseException:
                if out[0]:  # a signal's handler has raised
                    lib.kvt_feed_close(out[0])
                raise

    def _open(self) -> Any:
        self._client._open()
        if self._handle is None:
            raise Closed("the feed was closed")
        return self._handle

    def poll(self) -> Optional[FeedRecord]:
        """The next record, or None: none now. Overflow: records were lost; the feed continues, take
        a snapshot(). ConnectionLost: its daemon is gone; if the client has a successor, close the
        feed and open another."""
        native = self._record
        with self._client._lock:
            if self._client._check(lib.kvt_feed_next(self._open(), native)) == 0:
                return None
            n = native.n
            return FeedRecord(
                kind=_KINDS[native.type], seq=native.seq, n=n, pages=_copy(native.pages, n),
                keys=_copy(native.keys, n * self._page_size), parent=native.parent,
                namespace=native.namespace_id, root_key=native.root_key, sealer=native.sealer,
                ends=bool(native.ends),
                digest=(native.digest[0], native.digest[1]), epoch=native.epoch,
                sides=tuple((side.page, side.kind, side.side)
                            for side in (native.sides[0:n] if native.sides else ())))

    def snapshot(self) -> None:
        """Read what is cached, without the daemon. The next records are that, with seq 0: parents
        before children; after them come the changes since. Forget what was known before."""
        with self._client._lock:
            self._client._check(lib.kvt_feed_snapshot(self._open()))

    def __iter__(self) -> Feed:
        return self

    def __next__(self) -> FeedRecord:
        pause = _PAUSE_LEAST_S
        while True:
            record = self.poll()
            if record is not None:
                return record
            time.sleep(pause)
            pause = min(2 * pause, _PAUSE_MOST_S)

    def _end(self) -> None:
        """With the client's lock."""
        if self._handle is not None:
            lib.kvt_feed_close(self._handle)
        self._handle = None
        self._client._feed = None

    def close(self) -> None:
        """Unsubscribe. A second time, and after the client's close(): nothing happens."""
        with self._client._lock:
            if self._handle is not None:
                self._end()
        if (raised := _signals.raised()):
            raise raised

    def __enter__(self) -> Feed:
        return self

    def __exit__(self, kind: Optional[type[BaseException]], error: Optional[BaseException],
                 trace: Optional[TracebackType]) -> None:
        self.close()
