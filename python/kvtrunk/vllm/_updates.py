# SPDX-License-Identifier: Apache-2.0
"""Built model, weights and adapters of an engine's workers, and calls that change them.

EngineCore tells its workers everything by Executor.collective_rpc(). vLLM has no hook there, so
install() puts a Watch into each executor when it is made, before the workers load their weights.
From then on a call that may change weights changes the engine's name before it runs. A call that
this module does not know counts as one, and so does a function: what it does cannot be seen.
"""
from __future__ import annotations

import pathlib
import secrets
from typing import Any, Callable, Optional

import torch
from vllm.logger import init_logger

from ..engine import Name, Weights, around, model_folder, refuse, tensor_shapes
from ._drafts import identity, in_pages, model_of
from ._identity import unknown
from ._refusals import ALONE, NAME
from ._compat import ADAPTERS, HARMLESS

logger = init_logger("vllm.kvtrunk")  # vLLM shows its own names only

_watches: dict[str, Watch] = {}
"""Watches of the executors in this process, by vLLM's engine id."""


def install() -> None:
    """Give a Watch to each executor that is made from now on, for an engine with this connector."""
    from vllm.v1.executor.abstract import Executor

    def make(original: Any, executor: Any, vllm_config: Any, *args: Any, **kwargs: Any) -> None:
        transfer = vllm_config.kv_transfer_config
        if transfer is not None and transfer.has_connector(NAME):
            if transfer.kv_connector != NAME:
                refuse(ALONE)
            _watches[transfer.engine_id] = Watch(executor, vllm_config)
        original(executor, vllm_config, *args, **kwargs)

    around(Executor, "__init__", make)


def _wrap_set_weight_version() -> None:
    from vllm.v1.engine.core import EngineCore  # loaded, as it makes the executor

    def set_weight_version(original: Any, core: Any, weight_version: str) -> None:
        original(core, weight_version)
        watch = getattr(core.model_executor, "kvtrunk", None)
        if watch is not None:
            watch.version(weight_version)

    around(EngineCore, "set_weight_version", set_weight_version)


def watch_of(engine_id: str) -> Optional[Watch]:
    """The Watch of an engine's executor. None: install() came too late."""
    return _watches.get(engine_id)


class Watch:
    """Calls of one executor to its workers."""

    def __init__(self, executor: Any, vllm_config: Any) -> None:
        _wrap_set_weight_version()
        self._engine_id: str = vllm_config.kv_transfer_config.engine_id
        self._call = executor.collective_rpc
        executor.collective_rpc = self.collective_rpc
        executor.kvtrunk = self
        model, load = vllm_config.model_config, vllm_config.load_config
        self._download_dir = load.download_dir
        self._source: Optional[tuple[str, Any]] = (model.model_weights or model.model,
                                                   model.revision)
        """Model and revision that reload_weights() loads if it is given no path. None: not known."""
        self._format: str = load.load_format
        self._unknown = unknown(load)
        """Why files do not name the weights."""
        self._files: Optional[Weights] = None
        self.draft_config = identity(vllm_config)
        """The draft layers' configuration before they are loaded, which changes it."""
        self._draft_files: Optional[Weights] = None
        self._draft_format = ""
        self._shapes: Optional[dict[str, Any]] = None
        self._error: Optional[OSError] = None
        try:
            self._begin()
            if in_pages(vllm_config):
                self._begin_drafts(vllm_config)
        except OSError as error:
            self._error = error
        self.name: Optional[Name] = None
        """The engine's name, once its model is loaded."""
        self.unshare: Callable[[Optional[int]], None] = lambda adapter: None
        """Ends the sharing of requests that run, of one adapter or all."""
        self.adapters_change: Callable[[], None] = lambda: None

    def close(self) -> None:
        """The engine ends."""
        _watches.pop(self._engine_id, None)

    def _folder(self, source: Optional[tuple[str, Any]]) -> pathlib.Path:
        if source is None:
            raise FileNotFoundError("vLLM's configuration was changed while it ran")
        return model_folder(source[0], source[1], self._download_dir)

    def _begin(self) -> None:
        """Read the files beside the workers, if they name the weights. OSError."""
        if self._unknown is None:
            folder = self._folder(self._source)
            self._shapes = tensor_shapes(folder)
            self._files = Weights(folder)

    def _begin_drafts(self, vllm_config: Any) -> None:
        """Read the draft layers' files, if they name the weights. OSError."""
        from vllm.model_executor.model_loader.utils import get_draft_load_config

        spec, load = vllm_config.speculative_config, get_draft_load_config(vllm_config)
        why = unknown(load)
        if why is not None:
            logger.warning("kvtrunk: this engine shares with no other: draft layers, %s", why)
            return
        self._draft_format = load.load_format
        self._draft_files = Weights(self._folder((spec.model, spec.revision)))

    # ---- what is there now

    def files(self) -> Optional[str]:
        """Name of the weights loaded at the start, as the `files` of Name. OSError."""
        if self._error is not None:
            raise self._error
        if self._files is not None:
            found, self._files = self._files.result(), None
            return self._named(found)
        # A trainer gives an engine of random weights others, and a version.
        random = self._format == "dummy"
        logger.warning("kvtrunk: this engine shares with no other%s: %s",
                       " until its weights have a version" if random else "", self._unknown)
        return "" if random else None

    def _named(self, digest: str) -> str:
        """Name of loaded files. A folder may have files of several formats."""
        return f"{digest} {self._format}"

    def draft_files(self) -> str:
        """Name of the weights of draft layers in the pages, after files(). OSError."""
        if self._draft_files is None:
            return secrets.token_hex(16) if self.draft_config else ""
        found, self._draft_files = self._draft_files.result(), None
        return f"{found} {self._draft_format}"

    def built(self) -> list[str]:
        """Digest of the model and its draft layers as each rank has built them."""
        found: list[str] = self._call(_built)
        return found

    def load_adapter(self, request: Any) -> dict[int, str]:
        """Load an adapter, so that no step does. Returns the digests of all that are loaded."""
        ranks: list[dict[int, str]] = self._call(_adapters, args=(request,))
        both = set.intersection(*(set(rank) for rank in ranks))
        return {number: " ".join(rank[number] for rank in ranks) for number in both}

    # ---- what changes it

    def collective_rpc(self, method: Any, *args: Any, **kwargs: Any) -> Any:
        """Executor.collective_rpc()."""
        if self.name is None or (method.__class__ is str and method in HARMLESS):
            return self._call(method, *args, **kwargs)
        given = _arguments(*args, **kwargs)
        if method.__class__ is str and method in ADAPTERS:
            return self._adapters_change(method, given, args, kwargs)
        return self._weights_change(method, given, args, kwargs)

    def _adapters_change(self, method: str, given: tuple[Any, Any], args: Any, kwargs: Any) -> Any:
        what = (*given[0], *given[1].values())[0]
        number = getattr(what, "lora_int_id", what)
        if method == "remove_lora" or what.load_inplace:
            self._call("synchronize_device")
            self.unshare(number)
        try:
            return self._call(method, *args, **kwargs)
        finally:
            self.adapters_change()

    def _weights_change(self, method: Any, given: tuple[Any, Any], args: Any, kwargs: Any) -> Any:
        assert self.name is not None
        before = "" if self.name.alone else str(self.name)
        self._call("synchronize_device")  # steps in flight end with their weights
        self.name.unknown()
        self.unshare(None)
        reload = _Reload(self, *given) if method == "reload_weights" else None
        if method == "update_config":
            self._source = None
        try:
            result = self._call(method, *args, **kwargs)
        except BaseException:
            self.name.failed()
            raise
        if reload is not None:
            self.name.files(reload.digest(before))
        what = method if isinstance(method, str) else "a function in the workers"
        logger.info("kvtrunk: %s: this engine shares as %s from now on", what, self.name)
        return result

    def version(self, version: str) -> None:
        """The trainer has given the weights a version."""
        if self.name is None:
            return
        self.unshare(None)
        why = self.name.version(version)
        if why:
            logger.warning("kvtrunk: weight version %s: this engine shares with no other: %s",
                           version, why)
        else:
            logger.info("kvtrunk: weight version %s: this engine shares as %s from now on", version,
                        self.name)

    def _loads(self, path: Optional[str]) -> pathlib.Path:
        """The folder that reload_weights() loads from."""
        if path is not None:
            self._source = (path, None)
        return self._folder(self._source)

    def _covers(self, folder: pathlib.Path) -> bool:
        """Whether its files replace all that the engine loaded at its start."""
        return self._shapes is not None and tensor_shapes(folder) == self._shapes


class _Reload:
    """reload_weights(): the digest of what it loads, made while it loads."""

    def __init__(self, watch: Watch, args: Any, kwargs: Any) -> None:
        given = {**dict(zip(("weights_iterator", "weights_path", "is_checkpoint_format"), args)),
                 **kwargs}
        self._watch = watch
        self._files: Optional[Weights] = None
        self._whole = False
        if given.get("weights_iterator") is not None:
            return
        try:
            folder = watch._loads(given.get("weights_path"))
            if watch._unknown is None:
                self._files, self._whole = Weights(folder), watch._covers(folder)
        except OSError:
            pass  # vLLM may load from elsewhere

    def digest(self, before: str) -> Optional[str]:
        """Digest of the loaded weights. A part of all is named over `before`. None: unknown."""
        try:
            digest = self._files.result() if self._files is not None else None
        except OSError:
            return None
        if digest is None:
            return None
        digest = self._watch._named(digest)
        if self._whole:
            return digest
        return f"{digest} over {before}" if before else None


def _arguments(timeout: Any = None, args: Any = (), kwargs: Any = None,
               *_: Any, **__: Any) -> tuple[Any, Any]:
    """Arguments that a call gives to the workers: as Executor.collective_rpc() after its method."""
    return args, kwargs or {}


# ---- in a worker

def _built(worker: Any) -> str:
    """The digest of its model. Data-parallel ranks that compute experts together call this at the
    same time, and each is named by what all of them have."""
    from vllm.distributed.parallel_state import get_dp_group

    from ..engine._built import built_digest

    group, drafts = get_dp_group(), model_of(worker)
    model = worker.get_model()
    mine = built_digest(model)
    if getattr(model, "secondary_weights", ()):
        logger.warning("kvtrunk: this engine shares with no other: %s loads weights from other "
                       "folders than its own, too", type(model).__name__)
        mine += secrets.token_hex(16)
    if drafts is not None:
        mine += built_digest(drafts)
    found = [mine] * group.world_size
    if group.world_size > 1:
        torch.distributed.all_gather_object(found, mine, group=group.cpu_group)
    return " ".join(found)


def _adapters(worker: Any, request: Any) -> dict[int, str]:
    """Load an adapter, and say what is loaded. Nothing, if it cannot be loaded: vLLM says why."""
    from ..engine._built import held_digest

    try:
        worker.add_lora(request)
    except Exception:  # of vLLM, of its libraries
        return {}
    manager = worker.model_runner.lora_manager
    found = {}
    for number in manager.list_adapters():
        adapter = manager._adapter_manager.get_adapter(number)
        if not hasattr(adapter, "kvtrunk_digest"):
            held = {name: value for name, value in vars(adapter).items() if name != "id"}
            adapter.kvtrunk_digest = held_digest(held)
        found[number] = adapter.kvtrunk_digest
    return found
