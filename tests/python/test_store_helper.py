# SPDX-License-Identifier: Apache-2.0
"""Helpers of kvtstored: their messages, and what they make of distributed stores that fail."""
import mmap
import os
import socket
import struct
import subprocess
import sys
import threading

import pytest

from kvtrunk import store

HEAD = struct.Struct("<IHHIiQ")
MAGIC, VERSION = 0x4856414B, 2
HELLO, READY, EXISTS, GET, PUT = range(1, 6)
RECORD, SEAL, ROOM = 4096, 32, 8
SIZE = ROOM * (RECORD + SEAL)


class Values:
    """A distributed store in this process."""

    def __init__(self):
        self.values = {}
        self.memory = None
        self.gate = threading.Event()
        self.gate.set()
        self.error = None
        self.both = None  # GETs that wait for each other

    def connect(self, memory):
        self.memory = memory
        return self

    def exists(self, pages):
        if self.error:
            raise self.error
        return [page.key in self.values for page in pages]

    def get(self, pages):
        self.gate.wait()
        if self.both:
            self.both.wait()
        return [self.memory.write(page, self.values.get(page.key)) for page in pages]

    def put(self, pages):
        for page in pages:
            self.values[page.key] = self.memory.read(page)
        return [True for _ in pages]


class Store:
    """kvtstored's side of the socket."""

    def __init__(self, peer):
        self.peer = peer
        descriptor = os.memfd_create("memory")
        os.ftruncate(descriptor, SIZE)
        self.memory = mmap.mmap(descriptor, SIZE)
        self.hello(descriptor)
        os.close(descriptor)

    def hello(self, descriptor, version=VERSION):
        payload = struct.pack("<QQQ", SIZE, RECORD, SIZE)
        head = HEAD.pack(MAGIC, HELLO, version, HEAD.size + len(payload), 0, 0)
        socket.send_fds(self.peer, [head + payload], [descriptor])

    def ready(self):
        """The kind of store that READY tells."""
        message = self.peer.recv(65536)
        assert HEAD.unpack_from(message) == (MAGIC, READY, VERSION, 40, 0, 0)
        return message[HEAD.size:].rstrip(b"\0").decode()

    def take(self):
        """Kind, cookie and pages of the next message."""
        message = self.peer.recv(65536)
        magic, kind, version, size, result, cookie = HEAD.unpack_from(message)
        assert (magic, version, size, result) == (MAGIC, VERSION, len(message), 0)
        bits = int.from_bytes(message[HEAD.size:], "little")
        return kind, cookie, [i for i in range(2048) if bits >> i & 1]

    def ask(self, kind, cookie, names, record=0):
        payload = struct.pack("<II", len(names), 0)
        for i, name in enumerate(names, record):
            payload += struct.pack("<16sQQ", name, i * RECORD, ROOM * RECORD + i * SEAL)
        self.peer.send(HEAD.pack(MAGIC, kind, VERSION, HEAD.size + len(payload), 0, cookie) +
                       payload)

    def fill(self, record, byte):
        self.memory[record * RECORD:(record + 1) * RECORD] = byte * RECORD
        at = ROOM * RECORD + record * SEAL
        self.memory[at:at + SEAL] = byte.upper() * SEAL

    def value(self, record):
        at = ROOM * RECORD + record * SEAL
        return self.memory[record * RECORD:(record + 1) * RECORD] + self.memory[at:at + SEAL]


NAMES = [bytes([i]) * 16 for i in range(1, ROOM)]


@pytest.fixture(name="values")
def _values():
    return Values()


@pytest.fixture(name="peer")
def _peer(values):
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, its:
        thread = threading.Thread(target=store.serve, args=(values.connect, its.fileno(), "values"))
        thread.start()
        peer = Store(ours)
        assert peer.ready() == "values"
        yield peer
        values.gate.set()
        ours.shutdown(socket.SHUT_RDWR)
        thread.join()


def test_values_come_back_as_they_were_stored(peer, values):
    for i, byte in enumerate((b"a", b"b")):
        peer.fill(i, byte)
    peer.ask(PUT, 7, NAMES[:2])
    assert peer.take() == (PUT, 7, [0, 1])
    assert list(values.values) == ["kvt:" + name.hex() for name in NAMES[:2]]
    peer.ask(EXISTS, 8, [NAMES[1], NAMES[5], NAMES[0]])
    assert peer.take() == (EXISTS, 8, [0, 2])
    peer.ask(GET, 9, [NAMES[5], NAMES[1]], record=4)
    assert peer.take() == (GET, 9, [1])
    assert peer.value(5) == b"b" * RECORD + b"B" * SEAL


def test_a_slow_get_holds_up_nothing_else(peer, values):
    peer.ask(PUT, 1, NAMES[:1])
    peer.take()
    values.gate.clear()
    peer.ask(GET, 2, NAMES[:1])
    peer.ask(EXISTS, 3, NAMES[:1])
    assert peer.take() == (EXISTS, 3, [0])
    values.gate.set()
    assert peer.take() == (GET, 2, [0])


def test_two_gets_are_served_at_once(peer, values):
    peer.ask(PUT, 1, NAMES[:1])
    peer.take()
    values.both = threading.Barrier(2, timeout=60)
    peer.ask(GET, 2, NAMES[:1])
    peer.ask(GET, 3, NAMES[:1], record=1)
    assert sorted((peer.take(), peer.take())) == [(GET, 2, [0]), (GET, 3, [0])]


def test_values_of_another_size_are_none(peer, values):
    key = "kvt:" + NAMES[0].hex()
    for value in (b"", b"x" * RECORD, b"x" * (RECORD + SEAL + 1)):
        values.values[key] = value
        peer.ask(GET, 1, NAMES[:1])
        assert peer.take() == (GET, 1, [])


def test_what_a_library_raises_is_none(peer, values, capsys):
    values.values["kvt:" + NAMES[0].hex()] = b""
    values.error = ConnectionError("no route")
    for _ in range(2):
        peer.ask(EXISTS, 1, NAMES[:1])
        assert peer.take() == (EXISTS, 1, [])
    values.error = None
    peer.ask(EXISTS, 2, NAMES[:1])
    assert peer.take() == (EXISTS, 2, [0])
    assert capsys.readouterr().err.count("ConnectionError: no route") == 1


def test_the_largest_request_is_answered(peer):
    peer.ask(EXISTS, 5, [bytes(16)] * 2048)
    assert peer.take() == (EXISTS, 5, [])


def test_another_version_is_refused(values):
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, its, open("/dev/null", encoding="utf-8") as file:
        Store.hello(type("Peer", (), {"peer": ours}), file.fileno(), VERSION + 1)
        with pytest.raises(ValueError, match="of one release"):
            store.serve(values.connect, its.fileno())


def run(*arguments, modules):
    """A helper with these modules; what it writes, until kvtstored is gone."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    path = f"{modules}{os.pathsep}{os.environ['PYTHONPATH']}"
    with subprocess.Popen([sys.executable, "-m", "kvtrunk.store", *arguments], stdin=its,
                          stderr=subprocess.PIPE, text=True,
                          env={**os.environ, "PYTHONPATH": path}) as process:
        its.close()
        with ours:
            yield Store(ours)
        said = process.stderr.read()
    yield process.returncode, said


def test_a_missing_library_is_named_with_its_cure(tmp_path):
    for kind, package in ("mooncake", "mooncake-transfer-engine-non-cuda"), ("redis", "redis"):
        (tmp_path / f"{kind}.py").write_text("raise ImportError('not here')")
        running = run(kind, modules=tmp_path)
        assert next(running).peer.recv(1) == b""
        status, said = next(running)
        assert status == 1
        assert f"pip install {package}" in said


def test_without_kvtstored_it_says_how_it_is_started():
    ended = subprocess.run([sys.executable, "-m", "kvtrunk.store", "redis"], text=True,
                           stdin=subprocess.DEVNULL, capture_output=True, check=False)
    assert ended.returncode == 1
    assert "kvtstored --helper" in ended.stderr


MOONCAKE = '''
import ctypes
VALUES = {}

class ReplicateConfig:
    pass

class MooncakeDistributedStore:
    def setup(self, host, metadata, segment, buffer, protocol, devices, master):
        assert (host, segment, protocol) == ("here", 64 << 20, "tcp")
        return 0 if master == "there:1" else -600

    def register_buffer(self, address, size):
        return 0

    def batch_put_from_multi_buffers(self, keys, buffers, sizes, config):
        assert config.replica_num == 2
        for key, at, size in zip(keys, buffers, sizes):
            VALUES[key] = b"".join(map(ctypes.string_at, at, size))
        return [0] * len(keys)

    def batch_is_exist(self, keys):
        return [1 if key in VALUES else -1 for key in keys]

    def batch_get_into_multi_buffers(self, keys, buffers, sizes):
        for key, at, size in zip(keys, buffers, sizes):
            if key in VALUES:
                ctypes.memmove(at[0], VALUES[key], size[0])
                ctypes.memmove(at[1], VALUES[key][size[0]:], size[1])
        return [len(VALUES[key]) if key in VALUES else -704 for key in keys]
'''

REDIS = '''
VALUES = {}

class Pipeline:
    def __init__(self):
        self.answers = []

    def expire(self, key, seconds):
        assert seconds == 60
        self.answers.append(key in VALUES)

    def getex(self, key, ex):
        assert ex == 60
        self.answers.append(VALUES.get(key))

    def set(self, key, value, ex):
        assert ex == 60
        VALUES[key] = value
        self.answers.append(True)

    def execute(self, raise_on_error):
        assert not raise_on_error
        return self.answers

class RedisCluster:
    @staticmethod
    def from_url(url, **options):
        assert url == "redis://there:1"
        return RedisCluster()

    def pipeline(self):
        return Pipeline()
'''


@pytest.mark.parametrize("name, text, arguments", ids=("mooncake", "redis"), argvalues=[
    ("mooncake/store.py", MOONCAKE, ["mooncake", "--master", "there:1", "--host", "here",
                                     "--segment-bytes", "64M", "--replicas", "2"]),
    ("redis/cluster.py", REDIS, ["redis", "--url", "redis://there:1", "--ttl", "60"])])
def test_both_stores_are_called_as_their_libraries_want(tmp_path, name, text, arguments):
    path = tmp_path / name
    path.parent.mkdir()
    path.write_text(text)
    running = run(*arguments, modules=tmp_path)
    peer = next(running)
    assert peer.ready() == arguments[0]
    peer.fill(0, b"a")
    peer.fill(1, b"b")
    peer.ask(PUT, 1, NAMES[:2])
    assert peer.take() == (PUT, 1, [0, 1])
    peer.ask(EXISTS, 2, NAMES[:3])
    assert peer.take() == (EXISTS, 2, [0, 1])
    peer.ask(GET, 3, [NAMES[1], NAMES[2], NAMES[0]], record=4)
    assert peer.take() == (GET, 3, [0, 2])
    assert peer.value(4) == b"b" * RECORD + b"B" * SEAL
    assert peer.value(6) == b"a" * RECORD + b"A" * SEAL
    assert next(running) == (0, "")
