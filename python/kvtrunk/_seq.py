# SPDX-License-Identifier: Apache-2.0
"""Sequences: one lease with its page table."""
from __future__ import annotations

import asyncio
import errno
import functools
import warnings
from array import array
from types import TracebackType
from typing import TYPE_CHECKING, Any, Iterable, Optional

from ._errors import Again, Closed, ConnectionLost, Error, Stale, from_parts
from ._keys import Tokens, count_of, keys_of
from ._native import ffi, lib

if TYPE_CHECKING:
    from ._client import Client

Fence = tuple[int, int]
"""(slot, value): reached when fence word `slot` is at least `value`. None: nothing launched touches
the pages."""

SIDE_LET: int = lib.KVT_SIDE_LET
"""In place of a side page: let go of what is there (see Sequence.let_go)."""
JUNCTION: int = lib.KVT_POINT_JUNCTION
"""A declared point: where the tokens leave what is cached or announced (see Namespace.begin)."""
_IDLE: Fence = (lib.KVT_FENCE_IDLE, 0)
_CHUNKED, _KEEP = lib.KVT_F_CHUNKED, lib.KVT_F_KEEP
_NULL = ffi.NULL
_commit, _commit_async, _end = lib.kvtpy_commit, lib.kvtpy_commit_async, lib.kvtpy_end
_next, _pages = lib.kvt_seq_next, lib.kvt_seq_pages
_buffer = ffi.buffer


def fence_of(fence: Optional[Fence]) -> Fence:
    """The two numbers of a fence."""
    if fence is None:
        return _IDLE
    slot, value = fence
    return slot, value


class Sequence:
    """A sequence: Namespace.begin(). It ends with end(), at the end of a `with`, or with its client.

    Positions below `next` are computed: read their pages; write only pages from `next` on.
    """

    __slots__ = ("_client", "_seq", "_table", "_count", "__weakref__")

    def __init__(self, client: Client, seq: Any) -> None:
        self._client = client
        self._seq: Any = seq
        self._table: Optional[memoryview] = None
        self._count = client._out_n

    def _open(self) -> Any:
        """With the client's lock."""
        self._client._open()
        if self._seq is None:
            raise Closed("the sequence has ended")
        return self._seq

    @property
    def ended(self) -> bool:
        """True after end() or the client's close()."""
        return self._seq is None or self._client.closed

    @property
    def pages(self) -> memoryview:
        """The page table, u32, read only: entry i holds positions [i * page_size, (i + 1) *
        page_size). numpy.frombuffer(seq.pages, 'u4') and torch take it without a copy. A view never
        changes: read `pages` again after commit, extend, poll and settle, which may replace pages by
        cached ones."""
        table = self._table
        if table is None:
            with self._client._lock:
                seq = self._open()
                pages = _pages(seq, self._count)
                n = self._count[0]
                table = memoryview(_buffer(pages, 4 * n)[:] if n else b"").cast("I")
                self._table = table
        return table

    @property
    def next(self) -> int:
        """Where to continue computing: the first position that is not computed."""
        with self._client._lock:
            return int(_next(self._open()))

    @property
    def matched(self) -> int:
        """Positions that were cached at begin."""
        with self._client._lock:
            return int(lib.kvt_seq_matched(self._open()))

    @property
    def reusable(self) -> int:
        """Positions that needed no computing at begin."""
        with self._client._lock:
            return int(lib.kvt_seq_reusable(self._open()))

    @property
    def announced(self) -> int:
        """Positions that others were computing at begin."""
        with self._client._lock:
            return int(lib.kvt_seq_announced(self._open()))

    @property
    def shared(self) -> int:
        """Reusable positions that other sessions sealed."""
        with self._client._lock:
            return int(lib.kvt_seq_shared(self._open()))

    @property
    def known(self) -> int:
        """Keys given so far: keys of the next commit begin at this position."""
        with self._client._lock:
            return int(lib.kvt_seq_known(self._open()))

    def sides(self, kind: int) -> memoryview:
        """Side pages of a kind where the sequence began, u32, read only: those of the last pages
        below `reusable`, oldest first, as many as client.info.side_pages says or there are. Copy a
        state into a page of Client.alloc() before you go on from it. If `matched` is above
        `reusable`, make a point at `matched`: the next one continues behind it."""
        with self._client._lock:
            pages = lib.kvt_seq_sides(self._open(), kind, self._count)
            n = self._count[0]
            return memoryview(_buffer(pages, 4 * n)[:] if n else b"").cast("I").toreadonly()

    def attach(self, index: int, kind: int, page: int) -> None:
        """Give a page of Client.alloc() to the sequence: the next commit makes it the side page of
        page `index` of the page table, which must lie in front of `computed`. It is readable until
        the end: cached, or freed at the fence of the end if the place has one already or the commit
        fails. Page 0 drops what is there, unless others need it. A commit that takes side pages
        keeps duplicates until the end, and leaves `pages` as it is. InvalidArgument."""
        with self._client._lock:
            self._client._check(lib.kvt_seq_attach(self._open(), index, kind, page))

    def let_go(self, index: int, kind: int) -> None:
        """Read the side page of page `index` no more after the next commit's fence: from then on it
        may be evicted before the sequence's end. Until it is, others continue behind it. Nothing
        happens while another sequence crosses that page. InvalidArgument."""
        self.attach(index, kind, SIDE_LET)

    def commit(self, computed: int, keys: Tokens = None, *, fence: Optional[Fence] = None,
               chunked: bool = False, keep: bool = False) -> None:
        """Publish positions [0, computed): whole pages become visible to all processes.

        keys: those that the sequence does not have yet (generated ones), from position `known` on.
        chunked: not the last chunk, counts no hit. keep: duplicates stay readable until the end.
        Waits for the daemon and for `fence`. Afterwards `pages` and `next` may have changed: others
        may have computed more of the prompt.
        Raises Stale: the prefix was reset, removed or expired; computing continues, unshared.
        InvalidArgument: beyond the page table or the keys given.
        """
        data, n = (_NULL, 0) if keys is None else keys_of(keys)
        slot, value = _IDLE if fence is None else fence
        flags = (_CHUNKED if chunked else 0) | (_KEEP if keep else 0)
        client = self._client
        with client._lock:
            seq = self._seq
            if seq is None or client._slow:
                seq = self._open()
            self._table = None
            rc = _commit(seq, count_of(computed, "computed"), data, n, slot, value, flags)
            if rc != 0:
                raise client._failure(rc)

    def commit_nowait(self, computed: int, keys: Tokens = None, *,
                      fence: Optional[Fence] = None, chunked: bool = False) -> None:
        """commit() without waiting. `pages` stays as it is until poll() or settle(). Any number may
        be in flight, and take effect in their order. Raises the failure of an earlier one, once;
        Again: no room, settle() first."""
        data, n = (_NULL, 0) if keys is None else keys_of(keys)
        slot, value = _IDLE if fence is None else fence
        client = self._client
        with client._lock:
            seq = self._seq
            if seq is None or client._slow:
                seq = self._open()
            self._table = None
            rc = _commit_async(seq, count_of(computed, "computed"), data, n, slot, value,
                               _CHUNKED if chunked else 0)
            if rc != 0:
                raise client._failure(rc)

    def poll(self) -> int:
        """Take outcomes of commit_nowait() that have come. Returns how many are in flight."""
        with self._client._lock:
            seq = self._open()
            self._table = None
            return int(self._client._check(lib.kvt_seq_poll(seq)))

    def settle(self) -> None:
        """Wait until no commit is in flight."""
        with self._client._lock:
            seq = self._open()
            self._table = None
            self._client._check(lib.kvt_seq_settle(seq))

    def extend(self, n: int) -> None:
        """Lengthen the page table by at least n positions, by whole private pages. NoSpace and
        QuotaExceeded: nothing changed."""
        with self._client._lock:
            seq = self._open()
            self._table = None
            self._client._check(lib.kvt_seq_extend(seq, count_of(n, "n")))

    def extend_pages(self, pages: Tokens) -> None:
        """Lengthen the page table by pages of Client.alloc(), which are the sequence's from now on,
        and wait for nothing. Again: settle() first. Pages that were not the session's are refused
        later: commits on them raise InvalidArgument."""
        numbers, n = keys_of(pages)
        with self._client._lock:
            seq = self._open()
            self._table = None
            self._client._check(lib.kvt_seq_extend_pages(seq, numbers, n))

    def end(self, computed: int = 0, keys: Tokens = None, *, fence: Optional[Fence] = None,
            chunked: bool = False) -> None:
        """End; with computed > 0 after a last commit. A second call does nothing.

        Raises Stale, InvalidArgument or the failure of an earlier commit_nowait(): then the last
        commit published nothing, and the sequence has ended all the same.
        """
        data, n = (_NULL, 0) if keys is None else keys_of(keys)
        slot, value = _IDLE if fence is None else fence
        client = self._client
        with client._lock:
            seq = self._seq
            if seq is None or client._handle is None:
                return
            if client._slow:
                client._open()
            rc = _end(seq, count_of(computed, "computed"), data, n, slot, value,
                      _CHUNKED if chunked else 0)
            self._seq = self._table = None
            if rc != 0:
                raise client._failure(rc)

    def end_nowait(self, computed: int = 0, keys: Tokens = None, *, fence: Optional[Fence] = None,
                   chunked: bool = False) -> None:
        """End without waiting for the daemon. A second call does nothing.

        What becomes of the last commit is not reported. Again: the rings are full, nothing
        happened, and the sequence stays; reap, then try again.
        """
        data, n = (_NULL, 0) if keys is None else keys_of(keys)
        slot, value = _IDLE if fence is None else fence
        client = self._client
        with client._lock:
            seq = self._seq
            if seq is None or client._handle is None:
                return
            if client._slow:
                client._open()
            rc = lib.kvtpy_end_async(seq, count_of(computed, "computed"), data, n, slot, value,
                                     _CHUNKED if chunked else 0)
            if rc != -errno.EAGAIN:
                self._seq = self._table = None
            if rc != 0:
                raise client._failure(rc)

    def __enter__(self) -> Sequence:
        return self

    def __exit__(self, kind: Optional[type[BaseException]], error: Optional[BaseException],
                 trace: Optional[TracebackType]) -> None:
        try:
            self.end()
        except Stale:
            pass
        except Error:
            if error is None:
                raise

    def __del__(self) -> None:
        seq = getattr(self, "_seq", None)
        if seq is not None and not self._client.closed:
            # Not ended here: this may run inside any call, on any thread.
            self._client._orphans.append(seq)
            self._client._slow = True
            warnings.warn("a kvtrunk.Sequence was not ended", ResourceWarning, source=self)

    def __repr__(self) -> str:
        return f"<kvtrunk.Sequence{' ended' if self.ended else ''}>"


class AsyncSequence:
    """A sequence in an event loop: Namespace.begin_async(). One call at a time."""

    def __init__(self, client: Client, begun: Any) -> None:
        self._client = client
        self._lease: Optional[tuple[int, int]] = begun.lease
        self._pages = array("I", begun.pages)
        self._sides: list[memoryview] = by_kind(client, memoryview(begun.sides).cast("I"),
                                                begun.reusable)
        self._given: list[tuple[int, int]] = []
        self._held = array("I")
        self._stale = 0
        self._capacity = client.info.page_size
        self.matched = begun.matched
        """Positions that were cached at begin."""
        self.reusable = begun.reusable
        """Positions that needed no computing at begin."""
        self.announced = begun.announced
        """Positions that others were computing at begin."""
        self.shared = begun.shared
        """Reusable positions that other sessions sealed."""
        self.next = begun.reusable
        """Where to continue computing."""
        self._known = begun.n_keys
        self._left: list[list[int]] = []  # attached, and not taken; freed by these groups
        self._busy = False

    @property
    def ended(self) -> bool:
        """True after end() or the client's close()."""
        return self._lease is None or self._client.closed

    @property
    def known(self) -> int:
        """Keys given so far."""
        return int(self._known) + len(self._held)

    @property
    def pages(self) -> memoryview:
        """The page table, u32, read only: see Sequence.pages."""
        return memoryview(self._pages).toreadonly()

    def _request(self, op: int, fence: Optional[Fence]) -> Any:
        if self._lease is None:
            raise Closed("the sequence has ended")
        if self._busy:
            raise Again("a call on this sequence is in flight: one at a time")
        request = ffi.new("struct kvt_request *")
        request.op = op
        request.lease.index, request.lease.generation = self._lease
        request.fence.slot, request.fence.value = fence_of(fence)
        return request

    async def _call(self, request: Any, keep: Any = None) -> Any:
        self._busy = True
        try:
            return await self._client._loop().call(request, keep)
        finally:
            self._busy = False

    def _give_keys(self, request: Any, keys: Tokens, room: int) -> Any:
        """All keys that have a place; the rest waits for a later commit."""
        if keys is not None:
            data, n = keys_of(keys)
            self._held.frombytes(bytes(_buffer(data, 4 * n)) if n else b"")
        request.n_keys = max(0, min(len(self._held), room - self._known))
        if request.n_keys == 0:
            return None
        data = ffi.from_buffer("uint32_t[]", array("I", self._held[:request.n_keys]))
        request.keys = data
        return data

    def sides(self, kind: int) -> memoryview:
        """Side pages of a kind where the sequence began: see Sequence.sides()."""
        return self._sides[kind] if 0 <= kind < len(self._sides) else memoryview(b"").cast("I")

    def attach(self, index: int, kind: int, page: int) -> None:
        """Sequence.attach(): the next commit takes it."""
        info = self._client.info
        if self._lease is None:
            raise Closed("the sequence has ended")
        if not (0 <= kind < len(info.side_pages) and 0 <= index < len(self._pages) and
                (0 <= page < info.n_pages or page == SIDE_LET)):
            raise from_parts(-errno.EINVAL, lib.KVT_REASON_SIDE_PLACE,
                             f"attach: page {page} for page {index} of the table, kind {kind}: the "
                             f"table has {len(self._pages)}, the daemon's option sides "
                             f"{len(info.side_pages)}, the pool {info.n_pages}")
        self._given.append((index * lib.KVT_MAX_SIDES + kind, page))

    def let_go(self, index: int, kind: int) -> None:
        """Sequence.let_go(): by the next commit."""
        self.attach(index, kind, SIDE_LET)

    def _committing(self, computed: int, keys: Tokens, fence: Optional[Fence],
                    flags: int) -> tuple[Any, Any]:
        request = self._request(lib.KVT_OP_COMMIT, fence)
        request.flags, request.arg = flags, count_of(computed, "computed")
        room = len(self._pages) * self._capacity
        if computed > room:
            raise from_parts(-errno.EINVAL, lib.KVT_REASON_BEYOND_TABLE,
                             f"commit: {computed} positions, the page table has {room}")
        if self._stale:
            self._alone(computed)
        data = self._give_keys(request, keys, room if computed >= self.next else 0)
        request.list_capacity = max(1, len(self._pages))
        if self._given:
            sides = ffi.new("struct kvt_side[]", self._given)
            request.n_sides, request.sides = len(self._given), sides
            request.flags |= _KEEP | lib.KVT_F_NO_LIST
            request.list_capacity, data = 0, (data, sides)
        return request, data

    async def commit(self, computed: int, keys: Tokens = None, *, fence: Optional[Fence] = None,
                     chunked: bool = False, keep: bool = False) -> None:
        """Sequence.commit(), awaited."""
        request, data = self._committing(computed, keys, fence, (_CHUNKED if chunked else 0) |
                                         (_KEEP if keep else 0))
        n_keys = request.n_keys
        given, self._given = self._given, []
        try:
            answer = await self._call(request, data)
        except Stale as error:
            self._stale = 1
            self.next = max(self.next, computed)
            self._left += one_by_one(given)
            raise error
        except Again:
            self._given = given + self._given
            raise
        except BaseException:  # refused, or cancelled: it may take some
            self._left += one_by_one(given)
            raise
        del self._held[:n_keys]
        if given:
            self._left.append(memoryview(answer.pages).cast("I").tolist())
        else:
            self._pages = array("I", answer.pages)
        self.next, self._known = answer.next, answer.known

    def _alone(self, computed: int) -> None:
        self.next = max(self.next, computed)
        raise from_parts(-errno.ESTALE, lib.KVT_REASON_DETACHED, "commit: nothing more is shared")

    async def extend(self, n: int) -> None:
        """Sequence.extend(), awaited."""
        request = self._request(lib.KVT_OP_EXTEND, None)
        request.arg = -(-count_of(n, "n") // self._capacity)
        if request.arg >= self._client.info.n_pages:
            request.list_capacity = 1
        answer = await self._call(request)
        pages = array("I", self._pages)
        pages.frombytes(bytes(answer.pages))
        self._pages = pages

    async def end(self, computed: int = 0, keys: Tokens = None, *,
                  fence: Optional[Fence] = None, chunked: bool = False) -> None:
        """Sequence.end(), awaited. Cancelled, it ends all the same."""
        if self._lease is None or self._client.closed:
            return
        failed: Optional[Error] = None
        if self._given and computed > 0:  # END takes no side pages
            try:
                await self.commit(computed, keys, fence=fence, chunked=chunked)
            except asyncio.CancelledError:
                self.end_nowait(fence=fence)
                raise
            except Error as error:
                failed = error
            computed = 0
        answer = await self._call(*self._ending(computed, keys, fence, chunked))
        _end_outcome(answer, computed > 0)
        if failed is not None:
            raise failed

    def end_nowait(self, computed: int = 0, keys: Tokens = None, *,
                   fence: Optional[Fence] = None, chunked: bool = False) -> None:
        """end() without its outcome: submit it and return."""
        if self._lease is None or self._client.closed:
            return
        if self._given and computed > 0 and not self._stale:
            request, data = self._committing(computed, keys, fence, _CHUNKED if chunked else 0)
            future = self._client._loop().call(request, data)
            future.add_done_callback(functools.partial(self._free_left, self._given, fence))
            self._given, computed = [], 0
        self._client._loop().call(*self._ending(computed, keys, fence, chunked)).cancel()

    def _ending(self, computed: int, keys: Tokens, fence: Optional[Fence],
                chunked: bool) -> tuple[Any, Any]:
        request = self._request(lib.KVT_OP_END, fence)
        data = None
        if computed > 0 and not self._stale:
            request.flags = lib.KVT_F_COMMIT | (_CHUNKED if chunked else 0)
            request.arg = computed
            data = self._give_keys(request, keys, 0xffffffff)
        self._free(self._left + one_by_one(self._given), fence)
        self._given, self._left = [], []
        self._lease = None
        return request, data

    def _free_left(self, given: list[tuple[int, int]], fence: Optional[Fence], future: Any) -> None:
        """Free what a commit behind the end did not take."""
        if self._client.closed or future.cancelled():
            return
        failed = future.exception() is not None
        self._free(one_by_one(given) if failed else
                   [memoryview(future.result().pages).cast("I").tolist()], fence)

    def _free(self, groups: list[list[int]], fence: Optional[Fence]) -> None:
        """Free pages that the tree did not take, each group at once: a page that is not the
        session's would keep the rest of its group."""
        for pages in filter(None, groups):
            request = ffi.new("struct kvt_request *")
            numbers = ffi.new("uint32_t[]", pages)
            request.op, request.n_pages, request.pages = lib.KVT_OP_FREE, len(pages), numbers
            request.fence.slot, request.fence.value = fence_of(fence)
            self._client._loop().call(request, numbers).cancel()

    async def __aenter__(self) -> AsyncSequence:
        return self

    async def __aexit__(self, kind: Optional[type[BaseException]],
                        error: Optional[BaseException], trace: Optional[TracebackType]) -> None:
        try:
            await self.end()
        except (Stale, ConnectionLost):
            pass
        except Error:
            if error is None:
                raise

    def __del__(self) -> None:
        lease = getattr(self, "_lease", None)
        if lease is not None and not self._client.closed:
            self._client._leases_lost.append(lease)
            self._client._pages_lost += filter(None, self._left + one_by_one(self._given))
            warnings.warn("a kvtrunk.AsyncSequence was not ended", ResourceWarning, source=self)


def by_kind(client: Client, sides: Any, reusable: int) -> list[Any]:
    """The side pages of a BEGIN, kind by kind."""
    kinds, at = [], 0
    for most in client.info.side_pages:
        n = min(most, reusable // client.info.page_size)
        kinds.append(sides[at:at + n])
        at += n
    return kinds


def one_by_one(given: list[tuple[int, int]]) -> list[list[int]]:
    """The pages of (place, page): neither drops nor SIDE_LET."""
    return [[page] for _, page in given if page not in (0, SIDE_LET)]


def _end_outcome(answer: Any, commit: bool) -> None:
    if answer.flags & lib.KVT_CQE_DETACHED:
        what = "nothing was published" if commit else "its prefix is not cached any more"
        raise from_parts(-errno.ESTALE, answer.reason, f"end: ended, but {what}: "
                         f"{ffi.string(lib.kvt_reason_text(answer.reason)).decode()}")
    if answer.reason:
        raise from_parts(-errno.EINVAL, answer.reason, "end: nothing was published: "
                         f"{ffi.string(lib.kvt_reason_text(answer.reason)).decode()}")
