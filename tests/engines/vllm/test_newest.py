# SPDX-License-Identifier: Apache-2.0
"""The newest release of vLLM for GPUs, which does not run here, has every name that is used."""
import newest

from kvtrunk.vllm import compat


def test_the_newest_vllm_has_all_names():
    assert compat.problems(newest.wheel("vllm") / "vllm") == []
