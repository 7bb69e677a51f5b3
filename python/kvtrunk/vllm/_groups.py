# SPDX-License-Identifier: Apache-2.0
"""vLLM's groups of blocks on kvtrunk's pages: a block of any group is a page, its id the page's number.

The group whose layers keep all positions is the main one: its blocks are the pages of a path. Each
further group is a kind of side pages, in vLLM's order. With one group there are no side pages.
vLLM gives layers that keep less of a token longer blocks, so that all blocks have as many bytes.
So if the main blocks are longer than those of a window, a group is several kinds: its block i hangs
on page i // n, as the kind of the group's blocks at i % n, of n in a page.
"""
from __future__ import annotations

import hashlib
from typing import Any, NamedTuple, Optional, Sequence, TypeVar

from vllm.v1.kv_cache_interface import (ChunkedLocalAttentionSpec, FullAttentionSpec, MambaSpec,
                                        MLAAttentionSpec, SlidingWindowSpec)

from .._native import lib
from ..engine import refuse
from ._refusals import KEEP_CHUNKS

Value = TypeVar("Value")
STATES = ("MAMBA2", "GDN_ATTN")
"""Kinds of states that are shared, by vLLM's names of what computes them. KDA's are GDN_ATTN."""
_MAIN = (FullAttentionSpec, MLAAttentionSpec)
_ALONE = (*_MAIN, SlidingWindowSpec, ChunkedLocalAttentionSpec)


def main_group(groups: Sequence[Any]) -> int:
    """The group whose blocks are main pages. After check_groups()."""
    return next((i for i, group in enumerate(groups)
                 if isinstance(group.kv_cache_spec, FullAttentionSpec)), 0)


def side_values(values: Sequence[Value], main: int) -> list[Value]:
    """Values of the side groups, from values by group."""
    return [*values[:main], *values[main + 1:]]


def group_values(value: Value, sides: Sequence[Value], main: int) -> list[Value]:
    """Values by group, from the main group's and those of the side groups."""
    return [*sides[:main], value, *sides[main:]]


def trailing_blocks(spec: Any) -> int:
    """How many of a side group's last blocks a point needs."""
    if isinstance(spec, SlidingWindowSpec):
        return max(1, -(-(spec.sliding_window - 1) // spec.block_size))
    return 1


class Part(NamedTuple):
    """A side group's blocks in the pages."""

    blocks: int
    """Number of its blocks in a page."""
    pages: dict[int, int]
    """Pages whose block a point needs, by the block's number in a page. Numbers that no point
    needs are left out."""
    kinds: dict[int, int]
    """Kind of side pages of a block, by the block's number in a page."""


def parts(groups: Sequence[Any]) -> list[Part]:
    """Part of each side group."""
    page = groups[main_group(groups)].kv_cache_spec.block_size
    made: list[Part] = []
    n_kinds = 0
    for group in side_values(groups, main_group(groups)):
        blocks = page // group.kv_cache_spec.block_size
        needed = trailing_blocks(group.kv_cache_spec)
        pages = {at: -(-(needed - (blocks - 1 - at)) // blocks)
                 for at in range(blocks) if needed > blocks - 1 - at}
        made.append(Part(blocks, pages, {at: n_kinds + i for i, at in enumerate(pages)}))
        n_kinds += len(pages)
    return made


def sides(groups: Sequence[Any]) -> tuple[int, ...]:
    """The daemon's option `sides` for these groups."""
    return tuple(pages for part in parts(groups) for pages in part.pages.values())


def sides_text(trailing: Sequence[int]) -> str:
    """A value of the option `sides`."""
    return ",".join(map(str, trailing)) or "none"


def digest(groups: Sequence[Any]) -> str:
    """Digest of the layers and specs of all groups. Empty: there are no side pages."""
    if len(groups) == 1:
        return ""
    text = repr([(group.layer_names, group.kv_cache_spec) for group in groups])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _state_unfit(spec: Any) -> Optional[str]:
    if spec.mamba_type.name not in STATES:
        return f"states of {spec.mamba_type.name} are not supported"
    if spec.mamba_cache_mode != "align":
        return f"states are not shared with --mamba-cache-mode {spec.mamba_cache_mode}"
    return None


def _unfit(groups: Sequence[Any]) -> Optional[str]:
    """Why groups have no place in the pages. None: they have."""
    specs = [group.kv_cache_spec for group in groups]
    kinds = [type(spec) for spec in specs]
    if len(specs) == 1:
        return None if kinds[0] in _ALONE else f"{kinds[0].__name__} is not supported"
    if ChunkedLocalAttentionSpec in kinds and set(kinds) <= set(_ALONE):
        refuse(KEEP_CHUNKS)
    for spec, kind in zip(specs, kinds):
        if kind not in (*_MAIN, SlidingWindowSpec, MambaSpec):
            return f"{kind.__name__} is not supported beside other groups"
        why = _state_unfit(spec) if kind is MambaSpec else None
        if why:
            return why
    if MLAAttentionSpec in kinds and SlidingWindowSpec in kinds:
        return "MLAAttentionSpec is not supported beside windows"
    n_main = sum(kind in _MAIN for kind in kinds)
    if n_main != 1:
        return f"{n_main} groups keep all positions, not one"
    page = specs[main_group(groups)].block_size
    if any(page % spec.block_size for spec in specs):
        return (f"they have blocks of {', '.join(str(spec.block_size) for spec in specs)} positions, "
                "which do not divide a page")
    if page > lib.KVT_MAX_PAGE_SIZE:
        return f"blocks of {page} positions are longer than pages can be ({lib.KVT_MAX_PAGE_SIZE})"
    if len(sides(groups)) > lib.KVT_MAX_SIDES:
        return f"pages have at most {lib.KVT_MAX_SIDES} kinds of side pages"
    return None


def check_kinds(groups: Sequence[Any]) -> None:
    """Refused: groups have no place in any daemon's pages."""
    why = _unfit(groups)
    if why:
        kinds = ", ".join(type(group.kv_cache_spec).__name__ for group in groups)
        refuse(f"this model's KV has no place in the pages: of its {len(groups)} groups of layers "
               f"({kinds}), {why}. Remove --kv-transfer-config for it")


def check_groups(kv_cache_config: Any, info: Any, drafts: bool = False) -> None:
    """Refused: by vLLM's plan of its KV, or the daemon's pages do not fit it. drafts: whether the
    engine decodes speculatively."""
    groups = kv_cache_config.kv_cache_groups
    check_kinds(groups)
    if drafts and len(groups) > 1:
        refuse("speculative decoding is not supported for models with side pages: remove "
               "--speculative-config")
    spec = groups[main_group(groups)].kv_cache_spec
    if getattr(spec, "non_causal", False):
        refuse("layers with non-causal attention are not supported: remove --kv-transfer-config for "
               "this model")
    needed = sides(groups)
    if (spec.block_size, needed) != (info.page_size, tuple(info.side_pages)):
        line = f"'sides = {sides_text(needed)}'" if needed else "no 'sides'"
        refuse(f"vLLM plans blocks of {spec.block_size} and sides {sides_text(needed)}, the daemon "
               f"has pages of {info.page_size} and sides {sides_text(info.side_pages)}: put "
               f"'page_size = {spec.block_size}' and {line} into its configuration")
    if kv_cache_config.num_blocks != info.n_pages:
        refuse(f"vLLM plans {kv_cache_config.num_blocks} blocks, the daemon has {info.n_pages} pages: "
               "start vLLM without --num-gpu-blocks-override and VLLM_KV_CACHE_LAYOUT")
