# SPDX-License-Identifier: Apache-2.0
"""KV tensors of a worker on kvtrunk's pool, and the proof that they lie there.

vLLM allocates all KV of a worker by one torch.zeros(n, dtype=int8). Within allocation() that call
gets the pool, which is not zeroed: other engines' pages are in it.
"""
from __future__ import annotations

import math
import secrets
from typing import Any, Collection, Optional, Sequence

import torch
from torch.overrides import TorchFunctionMode

from .. import Client, Error, Geometry, Pool
from .._pool import SCRATCH_TRIES
from ..engine import Bounds, Finding, compare, refuse

# vLLM's layouts: L layers, B blocks, H heads, N positions, C the K and V of one. Ours: see
# docs/geometry.md.
_LAYOUTS = {"LBHNC": ("hnkd", "layer"), "LBNHC": ("nhkd", "layer"),
            "BLHNC": ("hnkd", "page"), "BLNHC": ("nhkd", "page")}
DTYPES = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32",
           torch.uint8: "fp8_e4m3", torch.int8: "fp8_e4m3"}


def wanted_layout(geometry: Optional[Geometry]) -> Optional[str]:
    """vLLM's layout for a daemon's pages. None: they have no geometry, any. Refused: none."""
    if geometry is None:
        return None
    layout = "hnkd" if geometry.kv_layout in ("hknd", "latent") else geometry.kv_layout
    ours = (layout, geometry.kv_order)
    for layout, ours_too in _LAYOUTS.items():
        if ours == ours_too:
            return layout
    refuse(f"the daemon keeps K and V apart (kv_layout {geometry.kv_layout}), vLLM together: start it "
           "with what `python -m kvtrunk.vllm flags MODEL` prints")


def page_layout(layout: str, backend: str, latent: bool = False) -> tuple[str, str]:
    """kv_layout and kv_order for a layout of vLLM's. latent: MLA, one head. Refused: unknown."""
    if layout not in _LAYOUTS:
        refuse(f"vLLM chose the KV layout {layout}: set VLLM_ATTENTION_BACKEND to a backend that "
               f"can do with one of {', '.join(_LAYOUTS)}")
    if latent:
        return "latent", _LAYOUTS[layout][1]
    if backend == "CPU_ATTN":  # the same memory, split another way inside a head
        return "hknd", _LAYOUTS[layout][1]
    return _LAYOUTS[layout]


class _Allocation(TorchFunctionMode):
    """Answer vLLM's one allocation of KV."""

    def __init__(self, pool: WorkerPool) -> None:
        super().__init__()
        self._pool = pool

    def __torch_function__(self, func: Any, types: Any, args: Any = (),
                           kwargs: Optional[dict[str, Any]] = None) -> Any:
        kwargs = kwargs or {}
        if func is not torch.zeros or kwargs.get("dtype") is not torch.int8:
            return func(*args, **kwargs)
        size = args[0] if args else kwargs.get("size")
        memory = self._pool.memory
        if size != memory.numel():
            refuse(f"vLLM wants {size} bytes of KV, the pool has {memory.numel()}: the daemon's "
                   "pages are not this model's (python -m kvtrunk.vllm flags MODEL)")
        return memory


class WorkerPool:
    """A worker's slab."""

    def __init__(self, client: Client, rank: int) -> None:
        self.client = client
        self._rank = rank
        self._pool = self._map(client)
        self._pool.populate()  # as torch.zeros() does for an engine's own cache
        self.memory = torch.from_dlpack(self._pool.raw)
        """All bytes of the pool, int8."""
        self._layers: list[torch.Tensor] = []
        self._layout = ""
        self._bounds: Optional[Bounds] = None

    def _map(self, client: Client) -> Pool:
        if client.info.backend == "host":
            return client.map_pool(self._rank)
        pool = client.map_pool(device=torch.accelerator.current_device_index())
        if pool.slab != self._rank:  # a slab holds the KV heads of one rank, in all engines
            refuse(f"rank {self._rank} has the device of slab {pool.slab}: order "
                   "CUDA_VISIBLE_DEVICES as the daemon's option devices")
        return pool

    def allocation(self) -> TorchFunctionMode:
        """Context in which vLLM allocates its KV."""
        return _Allocation(self)

    def follow(self, client: Client) -> None:
        """Another session, after the first one was lost: its pool, at the same addresses. No work
        may be in flight. RuntimeError: not with this memory."""
        old_client, old = self.client, self._pool
        try:
            try:
                old_client.close()
            except Error:
                pass  # it was lost; its pool is detached all the same
            new = self._map(client)
            new.replace(old)
        except (Error, BufferError, OSError) as error:
            raise RuntimeError(f"kvtrunk: the pool of the new daemon cannot take the place of the "
                               f"lost one: {error}. Start the engine again") from None
        # The old mapping's object has the address from now on.
        self.client, self._kept = client, new

    # ---- the proof

    def prove(self, tensors: dict[str, torch.Tensor], layout: str, backend: str,
              latent: bool = False, own: Optional[int] = None,
              others: Sequence[dict[str, torch.Tensor]] = (),
              states: Collection[str] = ()) -> None:
        """Refused: K or V of a layer is not where the daemon and other engines expect it. own: how
        many layers are the model's; those after them are draft layers. None: there are none. others:
        of each further group of layers, whose pages are others, in the same memory, and may be of
        fewer positions with more KV each. states: layers that keep a state, of any shape, and no KV."""
        if not tensors:
            refuse("vLLM registered no KV tensors")
        info = self.client.info
        names = sorted(tensors, key=_layer_number)
        shapes = [{(tuple(tensor.shape), tensor.dtype) for name, tensor in group.items()
                   if name not in states} for group in (tensors, *others)]
        types = {dtype for group in shapes for _, dtype in group}
        unknown = {str(dtype) for dtype in types} - {str(dtype) for dtype in DTYPES}
        if unknown:
            refuse(f"KV tensors of {', '.join(sorted(unknown))}: set --kv-cache-dtype to bfloat16, "
                   "float16 or fp8_e4m3")
        most = max(len(types), *map(len, shapes))
        if most != 1:
            refuse(f"KV tensors of {most} kinds: only models with equal layers in each group of layers "
                   "are supported")
        [((n_blocks, heads, size, both), dtype)] = shapes[0]
        kv_layout, kv_order = page_layout(layout, backend, latent)
        n_layers = max(map(len, (tensors, *others)))
        ours = Geometry(n_layers, heads, both if latent else both // 2,
                        DTYPES[dtype], kv_layout, kv_order)
        theirs = info.geometry
        if theirs is None and kv_order != "page":
            refuse("the daemon knows page_bytes only, and this engine spreads a page over the pool, a "
                   "layer here and a layer there: others would write into it. Start the daemon "
                   "with what `python -m kvtrunk.vllm flags MODEL` prints")
        if theirs is not None and _plain(theirs) != _plain(ours):
            refuse(f"the daemon has pages of {_text(theirs)}, this engine's are {_text(ours)}: start "
                   "the daemon with what `python -m kvtrunk.vllm flags MODEL` prints")
        if (n_blocks, size) != (info.n_pages, info.page_size):
            refuse(f"KV tensors of {n_blocks} blocks of {size} on {info.n_pages} pages of "
                   f"{info.page_size}")
        piece = heads * size * both * tensors[names[0]].element_size()
        for group in (tensors, *others):
            self._prove_group(group, (n_blocks, heads, size, both), piece, kv_layout, kv_order,
                              n_layers, states)
        if own is not None and sum(_layer_number(name)[0] < own for name in names) != own:
            refuse(f"draft layers cannot be told from the model's {own} layers, by their names "
                   f"{', '.join(names)}: remove --speculative-config")
        self._layers, self._layout = [tensors[name] for name in names[:own]], kv_layout

    def _prove_group(self, tensors: dict[str, torch.Tensor], shape: tuple[int, ...], piece: int,
                     layout: str, order: str, n_layers: int, states: Collection[str]) -> None:
        """Prove each layer of a group: its blocks have the pieces of pages at one place, by number.
        shape: of layers that kvtrunk's views show, K and V apart; others are bytes."""
        names = sorted(tensors, key=_layer_number)
        for number, name in enumerate(names):
            self._prove_place(number, name, tensors[name], piece, order, n_layers)
        for number, name in enumerate(names):
            self._prove_pattern(number, tensors[name], layout,
                                self.client.info.geometry is not None and name not in states and
                                tensors[name].shape == shape)

    def set_bounds(self, model: Any) -> None:
        """Set the bounds of the errors between two pages of a model. After prove()."""
        stored = self._layers[0].dtype
        self._bounds = Bounds(
            _name(model.dtype),
            "float8_e4m3fn" if stored.itemsize == 1 else _name(stored), self.client.info.page_size,
            routed=model.is_moe, quantised=model.quantization is not None,
            tf32=torch.get_float32_matmul_precision() != "highest")

    def compare(self, mine: int, theirs: int) -> Finding:
        """Compare two pages, after the work of the current stream. Draft layers do not
        count: they change no text, and their KV may not be written yet."""
        assert self._bounds is not None
        return compare((zip(_planes(layer[mine], self._layout), _planes(layer[theirs], self._layout))
                        for layer in self._layers), self._bounds)

    def _prove_place(self, number: int, name: str, tensor: torch.Tensor, piece: int, order: str,
                     n_layers: int) -> None:
        """Address, strides and size of each layer."""
        info = self.client.info
        stride, first = (piece * n_layers, piece * number) if order == "page" else (
            piece, piece * info.n_pages * number)
        at = tensor.data_ptr() - self.memory.data_ptr()
        found = (at, tensor.stride(0) * tensor.element_size(), piece * n_layers)
        block = tensor[0].numel() * tensor.element_size()  # a state may be smaller than its page
        if found != (first, stride, info.page_bytes) or not _is_dense(tensor[0]) or block > piece:
            refuse(f"K and V of {name} do not lie in the pool: (offset, block stride, page bytes) "
                   f"are {found}, not {(first, stride, info.page_bytes)}. Another plug-in, or a "
                   "version of vLLM that allocates KV in another way")

    def _prove_pattern(self, number: int, tensor: torch.Tensor, layout: str,
                       has_geometry: bool) -> None:
        """Prove that a write to page 0 through vLLM's tensor arrives in kvtrunk's view, and in a
        mapping that has nothing to do with it. Page 0 is scratch, which other engines write, too:
        so it tries more than once."""
        for _ in range(SCRATCH_TRIES):
            if self._arrives(number, tensor, layout, has_geometry):
                tensor[0].zero_()
                return
        refuse("what vLLM writes to page 0 is not what kvtrunk reads there: this layout of vLLM's "
               "is not the pool's")

    def _arrives(self, number: int, tensor: torch.Tensor, layout: str, has_geometry: bool) -> bool:
        bits = tensor[0].view(torch.uint8)
        pattern = torch.empty_like(bits)  # of the same strides
        first = secrets.randbelow(251)
        pattern.copy_(torch.arange(first, first + bits.numel(), device=bits.device)
                      .remainder(251).to(torch.uint8).view(bits.shape))
        bits.copy_(pattern)
        if has_geometry:
            layer = self._pool.layer(number)
            planes = (torch.from_dlpack(part)[0] for part in (layer.k_bits, layer.v_bits))
            return all(torch.equal(plane.contiguous().view(torch.uint8),
                                   want.contiguous().view(torch.uint8))
                       for plane, want in zip(planes, _planes(pattern.view(tensor.dtype), layout)))
        at = tensor.data_ptr() - self.memory.data_ptr()
        flat = torch.from_dlpack(self._pool.raw)[at:at + bits.numel()]
        return torch.equal(flat.view(torch.uint8), torch.as_strided(pattern, (bits.numel(),), (1,)))


def _is_dense(block: torch.Tensor) -> bool:
    """Whether a block's elements lie in one piece, in any order."""
    strides = sorted(zip(block.stride(), block.shape))
    return all(stride == math.prod(size for _, size in strides[:i])
               for i, (stride, size) in enumerate(strides) if size > 1)


def _planes(block: torch.Tensor, layout: str) -> tuple[torch.Tensor, ...]:
    """K and V of a block, or the one plane of MLA: head, position, dim, in the order of memory."""
    heads, size, both = block.shape
    if layout == "latent":
        return (block,)
    if layout == "hknd":
        halves = block.reshape(heads, 2, size, both // 2)
        return halves[:, 0], halves[:, 1]
    return block[..., :both // 2], block[..., both // 2:]


def _layer_number(name: str) -> tuple[int, str]:
    numbers = [int(part) for part in name.split(".") if part.isdigit()]
    return (numbers[0] if numbers else 0, name)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _plain(geometry: Geometry) -> tuple[Any, ...]:
    return (geometry.n_layers, geometry.n_kv_heads, geometry.head_dim, geometry.kv_type,
            geometry.kv_layout, geometry.kv_order)


def _text(geometry: Geometry) -> str:
    return (f"{geometry.n_layers} layers, {geometry.n_kv_heads} KV heads of {geometry.head_dim}, "
            f"{geometry.kv_type}, {geometry.kv_layout}.{geometry.kv_order}")
