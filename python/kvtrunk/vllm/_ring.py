# SPDX-License-Identifier: Apache-2.0
"""A session as a scheduler needs it: leases by number, nothing waits but BEGIN and EXTEND.

One thread uses it: that of the scheduler. All fences are in one fence word, which counts steps.
"""
from __future__ import annotations

import collections
import errno
from array import array
from typing import Any, NamedTuple, Optional

from .._client import Client, connect
from .._errors import ConnectionLost, Error, Stale, from_result
from .._native import ffi, lib

Lease = tuple[int, int]

STEP_WORD = 0
"""The fence word: the number of the last step whose output came."""
NOTICE_DEADLINE: int = lib.KVT_NOTICE_DEADLINE
_NO_SPACE = (-errno.ENOSPC, -errno.EDQUOT)
_REAP = 64
_CLOSE_S = 5.0
_PACE_S = 0.02


class Begun(NamedTuple):
    """BEGIN's answer. `lease` None: held back until notice `ticket` (above 0), or no space."""

    lease: Optional[Lease]
    pages: list[int]
    reusable: int
    matched: int
    ticket: int


class Ring:
    """Operations of one session."""

    def __init__(self, socket: Optional[str], label: str, requests: int, positions: int) -> None:
        """requests: how many are alive at a time, each with some operations in flight. positions:
        of the longest."""
        entries = 1 << max(8, (8 * requests - 1).bit_length())
        self.client: Client = connect(
            socket, label=label, any_geometry=True, sq_entries=min(entries, 1 << 12),
            cq_entries=min(2 * entries, 1 << 14),
            keys_count=max(1 << 20, 1 << (2 * positions - 1).bit_length()), connect_wait=0)
        self.info = self.client.info
        self._handle = self.client._handle
        self._request = ffi.new("struct kvt_request *")
        self._result = ffi.new("struct kvt_result *")
        self._many = ffi.new("struct kvt_result[]", _REAP)
        self._counters = ffi.new("struct kvt_counters *")
        self._busy = False
        self._ticket = 0
        self._notices: dict[int, int] = {}
        self._given_up: set[int] = set()
        self._refused: list[tuple[int, Error]] = []
        self._late: collections.deque[tuple[Lease, int]] = collections.deque()

    # ---- inside

    def _clear(self, op: int) -> Any:
        request = self._request
        ffi.memmove(request, _ZERO, _REQUEST_BYTES)
        request.op = op
        return request

    def _check(self, code: int) -> int:
        if code < 0:
            raise self.client._failure(code)
        return code

    def _submit(self) -> bool:
        """False: no room, even after taking answers."""
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
                answer = many[i]
                if answer.flags & lib.KVT_CQE_ASYNC:
                    self._notice(answer)
                elif answer.error and answer.op == lib.KVT_OP_COMMIT:
                    self._refused.append((answer.user_data, from_result(answer)))
                lib.kvt_result_release(handle, ffi.addressof(many, i))

    def _notice(self, answer: Any) -> None:
        if answer.user_data in self._given_up:
            self._given_up.discard(answer.user_data)
        else:
            self._notices[answer.user_data] = answer.state

    # ---- operations

    def begin(self, namespace: int, keys: array[int], extra: int, *, force_miss: bool,
              wait_ms: int) -> Begun:
        """Begin with pages for len(keys) + extra positions. wait_ms: how long at most to hold it
        back for what others compute of it; 0: not at all. ConnectionLost, Error."""
        request = self._clear(lib.KVT_OP_BEGIN)
        request.namespace_id, request.arg = namespace, extra
        if force_miss:
            request.flags = lib.KVT_F_FORCE_MISS
        elif wait_ms:
            request.flags, request.ttl_ms = lib.KVT_F_NO_WAIT, wait_ms
        if keys:
            request.n_keys, request.keys = len(keys), ffi.from_buffer("uint32_t[]", keys)
        self._ticket += 1
        request.user_data = ticket = self._ticket
        result = self._result
        code = lib.kvt_call(self._handle, request, result)
        if code == -errno.EAGAIN and result.reason == lib.KVT_REASON_ANNOUNCED:
            return Begun(None, [], 0, 0, ticket)
        if code in _NO_SPACE:
            return Begun(None, [], 0, 0, 0)
        self._check(code)
        pages = ffi.unpack(result.pages, result.n_pages) if result.n_pages else []
        begun = Begun((result.lease.index, result.lease.generation), pages, result.reusable,
                      result.matched, 0)
        lib.kvt_result_release(self._handle, result)
        return begun

    def extend(self, lease: Lease, n: int) -> Optional[list[int]]:
        """n more private pages for a lease. None: no space."""
        request = self._clear(lib.KVT_OP_EXTEND)
        request.arg = n
        request.lease.index, request.lease.generation = lease
        result = self._result
        code = lib.kvt_call(self._handle, request, result)
        if code in _NO_SPACE:
            return None
        self._check(code)
        pages: list[int] = ffi.unpack(result.pages, result.n_pages)
        lib.kvt_result_release(self._handle, result)
        return pages

    def commit(self, lease: Lease, computed: int, keys: Optional[array[int]], step: int,
               chunked: bool) -> int:
        """Publish [0, computed) when the step has ended. Returns a ticket for refused(), 0: there
        was no room, nothing happened."""
        request = self._clear(lib.KVT_OP_COMMIT)
        request.flags = lib.KVT_F_KEEP | (lib.KVT_F_CHUNKED if chunked else 0)
        request.arg = computed
        request.lease.index, request.lease.generation = lease
        if keys:
            request.n_keys, request.keys = len(keys), ffi.from_buffer("uint32_t[]", keys)
        request.fence.slot, request.fence.value = STEP_WORD, step
        self._ticket += 1
        request.user_data = self._ticket
        return self._ticket if self._submit() else 0

    def end(self, lease: Lease, step: int) -> None:
        """End a lease when the step has ended."""
        if self._late or not self._end(lease, step):
            self._late.append((lease, step))

    def _end(self, lease: Lease, step: int) -> bool:
        request = self._clear(lib.KVT_OP_END)
        request.lease.index, request.lease.generation = lease
        request.fence.slot, request.fence.value = STEP_WORD, step
        return self._submit()

    def reached(self, step: int) -> None:
        """All work up to this step has ended."""
        self._check(lib.kvt_fence_raise(self._handle, STEP_WORD, step))

    def reap(self) -> list[tuple[int, Error]]:
        """Take answers. Returns the refused commits: their tickets and why."""
        self._reap()
        while self._late and self._end(*self._late[0]):
            self._late.popleft()
        refused, self._refused = self._refused, []
        return refused

    def notice(self, ticket: int) -> int:
        """0: a held-back BEGIN is still to wait. Else enum kvt_notice: begin again."""
        self._reap()
        return self._notices.pop(ticket, 0)

    def give_up(self, ticket: int) -> None:
        """The notice is not wanted any more."""
        if self._notices.pop(ticket, None) is None:
            self._given_up.add(ticket)

    def announce(self, busy: bool) -> None:
        """Whether further calls follow soon: then the daemon spins for them. Takes effect with the
        next call."""
        if busy != self._busy:
            self._busy = busy
            self.client.set_pace(_PACE_S if busy else 0.0)

    def usage(self) -> float:
        """Share of the pool that no engine could get now: private, locked, quarantined."""
        counters = self._counters
        if lib.kvt_counters_read(self._handle, counters) != 0:
            self._check(lib.kvt_stats(self._handle, counters))
        held = counters.private_pages + counters.protected_pages + counters.quarantined_pages
        return float(held) / max(1, self.info.n_pages - 1)

    def lost(self) -> bool:
        """True if the daemon's session has ended."""
        try:
            self.client.check()
        except (ConnectionLost, Stale):
            return True
        return False

    def close(self, step: int) -> None:
        """End the session when the step has ended, which at the end of an engine may never come."""
        try:
            self.client.set_timeout(_CLOSE_S)
            self.client.close((STEP_WORD, step) if step else None)
        except (Error, BufferError):
            pass  # the daemon sees the end of the process


_REQUEST_BYTES = ffi.sizeof("struct kvt_request")
_ZERO = bytes(_REQUEST_BYTES)
