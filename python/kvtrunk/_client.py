# SPDX-License-Identifier: Apache-2.0
"""Connections: connect(), Client, Namespace, and operations many at a time."""
from __future__ import annotations

import asyncio
import collections
import dataclasses
import errno
import operator
import os
import sys
import threading
import time
import warnings
import weakref
from array import array
from types import TracebackType
from typing import Any, Iterable, NamedTuple, Optional, Union

from . import _aio, _signals
from ._errors import (Closed, ConnectionLost, Error, InvalidArgument, from_error, from_parts,
                      from_result)
from ._feed import Feed
from ._geometry import Geometry
from ._keys import Tokens, count_of, keys_of, milliseconds_of, seconds_of
from ._native import ffi, lib
from ._own import Got, Owner, words_of
from ._pool import Pool
from ._seq import AsyncSequence, Fence, Sequence, end_outcome, fence_of

FieldValue = Union[str, bytes, int]

OPS = {name[len("KVT_OP_"):].lower(): getattr(lib, name) for name in dir(lib)
       if name.startswith("KVT_OP_") and name != "KVT_OP_COUNT"}


_COUNTER_TRIES, _COUNTER_PAUSE_S = 1000, 0.001  # of an observer
_COUNTERS = [name for name, _ in ffi.typeof("struct kvt_counters").fields if name != "reserved"]
_begin, _FULL, _FORCE_MISS = lib.kvtpy_begin, lib.KVT_F_FULL, lib.KVT_F_FORCE_MISS
_OWN_STREAM, _SHORTER = lib.KVT_F_OWN_STREAM, lib.KVT_F_SHORTER
_NO_PAGES = lib.KVT_F_NO_PAGES


def version() -> str:
    """Version of the library in this package."""
    return ffi.string(lib.kvt_version()).decode()


class Handle(NamedTuple):
    """The prefix of `positions` keys on the path to a node. A name, not a right."""

    node: int
    generation: int
    positions: int


@dataclasses.dataclass(frozen=True)
class Info:
    """The daemon's answer to connecting. Counts of bytes are per slab."""

    session: int
    page_size: int
    n_pages: int
    page_bytes: int
    pool_bytes: int
    epoch: int
    instance: str
    backend: str
    n_slabs: int
    max_leases: int
    max_private_pages: int
    policy: str
    """Eviction policy, as the daemon's option of that name: "lru"."""
    kept: bool
    daemon_pid: int
    fingerprint: str
    geometry: Optional[Geometry]
    rank: int
    n_ranks: int
    sealer: int
    side_pages: tuple[int, ...] = ()


_BACKENDS = {lib.KVT_POOL_HOST: "host", lib.KVT_POOL_CUDA_IPC: "cuda-ipc",
             lib.KVT_POOL_CUDA_VMM: "cuda-vmm"}
_POLICIES = {getattr(lib, f"KVT_POLICY_{name.upper()}"): name
             for name in ("lru", "slru", "lfu", "fifo", "filo", "mru", "priority")}


def _info_of(native: Any) -> Info:
    return Info(
        session=native.session, page_size=native.page_size, n_pages=native.n_pages,
        page_bytes=native.page_bytes, pool_bytes=native.pool_bytes, epoch=native.epoch,
        instance=f"{native.instance[0]:016x}{native.instance[1]:016x}",
        backend=_BACKENDS.get(native.backend, str(native.backend)), n_slabs=native.n_slabs,
        max_leases=native.max_leases, max_private_pages=native.max_private_pages,
        policy=_POLICIES.get(native.policy, str(native.policy)),
        kept=native.kept, daemon_pid=native.daemon_pid,
        fingerprint=ffi.string(native.fingerprint).decode("utf-8", "replace"),
        geometry=Geometry.of_native(native.geometry), rank=native.rank, n_ranks=native.n_ranks,
        sealer=native.sealer, side_pages=tuple(native.side_pages)[:native.n_sides])


class Counters(dict[str, int]):
    """The daemon's counters by name, which are attributes, too: see struct kvt_counters."""

    def __getattr__(self, name: str) -> int:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


class Lease(Owner):
    """A session's hold on a cached prefix: from Namespace.match(lock=True), Client.lock()."""

    def __init__(self, client: Client, got: Got) -> None:
        self._client = client
        self.pages = got.pages()
        """Page table of the prefix, u32, read only."""
        self.positions: int = got.native.answer.matched
        """Positions that are cached and locked."""
        self._got = got
        got.left = "a kvtrunk.Lease was not unlocked"

    def unlock(self, fence: Optional[Fence] = None) -> None:
        """Give the lease back when `fence` is reached. A second time: nothing happens."""
        native, client = self._got.native, self._client
        if native.answer.lease.index:
            slot, value = fence_of(fence)
            with client._lock:
                client._check(lib.kvtpy_unlock(client._open(), native, slot, value))

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, kind: Optional[type[BaseException]], error: Optional[BaseException],
                 trace: Optional[TracebackType]) -> None:
        if not self._client.closed:
            self.unlock()


class Match(NamedTuple):
    """The cached prefix of a prompt: `positions`, in whole pages. `lease`: with lock=True. `usable`:
    from match(), how many of them begin() could reuse: fewer where side pages lack."""

    positions: int
    handle: Handle
    lease: Optional[Lease] = None
    usable: int = 0


class Fetched(NamedTuple):
    """A store's answer to Namespace.fetch(): after `cached` positions it loads `positions`, 0: none,
    in about `expected` seconds."""

    tag: int
    cached: int
    positions: int
    expected: float


@dataclasses.dataclass
class Request:
    """One operation for Client.submit(): struct kvt_request. `op` by name ("match"), `tag` comes
    back with the answer. Fields that an operation does not take stay as they are."""

    op: str
    namespace: Optional[Namespace] = None
    keys: Tokens = None
    pages: Tokens = None
    arg: int = 0
    flags: int = 0
    handle: Optional[Handle] = None
    lease: Optional[tuple[int, int]] = None
    fence: Optional[Fence] = None
    priority: int = 0
    ttl: float = 0.0
    tag: Any = None
    sides: Iterable[tuple[int, int, int]] = ()
    """COMMIT with KEEP and NO_LIST: (index in the page table, kind, page). Page 0 drops what is there,
    page SIDE_LET lets it go."""
    point: int = 0
    min_positions: int = 0
    """BEGIN: these two as in Namespace.begin()."""


class Result(NamedTuple):
    """One answer. `error` is None, or the exception that a waiting call would raise. `notice`: the
    second answer to a BEGIN with NO_WAIT. The other fields are those of struct kvt_result; `pages`
    is a copy, u32."""

    op: str
    tag: Any
    error: Optional[Error]
    flags: int
    handle: Handle
    lease: tuple[int, int]
    matched: int
    reusable: int
    announced: int
    shared: int
    next: int
    known: int
    state: int
    pages: memoryview
    order: int
    notice: bool
    usable: int
    sides: memoryview


_OP_NAMES = {number: name for name, number in OPS.items()}


def _result_of(native: Any, tag: Any) -> Result:
    return Result(
        op=_OP_NAMES.get(native.op, str(native.op)), tag=tag,
        error=from_result(native) if native.error else None, flags=native.flags,
        handle=Handle(native.handle.node, native.handle.generation, native.handle.positions),
        lease=(native.lease.index, native.lease.generation), matched=native.matched,
        reusable=native.reusable, announced=native.announced, shared=native.shared,
        next=native.next, known=native.known, state=native.state,
        pages=words_of(native.pages, native.n_pages),
        order=native.seq, notice=bool(native.flags & lib.KVT_CQE_ASYNC), usable=native.usable,
        sides=words_of(native.sides, native.n_sides))


class Namespace(Owner):
    """A tree that matches no other: Client.namespace()."""

    def __init__(self, client: Client, number: int, digest: tuple[int, int], label: str,
                 root_key: int = 0) -> None:
        self._client = client
        self._id = number
        self._root_key = root_key
        self.digest = digest
        """Its name in all processes: FeedRecord.digest."""
        self.label = label
        """Its label in listings, for people."""

    @property
    def id(self) -> int:
        """Its number in this session, as Client.submit() and kvtrunk.engine.Ring take it."""
        return self._id

    def root(self, root_key: int) -> Namespace:
        """The tree of a root key, from 0, this one, to 2^64 - 1. Prompts under one root key never
        match those under another. Its first key makes the tree, and it ends with its last. It costs
        neither a message nor a place of max_namespaces: use it for many salts. Its close() closes
        the whole namespace; it refuses remove_all()."""
        if not 0 <= operator.index(root_key) < 1 << 64:
            raise ValueError(f"a root key is from 0 to 2^64 - 1, not {root_key}")
        return Namespace(self._client, self._id, self.digest, self.label, root_key)

    def _request(self, op: int, keys: Any, n: int, flags: int = 0) -> Any:
        request = ffi.new("struct kvt_request *")
        self._fill(request, op, keys, n, flags)
        return request

    def _fill(self, request: Any, op: int, keys: Any, n: int, flags: int) -> None:
        request.op, request.flags = op, flags
        request.namespace_id, request.root_key = self._id, self._root_key
        request.n_keys, request.keys = n, keys

    def begin(self, tokens: Tokens, extra: int = 0, *, full: bool = False,
              force_miss: bool = False, own_stream: bool = False, no_pages: bool = False,
              point: int = 0, min_positions: int = 0) -> Sequence:
        """Begin a sequence: match the prompt, lock the match, announce the rest, and get a page
        table for len(tokens) + extra positions. All or nothing.

        tokens: keys, one a position: see Tokens. extra: positions beyond the prompt (decode).
        full: reuse may reach the last position. force_miss: reuse nothing. own_stream: see
        Client.alloc(). no_pages: without extra, the table ends with the reusable pages, and extend()
        gives the others; until then no other waits for this sequence. Commits bring the keys that had
        no slot. point: where pages have sides, the positions after which the commit that reaches
        them will attach side pages, or kvtrunk.JUNCTION, where the tokens leave what is cached or
        announced: others that could continue there wait for it. min_positions: with fewer tokens the
        sequence reuses and publishes nothing, and a shorter match is not reused.
        Waits up to begin_wait for what other processes compute of the same prompt.
        Raises NoSpace, QuotaExceeded, ConnectionLost, Timeout.
        """
        keys, n = keys_of(tokens)
        flags = ((_FULL if full else 0) | (_FORCE_MISS if force_miss else 0) |
                 (_OWN_STREAM if own_stream else 0) | (_NO_PAGES if no_pages else 0))
        client = self._client
        got = Got(client)
        with client._lock:
            handle = client._open() if client._slow else client._handle
            if self._root_key or point or min_positions:
                request = self._request(lib.KVT_OP_BEGIN, keys, n, flags)
                request.arg = count_of(extra, "extra")
                request.point = count_of(point, "point")
                request.min_positions = count_of(min_positions, "min_positions")
                rc = lib.kvtpy_start(handle, request, got.native)
            else:
                rc = _begin(handle, self._id, keys, n, count_of(extra, "extra"), flags, got.native)
            if rc != 0:
                raise client._failure(rc)
        return Sequence(client, got)

    async def begin_async(self, tokens: Tokens, extra: int = 0, *, full: bool = False,
                          force_miss: bool = False, own_stream: bool = False,
                          no_pages: bool = False, point: int = 0,
                          min_positions: int = 0) -> AsyncSequence:
        """begin() in an event loop. Thousands may wait at a time. The client gives back the sequence
        that a cancelled call got, or will get, whether or not a loop runs then.

        The tokens are copied before the first wait.
        """
        client = self._client
        keys, n = keys_of(tokens)
        flags = ((_FULL if full else 0) | (_FORCE_MISS if force_miss else 0) |
                 (_OWN_STREAM if own_stream else 0) | (_NO_PAGES if no_pages else 0))
        for number, what in (extra, "extra"), (point, "point"), (min_positions, "min_positions"):
            count_of(number, what)
        wait_ms = min(int(client._begin_wait * 1000), 0xffffffff)
        call: Optional[_aio.Call] = None
        asked: Optional[_Asked] = None
        try:
            with client._lock:
                answers = client._answers()
                call = _aio.Call(answers, keys, None)
                request = call.request
                self._fill(request, lib.KVT_OP_BEGIN, keys, n, flags)
                request.arg, request.point, request.min_positions = extra, point, min_positions
                call.n_keys = n
                if no_pages:  # it may be asked more than once
                    call.own_keys()
                if wait_ms > 0:
                    asked = client._ask_store(ffi.addressof(request))
                    call.wait(wait_ms)
                if asked is None:
                    answers.start(call)
            if asked is not None:
                call.own_keys()
                call.wait(min(wait_ms, await client._store_wait(asked) or wait_ms))
                with client._lock:
                    client._answers().start(call)
            sequence: Any = await call
        except Error:
            raise
        except BaseException:  # cancelled, or the loop ended
            if call is not None:
                call.abandon()
            raise
        sequence._own.left = "a kvtrunk.AsyncSequence was not ended"
        return sequence  # type: ignore[no-any-return]

    def match(self, tokens: Tokens, *, lock: bool = False) -> Match:
        """How much of a prompt is cached. lock: take a lease on it, whose pages may be read."""
        keys, n = keys_of(tokens)
        client = self._client
        got = Got(client)
        flags = lib.KVT_F_LOCK if lock else 0
        with client._lock:
            handle = client._open()
            if self._root_key:
                request = self._request(lib.KVT_OP_MATCH, keys, n, flags)
                client._check(lib.kvtpy_call(handle, request, got.native))
            else:
                client._check(lib.kvtpy_match(handle, self._id, keys, n, flags, got.native))
        return client._match_of(got, lock)

    def match_many(self, prompts: Iterable[Tokens], *, lock: bool = False) -> list[Match]:
        """match() of many prompts: all are submitted before the first answer is taken."""
        client = self._client
        request = self._request(lib.KVT_OP_MATCH, ffi.NULL, 0, lib.KVT_F_LOCK if lock else 0)
        found = client._call_many(request, [keys_of(prompt) for prompt in prompts])
        for got in found:
            if got.native.answer.error:
                error = from_result(got.native.answer)
                del found, got
                with client._lock:
                    client._open()  # gives the other leases back
                raise error
        return [client._match_of(got, lock) for got in found]

    def probe(self, tokens: Tokens) -> Match:
        """match() in shared memory, without the daemon: a hint, which may be too low. Unsupported:
        the daemon withholds its tree."""
        keys, n = keys_of(tokens)
        out, matched = ffi.new("struct kvt_handle *"), ffi.new("uint32_t *")
        client = self._client
        with client._lock:
            client._check(lib.kvt_probe_root(client._open(), self._id, self._root_key, keys, n,
                                             out, matched))
        return Match(matched[0], Handle(out.node, out.generation, out.positions))

    def fetch(self, tokens: Tokens, tag: int = 0) -> bool:
        """Have a store (kvtstored) load what the pool lacks of a prompt, as soon as a request
        arrives. Waits for nothing but a new connection's first message. False: it was not asked,
        because there is none, or nothing worth it is missing. Else Client.fetched() gives one
        answer with `tag`. begin() asks by itself."""
        keys, n = keys_of(tokens)
        request = self._request(lib.KVT_OP_BEGIN, keys, n)
        client = self._client
        with client._lock:
            client._open()
            number = client._ask(request)
            if number:
                client._asked[number] = tag
        return number > 0

    def insert(self, tokens: Tokens, pages: Tokens, *, fence: Optional[Fence] = None,
               ttl: Optional[float] = None) -> list[tuple[int, int]]:
        """Cache private pages (Client.alloc()) for a prompt, one for each whole page of it. Returns
        the duplicates: (your page, the cached twin); yours stay private: free them. ttl: seconds."""
        keys, n = keys_of(tokens)
        numbers, n_pages = keys_of(pages, "page")
        client = self._client
        request, got = self._request(lib.KVT_OP_INSERT, keys, n), Got(client)
        request.n_pages, request.pages = n_pages, numbers
        request.fence.slot, request.fence.value = fence_of(fence)
        if ttl is not None:
            request.flags, request.ttl_ms = lib.KVT_F_TTL, milliseconds_of(ttl, "ttl")
        with client._lock:
            client._check(lib.kvtpy_call(client._open(), request, got.native))
        twins = words_of(got.native.answer.twins, 2 * got.native.answer.n_twins)
        return list(zip(twins[::2], twins[1::2]))

    def remove(self, tokens: Tokens, *, damaged: bool = False) -> None:
        """Forget the last page of this prefix and all after it. damaged: that page was written
        after it was sealed, so commits of sequences that hold it raise Stale with the reason
        "damaged". ValueError: no tokens."""
        keys, n = keys_of(tokens)
        if not n:
            raise ValueError("no tokens to remove; remove_all() forgets the whole namespace")
        self._remove(keys, n, lib.KVT_F_DAMAGED if damaged else 0)

    def remove_all(self) -> None:
        """Forget the whole namespace, with all its roots. InvalidArgument: this is a root."""
        self._remove(ffi.NULL, 0)

    def _remove(self, keys: Any, n: int, flags: int = 0) -> None:
        client = self._client
        request = self._request(lib.KVT_OP_REMOVE, keys, n, flags)
        result = ffi.new("struct kvt_result *")
        with client._lock:
            client._check(lib.kvt_call(client._open(), request, result))

    @property
    def generation(self) -> int:
        """As of its opening, or of this client's last renew(); 0 at first. All processes see one
        number, over restarts of the daemon; once no session has the namespace open, it may be 0
        again. The tree does not know it: write it into the fields of other namespaces."""
        out = ffi.new("uint32_t *")
        client = self._client
        with client._lock:
            client._check(lib.kvt_namespace_generation(client._open(), self._id, out))
        return int(out[0])

    def renew(self) -> int:
        """Raise `generation` by one, unless another process did since this client last saw it, and
        return it. So processes that forget at the same time share again."""
        out = ffi.new("uint32_t *")
        client = self._client
        with client._lock:
            handle = client._open()
            client._check(lib.kvt_namespace_generation(handle, self._id, out))
            client._check(lib.kvt_namespace_renew(handle, self._id, out[0], out))
        return int(out[0])

    def close(self) -> None:
        """Close the namespace for this session. Its cached pages stay until they are evicted, or
        another namespace needs the place; remove_all() first forgets them at once. All Namespace
        objects for the same fields end with it: Client.namespace() opens it again.

        Raises Again while the session has sequences and leases there, or operations that wait:
        nothing changed, try later.
        """
        client = self._client
        with client._lock:
            client._check(lib.kvt_namespace_close(client._open(), self._id))

    def __repr__(self) -> str:
        root = f" root {self._root_key}" if self._root_key else ""
        return f"<kvtrunk.Namespace {self._id} {self.label!r}{root}>"


class Client(Owner):
    """A connection: connect(). Threads and event loops may share it. Calls that wait for the daemon
    wait for each other, and awaited ones for none. So give each thread that waits a client, and an
    event loop's client no thread that waits."""

    def __init__(self, connected: Any, begin_wait: float, fetches: bool) -> None:
        """connected: where the library put the client, which closes it until this object has it."""
        self._handle: Any = None
        self._lock = threading.Lock()
        self._out_n = ffi.new("uint32_t *")
        self._batch = ffi.new("struct kvtpy_batch *")
        self._begin_wait = begin_wait
        self._fetches = fetches
        # Closed, or something to do before the next call: see _open().
        self._slow = False
        self.suspended = False
        """True after suspend()."""
        self._pid = os.getpid()
        self._pools: list[Pool] = []
        self._pool: Optional[Pool] = None
        self._orphans: collections.deque[Any] = collections.deque()
        self._aio: Optional[_aio.Answers] = None
        self._asked: dict[int, Union[int, _Asked]] = {}  # of a store: tags, or what waits
        self._next_ask = 1
        self._store_answer = ffi.new("struct kvt_fetched *")  # user_data 0: it was handled
        self._fetched: collections.deque[tuple[int, Fetched]] = collections.deque(
            maxlen=_FETCHED_MOST)  # with the number of the question
        self._mirrored: Any = None
        self._feed: Optional[Feed] = None
        # In flight, by number: of submit(), and of match_many().
        self._got: dict[int, Got] = {}
        self._many: dict[int, Got] = {}
        self._next_number = 1
        self._results: collections.deque[Got] = collections.deque()
        self.info = _info_of(lib.kvt_client_info(connected[0]))
        """The daemon's answer."""
        _clients.add(self)
        self._handle = connected[0]
        connected[0] = ffi.NULL

    # ---- inside; with the lock

    def _open(self) -> Any:
        handle = self._handle
        if handle is None:
            raise Closed("the client was closed")
        if self._slow:
            if self._batch.at < self._batch.n or self._many:  # a signal's handler has raised
                self._take(handle, 0, _REAP)
                self._many = {number: got for number, got in self._many.items()
                              if not got.native.full}
            if self._aio is not None and self._aio.waits():  # for a loop that may have ended
                self._aio.take_all()
                self._aio.look_later()
            self._end_orphans()
            self._slow = False
            if self._aio is not None or self._orphans or self._many:
                self._slow = True
        return handle

    def _end_orphans(self) -> None:
        """Give back what nothing has any more."""
        orphans = self._orphans
        while orphans:
            code = lib.kvtpy_give_back(self._handle, orphans[0])
            if code == -errno.EAGAIN:
                break
            orphans.popleft()  # last: nothing is given back twice
            if code == -errno.EINTR:
                raise self._failure(code)

    def _failure(self, code: int) -> BaseException:
        """Why a call failed: what a signal's handler raised meanwhile, or the library's error."""
        return _signals.raised() or from_error(lib.kvt_client_error(self._handle), code)

    def _check(self, code: int) -> int:
        if code < 0:
            raise self._failure(code)
        return code

    def _match_of(self, got: Got, lock: bool) -> Match:
        answer = got.native.answer
        handle = Handle(answer.handle.node, answer.handle.generation, answer.handle.positions)
        return Match(answer.matched, handle, Lease(self, got) if lock else None, answer.usable)

    def _answers(self) -> _aio.Answers:
        if self._handle is None:
            raise Closed("the client was closed")
        if self._aio is None:
            self._aio = _aio.Answers(self)
            self._slow = True
        return self._aio

    def _async_sequence(self, got: Got) -> AsyncSequence:
        return AsyncSequence(self, got)

    def _end_outcome(self, answer: Any, commit: bool) -> Optional[Error]:
        return end_outcome(answer, commit)

    # ---- a store

    def _ask(self, request: Any) -> int:
        """Ask a store. Returns what its answer has as number; 0: it was not asked. With the lock."""
        number = request.user_data = self._next_ask
        self._next_ask = number + 1  # first: no number is used twice
        return number if self._check(lib.kvt_fetch(self._handle, request)) else 0

    def _take_fetched(self) -> None:
        """Take what stores have answered. With the lock. If a signal's handler raises, the next call
        continues with the same answer; so what handles it may run twice."""
        out, found = self._store_answer, self._fetched
        while out.user_data or self._check(lib.kvt_fetch_poll(self._open(), out)):
            number = out.user_data
            tag = self._asked.get(number)
            if isinstance(tag, _Asked):
                tag.wait_ms = out.wait_ms
            elif tag is not None and (not found or found[-1][0] != number):
                found.append((number, Fetched(tag, out.cached, out.positions,
                                              out.expected_us * 1e-6)))
            self._asked.pop(number, None)
            out.user_data = 0

    def _ask_store(self, begin: Any) -> Optional[_Asked]:
        """Ask a store for what the pool lacks of a begin. None: it was not asked. With the lock."""
        if not self._fetches:
            return None
        if self._asked:
            self._take_fetched()  # of begins that were cancelled meanwhile
        number = self._ask(begin)
        if not number:
            return None
        asked = self._asked[number] = _Asked()
        return asked

    async def _store_wait(self, asked: _Asked) -> int:
        """How long a begin waits for a load at most, in ms. 0: there is none."""
        while asked.wait_ms is None:
            await asyncio.sleep(_LOOK_FOR_STORE_S)
            with self._lock:
                self._take_fetched()
        return asked.wait_ms

    # ---- life

    @property
    def closed(self) -> bool:
        """True after close()."""
        return self._handle is None

    def close(self, fence: Optional[Fence] = None) -> None:
        """End the session: its sequences and leases end at `fence`, its private pages are freed.

        Arrays of the pool stay valid: from now on they are on empty memory of their own. Only
        those of device memory and of huge pages cannot: while one lives, BufferError is raised and
        nothing happens. A second call does nothing. ConnectionLost and Timeout: it is closed all
        the same.
        """
        slot, value = fence_of(fence)
        with self._lock:
            if self._handle is None:
                return
            if self._pid == os.getpid() and not all([pool._end() for pool in self._pools]):
                raise BufferError("arrays of the pool still exist, and memory of this kind (huge "
                                  "pages, a device) cannot be detached from them: drop them first")
            if self._feed is not None:
                self._feed._end()
            handle, self._handle = self._handle, None
            self._slow = True
            if self._aio is not None:
                self._aio.end(Closed("the client was closed"))
            while self._orphans:
                lib.kvtpy_forget(self._orphans.pop())
            rc = lib.kvtpy_close(handle, slot, value)
        if (raised := _signals.raised()):
            raise raised
        if rc == -errno.ECONNRESET:
            raise from_parts(rc, 0, "close: the daemon was gone")
        if rc < 0 and rc != -errno.ECHILD:
            raise from_parts(rc, 0, f"close: {os.strerror(-rc)}: the connection was dropped")

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: Optional[type[BaseException]], error: Optional[BaseException],
                 trace: Optional[TracebackType]) -> None:
        try:
            self.close()
        except ConnectionLost:
            pass
        except (Error, BufferError):
            if error is None:
                raise

    def __del__(self) -> None:
        if getattr(self, "_handle", None) is None or self._pid != os.getpid():
            return
        handle, self._handle = self._handle, None
        if self._feed is not None:
            self._feed._end()
        if all([pool._end() for pool in self._pools]):
            lib.kvt_client_set_timeout(handle, 1_000_000_000)
            lib.kvtpy_close(handle, lib.KVT_FENCE_IDLE, 0)
        warnings.warn(f"session {self.info.session} of kvtrunk was not closed", ResourceWarning,
                      source=self)
        if (raised := _signals.raised()):
            raise raised  # Python prints it: no later call may raise it

    def __repr__(self) -> str:
        return f"<kvtrunk.Client session {self.info.session}{', closed' if self.closed else ''}>"

    def suspend(self, *, keep_arrays: bool = False) -> None:
        """Hold nothing of the pool: for an engine that sleeps, and before a snapshot of the process.
        The session and its namespaces stay, and so does what is cached. Until resume(), calls that
        need a page raise Suspended; match(), probe() and counters work.

        Again: leases, private pages or unanswered operations are left; the text counts them. They
        are not ended: only the caller knows when nothing uses their pages. BufferError: arrays of
        the pool exist. keep_arrays: they may, and have no content until resume(), which puts the
        pool at their addresses again. Arrays in host memory are then on empty memory; those on a
        device must not be touched, and with backend cuda-ipc, which cannot keep addresses, none may
        exist. A failure changes nothing. In a group rank 0 suspends first, and resumes last.
        """
        with self._lock:
            handle = self._open()
            if self.suspended:
                return
            dropped = [pool._drop() for pool in self._pools if not keep_arrays or pool._moves()]
            rc = lib.kvt_client_suspend(handle) if all(dropped) else 0
            if rc != 0 or not all(dropped):
                for pool in self._pools:
                    if pool._owner is None:
                        pool._attach()
                self._check(rc)
                raise BufferError("arrays of the pool still exist: drop them first, or, where they "
                                  "can keep their addresses, suspend(keep_arrays=True)")
            self.suspended = True
            for pool in self._pools:
                pool._suspended()

    def resume(self) -> None:
        """Map again what suspend() unmapped. ConnectionLost: the daemon ended, or started
        cold, meanwhile: close, connect again."""
        with self._lock:
            handle = self._open()
            if not self.suspended:
                return
            self._check(lib.kvt_client_resume(handle))
            for pool in self._pools:
                pool._resumed(handle)
            self.suspended = False

    # ---- namespaces, pool

    def namespace(self, *, model: Optional[FieldValue] = None,
                  adapter: Optional[FieldValue] = None, salt: Optional[FieldValue] = None,
                  extra: Optional[FieldValue] = None, image: Optional[FieldValue] = None,
                  label: Optional[str] = None) -> Namespace:
        """Open a namespace: prompts of different namespaces never match each other.

        adapter: a LoRA's identity, with its version. salt: a tenant, a user. image: hash of an
        image that a whole prompt depends on. extra: any other reason. model: for instances that
        several models share by page size alone; it is the beginning of `extra`
        ("model=MODEL;EXTRA"). Text counts as its UTF-8; a missing field, 0 and "" all differ. label:
        for people. NoSpace: max_namespaces.
        """
        if model is not None:
            extra = b"model=%b;%b" % (_field_bytes(model),
                                      _field_bytes(b"" if extra is None else extra))
        values = {"adapter": adapter, "salt": salt, "extra": extra, "image": image}
        fields, keep = ffi.new("struct kvt_namespace_fields *"), []
        for name, value in values.items():
            if value is None:
                continue
            field = getattr(fields, name)
            if isinstance(value, int):
                field.kind, field.number = lib.KVT_FIELD_NUMBER, value
                continue
            data = ffi.from_buffer("char[]", _field_bytes(value))
            keep.append(data)
            field.kind, field.n_bytes, field.bytes = lib.KVT_FIELD_BYTES, len(data), data
        digest, number = ffi.new("uint64_t[2]"), ffi.new("uint32_t *")
        if lib.kvt_namespace_digest(fields, digest) != 0:
            raise InvalidArgument("namespace: a field is of no known kind")
        if label is None:
            label = ", ".join(f"{name} {value!r}" for name, value in
                              (("model", model), ("adapter", adapter)) if value is not None)
        text = ffi.new("char[]", label.encode("utf-8", "replace").replace(b"\0", b"?"))
        with self._lock:
            self._check(lib.kvt_namespace_open(self._open(), digest, text, number))
        return Namespace(self, number[0], (digest[0], digest[1]), label)

    @property
    def pool(self) -> Pool:
        """The pool of this rank in host memory, mapped at the first use. Unsupported: it is device
        memory: map_pool(device=...)."""
        if self._pool is None:
            self._pool = self.map_pool()
        return self._pool

    def map_pool(self, slab: Optional[int] = None, *, device: Optional[int] = None,
                 readonly: bool = False) -> Pool:
        """Map a slab. slab: of several, in host memory. device: the slab that is on the CUDA
        device of this number in this process. readonly: mapped to read (devices by cuda-vmm), or,
        in host memory, arrays that numpy and torch take as read only."""
        native = ffi.new("struct kvt_pool *")
        with self._lock:
            handle = self._open()
            if device is not None:
                if device < 0:
                    raise InvalidArgument(f"device {device}: they are counted from 0")
                flags = lib.KVT_MAP_READ_ONLY if readonly else 0
                self._check(lib.kvt_pool_map_cuda(handle, device, flags, native))
            elif slab is not None:
                self._check(lib.kvt_pool_map_slab(handle, slab, native))
            else:
                self._check(lib.kvt_pool_map(handle, native))
            pool = Pool(self, native, device, readonly)
            self._pools.append(pool)
            return pool

    # ---- groups and fences

    def group(self, n_ranks: int, token: Optional[bytes] = None) -> bytes:
        """Make this client rank 0 of a group; returns the token, a secret, with which the others
        connect (connect(group=, rank=)). token: 16 bytes that no other process can guess, for
        ranks that know it beforehand; by default it is random."""
        chosen = _group_token(token) if token is not None else ffi.NULL
        found = ffi.new("struct kvt_group_token *")
        with self._lock:
            self._check(lib.kvt_group_open(self._open(), n_ranks, chosen, found))
        return bytes(ffi.buffer(found))

    def check(self) -> None:
        """Raise ConnectionLost if the session, or its group, has ended. Does not wait."""
        with self._lock:
            self._check(lib.kvt_group_check(self._open()))

    def mirror_write(self, data: bytes) -> None:
        """Rank 0 (connect(mirror=True), group()): send bytes to every member, which takes them with
        mirror_read(), all in the same order. Waits while a member has some 32 KiB unread. One above
        16 KiB goes in pieces: after a Timeout end the group. ConnectionLost: a rank has ended."""
        most: int = lib.KVT_MIRROR_MESSAGE_MAX
        with self._lock:
            handle = self._open()
            for at in range(0, len(data) + 1, most):  # a shorter piece is the last
                piece = data[at:at + most]
                self._check(lib.kvt_mirror_write(handle, piece, len(piece)))

    def mirror_read(self) -> bytes:
        """A member: what rank 0 wrote next. Waits for it; ConnectionLost: a rank has ended."""
        most: int = lib.KVT_MIRROR_MESSAGE_MAX
        with self._lock:
            handle = self._open()
            if self._mirrored is None:
                self._mirrored = ffi.new("char[]", most)
            data, n = b"", most
            while n == most:
                n = self._check(lib.kvt_mirror_read(handle, self._mirrored, most))
                data += ffi.unpack(self._mirrored, n)
        return data

    def raise_fence(self, slot: int, value: int) -> None:
        """Raise fence word `slot` of 16 to `value`: work up to it has ended."""
        with self._lock:
            self._check(lib.kvt_fence_raise(self._open(), slot, value))

    def record_fence(self, stream: int) -> Fence:
        """A fence for all work queued so far on a CUDA stream, given by its handle
        (torch.cuda.Stream.cuda_stream). Does not wait."""
        fence = ffi.new("struct kvt_fence *")
        with self._lock:
            self._check(lib.kvt_fence_record(self._open(), ffi.cast("void *", stream), fence))
        return fence.slot, fence.value

    def forget_stream(self, stream: int) -> None:
        """Free the fence word of a CUDA stream that will be destroyed."""
        with self._lock:
            self._check(lib.kvt_fence_forget(self._open(), ffi.cast("void *", stream)))

    # ---- single operations

    def _brought(self, request: dict[str, Any]) -> Got:
        """Call an operation, and take what it brings."""
        got = Got(self)
        with self._lock:
            self._check(lib.kvtpy_call(self._open(), ffi.new("struct kvt_request *", request),
                                       got.native))
        return got

    def lock(self, handle: Handle, *, shorter: bool = False) -> Lease:
        """Take a lease on what a match or a probe found. Stale: it is gone; match again. With
        `shorter` on what is left of it, if only its last pages are gone: see Lease.positions."""
        if not 0 <= handle.positions // self.info.page_size < self.info.n_pages:
            raise InvalidArgument(f"lock: a handle of {handle.positions} positions")
        return Lease(self, self._brought({"op": lib.KVT_OP_LOCK, "handle": tuple(handle),
                                          "flags": lib.KVT_F_SHORTER if shorter else 0}))

    def alloc(self, n: int, *, shorter: bool = False, own_stream: bool = False) -> array[int]:
        """n private pages of this session, as array('I'). All or nothing: NoSpace. With `shorter`
        as many of them as can be had, at least one. own_stream: their writes are ordered after
        this session's fences, so pages of sequences that end at one may be among them."""
        got = self._brought({"op": lib.KVT_OP_ALLOC, "arg": count_of(n, "n", (1 << 31) - 1),
                             "flags": ((_SHORTER if shorter else 0) |
                                       (_OWN_STREAM if own_stream else 0))})
        pages = array("I", got.pages())
        got.client = None  # no signal's handler runs between this and the return
        return pages

    def free(self, pages: Tokens, fence: Optional[Fence] = None) -> None:
        """Free private pages when `fence` is reached."""
        numbers, n = keys_of(pages, "page")
        with self._lock:
            self._check(lib.kvt_free(self._open(), numbers, n,
                                     ffi.new("struct kvt_fence *", fence_of(fence))[0]))

    def sealer(self, page: int) -> int:
        """Number of the session that sealed a cached page, to compare with `info.sealer`; 0: not
        known. Without a round trip, unless the daemon withholds its tree."""
        out = ffi.new("uint32_t *")
        with self._lock:
            self._check(lib.kvt_page_sealer(self._open(), count_of(page, "page"), out))
        return int(out[0])

    def suspect(self, page: int) -> int:
        """Report a cached page whose KV is not what this process computed for its keys; hold a lease
        on it. The daemon logs and counts it. Returns the session that sealed it, 0 if that has
        ended."""
        out = ffi.new("uint32_t *")
        with self._lock:
            self._check(lib.kvt_page_suspect(self._open(), count_of(page, "page"), out))
        return int(out[0])

    def evict(self, n: int) -> int:
        """Evict up to n cached pages; returns how many. Needs privilege."""
        out, n = ffi.new("uint32_t *"), count_of(n, "n")
        with self._lock:
            self._check(lib.kvt_evict(self._open(), n, out))
        return int(out[0])

    def reset(self) -> None:
        """Drop every cached prefix of the instance. Needs privilege."""
        with self._lock:
            self._check(lib.kvt_reset(self._open()))

    def stats(self) -> Counters:
        """The daemon's counters, by a round trip."""
        native = ffi.new("struct kvt_counters *")
        with self._lock:
            self._check(lib.kvt_stats(self._open(), native))
        return Counters((name, getattr(native, name)) for name in _COUNTERS)

    def counters(self) -> Counters:
        """The daemon's counters, from shared memory: a consistent set without a round trip. By a
        round trip where the daemon withholds its tree or is inside a long operation; an observer,
        which has no ring for it, waits up to a second. Again, Unsupported."""
        native = ffi.new("struct kvt_counters *")
        with self._lock:
            handle = self._open()
            rc = lib.kvt_counters_read(handle, native)
            observes, tries = not self.info.session, 1
            while observes and rc == -errno.EAGAIN and tries < _COUNTER_TRIES:
                time.sleep(_COUNTER_PAUSE_S)
                rc = lib.kvt_counters_read(handle, native)
                tries += 1
            if not observes and rc in (-errno.EAGAIN, -errno.ENOTSUP):
                rc = lib.kvt_stats(handle, native)
            self._check(rc)
        return Counters((name, getattr(native, name)) for name in _COUNTERS)

    def feed(self) -> Feed:
        """Subscribe to the feed: what becomes cached from now on, and what stops being so. One at a
        time. PermissionDenied: the daemon shows no keys; Unsupported: it has no feed."""
        before = self._feed
        try:
            feed = Feed(self)
        except BaseException:  # what a signal's handler raises
            with self._lock:
                if self._feed is not None and self._feed is not before:
                    self._feed._end()
            raise
        return feed

    def fetched(self) -> Optional[Fetched]:
        """Take one answer to Namespace.fetch(), without waiting. None: none has come. A fetch that
        is open longer than connect()'s fetch_wait, or 0.15 s where the store asks a distributed
        one, is answered with 0 positions."""
        found, first = self._fetched, None
        try:
            with self._lock:
                self._take_fetched()
                if found:
                    first = found[0]
                    found.popleft()
            return first[1] if first is not None else None
        except BaseException:  # what a signal's handler raises: the next fetched() gives it
            if first is not None and (not found or found[0] is not first):
                found.appendleft(first)
            raise

    def set_pace(self, seconds: float) -> None:
        """Announce that from now on a call follows each call within `seconds`: the time of a
        scheduler's step, with some slack. The daemon spins meanwhile, 50 ms at most. 0: not
        announced, the default and right while the engine has nothing to do."""
        ns = _ns(seconds, "seconds") if seconds_of(seconds, "seconds") else 0
        with self._lock:
            lib.kvt_client_set_pace(self._open(), ns)

    def set_timeout(self, seconds: Optional[float]) -> None:
        """Deadline of each waiting call from its start; None: none."""
        ns = _ns(seconds, "seconds")
        with self._lock:
            lib.kvt_client_set_timeout(self._open(), ns)

    # ---- many operations

    def submit(self, requests: Iterable[Request]) -> int:
        """Submit without waiting. Returns how many were taken: fewer than given when rings or areas
        are full (reap first)."""
        n = 0
        with self._lock:
            handle = self._open()
            for request in requests:
                native, keep = _native_request(request)
                got = Got(self, request.tag)
                got.notice = bool(request.flags & lib.KVT_F_NO_WAIT)
                if not self._submit_one(handle, native, got, self._got):
                    break
                del keep
                n += 1
        return n

    def call(self, request: Request) -> Result:
        """Submit one operation and wait for its answer, which may be a refusal: see its `error`.
        Answers of submit() and notices that come meanwhile are kept for reap(), with their tags.

        Raises Again: no room in rings or areas; ConnectionLost, Timeout.
        """
        got = Got(self, request.tag)
        with self._lock:
            handle = self._open()
            native, keep = _native_request(request)
            number = native.user_data = self._next_number
            self._next_number = number + 2
            code = lib.kvtpy_call(handle, native, got.native)
            del keep
            if not got.native.full:
                raise self._failure(code)
            if request.flags & lib.KVT_F_NO_WAIT and _not_now(got.native.answer):
                self._got[number] = Got(self, request.tag)
        result = _result_of(got.native.answer, request.tag)
        got.client = None
        return result

    def _submit_one(self, handle: Any, native: Any, got: Got, flying: dict[int, Got]) -> bool:
        number = native.user_data = self._next_number
        self._next_number = number + 2
        flying[number] = got  # first: no signal's handler runs between this and the call
        rc = lib.kvt_submit(handle, native)
        if rc != 0:
            del flying[number]
        if rc == -errno.EAGAIN:
            return False
        self._check(rc)
        return True

    def reap(self, min: int = 0, max: int = 64) -> list[Result]:  # pylint: disable=W0622
        """Take up to `max` answers of submit(), waiting for the first `min` of them; fewer if no
        more are in flight."""
        taken: list[Got] = []
        results = self._results
        try:
            with self._lock:
                handle = self._open()
                while len(taken) < max:
                    if results:
                        taken.append(results[0])  # first: an answer is always in one of the two
                        results.popleft()
                    elif self._take(handle, 1 if len(taken) < min and self._got else 0,
                                    max - len(taken)) == 0:
                        break
            found = [_result_of(got.native.answer, got.tag) for got in taken]
            for got in taken:
                got.client = None
            return found
        except BaseException:  # the next reap() gives them
            for got in reversed(taken):
                got.client = self
                if not results or results[0] is not got:
                    results.appendleft(got)
            raise

    def _take(self, handle: Any, wanted: int, most: int) -> int:
        """Take answers, and handle each one. Returns how many. If a signal's handler raises, the next
        call continues (see _open()); so what handles an answer may run twice."""
        batch = self._batch
        self._slow = True
        n = int(self._check(lib.kvtpy_reap(handle, batch, wanted, min(most, _REAP))))
        answers = batch.answers
        for _ in range(n):
            answer = answers[batch.at]
            number = answer.user_data
            if number & 1:
                self._answered(handle, number, answer)
            elif self._aio is None or not self._aio.answer(answer):
                got = Got(self)  # of a call that a signal ended
                self._check(lib.kvtpy_handled(handle, batch, got.native))
        return n

    def _answered(self, handle: Any, number: int, answer: Any) -> None:
        """Handle an answer of submit() or match_many()."""
        results, got = self._results, self._got.get(number)
        last = got is None or not (got.notice and _not_now(answer))
        if got is None:
            got = self._many.get(number) or Got(self)
        elif got.native.full:
            got = self._got[number] = Got(self, got.tag)  # the notice after "not now"
        if number in self._got and (not results or results[-1] is not got):
            results.append(got)
        self._check(lib.kvtpy_handled(handle, self._batch, got.native))
        self._many.pop(number, None)
        if last:
            self._got.pop(number, None)

    def _call_many(self, request: Any, many: list[tuple[Any, int]]) -> list[Got]:
        """Submit a request with each of these keys, as far as there is room at a time, and take all
        answers."""
        found = [Got(self) for _ in many]
        sent = done = 0
        with self._lock:
            handle = self._open()
            self._slow = True
            flying = True
            while done < len(many):
                before = sent
                while sent < len(many):
                    request.keys, request.n_keys = many[sent]
                    if not self._submit_one(handle, request, found[sent], self._many):
                        break
                    sent += 1
                if sent == before and not flying:
                    raise self._failure(-errno.EAGAIN)
                flying = self._take(handle, 1, _REAP) > 0  # else all has been answered
                while done < len(many) and found[done].native.full:
                    done += 1
        return found


class _Asked:
    """A begin that waits for a store's answer."""

    wait_ms: Optional[int] = None


_REAP = 64
_FETCHED_MOST = 256  # answers that Client.fetched() did not take
_LOOK_FOR_STORE_S = 0.0005


def _not_now(answer: Any) -> bool:
    return bool(answer.error == -errno.EAGAIN and answer.reason == lib.KVT_REASON_ANNOUNCED)


def _field_bytes(value: FieldValue) -> bytes:
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    if isinstance(value, int):
        return str(value).encode()
    raise TypeError(f"a field of a namespace is text, bytes or a number, not "
                    f"{type(value).__name__}")


def _native_request(request: Request) -> tuple[Any, Any]:
    if request.op not in OPS:
        raise ValueError(f"no operation {request.op!r}: {', '.join(OPS)}")
    native = ffi.new("struct kvt_request *")
    keep: list[Any] = []  # the structure holds addresses only
    native.op, native.flags, native.arg = OPS[request.op], request.flags, request.arg
    if request.namespace is not None:
        native.namespace_id = request.namespace._id
        native.root_key = request.namespace._root_key
    if request.keys is not None:
        keys, native.n_keys = keys_of(request.keys)
        native.keys = keys
        keep.append(keys)
    if request.pages is not None:
        pages, native.n_pages = keys_of(request.pages, "page")
        native.pages = pages
        keep.append(pages)
    if request.handle is not None:
        native.handle.node, native.handle.generation, native.handle.positions = request.handle
    if request.lease is not None:
        native.lease.index, native.lease.generation = request.lease
    native.fence.slot, native.fence.value = fence_of(request.fence)
    native.priority, native.ttl_ms = request.priority, milliseconds_of(request.ttl, "ttl")
    native.point, native.min_positions = request.point, request.min_positions
    places = [(index * lib.KVT_MAX_SIDES + kind, page) for index, kind, page in request.sides]
    if places:
        sides = ffi.new("struct kvt_side[]", places)
        native.n_sides, native.sides = len(places), sides
        keep.append(sides)
    return native, keep


def _ns(seconds: Optional[float], what: str) -> int:
    return 0 if seconds is None else max(1, int(seconds_of(seconds, what) * 1e9))


def _wait_ns(seconds: Optional[float], what: str) -> int:
    """Nanoseconds as of _ns(), but -1 for 0 seconds: do not wait."""
    return -1 if seconds == 0 else _ns(seconds, what)


def _group_token(token: bytes) -> Any:
    native = ffi.new("struct kvt_group_token *")
    if len(token) != ffi.sizeof("struct kvt_group_token"):
        raise ValueError("a token of a group has 16 bytes")
    ffi.memmove(native, token, len(token))
    return native


def connect(socket: Union[str, os.PathLike[str], None] = None, *, label: Optional[str] = None,
            geometry: Optional[Geometry] = None, fingerprint: Optional[str] = None,
            any_geometry: bool = False, observe: bool = False, resume: Optional[float] = None,
            timeout: Optional[float] = None, begin_wait: Optional[float] = None,
            connect_wait: Optional[float] = None, spin: Optional[float] = None,
            sq_entries: int = 0, cq_entries: int = 0, keys_count: int = 0, list_count: int = 0,
            group: Optional[bytes] = None, rank: int = 0, mirror: bool = False,
            sides: Optional[Iterable[int]] = None,
            store: Union[str, os.PathLike[str], None] = None,
            fetch_wait: Optional[float] = None) -> Client:
    """Connect to a daemon and open a session.

    socket: default $KVTRUNK_SOCKET, then /run/kvtrunk/default.sock. label: shown by `kvtctl
    clients`, 63 bytes of it. geometry, fingerprint: what your pages hold; a daemon that has one
    refuses a session that names neither, unless any_geometry: it writes no page, or follows
    Pool.layer() for any geometry. observe: no session. Times are seconds: timeout of each call that
    blocks (none), begin_wait for what others compute of a prompt (30; 0: not at all), resume for a
    daemon's successor (30),
    connect_wait for a daemon that is not there yet, spin before a wait sleeps (50e-6).
    sq_entries, cq_entries, keys_count, list_count: sizes of rings and areas (64, twice that, 1 Mi and
    256 Ki words). group, rank: join that group (Client.group()). mirror: the group of this session
    gets one (Client.mirror_write()). sides: must be the daemon's, as its option: of each kind of side
    pages how many of the last pages of a prefix need one; () if you attach none. store: socket of a
    kvtstored; default: that beside the daemon's, if it is there; "": none. fetch_wait: how long its
    answer may take (0.005; 0: a begin does not ask).

    Raises DaemonUnreachable, GeometryMismatch, PermissionDenied, VersionMismatch, QuotaExceeded,
    Timeout.
    """
    options = ffi.new("struct kvt_options *")
    lib.kvt_options_init(options, ffi.sizeof("struct kvt_options"))
    keep: list[Any] = []

    def text(value: Union[str, bytes]) -> Any:
        data = ffi.new("char[]", value.encode() if isinstance(value, str) else value)
        keep.append(data)
        return data

    if socket is not None:
        options.socket_path = text(os.fspath(socket))
    options.label = text(label if label is not None else _program())
    fields = [fingerprint] if fingerprint else []
    if sides is not None:
        numbers = [operator.index(pages) for pages in sides]
        most = lib.KVT_MAX_SIDE_PAGES // 2
        if len(numbers) > lib.KVT_MAX_SIDES or not all(0 < pages <= most for pages in numbers):
            raise ValueError(f"sides are up to {lib.KVT_MAX_SIDES} numbers from 1 to {most}, not "
                             f"{numbers}: no daemon has those")
        fields.append("sides=" + ",".join(map(str, numbers)))
    if fields:
        options.fingerprint = text(";".join(fields))
    if geometry is not None:
        native = geometry.to_native()
        keep.append(native)
        options.geometry = native
    if group is not None:
        token = _group_token(group)
        keep.append(token)
        options.group = token
    if store is not None:
        options.store_path = text(os.fspath(store))
    options.rank = count_of(rank, "rank")
    options.sq_entries = count_of(sq_entries, "sq_entries")
    options.cq_entries = count_of(cq_entries, "cq_entries")
    options.keys_count = count_of(keys_count, "keys_count")
    options.list_count = count_of(list_count, "list_count")
    options.timeout_ns, options.resume_ns = _ns(timeout, "timeout"), _ns(resume, "resume")
    options.begin_wait_ns = _wait_ns(begin_wait, "begin_wait")
    options.connect_wait_ns = _wait_ns(connect_wait, "connect_wait")
    options.fetch_wait_ns = _wait_ns(fetch_wait, "fetch_wait")
    options.spin_budget_ns = _ns(spin, "spin")
    options.flags = ((lib.KVT_HELLO_OBSERVE if observe else 0) |
                     (lib.KVT_ANY_GEOMETRY if any_geometry else 0) |
                     (lib.KVT_MIRROR if mirror else 0))
    out = ffi.gc(ffi.new("struct kvt_client **"), lib.kvtpy_disconnect)
    error = ffi.new("struct kvt_error *")
    rc = lib.kvt_client_connect(out, options, error)
    if rc != 0:
        raise _signals.raised() or from_error(error, rc, attach=True)
    return Client(out, 30.0 if begin_wait is None else begin_wait, fetches=fetch_wait != 0)


def _program() -> str:
    """The script's name: all Python programs share one executable."""
    name = os.path.basename(sys.argv[0]) if sys.argv and sys.argv[0] else "python"
    return name.replace("\0", "?")[:63]


_clients: weakref.WeakSet[Client] = weakref.WeakSet()


def _after_fork() -> None:
    """A lock that another thread of the parent held would never be released here."""
    for client in list(_clients):
        client._lock = threading.Lock()
        client._aio = None


os.register_at_fork(after_in_child=_after_fork)
