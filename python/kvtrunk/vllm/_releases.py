# SPDX-License-Identifier: Apache-2.0
"""Changes of vLLM from one supported release to the next. _compat has all else that is used.

An override takes the arguments of all these releases; names that only newer ones have are required
of those alone.
"""
from __future__ import annotations

from typing import NamedTuple

from ..engine._releases import RELEASES, series

OURS = RELEASES["vllm"]


class Change(NamedTuple):
    """`methods` and `calls` as METHODS and CALLS of _compat. `inherited`: methods of vLLM's classes
    that are new and right as they are."""

    methods: dict[str, dict[str, dict[str, tuple[str, ...]]]]
    calls: tuple[tuple[str, str], ...]
    inherited: dict[str, frozenset[str]]


_BASE = "distributed/kv_transfer/kv_connector/v1/base.py"
CHANGES: dict[str, Change] = {
    "0.33": Change(
        # A hit can be limited, which only --enable-return-routed-experts does: refused.
        {"v1/core/kv_cache_manager.py": {"KVCacheManager": {
            "get_computed_blocks": ("request", "max_cache_hit_length")}},
         _BASE: {"KVConnectorBase_V1": {"supports_sleep_mode": ("kv_transfer_config",)}}},
        # With drafts a block's hash may cover tokens after it, but not beside a connector.
        (("config/vllm.py", r"if self\.kv_transfer_config is not None:\s+return 0"),
         ("config/vllm.py", r"connector_cls\.supports_sleep_mode\(")),
        # Sleep mode is refused, so these are never called.
        {"KVConnectorBase_V1": frozenset({"restore_kv_caches", "unregister_kv_caches"})}),
}


def since(version: str) -> list[Change]:
    """The changes of a release and those before it."""
    return [change for name, change in CHANGES.items() if series(name) <= series(version)]
