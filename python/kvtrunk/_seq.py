# SPDX-License-Identifier: Apache-2.0
"""Sequences: one lease with its page table."""
from __future__ import annotations

import errno
from types import TracebackType
from typing import TYPE_CHECKING, Any, Coroutine, Optional

from . import _aio
from ._errors import Again, Closed, ConnectionLost, Error, InvalidArgument, Stale, from_parts
from ._keys import Tokens, count_of, keys_of
from ._native import ffi, lib
from ._own import Got, Owner, words_of

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


class _Held(Owner):
    """Base of both kinds of sequences: the library's sequence, and its properties."""

    __slots__ = ("_client", "_own", "_got", "_table", "_count", "__weakref__")

    def __init__(self, client: Client, got: Got) -> None:
        self._client = client
        self._own = got
        self._got = got.native
        self._table: Optional[memoryview] = None
        self._count = client._out_n

    def _open(self) -> Any:
        """With the client's lock."""
        raise NotImplementedError

    @property
    def ended(self) -> bool:
        """True after end() or the client's close()."""
        return not self._got.seq or self._client.closed

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
        `reusable`, make a point at `matched`: the next one continues there."""
        with self._client._lock:
            pages = lib.kvt_seq_sides(self._open(), _index(kind), self._count)
            return words_of(pages, self._count[0])

    def attach(self, index: int, kind: int, page: int) -> None:
        """Give a page of Client.alloc() to the sequence: the next commit makes it the side page of
        page `index` of the page table, which must lie before `computed`. It is readable until
        the end: cached, or freed at the fence of the end if the place has one already or the commit
        fails. Page 0 drops what is there, unless others need it. A commit that takes side pages
        keeps duplicates until the end, and leaves `pages` as it is. InvalidArgument."""
        with self._client._lock:
            self._client._check(lib.kvt_seq_attach(self._open(), _index(index), _index(kind),
                                                   _index(page)))

    def let_go(self, index: int, kind: int) -> None:
        """Read the side page of page `index` no more after the next commit's fence: from then on it
        may be evicted before the sequence's end. Until it is, others continue from it. Nothing
        happens while another sequence crosses that page. InvalidArgument."""
        self.attach(index, kind, SIDE_LET)


class Sequence(_Held):
    """A sequence: Namespace.begin(). It ends with end(), at the end of a `with`, or with its client.

    Positions below `next` are computed: read their pages; write only pages from `next` on.
    """

    __slots__ = ()

    def __init__(self, client: Client, got: Got) -> None:
        super().__init__(client, got)
        got.left = "a kvtrunk.Sequence was not ended"

    def _open(self) -> Any:
        self._client._open()
        seq = self._got.seq
        if not seq:
            raise Closed("the sequence has ended")
        return seq

    def _failed(self, code: int) -> BaseException:
        return self._client._failure(code) if self._got.seq else Closed("the sequence has ended")

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
            if client._slow:
                client._open()
            self._table = None
            rc = _commit(self._got, count_of(computed, "computed"), data, n, slot, value, flags)
            if rc != 0:
                raise self._failed(rc)

    def commit_nowait(self, computed: int, keys: Tokens = None, *,
                      fence: Optional[Fence] = None, chunked: bool = False) -> None:
        """commit() without waiting. `pages` stays as it is until poll() or settle(). Any number may
        be in flight, and take effect in their order. Raises the failure of an earlier one, once;
        Again: no room, settle() first."""
        data, n = (_NULL, 0) if keys is None else keys_of(keys)
        slot, value = _IDLE if fence is None else fence
        client = self._client
        with client._lock:
            if client._slow:
                client._open()
            self._table = None
            rc = _commit_async(self._got, count_of(computed, "computed"), data, n, slot, value,
                               _CHUNKED if chunked else 0)
            if rc != 0:
                raise self._failed(rc)

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
        numbers, n = keys_of(pages, "page")
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
            if not self._got.seq or client._handle is None:
                return
            if client._slow:
                client._open()
            self._table = None
            rc = _end(self._got, count_of(computed, "computed"), data, n, slot, value,
                      _CHUNKED if chunked else 0)
            if rc != 0:
                raise client._failure(rc)

    def end_nowait(self, computed: int = 0, keys: Tokens = None, *, fence: Optional[Fence] = None,
                   chunked: bool = False) -> None:
        """End without waiting for the daemon. A second call does nothing.

        It does not report whether the last commit published. Again: the rings are full, nothing
        happened, and the sequence stays: reap answers of Client.submit(), or try again when the
        daemon has answered something.
        """
        data, n = (_NULL, 0) if keys is None else keys_of(keys)
        slot, value = _IDLE if fence is None else fence
        client = self._client
        with client._lock:
            if not self._got.seq or client._handle is None:
                return
            if client._slow:
                client._open()
            self._table = None
            rc = lib.kvtpy_end_async(self._got, count_of(computed, "computed"), data, n, slot,
                                     value, _CHUNKED if chunked else 0)
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

    def __repr__(self) -> str:
        return f"<kvtrunk.Sequence{' ended' if self.ended else ''}>"


class AsyncSequence(_Held):
    """A sequence in event loops: Namespace.begin_async().

    commit(), extend() and end() happen when they are called, in this order, and what they return
    waits for the outcome: `await` it. A cancelled await does not undo the call. Then look at `next`,
    `known` and `pages`, which say how far it came, and give keys with `at`. Duplicates stay readable
    until the end.
    """

    __slots__ = ("_news", "_ends", "_attached", "_keyed", "_told")

    def __init__(self, client: Client, got: Got) -> None:
        super().__init__(client, got)
        self._news = False  # an answer that the library shows with its next call
        self._ends = False  # its end was called
        self._attached = False  # side pages, since the last commit
        self._keyed = self._told = 0  # calls with keys; the last one whose outcome a caller saw

    def _open(self) -> Any:
        if self._client._handle is None:
            raise Closed("the client was closed")
        seq = self._got.seq
        if self._ends or not seq:
            raise Closed("the sequence has ended")
        if self._news:
            self._news = False
            lib.kvt_seq_poll(seq)
        return seq

    @property
    def ended(self) -> bool:
        """True after end() or the client's close()."""
        return self._ends or not self._got.seq or self._client._handle is None

    def _answered(self) -> None:
        self._news, self._table = True, None

    @property
    def known(self) -> int:
        """Keys given so far: keys of the next call begin at this position."""
        with self._client._lock:
            self._open()
            return self._known()

    def _known(self) -> int:
        known: int = lib.kvt_seq_known(self._got.seq)
        for call in self._client._answers().queued(self):
            known += call.request.n_keys
        return known

    def attach(self, index: int, kind: int, page: int) -> None:
        """Sequence.attach(). Again: an earlier call waits for room in the rings: await it first."""
        if self._client._answers().queued(self):
            raise Again("attach: an earlier call of this sequence waits for room in the rings: await "
                        "it first", errno=errno.EAGAIN)
        self._attached = True  # also if it fails: then the next commit takes none
        super().attach(index, kind, page)

    def commit(self, computed: int, keys: Tokens = None, *, at: Optional[int] = None,
               fence: Optional[Fence] = None, chunked: bool = False) -> Coroutine[Any, Any, None]:
        """Sequence.commit(), to be awaited.

        at: position of the first of `keys`. It must be `known`, or InvalidArgument is raised and
        nothing happens. Needed only while the outcome of an earlier call with keys was not awaited
        to its end, such as after a cancellation: else its keys could be given twice.
        """
        return self._waiting(*self._call(lib.KVT_OP_COMMIT, count_of(computed, "computed"), keys, at,
                                         fence, chunked))

    def extend(self, n: int) -> Coroutine[Any, Any, None]:
        """Sequence.extend(), to be awaited."""
        return self._waiting(*self._call(lib.KVT_OP_EXTEND, count_of(n, "n")))

    def end(self, computed: int = 0, keys: Tokens = None, *, at: Optional[int] = None,
            fence: Optional[Fence] = None, chunked: bool = False) -> Coroutine[Any, Any, None]:
        """Sequence.end(), to be awaited. at: as of commit()."""
        if self.ended:
            return _nothing()
        calls = self._end(computed, keys, at, fence, chunked)
        return self._waiting(*calls[0]) if len(calls) == 1 else self._both(*calls)

    def end_nowait(self, computed: int = 0, keys: Tokens = None, *, at: Optional[int] = None,
                   fence: Optional[Fence] = None, chunked: bool = False) -> None:
        """end() without its outcome."""
        if not self.ended:
            self._end(computed, keys, at, fence, chunked)

    def _end(self, computed: int, keys: Tokens, at: Optional[int], fence: Optional[Fence],
             chunked: bool) -> list[tuple[_aio.Call, int]]:
        count_of(computed, "computed")
        if not (self._attached and computed):
            return [self._call(lib.KVT_OP_END, computed, keys, at, fence, chunked)]
        return [self._call(lib.KVT_OP_COMMIT, computed, keys, at, fence, chunked),
                self._call(lib.KVT_OP_END, 0, None, None, fence)]  # which takes no side pages

    def _call(self, op: int, n: int, keys: Tokens = None, at: Optional[int] = None,
              fence: Optional[Fence] = None, chunked: bool = False) -> tuple[_aio.Call, int]:
        """Make a call. Returns it, and the number to report when its outcome has been seen."""
        client = self._client
        with client._lock:
            answers = client._answers()
            call = _aio.Call(answers, None, self)
            request = call.request
            request.op, request.arg = op, n
            request.fence.slot, request.fence.value = _IDLE if fence is None else fence
            if chunked:
                request.flags = _CHUNKED
            self._open()
            if keys is not None:
                call.keys, request.n_keys = keys_of(keys)
                request.keys = call.keys
                if request.n_keys:
                    call.at = self._place(at)
                    self._keyed += 1
            number = self._keyed if call.at >= 0 else 0
            self._table = None
            if op == lib.KVT_OP_END:
                self._ends = True
            elif op == lib.KVT_OP_COMMIT:
                self._attached = False
            answers.start(call)
        return call, number

    def _place(self, at: Optional[int]) -> int:
        """Check that the caller knows where its keys begin."""
        known = self._known()
        if at is None and self._told == self._keyed:
            return known
        if at != known:
            why = ("an earlier call with keys was not awaited to its end, so it is not known which "
                   "keys these are" if at is None else f"at={at} is not where the next key belongs")
            raise InvalidArgument(f"{why}: the next key is that of position {known}: give keys from "
                                  f"there on, and at={known}", errno=errno.EINVAL)
        return known

    async def _waiting(self, call: _aio.Call, number: int) -> None:
        try:
            await call
        except Error as error:
            if call.refused or isinstance(error, Stale):
                self._told = number or self._told
            elif not number:  # keys that an earlier call gave for it are to be given again
                self._keyed += 1
            raise
        self._told = number or self._told

    async def _both(self, commit: tuple[_aio.Call, int], end: tuple[_aio.Call, int]) -> None:
        """The commit's failure is that of both."""
        try:
            await self._waiting(*end)
        except Error:
            await self._waiting(*commit)
            raise
        await self._waiting(*commit)

    def _drop(self) -> None:
        """Any thread: end it with the next call on the client, or look of a loop."""
        self._ends = True
        self._own.left = ""
        self._own.drop()

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

    def __repr__(self) -> str:
        return f"<kvtrunk.AsyncSequence{' ended' if self.ended else ''}>"


async def _nothing() -> None:
    pass


def by_kind(client: Client, sides: Any, reusable: int) -> list[Any]:
    """The side pages of a BEGIN, kind by kind."""
    kinds, at = [], 0
    for most in client.info.side_pages:
        n = min(most, reusable // client.info.page_size)
        kinds.append(sides[at:at + n])
        at += n
    return kinds


def _index(number: int) -> int:
    """A number that C cannot take becomes one that is out of every range, and not SIDE_LET."""
    return number if 0 <= number < 1 << 32 else 0xfffffffe


def end_outcome(answer: Any, commit: bool) -> Optional[Error]:
    """The error of the last commit, from the answer of its END. None: all is well."""
    if answer.flags & lib.KVT_CQE_DETACHED:
        what = "nothing was published" if commit else "its prefix is not cached any more"
        code, what = -errno.ESTALE, f"ended, but {what}"
    elif answer.reason:
        code, what = -errno.EINVAL, "nothing was published"
    else:
        return None
    text = ffi.string(lib.kvt_reason_text(answer.reason)).decode()
    return from_parts(code, answer.reason, f"end: {what}: {text}")
