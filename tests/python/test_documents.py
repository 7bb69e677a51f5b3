# SPDX-License-Identifier: Apache-2.0
"""The Python in the documents runs, on a daemon; the caller's own parts are given to it."""
import pathlib
import sys
import types

import pytest

import kvtrunk
from kvtrunk import testing

numpy = pytest.importorskip("numpy")

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "readme"))
from documents import DOCUMENTS, blocks  # noqa: E402  pylint: disable=wrong-import-position

BLOCKS = [block for document in DOCUMENTS for block in blocks(document)
          if block.language == "python" and not block.not_run]


@pytest.mark.parametrize("block", BLOCKS, ids=[block.name for block in BLOCKS])
def test_a_block_of_a_document_publishes_its_prompt(block, monkeypatch):
    geometry = kvtrunk.Geometry(2, 2, 64)
    tokens, generated = list(range(100)), [1, 2, 3]
    with testing.daemon(n_layers=2, n_kv_heads=2, head_dim=64) as daemon:
        monkeypatch.setenv("KVTRUNK_SOCKET", daemon.socket)
        # numpy reads no bf16 by DLPack; torch does, where it is installed.
        torch = sys.modules.get("torch") or types.SimpleNamespace(from_dlpack=lambda array: array)
        exec(compile(block.text, block.name, "exec"),  # pylint: disable=exec-used
             {"kvtrunk": kvtrunk, "torch": torch, "geometry": geometry, "tokens": tokens,
              "generated": generated, "prefill": lambda *_: None})
        with daemon.connect(any_geometry=True, observe=True) as client:
            assert client.counters()["cached_pages"] >= len(tokens) // 16
