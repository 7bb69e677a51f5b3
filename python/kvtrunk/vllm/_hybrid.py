# SPDX-License-Identifier: Apache-2.0
"""Models with windows or recurrent states beside full attention: their groups of blocks as side pages.

One group with full attention is the main one: its blocks are the lease's page table. The blocks of
each other group are side pages, of one kind or several (_groups.py). vLLM's own managers decide
which blocks these groups need, free, and cache (windows, alignment of states, points). They work on
a BlockPool of ours, whose blocks are:

* loose: a private page of the session in no lease. Its last user gives it back.
* cached: found by BEGIN, or given to a COMMIT. The lock on the lease's path keeps it, so nothing
  is given back: when its last user needs it no more, a COMMIT lets it go, and it may be evicted
  before the request ends. vLLM never writes it: a request that continues from a cached state
  copies it.

vLLM counts a block as cached when it schedules the step that computes it. Here that is a note: the
step's COMMIT carries it, at the step's fence.
"""
from __future__ import annotations

from typing import TYPE_CHECKING, Any, Iterable, Iterator, Optional, Sequence

from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_coordinator import replay_boundaries
from vllm.v1.core.kv_cache_utils import KVCacheBlock

from .._seq import SIDE_LET, Fence
from ..engine import Begun, refuse
from ._engine import Engine
from ._groups import Part, group_values, main_group, parts, side_values, sides
from ._refusals import session_pages

if TYPE_CHECKING:
    from vllm.v1.core.kv_cache_manager import KVCacheManager

Place = tuple[int, int]
"""Index in the page table, and kind."""
Blocks = tuple[Sequence[Any], ...]
"""vLLM's blocks of each group."""


class SidePool(BlockPool):
    """vLLM's block pool, made on the engine's session by _kvt_init()."""

    def _kvt_init(self, engine: Engine, parts_: dict[int, Part]) -> None:
        """parts_: by group."""
        self._engine = engine
        self._parts = parts_
        self._loose: set[int] = set()
        self._stock: list[int] = []
        """Loose pages without a user. Steps run in order, so the next step may write them."""
        self._notes: dict[str, dict[int, Place]] = {}
        """Pages to publish and their places, by request."""
        self._held: dict[int, tuple[str, Place]] = {}
        """Cached pages, each with the request whose lease holds it, and its place."""
        self._unread: dict[str, dict[int, Place]] = {}
        """Held pages that no request here needs any more, by the request that holds them."""

    def forget(self) -> None:
        """The session was lost: forget all pages. Blocks that vLLM still holds have none."""
        self._loose.clear()
        self._stock.clear()
        self._notes.clear()
        self._held.clear()
        self._unread.clear()
        self.blocks[1:] = [KVCacheBlock(number, pool=self) for number in range(1, len(self.blocks))]

    # ---- pages

    def reserve(self, n: int) -> bool:
        """Stock n pages for get_new_blocks(). False: no space for all, nothing happened."""
        short = n - len(self._stock)
        if short > 0:
            pages = self._engine.ring.pages(short)
            if pages is None:
                return False
            self._stock += pages
        return True

    def flush(self, fence: Optional[Fence]) -> None:
        """Give the stock back, at the fence of all steps that used it."""
        if self._stock:
            self._engine.ring.free(self._stock, fence)
            self._stock = []

    def returned(self, pages: Iterable[int]) -> None:
        """Take back pages that the daemon did not take from a COMMIT."""
        for page in pages:
            self._forget_held(page)
            if self.blocks[page].ref_cnt:
                self._loose.add(page)
            else:
                self._stock.append(page)

    def private(self, pages: Iterable[int]) -> Iterator[int]:
        """The loose ones of some pages."""
        return (page for page in pages if page in self._loose)

    # ---- notes

    def _note(self, request: Any, block: Any, group: int, index: int) -> None:
        """Note a block for a COMMIT to publish. index: of the block, in its group."""
        part = self._parts[group]
        page, at = divmod(index, part.blocks)
        if at in part.kinds and block.block_id in self._loose:
            notes = self._notes.setdefault(request.request_id, {})
            notes[block.block_id] = page, part.kinds[at]

    def _forget_note(self, page: int) -> None:
        for notes in self._notes.values():
            notes.pop(page, None)

    def noted(self, name: str, pages: int) -> list[tuple[int, int, int]]:
        """Notes of a request that a COMMIT of `pages` pages can carry: index, kind, page."""
        return [(*place, page) for page, place in self._notes.get(name, {}).items()
                if place[0] < pages]

    def given(self, name: str, sides: Sequence[tuple[int, int, int]]) -> None:
        """A COMMIT carries these side pages: from now on the lease holds them."""
        notes = self._notes.get(name, {})
        for _, _, page in sides:
            self.hold(name, page, notes.pop(page))
            self._loose.remove(page)
        if not notes:
            self._notes.pop(name, None)

    def drop_notes(self, name: str) -> None:
        """Forget the notes and held pages of a request that has ended."""
        self._notes.pop(name, None)
        self._unread.pop(name, None)
        for page in [page for page, (holder, _) in self._held.items() if holder == name]:
            del self._held[page]

    # ---- letting go

    def hold(self, name: str, page: int, place: Place) -> None:
        """Note that the request's lease holds a cached page."""
        self._forget_held(page)
        self._held[page] = name, place

    def _forget_held(self, page: int) -> None:
        name, _ = self._held.pop(page, ("", None))
        self._unread.get(name, {}).pop(page, None)

    def unread(self, name: str, pages: int) -> list[tuple[int, int, int]]:
        """Places that a COMMIT of `pages` pages can let go of: index, kind, SIDE_LET."""
        return [(*place, SIDE_LET) for place in self._unread.get(name, {}).values()
                if place[0] < pages]

    def let_go(self, name: str, pages: int) -> None:
        """A COMMIT of `pages` pages lets go of unread(): forget them."""
        unread = self._unread.pop(name, {})
        later = {page: place for page, place in unread.items() if place[0] >= pages}
        if later:
            self._unread[name] = later

    # ---- what vLLM's managers call

    def get_new_blocks(self, num_blocks: int) -> list[Any]:
        kept = len(self._stock) - num_blocks
        assert kept >= 0  # reserve() was called
        pages, self._stock = self._stock[kept:], self._stock[:kept]
        self._loose.update(pages)
        blocks = [self.blocks[page] for page in pages]
        for block in blocks:
            block.ref_cnt = 1
            self._forget_held(block.block_id)
        return blocks

    def free_blocks(self, ordered_blocks: Iterable[Any]) -> None:
        for block in ordered_blocks:
            page = block.block_id
            if block.is_null or block is not self.blocks[page]:
                continue
            block.ref_cnt -= 1
            if block.ref_cnt:
                continue
            if page in self._loose:
                self._loose.remove(page)
                self._forget_note(page)
                self._stock.append(page)
            elif page in self._held:
                name, place = self._held[page]
                self._unread.setdefault(name, {})[page] = place

    def touch(self, blocks: Sequence[Any]) -> None:
        for block in blocks:
            block.ref_cnt += 1
            name, _ = self._held.get(block.block_id, ("", None))
            self._unread.get(name, {}).pop(block.block_id, None)

    def cache_full_blocks(self, request: Any, blocks: list[Any], num_cached_blocks: int,
                          num_full_blocks: int, block_size: int, kv_cache_group_id: int,
                          block_mask: Optional[list[bool]] = None) -> None:
        for index in range(num_cached_blocks, num_full_blocks):
            if block_mask is None or block_mask[index - num_cached_blocks]:
                self._note(request, blocks[index], kv_cache_group_id, index)

    def cache_partial_block(self, request: Any, block: Any, num_tokens: int,
                            kv_cache_group_id: int, block_size: int,
                            replace_existing_hashes: bool = False) -> None:
        """Note a state at a block's end. It may be in the block of a step that ends later."""
        assert num_tokens % block_size == 0  # vLLM's partial hits are off
        self._note(request, block, kv_cache_group_id, num_tokens // block_size - 1)

    def _maybe_evict_cached_block(self, block: Any) -> bool:
        self._forget_note(block.block_id)
        return False

    def get_num_free_blocks(self) -> int:
        """Pages that this session could still take, if no other took them; those in stock, too."""
        found = self._engine.ring.client.counters()
        return int(found.free_pages + found.evictable_pages) + self.stocked()

    def stocked(self) -> int:
        """Pages that this session has in stock."""
        return len(self._stock) + self._engine.ring.stocked


class Point:
    """Side pages of a request's lease: those it continued from, and those it published."""

    def __init__(self, begun: Begun, page_size: int) -> None:
        self.start = begun.reusable // page_size
        self.found = begun.sides
        self.matched = begun.matched + begun.announced
        """Positions that others have computed, or will."""
        self.published: set[Place] = set()
        self.end = 0
        """Main pages before the last point that it published."""

    def publish(self, sides: Sequence[tuple[int, int, int]], kinds: Sequence[int]) -> None:
        """A COMMIT carries these side pages: note them, and the point that they complete."""
        self.published.update((index, kind) for index, kind, _ in sides)
        have = self.published | {(self.start - 1 - i, kind) for kind, found in enumerate(self.found)
                                 for i in range(len(found))}
        for end in {index + 1 for index, _, _ in sides}:
            if all((end - 1 - i, kind) in have
                   for kind, most in enumerate(kinds) for i in range(min(most, end))):
                self.end = max(self.end, end)

    def obsolete(self, kinds: Sequence[int]) -> list[tuple[int, int, int]]:
        """Places to drop: those of the point that it continued from, if they are more than the main
        pages from there to the last point that it published."""
        if self.end <= self.start:
            return []
        old = [(self.start - 1 - i, kind, 0) for kind, found in enumerate(self.found)
               for i in range(len(found)) if self.start - 1 - i < self.end - kinds[kind]]
        return old if len(old) > self.end - self.start else []


class Sides:
    """Side groups of an engine, on vLLM's managers of them."""

    def __init__(self, manager: KVCacheManager, engine: Engine) -> None:
        coordinator = manager.coordinator
        if getattr(coordinator, "enable_partial_hash_hits", False):
            refuse("vLLM would reuse parts of blocks: start it without --prefix-match-unit")
        groups = manager.kv_cache_config.kv_cache_groups
        self.main = main_group(groups)
        self.page_size = engine.info.page_size
        self._coordinator = coordinator
        self._managers = side_values(coordinator.single_type_managers, self.main)
        self._parts = parts(groups)
        self.kinds = sides(groups)
        """Side pages of a point, by kind."""
        self.block_size = min(group.kv_cache_spec.block_size for group in groups)
        """Positions of the shortest blocks."""
        self.pool: SidePool = manager.block_pool
        self.pool.__class__ = SidePool
        self.pool._kvt_init(engine, {each.kv_cache_group_id: part
                                     for part, each in zip(self._parts, self._managers)})
        for each in self._managers:
            each._get_num_evictable_blocks = lambda blocks: 0  # the lease holds what it found
        self._states = 1 + engine.batches
        """Pages of a state: its own, and those of steps whose output has not come. Beside them a step
        may keep one that it passes."""
        self._check_room(manager.max_model_len, engine.info)
        self._zeroes = coordinator.single_type_managers[self.main].records_new_block_ids
        self._to_zero: dict[str, list[int]] = {}

    def most(self, tokens: int) -> int:
        """Side pages that a request of so many tokens needs at once, at most."""
        whole = -(-tokens // self.page_size)
        return sum(min(whole * part.blocks, each.max_admission_blocks_per_request or self._states +
                       each.kv_cache_spec.num_prefill_checkpoint_blocks)
                   for part, each in zip(self._parts, self._managers))

    def _check_room(self, longest: int, info: Any) -> None:
        """Refuse a pool that cannot hold the longest request: it would wait for ever."""
        whole, most = -(-longest // self.page_size), self.most(longest)
        has = session_pages(info)
        if whole + most > has:
            refuse(f"a request of --max-model-len {longest} may need {whole} pages, and "
                   f"{most} for windows and states, but one session gets {has}: set it, or "
                   "--max-num-batched-tokens, to less, or give the daemon more n_pages or "
                   "max_private_pages")

    def groups(self, main: Sequence[Any], kinds: Sequence[Sequence[Any]]) -> Blocks:
        """Blocks by group, in vLLM's order."""
        return tuple(group_values(main, kinds, self.main))

    def found(self, main: Sequence[Any], point: Point) -> Blocks:
        """Blocks that a request reuses, by group: of a side group only the last ones."""
        found = []
        for part in self._parts:
            blocks = [self.pool.null_block] * (len(main) * part.blocks)
            for at, kind in part.kinds.items():
                pages = point.found[kind]
                for index, page in enumerate(pages, len(main) - len(pages)):
                    blocks[index * part.blocks + at] = self.pool.blocks[page]
            found.append(blocks)
        return self.groups(main, found)

    def junction(self, point: Point, request: Any) -> int:
        """Positions from which the next such prompt could continue; 0: from none beyond this one's."""
        most = min(point.matched, (request.num_tokens - 1) // self.page_size * self.page_size)
        return most if most > point.start * self.page_size else 0

    # ---- slots

    def skip(self, name: str, processed: int) -> None:
        """Free what lies before the windows of positions that are not processed yet."""
        for each in self._managers:
            each.remove_skipped_blocks(name, processed)

    def _needed(self, request: Any, tokens: int, found: Blocks, computed: int, whole: bool) -> int:
        end = max(request.num_prompt_tokens, request.num_tokens - 1)
        return sum(each.get_num_blocks_to_allocate(
            request.request_id, tokens, blocks, computed, computed, tokens,
            apply_admission_cap=whole,
            prefill_end=end if self._coordinator.retention_interval == 0 else 0)
            for each, blocks in zip(self._managers, side_values(found, self.main)))

    def fits(self, request: Any, tokens: int, found: Blocks, computed: int, whole: bool,
             least: int, kept: int) -> bool:
        """Whether the pool has room for so many positions, or for the whole request, and for `least`
        side pages, and leaves `kept` pages."""
        needed = max(least, self._needed(request, request.num_tokens if whole else tokens, found,
                                         computed, whole)) + kept
        return needed <= self.pool.stocked() or needed <= self.pool.get_num_free_blocks()

    def reserve(self, request: Any, tokens: int, found: Blocks, computed: int) -> bool:
        """Have pages for allocate(). False: no space, nothing happened."""
        return self.pool.reserve(self._needed(request, tokens, found, computed, False))

    def allocate(self, request: Any, tokens: int, found: Blocks, computed: int,
                 main: Sequence[Any], private: Sequence[int]) -> Blocks:
        """Blocks for so many positions, `computed` of them computed. main: the new blocks of the
        main group; private: those of them that are private pages."""
        name = request.request_id
        if any(found):
            for part, each, blocks in zip(self._parts, self._managers,
                                          side_values(found, self.main)):
                for index, block in enumerate(blocks):
                    if not block.is_null:
                        page, at = divmod(index, part.blocks)
                        self.pool.hold(name, block.block_id, (page, part.kinds[at]))
                each.add_local_computed_blocks(name, blocks, computed, 0)
        if self._zeroes:
            self._to_zero.setdefault(name, []).extend(private)
        return self.groups(main, [each.allocate_new_blocks(name, tokens, tokens)
                                  for each in self._managers])

    def cache(self, request: Any, tokens: int) -> None:
        """Note the blocks of the first `tokens` computed positions that are worth publishing."""
        boundaries = replay_boundaries(request.num_prompt_tokens, self.page_size, use_eagle=False)
        for each in self._managers:
            most = self._coordinator.get_num_cacheable_tokens(tokens, each.kv_cache_group_id)
            each.cache_blocks(request, most, replay_boundaries=boundaries,
                              retention_interval=self._coordinator.retention_interval)

    def blocks(self, name: str, main: Sequence[Any]) -> Blocks:
        """All blocks of a request, by group."""
        return self.groups(main, [each.req_to_blocks.get(name, [])
                                  for each in self._managers])

    def to_zero(self) -> list[int]:
        """Pages for vLLM to zero: they got a user since the last call, and still have it."""
        new = [page for pages in self._to_zero.values() for page in pages]
        self._to_zero.clear()
        for each in self._managers:
            new += self.pool.private(each.take_new_block_ids())
        return new

    def free(self, name: str) -> None:
        """Free the side pages of a request that ended."""
        for each in self._managers:
            each.free(name)
        self.pool.drop_notes(name)
        self._to_zero.pop(name, None)
