# SPDX-License-Identifier: Apache-2.0
"""PyTorch's scaled_dot_product_attention beside libkvtkernels, on the same KV in the same run.

usage: python3 bench/attn/sdpa.py [--device cuda|cpu] [--threads N] [--small] LIBKVTKERNELS.SO

Prints a JSON object a line. First the relative norm of each one's difference from attention in
float64; more than 0.006 (bf16), 0.001 (fp16) or 0.00001 (fp32) fails. Then times, the median of
repetitions in which each is called once: the kernels on pages in random order; the back ends of
SDPA (on a GPU cuDNN and flash, on a CPU what PyTorch chooses), causal aligned bottom right, on KV
that is gathered already, and with the gather. `times_ours` is how many times as long as the
kernels they took, the median over the same repetitions. On a GPU PyTorch gives cuDNN a mask in
memory where the queries are fewer than the keys. Exit status 1 if a result is wrong, 77 if there is
no PyTorch or it has no such device.
"""
import argparse
import contextlib
import ctypes as c
import json
import math
import sys
import time

try:
    import torch
    import torch.nn.functional as functional
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.attention.bias import causal_lower_right
except ImportError as error:
    print(f"skip: {error}")
    sys.exit(77)

from kernels import Kernels, Prefill, Sequence, View

Q_HEADS, KV_HEADS, DIM, PAGE = 32, 8, 128, 64
TYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}
BACKENDS = {"cuda": (SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION),
            "cpu": (None,)}
# Type, batch, new positions, cached ones.
SMALL = ((torch.bfloat16, 1, 33, 300), (torch.bfloat16, 2, 1, 500))
SIZES = {"cuda": ((torch.bfloat16, 1, 727, 100000), (torch.bfloat16, 1, 2048, 32768),
                  (torch.bfloat16, 8, 2048, 0), (torch.bfloat16, 16, 1, 32767)),
         "cpu": ((torch.bfloat16, 1, 727, 32768), (torch.bfloat16, 1, 727, 4096),
                 (torch.bfloat16, 1, 2048, 0), (torch.bfloat16, 1, 1, 32767),
                 (torch.float32, 1, 727, 4096), (torch.float32, 1, 1, 32767))}


class Batch:
    """Sequences of equal sizes, with pages in random order: slab is [K, V][page][head][pos][dim]."""

    def __init__(self, n, q, cached, kind, device):
        self.n, self.q, self.k, self.kind = n, q, q + cached, kind
        per = (self.k - 1) // PAGE + 1
        self.table = torch.randperm(n * per).to(torch.int32).reshape(n, per).contiguous()
        self.slab = torch.randn(2, n * per, KV_HEADS, PAGE, DIM, dtype=torch.float32,
                                device=device).to(kind) if n * per < 4096 else \
            torch.empty(2, n * per, KV_HEADS, PAGE, DIM, dtype=kind, device=device).normal_()
        self.rows = torch.randn(n * q, Q_HEADS, DIM, device=device).to(kind)
        self.out = torch.full_like(self.rows, math.nan)
        self.index = self.table.to(device).long()
        self.sequences = (Sequence * n)(*[
            Sequence(q, self.k, self.table[i].data_ptr(), per, 0, None) for i in range(n)])
        size, plane = self.slab.element_size(), self.slab[0].nbytes
        view = View(self.slab.data_ptr(), self.slab.data_ptr() + plane,
                    KV_HEADS * PAGE * DIM * size, PAGE * DIM * size, DIM * size, n * per, PAGE,
                    KV_HEADS, DIM, TYPES[kind], 1, 1)
        self.prefill = Prefill(view, c.addressof(self.sequences), n, Q_HEADS,
                               self.rows.data_ptr(), self.out.data_ptr(), TYPES[kind],
                               TYPES[kind], 0, 0, 0, 0, 1 / math.sqrt(DIM))

    def queries(self):
        return self.rows.reshape(self.n, self.q, Q_HEADS, DIM).transpose(1, 2)

    def gather(self):
        """K and V as SDPA wants them: [sequence][head][position][dim]."""
        return [plane[self.index].transpose(1, 2).reshape(self.n, KV_HEADS, -1, DIM)[:, :, :self.k]
                .contiguous() for plane in self.slab]

    def sdpa(self, keys, values):
        square = self.q == self.k  # then both corners are the same one
        bias = causal_lower_right(self.q, self.k) if self.q > 1 and not square else None
        return functional.scaled_dot_product_attention(self.queries(), keys, values,
                                                       attn_mask=bias, enable_gqa=True,
                                                       is_causal=square and self.q > 1)

    def exact(self):
        keys, values = (t.double().repeat_interleave(Q_HEADS // KV_HEADS, 1)
                        for t in self.gather())
        scores = self.queries().double() @ keys.transpose(2, 3) / math.sqrt(DIM)
        seen = torch.ones(self.q, self.k, dtype=torch.bool, device=scores.device)
        scores = scores.masked_fill(~seen.tril(self.k - self.q), -math.inf)
        return (scores.softmax(-1) @ values).transpose(1, 2).reshape(self.n * self.q, Q_HEADS, DIM)


def seconds(device, run):
    """The time of one call."""
    if device == "cuda":
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        run()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) * 1e-3
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


def median(values):
    return sorted(values)[len(values) // 2]


def short(value):
    return float(f"{value:.4g}")


def say(**figures):
    print(json.dumps(figures), flush=True)


def relative(result, exact):
    return ((result.double() - exact).norm() / exact.norm()).item()


def check(kernels, device):
    good = True
    for n, q, cached in ((2, 77, 1000), (3, 1, 1500), (1, 300, 0)):
        for kind, most in ((torch.bfloat16, 6e-3), (torch.float16, 1e-3), (torch.float32, 1e-5)):
            batch = Batch(n, q, cached, kind, device)
            exact = batch.exact()
            kernels.run(batch.prefill)
            if device == "cuda":
                torch.cuda.synchronize()
            ours = relative(batch.out, exact)
            theirs = relative(batch.sdpa(*batch.gather()).transpose(1, 2)
                              .reshape(n * q, Q_HEADS, DIM), exact)
            good = good and ours <= most
            say(name="relative norm", batch=n, q=q, k=q + cached, type=str(kind)[6:],
                kernels=round(ours, 6), sdpa=round(theirs, 6), limit=most, good=ours <= most)
    return good


def contestants(kernels, device, batch):
    """What is called, by name; the kernels first."""
    calls = {"kernels on pages": lambda: kernels.run(batch.prefill)}
    keys, values = batch.gather()

    def chosen(backend, *gathered):
        with sdpa_kernel(backend) if backend else contextlib.nullcontext():
            batch.sdpa(*(gathered or batch.gather()))

    for backend in BACKENDS[device]:
        name = f"sdpa {backend.name.lower().removesuffix('_attention')}" if backend else "sdpa"
        calls[name] = lambda b=backend: chosen(b, keys, values)
        calls[f"{name} with gather"] = lambda b=backend: chosen(b)
    return calls


def compare(kernels, device, kind, sizes, repetitions):
    n, q, cached = sizes
    batch = Batch(n, q, cached, kind, device)
    work = 4 * DIM * Q_HEADS * n * (q * cached + q * (q + 1) / 2)
    moved = 2 * batch.slab.element_size() * KV_HEADS * DIM * n * (q + cached)
    calls, times = contestants(kernels, device, batch), {}
    size = {"batch": n, "q": q, "k": q + cached, "type": str(kind)[6:]}
    for name, run in calls.items():
        try:
            run()  # once for nothing
            times[name] = []
        except RuntimeError as error:
            say(name=name, **size, error=str(error).splitlines()[0])
    for _ in range(repetitions):
        for name, taken in times.items():
            taken.append(seconds(device, calls[name]))
    ours = next(iter(times.values()))
    for name, taken in times.items():
        time_s = median(taken)
        say(name=name, **size, seconds=short(time_s), tflops=short(work / time_s * 1e-12),
            tbytes_per_s=short(moved / time_s * 1e-12),
            times_ours=short(median([a / b for a, b in zip(taken, ours)])))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("library")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--threads", type=int, default=1, help="on a CPU, of each (1)")
    parser.add_argument("--small", action="store_true", help="small sizes")
    arguments = parser.parse_args()
    device = arguments.device
    if device == "cuda" and not torch.cuda.is_available():
        print("skip: this PyTorch has no CUDA device")
        return 77
    torch.manual_seed(1)
    torch.set_num_threads(arguments.threads)
    stream = torch.cuda.current_stream().cuda_stream if device == "cuda" else None
    kernels = Kernels(arguments.library, arguments.threads, device, stream)
    say(name="versions", torch=torch.__version__, kernels=kernels.describe(),
        cudnn=torch.backends.cudnn.version(),
        device=torch.cuda.get_device_name() if device == "cuda" else "cpu")
    good = check(kernels, device)
    for kind, *sizes in SMALL if arguments.small else SIZES[device]:
        compare(kernels, device, kind, sizes, 15 if device == "cuda" else 5)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
