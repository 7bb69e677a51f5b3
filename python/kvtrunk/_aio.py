# SPDX-License-Identifier: Apache-2.0
"""Answers that coroutines wait for. They are the client's: no event loop owns one.

A call happens when it is made, and `await` only waits for its answer. The thread that takes an
answer from the ring, in any loop or any call on the client, has the sequence take it in first. Then
it wakes the waiter, if there is one. So a cancelled await, or a loop that ends, changes nothing but
who is told. Only a begin is given back when its waiter is gone.

Numbers of calls are the client's and are used once, so no answer reaches another call.
"""
from __future__ import annotations

import _thread
import asyncio
import collections
import contextlib
import errno
import itertools
import os
import time
import weakref
from typing import TYPE_CHECKING, Any, Callable, Generator, Optional

from ._errors import Error, InvalidArgument, from_result
from ._native import ffi, lib
from ._own import Got, Owner

if TYPE_CHECKING:
    from ._client import Client
    from ._seq import AsyncSequence

_EAGAIN, _EBUSY, _ENOSPC = -errno.EAGAIN, -errno.EBUSY, -errno.ENOSPC
_RETRY_S = 0.001
_LOST_S = 0.05  # between two looks at a daemon that hung up
_ASK_S = 0.01  # between two questions whether begins in the queue need to wait
_ASK_MOST = 8  # of them at a time
_KEEP_S = 0.05  # between two looks of the thread that gives back
_WAIT, _ANNOUNCED = lib.KVT_F_WAIT, lib.KVT_REASON_ANNOUNCED
_FULL, _SLOTS = lib.KVT_F_FULL, lib.KVT_REASON_SLOTS
_running_loop = asyncio._get_running_loop
_new, _CALL, _KEYS = ffi.new, ffi.typeof("struct kvtpy_call *"), ffi.typeof("uint32_t[]")


class Call:
    """One call: queued, in flight, or done. Class attributes are the defaults that most calls keep."""

    keys: Any = None
    """Holds the memory of the request's keys."""
    n_keys = 0
    """A begin's: number of its keys. A begin without pages is repeated with those that have slots."""
    got: Optional[Got] = None
    """A begin's: its sequence."""
    at = -1
    """Position of the first key. -1: there are none."""
    until = 0.0
    """A begin's: when it waits for others no longer."""
    ready = False
    """Whether own_keys() has run: then it may wait in the queue."""
    waits = False
    """A begin's: it is, or was, one of Answers._waits."""
    asked = False
    """Whether it is asked once more if it has to wait."""
    done = False
    value: Optional[AsyncSequence] = None
    error: Optional[BaseException] = None
    waiter: Optional[weakref.ref[asyncio.Future[None]]] = None
    """Future that wakes it. Its loop holds the future: when a loop ends, so do the waits in it."""
    abandoned = False
    """A begin's: whether its sequence is given back."""
    refused = False
    """Whether it failed before it was submitted, so that nothing happened."""

    def __init__(self, answers: Answers, keys: Any, sequence: Optional[AsyncSequence]) -> None:
        self._answers = answers
        self.number = answers.number()
        self.native = _new(_CALL)
        self.request = self.native.request
        if keys is not None:
            self.keys = keys
        self.sequence = sequence
        """None: a begin."""

    def __await__(self) -> Generator[Any, None, Optional[AsyncSequence]]:
        """Wait for the answer, in any loop. No coroutine: one that a signal's handler keeps from its
        first step warns that it was never awaited."""
        if not self.done:
            loop = asyncio.get_running_loop()
            future = loop.create_future()
            watch = self._answers.watch(loop)
            self.waiter = weakref.ref(future)
            watch.look_soon()
            if not self.done:  # again: another thread may have taken it before it saw the waiter
                watch.futures.add(future)
                try:
                    yield from future
                finally:
                    self.waiter = None  # it has heard
                    watch.futures.discard(future)
        if self.error is not None:
            raise self.error
        return self.value

    def abandon(self) -> None:
        """A begin's, when nothing waits for it any more."""
        self._answers.abandon(self)

    def wait(self, wait_ms: int) -> None:
        """A begin's: how long it may wait for others, from now on."""
        self.request.flags |= _WAIT
        self.request.ttl_ms = wait_ms
        self.until = time.monotonic() + wait_ms / 1000

    def own_keys(self) -> None:
        """Copy the keys, which the caller may change before there is room."""
        if self.keys is not None and not self.ready:
            request = self.request
            keys = _new(_KEYS, request.n_keys)
            ffi.memmove(keys, self.keys, 4 * request.n_keys)
            request.keys = self.keys = keys
        self.ready = True


    def has_slots(self, n_keys: int) -> bool:
        """A begin's, without pages: how many of its keys have slots. False: all, so that was not why
        it was refused. With FULL, since the keys that are left out follow. Twice: as once."""
        request = self.request
        if n_keys > request.n_keys:
            return False
        request.flags |= _FULL
        request.min_positions = min(request.min_positions, n_keys)
        request.n_keys = n_keys
        return True


class Answers(Owner):
    """The calls of one client that are not answered, and the loops that look for answers.

    Invariant: before a loop sleeps the client is armed. look() ends with that, and each other call
    on the client asks for a look().
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._next = 0  # even; numbers of Client.submit() are odd
        self._calls: dict[int, Call] = {}
        """Calls without an answer, by number."""
        self._queue: collections.deque[Call] = collections.deque()
        self._begins: collections.deque[Call] = collections.deque()
        self._waits: collections.deque[Call] = collections.deque()
        """Begins for which there is no room: they have to wait for others, or had none for long."""
        self._ask_at = 0.0  # when to ask next, and from which one of _waits
        self._ask_from = 0
        # By the loop's id. The loop holds the watch.
        self._watches: weakref.WeakValueDictionary[int, _Watch] = weakref.WeakValueDictionary()
        self._last: Callable[[], Optional[_Watch]] = _no_watch  # a reference to the last one asked for
        self._keeps = False

    # ---- calls

    def number(self) -> int:
        """A number for a call, used once. With the client's lock."""
        self._next += 2
        return self._next

    def queued(self, sequence: AsyncSequence) -> list[Call]:
        """The calls of a sequence that wait for room."""
        return [call for call in self._queue
                if call.sequence is sequence and not call.native.submitted]

    def start(self, call: Call) -> None:
        """Submit a call, or queue it until there is room. With the client's lock.

        A call is in the queue until C says that it was submitted. So a signal's handler that raises
        here does not lose it, nor submit it twice.

        Begins that wait may take half of the room. Beyond that, a begin is submitted without time to
        wait: one that has to is refused, and is then one of _waits.
        """
        begin = call.sequence is None
        queue = self._begins if begin else self._queue
        call.request.user_data = call.number  # a store was asked by another one
        self._calls[call.number] = call
        queue.append(call)
        first = queue[0] is call
        if first and not (begin and self._waits) and self._submit(call) == 0:
            queue.popleft()
        else:
            call.own_keys()
            if begin:
                call.request.ttl_ms = 0
                if first and self._submit(call) == 0:
                    queue.popleft()
        loop = _running_loop()
        if loop is not None and not call.done:
            self.watch(loop).look_soon()

    def abandon(self, begin: Call) -> None:
        """Give back what a begin got or will get. Its loop may have ended, so a thread does it. Takes
        no lock: a coroutine may end in any call."""
        begin.abandoned = True
        if begin.value is not None:
            begin.value._drop()
        if self._keeps or (begin.done and begin.value is None):
            return
        self._keeps = True
        with contextlib.suppress(RuntimeError):  # the interpreter ends
            _thread.start_new_thread(_keep, (weakref.ref(self._client),))

    def _submit(self, call: Call) -> int:
        """0: submitted, or refused, which is its answer. Else no room: EAGAIN, or for now none on
        its sequence: EBUSY."""
        got = ffi.NULL if call.sequence is None else call.sequence._got
        code: int = lib.kvtpy_submit(self._client._handle, got, call.native)
        if code in (0, _EAGAIN, _EBUSY):
            return code
        call.refused = True
        self._finish(call, None, self._client._failure(code))
        return 0

    def _submit_queued(self) -> None:
        queue = self._queue
        code = 0
        while queue and (code := self._submit_next(queue[0])) == 0:
            queue.popleft()
        if code == _EBUSY:
            self._submit_around()
        for begins in self._waits, self._begins:
            while begins and self._submit_begin(begins[0]):
                begins.popleft()
        if (self._waits or self._begins) and time.monotonic() >= self._ask_at:
            self._ask_again()

    def _ask_again(self) -> None:
        """Ask some of the begins for which there is no room whether they still have to wait."""
        self._ask_at = time.monotonic() + _ASK_S
        if self._begins:  # its keys may need more room than begins that wait leave
            self._wait(self._begins[0])
            self._begins.popleft()
        self._waits = collections.deque(call for call in self._waits if not call.done)
        at = self._ask_from if self._ask_from < len(self._waits) else 0
        self._ask_from = at + _ASK_MOST
        for call in list(itertools.islice(self._waits, at, at + _ASK_MOST)):
            if (call.ready and call.request.flags & _WAIT and
                    not (call.native.submitted or call.done or call.abandoned)):
                call.asked = True
                call.request.ttl_ms = 0
                self._submit(call)

    def _submit_around(self) -> None:
        """Submit the calls after one that has to wait for another one of its sequence."""
        stuck: set[Any] = set()
        full = False
        left = []
        for call in self._queue:
            sequence: Any = call.sequence
            code = _EAGAIN if full else _EBUSY if sequence in stuck else self._submit_next(call)
            if code != 0:
                full = code == _EAGAIN
                stuck.add(sequence)
                left.append(call)
        self._queue = collections.deque(left)

    def _submit_next(self, call: Call) -> int:
        """Submit a call that was queued."""
        if call.native.submitted:
            return 0
        if call.done:  # refused, and a signal's handler raised then
            self._finish(call, call.value, call.error)
            return 0
        sequence: Any = call.sequence
        if call.ready and (call.at < 0 or lib.kvt_seq_known(sequence._got.seq) == call.at):
            return self._submit(call)
        return self._skip(call)

    def _skip(self, call: Call) -> int:
        """The call before failed, and with it the place of these keys; or a signal's handler raised
        when the call was made."""
        sequence: Any = call.sequence
        request = call.request
        if request.op == lib.KVT_OP_END:
            code = lib.kvtpy_end_async(sequence._got, 0, ffi.NULL, 0, request.fence.slot,
                                       request.fence.value, 0)
            if code == _EAGAIN:
                return int(code)
        known = lib.kvt_seq_known(sequence._got.seq) if sequence._got.seq else call.at
        self._finish(call, None, InvalidArgument(
            f"an earlier call failed: its keys, from position {known} on, must be given again before "
            "those of this call", errno=errno.EINVAL))
        return 0

    def _submit_begin(self, call: Call) -> bool:
        """Submit a begin that was queued. False: no room."""
        if call.done:
            return True
        if call.native.submitted:
            return not call.asked
        if call.abandoned or not call.ready:
            self._finish(call, None, None)
            return True
        call.asked = False
        request = call.request
        if call.waits and request.flags & _WAIT:
            request.ttl_ms = max(0, int(1000 * (call.until - time.monotonic())))
            if not request.ttl_ms:
                request.flags &= ~_WAIT
        return self._submit(call) == 0

    def _wait(self, begin: Call) -> None:
        if not begin.waits:
            self._waits.append(begin)  # first: a signal's handler may raise, and this run twice
            begin.waits = True

    # ---- answers

    def answer(self, native: Any) -> bool:
        """Handle the batch's next answer. False: no call waits for it. With the client's lock."""
        client, call = self._client, self._calls.get(native.user_data)
        if call is None:
            return False
        if native.error == _EAGAIN and native.reason == _ANNOUNCED and not call.done:
            self._wait(call)
            call.native.submitted = False  # before the answer is gone: this may run twice
            lib.kvtpy_handled(client._handle, client._batch, ffi.NULL)
            return True
        if (native.error == _ENOSPC and native.reason == _SLOTS and not call.done and
                call.has_slots(native.available * client.info.page_size)):
            if call not in self._begins:
                self._begins.append(call)
            call.native.submitted = False  # as above
            lib.kvtpy_handled(client._handle, client._batch, ffi.NULL)
            return True
        if not call.done:
            value: Optional[AsyncSequence] = None
            error: Optional[BaseException] = from_result(native) if native.error else None
            if call.sequence is not None:
                call.sequence._answered()
                if error is None and call.request.op == lib.KVT_OP_END:
                    error = client._end_outcome(native, call.request.arg > 0)
            elif error is None:
                call.got = call.got or Got(client)
                code = lib.kvtpy_adopt(client._handle, client._batch, call.native, call.n_keys,
                                       call.got.native)
                if code == 0:
                    value = client._async_sequence(call.got)
                else:
                    error = client._failure(code)
            call.value, call.error = value, error
            call.done = True
        self._tell(call)
        left = call.got.native if call.got is not None and call.value is None else ffi.NULL
        lib.kvtpy_handled(client._handle, client._batch, left)
        self._calls.pop(call.number, None)
        return True

    def _finish(self, call: Call, value: Optional[AsyncSequence],
                error: Optional[BaseException]) -> None:
        call.value, call.error = value, error
        call.done = True
        self._tell(call)
        self._calls.pop(call.number, None)

    def _tell(self, call: Call) -> None:
        """Wake who waits for a call that is done. Twice: nothing more happens."""
        if call.waiter is not None:
            future = call.waiter()
            if future is None or not _wake(future):
                call.abandoned = True
        if call.abandoned and call.value is not None:
            call.value._drop()

    def take_all(self) -> bool:
        """Take answers, submit what waits for room, arm. True: more has come. With the client's
        lock."""
        client = self._client
        while client._take(client._handle, 0, 64) == 64:
            pass
        client._end_orphans()
        if self._queue or self._begins or self._waits:
            self._submit_queued()
        return client._check(lib.kvt_client_arm(client._handle)) > 0

    def waits(self) -> bool:
        """Whether a call is queued or in flight."""
        return bool(self._calls)

    def end(self, error: Error) -> None:
        """The client closes, or its session has ended: fail all calls. With the client's lock."""
        waiting = list(self._calls.values())
        self._queue.clear()
        self._begins.clear()
        self._waits.clear()
        watches = list(self._watches.values())
        self._watches.clear()
        self._last = _no_watch
        for watch in watches:
            watch.leave()
        for call in waiting:
            self._finish(call, None, error)

    # ---- loops

    def watch(self, loop: asyncio.AbstractEventLoop) -> _Watch:
        """The watch that wakes this loop, made at its first call. Called in the loop."""
        watch = self._last()
        if watch is None or watch.loop is not loop:
            watch = self._watches.get(id(loop))
            if watch is None:
                watch = self._watches[id(loop)] = _Watch(self, loop)
            self._last = weakref.ref(watch)
        return watch

    def look_later(self) -> None:
        """Any thread: a call on the client may take the wake-up that loops wait for."""
        for watch in list(self._watches.values()):
            watch.look_later()

    def look(self, watch: _Watch) -> None:
        """Take answers and wake waiters. Called in a loop."""
        client, locked = self._client, []  # type: ignore[var-annotated]
        try:
            # In one step: a signal's handler may raise after it.
            locked.extend(map(client._lock.acquire, (False,)))
            if not locked[0]:
                # A call on another thread waits: it must not stop the loop.
                watch.loop.call_later(_RETRY_S, watch.look_soon)
            elif client._handle is not None and self.take_all():
                watch.look_soon()
            if self._begins or self._waits:
                watch.look_in(_ASK_S)
        except Error as error:
            self.end(error)
        except BaseException:  # what a signal's handler raises
            watch.look_soon()
            raise
        finally:
            if locked and locked[0]:
                client._lock.release()

    def give_back(self) -> bool:
        """Take answers, to give back what cancelled calls got. False: nothing is left. With the
        client's lock."""
        client = self._client
        self._keeps = False  # first: abandon() may run meanwhile
        if client._handle is None:
            return False
        try:
            self.take_all()
        except Error as error:
            self.end(error)
        if client._orphans or any(call.abandoned for call in self._calls.values()):
            self._keeps = True
        return self._keeps


class _Watch:
    """A loop that wakes by the client's descriptors. It has copies of them: the client may close its
    own while the loop runs in another thread."""

    def __init__(self, answers: Answers, loop: asyncio.AbstractEventLoop) -> None:
        self._answers = answers
        self.loop = loop
        self.futures: set[asyncio.Future[None]] = set()
        """Futures that the loop's coroutines await."""
        self._soon = self._later = False
        handle = answers._client._handle
        self._fds = {"completion": lib.kvt_client_completion_fd(handle),
                     "control": lib.kvt_client_control_fd(handle)} if handle is not None else {}
        self._copies: dict[str, int] = {}
        for name in self._fds:
            self._add(name)

    def _add(self, name: str) -> None:
        copy = self._copies[name] = os.dup(self._fds[name])
        self.loop.add_reader(copy, self._woken if name == "completion" else self._hung_up)

    def _remove(self, name: str) -> None:
        copy = self._copies.pop(name, -1)
        if copy >= 0:
            if not self.loop.is_closed():
                self.loop.remove_reader(copy)
            os.close(copy)

    def _hung_up(self) -> None:
        """The daemon hung up, or said something. The library looks for a successor at each look, and
        puts its socket at the same number."""
        self._remove("control")
        self.look_soon()
        self.loop.call_later(_LOST_S, self._look_again)

    def _look_again(self) -> None:
        answers = self._answers
        if answers._watches.get(id(self.loop)) is self and answers._client._handle is not None:
            self._add("control")
            self.look_soon()

    def look_in(self, seconds: float) -> None:
        """Look once more, so much later."""
        if not self._later:
            self._later = True
            self.loop.call_later(seconds, self._look_now)

    def _look_now(self) -> None:
        self._later = False
        self.look_soon()

    def _woken(self) -> None:
        self._soon = False  # a signal's handler may have raised where _look() began
        self.look_soon()

    def look_soon(self) -> None:
        """Look once when the loop has run what is ready."""
        if not self._soon:
            self._soon = True
            self.loop.call_soon(self._look)

    def _look(self) -> None:
        self._soon = False
        self._answers.look(self)

    def look_later(self) -> None:
        """Any thread: look_soon() in the loop."""
        if not self._soon:
            _in_loop(self.loop, self.look_soon)

    def leave(self) -> None:
        """Any thread: watch no longer."""
        if self.loop.is_closed() or not _in_loop(self.loop, self._forget):
            self._forget()

    def _forget(self) -> None:
        for name in list(self._copies):
            self._remove(name)

    def __del__(self) -> None:
        for copy in getattr(self, "_copies", {}).values():
            os.close(copy)


def _no_watch() -> None:
    return None


def _in_loop(loop: asyncio.AbstractEventLoop, call: Any) -> bool:
    """Call it in that loop. False: that has ended."""
    if _running_loop() is loop:
        call()
        return True
    try:
        loop.call_soon_threadsafe(call)
    except RuntimeError:
        return False
    return True


def _wake(future: asyncio.Future[None]) -> bool:
    """Wake a waiter. False: its loop has ended."""
    loop = future.get_loop()
    if _running_loop() is loop:
        _settle(future)
        return True
    try:
        loop.call_soon_threadsafe(_settle, future)
    except RuntimeError:
        return False
    return True


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _keep(client_of: weakref.ref[Client]) -> None:
    """A thread that lives while a begin without a waiter is not given back: no loop may run, and
    nothing else may call the client."""
    left = True
    while left:
        time.sleep(_KEEP_S)
        client = client_of()
        if client is None or client._aio is None:
            return
        with client._lock:
            left = client._aio is not None and client._aio.give_back()
        del client
