# SPDX-License-Identifier: Apache-2.0
"""The Python in the documents runs, on a daemon; the caller's own parts are given to it."""
import pathlib
import re
import sys
import types

import pytest

import kvtrunk
from kvtrunk import testing

numpy = pytest.importorskip("numpy")

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "whole" / "readme"))
from documents import DOCUMENTS, blocks  # noqa: E402  pylint: disable=wrong-import-position

# docs/events.md needs pyzmq: tests/engines runs it.
BLOCKS = [block for document in DOCUMENTS if document.name != "events.md"
          for block in blocks(document) if block.language == "python" and not block.not_run]
POINTS = [block for block in BLOCKS if "sides=(" in block.text]
PAGE = 16


class Pages:
    """Contents of pages, in place of a model: the tokens that each was computed from."""

    def __init__(self):
        self.main, self.side = {}, {}

    def compute(self, tokens, start, end, pages):
        """Full attention: read all pages in front, write the others."""
        for index in range(start // PAGE):
            assert self.main[pages[index]] == tokens[:(index + 1) * PAGE]
        for index in range(start // PAGE, -(-end // PAGE)):
            self.main[pages[index]] = tokens[:min((index + 1) * PAGE, end)]

    def prefill(self, tokens, start, end, pages, table):
        """The same, and windows of 4 pages."""
        self.compute(tokens, start, end, pages)
        for index in range(max(0, start // PAGE - 4), start // PAGE):
            assert self.side[table[index]] == tokens[:(index + 1) * PAGE]
        for index in range(start // PAGE, -(-end // PAGE)):
            self.side[table[index]] = tokens[:min((index + 1) * PAGE, end)]

    def advance(self, tokens, start, end, pages, state):
        """The same, and a state in place of windows."""
        self.compute(tokens, start, end, pages)
        assert start == 0 or self.side[state] == tokens[:start]
        self.side[state] = tokens[:end]

    def copy(self, source, target):
        """Copy a state."""
        self.side[target] = self.side[source]


def test_a_module_is_private_or_named_in_a_document():
    """One whose name promises a command, and prints nothing, would seem to find nothing wrong."""
    source = pathlib.Path(__file__).resolve().parents[2] / "python"
    texts = [document.read_text("utf-8") for document in DOCUMENTS]
    names = [".".join(path.relative_to(source).with_suffix("").parts)
             for path in (source / "kvtrunk").rglob("*.py")]
    public = {name for name in names if "._" not in name} - {"kvtrunk.vllm.connector"}  # for vLLM
    assert "kvtrunk.events" in public
    assert [name for name in public if not any(name in text for text in texts)] == []


def run(block, **given):
    exec(compile(block.text, block.name, "exec"),  # pylint: disable=exec-used
         {"kvtrunk": kvtrunk, **given})


@pytest.mark.parametrize("block", POINTS, ids=[block.name for block in POINTS])
def test_a_block_that_makes_points_continues_from_them(block, monkeypatch):
    geometry, sides = kvtrunk.Geometry(1, 1, 16), re.search(r"sides=\((\w+)", block.text)[1]
    sides = {"window": "4"}.get(sides, sides)
    pages, reused = Pages(), []
    prompts = [[*range(70), *range(1000 * i, 1000 * i + 130)] for i in range(1, 4)]
    with testing.daemon(page_size=PAGE, n_layers=1, n_kv_heads=1, head_dim=16,
                        sides=sides) as daemon, \
            daemon.connect(any_geometry=True) as client:
        monkeypatch.setenv("KVTRUNK_SOCKET", daemon.socket)
        for tokens in [*prompts, prompts[0], prompts[1] + [7] * 40]:
            before = client.stats().hit_positions
            run(block, geometry=geometry, tokens=tokens, prefill=pages.prefill,
                advance=pages.advance, copy=pages.copy)
            reused.append(client.stats().hit_positions - before)
        # The second prompt makes a point where it parts from the first.
        assert reused == [0, 0, 64, 192, 192]
        assert client.stats().private_pages == 0


@pytest.mark.parametrize("block", [block for block in BLOCKS if block not in POINTS],
                         ids=[block.name for block in BLOCKS if block not in POINTS])
def test_a_block_of_a_document_publishes_its_prompt(block, monkeypatch):
    geometry = kvtrunk.Geometry(2, 2, 64)
    tokens, generated = list(range(100)), [1, 2, 3]
    with testing.daemon(n_layers=2, n_kv_heads=2, head_dim=64) as daemon:
        monkeypatch.setenv("KVTRUNK_SOCKET", daemon.socket)
        # numpy reads no bf16 by DLPack; torch does, where it is installed.
        torch = sys.modules.get("torch") or types.SimpleNamespace(from_dlpack=lambda array: array)
        run(block, torch=torch, geometry=geometry, tokens=tokens, generated=generated,
            prefill=lambda *_: None)
        with daemon.connect(any_geometry=True, observe=True) as client:
            assert client.counters()["cached_pages"] >= len(tokens) // 16
