# SPDX-License-Identifier: Apache-2.0
"""Attention of other libraries on this CPU beside libkvtkernels, in turns in the same run.

usage: python3 bench/attn/peers.py [--threads N] [--repetitions N] [--only SIZE] [--realtime]
                                   LIBKVTKERNELS.SO

Peers are those that this Python can import:

  OpenVINO  its ScaledDotProductAttention, in bf16 where it has it
  PyTorch   scaled_dot_product_attention
  vLLM      cpu_attention_with_kv_cache of its CPU build, on pages of its own layout in random order

OpenVINO and PyTorch get K and V gathered before, in each way that they take it: for each KV head, or
repeated for each query head; for a single query also with a group's heads as queries of one KV head,
so that K and V are read once. The fastest way counts. vLLM's pages are written before. What all this
costs is not counted. The kernels read pages in random order. All memory may be in huge pages.

Prints a JSON object a line. For each size and library: the median of the fastest third of the
repetitions, in each of which all are called once; the lowest and highest time of all; and times_ours,
how many times as long as the kernels it took, the median over the repetitions. Exit status 1 if a peer
was faster than the kernels in any size, 77 if there is none.
"""
import argparse
import ctypes as c
import importlib.util
import json
import math
import os
import sys
import time

try:
    import numpy
except ImportError as error:
    print(f"skip: {error}", file=sys.stderr)
    sys.exit(77)

os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")  # PyTorch: as NumPy does by itself

from kernels import Kernels, Prefill, Sequence, View

Q_HEADS, KV_HEADS, DIM, PAGE, BF16 = 32, 8, 128, 64, 2
# New positions, cached ones. A decode step is compared by the bytes of its KV.
SIZES = ((727, 4096), (2048, 0), (727, 32768), (1, 32767))


def bf16(values):
    """The bits of floats rounded to bf16, to nearest even."""
    bits = numpy.ascontiguousarray(values, numpy.float32).view(numpy.uint32)
    return ((bits + 0x7fff + (bits >> 16 & 1)) >> 16).astype(numpy.uint16)


def floats(halves):
    return (halves.astype(numpy.uint32) << 16).view(numpy.float32)


class Batch:
    """One sequence: slab is [K, V][page][head][position][dim], rows [query][head][dim]."""

    def __init__(self, q, cached):
        random = numpy.random.default_rng(1)
        self.q, self.k = q, q + cached
        n_pages = (self.k - 1) // PAGE + 1
        self.table = random.permutation(n_pages).astype(numpy.uint32)
        self.slab = bf16(random.standard_normal((2, n_pages, KV_HEADS, PAGE, DIM),
                                                dtype=numpy.float32))
        self.rows = bf16(random.standard_normal((q, Q_HEADS, DIM), dtype=numpy.float32))
        self.out = numpy.zeros_like(self.rows)

    def gathered(self):
        """K and V as [head][position][dim] in bf16."""
        return [plane[self.table].transpose(1, 0, 2, 3).reshape(KV_HEADS, -1, DIM)[:, :self.k]
                for plane in self.slab]

    def queries(self):
        return self.rows.transpose(1, 0, 2)

    def seen(self):
        """Which positions each query sees."""
        return numpy.tri(self.q, self.k, self.k - self.q, dtype=bool)


def ours(batch, library, threads):
    kernels = Kernels(library, threads)
    sequence = Sequence(batch.q, batch.k, batch.table.ctypes.data, len(batch.table), 0, None)
    plane, page = batch.slab[0].nbytes, batch.slab[0, 0].nbytes
    view = View(batch.slab.ctypes.data, batch.slab.ctypes.data + plane, page, PAGE * DIM * 2,
                DIM * 2, len(batch.table), PAGE, KV_HEADS, DIM, BF16, 1, 1)
    prefill = Prefill(view, c.addressof(sequence), 1, Q_HEADS, batch.rows.ctypes.data,
                      batch.out.ctypes.data, BF16, BF16, 0, 0, 0, 0, 1 / math.sqrt(DIM))

    def run(keep=(sequence, prefill)):
        kernels.run(keep[1])
        return lambda: floats(batch.out).transpose(1, 0, 2)
    return f"kernels, {kernels.describe()}", run


def openvino_of(batch, q, kv, mask, threads):
    """OpenVINO's attention of q on kv, [head][position][dim] in bf16."""
    import openvino
    from openvino import opset13 as ops
    core = openvino.Core()
    kind = openvino.Type.bf16 if "BF16" in core.get_property(
        "CPU", "OPTIMIZATION_CAPABILITIES") else openvino.Type.f32

    def tensor(halves):
        if kind == openvino.Type.f32:
            return openvino.Tensor(numpy.ascontiguousarray(floats(halves)[None]))
        result = openvino.Tensor(kind, (1, *halves.shape))
        result.data.view(numpy.uint16)[:] = halves[None]
        return result
    feeds = [tensor(halves) for halves in (q, *kv)]
    if mask is not None:
        feeds.append(tensor(bf16(numpy.where(mask, 0, -1e30))[None]))
    inputs = [ops.parameter(list(feed.shape), kind) for feed in feeds]
    causal = batch.q > 1 and mask is None
    node = ops.scaled_dot_product_attention(*inputs, causal=causal)
    compiled = core.compile_model(openvino.Model([node], inputs), "CPU", {
        "INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": kind})
    request = compiled.create_infer_request()
    for index, feed in enumerate(feeds):
        request.set_input_tensor(index, feed)

    def run():
        request.infer()
        out = request.get_output_tensor(0)
        if kind == openvino.Type.f32:
            return lambda: out.data[0]
        return lambda: floats(out.data.view(numpy.uint16)[0])
    return run


def pytorch_of(batch, q, kv, mask, threads):
    """PyTorch's attention likewise."""
    import torch
    from torch.nn import functional
    torch.set_num_threads(threads)
    q, k, v = (torch.from_numpy(floats(halves)).to(torch.bfloat16)[None] for halves in (q, *kv))
    mask = None if mask is None else torch.from_numpy(mask)

    def run():
        out = functional.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, enable_gqa=q.shape[1] != k.shape[1],
            is_causal=batch.q > 1 and mask is None)
        return lambda: out[0].float().numpy()
    return run


def ways(batch):
    """Queries, K and V in each way that a library may take them, and the shape of its result."""
    q, kv = batch.queries(), batch.gathered()
    yield q, kv
    yield q, [numpy.repeat(x, Q_HEADS // KV_HEADS, 0) for x in kv]
    if batch.q == 1:
        yield q.reshape(KV_HEADS, Q_HEADS // KV_HEADS, DIM), kv


def fastest(make, batch, threads):
    """The fastest way, by the shorter of two calls after a first one."""
    mask = None if batch.q in (1, batch.k) else batch.seen()
    best, best_seconds = None, math.inf
    for q, kv in ways(batch):
        try:
            run = make(batch, q, kv, mask, threads)
            run()
        except RuntimeError:  # a way that the library does not take
            continue
        for _ in range(2):
            begin = time.perf_counter()
            run()
            seconds = time.perf_counter() - begin
            if seconds < best_seconds:
                best, best_seconds = run, seconds
    if best is None:
        sys.exit(f"{make.__name__}: takes attention in no way that peers.py knows")

    def shaped():
        result = best()
        return lambda: result().reshape(Q_HEADS, batch.q, DIM)
    return shaped


def openvino(batch, _, threads):
    import openvino as library
    return (f"OpenVINO {library.__version__.split('-')[0]}",
            fastest(openvino_of, batch, threads))


def pytorch(batch, _, threads):
    import torch
    return f"PyTorch {torch.__version__}", fastest(pytorch_of, batch, threads)


def vllm(batch, _, threads):
    import torch
    import vllm as library
    from vllm import _custom_ops as ops
    from vllm.v1.attention.backends import cpu_attn
    torch.set_num_threads(threads)
    isa = cpu_attn._get_attn_isa(torch.bfloat16, PAGE, DIM, "auto")
    n_pages = len(batch.table)
    pages = torch.zeros((n_pages, KV_HEADS, 2 * PAGE, DIM), dtype=torch.bfloat16)
    planes = pages.chunk(2, dim=2)
    positions = numpy.arange(batch.k)
    slots = batch.table[positions // PAGE].astype(numpy.int64) * PAGE + positions % PAGE

    def tensor(halves):
        return torch.from_numpy(floats(numpy.ascontiguousarray(halves))).to(torch.bfloat16)
    ops.cpu_attn_reshape_and_cache(*(tensor(x.transpose(1, 0, 2)) for x in batch.gathered()),
                                   *planes, torch.from_numpy(slots), isa)
    q = tensor(batch.rows)
    out = torch.empty_like(q)
    starts = torch.tensor([0, batch.q], dtype=torch.int32)
    lengths = torch.tensor([batch.k], dtype=torch.int32)
    table = torch.from_numpy(batch.table.astype(numpy.int32))[None]
    plan = ops.cpu_attn_get_scheduler_metadata(
        num_reqs=1, num_heads=Q_HEADS, num_kv_heads=KV_HEADS, head_dim=DIM, seq_lens=lengths,
        dtype=torch.bfloat16, query_start_loc=starts, causal=True, sliding_window_size=-1, isa=isa,
        enable_kv_split=True)

    def run():
        ops.cpu_attention_with_kv_cache(
            query=q, key_cache=planes[0], value_cache=planes[1], output=out,
            query_start_loc=starts, seq_lens=lengths, scale=1 / math.sqrt(DIM), causal=True,
            alibi_slopes=None, sliding_window=-1, block_table=table, softcap=0,
            scheduler_metadata=plan, s_aux=None)
        return lambda: out.float().numpy().transpose(1, 0, 2)
    return f"vLLM {library.__version__}, {isa}", run


def median(values):
    return sorted(values)[len(values) // 2]


def contestants(batch, library, threads):
    """Names, and what computes once and returns how to get the result."""
    for make in (ours, openvino, pytorch, vllm):
        try:
            yield make(batch, library, threads)
        except ImportError:
            continue


def timed(run, realtime):
    """Seconds of one call. Real-time priority is the calling thread's alone."""
    if realtime:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    begin = time.perf_counter()
    run()
    seconds = time.perf_counter() - begin
    if realtime:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    return seconds


def compare(size, arguments):
    """Returns the peers' times by the kernels', by name."""
    batch = Batch(*size)
    calls = dict(contestants(batch, arguments.library, arguments.threads))
    expected, taken = None, {name: [] for name in calls}
    for name, run in calls.items():
        result = run()().astype(numpy.float64)  # for nothing but its result
        expected = result if expected is None else expected
        error = numpy.linalg.norm(result - expected) / numpy.linalg.norm(expected)
        if error > 0.02:
            sys.exit(f"{name}: relative norm of the difference from the kernels is {error:.3g}")
    for i in range(arguments.repetitions):
        names = list(calls)
        for name in names[i % len(names):] + names[:i % len(names)]:
            taken[name].append(timed(calls[name], arguments.realtime))
    work = 4 * DIM * Q_HEADS * (size[0] * size[1] + size[0] * (size[0] + 1) / 2)
    moved = 2 * KV_HEADS * DIM * 2 * sum(size)
    mine, ratios = next(iter(taken.values())), {}
    for name, times in taken.items():
        ratios[name] = median([a / b for a, b in zip(times, mine)])
        quiet = median(sorted(times)[:(len(times) + 2) // 3])
        print(json.dumps({"name": name, "q": size[0], "k": sum(size), "type": "bf16",
                          "threads": arguments.threads, "seconds": round(quiet, 6),
                          "seconds_lowest": round(min(times), 6),
                          "seconds_highest": round(max(times), 6),
                          "gflops": round(work / quiet * 1e-9, 1),
                          "gbytes_per_s": round(moved / quiet * 1e-9, 2),
                          "times_ours": round(ratios[name], 3)}), flush=True)
    return list(ratios.values())[1:]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("library")
    parser.add_argument("--threads", type=int, default=1, help="of each (1)")
    parser.add_argument("--repetitions", type=int, default=9)
    parser.add_argument("--only", metavar="SIZE", help='as "727 x 4096": new positions x cached ones')
    parser.add_argument("--realtime", action="store_true",
                        help="each call at real-time priority, for one thread on a busy machine")
    arguments = parser.parse_args()
    if not any(importlib.util.find_spec(name) for name in ("openvino", "torch", "vllm")):
        print("skip: this Python has none of OpenVINO, PyTorch and vLLM", file=sys.stderr)
        return 77
    sizes = [size for size in SIZES if arguments.only in (None, "{} x {}".format(*size))]
    if not sizes:
        parser.error("--only: use one of " + ", ".join('"{} x {}"'.format(*s) for s in SIZES))
    try:
        timed(lambda: None, arguments.realtime)
    except PermissionError:
        parser.error("--realtime needs CAP_SYS_NICE: run as root, or without it")
    ratios = []
    for size in sizes:
        ratios += compare(size, arguments)
    return 1 if min(ratios) < 1 else 0


if __name__ == "__main__":
    sys.exit(main())
