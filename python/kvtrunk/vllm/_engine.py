# SPDX-License-Identifier: Apache-2.0
"""One engine: the scheduler's session and its workers' pools.

vLLM's EngineCore has the scheduler and opens the session. A worker is in the same process, or, as
one of several always, in one of its own: then EngineCore is rank 0 of a group of kvtrunk and worker
n is rank 1 + n, so that no page is given away while one of them lives. All derive the group's token
from vLLM's engine id, which is random unless the user gives one. Each data-parallel rank is an engine
of its own: vLLM appends the rank to its engine id.
"""
from __future__ import annotations

import errno
import hashlib
import multiprocessing
import os
import select
import threading
import time
from typing import Any, Callable, Optional

from vllm import envs
from vllm.logger import init_logger

from .. import (Client, ConnectionLost, DaemonUnreachable, Error, Info, Namespace, NoSpace,
                QuotaExceeded, Stale, Timeout, connect)
from .._limited_log import LimitedLog
from .._seq import Fence
from ..engine import (LOST_S, Checks, Name, Ring, Spaces, Stall, check_every, connected_again,
                      fetch_wait, min_positions, refuse, socket_of)
from . import _drafts
from ._events import Events, events_of
from ._identity import Adapters, model_digest
from ._pool import WorkerPool
from ._updates import watch_of

logger = init_logger("vllm.kvtrunk")  # vLLM shows its own names only

STEP_WORD = 0
"""The fence word of all fences: the number of the last step whose output came."""
DAEMON_S = 120.0
"""How long an engine waits for a daemon after it lost one, before it ends, unless on_loss is wait."""
PATIENCE_S = 0.1
"""How long a step waits for a request's admission: steps of others need none."""
OPTIONS = ("check_every", "min_positions", "on_loss", "socket", "store")
"""Names in kv_connector_extra_config."""
_HANDSHAKE_S = 2.0
"""How long one try to connect again may take."""
_RETRY_S = 0.2
_STOCK = 32
"""Pages kept for running requests, at most, while there are any."""
_CLOSE_S = 5.0
_ALL = (1 << 64) - 1


def socket(vllm_config: Any, which: str = "socket") -> Optional[str]:
    """The daemon's socket, or the store's, in all processes of an engine alike. {device}: that of its
    rank 0, which vLLM chooses by the data-parallel rank within this host."""
    given = vllm_config.kv_transfer_config.kv_connector_extra_config.get(which)
    if given is not None and not isinstance(given, str):
        example = "default.sock" if which == "socket" else "default.store"
        refuse(f"the option {which} is {given!r}: give a text, as \"/run/kvtrunk/{example}\"")
    parallel, device = vllm_config.parallel_config, None
    if vllm_config.device_config.device_type == "cuda":
        rank = parallel.data_parallel_rank_local
        device = parallel.world_size * (parallel.data_parallel_index if rank is None else rank)
    try:
        return socket_of(given, device, parallel.assigned_physical_gpu_ids, which)
    except ValueError as error:
        refuse(str(error))


def _waits_for_ever(vllm_config: Any) -> bool:
    """The option on_loss. Refused: it, or a name that is no option."""
    given = vllm_config.kv_transfer_config.kv_connector_extra_config
    for name in given:
        if name not in OPTIONS:
            refuse(f"kv_connector_extra_config has {name!r}, which is none of {', '.join(OPTIONS)}")
    on_loss = given.get("on_loss", "end")
    if on_loss not in ("end", "wait"):
        refuse(f"the option on_loss is {on_loss!r}: give \"end\", or \"wait\" for an engine that waits "
               "for its daemon as long as it takes")
    return bool(on_loss == "wait")


def _token(engine_id: str, session: int) -> bytes:
    """The token of the group of an engine's session, 1 for its first."""
    return hashlib.blake2b(f"{session} {engine_id}".encode(), digest_size=16).digest()


def _close(client: Client, fence: Optional[Fence] = None) -> None:
    """End a session at the fence, which at the end of an engine may never come."""
    try:
        client.set_timeout(_CLOSE_S)
        client.close(fence)
    except (Error, BufferError):
        pass  # the daemon sees the end of the process


class Engine:
    """The scheduler's side."""

    def __init__(self, vllm_config: Any) -> None:
        transfer = vllm_config.kv_transfer_config
        self.engine_id: str = transfer.engine_id
        try:
            self._check_every = check_every(transfer.kv_connector_extra_config.get("check_every"))
            self._fetch_wait = fetch_wait()
            self.min_positions = min_positions(
                transfer.kv_connector_extra_config.get("min_positions"))
        except ValueError as error:
            refuse(str(error))
        self.warn = LimitedLog(logger.warning)
        self.checks = Checks(self._check_every, self.warn)
        self._waits = _waits_for_ever(vllm_config)
        self._socket, self._store = socket(vllm_config), socket(vllm_config, "store")
        self._label = f"vllm {os.path.basename(vllm_config.model_config.model)}"
        self._limits = (vllm_config.scheduler_config.max_num_seqs,
                        vllm_config.model_config.max_model_len)
        self.whole: bool = vllm_config.scheduler_config.scheduler_reserve_full_isl
        """Whether a request begins when the pool has pages for all its tokens."""
        self.steps_idle: bool = envs.VLLM_ENABLE_V1_MULTIPROCESSING
        """Whether vLLM steps without requests, while there is something to give back. An engine in
        its caller's process does not."""
        self.batches: int = vllm_config.max_concurrent_batches
        """Steps in flight at most."""
        parallel = vllm_config.parallel_config
        self.drafts: bool = _drafts.in_pages(vllm_config)
        """Whether pages hold the KV of draft layers."""
        self.speculates: bool = vllm_config.speculative_config is not None
        self.drafts_longest: int = _drafts.longest(vllm_config)
        self.n_workers = 0 if parallel.distributed_executor_backend == "uni" else (
            parallel.world_size)
        """Workers in processes of their own."""
        self._ranks: int = parallel.world_size
        self.ring = self._connect(None)
        self.info: Info = self.ring.client.info
        self.session = 1
        """Counts sessions: leases of an earlier one are gone."""
        self.is_lost = False
        self._lost_at = self._tried_at = 0.0
        self._lost_text = ""
        watch = watch_of(self.engine_id)
        if watch is None:
            _close(self.ring.client)
            refuse("vLLM made its executor without the plug-in: let it load all plug-ins "
                   "(VLLM_PLUGINS), and start engines by its own programs")
        self.watch = watch
        self._adapters = Adapters()
        self._reloaded: set[int] = set()
        """Adapters that requests load in place: each step does it again."""
        watch.adapters_change = self._adapters_change
        self._built = [model_digest(vllm_config), *watch.draft_config, *watch.built()]
        self.name: Optional[Name] = None
        """Name of this engine's KV, once the workers said what computes it."""
        self._spaces = Spaces(self.ring, self._open_space, patience_s=PATIENCE_S)
        self._unshared: Optional[int] = None
        self.events: Optional[Events] = None
        """Publisher of KV events. None: none are published."""
        self._lora: dict[str, Any] = {}
        """Requests' adapters by their digests."""
        self.worker: Optional[WorkerPool] = None
        """The worker, if it is in this process."""
        if self.n_workers:
            self._open_group(self.ring.client, self.session)

    def _connect(self, timeout: Optional[float]) -> Ring:
        """A session for as many requests as are alive at a time, each with some operations in
        flight, and for the longest. timeout: of the handshake."""
        requests, positions = self._limits
        entries = 1 << max(8, (8 * requests - 1).bit_length())
        client = connect(
            self._socket, label=self._label, any_geometry=True, sq_entries=min(entries, 1 << 12),
            cq_entries=min(2 * entries, 1 << 14),
            keys_count=max(1 << 20, 1 << (2 * positions - 1).bit_length()), connect_wait=0,
            store=self._store, fetch_wait=self._fetch_wait, timeout=timeout)
        # Elsewhere a lost session may end the engine.
        lost_s = LOST_S if client.info.backend == "host" and self._ranks == 1 else None
        client.set_timeout(lost_s)
        return Ring(client, stock=min(_STOCK, client.info.n_pages // 64), warn=self.warn,
                    stall=Stall(self._socket, logger.warning, lost_s))

    def publish(self, vllm_config: Any) -> None:
        """Prepare KV events, if they are wanted. Before vLLM makes their publisher."""
        self.events = events_of(vllm_config, self._socket, self._label, self.drafts)

    # ---- the group

    def _open_group(self, client: Client, session: int) -> None:
        try:
            client.group(1 + self.n_workers, _token(self.engine_id, session))
        except Error as error:
            _close(client)
            if error.errno != errno.EEXIST:
                raise
            refuse(f"another engine of this daemon has the engine_id {self.engine_id}: give each "
                   "its own in --kv-transfer-config, or none")

    # ---- namespaces

    def open(self, made_by: str) -> None:
        """Name what all KV of this engine depends on. Before any request."""
        try:
            files, drafts = self.watch.files(), self.watch.draft_files()
        except OSError as error:
            refuse(f"the weights cannot be told from others: {error}. Give --model as a folder that "
                   "does not change, and start again")
        config = hashlib.sha256("\0".join([made_by, *self._built, drafts]).encode()).digest()
        self.watch.name = self.name = Name(config, files)
        self._unshared = self._open_unshared()
        if self.events is not None:  # before any request
            self._spaces.find((self.name.value(self.ring.client), None, None))

    def _open_unshared(self) -> int:
        return self.ring.client.namespace(extra=b"vllm unshared", label="vllm alone")._id

    def unshared(self) -> int:
        """A namespace for requests that share nothing. NoSpace, QuotaExceeded: there is no place for
        it now. Stalled."""
        if self._unshared is None:
            self._unshared = self._within(self._open_unshared)
        return self._unshared

    def _open_space(self, name: tuple[bytes, Optional[str], Optional[str]]) -> Namespace:
        value, adapter, salt = name
        space = self.ring.client.namespace(model=value, adapter=adapter, salt=salt,
                                           label=f"vllm {value.hex()[:8]}")
        if self.events is not None:
            self.events.share(space, self._lora.get(adapter or ""), salt)
        return space

    def namespace(self, request: Any) -> Optional[int]:
        """A request's namespace. None: there is none for it, it shares nothing."""
        if self.name is None:
            refuse("no worker said that its KV lies in the pool: vLLM did not ask them")
        adapter = None
        lora = request.lora_request
        if lora is not None:
            if lora.load_inplace and lora.lora_int_id not in self._reloaded:
                self._reloaded.add(lora.lora_int_id)
                self.watch.unshare(lora.lora_int_id)
            if lora.lora_int_id in self._reloaded:
                return None
            if lora.lora_int_id not in self._adapters:
                self._adapters.load(self.watch.load_adapter(lora))
            adapter = self._adapters.digest(lora.lora_int_id)
            self._lora[adapter] = lora
        try:
            value = self.name.value(self.ring.client, self._within)
            return self._spaces.find((value, adapter, request.cache_salt))._id
        except (NoSpace, QuotaExceeded) as error:
            logger.warning_once("kvtrunk: a request shares nothing: %s", str(error))
            return None

    def _within(self, call: Callable[[], int]) -> int:
        """Stalled: the daemon has not answered within the patience of a step."""
        return self.ring.within(PATIENCE_S, call)

    def _adapters_change(self) -> None:
        self._adapters.clear()
        self._lora.clear()
        self._reloaded.clear()

    def leave_spaces(self) -> None:
        """Close the namespaces of a name that is not used any more."""
        self._spaces.clear()
        if self.events is not None:
            self.events.forget()

    # ---- a session that ends

    def lose(self, error: Error) -> None:
        """The session is gone, with all leases."""
        self.is_lost, self._lost_at, self._lost_text = True, time.monotonic(), str(error)

    def _connect_again(self) -> Ring:
        """A session for this engine's pages, with its group. RuntimeError: the daemon has others."""
        ring = self._connect(_HANDSHAKE_S)
        old, info = self.info, ring.client.info
        if (info.page_size, info.n_pages, info.page_bytes, info.n_slabs, info.geometry,
                info.side_pages) != (old.page_size, old.n_pages, old.page_bytes, old.n_slabs,
                                     old.geometry, old.side_pages):
            _close(ring.client)
            raise RuntimeError(
                "kvtrunk: the daemon came back with other pages "
                f"({info.n_pages} of {info.page_bytes} bytes, before {old.n_pages} of "
                f"{old.page_bytes}) or sides: start the engine again")
        if self.n_workers:
            self._open_group(ring.client, self.session + 1)
        return ring

    def recover(self) -> bool:
        """Try to open a session, at most every 200 ms. No step may be in flight. A daemon without a
        place for it is none yet. RuntimeError after DAEMON_S, unless on_loss is wait, or if the new
        daemon is another one: the engine ends."""
        now = time.monotonic()
        if now - self._tried_at < _RETRY_S:
            return False
        self._tried_at = now
        try:
            ring = self._connect_again()
        except (DaemonUnreachable, NoSpace, QuotaExceeded, Timeout) as error:
            if now - self._lost_at > DAEMON_S and not self._waits:
                raise RuntimeError(f"kvtrunk: {self._lost_text}, and for {DAEMON_S:.0f} s no "
                                   f"daemon came back: {error}") from None
            return False
        old, info = self.info, ring.client.info
        _close(self.ring.client)
        self.ring, self.info = ring, info
        self.session += 1
        self._spaces = Spaces(ring, self._open_space, patience_s=PATIENCE_S)
        self.checks = Checks(self._check_every, self.warn)  # its sessions have numbers of its own
        if self.name is not None:
            self.name.forsake()
        self._unshared = None
        if self.worker is not None:
            self.worker.follow(ring.client)
        self.is_lost = False
        logger.warning("kvtrunk: %s", connected_again(old, info))
        return True

    def close(self, fence: Optional[Fence] = None) -> None:
        """End the session when the fence is reached."""
        self.watch.close()
        if self.events is not None:
            self.events.close()
        _close(self.ring.client, fence)


def _end_with(pid: int) -> None:
    """Wait for the end of EngineCore, then end this process. vLLM's own watch can miss it, as
    while a collective waits for another rank, and the pages of the group would never be free."""
    watched = select.poll()
    watched.register(os.pidfd_open(pid), select.POLLIN)
    watched.poll()
    os._exit(1)


class Worker:
    """A worker's side in a process of its own."""

    def __init__(self, vllm_config: Any) -> None:
        transfer = vllm_config.kv_transfer_config
        self.rank = vllm_config.parallel_config.rank
        self.session = 1
        self._engine_id: str = transfer.engine_id
        self._socket = socket(vllm_config)
        try:
            self.client = self._join()
        except Stale as error:
            refuse(f"EngineCore has not opened a session ({error}). Unset VLLM_KV_CACHE_LAYOUT, "
                   "which skips that")
        parent = multiprocessing.parent_process()
        if parent is not None and parent.pid is not None:
            threading.Thread(target=_end_with, args=(parent.pid,), daemon=True).start()
        self.pool = WorkerPool(self.client, self.rank)

    def _join(self) -> Client:
        """Join the group. This process touches pages within steps of rank 0 only, whose fences
        tell when they have ended (KvtrunkKVCacheManager.processed())."""
        client = connect(self._socket, label=f"vllm worker {self.rank}", any_geometry=True,
                         group=_token(self._engine_id, self.session), rank=1 + self.rank)
        client.raise_fence(STEP_WORD, _ALL)
        return client

    def follow(self, session: int) -> None:
        """Join the session of a step's pages, before the step."""
        if session != self.session:
            self.session = session
            self.client = self._join()
            self.pool.follow(self.client)
