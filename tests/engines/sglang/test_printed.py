# SPDX-License-Identifier: Apache-2.0
"""A daemon and an engine, started by running what `flags` prints through a shell, every word."""
import json
import os
import pathlib
import shlex
import subprocess
import sys

import heads
import pytest
from conftest import BEHIND, ON_A_CPU, STANDIN

from kvtrunk import _server

# The socket in /run is the default instance's, which may be the machine's own.
OWN_RUN = ["unshare", "--mount"] if os.geteuid() == 0 else []
SCRIPT = """
test $(id -u) != 0 || mount -t tmpfs none /run || exit
{daemon} &
{engine} {behind} "$@"
"""


@pytest.mark.parametrize("drafts", [False, True] if "ENGINES_LONG" in os.environ else [False])
def test_what_flags_prints_starts_as_it_is(folder, drafts, tmp_path):
    for option in BEHIND:
        assert not option.startswith(("--device", "--dtype", "--kv-cache-dtype", "--page-size",
                                      "--max-total-tokens", "--radix-cache-backend"))
    more = ["--speculative-algorithm", "EAGLE", "--speculative-draft-model-path",
            heads.eagle(tmp_path / "head")] if drafts else []
    said = subprocess.run([sys.executable, "-m", "kvtrunk.sglang", "flags", str(folder), "--pool",
                           "8M", *more], check=True, capture_output=True, text=True).stdout
    daemon, engine = [line for line in said.splitlines() if not line.startswith("#")]
    script = SCRIPT.format(daemon=daemon, engine=engine, behind=shlex.join(ON_A_CPU))
    programs = [os.environ["KVTRUNK_BIN"], str(pathlib.Path(sys.executable).parent)]
    server = _server.Server(
        [*OWN_RUN, "bash", "-c", script, "bash"],
        {"PATH": ":".join([*programs, os.environ["PATH"]]), "PYTHONPATH": STANDIN,
         "XDG_RUNTIME_DIR": str(tmp_path), "OMP_NUM_THREADS": "1", "KVTRUNK_CHECK_EVERY": "0"},
        tmp_path / "log")
    try:
        server.wait()
        asked = {"text": "The page of a prefix that one request computed is read by another. " * 5,
                 "sampling_params": {"temperature": 0, "max_new_tokens": 8, "ignore_eos": True}}
        first, again = (json.loads(server.url("/generate", asked)) for _ in range(2))
        assert again["text"] == first["text"]
        assert (first["meta_info"]["cached_tokens"], again["meta_info"]["cached_tokens"]) == (
            0, (again["meta_info"]["prompt_tokens"] - 1) // 16 * 16)
    finally:
        server.kill()
