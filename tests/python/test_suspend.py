# SPDX-License-Identifier: Apache-2.0
"""Suspended clients hold nothing of the pool, and find their cache when they resume."""
import os
import subprocess
import sys

import pytest

import kvtrunk
from kvtrunk import testing

numpy = pytest.importorskip("numpy")

PROMPT = range(64)


@pytest.fixture(name="daemon")
def make_daemon():
    with testing.daemon(n_pages=64, page_size=4, n_layers=2, n_kv_heads=2, head_dim=4) as daemon:
        yield daemon


def pools_mapped():
    with open("/proc/self/maps", encoding="ascii") as maps:
        return sum("kvtrunk-pool" in line for line in maps)


def cache(client, value):
    """Cache PROMPT, with this value in K of its pages. Returns these."""
    with client.namespace().begin(PROMPT) as seq:
        pages = list(seq.pages)
        numpy.asarray(client.pool.layer(0).k_bits)[pages] = value
        seq.commit(len(PROMPT))
    return pages


def test_nothing_is_mapped_and_the_cache_survives(daemon):
    with daemon.connect(any_geometry=True) as client:
        pages, before = cache(client, 7), client.pool
        assert pools_mapped() == 2
        client.suspend()
        client.suspend()
        assert client.suspended and pools_mapped() == 0
        assert client.namespace().match(PROMPT).positions == len(PROMPT)
        assert client.counters().cached_pages == len(pages)
        with daemon.connect(any_geometry=True) as other:
            assert other.namespace().match(PROMPT).positions == len(PROMPT)
        client.resume()
        client.resume()
        assert not client.suspended and pools_mapped() == 2 and client.pool is before
        assert (numpy.asarray(client.pool.layer(0).k_bits)[pages] == 7).all()
        with client.namespace().begin(PROMPT) as seq:
            assert seq.matched == len(PROMPT)
        client.suspend()
    assert pools_mapped() == 0


def test_what_is_held_is_counted(daemon):
    with daemon.connect(any_geometry=True) as client:
        assert client.pool
        seq = client.namespace().begin(PROMPT)
        with pytest.raises(kvtrunk.Again, match="holds 1 lease and 16 private pages"):
            client.suspend()
        assert not client.suspended and numpy.asarray(client.pool.layer(0).k_bits)[3].shape
        seq.end()
        client.suspend()


def test_calls_that_need_the_pool(daemon):
    with daemon.connect(any_geometry=True) as client:
        namespace, pool = client.namespace(), client.pool
        cache(client, 1)
        found = namespace.match(PROMPT)
        client.suspend()
        for call in (lambda: namespace.begin(PROMPT), lambda: namespace.match(PROMPT, lock=True),
                     lambda: client.lock(found.handle), lambda: client.alloc(1), client.map_pool,
                     lambda: pool.layer(0), lambda: pool.raw, lambda: pool.page(1),
                     lambda: client.submit([kvtrunk.Request("alloc", arg=1)])):
            with pytest.raises(kvtrunk.Suspended, match="resume"):
                call()
        client.resume()
        assert namespace.match(PROMPT).positions == len(PROMPT) and pool.layer(0)


def test_arrays_refuse_or_stay(daemon):
    with daemon.connect(any_geometry=True) as client:
        pages = cache(client, 5)
        array = numpy.asarray(client.pool.layer(0).k_bits)
        with pytest.raises(BufferError, match="keep_arrays"):
            client.suspend()
        assert not client.suspended and (array[pages] == 5).all()
        client.suspend(keep_arrays=True)
        assert pools_mapped() == 0
        assert not array.any()
        array[pages] = 9  # nowhere
        client.resume()
        assert (array[pages] == 5).all()
        with daemon.connect(any_geometry=True) as other:
            assert (numpy.asarray(other.pool.layer(0).k_bits)[pages] == 5).all()
        client.suspend(keep_arrays=True)
    assert not array.any()


@pytest.mark.parametrize("end", ["kill", "stop"])
def test_the_daemon_ends_meanwhile(daemon, end):
    client = daemon.connect(any_geometry=True)
    assert client.pool
    client.suspend()
    getattr(daemon, end)()
    with pytest.raises(kvtrunk.ConnectionLost):
        client.resume()
    assert client.suspended
    with pytest.raises(kvtrunk.ConnectionLost):
        client.close()


def test_ranks_suspend_each_its_own():
    with testing.daemon(n_pages=16, n_slabs=2) as daemon, daemon.connect() as leader:
        token = leader.group(2)
        with daemon.connect(group=token, rank=1) as member:
            numpy.asarray(member.pool.page(3))[:] = 4
            leader.suspend()
            member.suspend()
            member.check()
            member.resume()
            leader.resume()
            assert (numpy.asarray(member.pool.page(3)) == 4).all()
            leader.close()


DEVICE = """
import sys
import kvtrunk
from kvtrunk import testing
backend = sys.argv[1]
with testing.daemon(n_pages=16, page_size=4, kv_type="bf16", n_layers=3, n_kv_heads=2, head_dim=4,
                    backend=backend) as daemon:
    with daemon.connect(any_geometry=True) as client:
        pool = client.map_pool(device=0)
        layer = pool.layer(1)
        before = layer.k.address
        try:
            client.suspend(keep_arrays=backend == "cuda-ipc")
        except BufferError as error:
            assert "drop them first" in str(error)
        else:
            raise SystemExit("suspended under an array")
        if backend == "cuda-vmm":
            client.suspend(keep_arrays=True)
            client.resume()
            assert pool.layer(1).k.address == before
        del layer
        client.suspend()
        client.resume()
        client.suspend()
        client.resume()
        assert pool.layer(1).k.address == client.map_pool(device=0).layer(1).k.address
print("works")
"""


@pytest.mark.parametrize("backend", ["cuda-vmm", "cuda-ipc"])
def test_device_memory_on_a_stand_in(backend, tmp_path):
    folder = os.path.join(os.environ.get("KVTRUNK_BIN", "/nowhere"), "tests/cuda/standin")
    if not os.path.exists(folder):
        pytest.skip("the stand-in for the driver is not built (make tests)")
    ended = subprocess.run([sys.executable, "-c", DEVICE, backend], text=True,
                           env={**os.environ, "LD_LIBRARY_PATH": folder,
                                "KVT_STANDIN_DIR": str(tmp_path)}, capture_output=True, check=False)
    assert ended.stdout == "works\n", ended.stderr
