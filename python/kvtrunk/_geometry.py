# SPDX-License-Identifier: Apache-2.0
"""The K and V that the pages of one slab hold: heads, types, layout."""
from __future__ import annotations

import dataclasses
import math
import operator
from typing import Any, Optional

from ._native import ffi, lib

TYPES = {"bf16": lib.KVT_ELEMENT_BF16, "fp16": lib.KVT_ELEMENT_FP16, "fp32": lib.KVT_ELEMENT_FP32,
         "fp8_e4m3": lib.KVT_ELEMENT_FP8_E4M3}
LAYOUTS = {"hnd": lib.KVT_LAYOUT_HND, "nhd": lib.KVT_LAYOUT_NHD, "hnkd": lib.KVT_LAYOUT_HNKD,
           "nhkd": lib.KVT_LAYOUT_NHKD, "hknd": lib.KVT_LAYOUT_HKND,
           "latent": lib.KVT_LAYOUT_LATENT}
ORDERS = {"layer": lib.KVT_ORDER_LAYER, "page": lib.KVT_ORDER_PAGE}


def _number(table: dict[str, int], name: str, what: str) -> int:
    if not isinstance(name, str) or name not in table:
        raise ValueError(f"{what} is {name!r}, not one of {', '.join(table)}")
    return table[name]


def _whole(what: str, value: Any, most: int) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        number = 0
    if not 1 <= number <= most:
        raise ValueError(f"{what} is {value!r}, not a number from 1 to {most}")
    return number


def _scale(layer: int, pair: Any) -> tuple[float, float]:
    try:
        k, v = pair
        if 0 <= k < math.inf and 0 <= v < math.inf:
            return k, v
    except (TypeError, ValueError):
        pass
    raise ValueError(f"kv_scales has {pair!r} for layer {layer}, not two numbers, of K and of V, that "
                     "are finite and not negative")


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
        self.to_native()

    def to_native(self) -> Any:
        """struct kvt_pool_geometry. ValueError: a field that is not right, by its name."""
        native = ffi.new("struct kvt_pool_geometry *")
        native.type = _number(TYPES, self.kv_type, "kv_type")
        native.layout = _number(LAYOUTS, self.kv_layout, "kv_layout")
        native.order = _number(ORDERS, self.kv_order, "kv_order")
        native.n_layers = _whole("n_layers", self.n_layers, lib.KVT_MAX_LAYERS)
        native.n_kv_heads = _whole("n_kv_heads", self.n_kv_heads, lib.KVT_MAX_KV_HEADS)
        native.head_dim = _whole("head_dim", self.head_dim, lib.KVT_MAX_HEAD_DIM)
        if self.kv_layout == "latent" and native.n_kv_heads != 1:
            raise ValueError(f"n_kv_heads is {self.n_kv_heads}, and kv_layout latent has one")
        if self.kv_scales is not None:
            scales = self.kv_scales
            if not isinstance(scales, (tuple, list)) or len(scales) != self.n_layers:
                raise ValueError(f"kv_scales is {scales!r}, not (of K, of V) for each of n_layers, "
                                 f"{self.n_layers}")
            for i, pair in enumerate(scales):
                native.scales[i][0], native.scales[i][1] = _scale(i, pair)
        return native

    def page_bytes(self, page_size: int) -> int:
        """Bytes of a page of `page_size` positions in one slab. 0: too many positions."""
        positions = _whole("page_size", page_size, 0xffffffff)
        return int(lib.kvt_pool_geometry_page_bytes(self.to_native(), positions))

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
