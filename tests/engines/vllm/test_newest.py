# SPDX-License-Identifier: Apache-2.0
"""The newest release of vLLM for GPUs, which does not run here, has every name that is used."""
import os
import pathlib
import re
import subprocess
import sys
import zipfile

import pytest

from kvtrunk.vllm import compat


def test_the_newest_vllm_has_all_names():
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
    wheels = cache / "kvtrunk" / "engines" / "wheels"
    wheels.mkdir(parents=True, exist_ok=True)
    said = subprocess.run(
        [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--dest",
         str(wheels), *(f"--platform=manylinux_2_{minor}_x86_64" for minor in (35, 31, 28, 17)),
         "vllm"], capture_output=True, text=True, check=False)
    names = re.findall(r"vllm-[0-9][\w.+-]*\.whl", said.stdout)
    if said.returncode != 0 or not names:
        pytest.skip(f"the newest vllm cannot be downloaded: {said.stderr[-300:]}")
    wheel = wheels / names[-1]
    print(wheel.name)
    assert compat.problems(zipfile.Path(wheel, "vllm/")) == []
    for old in wheels.glob("vllm-*.whl"):
        if old != wheel:
            old.unlink()
