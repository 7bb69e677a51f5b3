# SPDX-License-Identifier: Apache-2.0
"""The newest release of vLLM for GPUs: every name and call that is used, and its own scheduler on
daemons, with workers that compute nothing."""
import os
import pathlib
import subprocess
import sys

import newest
import pytest

from kvtrunk.vllm import _compat

HERE = pathlib.Path(__file__).resolve().parent
LIFE = "test_a_request_reads_its_own_tokens_windows_and_states"
STUB = ["test_admission.py",
        "test_draft_life.py::test_what_is_reused_has_all_tokens_of_its_request[0-async]",
        f"test_hybrid_life.py::{LIFE}[gemma-async]", f"test_hybrid_life.py::{LIFE}[states-sync]"]
"""Tests that need vLLM's Python and no model."""


@pytest.fixture(scope="module")
def wheel():
    return newest.wheel("vllm")


def test_the_newest_vllm_has_all_names(wheel):
    assert _compat.problems(wheel / "vllm") == []


def test_the_newest_vllm_schedules_on_a_pool(wheel, tmp_path):
    folder = newest.unpacked(wheel, tmp_path / "vllm")
    site, *others = os.environ["PYTHONPATH"].split(":")
    path = ":".join([site, str(folder), *others])
    said = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--no-header", "-p", "no:cacheprovider",
         *(str(HERE / name) for name in STUB)],
        env={**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stdout[-6000:] + said.stderr[-2000:]
    assert "passed" in said.stdout and "skipped" not in said.stdout
