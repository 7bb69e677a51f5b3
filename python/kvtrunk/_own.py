# SPDX-License-Identifier: Apache-2.0
"""Objects that own something outside of Python."""
from __future__ import annotations

from typing import Any, NoReturn


class Owner:
    """Two copies would free what they own twice, so copies and pickles are refused."""

    __slots__ = ()

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError(f"a kvtrunk {type(self).__name__} can be neither copied nor pickled: it "
                        "owns what only this object may free; make another one")
