# SPDX-License-Identifier: Apache-2.0
"""Keys of typed prompts: vision-language models whose prompts have images, points and sizes of
regions beside text (Moondream, Kestrel). docs/engine-authors.md has an example.

A token is an int (text), an Image, a Coordinate or a Size. A text, a coordinate and a size have one
KV position, an image as many as it says.
"""
from __future__ import annotations

import bisect
import math
from array import array
from typing import Iterable, NamedTuple, Union

from ._keys import image_keys
from ._native import lib

BINS: int = lib.KVT_KEY_BINS
"""Number of bins of coordinates, widths and heights."""
_SMALLEST_LOG2 = -10


class Image(NamedTuple):
    """An image."""

    digest: tuple[int, int]
    """image_hash() of what the encoder sees."""
    positions: int = 730
    """KV positions, from 5 on."""


class Coordinate(NamedTuple):
    """A coordinate of a point, as a part of the image's width or height."""

    at: float

    @property
    def bin(self) -> int:
        """Bins of equal width over [0, 1]; bin n begins at n / BINS."""
        return min(int(_unit(self.at, "a coordinate") * BINS), BINS - 1)


class Size(NamedTuple):
    """Width and height of a region, as parts of the image's."""

    width: float
    height: float

    @property
    def bins(self) -> tuple[int, int]:
        """Bin n stands for 2^(10 n / (BINS - 1) - 10); smaller sizes are in bin 0."""
        return _exponential(self.width), _exponential(self.height)


Token = Union[int, Image, Coordinate, Size]


def _unit(value: float, what: str) -> float:
    if not 0 <= value <= 1:
        raise ValueError(f"{what} is {value}: it is from 0 to 1")
    return value


def _exponential(value: float) -> int:
    smallest = 2.0 ** _SMALLEST_LOG2
    log2 = math.log2(max(_unit(value, "a size"), smallest))
    return round((log2 - _SMALLEST_LOG2) / -_SMALLEST_LOG2 * (BINS - 1))


def _keys_of(token: Token) -> array[int]:
    if isinstance(token, Image):
        return image_keys(token.digest, token.positions)
    if isinstance(token, Coordinate):
        return array("I", [lib.KVT_KEY_COORDINATE | token.bin])
    if isinstance(token, Size):
        width, height = token.bins
        return array("I", [lib.KVT_KEY_SIZE | width << 10 | height])
    if not 0 <= token < 1 << 31:
        raise ValueError(f"a text token is from 0 to 2^31 - 1, not {token}")
    return array("I", [token])


class Prompt:
    """A typed prompt. ValueError: a token that has no key."""

    def __init__(self, tokens: Iterable[Token]) -> None:
        self.keys = array("I")
        """Keys for begin(), one a position."""
        self._ends = [0]
        for token in tokens:
            self.keys += _keys_of(token)
            self._ends.append(len(self.keys))

    def positions(self, n_tokens: int) -> int:
        """KV positions of the first tokens. IndexError: it has fewer."""
        return self._ends[n_tokens]

    def tokens(self, positions: int) -> int:
        """How many tokens the first positions hold whole. A match that ends inside an image is cut in
        front of it: positions(tokens(matched)) can be reused."""
        return bisect.bisect_right(self._ends, positions) - 1
