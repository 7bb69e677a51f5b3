# SPDX-License-Identifier: Apache-2.0
"""The newest release of an engine for GPUs, which does not run here."""
import os
import pathlib
import re
import subprocess
import sys
import zipfile

import pytest


def wheel(name):
    """Its wheel as a folder. Downloaded once; without a package index the test skips, and in a run
    with an end: what another project releases refuses no change here."""
    if "ENGINES_UNTIL" in os.environ:
        pytest.skip("make check-engines looks at the newest releases")
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
    wheels = cache / "kvtrunk" / "engines" / "wheels"
    wheels.mkdir(parents=True, exist_ok=True)
    said = subprocess.run(
        [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--dest",
         str(wheels), *(f"--platform=manylinux_2_{minor}_x86_64" for minor in range(45, 16, -1)),
         name], capture_output=True, text=True, check=False)
    names = re.findall(name + r"-[0-9][\w.+-]*\.whl", said.stdout)
    if said.returncode != 0 or not names:
        pytest.skip(f"the newest {name} cannot be downloaded: {said.stderr[-300:]}")
    found = wheels / names[-1]
    print(found.name)
    for old in wheels.glob(f"{name}-*.whl"):
        if old != found:
            old.unlink()
    return zipfile.Path(found)
