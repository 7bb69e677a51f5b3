# SPDX-License-Identifier: Apache-2.0
"""One engine: the scheduler's session, its workers' pools, and the channel between them.

vLLM's EngineCore has the scheduler and opens the session. A worker is in the same process, or in
one of its own: then the two are a group of kvtrunk, so that no page is given away while one of them
lives. EngineCore hands the group's token to its workers on a socket that is named after vLLM's
engine id; each worker answers there when it has proved that its KV tensors lie in the pool.
"""
from __future__ import annotations

import json
import os
import socket
import struct
import threading
import time
from typing import Any, Optional

from vllm.logger import init_logger

from .._client import Client, Info, connect
from .._errors import DaemonUnreachable, Error, NoSpace
from ._identity import Adapters
from ._pool import WorkerPool
from ._refuse import refuse
from ._ring import STEP_WORD, Ring

logger = init_logger("vllm.kvtrunk")  # vLLM shows its own names only

PATIENCE_S = 120.0
"""How long an engine waits for a daemon after it lost one, before it ends."""
_RETRY_S = 0.2
_JOIN_S = 120.0
_ALL = (1 << 64) - 1


def _channel(engine_id: str) -> str:
    return f"\0kvtrunk-vllm-{engine_id}"


def _same_user(connection: socket.socket) -> bool:
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return bool(struct.unpack("3i", raw)[1] == os.geteuid())


class Engine:
    """The scheduler's side."""

    def __init__(self, vllm_config: Any) -> None:
        transfer = vllm_config.kv_transfer_config
        self.engine_id: str = transfer.engine_id
        self._socket: Optional[str] = transfer.kv_connector_extra_config.get("socket")
        self._label = f"vllm {os.path.basename(vllm_config.model_config.model)}"
        self._limits = (vllm_config.scheduler_config.max_num_seqs,
                        vllm_config.model_config.max_model_len)
        parallel = vllm_config.parallel_config
        self.n_workers = 0 if parallel.distributed_executor_backend == "uni" else (
            parallel.world_size)
        """Workers in processes of their own."""
        self.ring = Ring(self._socket, self._label, *self._limits)
        self.info: Info = self.ring.info
        self.session = 1
        """Counts sessions: leases of an earlier one are gone."""
        self.is_lost = False
        self._lost_at = self._tried_at = 0.0
        self._lost_text = ""
        self._token = b""
        self._adapters = Adapters()
        self._epoch: Optional[bytes] = None
        self._model = ""
        self._namespaces: dict[Any, int] = {}
        self.nobody = 0
        """A namespace for requests that share nothing."""
        self.proofs: dict[int, dict[str, Any]] = {}
        """What each worker said of its KV tensors."""
        self._listener: Optional[socket.socket] = None
        self.worker: Optional[WorkerPool] = None
        """The worker, if it is in this process."""
        if self.n_workers:
            self._open_group()
            self._listen()

    # ---- the group

    def _open_group(self) -> None:
        self._token = self.ring.client.group(1 + self.n_workers)

    @property
    def token(self) -> str:
        """With which workers of their own process join the present session; "" if there are
        none."""
        return self._token.hex()

    def _listen(self) -> None:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            listener.bind(_channel(self.engine_id))
        except OSError:
            listener.close()
            refuse(f"another engine on this host has the engine_id {self.engine_id}: give each its "
                   "own in --kv-transfer-config, or none")
        listener.listen(self.n_workers)
        self._listener = listener
        self._hello = json.dumps({"token": self.token, "socket": self._socket}).encode()
        threading.Thread(target=self._serve, args=(listener,), daemon=True,
                         name="kvtrunk-workers").start()

    def _serve(self, listener: socket.socket) -> None:
        """Answer workers, one after the other, until all have said what they found."""
        while len(self.proofs) < self.n_workers:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve_one, args=(connection,), daemon=True,
                             name="kvtrunk-worker").start()

    def _serve_one(self, connection: socket.socket) -> None:
        with connection:
            if not _same_user(connection):
                return
            connection.sendall(self._hello)
            said = connection.recv(65536)
            if said:
                proof = json.loads(said)
                self.proofs[proof["rank"]] = proof
                connection.sendall(b"ok")

    # ---- namespaces

    def open(self, model: str) -> None:
        """Name what all KV of this engine depends on. Before any request."""
        self._model = model
        self.nobody = self._open_namespace(None, None, b"nobody")

    def _open_namespace(self, adapter: Optional[str], salt: Optional[str],
                        extra: Optional[bytes]) -> int:
        return self.ring.client.namespace(model=self._model, adapter=adapter, salt=salt,
                                          extra=extra)._id

    def namespace(self, request: Any) -> Optional[int]:
        """A request's namespace. None: its tokens do not name its KV, it shares nothing."""
        if request.prompt_embeds is not None or request.mm_features:
            return None
        adapter = None
        if request.lora_request is not None:
            try:
                adapter = self._adapters.digest(request.lora_request.lora_path)
            except OSError as error:
                logger.warning_once("kvtrunk: requests with the adapter %s share nothing: %s",
                               request.lora_request.lora_name, str(error))
                return None
        key = (adapter, request.cache_salt, self._epoch)
        found = self._namespaces.get(key)
        if found is None:
            try:
                found = self._open_namespace(*key)
            except NoSpace as error:
                logger.warning_once("kvtrunk: a request shares nothing: %s", str(error))
                return None
            self._namespaces[key] = found
        return found

    def new_epoch(self) -> None:
        """From now on nothing that is cached matches. A random number, not a count: two engines
        that count alike may hold different weights."""
        self._epoch = os.urandom(16)

    # ---- a session that ends

    def lose(self, error: Error) -> None:
        """The session is gone, with all leases."""
        self.is_lost, self._lost_at, self._lost_text = True, time.monotonic(), str(error)

    def recover(self) -> bool:
        """Try to open a session, at most every 200 ms. No step may be in flight. RuntimeError
        after PATIENCE_S, or if the new daemon is another one: the engine ends."""
        now = time.monotonic()
        if now - self._tried_at < _RETRY_S:
            return False
        self._tried_at = now
        try:
            ring = Ring(self._socket, self._label, *self._limits)
        except DaemonUnreachable as error:
            if now - self._lost_at > PATIENCE_S:
                raise RuntimeError(f"kvtrunk: {self._lost_text}, and for {PATIENCE_S:.0f} s no "
                                   f"daemon came back: {error}") from None
            return False
        old, info = self.info, ring.info
        if (info.page_size, info.n_pages, info.page_bytes, info.geometry) != (
                old.page_size, old.n_pages, old.page_bytes, old.geometry):
            ring.close(0)
            raise RuntimeError(
                "kvtrunk: the daemon came back with other pages "
                f"({info.n_pages} of {info.page_bytes} bytes, before {old.n_pages} of "
                f"{old.page_bytes}): start the engine again")
        self.ring.close(0)
        self.ring, self.info = ring, info
        self.session += 1
        self._namespaces.clear()
        self.open(self._model)
        if self.n_workers:
            self._open_group()
        elif self.worker is not None:
            self.worker.follow(ring.client)
        self.is_lost = False
        logger.warning("kvtrunk: connected again as session %d: its cache is empty, requests are "
                       "computed again", info.session)
        return True

    def close(self, step: int) -> None:
        """End the session when the step has ended."""
        if self._listener is not None:
            self._listener.close()
        self.ring.close(step)


class Worker:
    """A worker's side in a process of its own."""

    def __init__(self, engine_id: str, rank: int) -> None:
        self.rank = rank
        self._channel = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._channel.settimeout(_JOIN_S)
        try:
            self._channel.connect(_channel(engine_id))
            if not _same_user(self._channel):
                raise OSError("it is another user's")
            hello = json.loads(self._channel.recv(65536))
        except (OSError, ValueError) as error:
            refuse("the worker does not reach its EngineCore, which has not opened a session "
                   f"({error}). Unset VLLM_KV_CACHE_LAYOUT, which skips that")
        self._socket: Optional[str] = hello["socket"]
        self.token: str = hello["token"]
        self.client = self._join(self.token)
        self.pool = WorkerPool(self.client, rank)

    def _join(self, token: str) -> Client:
        """Join the group. This process touches pages within steps of rank 0 only, whose fences
        tell when they have ended."""
        client = connect(self._socket, label=f"vllm worker {self.rank}", any_geometry=True,
                         group=bytes.fromhex(token), rank=1 + self.rank)
        client.raise_fence(STEP_WORD, _ALL)
        return client

    def follow(self, token: str) -> None:
        """Before a step: its pages are those of the session with this token."""
        if token != self.token:
            self.token = token
            self.client = self._join(token)
            self.pool.follow(self.client)

    def tell(self, proof: dict[str, Any]) -> None:
        """Tell EngineCore what the KV tensors are, and wait until it knows."""
        self._channel.sendall(json.dumps({**proof, "rank": self.rank}).encode())
        if self._channel.recv(16) != b"ok":
            raise RuntimeError("kvtrunk: EngineCore has gone")
        self._channel.close()
