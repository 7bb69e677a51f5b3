# SPDX-License-Identifier: Apache-2.0
"""The newest release of SGLang has every name that is used."""
import newest

from kvtrunk.sglang import _compat


def test_the_newest_sglang_has_all_names():
    assert _compat.problems(newest.wheel("sglang")) == []
