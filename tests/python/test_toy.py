# SPDX-License-Identifier: Apache-2.0
"""examples/python/toy.py works."""
import pathlib
import re
import runpy
import subprocess
import sys

import pytest

from kvtrunk import _progress, testing

pytest.importorskip("numpy")
ROOT = pathlib.Path(__file__).resolve().parents[2]
TOY = ROOT / "examples/python/toy.py"
PROMPT = "All work and no play makes Jack a dull boy. " * 8


def play(daemon, prompt=PROMPT):
    said = subprocess.run([sys.executable, str(TOY), prompt], check=True, text=True,
                          capture_output=True, env={"KVTRUNK_SOCKET": daemon.socket,
                                                    "PYTHONPATH": ":".join(sys.path)}).stdout
    computed, positions, tokens = re.fullmatch(
        r"computed (\d+) of (\d+) positions: \[(.*)\]\n", said).groups()
    return int(computed), int(positions), tokens


def test_the_second_process_computes_the_rest_only():
    with testing.daemon(n_layers=2, n_kv_heads=2, head_dim=16, kv_type="fp32", n_pages=256) as daemon:
        computed, positions, tokens = play(daemon)
        assert computed == positions == len(PROMPT) + 8
        again, _, same = play(daemon)
        assert again <= 16 + 8 and same == tokens
        longer, positions, other = play(daemon, PROMPT + "And so on.")
        assert longer <= 16 + 10 + 8 + 16 and other != tokens


def test_a_long_prompt_shows_how_far_it_is(monkeypatch, capsys):
    monkeypatch.setattr(_progress, "SILENT_S", 0.0)
    toy = runpy.run_path(str(TOY))
    with testing.daemon(n_layers=2, n_kv_heads=2, head_dim=16, kv_type="fp32", n_pages=256) as daemon:
        with daemon.connect() as client:
            toy["generate"](toy["Model"](client), client.namespace(model="toy 1"),
                            list(PROMPT.encode()), 8)
    said = capsys.readouterr().err.splitlines()
    n = len(PROMPT) + 8
    assert said[0].startswith(f"kvtrunk: computing: 64 tokens of {n} tokens, ")
    assert said[-1].startswith(f"kvtrunk: computing: done, {n} tokens")
