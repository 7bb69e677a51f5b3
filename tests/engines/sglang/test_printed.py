# SPDX-License-Identifier: Apache-2.0
"""A daemon and an engine as `flags` prints them."""
import json
import os

import heads
import printing
import pytest
from conftest import ON_A_CPU, STANDIN


@pytest.mark.parametrize("drafts", [False, True] if "ENGINES_LONG" in os.environ else [False])
def test_what_flags_prints_starts_as_it_is(folder, drafts, tmp_path):
    more = ["--speculative-algorithm", "EAGLE", "--speculative-draft-model-path",
            heads.eagle(tmp_path / "head")] if drafts else []
    with printing.server("sglang", [str(folder), "--pool", "8M", *more], ON_A_CPU, tmp_path / "log",
                         {"PYTHONPATH": STANDIN}) as server:
        asked = {"text": "The page of a prefix that one request computed is read by another. " * 5,
                 "sampling_params": {"temperature": 0, "max_new_tokens": 8, "ignore_eos": True}}
        first, again = (json.loads(server.url("/generate", asked)) for _ in range(2))
    assert again["text"] == first["text"]
    assert (first["meta_info"]["cached_tokens"], again["meta_info"]["cached_tokens"]) == (
        0, (again["meta_info"]["prompt_tokens"] - 1) // 16 * 16)
