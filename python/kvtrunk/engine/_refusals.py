# SPDX-License-Identifier: Apache-2.0
"""Refusals at an engine's start, each in one sentence with what to do."""
from __future__ import annotations

from typing import Any, Callable, Iterable, NoReturn

from .. import Error


class Refused(Error, ValueError):
    """This engine cannot share its KV as it was started."""


def refuse(why: str) -> NoReturn:
    """End the start of the engine."""
    raise Refused(f"kvtrunk: {why}")


Rule = tuple[Callable[[Any], Any], str]
"""Finds in a configuration something that does not work; and why it does not. {} stands for what was
found."""


def check_rules(rules: Iterable[Rule], config: Any, begin: str = "kvtrunk: ") -> None:
    """Refused: by the first rule that finds something. begin: of the sentence."""
    for look, why in rules:
        found = look(config)
        if found:
            raise Refused(begin + why.replace("{}", str(found)))
