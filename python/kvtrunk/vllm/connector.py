# SPDX-License-Identifier: Apache-2.0
"""The door into vLLM: --kv-transfer-config '{"kv_connector":"KvtrunkConnector","kv_role":"kv_both"}'

No KV is moved. vLLM's interface for connectors is where an engine lets others give the memory of
the KV tensors, see the cache manager, hold back a request, and follow steps.
"""
from __future__ import annotations

from typing import Any, Iterable, Optional

from vllm.distributed.kv_transfer.kv_connector.v1.base import (KVConnectorBase_V1,
                                                               KVConnectorHandshakeMetadata,
                                                               KVConnectorMetadata,
                                                               KVConnectorRole,
                                                               KVConnectorWorkerMetadata,
                                                               SupportsHMA)
from vllm.logger import init_logger
from vllm.platforms import current_platform

from ..engine import _proofs, Finding, refuse
from . import _compat
from ._cache import Check, KvtrunkKVCacheManager
from ._drafts import hold_outputs, in_pages
from ._engine import Engine, Worker
from ._groups import check_groups, digest, main_group
from ._pool import WorkerPool, wanted_layout
from ._refusals import check_config, check_pages
from ._start import keep_pages
from ._stats import Refused, RefusedMetrics, count_no_loads

logger = init_logger("vllm.kvtrunk")  # vLLM shows its own names only

_engines: dict[str, Engine] = {}
"""Engines whose scheduler is in this process, by vLLM's engine id."""


def _say_unproved(config: Any, layout: str, backend: str) -> None:
    """Warn if engines like this one were not proved. Refused, if a proof is required."""
    made = _proofs.made(
        "vllm", _compat.full_version(),
        "cpu" if current_platform.is_cpu() else current_platform.get_device_name(),
        backend=backend, layout=layout, dtype=str(config.model_config.dtype).removeprefix("torch."),
        kv_dtype=str(config.cache_config.cache_dtype), page_size=config.cache_config.block_size,
        ranks=config.parallel_config.tensor_parallel_size, fences="numbers of steps",
        runner="second" if config.use_v2_model_runner else "first",
        graphs=config.compilation_config.cudagraph_mode.name.lower(),
        warm_up="off" if config.model_config.enforce_eager else "on",
        scheduling="asynchronous" if config.scheduler_config.async_scheduling else "synchronous")
    try:
        unproved = _proofs.check(made, _compat.TESTED)
    except _proofs.Unproved as error:
        refuse(str(error))
    if unproved:
        logger.warning("kvtrunk: %s", unproved)


class Step(KVConnectorMetadata):
    """Message of the scheduler to workers with each step: its pages' session, and the checks to make
    after it."""

    def __init__(self, session: int, checks: list[Check]) -> None:
        self.session = session
        self.checks = checks


class Checked(KVConnectorWorkerMetadata):
    """Message of workers to the scheduler: findings by a check's number."""

    def __init__(self, findings: dict[int, Finding]) -> None:
        self.findings = findings

    def aggregate(self, other: KVConnectorWorkerMetadata) -> Checked:
        """The worst of all ranks."""
        assert isinstance(other, Checked)
        return Checked({number: max(finding, other.findings.get(number, finding))
                        for number, finding in self.findings.items()})


class Proof(KVConnectorHandshakeMetadata):
    """Message of a worker to EngineCore, when its KV tensors are proved to lie in the pool: the
    backend and instruction set that compute KV, the window or chunk of each layer that keeps all
    positions, 0 for none, and the digest of the groups."""

    def __init__(self, backend: str, isa: str, windows: list[int], groups: str = "") -> None:
        self.made_by = (backend, isa, groups)
        self.windows = windows


class KvtrunkConnector(KVConnectorBase_V1, SupportsHMA):
    """See the module."""

    # ---- EngineCore, before KV is sized

    @classmethod
    def get_required_kvcache_layout(cls, vllm_config: Any) -> Optional[str]:
        """Open the session, and let vLLM plan for the daemon's pages."""
        engine_id = vllm_config.kv_transfer_config.engine_id
        if engine_id in _engines:
            return None
        _compat.check_installed()
        check_config(vllm_config)
        engine = Engine(vllm_config)
        try:
            check_pages(vllm_config, engine.info)
            layout = wanted_layout(engine.info.geometry)
            engine.publish(vllm_config)
        except ValueError:
            engine.close()
            raise
        _engines[engine_id] = engine
        vllm_config.cache_config.num_gpu_blocks_override = engine.info.n_pages
        # If a check of a step's pages fails, vLLM drops the step's tokens, and ends no request.
        vllm_config.kv_transfer_config.kv_load_failure_policy = "recompute"
        return layout

    @classmethod
    def build_kv_connector_stats(cls, data: Optional[dict[str, Any]] = None) -> Refused:
        """Statistics from data of get_kv_connector_stats(), in another process."""
        return Refused(data=data or {})

    @classmethod
    def build_prom_metrics(cls, vllm_config: Any, metric_types: Any, labelnames: list[str],
                           per_engine_labelvalues: dict[int, list[object]]) -> RefusedMetrics:
        """Exporter of the statistics."""
        return RefusedMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    @classmethod
    def supports_sleep_mode(cls, kv_transfer_config: Any) -> bool:
        """False: the KV tensors are the daemon's memory, which vLLM cannot take away."""
        return False

    def __init__(self, vllm_config: Any, role: KVConnectorRole,
                 kv_cache_config: Any = None) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self._config = vllm_config
        self._layout = str(kv_cache_config.kv_cache_layout) if kv_cache_config else ""
        self._groups: list[Any] = kv_cache_config.kv_cache_groups if kv_cache_config else []
        engine_id = vllm_config.kv_transfer_config.engine_id
        self._engine = _engines.get(engine_id)
        self._manager: Optional[KvtrunkKVCacheManager] = None
        self._worker: Optional[Worker] = None
        self._proof: Optional[Proof] = None
        self._findings: dict[int, Finding] = {}
        if role == KVConnectorRole.SCHEDULER:
            if self._engine is None:
                refuse("vLLM did not ask for a KV layout: unset VLLM_KV_CACHE_LAYOUT")
            return
        keep_pages()
        if in_pages(vllm_config):
            hold_outputs()
        if self._engine is not None:  # in the scheduler's process
            self._pool = WorkerPool(self._engine.ring.client, 0)
            self._engine.worker = self._pool
        else:
            self._worker = Worker(vllm_config)
            self._pool = self._worker.pool
        if kv_cache_config is not None:  # before it allocates KV
            check_groups(kv_cache_config, self._pool.client.info,
                         vllm_config.speculative_config is not None)

    # ---- worker

    def get_mem_pool_context(self) -> Any:
        """The context in which vLLM allocates its KV: on the pool."""
        return self._pool.allocation()

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        """Prove that they lie in the pool."""
        layers = self._config.compilation_config.static_forward_context
        kinds, states, windows = set(), {}, []
        for name in kv_caches:
            layer = layers[name]
            if getattr(layer, "kv_sharing_target_layer_name", None):
                refuse("layers that share KV are not supported: remove --kv-transfer-config for "
                       "this model")
            backend = layer.get_attn_backend()
            if backend.is_ssm():
                states[name] = backend.get_name()
                continue
            kinds.add((backend.get_name(), str(getattr(layer, "isa", "")), backend.is_mla()))
            windows.append(getattr(layer, "sliding_window", None) or getattr(
                layer, "attention_chunk_size", None) or 0)
        if len(kinds) != 1:
            refuse(f"layers of several attention backends are not supported: {sorted(kinds)}")
        backend, isa, latent = kinds.pop()
        model = self._config.model_config
        own = model.get_total_num_hidden_layers() if in_pages(self._config) else None
        main = main_group(self._groups)
        groups = [{name: kv_caches[name] for name in group.layer_names} for group in self._groups]
        self._pool.prove(groups.pop(main), self._layout, backend, latent, own, groups, states)
        self._pool.set_bounds(model)
        self._proof = Proof(" ".join([backend, *sorted(set(states.values()))]), isa,
                            windows if len(self._groups) == 1 else [], digest(self._groups))

    def get_handshake_metadata(self) -> Optional[Proof]:
        """vLLM carries it to set_xfer_handshake_metadata()."""
        return self._proof

    def bind_connector_metadata(self, connector_metadata: Any) -> None:
        """The beginning of a step, before it writes KV: follow the scheduler to another session."""
        super().bind_connector_metadata(connector_metadata)
        if self._worker is not None:
            self._worker.follow(connector_metadata.session)

    def has_connector_metadata(self) -> bool:
        """False, so that vLLM does not ask for each layer."""
        return False

    def start_load_kv(self, forward_context: Any, scheduler_output: Any = None,
                      request_state_indices: Any = None, request_ids: Any = None,
                      num_tokens: int = 0, attn_metadata: Any = None) -> None:
        """Load nothing. vLLM may call this after the forward pass."""

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Nothing is loaded."""

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any) -> None:
        """Nothing is saved."""

    def wait_for_save(self) -> None:
        """Nothing is saved. With drafts vLLM calls this when it has asked for what was found."""

    def get_block_ids_with_load_errors(self) -> set[int]:
        """The end of the forward pass: compare what it completed, ordered by its stream. Returns
        reused pages of a failed check: vLLM drops the tokens that the step computed on them. The
        scheduler preempts their requests before the next step could write to these pages."""
        checks = self._get_connector_metadata().checks
        self._findings = {check.number: self._pool.compare(check.mine, check.theirs)
                          for check in checks}
        return {check.reused for check in checks if check.reused is not None and
                self._findings[check.number].differs}

    def build_connector_worker_meta(self) -> Optional[Checked]:
        """The step's findings; vLLM carries them to update_connector_output()."""
        return Checked(self._findings) if self._findings else None

    @property
    def requires_kv_delivery(self) -> bool:
        """Whether vLLM drops the tokens of steps in flight when it preempts a request. True: they
        may be those of a failed check."""
        return True

    # ---- scheduler

    def bind_kv_cache_manager(self, kv_cache_manager: Any) -> None:
        """Take over the scheduler's cache manager."""
        assert self._engine is not None
        self._manager = KvtrunkKVCacheManager.adopt(kv_cache_manager, self._engine)
        count_no_loads(lambda connector: isinstance(connector, KvtrunkConnector))

    def get_kv_connector_stats(self) -> Optional[Refused]:
        """Requests that found no room since the last call. Workers have none."""
        return Refused(data=self._manager.take_refused()) if self._manager is not None else None

    def set_xfer_handshake_metadata(
            self, metadata: dict[int, KVConnectorHandshakeMetadata]) -> None:
        """Take the proofs of all workers, before the first request: open the namespace of their KV."""
        engine = self._engine
        assert engine is not None and self._manager is not None
        if len(metadata) != max(1, engine.n_workers):
            refuse(f"{len(metadata)} of {max(1, engine.n_workers)} workers said that their KV lies "
                   "in the pool: vLLM did not register the KV tensors")
        made_by = {proof.made_by for proof in metadata.values() if isinstance(proof, Proof)}
        if len(made_by) != 1:
            refuse(f"workers with different attention backends: {sorted(made_by)}")
        backend, isa, groups = made_by.pop()
        _say_unproved(self._config, self._layout, backend)
        engine.open(";".join(["vllm", _compat.version(), self._layout, backend, isa,
                              str(engine.info.page_size), *([groups] if groups else [])]))
        logger.info("kvtrunk: session %d on %s, %d pages of %d positions, %s, %s %s %s",
                    engine.info.session, engine.info.instance, engine.info.n_pages,
                    engine.info.page_size, engine.name, self._layout, backend, isa)
        if engine.events is not None:
            main = main_group(self._groups)
            engine.events.begin(engine.info.page_size, main,
                                self._manager.kv_cache_event_metadata[main])
        windows = [proof.windows for proof in metadata.values() if isinstance(proof, Proof)][0]
        if any(windows):
            logger.info("kvtrunk: %d of %d layers have windows of %d tokens, and keep all tokens",
                        sum(map(bool, windows)), len(windows), max(windows))

    def on_new_request(self, request: Any) -> None:
        """A request is queued."""
        assert self._manager is not None
        self._manager.arrived(request)

    def get_num_new_matched_tokens(self, request: Any,
                                   num_computed_tokens: int) -> tuple[Optional[int], bool]:
        """No external tokens. None: not now, others compute or load a part of the same prompt."""
        assert self._manager is not None
        return (None if self._manager.held_back(request) else 0), False

    def update_state_after_alloc(self, request: Any, blocks: Any,
                                 num_external_tokens: int) -> None:
        """Nothing is loaded."""

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        """The end of schedule()."""
        assert self._manager is not None and self._engine is not None
        checks = self._manager.scheduled(scheduler_output.num_scheduled_tokens)
        return Step(self._engine.session, checks)

    def update_connector_output(self, connector_output: Any) -> None:
        """Take the findings of workers in a step, before take_events() ends it."""
        found = connector_output.kv_connector_worker_meta
        if found:
            assert self._manager is not None
            self._manager.checked(found.findings)

    def take_events(self) -> Iterable[Any]:
        """The end of update_from_output()."""
        assert self._manager is not None
        self._manager.processed()
        return ()

    def has_pending_push_work(self) -> bool:
        """Whether vLLM steps on without requests: the daemon has not answered yet for all that is to
        be given back."""
        return self._manager is not None and self._manager.owes()

    def request_finished(self, request: Any,
                         block_ids: list[int]) -> tuple[bool, Optional[dict[str, Any]]]:
        """Free its blocks now."""
        return False, None

    def request_finished_all_groups(
            self, request: Any,
            block_ids: tuple[list[int], ...]) -> tuple[bool, Optional[dict[str, Any]]]:
        """Free its blocks now."""
        return False, None

    def reset_cache(self) -> Optional[bool]:
        """reset_prefix_cache() of the manager has done it."""
        return True

    def shutdown(self) -> None:
        """End the session, if this is the scheduler's side."""
        if self.role == KVConnectorRole.SCHEDULER and self._engine is not None:
            _engines.pop(self._engine.engine_id, None)
            self._engine.close(self._manager.fence() if self._manager is not None else None)
