# SPDX-License-Identifier: Apache-2.0
"""Replaced parts of a running engine: each adapter has one table of them, `REPLACED` of its module
_replaced, which `doctor` and the adapter's document print."""
from __future__ import annotations

import functools
from typing import Any, Callable, Iterable, NamedTuple


class Replaced(NamedTuple):
    """One function, class, method, registry entry or setting of the engine."""

    what: str
    """Its dotted name."""
    why: str
    proof: str
    """The check that ends the engine's start if it was not replaced."""


def around(owner: Any, name: str, hook: Callable[..., Any]) -> None:
    """Have hook(original, ...) called in place of a function of the engine. A second call does
    nothing."""
    original = getattr(owner, name)
    if hasattr(original, "kvtrunk"):
        return

    @functools.wraps(original)
    def replaced(*args: Any, **kwargs: Any) -> Any:
        return hook(original, *args, **kwargs)

    setattr(replaced, "kvtrunk", True)
    setattr(owner, name, replaced)


def table(rows: Iterable[Replaced]) -> list[str]:
    """The table of replaced parts, as lines of Markdown."""
    return ["| replaced | why | what shows that it took |", "| --- | --- | --- |",
            *(f"| `{row.what}` | {row.why} | {row.proof} |" for row in rows)]
