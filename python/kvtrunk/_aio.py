# SPDX-License-Identifier: Apache-2.0
"""Operations in an event loop: futures, and the completion descriptor that wakes it."""
from __future__ import annotations

import asyncio
import collections
import errno
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

from ._errors import Closed, Error, from_parts, from_result
from ._native import ffi, lib

if TYPE_CHECKING:
    from ._client import Client

_EAGAIN = -errno.EAGAIN
_RETRY_S = 0.001


class Answer(NamedTuple):
    """What sequences need of an answer."""

    lease: tuple[int, int]
    pages: bytes
    sides: bytes
    matched: int
    reusable: int
    announced: int
    shared: int
    next: int
    known: int
    flags: int
    reason: int
    n_keys: int


def current(client: Client, aio: Optional[Loop]) -> Loop:
    """The running loop's. RuntimeError: another loop uses the client."""
    loop = asyncio.get_running_loop()
    if aio is not None and aio.loop is loop:
        return aio
    if aio is not None and not aio.loop.is_closed() and aio.in_flight():
        raise RuntimeError("another event loop uses this client")
    if aio is not None:
        aio.close()
    return Loop(client, loop)


class Loop:
    """The futures of one client in one event loop.

    Invariants: each operation in flight has a future here, cancelled or not. Before the loop sleeps
    the client is armed: look() ends with that, and each other call on the client asks for a look().
    """

    def __init__(self, client: Client, loop: asyncio.AbstractEventLoop) -> None:
        self.client = client
        self.loop = loop
        self._futures: dict[int, tuple[Any, Any]] = {}
        self._queue: collections.deque[tuple[Any, Any, Any]] = collections.deque()
        self._next = 2
        self._looks = False
        self._fds = [lib.kvt_client_completion_fd(client._handle),
                     lib.kvt_client_control_fd(client._handle)]
        for fd in self._fds:
            loop.add_reader(fd, self.look_soon)

    def in_flight(self) -> bool:
        """Whether anything waits."""
        return bool(self._futures or self._queue)

    def close(self) -> None:
        """The client closes, or another loop takes over: fail what waits."""
        waiting = [future for future, _ in self._futures.values()]
        waiting += [future for _, future, _ in self._queue]
        self._futures.clear()
        self._queue.clear()
        if self.loop.is_closed():
            return
        for fd in self._fds:
            self.loop.remove_reader(fd)
        self._fail(waiting, Closed("the client was closed"))

    def _fail(self, waiting: list[Any], error: Error) -> None:
        for future in waiting:
            self._set(future, None, error)

    def call(self, request: Any, keep: Any) -> asyncio.Future[Answer]:
        """Submit; the future is the answer. `keep` holds the request's arrays."""
        future: asyncio.Future[Answer] = self.loop.create_future()
        with self.client._lock:
            handle = self.client._handle
            if handle is None:
                raise Closed("the client was closed")
            if self._queue or not self._submit(handle, request, future):
                self._queue.append((request, future, (_own_keys(request), keep)))
        self.look_soon()
        return future

    def _submit(self, handle: Any, request: Any, future: Any) -> bool:
        """With the client's lock. False: no room."""
        number = self._next
        request.user_data = number
        rc = lib.kvt_submit(handle, request)
        if rc == _EAGAIN:
            return False
        if rc != 0:
            if not future.done():
                future.set_exception(self.client._failure(rc))
            return True
        self._next = number + 2
        self._futures[number] = (future, request)
        return True

    def answer(self, native: Any) -> None:
        """Take one answer. With the client's lock."""
        future, request = self._futures.pop(native.user_data, (None, None))
        if future is None:
            return
        if future.done():
            if native.op == lib.KVT_OP_BEGIN and native.error == 0:
                self._end((native.lease.index, native.lease.generation))
            return
        if native.error:
            self._set(future, None, from_result(native))
            return
        pages = bytes(ffi.buffer(native.pages, 4 * native.n_pages)) if native.n_pages else b""
        sides = bytes(ffi.buffer(native.sides, 4 * native.n_sides)) if native.n_sides else b""
        answer = Answer((native.lease.index, native.lease.generation), pages, sides, native.matched,
                        native.reusable, native.announced, native.shared, native.next, native.known,
                        native.flags, native.reason, request.n_keys)
        self._set(future, answer, None)

    def _set(self, future: Any, answer: Optional[Answer], error: Optional[Error]) -> None:
        try:
            inside = asyncio.get_running_loop() is self.loop
        except RuntimeError:
            inside = False
        if inside:
            _settle(future, answer, error)
        else:
            self.loop.call_soon_threadsafe(_settle, future, answer, error)

    def _end(self, lease: tuple[int, int]) -> None:
        """End a lease that nothing waits for."""
        request = ffi.new("struct kvt_request *")
        request.op = lib.KVT_OP_END
        request.lease.index, request.lease.generation = lease
        self._give_back(request, None)

    def _free(self, pages: list[int]) -> None:
        """Free pages that nothing waits for."""
        request, numbers = ffi.new("struct kvt_request *"), ffi.new("uint32_t[]", pages)
        request.op, request.n_pages, request.pages = lib.KVT_OP_FREE, len(pages), numbers
        self._give_back(request, numbers)

    def _give_back(self, request: Any, keep: Any) -> None:
        request.fence.slot = lib.KVT_FENCE_IDLE
        future = self.loop.create_future()
        future.cancel()
        self._queue.append((request, future, keep))

    def look_later(self) -> None:
        """Any thread: a call on the client may take the wake-up that this loop waits for."""
        if self.in_flight() and not self._looks and not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self.look_soon)

    def look_soon(self) -> None:
        """Look once when the loop has run what is ready."""
        if not self._looks:
            self._looks = True
            self.loop.call_soon(self._look)

    def _look(self) -> None:
        self._looks = False
        if not self.client._lock.acquire(blocking=False):
            # A call on another thread waits: it must not stop the loop.
            self.loop.call_later(_RETRY_S, self.look_soon)
            return
        try:
            if self.client._handle is not None:
                self._take_all(self.client._handle)
        except Error as error:
            waiting = [future for future, _ in self._futures.values()]
            waiting += [future for _, future, _ in self._queue]
            self._futures.clear()
            self._queue.clear()
            for fd in self._fds:
                self.loop.remove_reader(fd)
            self._fds = []
            self._fail(waiting, error)
        finally:
            self.client._lock.release()

    def _take_all(self, handle: Any) -> None:
        """Take answers, submit what waits for room, arm. Again soon if more has come."""
        client = self.client
        for lease in client._take_lost():
            self._end(lease)
        while client._pages_lost:
            self._free(client._pages_lost.popleft())
        while client._take(handle, 0, 64) > 0:
            pass
        while self._queue:
            request, future, _ = self._queue[0]
            if future.cancelled() and request.op == lib.KVT_OP_BEGIN:
                self._queue.popleft()
                continue
            if not self._submit(handle, request, future):
                if not self._futures:
                    raise from_parts(_EAGAIN, 0, "no room in rings or areas")
                break
            self._queue.popleft()
        if client._check(lib.kvt_client_arm(handle)) > 0:
            self.look_soon()


def _own_keys(request: Any) -> Any:
    """A copy of a request's keys: the caller's may change before there is room."""
    if request.n_keys == 0:
        return None
    keys = ffi.new("uint32_t[]", request.n_keys)
    ffi.memmove(keys, request.keys, 4 * request.n_keys)
    request.keys = keys
    return keys


def _settle(future: Any, answer: Optional[Answer], error: Optional[Error]) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(answer)
