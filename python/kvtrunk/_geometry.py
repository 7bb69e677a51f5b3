# SPDX-License-Identifier: Apache-2.0
"""What the pages of one slab hold."""
from __future__ import annotations

import dataclasses
from typing import Any, Optional

from ._native import ffi, lib

TYPES = {"bf16": lib.KVT_ELEMENT_BF16, "fp16": lib.KVT_ELEMENT_FP16, "fp32": lib.KVT_ELEMENT_FP32,
         "fp8_e4m3": lib.KVT_ELEMENT_FP8_E4M3}
LAYOUTS = {"hnd": lib.KVT_LAYOUT_HND, "nhd": lib.KVT_LAYOUT_NHD, "hnkd": lib.KVT_LAYOUT_HNKD,
           "nhkd": lib.KVT_LAYOUT_NHKD, "hknd": lib.KVT_LAYOUT_HKND,
           "latent": lib.KVT_LAYOUT_LATENT}
ORDERS = {"layer": lib.KVT_ORDER_LAYER, "page": lib.KVT_ORDER_PAGE}


def _number(table: dict[str, int], name: str, what: str) -> int:
    if name not in table:
        raise ValueError(f"{what} is {name!r}, not one of {', '.join(table)}")
    return table[name]


def _name(table: dict[str, int], number: int) -> str:
    return next((name for name, value in table.items() if value == number), str(number))


@dataclasses.dataclass(frozen=True)
class Geometry:
    """Geometry of the pages of one slab, which must be the daemon's.

    The names are those of the daemon's options. Under tensor parallelism the heads are those of one
    rank. kv_type: bf16, fp16, fp32, fp8_e4m3; kv_layout: hnd, nhd, with K and V packed hnkd, nhkd,
    hknd, or one plane, latent; kv_order: layer, page. kv_scales: (of K, of V) for each layer, for
    fp8. ValueError: not a geometry.
    """

    n_layers: int
    n_kv_heads: int
    head_dim: int
    kv_type: str = "bf16"
    kv_layout: str = "hnd"
    kv_order: str = "layer"
    kv_scales: Optional[tuple[tuple[float, float], ...]] = None

    def __post_init__(self) -> None:
        if self.page_bytes(1) == 0:
            raise ValueError(
                f"{self}: not a geometry. Layers are from 1 to {lib.KVT_MAX_LAYERS}, KV heads from 1 "
                f"to {lib.KVT_MAX_KV_HEADS} (of a latent layout 1), dimensions from 1 to "
                f"{lib.KVT_MAX_HEAD_DIM}; scales are finite and not negative")

    def to_native(self) -> Any:
        """struct kvt_pool_geometry. ValueError: an unknown name, or numbers of another type."""
        native = ffi.new("struct kvt_pool_geometry *")
        try:
            native.n_layers = self.n_layers
            native.n_kv_heads = self.n_kv_heads
            native.head_dim = self.head_dim
        except (OverflowError, TypeError) as error:
            raise ValueError(f"geometry: {error}") from None
        native.type = _number(TYPES, self.kv_type, "kv_type")
        native.layout = _number(LAYOUTS, self.kv_layout, "kv_layout")
        native.order = _number(ORDERS, self.kv_order, "kv_order")
        if self.kv_scales is not None:
            if len(self.kv_scales) != self.n_layers or self.n_layers > lib.KVT_MAX_LAYERS:
                raise ValueError(f"kv_scales has {len(self.kv_scales)} layers, n_layers is "
                                 f"{self.n_layers}")
            for i, (k, v) in enumerate(self.kv_scales):
                native.scales[i][0], native.scales[i][1] = k, v
        return native

    def page_bytes(self, page_size: int) -> int:
        """Bytes of a page of `page_size` positions in one slab. 0: too many positions."""
        return int(lib.kvt_pool_geometry_page_bytes(self.to_native(), page_size))

    @classmethod
    def of_native(cls, native: Any) -> Optional[Geometry]:
        """None: the daemon has page_bytes only."""
        if native.n_layers == 0:
            return None
        scales = None
        if native.type == lib.KVT_ELEMENT_FP8_E4M3:
            scales = tuple((native.scales[i][0] or 1.0, native.scales[i][1] or 1.0)
                           for i in range(native.n_layers))
        return cls(native.n_layers, native.n_kv_heads, native.head_dim, _name(TYPES, native.type),
                   _name(LAYOUTS, native.layout), _name(ORDERS, native.order), scales)
