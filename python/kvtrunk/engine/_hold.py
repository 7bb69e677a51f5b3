# SPDX-License-Identifier: Apache-2.0
"""A request's hold on the pool, from BEGIN to END. An adapter adds what its engine has beside it."""
from __future__ import annotations

from typing import Any, MutableSequence, Optional

from .. import Error
from .._seq import Fence
from ._check import Checks
from ._ring import Begun, Lease, Ring


class Hold:
    """A lease, and how far the engine and the daemon are with it. Its methods ask the daemon for
    nothing, except end()."""

    __slots__ = ("number", "pages", "reusable", "given", "committed", "known", "commits", "shared",
                 "damaged", "own", "theirs", "sealer")

    def __init__(self) -> None:
        self.number: Optional[Lease] = None
        """Number of the lease. None: there is none."""
        self.pages: MutableSequence[int] = []
        """Page table of the lease."""
        self.reusable = 0
        """Positions that were cached at the beginning."""
        self.given = 0
        """Leading pages that the engine has."""
        self.committed = 0
        """Leading pages that are published, or will be at their fence."""
        self.known = 0
        """Positions whose keys the daemon has."""
        self.commits: list[int] = []
        """Tickets of its commits."""
        self.shared = True
        """Whether its pages may be published."""
        self.damaged = False
        """Whether a page that it reads is wrong: what follows it must be computed again."""
        self.own: Optional[int] = None
        """A private page in place of the last reused one, for a check of that one."""
        self.theirs: Optional[int] = None
        """The reused page to check. None: no check is due, or its outcome is known."""
        self.sealer = 0
        """The session that sealed `theirs`."""

    def begin(self, begun: Begun, page_size: int) -> None:
        """Take over the lease of a BEGIN."""
        self.number, self.pages, self.reusable = begun.lease, begun.pages, begun.reusable
        self.known = begun.known
        self.committed = begun.reusable // page_size

    def check(self, own: int, sealer: int, page_size: int) -> None:
        """Compute the last reused page again, into a page of Checks.replacement(). The lease keeps the
        reused one: its table in the daemon does not change."""
        last = self.committed - 1
        self.own, self.theirs, self.sealer = own, self.pages[last], sealer
        self.pages[last] = own
        self.reusable -= page_size

    def drop(self, checks: Checks, why: str = "") -> None:
        """The check is not made. why: logged."""
        if self.theirs is not None:
            self.theirs = None
            checks.dropped(self.sealer, why)

    def published(self, ticket: int, pages: int, n_keys: int) -> None:
        """A COMMIT of so many leading pages was sent, with the next n_keys keys."""
        self.commits.append(ticket)
        self.committed = pages
        self.known += n_keys

    def refused(self, ticket: int, why: Error) -> bool:
        """Note that the daemon refused a COMMIT. True: it was this hold's, which publishes no more."""
        if ticket not in self.commits:
            return False
        self.shared = False
        self.damaged = self.damaged or why.reason == "damaged"
        return True

    def end(self, ring: Ring, fence: Optional[Fence], computed: int = 0, keys: Any = ()) -> None:
        """End the lease at the fence, after a last commit if computed > 0, and free the own page."""
        assert self.number is not None
        number, self.number = self.number, None
        ring.end(number, fence, computed, keys)
        if self.own is not None:
            ring.free([self.own], fence)
