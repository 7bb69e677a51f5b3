# SPDX-License-Identifier: Apache-2.0
"""Leases of one scheduler: what its requests hold of the pool. Knows neither SGLang nor torch.

A request is admitted with a BEGIN that does not wait. Its answer is a Lease, whose pages are the
request's row; or "another engine computes this", and a notice follows; or there is no room. So a
lease owns every page that the scheduler has promised, and no allocation fails after admission.

Invariants, in pages:
    available = free pages of the pool + pages of leases that no row has yet ("spare")
    rows      = pages that requests' rows have and the tree does not
    protected = everything else that is not evictable
Their sum with the evictable pages is the pool, at any time: one reading of the counters serves all.

One thread. When the daemon is gone `lost` is set, and every call answers as a full pool would. One
that only does not answer is waited for PATIENCE_S, if a request is admitted: its BEGIN is held back
until the answer comes, and no other is sent meanwhile.

Every rank of an engine has a scheduler, and all must decide alike. So only rank 0 asks the daemon,
and the others read from the group's mirror what it saw (see()). What nothing is decided on, as a
reading for a log, each rank looks up by itself.
"""
from __future__ import annotations

import dataclasses
import logging
import marshal
from array import array
from typing import Any, Callable, Iterable, Optional

import numpy as np

from .. import Client, ConnectionLost, Error, Namespace, Stale, Timeout
from .._limited_log import LimitedLog
from .._seq import Fence
from ..engine import (LOST_S, WAIT_MS, Begun, Checks, Hold, Ring, Stall, Stalled, check_every,
                      min_positions)

logger = logging.getLogger(__name__)

PATIENCE_S = 0.1
"""How long admission waits for an answer. Requests that run need none."""
DECODE_POSITIONS = 64
"""Positions that a lease grows by when a generated token needs a page."""
_EMPTY = array("I")


class Lease(Hold):
    """What SGLang calls a tree node: a prefix in the tree, and the pages that continue it. The row of
    its request has the pages that are given; a page to check is page `committed`.

    Without a daemon's lease (`number` is None) it is a hint: `reusable` of a prompt are cached.
    """

    __slots__ = ("spare", "locks", "written", "told", "looked", "__weakref__")
    pages: array[int]

    def __init__(self, reusable: int = 0) -> None:
        super().__init__()
        self.pages = _EMPTY
        self.reusable = reusable
        self.spare = 0
        """Pages that no row has."""
        self.locks = 0
        """SGLang's locks; with the last one the lease ends."""
        self.written: Optional[Fence] = None
        """Behind the last pass that computed a part of its prompt, on a device."""
        self.told = 0
        """Positions of the last COMMIT."""
        self.looked = 0
        """How many pages were damaged when it was asked last whether one of its own is."""


@dataclasses.dataclass(frozen=True)
class Reading:
    """One consistent reading, in pages."""

    free: int
    evictable: int
    others: int
    """Neither free nor evictable; those of this scheduler included."""
    inserted: int = 0
    """That became cached since the daemon's start."""


class Leases:
    """All leases of a scheduler, on one connection."""

    def __init__(self, client: Client, n_ranks: int = 1, socket: Optional[str] = None) -> None:
        """socket: the daemon's, for messages."""
        self.warn = LimitedLog(logger.warning)
        self._n_ranks, self._socket = n_ranks, socket
        self._check_every = check_every()
        self._connect(client)
        self.follows = client.info.rank > 0
        """Whether it asks nothing, and does what rank 0 saw."""
        self.page_size = client.info.page_size
        self.n_pages = client.info.n_pages
        self.lost = False
        """The daemon is gone, and so is what it knew."""
        self.spare = 0
        self.rows = 0
        self.held = 0
        """Pages of its requests, those of the tree that they read included."""
        self._readers = np.zeros(self.n_pages, np.uint32)
        """Of each page: leases that have it."""
        self._stream = 0
        """The CUDA stream of forward passes. 0: none was queued so far, or there are none."""
        self._recorded: Optional[Fence] = None
        self._waiting: dict[str, int] = {}
        """Tickets of requests that are held back."""
        self._answered: dict[str, int] = {}
        """Tickets of those that are no more, and may have begun."""
        self._wait_ms: dict[str, int] = {}
        """How long their next BEGIN may wait."""
        self._live: dict[tuple[int, int], Lease] = {}
        self.no_room = False
        """The last BEGIN found no room."""
        self._full: Optional[Reading] = None
        """What the pool had before that, as rank 0 saw it."""
        self._min_positions = min_positions()
        self._damaged_pages = 0
        """Before the last BEGIN."""
        self._found: list[tuple[int, int]] = []
        """Leases that read a damaged page, and are not told."""

    def continue_with(self, client: Client) -> None:
        """The connection to a new daemon, which knows nothing of the old one's. Nothing is held."""
        self._connect(client)
        self.lost = False
        self._waiting.clear()
        self._answered.clear()
        self._wait_ms.clear()
        self._found.clear()

    def _connect(self, client: Client) -> None:
        # Where a lost session ends the engine, a daemon that does not answer is waited for.
        lost_s = LOST_S if self._survives(client) else None
        if client.info.rank == 0:
            client.set_timeout(lost_s)
        self.ring = Ring(client, warn=self.warn,
                         stall=Stall(self._socket, logger.warning, lost_s))
        # No session of this daemon's was checked so far.
        self._checks = Checks(self._check_every, self.warn)

    def _survives(self, client: Client) -> bool:
        """Whether requests continue on another daemon. No rank goes on, or begins with a new daemon,
        alone, and graphs are captured with addresses of the old one's device memory."""
        return self._n_ranks == 1 and client.info.backend == "host"

    @property
    def idle(self) -> bool:
        """Whether no request holds anything."""
        return not self._live

    # ---- ranks

    def see(self, operation: Callable[..., Any], *arguments: Any, **more: Any) -> Any:
        """What the operation of rank 0 returned, None, a number or a tuple, on every rank. All call
        this in the same order. ConnectionLost: a rank is gone, or with several the daemon."""
        if self.follows:
            return marshal.loads(self.ring.client.mirror_read())
        value = operation(*arguments, **more)
        if self._n_ranks > 1:
            seen = tuple(value) if isinstance(value, tuple) else value
            self.ring.client.mirror_write(marshal.dumps(seen))
        return value

    # ---- devices

    def launched(self, stream: int, prompts: Iterable[Lease] = ()) -> None:
        """A forward pass was queued on this CUDA stream, which touches pages that requests have.
        Always the same stream: pages are given out again in its order. prompts: leases of which it
        computes a part of the prompt. Later passes write behind that."""
        self._stream, self._recorded = stream, None
        for lease in prompts:
            lease.written = self._fence()

    def _fence(self) -> Optional[Fence]:
        """A fence behind all forward passes so far. All ranks call this in the same order: rank 0's
        operation waits for the streams of all."""
        if self._recorded is None and self._stream:
            try:
                self._recorded = self.ring.client.record_fence(self._stream)
            except ConnectionLost as error:
                self._lose(error)
        return self._recorded

    # ---- what requests do

    def probe(self, namespace: Namespace, keys: Any) -> int:
        """Positions of a prompt that are cached, without holding them."""
        if self.lost or not len(keys):
            return 0
        return int(self.see(self._probe, namespace, keys))

    def _probe(self, namespace: Namespace, keys: Any) -> int:
        try:
            return namespace.probe(keys).positions
        except ConnectionLost as error:
            self._lose(error)
        except Error:
            pass  # a hint only: too many races, or the tree is withheld
        return 0

    def touch(self, namespace: Namespace, keys: Any) -> None:
        """What is cached of a prompt is wanted soon. Does not wait."""
        if not self.follows:
            self._try(self.ring.touch, namespace._id, keys, namespace._root_key)

    def is_held_back(self, request: str) -> bool:
        """Whether others compute or load what this request needs, as of the last notice."""
        ticket = self._waiting.get(request, 0)
        wait_ms = self.see(self._try, self.ring.notice, ticket) if ticket else None
        if wait_ms is not None:
            self._answered[request] = self._waiting.pop(request)
            self._wait_ms[request] = wait_ms
        return request in self._waiting

    def is_stalled(self) -> bool:
        """Whether the daemon has not answered what was asked last: no more is asked now."""
        return bool(self.see(self._try, self.ring.is_stalled))

    def fetch(self, request: str, namespace: Namespace, keys: Any) -> None:
        """Have a store load what the pool lacks of a prompt. If there is one, the request is held back
        until the answer has come: only then begin() finds announced what is loaded."""
        ticket = self.see(self._try, self._fetch, namespace, keys)
        if ticket:
            self._waiting[request] = ticket

    def _fetch(self, namespace: Namespace, keys: Any) -> int:
        return self.ring.fetch(namespace._id, keys, namespace._root_key,
                               max(0, self._min_positions - 1))  # the last token has no key

    def begin(self, request: str, namespace: Namespace, keys: Any, positions: int, *,
              reuse: bool = True, ahead: int = 0) -> Optional[Lease]:
        """A lease for `positions`, the first len(keys) of which have keys. None: not now, because
        there is no room, or because its prefix is being computed or loaded (is_held_back()).

        If there are more positions than keys, it may reuse what is cached of all keys.
        reuse: False computes all of it, into pages of its own. ahead: positions behind them, without
        which it could not continue.
        """
        self.reap()
        self.no_room = False
        if self.lost:
            return None
        if positions < self._min_positions:
            keys = _EMPTY
        wait_ms = self._wait_ms.get(request, WAIT_MS) if len(keys) else 0
        for more in (max(DECODE_POSITIONS, ahead), ahead):
            answer = self.see(self._try, self._begin, self._answered.pop(request, 0), namespace, keys,
                              positions - len(keys) + more, force_miss=not reuse, wait_ms=wait_ms,
                              full=0 < len(keys) < positions, patience_s=PATIENCE_S,
                              min_positions=min(self._min_positions, len(keys)))
            if answer is None:
                return None
            begun = Begun(*answer)
            if begun.lease is not None or begun.ticket:
                break
        self.no_room = begun.lease is None and not begun.ticket
        if begun.lease is None:
            if begun.ticket:
                self._waiting[request] = begun.ticket
            return None
        self._wait_ms.pop(request, None)
        lease = Lease()
        lease.begin(begun, self.page_size)
        lease.pages = array("I", begun.pages)
        lease.given = lease.committed
        lease.shared = len(keys) > 0
        lease.told, lease.looked = begun.reusable, self._damaged_pages
        self._live[begun.lease] = lease
        self._hold(lease.pages)
        if self._check_every and lease.committed and lease.shared:
            self._maybe_check(lease)
        self._count(lease)
        return lease

    # ---- checks

    def _maybe_check(self, lease: Lease) -> None:
        """If a check is due, give the row a page of its own for the last one that it would reuse.
        The lease has that one all the same."""
        last = lease.committed - 1
        theirs = lease.pages[last]
        check = self.see(self._try, self._checks.replacement, self.ring, theirs)
        if check is not None:
            own, sealer = check
            lease.check(own, sealer, self.page_size)
            self._let([theirs])
            self._hold([own])
            lease.committed = lease.given = last

    def passed(self, lease: Lease) -> None:
        """The checked page is what this engine computes: commit() puts it into the row."""
        assert lease.theirs is not None
        lease.pages[lease.committed] = lease.theirs
        self._let([lease.own])
        self._hold([lease.theirs])
        lease.theirs = None

    def _drop(self, lease: Lease, why: str = "") -> None:
        """What the lease would check is not checked."""
        if self.follows:
            lease.theirs = None
        else:
            lease.drop(self._checks, why)

    def _begin(self, ticket: int, namespace: Namespace, *arguments: Any, **more: Any) -> Begun:
        """ticket: of an earlier one, which may have been answered late."""
        before, self._damaged_pages = self.reading(), self.ring.damaged_pages
        begun = self.ring.begun(ticket) or self.ring.begin(
            namespace._id, *arguments, root_key=namespace._root_key, **more)
        self._full = before if begun.lease is None and not begun.ticket else None
        return begun

    def still_full(self) -> bool:
        """Whether the last BEGIN found no room, and nothing in the pool has changed since."""
        return self.no_room and bool(self.see(lambda: self.reading() == self._full))

    def room(self, lease: Lease, positions: int) -> bool:
        """Have pages for `positions`, by EXTEND. False: the pool has none."""
        missing = -(-positions // self.page_size) - len(lease.pages)
        if missing <= 0:
            return True
        more = max(missing, -(-DECODE_POSITIONS // self.page_size))
        for n in (more, missing):
            pages = self.see(self._try, self.ring.extend, lease.number, n)
            if pages is not None:
                lease.pages.extend(pages)
                self._hold(pages)
                self._count(lease)
                return True
        return False

    def give(self, lease: Lease, positions: int) -> None:
        """The request's row now has `positions` of its lease."""
        pages = -(-positions // self.page_size)
        if pages > len(lease.pages):
            raise RuntimeError(f"a row of {positions} positions on {len(lease.pages)} pages: this is "
                               "a defect of kvtrunk.sglang, please report it")
        self.rows += pages - lease.given
        lease.given = pages
        self._count(lease)

    def take_back(self, n: int) -> None:
        """A row no more has n pages, which are not the tree's."""
        self.rows -= n

    def commit(self, lease: Lease, computed: int, keys: Any, *, last: bool) -> int:
        """Publish positions [0, computed) when the pass that computed them has ended; does not wait
        for it. keys: those from `lease.known` on. last: of the prompt. Returns the leading positions
        that are the tree's from then on.

        Pages that others sealed first stay this lease's, until its end: passes that are launched on
        them may be under way.
        """
        done = lease.committed * self.page_size
        if not lease.shared or lease.theirs is not None or computed < done + self.page_size:
            return done
        ticket = self.see(self._try, self.ring.commit, lease.number, computed, keys,
                          lease.written or self._fence(), not last)
        if not ticket:
            return done  # a later one, or the end, brings them
        pages = computed // self.page_size
        self.rows -= pages - lease.committed
        lease.published(ticket, pages, len(keys))
        lease.told = computed
        self._count(lease)
        return pages * self.page_size

    def end(self, lease: Lease, computed: int = 0, keys: Any = _EMPTY) -> None:
        """End, after a last commit if computed > 0. Does not wait. A second call does nothing."""
        if lease.number is None:
            return
        self.spare -= lease.spare
        lease.spare = 0
        self._let(lease.pages)
        if lease.theirs is not None or not lease.shared:
            computed, keys = 0, _EMPTY
        self._drop(lease, "its request ended before")
        if self._live.pop(lease.number, None) is not None and not self.lost:  # its daemon is there
            fence = self._fence()
            if not self.follows:  # rank 0 ends it
                self._try(lease.end, self.ring, fence, computed, keys)
        lease.number = None

    def any_damaged(self, leases: list[Lease]) -> bool:
        """Whether one of these, whose prompts are computed, is known to read a page that was written
        after it was sealed. Does not wait: without damage in the pool it is a look at shared memory,
        else a COMMIT of nothing more asks, and a later call knows."""
        for number in self.see(self._try, self._look, leases) or ():
            if number in self._live:
                self._live[number].damaged = True
        return any(lease.damaged for lease in leases)

    def _look(self, leases: list[Lease]) -> tuple[tuple[int, int], ...]:
        damaged_pages = self.ring.damaged_pages
        for lease in leases:
            if lease.looked == damaged_pages or lease.number is None:
                continue
            ticket = self.ring.commit(lease.number, lease.told, _EMPTY, None, True)
            if ticket:
                lease.commits.append(ticket)
                lease.looked = damaged_pages
        self.reap()
        found, self._found = tuple(self._found), []
        return found

    def unshare(self) -> None:
        """What runs publishes nothing more: it was computed before what comes now. What a late answer
        begins is of before, too."""
        for request in {*self._waiting, *self._answered}:
            self.forget(request)
        for lease in self._live.values():
            lease.shared = False
            self._drop(lease)

    # ---- sizes

    def reading(self) -> Reading:
        """What the pool has, from shared memory."""
        try:
            counters = self.ring.client.counters()
        except Error as error:
            if isinstance(error, ConnectionLost):
                self._lose(error)
            return Reading(0, 0, self.n_pages - 1)
        return Reading(counters["free_pages"], counters["evictable_pages"],
                       counters["protected_pages"] + counters["quarantined_pages"] +
                       counters["private_pages"], counters["inserted_pages"])

    # ---- inside

    def _hold(self, pages: Any) -> None:
        numbers = np.array(pages, np.int64)
        self.held += int(np.count_nonzero(self._readers[numbers] == 0))
        self._readers[numbers] += 1

    def _let(self, pages: Any) -> None:
        numbers = np.array(pages, np.int64)
        self._readers[numbers] -= 1
        self.held -= int(np.count_nonzero(self._readers[numbers] == 0))

    def reap(self) -> None:
        """Take the answers of COMMIT and END."""
        if self.follows:
            return
        for ticket, error in self._try(self.ring.reap) or ():
            if error.reason == "damaged":
                self._found += [number for number, lease in self._live.items()
                                if lease.commits[-1:] == [ticket]]
            self._say_why(error)

    def forget(self, request: str) -> None:
        """The request is gone."""
        for ticket in (self._waiting.pop(request, 0), self._answered.pop(request, 0)):
            if ticket and not self.follows:
                self.ring.give_up(ticket)
        self._wait_ms.pop(request, None)

    def _try(self, operation: Callable[..., Any], *arguments: Any, **more: Any) -> Any:
        """Its result; None: the daemon is gone, or it was refused, which is logged."""
        if self.lost:
            return None
        try:
            return operation(*arguments, **more)
        except (ConnectionLost, Timeout) as error:
            self._lose(error)
        except Stalled:
            pass
        except Error as error:
            self._say_why(error)
        return None

    def _say_why(self, error: Error) -> None:
        if not isinstance(error, Stale):  # its prefix was reset: nothing is amiss
            self.warn(str(error))

    def _lose(self, error: Error) -> None:
        if not self._survives(self.ring.client):
            raise error
        if not self.lost:
            self.lost = True
            logger.error("kvtrunk: the daemon is gone: %s", error)

    def _count(self, lease: Lease) -> None:
        spare = len(lease.pages) - max(lease.given, lease.committed)
        self.spare += spare - lease.spare
        lease.spare = spare
