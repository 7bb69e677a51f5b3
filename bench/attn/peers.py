# SPDX-License-Identifier: Apache-2.0
"""Attention of other libraries on this CPU beside libkvtkernels, in turns in the same run.

usage: python3 bench/attn/peers.py [--threads N] [--repetitions N] LIBKVTKERNELS.SO

Peers are those that this Python can import: OpenVINO (its ScaledDotProductAttention, bf16 where it
has it) and PyTorch (scaled_dot_product_attention). They get K and V gathered before, for OpenVINO
repeated for each query head too: what that costs is not counted. The kernels read pages in random
order. Prints a JSON object a line: for each size and library the median time of repetitions in which
each is called once, and times_ours, how many times as long as the kernels it took: the median over the
repetitions. Exit status 1 if a peer was faster than the kernels in any size, 77 if there is none.
"""
import argparse
import ctypes as c
import importlib.util
import json
import math
import sys
import time

try:
    import numpy
except ImportError as error:
    print(f"skip: {error}", file=sys.stderr)
    sys.exit(77)

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


def openvino(batch, _, threads):
    import openvino
    from openvino import opset13 as ops
    core = openvino.Core()
    kind = openvino.Type.bf16 if "BF16" in core.get_property(
        "CPU", "OPTIMIZATION_CAPABILITIES") else openvino.Type.f32
    q, k, v = (ops.parameter([1, Q_HEADS, n, DIM], kind) for n in (batch.q, batch.k, batch.k))
    inputs = [q, k, v]
    if batch.q == batch.k or batch.q == 1:
        node = ops.scaled_dot_product_attention(q, k, v, causal=batch.q > 1)
    else:
        mask = ops.parameter([1, 1, batch.q, batch.k], kind)
        inputs.append(mask)
        node = ops.scaled_dot_product_attention(q, k, v, mask)
    compiled = core.compile_model(openvino.Model([node], inputs), "CPU", {
        "INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": kind})
    request = compiled.create_infer_request()

    def tensor(halves):
        if kind == openvino.Type.f32:
            return openvino.Tensor(numpy.ascontiguousarray(floats(halves)[None]))
        result = openvino.Tensor(kind, (1, *halves.shape))
        result.data.view(numpy.uint16)[:] = halves[None]
        return result
    feeds = [tensor(batch.queries())]
    feeds += [tensor(numpy.repeat(x, Q_HEADS // KV_HEADS, 0)) for x in batch.gathered()]
    if len(inputs) == 4:
        feeds.append(tensor(bf16(numpy.where(batch.seen(), 0, -1e30))[None]))
    for index, feed in enumerate(feeds):
        request.set_input_tensor(index, feed)

    def run():
        request.infer()
        out = request.get_output_tensor(0)
        if kind == openvino.Type.f32:
            return lambda: out.data[0]
        return lambda: floats(out.data.view(numpy.uint16)[0])
    return f"OpenVINO {openvino.__version__.split('-')[0]}", run


def pytorch(batch, _, threads):
    import torch
    from torch.nn import functional
    torch.set_num_threads(threads)

    def tensor(halves):
        return torch.from_numpy(floats(halves)).to(torch.bfloat16)[None]
    q, k, v = map(tensor, (batch.queries(), *batch.gathered()))
    square = batch.q == batch.k
    mask = None if square or batch.q == 1 else torch.from_numpy(batch.seen())

    def run():
        out = functional.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, enable_gqa=True, is_causal=square and batch.q > 1)
        return lambda: out[0].float().numpy()
    return f"PyTorch {torch.__version__}", run


def median(values):
    return sorted(values)[len(values) // 2]


def contestants(batch, library, threads):
    """Names, and what computes once and returns how to get the result."""
    for make in (ours, openvino, pytorch):
        try:
            yield make(batch, library, threads)
        except ImportError:
            continue


def compare(size, library, threads, repetitions):
    """Returns the peers' times by the kernels', by name."""
    batch = Batch(*size)
    calls = dict(contestants(batch, library, threads))
    expected, taken = None, {name: [] for name in calls}
    for name, run in calls.items():
        result = run()().astype(numpy.float64)  # for nothing but its result
        expected = result if expected is None else expected
        error = numpy.linalg.norm(result - expected) / numpy.linalg.norm(expected)
        if error > 0.02:
            sys.exit(f"{name}: relative norm of the difference from the kernels is {error:.3g}")
    for i in range(repetitions):
        names = list(calls)
        for name in names[i % len(names):] + names[:i % len(names)]:
            begin = time.perf_counter()
            calls[name]()
            taken[name].append(time.perf_counter() - begin)
    work = 4 * DIM * Q_HEADS * (size[0] * size[1] + size[0] * (size[0] + 1) / 2)
    moved = 2 * KV_HEADS * DIM * 2 * sum(size)
    mine, ratios = next(iter(taken.values())), {}
    for name, times in taken.items():
        ratios[name] = median([a / b for a, b in zip(times, mine)])
        print(json.dumps({"name": name, "q": size[0], "k": sum(size), "type": "bf16",
                          "threads": threads, "seconds": round(median(times), 6),
                          "gflops": round(work / median(times) * 1e-9, 1),
                          "gbytes_per_s": round(moved / median(times) * 1e-9, 2),
                          "times_ours": round(ratios[name], 3)}), flush=True)
    return list(ratios.values())[1:]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("library")
    parser.add_argument("--threads", type=int, default=1, help="of each (1)")
    parser.add_argument("--repetitions", type=int, default=9)
    arguments = parser.parse_args()
    if not any(importlib.util.find_spec(name) for name in ("openvino", "torch")):
        print("skip: this Python has neither OpenVINO nor PyTorch", file=sys.stderr)
        return 77
    ratios = []
    for size in SIZES:
        ratios += compare(size, arguments.library, arguments.threads, arguments.repetitions)
    return 1 if min(ratios) < 1 else 0


if __name__ == "__main__":
    sys.exit(main())
