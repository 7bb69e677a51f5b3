# SPDX-License-Identifier: Apache-2.0
"""The newest release of an engine that kvtrunk knows, as a wheel for GPUs, whose compiled parts do
not run here. With ENGINES_NEWEST, `make check-newest`, the newest one of the package index."""
import os
import pathlib
import re
import subprocess
import sys
import zipfile

import pytest

from kvtrunk.engine._releases import RELEASES


def wheel(name):
    """Its wheel as a folder. Downloaded once; without a package index the test skips."""
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
    wheels = cache / "kvtrunk" / "engines" / "wheels"
    wheels.mkdir(parents=True, exist_ok=True)
    wanted = name if "ENGINES_NEWEST" in os.environ else f"{name}=={RELEASES[name].newest}"
    said = subprocess.run(
        [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--dest",
         str(wheels), *(f"--platform=manylinux_2_{minor}_x86_64" for minor in range(45, 16, -1)),
         wanted], capture_output=True, text=True, check=False)
    names = re.findall(name + r"-[0-9][\w.+-]*\.whl", said.stdout)
    if said.returncode != 0 or not names:
        pytest.skip(f"{wanted} cannot be downloaded: {said.stderr[-300:]}")
    found = wheels / names[-1]
    print(found.name)
    for old in wheels.glob(f"{name}-*.whl"):
        if old != found:
            old.unlink()
    return zipfile.Path(found)


def unpacked(found, folder):
    """The Python of a wheel in a folder for PYTHONPATH, as a build for CPUs: vLLM tells by its
    version, and imports what was compiled only where it computes."""
    with zipfile.ZipFile(found.root.filename) as packed:
        for name in packed.namelist():
            if name.endswith((".py", ".json", ".txt")) or ".dist-info/" in name:
                packed.extract(name, folder)
    metadata, = folder.glob("*.dist-info/METADATA")
    metadata.write_text(re.sub(r"(?m)^Version: ([\w.]+).*$", r"Version: \1+cpu",
                               metadata.read_text("utf-8"), count=1), "utf-8")
    return folder
