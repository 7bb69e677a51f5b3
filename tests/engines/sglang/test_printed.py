# SPDX-License-Identifier: Apache-2.0
"""A daemon and an engine as `flags` prints them."""
import json
import os
import shlex

import heads
import printing
import pytest
from conftest import ON_A_CPU, STANDIN, printed


@pytest.mark.parametrize("algorithm", [None, *(["NGRAM", "EAGLE", "NEXTN"]
                                                if "ENGINES_LONG" in os.environ else [])])
def test_what_flags_prints_starts_as_it_is(folder, algorithm, tmp_path):
    made, more = heads.drafting(algorithm, folder, tmp_path) if algorithm else (folder, [])
    with printing.server("sglang", [str(made), "--pool-bytes", "8M", *more], ON_A_CPU, tmp_path / "log",
                         {"PYTHONPATH": STANDIN}) as server:
        asked = {"text": "The page of a prefix that one request computed is read by another. " * 5,
                 "sampling_params": {"temperature": 0, "max_new_tokens": 8, "ignore_eos": True}}
        first, again = (json.loads(server.url("/generate", asked)) for _ in range(2))
    assert again["text"] == first["text"]
    assert (first["meta_info"]["cached_tokens"], again["meta_info"]["cached_tokens"]) == (
        0, (again["meta_info"]["prompt_tokens"] - 1) // 16 * 16)


@pytest.mark.parametrize("word", ["--dtype", "--max-total-tokens=64", "--radix-cache-backend",
                                  "--device"])
def test_nothing_that_flags_decides_stands_behind_what_it_prints(folder, word):
    _, command = printed(folder, 8 << 20)
    assert printing.behind(shlex.split(command), ON_A_CPU)
    with pytest.raises(AssertionError, match=word.partition("=")[0]):
        printing.behind(shlex.split(command), [word])
