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

One thread. When the daemon is gone `lost` is set, and every call answers as a full pool would.
"""
from __future__ import annotations

import dataclasses
import logging
import time
from array import array
from typing import Any, Callable, Optional

from .. import Client, ConnectionLost, Error, Namespace, NoSpace, QuotaExceeded, Request, Stale
from .._native import lib

logger = logging.getLogger(__name__)

WAIT_SECONDS = 30.0
"""How long a request is held back for what another engine computes of it."""
DECODE_POSITIONS = 64
"""Positions that a lease grows by when a generated token needs a page."""
_EMPTY = array("I")


class Lease:
    """What SGLang calls a tree node: a prefix in the tree, and the pages that continue it.

    Without a daemon's lease (`number` is None) it is a hint: `positions` of a prompt are cached.
    """

    __slots__ = ("number", "pages", "positions", "cached", "given", "known", "spare", "locks",
                 "shared", "__weakref__")

    def __init__(self, positions: int = 0) -> None:
        self.number: Optional[tuple[int, int]] = None
        self.pages = _EMPTY
        """Page table."""
        self.positions = positions
        """Positions that were cached when it began."""
        self.cached = 0
        """Leading pages that the tree has: read only."""
        self.given = 0
        """Leading pages that the request's row has."""
        self.known = 0
        """Positions whose keys the daemon has."""
        self.spare = 0
        """Pages that no row has."""
        self.locks = 0
        """SGLang's locks; with the last one the lease ends."""
        self.shared = True
        """False: it publishes nothing (more)."""


@dataclasses.dataclass(frozen=True)
class Reading:
    """One consistent reading, in pages."""

    free: int
    evictable: int
    others: int
    """Neither free nor evictable; those of this scheduler included."""


class Leases:
    """All leases of a scheduler, on one connection."""

    def __init__(self, client: Client, record_fence: Optional[Callable[[], Any]] = None) -> None:
        self.client = client
        self.page_size = client.info.page_size
        self.n_pages = client.info.n_pages
        self.lost = False
        """The daemon is gone, and so is what it knew."""
        self.spare = 0
        self.rows = 0
        self._fence = record_fence or (lambda: None)
        self._waiting: dict[str, float] = {}
        self._late: set[str] = set()
        self._said = ("", 0.0)
        self._live: dict[tuple[int, int], Lease] = {}

    def continue_with(self, client: Client) -> None:
        """The connection to a new daemon, which knows nothing of the old one's. Nothing is held."""
        self.client = client
        self.lost = False
        self._waiting.clear()
        self._late.clear()

    @property
    def idle(self) -> bool:
        """Whether no request holds anything."""
        return not self._live

    # ---- what requests do

    def probe(self, namespace: Namespace, keys: Any) -> int:
        """Positions of a prompt that are cached, without holding them."""
        if self.lost or not len(keys):
            return 0
        try:
            return namespace.probe(keys).positions
        except ConnectionLost as error:
            self._lose(error)
        except Error:
            pass  # a hint only: too many races, or the tree is withheld
        return 0

    def is_held_back(self, request: str) -> bool:
        """Whether another lease computes what this request needs, as of the last notice."""
        if request not in self._waiting:
            return False
        self.reap()
        return request in self._waiting

    def begin(self, request: str, namespace: Namespace, keys: Any, positions: int, *,
              reuse: bool = True) -> Optional[Lease]:
        """A lease for `positions`, the first len(keys) of which have keys. None: not now, because
        there is no room, or because its prefix is being computed (is_held_back()).

        reuse: False computes all of it, into pages of its own.
        """
        self.reap()
        if self.lost:
            return None
        flags = 0 if reuse else lib.KVT_F_FORCE_MISS
        ttl = 0.0
        if reuse and len(keys) and request not in self._late:
            flags, ttl = flags | lib.KVT_F_NO_WAIT, WAIT_SECONDS * 1000
        extra = positions - len(keys)
        for more in (DECODE_POSITIONS, 0):
            answer = self._call(Request("begin", namespace=namespace, keys=keys, arg=extra + more,
                                        flags=flags, ttl=ttl, tag=request))
            if answer is None or not isinstance(answer.error, (NoSpace, QuotaExceeded)):
                break
        if answer is None:
            return None
        if answer.error is not None:
            if answer.error.reason == "announced":
                self._waiting[request] = time.monotonic() + WAIT_SECONDS
            elif not isinstance(answer.error, (NoSpace, QuotaExceeded)):
                self.say(f"requests wait: {answer.error}")
            return None
        self._late.discard(request)
        lease = Lease(answer.reusable)
        lease.number = answer.lease
        lease.pages = array("I", answer.pages)
        lease.cached = lease.given = answer.reusable // self.page_size
        lease.known = len(keys)
        lease.shared = len(keys) > 0
        self._live[answer.lease] = lease
        self._count(lease)
        return lease

    def room(self, lease: Lease, positions: int) -> bool:
        """Have pages for `positions`, by EXTEND. False: the pool has none."""
        missing = -(-positions // self.page_size) - len(lease.pages)
        if missing <= 0:
            return True
        more = max(missing, -(-DECODE_POSITIONS // self.page_size))
        for n in (more, missing):
            answer = self._call(Request("extend", lease=lease.number, arg=n))
            if answer is None:
                return False
            if answer.error is None:
                lease.pages.extend(answer.pages)
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
        """Publish positions [0, computed). keys: those from `lease.known` on. last: of the prompt.
        Returns the leading positions that are the tree's now.

        Before the last commit pages that others sealed first stay this lease's, until its end: the
        next chunk may have been launched on them.
        """
        done = lease.cached * self.page_size
        if not lease.shared or computed < done + self.page_size:
            return done
        answer = self._call(Request(
            "commit", lease=lease.number, arg=computed, keys=keys if len(keys) else None,
            flags=0 if last else lib.KVT_F_CHUNKED | lib.KVT_F_KEEP, fence=self._fence()))
        if answer is None or isinstance(answer.error, Stale):
            lease.shared = False  # its pages stay as they are, and its own
            return done
        if answer.error is not None:
            self.say(f"a prefix is not shared: {answer.error}")
            return done
        lease.known = answer.known
        pages = computed // self.page_size
        lease.pages[:pages] = array("I", answer.pages[:pages])
        self.rows -= pages - lease.cached
        lease.cached = pages
        self._count(lease)
        return pages * self.page_size

    def end(self, lease: Lease, computed: int = 0, keys: Any = _EMPTY) -> None:
        """End, after a last commit if computed > 0. Does not wait. A second call does nothing."""
        number, lease.number = lease.number, None
        if number is None:
            return
        self.spare -= lease.spare
        lease.spare = 0
        if self._live.pop(number, None) is None or self.lost:
            return  # of a daemon that is gone
        if computed and lease.shared:
            request = Request("end", lease=number, arg=computed, keys=keys if len(keys) else None,
                              flags=lib.KVT_F_COMMIT, fence=self._fence())
        else:
            request = Request("end", lease=number, fence=self._fence())
        try:
            while not self.client.submit([request]):
                for answer in self.client.reap(min=1):
                    self._note(answer)
        except ConnectionLost as error:
            self._lose(error)

    def unshare(self) -> None:
        """What runs publishes nothing more: it was computed before what comes now."""
        for lease in self._live.values():
            lease.shared = False

    # ---- sizes

    def reading(self) -> Reading:
        """What the pool has, from shared memory."""
        try:
            counters = self.client.counters()
        except Error as error:
            if isinstance(error, ConnectionLost):
                self._lose(error)
            return Reading(0, 0, self.n_pages - 1)
        return Reading(counters["free_pages"], counters["evictable_pages"],
                       counters["protected_pages"] + counters["quarantined_pages"] +
                       counters["private_pages"])

    # ---- inside

    def reap(self) -> None:
        """Take notices and the answers of END."""
        if self.lost:
            return
        try:
            for answer in self.client.reap():
                self._note(answer)
        except ConnectionLost as error:
            self._lose(error)
        if self._waiting:
            now = time.monotonic()
            for request in [name for name, end in self._waiting.items() if end + 1 < now]:
                self._forget(request, late=True)

    def forget(self, request: str) -> None:
        """The request is gone."""
        self._forget(request, late=False)
        self._late.discard(request)

    def _forget(self, request: str, late: bool) -> None:
        self._waiting.pop(request, None)
        if late:
            self._late.add(request)

    def _note(self, answer: Any) -> None:
        if answer.notice:
            self._forget(answer.tag, late=answer.state == lib.KVT_NOTICE_DEADLINE)
        elif answer.error is not None and not isinstance(answer.error, Stale):
            self.say(str(answer.error))

    def _call(self, request: Request) -> Any:
        """The answer; None: the daemon is gone."""
        if self.lost:
            return None
        try:
            return self.client.call(request)
        except ConnectionLost as error:
            self._lose(error)
            return None

    def say(self, text: str) -> None:
        """Log, but not the same thing again within 10 s: a scheduler asks at every step."""
        now = time.monotonic()
        if text != self._said[0] or now > self._said[1] + 10:
            self._said = (text, now)
            logger.warning("kvtrunk: %s", text)

    def _lose(self, error: Error) -> None:
        if not self.lost:
            self.lost = True
            logger.error("kvtrunk: the daemon is gone: %s", error)

    def _count(self, lease: Lease) -> None:
        spare = len(lease.pages) - max(lease.given, lease.cached)
        self.spare += spare - lease.spare
        lease.spare = spare
