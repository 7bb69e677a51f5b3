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

One thread. When the daemon is gone `lost` is set, and every call answers as a full pool would. If
the daemon only does not answer, admission waits PATIENCE_S: the request's BEGIN is held back until
the answer comes, and no other is sent meanwhile.

Every rank of an engine has a scheduler, and all must decide alike. So only rank 0 asks the daemon,
and the others read from the group's mirror what it saw (see()). Values that decide nothing, as a
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
    """A tree node of SGLang: a prefix in the tree, and the pages that continue it. The row of its
    request has the pages that are given; a page to check is page `committed`.

    Without a daemon's lease (`number` is None) it is a hint: `reusable` of a prompt are cached.
    """

    __slots__ = ("spare", "locks", "written", "computed", "looked", "__weakref__")
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
        """Fence after the last pass that computed a part of its prompt, on a device."""
        self.computed = 0
        """Positions of the last COMMIT, at first those that BEGIN found."""
        self.looked = 0
        """The ring's damaged_pages when the lease last asked whether one of its own is damaged."""


@dataclasses.dataclass(frozen=True)
class Reading:
    """One consistent reading, in pages."""

    free: int
    evictable: int
    others: int
    """Pages neither free nor evictable; those of this scheduler included."""
    inserted: int = 0
    """Pages that became cached since the daemon's start."""


class Leases:
    """All leases of a scheduler, on one connection."""

    def __init__(self, client: Client, n_ranks: int = 1, socket: Optional[str] = None) -> None:
        """socket: the daemon's, for messages."""
        self.warn = LimitedLog(logger.warning)
        self._n_ranks, self._socket = n_ranks, socket
        self._check_every = check_every()
        self._connect(client)
        self.follows = client.info.rank > 0
        """Whether this rank asks the daemon nothing, and does what rank 0 saw."""
        self.page_size = client.info.page_size
        self.n_pages = client.info.n_pages
        self.lost = False
        """The daemon is gone, with all leases."""
        self.spare = 0
        self.rows = 0
        self.held = 0
        """Pages of its requests, those of the tree that they read included."""
        self._readers = np.zeros(self.n_pages, np.uint32)
        """Number of leases here that have each page, by page."""
        self._stream = 0
        """The CUDA stream of forward passes. 0: none was queued so far, or there are none."""
        self._recorded: Optional[Fence] = None
        self._waiting: dict[str, int] = {}
        """Tickets of held-back requests, by request."""
        self._answered: dict[str, int] = {}
        """Tickets of requests that are held back no more, and may have begun, by request."""
        self._wait_ms: dict[str, int] = {}
        """Milliseconds that the next BEGIN of a request may wait, by request."""
        self._live: dict[tuple[int, int], Lease] = {}
        self.no_room = False
        """The last BEGIN found no room."""
        self._full: Optional[Reading] = None
        """The pool before that BEGIN, as rank 0 saw it."""
        self._min_positions = min_positions()
        self._damaged_pages = 0
        """The ring's damaged_pages before the last BEGIN."""
        self._found: list[tuple[int, int]] = []
        """Leases that read a damaged page, which any_damaged() has not noted yet."""

    def continue_with(self, client: Client) -> None:
        """Continue on the connection to a new daemon, which has no lease of the old one's."""
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
        """Whether requests continue on another daemon. With several ranks none can do so alone. On a
        device graphs are captured with addresses of the old daemon's memory."""
        return self._n_ranks == 1 and client.info.backend == "host"

    @property
    def idle(self) -> bool:
        """Whether no request holds anything."""
        return not self._live

    # ---- ranks

    def see(self, operation: Callable[..., Any], *arguments: Any, **more: Any) -> Any:
        """The result of rank 0's operation, None, a number or a tuple, on every rank. All call this
        in the same order. ConnectionLost: a rank is gone, or with several the daemon."""
        if self.follows:
            return marshal.loads(self.ring.client.mirror_read())
        value = operation(*arguments, **more)
        if self._n_ranks > 1:
            seen = tuple(value) if isinstance(value, tuple) else value
            self.ring.client.mirror_write(marshal.dumps(seen))
        return value

    # ---- devices

    def launched(self, stream: int, prompts: Iterable[Lease] = ()) -> None:
        """Note a forward pass queued on this CUDA stream, which touches pages of requests. Always the
        same stream: pages are given out again in its order. prompts: leases whose prompts it computes
        a part of; later passes write after that part."""
        self._stream, self._recorded = stream, None
        for lease in prompts:
            lease.written = self._fence()

    def _fence(self) -> Optional[Fence]:
        """A fence after all forward passes so far. All ranks call this in the same order: rank 0's
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
        """Mark the cached prefix of a prompt as used now: it is wanted soon. Does not wait."""
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
        """Whether the daemon has left a question without an answer: then ask no more."""
        return bool(self.see(self._try, self.ring.is_stalled))

    def fetch(self, request: str, namespace: Namespace, keys: Any) -> None:
        """Have a store load what the pool lacks of a prompt. If there is a store, the request is held
        back for its answer: only then begin() finds the pages that it loads announced."""
        ticket = self.see(self._try, self._fetch, namespace, keys)
        if ticket:
            self._waiting[request] = ticket

    def _fetch(self, namespace: Namespace, keys: Any) -> int:
        return self.ring.fetch(namespace._id, keys, namespace._root_key,
                               max(0, self._min_positions - 1))  # the last token has no key

    def begin(self, request: str, namespace: Namespace, keys: Any, positions: int, *,
              reuse: bool = True, ahead: int = 0) -> Optional[Lease]:
        """A lease for `positions`; the first len(keys) have keys. None: not now, because there is no
        room, or because its prefix is being computed or loaded (is_held_back()).

        If there are more positions than keys, it may reuse what is cached of all keys.
        reuse: False computes all of it, into pages of its own. ahead: positions after them that the
        lease needs to continue.
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
        lease.computed, lease.looked = begun.reusable, self._damaged_pages
        self._live[begun.lease] = lease
        self._hold(lease.pages)
        if self._check_every and lease.committed and lease.shared:
            self._maybe_check(lease)
        self._count(lease)
        return lease

    # ---- checks

    def _maybe_check(self, lease: Lease) -> None:
        """If a check is due, give the row a page of its own for the last one that it would reuse.
        The lease keeps the reused one."""
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
        """Drop the lease's check. why: logged."""
        if self.follows:
            lease.theirs = None
        else:
            lease.drop(self._checks, why)

    def _begin(self, ticket: int, namespace: Namespace, *arguments: Any, **more: Any) -> Begun:
        """Take the late answer of an earlier BEGIN, or begin. ticket: the earlier one's, or 0."""
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
        """Count n pages, not of the tree, that a row has no more."""
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
        lease.computed = computed
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
            ticket = self.ring.commit(lease.number, lease.computed, _EMPTY, None, True)
            if ticket:
                lease.commits.append(ticket)
                lease.looked = damaged_pages
        self.reap()
        found, self._found = tuple(self._found), []
        return found

    def unshare(self) -> None:
        """Publish nothing more of running requests: they began before a change. So did those whose
        BEGIN has a late answer: drop them."""
        for request in {*self._waiting, *self._answered}:
            self.forget(request)
        for lease in self._live.values():
            lease.shared = False
            self._drop(lease)

    # ---- sizes

    def reading(self) -> Reading:
        """The pool's page counts, from shared memory."""
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
        """Forget the notice and the late answer of a request that is gone."""
        for ticket in (self._waiting.pop(request, 0), self._answered.pop(request, 0)):
            if ticket and not self.follows:
                self.ring.give_up(ticket)
        self._wait_ms.pop(request, None)

    def _try(self, operation: Callable[..., Any], *arguments: Any, **more: Any) -> Any:
        """The operation's result. None: the daemon is gone, does not answer, or refused it, which is
        logged."""
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
