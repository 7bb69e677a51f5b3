# SPDX-License-Identifier: Apache-2.0
"""SGLang's KV pool and prefix cache on kvtrunk's pages: --radix-cache-backend kvtrunk.

SGLang finds this as a plug-in (entry point group "sglang.srt.plugins") in each of its processes.
Without the flag, or with --disable-radix-cache, SGLang runs as if it were not installed.

    _replaced   which of SGLang's functions are wrapped, and by what
    _leases     what requests hold, and its sizes, on kvtrunk.engine._ring (no SGLang, no torch)
    _keys       tokens as keys; which requests must not share
    _drafts     speculative decoding: layers whose KV lies in the pages, too
    _pool       tensors on the pool, their proof, the allocator
    _cache      SGLang's prefix cache interface; admission
    _events     what is cached, for SGLang's publisher of KV events
    _identity   what makes KV equal: weights, config, kernels
    _updates    new weights and adapters of an engine that runs
    _refusals   what does not work, in words
    compat      the names of SGLang that all of this uses
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
