# SPDX-License-Identifier: Apache-2.0
"""vLLM counts each prompt that a KV connector could have loaded something of. Here nothing is loaded:
what the pool has vLLM counts as its own cache's."""
from __future__ import annotations

import functools
from typing import Any, Callable


def count_no_loads(is_ours: Callable[[Any], bool]) -> None:
    """Leave the counters of external caches at 0 in schedulers whose connector is ours. A second call
    does nothing."""
    from vllm.v1.core.sched.scheduler import Scheduler

    original = Scheduler.make_stats
    if original.__module__ == __name__:
        return

    @functools.wraps(original, assigned=())
    def make_stats(scheduler: Any, *args: Any, **kwargs: Any) -> Any:
        stats = original(scheduler, *args, **kwargs)
        if stats is not None and is_ours(scheduler.connector):
            stats.connector_prefix_cache_stats = None
        return stats

    Scheduler.make_stats = make_stats
