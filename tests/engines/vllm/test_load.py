# SPDX-License-Identifier: Apache-2.0
"""bench/engines.py measures whole engines."""
import pathlib
import subprocess
import sys

from conftest import SERVE

BENCH = pathlib.Path(__file__).resolve().parents[3] / "bench/engines.py"
SIZES = {"requests": 4, "rate": 100, "head": 128, "new": 40, "answer": 8}


def test_two_engines_on_one_pool_have_a_row(folder, tmp_path):
    sizes = [word for name, value in SIZES.items() for word in (f"--{name}", str(value))]
    said = subprocess.run(
        [sys.executable, BENCH, "vllm", folder, "--pool-bytes", "16M", "--configurations", "shared",
         "--loads", "common", "--logs", tmp_path, *sizes, "--", *SERVE, "--max-model-len", "2048"],
        check=True, capture_output=True, text=True).stdout
    header, _, row = (line.strip("| ").split(" | ") for line in said.splitlines())
    found = dict(zip(header, row, strict=True))
    assert found["load"] == "common" and found["prompt tokens"] == "672"
    computed = int(found["computed"].split()[0])
    assert 4 * 40 < computed < 672
