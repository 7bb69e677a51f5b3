# SPDX-License-Identifier: Apache-2.0
"""The prompts of `prove`, and the judge of what engines answer.

Kernels may round otherwise when a prompt is read from the cache, or runs beside others. So the
engine without kvtrunk answers each prompt twice, cold and warm, or in two batches. These answers
give a floor: how many of its own texts differ, and by how much the logarithm of a token's
probability does, up to the first token that differs. Engines on the pool may not differ more. A
wrong page moves these logarithms far more than rounding does.
"""
from __future__ import annotations

import random
from typing import NamedTuple, Sequence

from ._server import Answer

LARGE = 0.7
"""A large prompt is such a part of the longest one."""
_SLACK = {"fp32": 1e-3, "fp16": 0.1, "bf16": 0.1}
"""Differences of logarithms of probabilities that are never a wrong page."""
_SLACK_MOST = 0.3
_NOISE = 4.0
"""Times the floor that is never a wrong page."""
_FEW = 3
"""So few texts may differ by chance in 16 bits, if their distances are small."""
_WORDS = ("blue kettle", "oak table", "garden lamp", "wool blanket", "copper wire", "paper clip",
          "rain coat", "desk fan", "tea tray", "door hinge", "steel bucket", "linen sheet")


class Size(NamedTuple):
    """How much to ask."""

    prompts: int
    positions: int
    """Positions of the longest prompt with its answer."""


def text_of(seed: int, n_characters: int) -> str:
    """A list of articles; equal seeds give equal texts."""
    chance = random.Random(seed)
    text = f"Price list {seed}.\n"
    while len(text) < n_characters:
        text += (f"{chance.choice(_WORDS)}, {chance.randrange(2, 99)} in stock, "
                 f"{chance.randrange(1, 500)}.{chance.randrange(10, 99)} each.\n")
    return text[:n_characters]


def distance(one: Answer, other: Answer) -> float:
    """The largest difference of logarithms of probabilities, up to the first other token."""
    worst = 0.0 if one.tokens and other.tokens else float("inf")
    for mine, theirs, p, q in zip(one.tokens, other.tokens, one.logprobs, other.logprobs):
        worst = max(worst, abs(p - q))
        if mine != theirs:
            break
    return worst


class Texts(NamedTuple):
    """Answers beside those of an engine without kvtrunk."""

    n: int
    equal: int
    distance: float

    @classmethod
    def of(cls, answers: Sequence[Answer], expected: Sequence[Answer]) -> Texts:
        """Compare them one by one."""
        return cls(len(answers), sum(a.tokens == b.tokens for a, b in zip(answers, expected)),
                   max(distance(a, b) for a, b in zip(answers, expected)))

    def worse(self, other: Texts) -> Texts:
        """The fewer equal, in proportion, and the larger distance."""
        low = min(self, other, key=lambda texts: texts.equal / texts.n)
        return Texts(low.n, low.equal, max(self.distance, other.distance))

    def within(self, floor: Texts, kv_type: str) -> bool:
        """Whether the engine alone differs from itself as much."""
        allowed = self.n * (floor.n - floor.equal) / floor.n
        if floor.distance > 0 and kv_type != "fp32":
            allowed += max(self.n // 4, _FEW)
        return (self.n - self.equal <= allowed and
                self.distance <= max(_NOISE * floor.distance, _SLACK.get(kv_type, _SLACK_MOST)))

    def __str__(self) -> str:
        return f"{self.equal} of {self.n} texts equal, distance {self.distance:.2g}"


def parting(tokens: Sequence[int], n_pages: int, page_size: int) -> list[list[int]]:
    """A path of so many pages, and prompts that part from it after each page but its last one, with
    a page of their own: of these tokens, at random. One that has a page and not the next tells the
    two from each other, which no prompt does that has both."""
    chance = random.Random(n_pages)
    path = chance.choices(tokens, k=n_pages * page_size + 1)
    found = [path]
    for at in range(page_size, (n_pages - 1) * page_size + 1, page_size):
        own = chance.choices([token for token in tokens if token != path[at]])
        found.append([*path[:at], *own, *chance.choices(tokens, k=page_size)])
    return found


class Prompts:
    """Prompts of a proof, for a tokenizer that makes a token of `characters` characters."""

    def __init__(self, size: Size, characters: float) -> None:
        def text(seed: int, parts: float) -> str:
            return text_of(seed, int(parts * size.positions * characters))

        heads = [text(seed, 0.25) for seed in range(max(1, size.prompts // 6))]
        self.common = [heads[i % len(heads)] + text(100 + i, 0.05) for i in range(size.prompts)]
        self.large = [[text(200 + 10 * engine + i, LARGE) for i in range(3)] for engine in range(2)]
        self.killed = [text(300 + i, LARGE) for i in range(4)]
