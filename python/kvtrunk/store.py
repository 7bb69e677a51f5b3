# SPDX-License-Identifier: Apache-2.0
"""Helpers of kvtstored: they keep its pages in a distributed store, for other hosts.

    kvtstored --helper "python3 -m kvtrunk.store mooncake --master 10.0.0.1:50051"

kvtstored starts them, with a socket as their standard input (kvtrunk_wire_helper.h). A call of the
store's library may take as long as it likes: kvtstored does not wait for it, and kills a helper
that never answers. A helper of your own is serve() and a Backend.
"""
from __future__ import annotations

import argparse
import ctypes
import importlib
import mmap
import os
import queue
import socket
import stat
import struct
import sys
import threading
from typing import Any, Callable, NamedTuple, NoReturn, Optional, Protocol, Sequence

from ._own import Owner
from ._limited_log import LimitedLog
from ._options import Parser, count, run, size

_MAGIC, _VERSION = 0x4856414B, 2
_HELLO, _READY, _EXISTS, _GET, _PUT = range(1, 6)
_HEAD = struct.Struct("<IHHIiQ")
_SIZES = struct.Struct("<QQQ")
_PAGE = struct.Struct("<16sQQ")
_PAGES_MAX = 2048
_GETS = 2  # without their answers
_KIND_BYTES = 16
_SEAL_BYTES = 32
_NO_SOCKET = "standard input is no socket of kvtstored, which starts helpers: kvtstored --helper"
_MESSAGE_MAX = _HEAD.size + 8 + _PAGES_MAX * _PAGE.size


class Part(NamedTuple):
    """Bytes of the store's memory."""

    at: int
    size: int


class Page(NamedTuple):
    """A page of a request. Its value is its parts, one after the other."""

    key: str
    parts: tuple[Part, Part]


class Memory(Owner):
    """The memory of kvtstored."""

    def __init__(self, descriptor: int, size: int) -> None:
        self.size = size
        self._map = mmap.mmap(descriptor, size)
        self.view = memoryview(self._map)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))

    def read(self, page: Page) -> bytes:
        """The value of a page."""
        return b"".join(self.view[part.at:part.at + part.size] for part in page.parts)

    def write(self, page: Page, value: Optional[bytes]) -> bool:
        """Bring a page's value. False: it is None, or has another size."""
        if value is None or len(value) != sum(part.size for part in page.parts):
            return False
        at = 0
        for part in page.parts:
            self.view[part.at:part.at + part.size] = value[at:at + part.size]
            at += part.size
        return True


class Backend(Protocol):
    """A distributed store. Each method has a thread of its own, get() two. If it raises, that counts
    as an answer of no page."""

    def exists(self, pages: Sequence[Page]) -> Sequence[bool]:
        """Which pages are there."""

    def get(self, pages: Sequence[Page]) -> Sequence[bool]:
        """Bring values into the memory. Which came whole."""

    def put(self, pages: Sequence[Page]) -> Sequence[bool]:
        """Store values. Which are there now."""


Connect = Callable[[Memory], Backend]


class _Server:
    def __init__(self, peer: socket.socket, connect: Connect, kind_of_store: str) -> None:
        self._peer, self._kind = peer, kind_of_store.encode("ascii")
        message, descriptors, _, _ = socket.recv_fds(peer, _MESSAGE_MAX, 1)
        if len(message) != _HEAD.size + _SIZES.size or len(descriptors) != 1:
            raise ValueError(_NO_SOCKET)
        magic, kind, version, *_ = _HEAD.unpack_from(message)
        if (magic, kind, version) != (_MAGIC, _HELLO, _VERSION):
            raise ValueError("kvtstored speaks another version: install the package and kvtstored "
                             "of one release")
        size, self._record_bytes, _ = _SIZES.unpack_from(message, _HEAD.size)
        backend = connect(Memory(descriptors[0], size))
        os.close(descriptors[0])
        self._queues: dict[int, queue.SimpleQueue[bytes]] = {}
        for kind, call in (_EXISTS, backend.exists), (_GET, backend.get), (_PUT, backend.put):
            self._queues[kind] = queue.SimpleQueue()
            for _ in range(_GETS if kind == _GET else 1):
                threading.Thread(target=self._work, args=(kind, call), daemon=True).start()

    def run(self) -> None:
        """Hand messages to the threads until kvtstored is gone."""
        self._send(_READY, 0, self._kind[:_KIND_BYTES - 1].ljust(_KIND_BYTES, b"\0"))
        while message := self._peer.recv(_MESSAGE_MAX):
            magic, kind, version, size, _, _ = _HEAD.unpack_from(message)
            if (magic, version, size) != (_MAGIC, _VERSION, len(message)):
                raise ValueError("kvtstored sent what is no message")
            self._queues[kind].put(message)

    def _send(self, kind: int, cookie: int, payload: bytes) -> None:
        size = _HEAD.size + len(payload)
        self._peer.send(_HEAD.pack(_MAGIC, kind, _VERSION, size, 0, cookie) + payload)

    def _work(self, kind: int, call: Callable[[Sequence[Page]], Sequence[bool]]) -> None:
        warn = LimitedLog(lambda form, text: print(form % text, file=sys.stderr, flush=True))
        while True:
            message = self._queues[kind].get()
            cookie = _HEAD.unpack_from(message)[-1]
            pages = [Page(f"kvt:{name.hex()}", (Part(record_at, self._record_bytes),
                                                Part(seal_at, _SEAL_BYTES)))
                     for name, record_at, seal_at in _PAGE.iter_unpack(message[_HEAD.size + 8:])]
            bits = bytearray(_PAGES_MAX // 8)
            try:
                for i, good in enumerate(call(pages)):
                    bits[i // 8] |= bool(good) << i % 8
            except Exception as error:  # pylint: disable=broad-except
                bits = bytearray(_PAGES_MAX // 8)
                warn(f"the distributed store fails: {type(error).__name__}: {error}",
                     type(error).__name__)
            self._send(kind, cookie, bytes(bits))


def serve(connect: Connect, descriptor: int = 0, kind: str = "") -> None:
    """Answer kvtstored until it is gone. connect: called once. kind: what operators call the store,
    of a-z and 0-9."""
    if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
        raise ValueError(_NO_SOCKET)
    with socket.socket(fileno=os.dup(descriptor)) as peer:
        _Server(peer, connect, kind).run()


def _imported(name: str, package: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(f"{name} cannot be imported ({error}): pip install {package}") from None


class Mooncake(Owner):
    """Mooncake Store. It reads and writes the memory in place."""

    def __init__(self, memory: Memory, options: argparse.Namespace) -> None:
        os.environ.setdefault("GLOG_minloglevel", "3")  # else a line for each page
        library = _imported("mooncake.store", "mooncake-transfer-engine-non-cuda (with CUDA: "
                            "mooncake-transfer-engine); both need libibverbs1 of the distribution")
        self._memory = memory
        self._store = library.MooncakeDistributedStore()
        failed = self._store.setup(options.host, options.metadata, options.segment_bytes,
                                   16 << 20, options.protocol, options.devices, options.master)
        if failed:
            raise ConnectionError(f"Mooncake's master at {options.master} cannot be reached "
                                  f"({failed}): --master, and is mooncake_master running?")
        if self._store.register_buffer(memory.address, memory.size):
            raise MemoryError(f"Mooncake does not register {memory.size} bytes: with RDMA, raise "
                              "LimitMEMLOCK= of the unit")
        self._replicas = library.ReplicateConfig()
        self._replicas.replica_num = options.replicas

    def _parts(self, pages: Sequence[Page]) -> tuple[list[str], list[list[int]], list[list[int]]]:
        return ([page.key for page in pages],
                [[self._memory.address + part.at for part in page.parts] for page in pages],
                [[part.size for part in page.parts] for page in pages])

    def exists(self, pages: Sequence[Page]) -> Sequence[bool]:
        return [found == 1 for found in self._store.batch_is_exist([page.key for page in pages])]

    def get(self, pages: Sequence[Page]) -> Sequence[bool]:
        sizes = self._store.batch_get_into_multi_buffers(*self._parts(pages))
        return [size == sum(part.size for part in page.parts)
                for size, page in zip(sizes, pages)]

    def put(self, pages: Sequence[Page]) -> Sequence[bool]:
        return [failed == 0 for failed in
                self._store.batch_put_from_multi_buffers(*self._parts(pages), self._replicas)]


class Redis(Owner):
    """A Redis cluster. A pipeline for each of its nodes."""

    def __init__(self, memory: Memory, options: argparse.Namespace) -> None:
        redis = _imported("redis.cluster", "redis")
        self._memory = memory
        self._ttl = options.ttl
        self._cluster = redis.RedisCluster.from_url(options.url, socket_timeout=2,
                                                    socket_connect_timeout=1)

    def _each(self, pages: Sequence[Page], command: Callable[[Any, Page], Any]) -> list[Any]:
        pipeline = self._cluster.pipeline()
        for page in pages:
            command(pipeline, page)
        answers: list[Any] = pipeline.execute(raise_on_error=False)
        errors = [answer for answer in answers if isinstance(answer, Exception)]
        if len(errors) == len(answers):
            raise errors[0]
        return [None if isinstance(answer, Exception) else answer for answer in answers]

    def exists(self, pages: Sequence[Page]) -> Sequence[bool]:
        # 1 as EXISTS; and what is asked for anywhere stays.
        return [found == 1 for found in
                self._each(pages, lambda pipeline, page: pipeline.expire(page.key, self._ttl))]

    def get(self, pages: Sequence[Page]) -> Sequence[bool]:
        values = self._each(pages, lambda pipeline, page: pipeline.getex(page.key, ex=self._ttl))
        return [self._memory.write(page, value) for page, value in zip(pages, values)]

    def put(self, pages: Sequence[Page]) -> Sequence[bool]:
        return [bool(stored) for stored in
                self._each(pages, lambda pipeline, page: pipeline.set(
                    page.key, self._memory.read(page), ex=self._ttl))]


def _url(text: str) -> str:
    if not text.startswith(("redis://", "rediss://")):
        raise argparse.ArgumentTypeError(f"{text!r} is no address: write it as redis://HOST:PORT")
    return text


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="python3 -m kvtrunk.store", description=__doc__,
                    formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = parser.add_subparsers(required=True, metavar="mooncake|redis")
    mooncake = kinds.add_parser("mooncake", help="Mooncake Store")
    mooncake.set_defaults(backend=Mooncake)
    mooncake.add_argument("--master", default="127.0.0.1:50051", metavar="HOST:PORT")
    mooncake.add_argument("--host", default=socket.gethostname(),
                          help="this host, as others reach it; default: its name")
    mooncake.add_argument("--segment-bytes", type=size, default=0, metavar="SIZE",
                          help="memory that this process gives to the store, as 64G; default: 0, "
                          "for hosts with a mooncake_client of their own")
    mooncake.add_argument("--replicas", type=int, default=1, metavar="N", help="default: 1")
    mooncake.add_argument("--metadata", default="P2PHANDSHAKE", help="default: %(default)s")
    mooncake.add_argument("--protocol", default="tcp", choices=["tcp", "rdma"],
                          help="default: tcp")
    mooncake.add_argument("--devices", default="", help="with rdma, as mlx5_0; default: all")
    redis = kinds.add_parser("redis", help="a Redis cluster")
    redis.set_defaults(backend=Redis)
    redis.add_argument("--url", type=_url,
                       default=os.environ.get("KVTRUNK_REDIS_URL", "redis://127.0.0.1:6379"),
                       help="of any node, redis://[USER:PASSWORD@]HOST:PORT; default: "
                       "KVTRUNK_REDIS_URL, where other users do not see a password")
    redis.add_argument("--ttl", type=count, default=86400, metavar="SECONDS",
                       help="a page leaves that was not read for so long; default: a day")
    return parser


def main() -> NoReturn:
    """Serve as a helper."""
    options = _parser().parse_args()

    def connect(memory: Memory) -> Backend:
        backend: Backend = options.backend(memory, options)
        return backend

    try:
        serve(connect, kind=options.backend.__name__.lower())
    except Exception as error:  # pylint: disable=broad-except
        print(f"kvtrunk.store: {error}", file=sys.stderr, flush=True)
        os._exit(1)
    os._exit(0)  # a call of a library may hang


if __name__ == "__main__":
    run("kvtrunk.store", main)
