# SPDX-License-Identifier: Apache-2.0
"""A starting worker changes no cached page.

vLLM's second model runner, of devices, warms its kernels up with requests on blocks 1, 2, 3 ...:
pages of other engines here. Its block tables can send all writes to block 0, the scratch page.
The first runner warms up without writing KV.
"""
from __future__ import annotations

import sys
from typing import Any

from ..engine import around


def keep_pages() -> None:
    """Let this process's worker warm up on page 0. A second call does nothing."""
    module = sys.modules.get("vllm.v1.worker.gpu_worker")
    if module is not None:
        around(module.Worker, "compile_or_warm_up_model", _warm_up)


def _warm_up(original: Any, worker: Any) -> Any:
    tables = getattr(worker.model_runner, "block_tables", None)
    if tables is None:  # the first model runner
        return original(worker)
    tables.redirect_writes_to_null_block = True
    try:
        return original(worker)
    finally:
        tables.redirect_writes_to_null_block = False
