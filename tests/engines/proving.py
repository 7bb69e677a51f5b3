# SPDX-License-Identifier: Apache-2.0
"""`prove` with whole engines: test_prove.py of each kind of engine imports this. conftest.PROVE has
its command's options, conftest.SERVE those of its servers."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

from conftest import ENGINE, PROVE, SERVE


def run(folder, scratch, *more, prompts=6, **environment):
    """Exit status, what it printed, and the proofs that were noted."""
    done = subprocess.run(
        [sys.executable, "-m", f"kvtrunk.{ENGINE}", "prove", str(folder), "--prompts",
         str(prompts), "--positions", "512", *PROVE, *more, "--", *SERVE], check=False, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        env={**os.environ, "TMPDIR": str(scratch), "XDG_CACHE_HOME": str(scratch / "cache"),
             # vLLM's, where it keeps what it found out about models.
             "VLLM_CACHE_ROOT": os.path.expanduser("~/.cache/vllm"), **environment})
    try:
        proofs = json.loads((scratch / "cache/kvtrunk/proofs.json").read_text())["proofs"]
    except FileNotFoundError:
        proofs = []
    return done.returncode, done.stdout, proofs


def expect_proved(folder, *more, prompts=6):
    """Returns the proofs that were noted."""
    with tempfile.TemporaryDirectory() as made:  # a short path, for sockets
        scratch = pathlib.Path(made)
        status, said, proofs = run(folder, scratch, *more, prompts=prompts)
        print(said)
        assert (status, "WRONG" in said) == (0, False)
        assert [(proof["engine"], proof["device"]) for proof in proofs] == [(ENGINE, "cpu")]
        assert [path.name for path in scratch.iterdir()] == ["cache"]
        return proofs


def test_engines_of_this_machine_are_proved(folder):
    expect_proved(folder)
