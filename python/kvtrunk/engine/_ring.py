# SPDX-License-Identifier: Apache-2.0
"""A session as an engine's scheduler needs it: leases by number. Only BEGIN waits, and EXTEND and
pages() for more pages than are in stock. A BEGIN waits no longer than it is told. _stall.py logs
that the daemon does not answer.

Its fences are those of the one stream that writes pages. So the daemon gives out pages of a lease
that ends at a fence again at once, to this session (OWN_STREAM).

One thread uses it: that of the scheduler. It takes all answers of the client: use no Client.submit()
beside it.

After a signal's handler has raised in a call, the session's pages and leases are not known. So it
counts as lost: ConnectionLost. It holds nothing when its client is closed.
"""
from __future__ import annotations

import collections
import errno
import functools
import logging
from collections.abc import Iterable, Sequence
from typing import Any, Callable, NamedTuple, Optional, TypeVar, cast

from .. import Client, ConnectionLost, Error, Namespace, NoSpace, QuotaExceeded, Timeout
from .._errors import from_result
from .._limited_log import LimitedLog
from .._native import ffi, lib
from .._own import Owner
from .._seq import SIDE_LET, Fence, by_kind, fence_of
from ._stall import WARN_S, Stall, Stalled

logger = logging.getLogger(__name__)

Lease = tuple[int, int]

WAIT_MS = 30_000
"""How long, at most, a request is held back for a prefix that another process computes."""
_NO_SPACE = (-errno.ENOSPC, -errno.EDQUOT)
_CHUNKED: int = lib.KVT_F_CHUNKED
_NO_PAGES: int = lib.KVT_F_NO_PAGES
_FULL: int = lib.KVT_F_FULL
_OWN_STREAM: int = lib.KVT_F_OWN_STREAM
_OWN_TABLE: int = lib.KVT_F_KEEP | lib.KVT_F_NO_LIST
_REAP = 64
_FILLING = 2**64 - 1  # user_data of ALLOC
_LATE = 1  # of _call(): the answer did not come in time
_SLICE_NS = int(WARN_S * 1e9)
_DEVICE_PACE_S = 0.02  # between the calls of one step and those of the next
_HOST_PACE_S = 0.002  # between those of one step: then a CPU's engine needs all cores


class Begun(NamedTuple):
    """BEGIN's answer. `lease` None: held back until notice `ticket` (above 0), or no space. `sides`:
    by kind, the side pages of the last reusable pages, in path order. `matched`: positions that are
    cached; `announced`: those after them that others compute. A point where both end, if that is
    above `reusable`, would let the next such prompt continue there. `known`: positions whose keys the
    daemon took; a commit brings the others."""

    lease: Optional[Lease]
    pages: list[int]
    reusable: int
    ticket: int
    matched: int = 0
    sides: tuple[list[int], ...] = ()
    announced: int = 0
    known: int = 0


_Method = TypeVar("_Method", bound=Callable[..., Any])


def _whole(call: _Method) -> _Method:
    """Make a method of Ring happen whole, or lose the session."""
    @functools.wraps(call)
    def guarded(self: Ring, *arguments: Any, **more: Any) -> Any:
        if self._struck:
            raise ConnectionLost("a signal's handler ended a call of this session, so it is not known "
                                 "what the session holds: close its client")
        try:
            result = call(self, *arguments, **more)
        except Error:
            raise
        except BaseException:
            self._struck = True
            raise
        return result

    return cast(_Method, guarded)


class Ring(Owner):
    """Operations of one session. While it is busy (announce()) it keeps `stock` private pages for
    extend() and pages(), which it gives back before it says that there is no space. An engine that
    becomes idle calls reap() until it owes nothing, or settle()."""

    def __init__(self, client: Client, stock: int = 0, warn: Optional[LimitedLog] = None,
                 stall: Optional[Stall] = None) -> None:
        """warn: for the limits that hold requests back. stall: for a daemon that does not answer; by
        default it is logged."""
        self.client = client
        self._warn = warn or LimitedLog(logger.warning)
        self._stall = stall or Stall(None, logger.warning, None)
        self._stock_size = stock
        self._stock: list[int] = []
        self._filling = False
        self._fence: Optional[Fence] = None
        """Fence of the last operation with one. Steps before it may still use pages of the stock."""
        self._handle = self.client._handle
        self._request = ffi.new("struct kvt_request *")
        self._result = ffi.new("struct kvt_result *")
        self._many = ffi.new("struct kvt_result[]", _REAP)
        self._fetched = ffi.new("struct kvt_fetched *")
        self._counters = ffi.new("struct kvt_counters *")
        self.limit = ""
        """The daemon's reason for the last refusal for want of room."""
        self._busy = False
        self._pace_s = _HOST_PACE_S if client.info.backend == "host" else _DEVICE_PACE_S
        self._ticket = 0
        self._notices: dict[int, int] = {}
        """Milliseconds that notice() returns, by ticket."""
        self._given_up: set[int] = set()
        self._refused: list[tuple[int, Error]] = []
        self._late: collections.deque[tuple[Callable[..., bool], tuple[Any, ...]]] = (
            collections.deque())
        self._retired: list[int] = []
        self._sides: list[int] = []
        self._pending: dict[int, tuple[float, int]] = {}
        """Operations whose answer is late, by ticket: since when, and with how many keys."""
        self._begun: dict[int, Begun] = {}
        """Late answers of BEGINs, by ticket."""
        self._given: dict[int, list[int]] = {}
        """Side pages of commits without an answer, by ticket."""
        self._not_taken: list[int] = []
        self._struck = False
        """An exception of a signal's handler has ended a call: see _whole()."""

    # ---- inside

    def _clear(self, op: int, lease: Lease = (0, 0), keys: Any = (),
               fence: Optional[Fence] = None) -> Any:
        """The request, cleared and filled. The caller keeps `keys` until it is submitted."""
        request = self._request
        ffi.memmove(request, _ZERO, _REQUEST_BYTES)
        request.op = op
        request.lease.index, request.lease.generation = lease
        if len(keys):
            request.n_keys, request.keys = len(keys), ffi.from_buffer("uint32_t[]", keys)
        request.fence.slot, request.fence.value = fence_of(fence)
        self._fence = fence or self._fence
        return request

    def _check(self, code: int) -> int:
        if code < 0:
            raise self.client._failure(code)
        return code

    def _submit(self) -> bool:
        """Submit the request. False: no room, even after taking answers."""
        code = lib.kvt_submit(self._handle, self._request)
        if code == -errno.EAGAIN:
            self._reap()
            code = lib.kvt_submit(self._handle, self._request)
        if code == -errno.EAGAIN:
            return False
        self._check(code)
        return True

    def _reap(self) -> None:
        handle, many = self._handle, self._many
        n = _REAP
        while n == _REAP:
            n = self._check(lib.kvt_reap(handle, many, 0, _REAP))
            for i in range(n):
                self._take(many[i])
                lib.kvt_result_release(handle, ffi.addressof(many, i))
        if self._pending:
            since, _ = next(iter(self._pending.values()))
            self._stall.look(since)

    def _take(self, answer: Any) -> None:
        """Take an answer that no call waits for."""
        ticket = answer.user_data
        if ticket == _FILLING:
            self._filled(answer)
        elif answer.flags & lib.KVT_CQE_ASYNC:
            late = answer.state == lib.KVT_NOTICE_DEADLINE
            self._notice(ticket, 0 if late else WAIT_MS)
        elif ticket in self._pending:
            _, n_keys = self._pending.pop(ticket)
            self._stall.answered()
            if answer.op == lib.KVT_OP_BEGIN:
                self._began_late(ticket, answer, n_keys)
        else:
            self._done(answer)

    def _began_late(self, ticket: int, answer: Any, n_keys: int) -> None:
        if answer.error == -errno.EAGAIN and answer.reason == lib.KVT_REASON_ANNOUNCED:
            return  # its notice follows
        if answer.error == 0:
            pages = ffi.unpack(answer.pages, answer.n_pages) if answer.n_pages else []
            sides = ffi.unpack(answer.sides, answer.n_sides) if answer.n_sides else []
            begun = self._begun_of(answer, pages, sides, n_keys)
            if ticket in self._given_up:
                self._late.append((self._end, (begun.lease, None, 0, ())))
            else:
                self._begun[ticket] = begun
        self._notice(ticket, WAIT_MS)

    def _done(self, answer: Any) -> None:
        given = self._given.pop(answer.user_data, [])
        if answer.error:
            self._refused.append((answer.user_data, from_result(answer)))
            self._not_taken += given
        elif given and answer.n_pages:
            self._not_taken += ffi.unpack(answer.pages, answer.n_pages)

    def _notice(self, ticket: int, wait_ms: int) -> None:
        if ticket in self._given_up:
            self._given_up.discard(ticket)
        else:
            self._notices[ticket] = wait_ms

    def _reap_fetched(self) -> None:
        fetched = self._fetched
        while self._check(lib.kvt_fetch_poll(self._handle, fetched)):
            self._notice(fetched.user_data, fetched.wait_ms or WAIT_MS)

    def _next(self, wait_ns: int, since: float) -> bool:
        """Take the next answer into _result. False: none came within wait_ns. since: when the daemon
        was asked; 0: it waits for a fence."""
        lib.kvt_client_set_timeout(self._handle, wait_ns)
        try:
            n = lib.kvt_reap(self._handle, self._result, 1, 1)
        finally:
            lib.kvt_client_set_timeout(self._handle, self._stall.lost_ns)
        if n == -errno.ETIMEDOUT:
            if since:
                self._stall.look(since)
            return False
        if self._check(n) == 0:
            raise self.client._failure(-errno.EAGAIN)  # all room is held by nothing in flight
        return True

    def _take_result(self) -> None:
        """Take the answer in _result."""
        self._take(self._result)
        lib.kvt_result_release(self._handle, self._result)

    def _await(self, ticket: int, since: float, patience_ns: int) -> bool:
        """Take answers until that of a ticket is in _result. False: not within patience_ns, if that
        is above 0."""
        while True:
            if self._next(patience_ns or _SLICE_NS, since):
                result = self._result
                if result.user_data == ticket and not result.flags & lib.KVT_CQE_ASYNC:
                    self._stall.answered()
                    return True
                self._take_result()
            elif patience_ns:
                return False

    def _call(self, patience_ns: int = 0) -> tuple[int, list[int]]:
        """Wait for the answer: its error, unless that is raised, and its pages. _LATE: it did not
        come within patience_ns, if that is above 0."""
        request, result = self._request, self._result
        ticket = request.user_data or self._new_ticket()
        since = self._stall.now() if request.fence.slot == lib.KVT_FENCE_IDLE else 0.0
        while True:
            while not self._submit():
                if self._next(_SLICE_NS, since):
                    self._take_result()
            if not self._await(ticket, since, patience_ns):
                self._pending[ticket] = since, request.n_keys
                return _LATE, []
            code = result.error
            if code != -errno.ENOBUFS or request.list_capacity or not result.needed:
                break
            request.list_capacity = result.needed  # nothing was done: the answer needs more room
        if code in _NO_SPACE or (code == -errno.EAGAIN and
                                 result.reason == lib.KVT_REASON_ANNOUNCED):
            return code, []
        if code:
            raise from_result(result)
        pages = ffi.unpack(result.pages, result.n_pages) if result.n_pages else []
        self._sides = ffi.unpack(result.sides, result.n_sides) if result.n_sides else []
        lib.kvt_result_release(self._handle, result)
        return 0, pages

    def _say_limit(self, code: int) -> None:
        """Log the answer's reason, if it is a limit."""
        if code in _NO_SPACE:
            error = from_result(self._result)
            self.limit = error.reason
            self._warn(f"a request waits for room: {error}", f"limit {error.reason}")

    def _new_ticket(self) -> int:
        self._ticket += 1
        self._request.user_data = self._ticket
        return self._ticket

    # ---- the stock

    @property
    def stocked(self) -> int:
        """How many pages are in stock."""
        return len(self._stock)

    def _fill(self) -> None:
        """Ask for the pages that the stock lacks. Without room the stock stays smaller."""
        missing = self._stock_size - len(self._stock)
        if self._busy and not self._filling and 2 * missing > self._stock_size:
            request = self._clear(lib.KVT_OP_ALLOC)
            request.flags = _OWN_STREAM
            request.arg, request.user_data = missing, _FILLING
            self._filling = self._submit()

    def _filled(self, answer: Any) -> None:
        self._filling = False
        if answer.n_pages:
            self._stock += ffi.unpack(answer.pages, answer.n_pages)
        if self._stock and not self._busy:
            self._late.append((self._free, (self._stock, self._fence)))
            self._stock = []

    def _with_pages(self, op: int, lease: Lease, pages: list[int],
                    fence: Optional[Fence] = None) -> bool:
        request = self._clear(op, lease, fence=fence)
        numbers = ffi.new("uint32_t[]", pages)
        request.n_pages, request.pages = len(pages), numbers
        return self._submit()

    def _give_back(self) -> bool:
        """Free the stock. False: there is none, or no room for the request."""
        if not self._stock or not self._free(self._stock, self._fence):
            return False
        self._stock = []
        return True

    # ---- operations

    @_whole
    def fetch(self, namespace: int, keys: Any, root_key: int = 0, min_positions: int = 0) -> int:
        """Have a store load what the pool lacks of a prompt. Returns a ticket for notice(), which
        comes within connect()'s fetch_wait, or 0.15 s where the store asks a distributed one; 0: no
        store was asked. min_positions: with fewer keys
        none is. ConnectionLost, Error."""
        self._reap_fetched()
        request = self._clear(lib.KVT_OP_BEGIN, keys=keys)
        request.namespace_id, request.root_key = namespace, root_key
        request.min_positions = min_positions
        ticket = self._new_ticket()
        return ticket if self._check(lib.kvt_fetch(self._handle, request)) else 0

    @_whole
    def touch(self, namespace: int, keys: Any, root_key: int = 0) -> None:
        """Mark the cached prefix of a prompt as used now. Does not wait. Without room it does nothing.
        """
        request = self._clear(lib.KVT_OP_MATCH, keys=keys)
        request.namespace_id, request.root_key = namespace, root_key
        self._new_ticket()
        self._submit()

    @_whole
    def begin(self, namespace: int, keys: Any, extra: int, *, force_miss: bool,
              wait_ms: int, root_key: int = 0, full: bool = False, no_pages: bool = False,
              point: int = 0, min_positions: int = 0, patience_s: float = 0.0) -> Begun:
        """Begin with pages for len(keys) + extra positions. wait_ms: how long at most to hold it
        back for what others compute of it; 0: not at all. full: reuse up to the last key. no_pages,
        point, min_positions: see Namespace.begin(); without pages it may begin with fewer keys.
        patience_s: without an answer for so long it is held back, too; then begun() has the late
        answer. 0: wait.
        ConnectionLost, Error."""
        request = self._clear(lib.KVT_OP_BEGIN, keys=keys)
        request.namespace_id, request.arg, request.root_key = namespace, extra, root_key
        request.point, request.min_positions = point, min_positions
        request.flags = _OWN_STREAM | (_FULL if full else 0) | (_NO_PAGES if no_pages else 0)
        if force_miss:
            request.flags |= lib.KVT_F_FORCE_MISS
        elif wait_ms:
            request.flags |= lib.KVT_F_NO_WAIT
            request.ttl_ms = wait_ms
        ticket = self._new_ticket()
        code, pages = self._call(int(patience_s * 1e9))
        while code in _NO_SPACE and self._take_keys():
            ticket = self._new_ticket()
            code, pages = self._call(int(patience_s * 1e9))
        if code in _NO_SPACE and self._give_back():
            return self.begin(namespace, keys, extra, force_miss=force_miss, wait_ms=wait_ms,
                              root_key=root_key, full=full, no_pages=no_pages, point=point,
                              min_positions=min_positions, patience_s=patience_s)
        if code:
            self._say_limit(code)
            return Begun(None, [], 0, ticket if code in (-errno.EAGAIN, _LATE) else 0)
        return self._begun_of(self._result, pages, self._sides, request.n_keys)

    def _take_keys(self) -> bool:
        """If a BEGIN without pages was refused for want of slots, take away the keys that have none.
        The keys left may be reused whole, because others follow."""
        request, result = self._request, self._result
        fit = result.available * self.client.info.page_size
        if result.reason != lib.KVT_REASON_SLOTS or fit >= request.n_keys:
            return False
        request.n_keys, request.flags = fit, request.flags | _FULL
        request.min_positions = min(request.min_positions, fit)
        return True

    def _begun_of(self, answer: Any, pages: list[int], sides: list[int], n_keys: int) -> Begun:
        return Begun((answer.lease.index, answer.lease.generation), pages, answer.reusable, 0,
                     answer.matched, tuple(by_kind(self.client, sides, answer.reusable)),
                     answer.announced, n_keys)

    @_whole
    def begun(self, ticket: int) -> Optional[Begun]:
        """After notice(): the late answer of a BEGIN. None: begin again."""
        return self._begun.pop(ticket, None)

    @_whole
    def within(self, patience_s: float, call: Callable[[], Any]) -> Any:
        """Make a call of the client that asks the daemon through its socket. Stalled: no answer came
        within patience_s."""
        since = self._stall.now()
        lib.kvt_client_set_timeout(self._handle, int(patience_s * 1e9))
        try:
            return call()
        except Timeout as error:
            self._clear(lib.KVT_OP_NOP)  # its answer tells the end of the stall
            ticket = self._new_ticket()
            if self._submit():
                self._pending[ticket] = since, 0
            raise Stalled(str(error), errno=error.errno) from None
        finally:
            lib.kvt_client_set_timeout(self._handle, self._stall.lost_ns)

    @_whole
    def is_stalled(self) -> bool:
        """Whether the daemon has not answered an operation that was asked with patience: another
        would wait, too. ConnectionLost."""
        if self._pending:
            self._reap()
        return bool(self._pending)

    @_whole
    def extend(self, lease: Lease, n: int) -> Optional[list[int]]:
        """n more private pages for a lease. None: no space."""
        pages = self._stock[-n:]
        if 0 < n == len(pages) and self._with_pages(lib.KVT_OP_EXTEND, lease, pages):
            del self._stock[-n:]
        else:
            request = self._clear(lib.KVT_OP_EXTEND, lease)
            request.flags, request.arg = _OWN_STREAM, n
            code, pages = self._call()
            if code and self._give_back():
                return self.extend(lease, n)
            if code:
                self._say_limit(code)
                return None
        self._fill()
        return pages

    def _commit(self, lease: Lease, computed: int, keys: Any, fence: Optional[Fence],
                flags: int) -> int:
        request = self._clear(lib.KVT_OP_COMMIT, lease, keys, fence)
        request.flags, request.arg = flags, computed
        return self._new_ticket()

    @_whole
    def commit(self, lease: Lease, computed: int, keys: Any, fence: Optional[Fence],
               chunked: bool, sides: Sequence[tuple[int, int, int]] = ()) -> int:
        """Publish [0, computed) at the fence. keys: those that the daemon does not have. sides: a
        page of pages() for each (index in the page table, kind), page 0 to drop what is there, or
        page SIDE_LET to let it go; not_taken() has those that the daemon did not take. Returns a
        ticket for reap(), 0: there was no room, nothing happened."""
        flags = _CHUNKED | _OWN_TABLE if chunked else _OWN_TABLE
        ticket = self._commit(lease, computed, keys, fence, flags)
        places = [(index * lib.KVT_MAX_SIDES + kind, page) for index, kind, page in sides]
        if places:
            named = ffi.new("struct kvt_side[]", places)
            self._request.n_sides, self._request.sides = len(places), named
        if not self._submit():
            return 0
        if places:
            self._given[ticket] = [page for _, _, page in sides if page not in (0, SIDE_LET)]
        return ticket

    @_whole
    def not_taken(self) -> list[int]:
        """Side pages of commits that were refused, or whose places were taken, since the last call:
        the caller's again."""
        self._reap()
        pages, self._not_taken = self._not_taken, []
        return pages

    @_whole
    def pages(self, n: int) -> Optional[list[int]]:
        """n private pages that are in no lease, until free(). None: no space for all."""
        if self._filling and n > len(self._stock):
            self._reap()
        short = n - len(self._stock)
        if short > 0:
            more = self._stock_size if self._busy and not self._filling else 0
            code = self._alloc(short + more)
            if code and more:
                code = self._alloc(short)
            if code:
                self._say_limit(code)
                return None
        kept = len(self._stock) - n
        taken, self._stock = self._stock[kept:], self._stock[:kept]
        self._fill()
        return taken

    def _alloc(self, n: int) -> int:
        """Add n pages to the stock. Returns 0, or why there is no space for them."""
        request = self._clear(lib.KVT_OP_ALLOC)
        request.flags, request.arg = _OWN_STREAM, n
        code, pages = self._call()
        self._stock += pages
        return code

    def page(self) -> Optional[int]:
        """One page, as of pages(). None: no space."""
        taken = self.pages(1)
        return None if taken is None else taken[0]

    @_whole
    def free(self, pages: Sequence[int], fence: Optional[Fence]) -> None:
        """Give pages of pages() back at the fence. The stock keeps what it lacks of them."""
        kept = 0
        if self._busy and not self._filling:
            kept = max(0, self._stock_size - len(self._stock))
            self._stock += pages[:kept]
            self._fence = fence or self._fence
        if len(pages) > kept:
            self._do(self._free, list(pages[kept:]), fence)

    def _free(self, pages: list[int], fence: Optional[Fence]) -> bool:
        return self._with_pages(lib.KVT_OP_FREE, (0, 0), pages, fence)

    @_whole
    def end(self, lease: Lease, fence: Optional[Fence], computed: int = 0,
            keys: Any = ()) -> None:
        """End a lease at the fence, after a last commit if computed > 0."""
        self._do(self._end, lease, fence, computed, keys)

    def _do(self, submit: Callable[..., bool], *arguments: Any) -> None:
        """Submit an operation: now if there is room, else when answers have come."""
        if self._late or not submit(*arguments):
            self._late.append((submit, arguments))

    def _submit_late(self) -> None:
        while self._late and self._late[0][0](*self._late[0][1]):
            self._late.popleft()

    def _end(self, lease: Lease, fence: Optional[Fence], computed: int, keys: Any) -> bool:
        request = self._clear(lib.KVT_OP_END, lease, keys, fence)
        if computed:
            request.flags, request.arg = lib.KVT_F_COMMIT, computed
        return self._submit()

    @_whole
    def reap(self) -> list[tuple[int, Error]]:
        """Take answers. Returns what was refused: the ticket of a commit, 0 for an end or a lease
        that was to be extended, and why."""
        self._reap()
        self._submit_late()
        refused, self._refused = self._refused, []
        return refused

    @property
    def damaged_pages(self) -> int:
        """How many cached pages were found damaged, from shared memory: while it is as before, no
        COMMIT is refused as "damaged". If the daemon is inside an operation, as at the last look;
        0 where it withholds its tree."""
        lib.kvt_counters_read(self._handle, self._counters)
        return int(self._counters.damaged_pages)

    @_whole
    def notice(self, ticket: int) -> Optional[int]:
        """The notice of a held-back BEGIN, or of fetch(). None: it has not come. Else begin, and wait
        at most so many ms for what others compute: 0 if that has taken too long."""
        self._reap()
        self._reap_fetched()
        return self._notices.pop(ticket, None)

    def give_up(self, ticket: int) -> None:
        """Want a notice no more, and end the lease of its BEGIN if that was answered late."""
        if not self._struck:
            self._give_up(ticket)

    @_whole
    def _give_up(self, ticket: int) -> None:
        if self._notices.pop(ticket, None) is None:
            self._given_up.add(ticket)
        begun = self._begun.pop(ticket, None)
        if begun is not None and begun.lease is not None:
            self.end(begun.lease, None)

    def retire(self, namespaces: Iterable[int], patience_s: float = 0.0) -> None:
        """Close namespaces that get no more BEGINs. Those that still have leases are tried again at
        the next call, as are all while the daemon does not answer within patience_s; 0: it waits."""
        retired = {*self._retired, *namespaces}
        self._retired = []
        if not self.client.closed:
            self._retired = [each for each in retired if not self.leave(each, patience_s)]

    def leave(self, namespace: int, patience_s: float = 0.0) -> bool:
        """Close a namespace. False: it has leases, or the daemon does not answer within patience_s; 0:
        it waits."""
        try:
            if patience_s and self._pending:
                return False
            close = functools.partial(self._close, namespace)
            return not (self.within(patience_s, close) if patience_s else close())
        except (Stalled, Timeout):
            return False

    def _close(self, namespace: int) -> bool:
        """Close a namespace that is open. True: it has leases, and stays. Timeout."""
        code = int(lib.kvt_namespace_close(self._handle, namespace))
        if code == -errno.ETIMEDOUT:
            raise self.client._failure(code)
        return code == -errno.EBUSY

    def keep(self, namespace: int) -> None:
        """Keep a retired namespace open: it gets BEGINs again."""
        if namespace in self._retired:
            self._retired.remove(namespace)

    @_whole
    def announce(self, busy: bool) -> None:
        """Say whether further calls follow soon: then the daemon spins for them. Takes effect with
        the next call. If none follow, give the stock back."""
        if busy != self._busy:
            self._busy = busy
            self.client.set_pace(self._pace_s if busy else 0.0)
        if not busy and self._stock:
            stock, self._stock = self._stock, []
            self._do(self._free, stock, self._fence)

    @property
    def owes(self) -> bool:
        """Whether answers that bring pages or a lease have still to come, or an operation waits for
        room: then call reap(), with requests or without."""
        return bool(self._filling or self._late or self._given or self._pending)

    @_whole
    def settle(self) -> None:
        """Wait until nothing is owed. Every fence of a commit with side pages must have been
        reached. ConnectionLost."""
        since = self._stall.now()
        self._submit_late()
        while self.owes:
            if self._next(_SLICE_NS, since):
                self._stall.answered()
                self._take_result()
            self._submit_late()


class Spaces:
    """Namespaces by name, which find() opens. The `most` last used ones stay open, or as many as the
    daemon has places for. It keeps the cached pages of closed ones until it needs their places."""

    def __init__(self, ring: Ring, opened: Callable[[Any], Namespace], most: int = 256,
                 patience_s: float = 0.0) -> None:
        """opened(name) opens one. patience_s: how long find() waits for that; 0: until the session is
        lost."""
        self._ring = ring
        self._patience_s = patience_s
        self._opened = opened
        self._most = most
        self._spaces: dict[Any, Namespace] = {}

    def find(self, name: Any) -> Namespace:
        """The namespace of a name. Its number may be another one's after the next find(). NoSpace,
        QuotaExceeded: all that are open have leases, or others need the places. Error, Stalled."""
        space = self._spaces.pop(name, None)
        if space is None:
            if len(self._spaces) >= self._most:
                oldest = next(iter(self._spaces))
                self._ring.retire([self._spaces.pop(oldest)._id], self._patience_s)
            try:
                space = self._open(name)
            except (NoSpace, QuotaExceeded):
                self._make_room()
                space = self._open(name)
            self._ring.keep(space._id)
        self._spaces[name] = space
        return space

    def _open(self, name: Any) -> Namespace:
        if self._patience_s:
            if self._ring.is_stalled():
                raise Stalled("the daemon has not answered what it was asked before")
            opened: Namespace = self._ring.within(self._patience_s, lambda: self._opened(name))
            return opened
        try:
            return self._opened(name)
        except Timeout as error:
            raise ConnectionLost(str(error), errno=error.errno) from None

    def _make_room(self) -> None:
        """Close the least recently used namespace that has no lease."""
        self._ring.retire([], self._patience_s)
        for name, space in self._spaces.items():
            if self._ring.leave(space._id, self._patience_s):
                del self._spaces[name]
                return

    def clear(self) -> None:
        """Close all namespaces: their names are not used again."""
        self._ring.retire([space._id for space in self._spaces.values()], self._patience_s)
        self._spaces.clear()


_REQUEST_BYTES = ffi.sizeof("struct kvt_request")
_ZERO = bytes(_REQUEST_BYTES)
