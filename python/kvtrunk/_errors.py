# SPDX-License-Identifier: Apache-2.0
"""Failures as classes. The texts are the library's, which name the cause and the cure; where the
cure is a call or an option, it is the one of this package."""
from __future__ import annotations

import errno as _errno
from typing import Any

from ._native import ffi, lib


class Error(Exception):
    """A call failed.

    errno: positive, as in the errno module. reason: the daemon's cause ("all_locked"), "none"
    without one. attach_state: why connecting failed ("no_socket"), "ok" for other calls.
    """

    def __init__(self, text: str, *, errno: int = 0, reason: str = "none",
                 attach_state: str = "ok", available: int = 0, needed: int = 0) -> None:
        super().__init__(text)
        self.errno = errno
        self.reason = reason
        self.attach_state = attach_state
        self.available = available
        self.needed = needed

    def __reduce__(self) -> Any:
        return (_rebuild, (type(self), str(self), self.errno, self.reason, self.attach_state,
                           self.available, self.needed))


class InvalidArgument(Error, ValueError):
    """EINVAL: an argument does not fit; nothing happened."""


class NoSpace(Error):
    """ENOSPC: not enough pages, nodes or namespaces; nothing happened. `needed` pages were asked
    for, `available` could have been had; both 0 if it is not about pages."""


class QuotaExceeded(Error):
    """EDQUOT: this session is at its limit, `needed`, or this user has too many sessions. `reason`
    "share": at its share beside other sessions, which grows when they give pages back."""


class Stale(Error):
    """ESTALE: the prefix was reset, removed or expired. A sequence continues with its pages, and
    shares nothing more; if `reason` is "damaged", what it computed is wrong: end it, begin again."""


class ConnectionLost(Error, ConnectionError):
    """ECONNRESET, or ESTALE of every call: the daemon ended, and no successor continues this session.
    Close and connect again."""


class Timeout(Error, TimeoutError):
    """ETIMEDOUT: the deadline passed. An operation that frees pages frees them all the same."""


class Again(Error):
    """EAGAIN, EBUSY: no room in rings or areas, or not now."""


class Suspended(Error):
    """ENXIO: the client is suspended, and the call needs the pool. Client.resume() first."""


class TooLarge(Error):
    """E2BIG, ENOBUFS: larger than the areas of the connection (keys_count, list_count)."""


class Unsupported(Error):
    """ENOTSUP, ENODATA, ENOTCONN: this pool, daemon or kind of connection has no such thing."""


class PermissionDenied(Error, PermissionError):
    """EACCES, EPERM."""


class DaemonUnreachable(Error, ConnectionError):
    """No daemon serves at this socket, or it starts or drains: see attach_state."""


class VersionMismatch(Error):
    """EPROTO: the daemon is of another version or layout."""


class GeometryMismatch(Error, ValueError):
    """The daemon's pages differ from what was named, or nothing was named."""


class Overflow(Error, OverflowError):
    """EOVERFLOW: a feed's records were overwritten before they were read: take a snapshot. Or a
    namespace's generation is at its end."""


class Forked(Error):
    """ECHILD: the client is the parent process's. Connect in this one."""


class Closed(Error, ValueError):
    """The client or the sequence has ended."""


_CLASSES: dict[int, type[Error]] = {
    _errno.EINVAL: InvalidArgument,
    _errno.ENOSPC: NoSpace,
    _errno.EDQUOT: QuotaExceeded,
    _errno.ESTALE: Stale,
    _errno.ECONNRESET: ConnectionLost,
    _errno.ETIMEDOUT: Timeout,
    _errno.EAGAIN: Again,
    _errno.EBUSY: Again,
    _errno.ENXIO: Suspended,
    _errno.E2BIG: TooLarge,
    _errno.ENOBUFS: TooLarge,
    _errno.ENOTSUP: Unsupported,
    _errno.ENODATA: Unsupported,
    _errno.ENOTCONN: Unsupported,
    _errno.EACCES: PermissionDenied,
    _errno.EPERM: PermissionDenied,
    _errno.EPROTO: VersionMismatch,
    _errno.ECHILD: Forked,
    _errno.EOVERFLOW: Overflow,
    _errno.ECONNREFUSED: DaemonUnreachable,
    _errno.ESHUTDOWN: DaemonUnreachable,
    _errno.EUSERS: QuotaExceeded,
}


def _rebuild(kind: type[Error], text: str, errno: int, reason: str, attach_state: str,
             available: int, needed: int) -> Error:
    return kind(text, errno=errno, reason=reason, attach_state=attach_state, available=available,
                needed=needed)


# Cures as the library's texts name them, and as they are here; longer ones first.
_CURES = (
    ("set options.geometry or options.fingerprint, or KVT_ANY_GEOMETRY if",
     "give connect() geometry or fingerprint, or any_geometry=True if"),
    ("map it without KVT_MAP_READ_ONLY", "map it with readonly=False"),
    ("build it with kvt_geometry_fingerprint()", "give connect() a geometry instead"),
    ("connect without KVT_HELLO_OBSERVE", "connect without observe=True"),
    ("with KVT_MIRROR in options.flags", "with mirror=True"),
    ("kvt_pool_map_cuda()", "Client.map_pool(device=N)"),
    ("kvt_pool_map()", "Client.map_pool()"),
    ("kvt_pool_view()", "Pool.layer()"),
    ("kvt_client_resume()", "Client.resume()"),
    ("kvt_stats()", "Client.call(Request(\"stats\"))"),
    ("kvt_group_open()", "Client.group()"),
    ("kvt_fence_forget()", "Client.forget_stream()"),
    ("set begin_wait_ns", "give connect() begin_wait"),
    ("kvt_submit()", "Client.submit()"),
)


def _text(pointer: Any) -> str:
    text = ffi.string(pointer).decode("utf-8", "replace")
    if "kvt_" in text or "KVT_" in text or "begin_wait_ns" in text:
        for ours, cure in _CURES:
            text = text.replace(ours, cure)
    return text


def from_parts(code: int, reason: int, text: str, *, attach_state: int = 0, available: int = 0,
               needed: int = 0, lost: bool = False) -> Error:
    """The exception for a negative errno. lost: the session has ended, whatever the errno."""
    kind = _CLASSES.get(-code, Error)
    if lost:
        kind = ConnectionLost
    if attach_state == lib.KVT_ATTACH_WRONG_GEOMETRY:
        kind = GeometryMismatch
    elif attach_state in (lib.KVT_ATTACH_STARTING, lib.KVT_ATTACH_NO_SOCKET):
        kind = DaemonUnreachable
    return kind(text, errno=-code, reason=_text(lib.kvt_reason_name(reason)),
                attach_state=_text(lib.kvt_attach_state_name(attach_state)), available=available,
                needed=needed)


def from_error(error: Any, code: int, attach: bool = False) -> Error:
    """The exception for a struct kvt_error, or for `code` alone if it does not describe it."""
    if error.code != code:
        return from_parts(code, 0, _text(lib.kvt_errno_name(code)))
    return from_parts(code, error.reason, _text(error.text),
                      attach_state=error.attach_state if attach else 0,
                      available=error.available, needed=error.needed,
                      lost=not attach and code == -_errno.ESTALE and
                      error.attach_state == lib.KVT_ATTACH_GONE)


def from_result(result: Any) -> Error:
    """The exception for a refused answer."""
    op = _text(lib.kvt_op_name(result.op))
    name = _text(lib.kvt_errno_name(result.error))
    text = f"{op}: {name}: {_text(lib.kvt_reason_text(result.reason))}"
    if result.error == -_errno.ENOSPC and result.needed:
        text += (f" ({result.needed} page{'' if result.needed == 1 else 's'} needed, "
                 f"{result.available} available)")
    return from_parts(result.error, result.reason, text, available=result.available,
                      needed=result.needed)
