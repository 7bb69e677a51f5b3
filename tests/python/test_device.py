# SPDX-License-Identifier: Apache-2.0
"""PyTorch on a CUDA device, on a pool that processes share: `make gpu-check`. Skips without a device.

Each page holds a number that follows from its prompt, so a page of something else is seen.
"""
import numpy
import pytest

from kvtrunk import testing

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("PyTorch sees no CUDA device", allow_module_level=True)

PAGE, N_PAGES = 16, 256
SHAPE = {"kv_type": "bf16", "n_layers": 3, "n_kv_heads": 4, "head_dim": 64}
SOON = """
import numpy, torch
client = kvtrunk.connect(socket, any_geometry=True, begin_wait=30.0)
pool = client.map_pool(device=0)
layer = torch.from_dlpack(pool.layer(1).k)
"""


@pytest.fixture(params=["cuda-vmm", "cuda-ipc"])
def pooled(request):
    """A daemon, a client, and K of layer 1 as a tensor."""
    with testing.daemon(backend=request.param, page_size=PAGE, n_pages=N_PAGES, **SHAPE) as daemon:
        with daemon.connect(any_geometry=True) as client:
            yield daemon, client


def layer_of(client):
    return torch.from_dlpack(client.map_pool(device=0).layer(1).k)


def indices(pages):
    return torch.tensor(numpy.frombuffer(pages, "u4").astype("i8"), device="cuda")


def test_tensors_lie_on_the_pool(pooled, child):
    daemon, client = pooled
    view = client.map_pool(device=0).layer(1).k
    layer = torch.from_dlpack(view)
    assert layer.is_cuda and layer.data_ptr() == view.address and layer.shape == view.shape
    pages = client.alloc(3)
    layer[indices(pages)] = 7.0
    torch.cuda.synchronize()
    other = child(daemon, SOON + """
pages = [int(word) for word in sys.stdin.readline().split()]
say(float(layer[torch.tensor(pages, device="cuda")].float().mean()))
del layer
client.close()
""")
    other.tell(" ".join(map(str, pages)))
    assert other.hear() == "7.0"
    other.wait()
    client.free(pages)
    del layer, view


@pytest.mark.parametrize("method", ["host", "write"])
def test_what_is_published_behind_a_fence_is_whole(pooled, child, monkeypatch, method):
    daemon, client = pooled
    monkeypatch.setenv("KVTRUNK_FENCE", method)
    writer = child(daemon, SOON + """
stream = torch.cuda.Stream()
for turn in range(20):
    with client.namespace().begin(range(1000 * turn, 1000 * turn + 16 * 8)) as seq:
        assert seq.reusable == 0
        say("begun")
        pages = torch.tensor(numpy.frombuffer(seq.pages, "u4").astype("i8"), device="cuda")
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            torch.cuda._sleep(20_000_000)
            layer[pages] = float(turn + 1)
        seq.commit_nowait(16 * 8, fence=client.record_fence(stream.cuda_stream))
        sys.stdin.readline()
del layer
client.close()
""")
    layer = layer_of(client)
    for turn in range(20):
        assert writer.hear() == "begun"
        with client.namespace().begin([*range(1000 * turn, 1000 * turn + PAGE * 8), 1]) as seq:
            assert seq.reusable == PAGE * 8, turn
            assert (layer[indices(seq.pages)[:8]] == turn + 1).all(), turn
        writer.tell()
    writer.wait()
    del layer


def test_graphs_read_pages_that_come_later(pooled):
    _, client = pooled
    layer, wanted = layer_of(client), torch.zeros(4, dtype=torch.int64, device="cuda")
    layer[wanted].float().mean()  # warm
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        mean = layer[wanted].float().mean()
    for turn in range(1, 5):
        with client.namespace().begin(range(1000 * turn, 1000 * turn + PAGE * 4)) as seq:
            pages = indices(seq.pages)
            layer[pages] = float(turn)
            wanted.copy_(pages)
            graph.replay()
            torch.cuda.synchronize()
            assert float(mean) == turn
    del layer, graph


def filled(client, layer):
    """A cached prompt of four pages that hold 5."""
    with client.namespace().begin(range(PAGE * 4)) as seq:
        layer[indices(seq.pages)] = 5.0
        torch.cuda.synchronize()
        seq.commit(PAGE * 4)


def reused(client, layer):
    with client.namespace().begin([*range(PAGE * 4), 1]) as seq:
        assert seq.reusable == PAGE * 4
        return layer[indices(seq.pages)[:4]]


def test_arrays_and_graphs_outlive_a_suspended_session():
    with testing.daemon(backend="cuda-vmm", page_size=PAGE, n_pages=N_PAGES, **SHAPE) as daemon, \
            daemon.connect(any_geometry=True) as client:
        layer, wanted = layer_of(client), torch.zeros(4, dtype=torch.int64, device="cuda")
        filled(client, layer)
        with client.namespace().begin([*range(PAGE * 4), 1]) as seq:
            wanted.copy_(indices(seq.pages)[:4])
        layer[wanted].float().mean()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            mean = layer[wanted].float().mean()
        client.suspend(keep_arrays=True)
        client.resume()
        assert (reused(client, layer) == 5).all()
        mean.zero_()
        graph.replay()
        torch.cuda.synchronize()
        assert float(mean) == 5
        del layer, graph


def test_a_killed_daemons_successor_has_the_pages():
    with testing.daemon(backend="cuda-vmm", page_size=PAGE, n_pages=N_PAGES, supervise=True,
                        **SHAPE) as daemon, daemon.connect(any_geometry=True) as client:
        layer = layer_of(client)
        filled(client, layer)
        daemon.kill()
        assert (reused(client, layer) == 5).all()
        del layer


def test_memory_that_no_process_holds_is_whole_or_gone():
    """Between a daemon and its successor the descriptors are all that is left of it."""
    with testing.daemon(backend="cuda-vmm", page_size=PAGE, n_pages=N_PAGES, supervise=True,
                        **SHAPE) as daemon:
        with daemon.connect(any_geometry=True) as client:
            layer = layer_of(client)
            filled(client, layer)
            del layer
        daemon.kill()
        with daemon.connect(any_geometry=True) as client:
            layer = layer_of(client)
            with client.namespace().begin([*range(PAGE * 4), 1]) as seq:
                kept = seq.reusable
                assert (layer[indices(seq.pages)[:kept // PAGE]] == 5).all()
            print(f'\n{{"name": "taken up without a client", "positions": {kept}, '
                  f'"of": {PAGE * 4}}}')
            del layer
