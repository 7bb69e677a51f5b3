# SPDX-License-Identifier: Apache-2.0
"""Views of the pool: each element is where kvt_pool_view() says."""
import gc
import itertools
import os
import subprocess
import sys

import pytest

import kvtrunk
from kvtrunk import _progress, testing
from kvtrunk._native import ffi, lib

numpy = pytest.importorskip("numpy")
try:
    import torch
except ImportError:
    torch = None

SHAPE = {"n_layers": 3, "n_kv_heads": 2, "head_dim": 4}
LAYOUTS = ("hnd", "nhd", "hnkd", "nhkd", "hknd", "latent")
SIZES = {"bf16": 2, "fp16": 2, "fp32": 4, "fp8_e4m3": 1}


def raw_pool(client):
    """The slab's bytes by the library's own mapping, and its address."""
    native = ffi.new("struct kvt_pool *")
    assert lib.kvt_pool_map(client._handle, native) == 0
    return numpy.frombuffer(ffi.buffer(native.base, native.bytes), "u1"), native


def expected(raw, native, view, plane):
    """All elements of a plane as bytes, by the formula of struct kvt_pool_view."""
    p, h, t, x, byte = numpy.ogrid[:view.n_pages, :view.n_kv_heads, :view.page_size, :view.head_dim,
                                   :view.element_bytes]
    start = int(ffi.cast("uintptr_t", plane)) - int(ffi.cast("uintptr_t", native.base))
    at = (start + p * view.page_stride_bytes + h * view.head_stride_bytes +
          t * view.position_stride_bytes + x * view.element_bytes + byte)
    return raw[at]


@pytest.fixture(scope="module", params=itertools.product(LAYOUTS, ("layer", "page"), SIZES),
                ids="-".join)
def pooled(request):
    layout, order, kind = request.param
    shape = {**SHAPE, "n_kv_heads": 1} if layout == "latent" else SHAPE
    with testing.daemon(n_pages=16, page_size=4, kv_layout=layout, kv_order=order, kv_type=kind,
                        **shape) as daemon, daemon.connect(any_geometry=True) as client:
        raw, native = raw_pool(client)
        raw[:] = numpy.random.default_rng(7).integers(0, 256, raw.size, "u1")
        yield client, raw, native, kind


def test_each_element_is_where_the_library_says(pooled):
    client, raw, native, kind = pooled
    size, view = SIZES[kind], ffi.new("struct kvt_pool_view *")
    for index, layer in enumerate(client.pool.layers()):
        assert lib.kvt_pool_view(client._handle, native, index, view) == 0
        assert (layer.dtype, layer.k_scale, layer.v_scale) == (kind, view.k_scale, view.v_scale)
        for plane, typed, bits in ((view.k, layer.k, layer.k_bits), (view.v, layer.v, layer.v_bits)):
            want = expected(raw, native, view, plane)
            array = numpy.asarray(bits)
            assert array.dtype == f"u{size}" and array.shape == typed.shape == (
                16, view.n_kv_heads, 4, 4)
            assert not array.flags.owndata and array.flags.writeable
            assert array.flags.aligned
            got = numpy.ascontiguousarray(array)[..., None].view("u1")
            assert (got == want).all()
            if kind in ("fp16", "fp32"):
                real = numpy.asarray(typed)
                assert real.dtype == f"f{size}"
                assert (numpy.ascontiguousarray(real)[..., None].view("u1") == want).all()
                assert numpy.from_dlpack(typed).tobytes() == real.tobytes()
            assert numpy.from_dlpack(bits).tobytes() == array.tobytes()
            # A write to the array arrives in the pool.
            array[3, -1, 2, 0] ^= 1
            assert (expected(raw, native, view, plane) != want).sum() == 1
            array[3, -1, 2, 0] ^= 1


@pytest.mark.skipif(torch is None, reason="torch is not installed")
def test_each_element_as_a_tensor(pooled):
    client, raw, native, kind = pooled
    view = ffi.new("struct kvt_pool_view *")
    types = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "fp8_e4m3": "float8_e4m3fn"}
    for index, layer in enumerate(client.pool.layers()):
        assert lib.kvt_pool_view(client._handle, native, index, view) == 0
        for plane, typed, bits in ((view.k, layer.k, layer.k_bits), (view.v, layer.v, layer.v_bits)):
            want = expected(raw, native, view, plane)
            tensor = torch.from_dlpack(typed)
            assert tensor.dtype == getattr(torch, types[kind])
            assert tensor.data_ptr() == typed.address and tuple(tensor.shape) == typed.shape
            assert tensor.stride() == tuple(each // SIZES[kind] for each in typed.strides)
            got = tensor.contiguous().view(torch.uint8).reshape(want.shape).numpy()
            assert (got == want).all()
            torch.from_dlpack(bits)[5, 0, 1, 3] ^= 1
            assert (expected(raw, native, view, plane) != want).sum() == 1
            torch.from_dlpack(bits)[5, 0, 1, 3] ^= 1


def test_pages_in_one_piece(pooled):
    client, raw, native, _ = pooled
    if client.info.geometry.kv_order == "layer":
        with pytest.raises(kvtrunk.Unsupported, match="not in one piece"):
            client.pool.page(1)
        return
    n = client.info.page_bytes
    for number in range(16):
        page = client.pool.page(number)
        assert memoryview(page).tobytes() == raw[number * n:(number + 1) * n].tobytes()
    with pytest.raises(kvtrunk.InvalidArgument):
        client.pool.page(16)


def test_buffers_and_capsules_keep_to_their_protocols(shared):
    with shared.connect(any_geometry=True) as client:
        array = client.pool.layer(0).k_bits
        view = memoryview(array)
        assert view.shape == array.shape and view.strides == array.strides
        assert view.format == "H" and view.nbytes == array.nbytes and view.obj is array
        assert array.__dlpack_device__() == (1, 0)
        for wrong in ({"copy": True}, {"dl_device": (2, 0)}):
            with pytest.raises(BufferError):
                array.__dlpack__(**wrong)
        for wrong in ({"dl_device": "x"}, {"max_version": 3}, {"dl_device": (1,)}, {"x": 1}):
            with pytest.raises(TypeError):
                array.__dlpack__(**wrong)
        for good in ({}, {"max_version": (1, 0)}, {"max_version": (0, 8)}, {"stream": None},
                     {"dl_device": (1, 0)}, {"copy": False}):
            assert "dltensor" in repr(array.__dlpack__(**good))
        with pytest.raises(TypeError):
            type(array)()
        readonly = client.map_pool(readonly=True).layer(0)
        assert readonly.k.readonly and memoryview(readonly.k_bits).readonly
        assert not numpy.asarray(readonly.k_bits).flags.writeable
        with pytest.raises(BufferError, match="DLPack 1.0"):
            readonly.k_bits.__dlpack__()
        assert "dltensor_versioned" in repr(readonly.k_bits.__dlpack__(max_version=(1, 1)))
        with pytest.raises(kvtrunk.InvalidArgument, match="layer 2 of 2"):
            client.pool.layer(2)
        with pytest.raises(kvtrunk.InvalidArgument):
            client.pool.layer(-1)


def test_a_daemon_without_geometry_has_pages_only():
    with testing.daemon(n_pages=8) as daemon, daemon.connect() as client:
        assert client.info.geometry is None and client.pool.layers() == []
        with pytest.raises(kvtrunk.Unsupported):
            client.pool.layer(0)
        page = numpy.asarray(client.pool.page(3))
        assert page.shape == (1024,) and page.dtype == "u1"
        page[:] = 9
        other = daemon.connect()
        assert (numpy.asarray(other.pool.page(3)) == 9).all()
        other.close()


def test_slabs():
    with testing.daemon(n_pages=8, n_slabs=3) as daemon, daemon.connect() as client:
        pools = [client.map_pool(slab=i) for i in range(3)]
        assert [pool.slab for pool in pools] == [0, 1, 2]
        for i, pool in enumerate(pools):
            numpy.asarray(pool.page(1))[:] = i + 1
        assert [int(numpy.asarray(pool.page(1))[5]) for pool in pools] == [1, 2, 3]


def test_scales_of_fp8():
    with testing.daemon(n_pages=8, kv_type="fp8_e4m3", kv_scales="0.5,0.25", **SHAPE) as daemon:
        with daemon.connect(any_geometry=True) as client:
            layer = client.pool.layer(2)
            assert (layer.k_scale, layer.v_scale) == (0.5, 0.25)
            assert client.info.geometry.kv_scales == ((0.5, 0.25),) * 3


def test_arrays_outlive_their_client(shared):
    with shared.connect(any_geometry=True) as other:
        client = shared.connect(any_geometry=True)
        layer = client.pool.layer(0)
        array, view = numpy.asarray(layer.k_bits), memoryview(layer.v_bits)
        capsule = layer.k_bits.__dlpack__()
        theirs = numpy.asarray(other.pool.layer(0).k_bits)
        array[7] = 0x1234
        assert (theirs[7] == 0x1234).all()
        pool = client.pool
        client.close()
        assert (array[7] == 0).all()
        array[7] = 0x4321
        assert (theirs[7] == 0x1234).all() and view[7, 0, 0, 0] == 0
        with pytest.raises(kvtrunk.Closed):
            pool.layer(0)
        del layer, client, pool
        gc.collect()
        assert (array[7] == 0x4321).all()
        del capsule, array, view
        gc.collect()
        theirs[7] = 0


DEVICE = """
import kvtrunk
from kvtrunk import testing
with testing.daemon(n_pages=16, page_size=4, kv_type="bf16", n_layers=3, n_kv_heads=2, head_dim=4,
                    backend="cuda-vmm") as daemon:
    client = daemon.connect(any_geometry=True)
    try:
        client.pool
    except kvtrunk.Unsupported as error:
        assert "device memory" in str(error)
    for wrong in (-1, 77):
        try:
            client.map_pool(device=wrong)
        except kvtrunk.Error:
            pass
        else:
            raise SystemExit("no such device")
    layer = client.map_pool(device=0).layer(1)
    assert layer.k.__dlpack_device__() == (2, 0) and layer.k.shape == (16, 2, 4, 4)
    assert layer.k.address == layer.k_bits.address != layer.v.address
    capsule = layer.k.__dlpack__(stream=1, max_version=(1, 0))
    assert "dltensor_versioned" in repr(capsule)
    try:
        memoryview(layer.k)
    except BufferError as error:
        assert "DLPack" in str(error)
    try:
        client.close()
    except BufferError as error:
        assert "drop them first" in str(error)
    else:
        raise SystemExit("closed under an array")
    with client.namespace().begin(range(8)) as seq:
        seq.commit(8)
    del layer, capsule
    client.close()
print("works")
"""


def test_device_memory_on_a_stand_in():
    folder = os.path.join(os.environ.get("KVTRUNK_BIN", "/nowhere"), "tests/cuda/standin")
    if not os.path.exists(folder):
        pytest.skip("the stand-in for the driver is not built (make tests)")
    ended = subprocess.run([sys.executable, "-c", DEVICE], text=True,
                           env={**os.environ, "LD_LIBRARY_PATH": folder}, capture_output=True,
                           check=False)
    assert ended.stdout == "works\n", ended.stderr


def test_raw_is_all_bytes_of_the_slab(pooled):
    client, raw, _, _ = pooled
    size = client.info.n_pages * client.info.page_bytes
    assert numpy.array_equal(numpy.asarray(client.pool.raw).view("u1"), raw[:size])


def resident(address):
    """KiB of the mapping at an address that this process has mapped, and of all of it."""
    with open("/proc/self/smaps", encoding="ascii") as smaps:
        lines = iter(smaps)
        next(line for line in lines if line.startswith(f"{address:x}-"))
        sizes = dict(line.split(":", 1) for line, _ in zip(lines, range(8)))
    return int(sizes["Rss"].split()[0]), int(sizes["Size"].split()[0])


def test_a_pool_is_mapped_at_once_and_says_how_far_it_is(monkeypatch, capsys):
    with testing.daemon(page_bytes=1 << 16, n_pages=64) as daemon, daemon.connect() as client:
        address = numpy.asarray(client.pool.raw).__array_interface__["data"][0]
        assert resident(address)[0] == 0
        monkeypatch.setattr(_progress, "SILENT_S", 0.0)
        client.pool.populate()
        mapped, size = resident(address)
        assert mapped == size == 4096
    said = capsys.readouterr().err.splitlines()
    assert said[0].startswith("kvtrunk: populating the pool: ") and "done" in said[-1]


def test_arrays_follow_to_another_daemons_pool():
    with testing.daemon(n_pages=16, page_size=4, **SHAPE) as daemon:
        lost = daemon.connect(any_geometry=True)
        old, array = lost.pool, numpy.asarray(lost.pool.raw)
        array[:] = 1
        with pytest.raises(kvtrunk.InvalidArgument, match="closed"):
            old.replace(old)
        daemon.kill()
        daemon.start()
        with pytest.raises(kvtrunk.ConnectionLost):
            lost.close()
        with daemon.connect(any_geometry=True) as client:
            client.pool.replace(old)
            now = numpy.asarray(client.pool.raw)
            assert not array.any()  # the new pool, at the old address
            array[5], now[7] = 2, 3
            assert now[5] == 2 and array[7] == 3
            with daemon.connect(any_geometry=True) as other:
                assert list(numpy.asarray(other.pool.raw)[5:8]) == [2, 0, 3]


def test_a_pool_of_another_size_is_no_replacement():
    with testing.daemon(n_pages=16) as one, testing.daemon(n_pages=32) as two:
        lost = one.connect()
        old = lost.pool
        lost.close()
        with two.connect() as client, pytest.raises(kvtrunk.InvalidArgument, match="bytes"):
            client.pool.replace(old)
