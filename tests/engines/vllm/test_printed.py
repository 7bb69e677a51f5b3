# SPDX-License-Identifier: Apache-2.0
"""A daemon and an engine as `flags` prints them."""
import conftest
import printing
import pytest
from engine import prompt

PAGE = 64
BEHIND = {
    "--enforce-eager": "it compiles for minutes on a CPU",
    "--enable-prompt-tokens-details": "answers tell what was cached",
}
"""Options after the printed command: why."""


def test_what_flags_prints_starts_as_it_is(folder, tmp_path):
    with printing.server("vllm", [str(folder), "--pool-bytes", "64M"], [*BEHIND], tmp_path / "log",
                         {"VLLM_NO_USAGE_STATS": "1"}) as server:
        text = prompt(1, 5 * PAGE)
        first, again = (server.complete(text) for _ in range(2))
    assert first.tokens == again.tokens and len(first.tokens) == 16
    assert (first.cached, again.cached) == (0, 4 * PAGE)


@pytest.mark.parametrize("name", conftest.NEVER)
def test_no_test_says_what_flags_decides(folder, tmp_path, name):
    with pytest.raises(AssertionError, match=name):
        conftest.Engine(folder, tmp_path / "log", **{name: "auto"})
