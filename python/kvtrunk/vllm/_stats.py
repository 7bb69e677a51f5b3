# SPDX-License-Identifier: Apache-2.0
"""Statistics of a connector in vLLM's log and metrics.

The connector loads nothing: vLLM counts hits in the pool as its own cache's. It counts requests that
found no room in the pool.
"""
from __future__ import annotations

import collections
from typing import Any, Callable, Union

from vllm.distributed.kv_transfer.kv_connector.v1.metrics import (KVConnectorPromMetrics,
                                                                  KVConnectorStats)

from ..engine import around


def count_no_loads(is_ours: Callable[[Any], bool]) -> None:
    """Leave the counters of external caches at 0 in schedulers whose connector is ours. A second call
    does nothing."""
    from vllm.v1.core.sched.scheduler import Scheduler

    def make_stats(original: Any, scheduler: Any, *args: Any, **kwargs: Any) -> Any:
        stats = original(scheduler, *args, **kwargs)
        if stats is not None and is_ours(scheduler.connector):
            stats.connector_prefix_cache_stats = None
        return stats

    around(Scheduler, "make_stats", make_stats)


class Refused(KVConnectorStats):
    """Requests that the daemon refused room when they would have begun, by its first reason. `data`
    is the count of each reason."""

    data: dict[str, int]

    def reset(self) -> None:
        """Begin again."""
        self.data = {}

    def aggregate(self, other: KVConnectorStats) -> Refused:
        """Sum of both."""
        return Refused(data=dict(collections.Counter(self.data) + collections.Counter(other.data)))

    def reduce(self) -> dict[str, Union[int, float]]:
        """Counts for the log's line."""
        return {f"kvtrunk refused requests ({reason})": n for reason, n in self.data.items()}

    def is_empty(self) -> bool:
        return not self.data


class RefusedMetrics(KVConnectorPromMetrics):
    """Refused requests as a counter for Prometheus."""

    def __init__(self, vllm_config: Any, metric_types: Any, labelnames: list[str],
                 per_engine_labelvalues: dict[int, list[object]]) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        self._refused = self._counter_cls(
            name="vllm:kvtrunk_refused_requests",
            documentation="Requests that kvtrunk's pool had no room for when they would have begun, "
                          "each once, by the daemon's first reason.",
            labelnames=[*labelnames, "reason"])

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        for reason, n in transfer_stats_data.items():
            self._refused.labels(*self.per_engine_labelvalues[engine_idx], reason).inc(n)
