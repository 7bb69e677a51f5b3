# SPDX-License-Identifier: Apache-2.0
"""The pool in this process: views for numpy, torch and others, without copies."""
from __future__ import annotations

import dataclasses
import errno
import os
import weakref
from typing import TYPE_CHECKING, Any, Optional

from ._errors import Closed, from_parts
from ._native import ffi, lib
from ._own import Owner
from ._progress import progress
from ._view import Array, make

if TYPE_CHECKING:
    from ._client import Client

# enum kvt_element_type: name, format of the buffer protocol, DLPack's code. The buffer protocol has
# no bf16 and fp8: their bits, as unsigned integers.
_ELEMENTS = {
    lib.KVT_ELEMENT_BF16: ("bf16", "H", 4),
    lib.KVT_ELEMENT_FP16: ("fp16", "e", 2),
    lib.KVT_ELEMENT_FP32: ("fp32", "f", 2),
    lib.KVT_ELEMENT_FP8_E4M3: ("fp8_e4m3", "B", 10),
}
_UNSIGNED = {1: "B", 2: "H", 4: "I"}
_SIGNED_CODE, _UNSIGNED_CODE = 0, 1
_HOST, _CUDA = 1, 2
_HOST_PAGE = 4096
_PIECE = 64 << 20
SCRATCH_TRIES = 1000
"""Tries to read a write to page 0 back: another engine may overwrite it first."""


def _unmap(pid: int, base: int, n_bytes: int) -> None:
    if pid == os.getpid():  # a forked child has no mapping, perhaps something else there
        lib.kvtpy_unmap(base, n_bytes)


class _Mapping:
    """A mapping of a host slab for arrays, beside the library's. It outlives the client while an
    array uses it, as empty memory."""

    def __init__(self, base: int, n_bytes: int) -> None:
        again = ffi.new("uintptr_t *")
        rc = lib.kvtpy_map_again(ffi.cast("void *", base), n_bytes, again)
        if rc != 0:
            raise OSError(-rc, "the pool cannot be mapped again")
        self.base = int(again[0])
        self._end = weakref.finalize(self, _unmap, os.getpid(), self.base, n_bytes)
        self._end.atexit = False
        self._n_bytes = n_bytes

    def blank(self) -> None:
        """Detach from the pool."""
        lib.kvtpy_blank(self.base, self._n_bytes)


class _Borrowed:
    """The library's own mapping: device memory, or huge pages, which cannot be mapped twice."""

    def __init__(self, base: int) -> None:
        self.base = base


@dataclasses.dataclass(frozen=True)
class Layer:
    """K and V of one layer.

    k, v: shape [n_pages, n_kv_heads, page_size, head_dim], with strides for the pool's layout.
    `k_bits`, `v_bits`: the same memory as unsigned integers, for libraries without bf16 or fp8.
    k_scale, v_scale: value = stored value * scale (fp8; else 1).
    """

    k: Array
    v: Array
    k_bits: Array
    v_bits: Array
    k_scale: float
    v_scale: float
    dtype: str


class Pool(Owner):
    """One mapped slab of the pool: client.pool, client.map_pool().

    Write only pages that are private to you: those of a sequence from position seq.next on. Cached
    pages are read only, by contract. Arrays stay valid after Client.close(), which puts empty
    memory in their place.
    """

    def __init__(self, client: Client, native: Any, device: Optional[int], readonly: bool) -> None:
        self._client = client
        self._native = native
        self._device = (_HOST, 0) if device is None else (_CUDA, device)
        self.readonly = readonly
        """Whether it is mapped to read only."""
        self.n_pages = int(native.n_pages)
        """Pages of the slab; page 0, the scratch page, included."""
        self.n_bytes = int(native.bytes)
        """Bytes of the slab."""
        self.slab = int(native.slab)
        """Number of the slab."""
        self._owner: Any = None
        self._library_base = int(ffi.cast("uintptr_t", native.base))
        self._attach()

    def _attach(self) -> None:
        if self._device[0] == _HOST:
            try:
                self._owner = _Mapping(self._library_base, self.n_bytes)
            except OSError:
                pass
        if self._owner is None:
            self._owner = _Borrowed(self._library_base)

    def _drop(self) -> bool:
        """Give up the memory of arrays. False: one lives, nothing changed."""
        if self._owner is None:
            return True
        kept, self._owner = weakref.ref(self._owner), None
        self._owner = kept()
        return self._owner is None

    def _end(self) -> bool:
        """Detach arrays from the pool. False: they use the library's mapping."""
        if isinstance(self._owner, _Mapping):
            self._owner.blank()
            return True
        return self._drop()

    def _moves(self) -> bool:
        """Whether the library may map the slab at another address when it resumes."""
        return self._device[0] == _CUDA and self._client.info.backend == "cuda-ipc"

    def _suspended(self) -> None:
        """The library has unmapped the pool: arrays that live get empty memory."""
        if isinstance(self._owner, _Mapping):
            self._owner.blank()
        elif self._owner is not None and self._device[0] == _HOST:
            lib.kvtpy_blank(self._library_base, self.n_bytes)

    def _resumed(self, handle: Any) -> None:
        """The library has mapped the pool again: so do arrays that live."""
        if self._moves():
            flags = lib.KVT_MAP_READ_ONLY if self.readonly else 0
            self._client._check(lib.kvt_pool_map_cuda(handle, self._device[1], flags, self._native))
            self._library_base = int(ffi.cast("uintptr_t", self._native.base))
        if self._owner is None:
            self._attach()
        elif isinstance(self._owner, _Mapping):
            rc = lib.kvtpy_map_at(self._library_base, self.n_bytes, self._owner.base)
            if rc != 0:
                raise OSError(-rc, "the pool cannot be mapped again")

    def _ready(self) -> Any:
        """The client's handle; with its lock."""
        handle = self._client._open()
        if self._client.suspended:
            raise from_parts(-errno.ENXIO, 0, "the client is suspended: resume() first")
        if self._owner is None:
            raise Closed("the client of this pool was closed")
        return handle

    def _array(self, address: int, shape: tuple[int, ...], strides: tuple[int, ...], fmt: str,
               n_bytes: int, code: int) -> Array:
        moved = address - self._library_base + self._owner.base
        return make(self._owner, moved, shape, strides, fmt, n_bytes, code, self.readonly,
                    *self._device)

    @property
    def raw(self) -> Array:
        """All bytes of the slab, shape [n_pages * page_bytes], as signed integers."""
        with self._client._lock:
            self._ready()
            n_bytes = self.n_pages * self._client.info.page_bytes
            return self._array(self._library_base, (n_bytes,), (1,), "b", 1, _SIGNED_CODE)

    def populate(self) -> None:
        """Allocate and map a pool in host memory now, instead of 4 KiB at a time at first use. Takes
        about as long as zeroing as much new memory. Does nothing for a pool on a device."""
        if self._device[0] == _HOST:
            raw = memoryview(self.raw)  # type: ignore[arg-type]
            with progress("populating the pool", len(raw)) as shown:
                for at in range(0, len(raw), _PIECE):
                    piece = raw[at:at + _PIECE]
                    piece[::_HOST_PAGE].tobytes()
                    shown.add(len(piece))

    def replace(self, closed: Pool) -> None:
        """Put this pool in place of a closed client's: that one's arrays, at their addresses, are on
        this pool's memory from now on. For engines whose tensors outlive a daemon.

        InvalidArgument: it is not closed, or of another size. Unsupported: device memory or huge
        pages.
        """
        theirs = closed._owner
        if not closed._client.closed or closed.n_bytes != self.n_bytes:
            raise from_parts(-errno.EINVAL, 0, f"replace: a pool of {closed.n_bytes} bytes, closed or "
                             f"not, cannot become one of {self.n_bytes}")
        if not isinstance(theirs, _Mapping) or not isinstance(self._owner, _Mapping):
            raise from_parts(-errno.ENOTSUP, 0, "replace: memory of this kind (huge pages, a device) "
                             "cannot be mapped twice: start the process again")
        rc = lib.kvtpy_map_at(self._owner.base, self.n_bytes, theirs.base)
        if rc != 0:
            raise OSError(-rc, "the pool cannot be mapped in place of another")

    def layer(self, index: int) -> Layer:
        """K and V of a layer, counted from 0.

        Unsupported: the daemon was given page_bytes and no geometry. InvalidArgument: no such
        layer. No memory is touched.
        """
        if not 0 <= index < 1 << 32:
            raise from_parts(-errno.EINVAL, 0, f"layer {index}: they are counted from 0")
        view = ffi.new("struct kvt_pool_view *")
        client = self._client
        with client._lock:
            handle = self._ready()
            client._check(lib.kvt_pool_view(handle, self._native, index, view))
            shape = (view.n_pages, view.n_kv_heads, view.page_size, view.head_dim)
            strides = (view.page_stride_bytes, view.head_stride_bytes, view.position_stride_bytes,
                       view.element_bytes)
            name, fmt, code = _ELEMENTS[view.type]
            size = view.element_bytes
            k, v = (int(ffi.cast("uintptr_t", pointer)) for pointer in (view.k, view.v))
            return Layer(self._array(k, shape, strides, fmt, size, code),
                         self._array(v, shape, strides, fmt, size, code),
                         self._array(k, shape, strides, _UNSIGNED[size], size, _UNSIGNED_CODE),
                         self._array(v, shape, strides, _UNSIGNED[size], size, _UNSIGNED_CODE),
                         float(view.k_scale), float(view.v_scale), name)

    def layers(self) -> list[Layer]:
        """All layers."""
        geometry = self._client.info.geometry
        return [self.layer(i) for i in range(geometry.n_layers if geometry else 0)]

    def page(self, number: int) -> Array:
        """The bytes of one page, shape [page_bytes]. Unsupported: it is not in one piece (order
        "layer"): see layer(). InvalidArgument: no such page."""
        if not 0 <= number < self.n_pages:
            raise from_parts(-errno.EINVAL, 0, f"page {number} of {self.n_pages}")
        with self._client._lock:
            self._ready()
            address = int(ffi.cast("uintptr_t", lib.kvt_page_address(self._native, number)))
            if address == 0:
                raise from_parts(-errno.ENOTSUP, 0, "a page is not in one piece here: each layer of "
                                 "it is elsewhere (Pool.layer())")
            return self._array(address, (self._client.info.page_bytes,), (1,), "B", 1,
                               _UNSIGNED_CODE)
