# SPDX-License-Identifier: Apache-2.0
"""Objects that own something outside of Python."""
from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, NoReturn, Optional

from ._native import ffi, lib

if TYPE_CHECKING:
    from ._client import Client


class Owner:
    """Two copies would free what they own twice, so copies and pickles are refused."""

    __slots__ = ()

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError(f"a kvtrunk {type(self).__name__} can be neither copied nor pickled: it "
                        "owns what only this object may free; make another one")


class Got(Owner):
    """The result of an operation. It is made before the operation; C fills and empties it.

    A signal's handler may raise between any two bytecodes. The result is here then, and the next
    call on the client gives it back when the Got is gone.
    """

    __slots__ = ("client", "native", "tag", "left", "notice")

    def __init__(self, client: Client, tag: Any = None) -> None:
        self.client: Optional[Client] = client
        """None: the caller has the result."""
        self.tag = tag
        """The caller's."""
        self.notice = False
        """A BEGIN's with NO_WAIT: "not now" has a second answer."""
        self.left = ""
        """Says what its owner did not do, in a warning."""
        self.native = ffi.new("struct kvtpy_got *")

    def pages(self) -> memoryview:
        """A copy of the answer's pages, u32."""
        return words_of(self.native.answer.pages, self.native.answer.n_pages)

    def drop(self) -> bool:
        """Any thread, any call: give back what it has with the next call on the client. False:
        nothing."""
        client = self.client
        if client is None or client._handle is None or not lib.kvtpy_owns(self.native):
            return False
        client._orphans.append(self.native)
        client._slow = True
        return True

    def __del__(self) -> None:
        if not hasattr(self, "native"):
            return
        if not self.drop():
            lib.kvtpy_forget(self.native)
        elif self.left:
            warnings.warn(self.left, ResourceWarning, source=self)


def words_of(words: Any, n: int) -> memoryview:
    """A copy of n words."""
    return memoryview(bytes(ffi.buffer(words, 4 * n)) if n else b"").cast("I")
