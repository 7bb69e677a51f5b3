# SPDX-License-Identifier: Apache-2.0
"""What was proved to share pages, and engines that compute with something else.

$XDG_CACHE_HOME/kvtrunk/proofs.json has what `prove` found right on this machine; each adapter has a
list of what `make check-engines` runs. An engine of another release, device, driver, attention
backend, layout, type or number of ranks says at its start how to prove it.
"""
from __future__ import annotations

import json
import os
import pathlib
import sys
import time
from typing import Any, Iterable, Mapping, Optional

from ._client import version
from ._weights import cache_file, replace_file

PROVING = "KVTRUNK_PROVING"
"""Names the file to which an engine that is being proved writes what it computes with."""
REQUIRE = "KVTRUNK_REQUIRE_PROOF"
_MOST = 1000
_DRIVER = pathlib.Path("/sys/module/nvidia/version")

Made = dict[str, Any]
"""What an engine computes with: from made()."""


class Unproved(ValueError):
    """KVTRUNK_REQUIRE_PROOF is set, and there is no proof."""


def made(engine: str, release: str, device: str, **more: Any) -> Made:
    """What an engine computes with. device: "cpu", or the name of a device."""
    driver = ""
    if device != "cpu":
        try:
            driver = _DRIVER.read_text("utf-8").strip()
        except OSError:
            driver = "unknown"
    return {"engine": engine, "version": release, "kvtrunk": version(), "device": device,
            **({"driver": driver} if driver else {}), **more}


def check(this: Made, tested: Iterable[Mapping[str, Any]]) -> Optional[str]:
    """What an engine is to log at its start, or None. tested: values that were, of some of the names
    of `this`; a tuple has several. Unproved. An engine that is being proved is not asked."""
    proving = os.environ.get(PROVING)
    if proving:
        with open(proving, "a", encoding="utf-8") as file:
            file.write(json.dumps(this) + "\n")
        return None
    for known in tested:
        if all(this.get(name) in (value if isinstance(value, tuple) else (value,))
               for name, value in known.items()):
            return None
    found, wrong = _read()
    if this in found:
        return None
    what = ", ".join(f"{name} {value}" for name, value in this.items())
    text = (f"that engines share pages without a mistake was not proved for {what}. Run `python -m "
            f"kvtrunk.{this['engine']} prove MODEL` here{wrong}")
    if os.environ.get(REQUIRE, "0") not in ("", "0"):
        raise Unproved(f"{text}, or unset {REQUIRE}")
    return text


def add(this: Made) -> str:
    """Note a proof. Returns where. OSError."""
    path = cache_file("proofs.json")
    found, wrong = _read()
    if wrong:
        print(f"prove{wrong}", file=sys.stderr)
    rest = [each for each in found if each != this]
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    entries = [*rest, this][-_MOST:]
    replace_file(path, json.dumps({"proofs": entries, "written": now}, indent=1))
    return str(path)


def _read() -> tuple[list[Made], str]:
    """All proofs of this machine, and what is wrong with their file."""
    path = cache_file("proofs.json")
    try:
        found = json.loads(path.read_text("utf-8"))["proofs"]
        if isinstance(found, list) and all(isinstance(each, dict) for each in found):
            return found, ""
    except FileNotFoundError:
        return [], ""
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return [], f" ({path} cannot be read as a list of proofs and counts as none)"
