# SPDX-License-Identifier: Apache-2.0
"""SGLang with Triton's attention on a pool of the driver's memory (cuda-vmm): on stand-ins for driver
and device, and for the compiled kernels of its own (emulated/sgl_kernel)."""
import pytest
from conftest import PATTERN, hosting, printed
from engine import prompt, until

# Behind what is printed, and why. Nothing else.
BEHIND = [
    # Triton's interpreter runs this one's kernels. FlashAttention's are compiled.
    "--attention-backend", "triton",
    # FlashInfer's are compiled, too, and no library for grammars is installed.
    "--sampling-backend", "pytorch", "--grammar-backend", "none",
    # Nothing can be captured.
    "--disable-cuda-graph",
    # It takes seconds for a hundred tokens.
    "--skip-server-warmup", "--max-running-requests", "4", "--context-length", "512",
    # Answers tell what was cached.
    "--enable-cache-report",
]
VARIABLES = {"SGLANG_FORCE_FUSED_OP_BACKEND": "torch"}  # others compile when they are called
PAGE, PROMPT, TOKENS = 16, 150, 3


@pytest.fixture
def host(folder, tmp_path):
    options, words = printed("sglang", folder, "--pool-bytes", "64M")
    with hosting(options, words, BEHIND, VARIABLES, tmp_path) as made:
        yield made


def test_engines_share_in_place_and_change_no_page_of_others(host):
    a, b = host.start_two()
    assert "scheduling overlapped" in a.said()
    text = prompt(1, PROMPT)
    first, again = a.complete(text, TOKENS), b.complete(text, TOKENS)
    assert (first.cached, again.cached) == (0, (PROMPT - 1) // PAGE * PAGE)
    assert again.text == first.text
    # An engine continues what a killed one has begun.
    longer = text + prompt(2, PAGE)
    expected = b.complete(longer, TOKENS, cache_salt="computes it all")
    assert expected.cached == 0
    a.kill()
    until(lambda: host.client.stats().live_sessions == 2)
    assert b.complete(longer, TOKENS).text == expected.text
    host.expect_unharmed()


def test_an_engine_that_writes_to_pages_of_others_is_found(host):
    """Control: it chooses the slots itself, as SGLang's own allocator does."""
    host.start(EMULATED_PLANT="slots").wait().complete(prompt(1, PROMPT), 1)
    assert 0 < len(host.pattern.changed()) <= PATTERN
