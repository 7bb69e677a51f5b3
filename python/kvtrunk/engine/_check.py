# SPDX-License-Identifier: Apache-2.0
"""Spot checks: an engine computes a page that it could have reused, and compares.

The name of a namespace says what KV depends on; a check finds what the name missed, and pages that
were overwritten. The last reused page attends to all positions before it. So wrong weights, other
rope factors, a wrong type, a damaged page or a page of another prompt show in its K and V.

An engine asks Checks.replacement() after each BEGIN that reused pages. If a check is due, it gets a
private page in place of the last reused one, computes it, and calls compare() before it publishes
anything that follows. If the pages differ, it calls report() and shares nothing more under that
name.

The bounds. Equal kernels on equal shapes give equal bits. Another chunk, batch or thread count
changes the order of sums. Then each layer adds an error of some units of the type that it computes
in: half the distance from 1 to the next number. These errors are independent, so they grow with
the square root of the number of layers; storing K and V rounds once more. Per layer, for K and V:

    typical  median error / median value             <= 4    * (stored + computed * sqrt(layer + 1))
    largest  max of error / (value + rms of values)  <= 20   * (stored + computed * sqrt(layer + 1))
    gain     |error . value| / value . value         <= 0.75 * (computed + computed * sqrt(layer + 1))

The typical error shows other positions, rope factors or weights, the largest a damaged value, and
the gain another norm or scale: independent errors cancel in it. docs/identity.md has what noise and
faults measure.
"""
from __future__ import annotations

import logging
import math
import os
from typing import Any, Iterable, NamedTuple, Optional

from .. import Error
from .._limited_log import LimitedLog

logger = logging.getLogger(__name__)

EVERY = 1000
"""Default of `check_every`."""
VARIABLE = "KVTRUNK_CHECK_EVERY"

_TYPICAL, _LARGEST, _GAIN = 4.0, 20.0, 0.75
_TYPICAL_MOST, _LARGEST_MOST = 0.25, 0.5
"""No bound is above: this is no rounding."""
_ROUTED_LARGEST = 8.0
"""With experts: rounding may send a position to another one, which changes its values at will."""
_ROUTED_POSITIONS = 16
"""With experts and fewer positions in a page, such a position is a typical one."""
_FP8 = 2.0**-4
# fp32 adds up as it computes, over some thousand terms; the other types are added up in fp32.
_UNITS = {"float32": 2.0**-16, "bfloat16": 2.0**-8, "float16": 2.0**-11, "float8_e4m3fn": _FP8}
_TF32 = 2.0**-11
_SEALERS = 1 << 14


def check_every(option: Any = None) -> int:
    """How many reuses share one check, 0: none is made. From the engine's option, else from
    KVTRUNK_CHECK_EVERY, else 1,000. ValueError: not a number."""
    where, given = ("check_every", option) if option is not None else (
        VARIABLE, os.environ.get(VARIABLE, EVERY))
    try:
        every = int(given)
    except (TypeError, ValueError):
        every = -1
    if every < 0:
        raise ValueError(f"{where} is {given!r}: set it to a number of reuses, as 1000, or to 0 for "
                         "no checks")
    return every


class Checks:
    """Which reuses of one engine are checked: the first of what a session sealed, and then one in
    `every`. One thread."""

    def __init__(self, every: int, warn: Optional[LimitedLog] = None) -> None:
        self._every = every
        self._warn = warn or LimitedLog(logger.warning)
        self._reuses = 0
        self._checked: dict[int, None] = {}

    def due(self, client: Any, page: int) -> Optional[int]:
        """The sealer of a BEGIN's last reused page, if a check of it is due, else None. Call
        dropped() if the check is not made."""
        if not self._every:
            return None
        sealer: int = client.sealer(page)
        if sealer == client.info.sealer:
            return None
        self._reuses += 1
        if sealer in self._checked and self._reuses < self._every:
            return None
        self._reuses = 0
        self._checked[sealer] = None
        if len(self._checked) > _SEALERS:
            del self._checked[next(iter(self._checked))]
        return sealer

    def replacement(self, ring: Any, page: int) -> Optional[tuple[int, int]]:
        """If a check is due(), a private page in place of this one, and this one's sealer."""
        sealer = self.due(ring.client, page)
        if sealer is None:
            return None
        own: Optional[int] = ring.page()
        if own is None:
            self.dropped(sealer, "the pool had no page for it")
            return None
        return own, sealer

    def dropped(self, sealer: int, why: str = "") -> None:
        """A check that was due was not made: the next reuse is the first again. why: logged."""
        self._checked.pop(sealer, None)
        if why:
            self._warn(f"a spot check was not made, because {why}. The next reuse is checked")


class Finding(NamedTuple):
    """The largest error of a page. Findings of ranks and pages combine by max()."""

    excess: float
    """The error as a multiple of the bound; inf: a value is not finite."""
    layer: int
    part: str
    """"K" or "V"; "KV" if one plane holds both."""

    @property
    def differs(self) -> bool:
        """Whether it is no rounding."""
        return self.excess > 1

    def __str__(self) -> str:
        return f"{self.part} of layer {self.layer}, {self.excess:.3g} times the bound"


EQUAL = Finding(0.0, 0, "K")


class Bounds:
    """Bounds of a model's errors."""

    def __init__(self, computed: str, stored: str, positions: int, *, routed: bool = False,
                 quantised: bool = False, tf32: bool = False) -> None:
        """computed, stored: names of torch's types of the model and its KV. positions: of a page.
        routed: it has experts. quantised: its activations may be rounded to 8 bits. tf32: so may
        the factors of fp32 be to 11."""
        unit = _UNITS[computed]
        if tf32 and computed == "float32":
            unit = _TF32
        self._computed = max(unit, _FP8) if quantised else unit
        self._stored = _UNITS[stored]
        self._routed, self._few = routed, routed and positions < _ROUTED_POSITIONS
        self.stored = stored

    def of(self, layer: int) -> tuple[float, float, float]:
        """Bounds of the typical and the largest error, and of the gain."""
        depth = math.sqrt(layer + 1)
        unit = self._stored + self._computed * depth
        typical = min(_TYPICAL * unit, _TYPICAL_MOST)
        if self._routed and layer:
            return _LARGEST_MOST if self._few else typical, _ROUTED_LARGEST, _LARGEST_MOST
        return (typical, min(_LARGEST * unit, _LARGEST_MOST),
                min(_GAIN * self._computed * (1 + depth), _TYPICAL_MOST))


def compare(layers: Iterable[Iterable[tuple[Any, Any]]], bounds: Bounds) -> Finding:
    """The largest error of a page. layers: of each layer K and V, or the plane that holds both, each
    as two torch tensors of equal shape, what this engine computed and what was reused. Waits for
    the current stream, once."""
    import torch

    places, found = [], []
    for number, layer in enumerate(layers):
        parts = list(layer)
        for part, (mine, theirs) in zip(("K", "V") if len(parts) > 1 else ("KV",), parts):
            places.append((number, part))
            found.append(_excess(mine, theirs, bounds.of(number), bounds.stored))
    return max(Finding(excess, *place)
               for excess, place in zip(torch.stack(found).tolist(), places))


def _excess(mine: Any, theirs: Any, bounds: tuple[float, float, float], stored: str) -> Any:
    """The error of one K or V as a multiple of its bound: a tensor with one value."""
    import torch

    mine, theirs = (each.view(getattr(torch, stored)).float() for each in (mine, theirs))
    error, size, power = theirs - mine, mine.abs(), mine.square()
    typical = error.abs().median() / size.median()
    largest = (error.abs() / (size + power.mean().sqrt())).max()
    gain = (error * mine).sum().abs() / power.sum()
    worst = torch.stack([typical / bounds[0], largest / bounds[1], gain / bounds[2]])
    # Values that are not finite, or all zero in one page, end as inf or NaN.
    excess = worst.nan_to_num(nan=math.inf, posinf=math.inf).max()
    return torch.where((error == 0).all() & torch.isfinite(mine).all(), 0.0, excess)


def report(client: Any, page: int, finding: Finding) -> str:
    """Tell the daemon that a page is not what this engine computed. Returns what to log."""
    sealer = uncounted = ""
    try:
        session = client.suspect(page)
        sealer = f", which {f'session {session}' if session else 'a session that has ended'} sealed,"
    except Error as error:
        uncounted = f". The daemon did not count it: {error}"
    return (f"K and V of page {page}{sealer} are not what this engine computes: {finding}. It shares "
            "nothing more under this name. Compare weights and configuration of both engines "
            f"(kvtctl clients), then start the wrong one again{uncounted}")
