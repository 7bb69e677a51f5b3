# SPDX-License-Identifier: Apache-2.0
"""vLLM and SGLang of one model at one daemon: their pages differ, so one of them is refused, in words,
and the other continues."""
import importlib.util
import os
import pathlib
import subprocess
import sys

import pytest
from conftest import PAGE, geometry
from engine import expect_nothing_held, prompt

CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
INTERPRETER = CACHE / "kvtrunk" / "engines" / "sglang" / "bin" / "python"


@pytest.fixture(scope="module")
def sglang(folder, tmp_path_factory):
    """Start an SGLang engine, and return what it says when it ends."""
    if not INTERPRETER.parents[1].joinpath("complete").exists():
        pytest.skip("there is no environment with SGLang: tests/engines/environment sglang")
    file = pathlib.Path(__file__).parents[1] / "sglang" / "conftest.py"
    found = importlib.util.spec_from_file_location("sglang_conftest", file)
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    module.Engine.interpreter = str(INTERPRETER)

    def refused(daemon):
        made = module.Engine(folder, tmp_path_factory.mktemp("sglang") / "log", daemon,
                             page_size=PAGE)
        with pytest.raises(RuntimeError):
            made.wait()
        made.kill()
        return made.said()

    return refused


def flags(interpreter, package, folder, *options):
    said = subprocess.run([str(interpreter), "-m", package, "flags", str(folder), *options],
                          capture_output=True, text=True, check=True).stdout
    line, = (line for line in said.splitlines() if line.startswith("kvtrunkd"))
    return dict(word[2:].split("=", 1) for word in line.split()[1:] if "=" in word)


def test_flags_name_pages_that_differ_in_their_layout(folder, sglang):
    a = flags(sys.executable, "kvtrunk.vllm", folder, "--device=cpu", f"--block-size={PAGE}")
    b = flags(INTERPRETER, "kvtrunk.sglang", folder, f"--page-size={PAGE}")
    assert {name for name in a if name in b and a[name] != b[name]} == {"kv-layout"}
    assert (a["kv-layout"], b["kv-layout"]) == (geometry()["kv_layout"], "nhd")


def test_one_is_refused_and_the_other_continues(daemon, start, sglang):
    one = start(daemon, processes=1)
    text = prompt(1)
    first = one.generate(text)[0]["tokens"]
    assert "the daemon has kv_layout hknd, the client asked for nhd" in sglang(daemon)
    assert one.generate(text)[0] == {"tokens": first, "cached": 192}
    expect_nothing_held(daemon)
