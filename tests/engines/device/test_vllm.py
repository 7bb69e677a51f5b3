# SPDX-License-Identifier: Apache-2.0
"""The CUDA build of vLLM, second model runner, Triton's attention, warm-up on, on a pool of the
driver's memory (cuda-vmm): on stand-ins for driver and device."""
import pytest
from conftest import PATTERN, hosting, printed
from engine import prompt, until

# Behind what is printed, and why. Nothing else.
BEHIND = [
    # Triton's interpreter runs this one's kernels. FlashAttention's are compiled.
    "--attention-backend", "TRITON_ATTN",
    # It compiles nothing, captures nothing, and calls no compiled operator.
    "--compilation-config", '{"mode": 0, "cudagraph_mode": "NONE", "custom_ops": ["none"]}',
    # It takes seconds for a hundred tokens, and the warm-up computes as many as a step may have.
    "--max-num-batched-tokens", "128", "--max-num-seqs", "4", "--max-model-len", "512",
    # Answers tell what was cached.
    "--enable-prompt-tokens-details",
]
VARIABLES = {"VLLM_USE_FLASHINFER_SAMPLER": "0", "VLLM_NO_USAGE_STATS": "1"}
PAGE, PROMPT = 64, 150
TOKENS = 3
"""Few: a token takes seconds in the interpreter."""


@pytest.fixture
def host(folder, tmp_path):
    options, words = printed("vllm", folder, "--pool-bytes", "1G")
    with hosting({**options, "n_pages": 0}, words, BEHIND, VARIABLES, tmp_path) as made:
        yield made


def test_engines_share_in_place_and_change_no_page_of_others(host):
    a, b = host.start_two()
    text = prompt(1, PROMPT)
    first = a.complete(text, TOKENS)
    again = b.complete(text, TOKENS)
    assert first.cached == 0
    assert again.cached == PROMPT // PAGE * PAGE
    assert again.tokens == first.tokens
    # An engine continues what a killed one has begun.
    longer = text + list(first.tokens) + prompt(2, PAGE)
    expected = b.complete(longer, TOKENS, cache_salt="computes it all")
    assert expected.cached == 0
    a.kill()
    until(lambda: host.client.stats().live_sessions == 2)
    assert b.complete(longer, TOKENS)[:2] == expected[:2]
    host.expect_unharmed()


def test_a_warm_up_that_writes_to_pages_of_others_is_found(host):
    """Control: without keep_pages()."""
    host.start(EMULATED_PLANT="warm-up").wait()
    assert 0 < len(host.pattern.changed()) <= PATTERN
