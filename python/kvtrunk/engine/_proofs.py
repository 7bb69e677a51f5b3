# SPDX-License-Identifier: Apache-2.0
"""Proofs that engines share pages without a mistake, and engines that no proof covers.

$XDG_CACHE_HOME/kvtrunk/proofs.json has what `prove` found right on this machine; each adapter has a
list of what `make check-engines` runs. A proof covers what ran. An engine that differs in a name of
made() (release, build of kvtrunk, device, driver, runner, graphs, warm-up, attention backend,
scheduling, layout, type, ranks) says at its start in which, and how to prove it.
"""
from __future__ import annotations

import ctypes
import functools
import hashlib
import json
import os
import pathlib
import re
import sys
import time
from typing import Any, Iterable, Mapping, Optional

from .. import version
from ._weights import cache_file, replace_file

PROVING = "KVTRUNK_PROVING"
"""Names the file to which an engine that is being proved writes what it computes with."""
REQUIRE = "KVTRUNK_REQUIRE_PROOF"
_MOST = 1000
_DRIVER = pathlib.Path("/sys/module/nvidia/version")
_PROC = pathlib.Path("/proc/driver/nvidia/version")
_NVML = "libnvidia-ml.so.1"
STAND_IN = "Stand-in"
"""Begins the name of a device that is none."""
UNKNOWN = "unknown"

Made = dict[str, Any]
"""Software and hardware that an engine computes with, by name: from made()."""


class Unproved(ValueError):
    """KVTRUNK_REQUIRE_PROOF is set, and there is no proof."""


@functools.cache
def build(package: pathlib.Path = pathlib.Path(__file__).parent.parent) -> str:
    """Which kvtrunk this is: version, commit, and a digest of the package's code."""
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*")):
        if path.suffix in (".py", ".so"):
            digest.update(f"{path.relative_to(package)}\0".encode() + path.read_bytes())
    try:
        commit = (package / "commit").read_text("utf-8").strip()
    except OSError:  # of no checkout
        commit = ""
    return " ".join(filter(None, [version(), commit, digest.hexdigest()[:12]]))


def _nvml_driver() -> str:
    text = ctypes.create_string_buffer(96)
    try:
        nvml = ctypes.CDLL(_NVML)
        if nvml.nvmlInit_v2() == 0:
            nvml.nvmlSystemGetDriverVersion(text, len(text))
            nvml.nvmlShutdown()
    except (OSError, AttributeError):  # there is none
        pass
    return text.value.decode("utf-8", "replace")


def driver() -> str:
    """NVIDIA's driver. A container may lack the first of three places that name it."""
    try:
        return _DRIVER.read_text("utf-8").strip()
    except OSError:
        pass
    try:
        found = re.search(r"Kernel Module.*?\s(\d+\.[\d.]+)", _PROC.read_text("utf-8"))
    except OSError:
        found = None
    return found[1] if found else _nvml_driver() or UNKNOWN


def made(engine: str, release: str, device: str, **more: Any) -> Made:
    """Software and hardware that an engine computes with. device: "cpu", or a device's name."""
    return {"engine": engine, "version": release, "kvtrunk": build(), "device": device,
            **({"driver": driver()} if device != "cpu" else {}), **more}


def unfit(this: Made) -> Optional[str]:
    """Why no proof of this is kept. None: it is."""
    if str(this["device"]).startswith(STAND_IN):
        return "its device is a stand-in"
    if this.get("driver") == UNKNOWN:
        return f"the device's driver is not known: {_DRIVER}, {_PROC} and {_NVML} do not name it"
    return None


def _nearest(this: Made, found: list[Made]) -> str:
    """Sentence on the most similar proof, by the names in which it differs. "": there is none."""
    proofs = [each for each in found if each.get("engine") == this["engine"]]
    if not proofs:
        return ""
    differences = [[name for name in {**this, **each} if this.get(name) != each.get(name)]
                   for each in proofs]
    names, proof = min(zip(differences, proofs), key=lambda pair: len(pair[0]))
    return "; the nearest proof is of " + ", ".join(
        f"{name} {proof.get(name, 'not noted')}" for name in names)


def check(this: Made, tested: Iterable[Mapping[str, Any]], options: str = "") -> Optional[str]:
    """The warning that an engine logs at its start, or None: `this` is proved or tested. tested: tested
    values of some names of `this`; a tuple has several. options: of `prove`, after the model.
    Unproved. For an engine under proof it notes `this` and returns None."""
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
    if this in found and unfit(this) is None:
        return None
    what = ", ".join(f"{name} {value}" for name, value in this.items())
    text = (f"that engines share pages without a mistake was not proved for {what}"
            f"{_nearest(this, found)}. Run `python -m kvtrunk.{this['engine']} prove MODEL"
            f"{options}` here{wrong}")
    if os.environ.get(REQUIRE, "0") not in ("", "0"):
        raise Unproved(f"{text}, or unset {REQUIRE}")
    return text


def add(this: Made) -> str:
    """Note a proof. Returns where. OSError: it cannot be written, or none of this is kept."""
    why = unfit(this)
    if why is not None:
        raise OSError(why)
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
