# SPDX-License-Identifier: Apache-2.0
"""SGLang's KV tensors on the pool, the proof that they are, and its allocator."""
from __future__ import annotations

import contextlib
import logging
import secrets
from typing import Any, Iterator, Optional

import numpy as np
import torch
from sglang.srt.mem_cache.allocation_sizing import (get_alloc_reserve_per_decode,
                                                    page_aligned_decode_alloc_lens)
from sglang.srt.mem_cache.allocator.base import BaseTokenToKVPoolAllocator
from sglang.srt.mem_cache.prefill_budget import PrefillBudget

from .. import Client, Error, Geometry, GeometryMismatch, Pool, connect
from .._pool import SCRATCH_TRIES
from ..engine import _check, Refused, fetch_wait, socket_of
from . import _drafts, _refusals
from ._leases import Lease, Leases, Reading

logger = logging.getLogger(__name__)

_HANDSHAKE_S = 2.0
"""How long one try to connect again may take: a daemon that is stopped takes no HELLO."""
DTYPES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16",
          torch.float8_e4m3fn: "fp8_e4m3"}


class Attached:
    """The pool of this process: one connection, and the tensors on its pages."""

    def __init__(self, client: Client, pool: Pool) -> None:
        self.client = client
        self.mapped: Pool = pool
        self.witness: Pool = map_slab(client)
        """Another mapping of the pool, to see what the tensors write. On a device it is the same."""
        self.n_drafts = 0
        """Layers after the model's, for drafts."""
        self.drafts: Any = None
        """SGLang's pool of those."""


_model_pool: Any = None
"""SGLang's pool of the model, in this process."""


def map_slab(client: Client) -> Pool:
    """The slab of this rank. Refused: its device has another's."""
    if client.info.backend == "host":
        return client.map_pool()
    slab = client.map_pool(device=torch.accelerator.current_device_index())
    if slab.slab != client.info.rank:
        raise Refused(
            f"rank {client.info.rank} has the device of slab {slab.slab}: order CUDA_VISIBLE_DEVICES "
            "as the daemon's option devices, and leave --base-gpu-id and --gpu-id-step out")
    return slab


def attach(pool: Any) -> None:
    """Connect, and put the KV of SGLang's pool on ours, in place of buffers. The pool of draft layers
    is the second."""
    global _model_pool
    if _drafts.makes_drafts():
        attach_drafts(pool, _model_pool)
        return
    _connect(pool, _drafts.n_layers())
    pool.kvtrunk.mapped.populate()  # as torch.zeros() does for an engine's own cache
    _model_pool = pool


def attach_drafts(pool: Any, model: Any) -> None:
    """Put KV of draft layers after that of the model's pool. Refused: it is another kind."""
    attached: Attached = model.kvtrunk
    ours, theirs = geometry_of(model, attached.n_drafts), geometry_of(pool, model.layer_num)
    if ours != theirs or (pool.size, pool.page_size) != (model.size, model.page_size):
        raise Refused(
            "--radix-cache-backend kvtrunk puts the KV of draft layers into the model's pages, so it "
            f"must be like the model's: with the draft pages have {theirs}, and the daemon's have "
            f"{ours}. Use another --speculative-draft-model-path, or NGRAM")
    put(pool, attached.mapped, model.layer_num)
    pool.kvtrunk, attached.drafts = attached, pool


def geometry_of(pool: Any, more: int = 0) -> Geometry:
    """Geometry of a page, with `more` layers of the same kind. Refused: the pages cannot hold it."""
    from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, MLATokenToKVPool
    kind = type(pool)
    if kind not in (MHATokenToKVPool, MLATokenToKVPool) or \
            getattr(pool, "kv_cache_layout", "nhd") != "nhd":
        raise Refused(
            "--radix-cache-backend kvtrunk shares pools of plain K and V rows, or of one latent row; "
            f"this is a {kind.__name__} of layout {getattr(pool, 'kv_cache_layout', None)!r}: leave "
            "the flag out, or SGLANG_USE_HND_KVCACHE and SGLANG_AITER_KV_CACHE_LAYOUT")
    if pool.dtype not in DTYPES or getattr(pool, "is_quantized_kv_cache", False):
        raise Refused(f"--radix-cache-backend kvtrunk does not share KV of type "
                                f"{pool.dtype} as SGLang keeps it here: use --kv-cache-dtype auto")
    if kind is MLATokenToKVPool:
        return Geometry(pool.layer_num + more, 1, pool.kv_cache_dim, DTYPES[pool.dtype], "latent",
                        "layer")
    if pool.head_dim != pool.v_head_dim:
        raise Refused(f"--radix-cache-backend kvtrunk shares K and V of one size; this "
                                f"model's have {pool.head_dim} and {pool.v_head_dim}")
    return Geometry(pool.layer_num + more, pool.head_num, pool.head_dim, DTYPES[pool.dtype], "nhd",
                    "layer")


def put(pool: Any, mapped: Pool, first: int = 0) -> None:
    """Make the pool's buffers tensors on mapped pages: rows of positions, of layers from `first` on.
    """
    def rows(bits: Any) -> Any:
        pages = torch.from_dlpack(bits).permute(0, 2, 1, 3)
        return pages.view(-1, *pages.shape[2:]).view(pool.store_dtype)

    layers = mapped.layers()[first:first + pool.layer_num]
    if is_latent(pool):
        pool.kv_buffer = [rows(layer.k_bits) for layer in layers]
        return
    pool.k_buffer = [rows(layer.k_bits) for layer in layers]
    pool.v_buffer = [rows(layer.v_bits) for layer in layers]


def is_latent(pool: Any) -> bool:
    """Whether one plane holds all KV: MLA."""
    return hasattr(pool, "kv_cache_dim")


def planes(pool: Any) -> list[tuple[Any, ...]]:
    """K and V of each layer, or its one plane, as SGLang has them."""
    return [(row,) for row in pool.kv_buffer] if is_latent(pool) else list(
        zip(pool.k_buffer, pool.v_buffer))


def ranks() -> Any:
    """SGLang's tensor-parallel group. Each rank is a process, with a slab of the pool."""
    from sglang.srt.distributed.parallel_state import get_tp_group
    return get_tp_group()


def follows() -> bool:
    """Whether this rank does what rank 0 saw."""
    return bool(ranks().rank_in_group > 0)


def everyone(mine: Any) -> list[Any]:
    """The values of all ranks, by rank. All call this in the same order."""
    group = ranks()
    return [mine] if group.world_size == 1 else list(group.all_gather_object(mine))


def _session(**options: Any) -> Client:
    """The session of an engine: that of its rank 0, whose group the others join with its token."""
    group = ranks()
    asking = {**options, **_store()}
    if group.world_size == 1:
        return connect(socket(), label="sglang", **asking)
    rank: int = group.rank_in_group
    client, opened = None, None
    try:
        if rank == 0:
            path = socket()
            client = connect(path, label="sglang", mirror=True, **asking)
            opened = path, client.group(group.world_size)
    finally:
        opened = group.broadcast_object(opened)  # the others wait for it, after a failure, too
    if opened is None:
        raise Refused("rank 0 did not open a session: see its error")
    path, token = opened
    return client or connect(path, label=f"sglang rank {rank}", group=token, rank=rank, **options)


def socket(which: str = "socket") -> Optional[str]:
    """The daemon's socket, or the store's, whose name may have this rank's device."""
    on_device = _refusals.Resolved().device == "cuda"
    try:
        return socket_of(None, torch.cuda.current_device() if on_device else None, which=which)
    except ValueError as error:
        raise Refused(str(error)) from None


def _store() -> dict[str, Any]:
    """Arguments of connect() for the store."""
    try:
        return {"store": socket("store"), "fetch_wait": fetch_wait()}
    except ValueError as error:
        raise Refused(str(error)) from None


def _connect(pool: Any, n_drafts: int = 0, **options: Any) -> None:
    from sglang.srt.runtime_context import get_schedule
    try:
        client = _session(geometry=geometry_of(pool, n_drafts), sides=(), sq_entries=512,
                          cq_entries=2048, **options)
    except GeometryMismatch as error:
        raise Refused(
            f"{error}. Start a daemon with what `python -m kvtrunk.sglang flags MODEL --tp-size "
            f"{ranks().world_size}{_drafts.flags()}` prints") from None
    try:
        check_memory(client.info, str(pool.device))
        check_sizes(client.info, pool.page_size, pool.size, ranks().world_size,
                    get_schedule().max_running_requests)
        mapped = map_slab(client)
    except Error:
        client.close()
        raise
    put(pool, mapped)
    pool.kvtrunk = Attached(client, mapped)
    pool.kvtrunk.n_drafts = n_drafts


def connect_again(pool: Any) -> Client:
    """Put the tensors on the pool of a new daemon, when nothing uses them. Error: there is none
    yet; nothing changed. Refused: its pool is another one."""
    old: Attached = pool.kvtrunk
    _connect(pool, old.n_drafts, connect_wait=0, timeout=_HANDSHAKE_S)
    _tell(pool)
    if old.drafts is not None:
        attach_drafts(old.drafts, pool)
        _tell(old.drafts)
    prove(pool)
    with contextlib.suppress(Error, BufferError):
        old.client.close()
    client: Client = pool.kvtrunk.client
    return client


def _tell(pool: Any) -> None:
    """SGLang's kernels know its tensors by their addresses, too."""
    if is_latent(pool):
        pool.data_ptrs.copy_(torch.tensor([row.data_ptr() for row in pool.kv_buffer],
                                          dtype=pool.data_ptrs.dtype))
    else:
        pool._init_data_ptrs_and_strides()


def check_memory(info: Any, device: str) -> None:
    """Raise Refused unless the pool is memory of the device that computes."""
    if (info.backend == "host") != (device == "cpu"):
        raise Refused(
            f"the daemon's pool is {info.backend} memory, and SGLang computes on {device}: start the "
            "daemon with what `python -m kvtrunk.sglang flags MODEL --device "
            f"{'cpu' if device == 'cpu' else 'cuda'}` prints")


def check_sizes(info: Any, page_size: int, size: int, n_ranks: int,
                requests: Optional[int]) -> None:
    """Raise Refused unless page size, number of pages and of slabs are the daemon's, and its leases
    suffice for --max-running-requests. requests: its value. None: SGLang's own bound, which is
    thousands, so requests without a lease wait in its queue."""
    if n_ranks != info.n_slabs:
        raise Refused(
            f"the daemon's pool has a slab for each of {info.n_slabs} ranks, this engine has "
            f"{n_ranks}: start it with --tp-size {info.n_slabs}, or a daemon with what `python -m "
            f"kvtrunk.sglang flags MODEL --tp-size {n_ranks}` prints")
    if page_size != info.page_size:
        raise Refused(f"pages have {page_size} positions here and {info.page_size} in the "
                                f"daemon's pool: start SGLang with --page-size {info.page_size}")
    wanted = (info.n_pages - 1) * info.page_size
    if size != wanted:
        raise Refused(
            f"SGLang would use {size} positions, the daemon's pool has {wanted}: start it with "
            f"--max-total-tokens {wanted} (python -m kvtrunk.sglang flags MODEL prints it)")
    if requests is not None and 0 < info.max_leases < requests:
        raise Refused(
            f"the daemon gives one session {info.max_leases} leases, too few for "
            f"--max-running-requests {requests}: set it to at most {info.max_leases}, or raise the "
            "daemon's max_leases, max_nodes or n_pages")


def bounds(runner: Any, pool: Any) -> _check.Bounds:
    """Bounds of the errors between two pages of a model."""
    from sglang.srt.layers.moe.fused_moe_triton.layer import FusedMoE
    config = runner.model_config
    computed, stored = (str(dtype).removeprefix("torch.") for dtype in (config.dtype, pool.dtype))
    return _check.Bounds(computed, stored, pool.page_size, quantised=config.quantization is not None,
                         routed=any(isinstance(module, FusedMoE) for module in runner.model.modules()),
                         tf32=torch.get_float32_matmul_precision() != "highest")


def compare(pool: Any, mine: int, theirs: int, limits: _check.Bounds) -> _check.Finding:
    """Compare two pages, after the work of the current stream. All ranks call it, and get
    the largest error of all."""
    def rows(tensor: Any) -> Any:
        return [tensor[page * pool.page_size:(page + 1) * pool.page_size] for page in (mine, theirs)]

    layers = ([rows(plane) for plane in layer] for layer in planes(pool))
    return _check.Finding(*max(everyone(tuple(_check.compare(layers, limits)))))


def prove(pool: Any) -> None:
    """Raise Refused unless K and V of every layer that the model writes lie in the pool: address,
    strides, size, and a pattern that is written through the tensor and read through the witness.

    Page 0 is scratch, which other engines write, too: so it is tried more than once.
    """
    attached: Optional[Attached] = getattr(pool, "kvtrunk", None)
    if attached is None:
        raise Refused(
            "the KV tensors are not on kvtrunk's pages: SGLang did not make them where kvtrunk "
            "expects it (python -m kvtrunk.sglang doctor); leave --radix-cache-backend out")
    _prove_layers(pool, attached, 0)
    if attached.n_drafts:
        if attached.drafts is None:
            raise Refused("the KV of draft layers is not on kvtrunk's pages: SGLang did not "
                                    "make it where kvtrunk expects it; leave --radix-cache-backend, "
                                    "or --speculative-algorithm, out")
        _prove_layers(attached.drafts, attached, pool.layer_num)


def _prove_layers(pool: Any, attached: Attached, first: int) -> None:
    """Prove the layers of one of SGLang's pools. first: its first layer in the page."""
    for i in range(pool.layer_num):
        there, seen = attached.mapped.layer(first + i), attached.witness.layer(first + i)
        key = pool.get_key_buffer(pool.start_layer + i)
        parts = [("K and V", key, there.k_bits, seen.k_bits)] if is_latent(pool) else [
            ("K", key, there.k_bits, seen.k_bits),
            ("V", pool.get_value_buffer(pool.start_layer + i), there.v_bits, seen.v_bits)]
        for name, tensor, ours, bits in parts:
            _prove_tensor(f"{name} of layer {first + i}", tensor, torch.from_dlpack(ours),
                          torch.from_dlpack(bits), pool.page_size)


def _prove_tensor(what: str, tensor: Any, there: Any, bits: Any, page_size: int) -> None:
    rows = there.shape[0] * page_size
    strides = (there.stride(2), there.stride(1), there.stride(3))
    lies = all(mine == theirs or size == 1
               for mine, theirs, size in zip(tensor.stride(), strides, tensor.shape))
    if tensor.data_ptr() != there.data_ptr() or not lies or \
            tensor.shape[0] != rows or tensor.element_size() != there.element_size():
        raise Refused(
            f"{what} does not lie in kvtrunk's pool: address {tensor.data_ptr():#x}, strides "
            f"{tuple(tensor.stride())}, {tensor.shape[0]} rows; expected {there.data_ptr():#x}, "
            f"{strides}, {rows}. Leave --radix-cache-backend out and report it")
    for _ in range(SCRATCH_TRIES):
        pattern = torch.tensor([secrets.randbelow(1 << 8) for _ in range(tensor.shape[2])],
                               dtype=tensor.dtype, device=tensor.device)
        tensor[0, 0] = pattern
        read = bits[0, 0, 0].clone()
        if torch.equal(read.view(torch.uint8), pattern.view(torch.uint8)):
            return
    raise Refused(
        f"{what} has the address of kvtrunk's pool, but what is written there does not arrive: "
        "leave --radix-cache-backend out and report it")


def make_allocator(configurator: Any, *, sizes: Any, token_to_kv_pool: Any, **_: Any) -> Any:
    """Make the allocator, in place of KVCacheConfigurator._build_token_to_kv_pool_allocator()."""
    from sglang.srt.runtime_context import get_schedule
    attached = getattr(token_to_kv_pool, "kvtrunk", None)
    if attached is None:
        prove(token_to_kv_pool)
    return KvtrunkAllocator(sizes.max_total_num_tokens, get_schedule().page_size,
                            configurator.kv_cache_dtype, configurator.device, token_to_kv_pool)


class Budget(PrefillBudget):
    """Pages for admission, as rank 0 sees them. Each rank's own readings decide nothing."""

    def _available_and_evictable(self) -> int:
        return int(self.allocator.leases.see(super()._available_and_evictable))


class KvtrunkAllocator(BaseTokenToKVPoolAllocator):
    """Hands out pages that requests' leases own, for page sizes 1 and above.

    Nothing is allocated here that was not promised before: at admission (BEGIN), or by
    check_decode_capacity() (EXTEND), which may say no.
    """

    def __init__(self, size: int, page_size: int, dtype: Any, device: str, kvcache: Any) -> None:
        super().__init__(size, page_size, dtype, device, kvcache, False)
        self.num_pages = size // page_size
        self.leases = Leases(kvcache.kvtrunk.client, n_ranks=ranks().world_size, socket=socket())
        self.reading = Reading(0, 0, self.num_pages)
        self._rows: Optional[list[tuple[Any, int, int]]] = None
        self._stream: Any = None
        """The stream of the last forward pass, on a device."""
        self.clear()

    # ---- what SGLang's own allocators have

    def clear(self) -> None:
        """Nothing is held without a lease: no free list."""
        self.free_pages = torch.empty(0, dtype=torch.int64, device=self.device)
        self.free_group = None

    def resize(self, config: Any) -> None:
        raise Refused("kvtrunk's pool has one size: leave --radix-cache-backend out")

    def available_size(self) -> int:
        """Positions that are free, or promised and in no row yet. Takes the reading that
        evictable_size() and protected_size() of the cache are from: the sum is exact."""
        self.reading = self.leases.reading()
        return (self.reading.free + self.leases.spare) * self.page_size

    def create_prefill_budget(self, tree_cache: Any, *, num_mixed_decode_tokens: int = 0) -> Any:
        """SGLang's own, on a reading that all ranks see."""
        return Budget(self, tree_cache, num_mixed_decode_tokens=num_mixed_decode_tokens)

    def evict_to_free_tokens(self, tree_cache: Any, num_tokens: int) -> bool:
        """Leases have their pages already; the daemon evicts for them."""
        return True

    def check_decode_capacity(self, *, num_tokens: int, tree_cache: Any, requests: Any = None,
                              spec_algorithm: Any = None) -> bool:
        """Get the pages of the next decode step. False: SGLang retracts requests; all of them when
        the daemon is gone, to compute them again on the pool of the next; those that read a damaged
        page."""
        reqs = requests or ()
        return not self.leases.any_damaged([req.last_node for req in reqs]) and \
            not self.leases.lost and all(
                self.leases.room(req.last_node, self._next(req, spec_algorithm)) for req in reqs)

    def _next(self, req: Any, spec_algorithm: Any) -> int:
        """Positions that the row of a request has after the next decode step."""
        if spec_algorithm is None or spec_algorithm.is_none():
            return int(req.kv.kv_allocated_len) + 1
        _, [end], _ = page_aligned_decode_alloc_lens(
            [req], reserve=get_alloc_reserve_per_decode(), page_size=self.page_size)
        return int(end)

    def decoded(self, length: int) -> int:
        """Positions that the first decode step writes, after a sequence of this length: drafts, too.
        """
        if _drafts.algorithm() is None:
            return 1
        return -(-(length + get_alloc_reserve_per_decode()) // self.page_size
                 ) * self.page_size - length

    # ---- devices

    def launched(self, scheduler: Any, batch: Any) -> None:
        """A batch was queued. With SGLang's overlap it runs on a stream of its own."""
        if self.device != "cpu":
            self._stream = (scheduler.forward_stream if scheduler.enable_overlap
                            else torch.cuda.current_stream())
            extends = batch.forward_mode.is_extend()
            self.leases.launched(self._stream.cuda_stream,
                                 (req.last_node for req in batch.reqs) if extends else ())

    def wait_for_launched(self) -> None:
        """Order work that is queued next on the current stream after all forward passes."""
        if self._stream is not None:
            torch.cuda.current_stream().wait_stream(self._stream)

    # ---- rows

    @contextlib.contextmanager
    def rows_of(self, rows: list[tuple[Any, int, int]]) -> Iterator[None]:
        """Allocate for these requests meanwhile: positions of each, from and to."""
        self._rows = rows
        try:
            yield
        finally:
            self._rows = None

    def alloc(self, need_size: int) -> Any:
        return self._slots()

    def alloc_extend(self, *_arguments: Any, **_options: Any) -> Any:
        return self._slots()

    def alloc_decode(self, *_arguments: Any, **_options: Any) -> Any:
        return self._slots()

    def _slots(self) -> Any:
        """int64 slots of all positions, in the order of the batch's requests."""
        rows = self._rows
        if rows is None:
            raise RuntimeError("SGLang allocates KV outside of a batch, which kvtrunk does not "
                               "expect: leave --radix-cache-backend out and report it")
        if not all(self.leases.room(req.last_node, end) for req, _, end in rows):
            return None
        parts = []
        for req, start, end in rows:
            if start < end:
                self.leases.give(req.last_node, end)
                parts.append(self._host_slots(req.last_node, start, end))
        return torch.cat(parts).to(self.device, non_blocking=True)

    def slots(self, lease: Lease, start: int, end: int) -> Any:
        """Slots of positions [start, end) of a lease, on the device."""
        return self._host_slots(lease, start, end).to(self.device, non_blocking=True)

    def _host_slots(self, lease: Lease, start: int, end: int) -> Any:
        size = self.page_size
        if end == start + 1:
            return torch.tensor([lease.pages[start // size] * size + start % size])
        first = start // size
        pages = torch.from_numpy(np.array(lease.pages[first:-(-end // size)], np.int64))
        slots = (pages[:, None] * size + torch.arange(size)).reshape(-1)
        return slots[start - first * size:end - first * size]

    def free(self, free_index: Any) -> None:
        if free_index.numel():
            self.leases.take_back(int(torch.unique(free_index // self.page_size).numel()))

    def free_segment(self, free_index: Any, *, start_pos: int) -> None:
        self.leases.take_back(-(-free_index.numel() // self.page_size))

    def free_page_ids(self, page_ids: Any) -> None:
        """Pages, no page twice."""
        self.leases.take_back(int(page_ids.numel()))

    def free_group_end(self) -> None:
        self.free_group = None


