# SPDX-License-Identifier: Apache-2.0
"""SGLang's KV pool and prefix cache on kvtrunk's pages: --radix-cache-backend kvtrunk.

SGLang finds this as a plug-in (entry point group "sglang.srt.plugins") in each of its processes.
Without the flag, or with --disable-radix-cache, SGLang runs as if it were not installed.
"""
from __future__ import annotations

from typing import Any

NAME = "kvtrunk"


def wanted() -> bool:
    """Whether this engine was started with the flag, and with a prefix cache."""
    from sglang.srt.runtime_context import get_memory
    memory = get_memory()
    return bool(memory.radix_cache_backend == NAME and not memory.disable_radix_cache)


def register() -> None:
    """The plug-in: called by SGLang in each process. Imports nothing heavy unless it is used."""
    from sglang.srt.mem_cache.registry import register_radix_cache_backend
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    from ._replaced import REPLACED

    register_radix_cache_backend(NAME, make_cache)
    for row, hook in REPLACED.items():
        HookRegistry.register(row.what, hook, HookType.AROUND)


def make_cache(ctx: Any) -> Any:
    """The factory of --radix-cache-backend kvtrunk."""
    if not wanted():
        from sglang.srt.mem_cache.registry import default_radix_cache_factory
        return default_radix_cache_factory(ctx)
    from . import _cache
    return _cache.make(ctx)
