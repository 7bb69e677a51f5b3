# SPDX-License-Identifier: Apache-2.0
"""vLLM's KVCacheManager on kvtrunk's pool: page numbers are block ids, page 0 is the null block.

Life of a request: get_computed_blocks() begins it with all its tokens and gets pages for them, or
none with --no-scheduler-reserve-full-isl. allocate_slots() hands the page table out, a step's blocks
at a time, and extends it. The end of schedule() commits the positions that the step computes, at a
fence that is the step's number: vLLM counts blocks as cached before they are computed, which across
processes would be wrong. The step's output raises the fence. free() ends the lease at the fence of
the last scheduled step; nothing waits for it. Only positions whose keys are those of accepted tokens
are committed (_drafts.py). Groups of blocks beside the main one are side pages (_hybrid.py).

When the daemon's session is lost, allocate_slots() refuses everything, so that vLLM preempts all
requests; then `engine.recover()` connects again and they begin as if they were new.
"""
from __future__ import annotations

import collections
import contextlib
import time
from array import array
from typing import Any, Callable, Mapping, NamedTuple, Optional

from vllm.logger import init_logger
from vllm.v1.core.kv_cache_manager import KVCacheBlocks, KVCacheManager

from .. import ConnectionLost, Error, NoSpace, QuotaExceeded, Stale
from .._seq import JUNCTION, SIDE_LET, Fence
from ..engine import WAIT_MS, Begun, Finding, Hold, Stalled, report
from ._engine import PATIENCE_S, STEP_WORD, Engine
from ._hybrid import Point, Sides
from ._keys import Keys

logger = init_logger("vllm.kvtrunk")  # vLLM shows its own names only

RETRY_S = 0.002
"""Pause before a request that found no space begins again."""
_USAGE_S = 0.1
_NO_KEYS = array("I")


class Check(NamedTuple):
    """A comparison for a worker: this engine's page `mine` with `theirs`, which it replaced."""

    number: int
    mine: int
    theirs: int
    reused: Optional[int]
    """First page that the request still reuses. None: all its pages are the engine's own."""
    step: int
    """Number of the step that completes `mine`."""


def _not_done(**asked: Any) -> RuntimeError:
    """The error for arguments that kvtrunk would ignore. Only a KV connector that loads, an encoder,
    or an option that is refused at the start has such values."""
    values = ", ".join(f"{name}={value}" for name, value in asked.items() if value not in (0, ()))
    return RuntimeError(f"kvtrunk: vLLM gives its cache manager {values}, and kvtrunk cannot obey: "
                        "start the engine with what `python -m kvtrunk.vllm flags` prints, or "
                        "install a newer kvtrunk")


class State(Hold):
    """A request's hold on the pool. If it is damaged, vLLM must preempt it."""

    __slots__ = ("request", "session", "room", "asked", "ticket", "retry", "wait_ms", "keys",
                 "prompt", "checked", "computed", "ended", "drafted", "point", "n_prompt", "counted",
                 "sides_first", "alone")
    pages: list[int]

    def __init__(self, request: Any, session: int) -> None:
        super().__init__()
        self.request = request
        self.session = session
        """Session of the lease: leases end with it."""
        self.room = 0
        """Up to so many positions allocate_slots() grants at once. 0: the session is lost, or the
        request is damaged."""
        self.asked = False
        """Whether a store was asked for its prompt, if there is one."""
        self.ticket = 0
        """Ticket of the notice that it is held back for. 0: it is not."""
        self.retry = 0.0
        """After no space: time before which it does not begin again."""
        self.counted = False
        """Whether it was counted as refused for want of room."""
        self.wait_ms = WAIT_MS
        """How long BEGIN may hold it back for what others compute or load."""
        self.keys: Optional[Keys] = None
        self.prompt: Optional[array[int]] = None
        """Keys of all its tokens, until it begins."""
        self.checked: Optional[Check] = None
        """Check in flight, for which its commits wait."""
        self.computed = 0
        """Positions to commit when the check has passed."""
        self.ended = False
        """Whether vLLM freed it before the check's outcome came."""
        self.drafted: Optional[int] = None
        """Leading positions with draft KV. None: vLLM has left it out in no step."""
        self.n_prompt: int = request.num_prompt_tokens
        """Tokens of the prompt at its start. A stream's prompt grows with its next input."""
        self.point: Optional[Point] = None
        """Side pages of its lease, if the model has side pages."""
        self.sides_first: bool = request.num_preemptions > 0
        """Whether it reserves side pages before BEGIN. There was no room for them: its match may have
        left none within the session's limit, and would again."""
        self.alone = False
        """Whether it matches no cached prefix, because to lock one leaves it no room."""

    def alive(self, session: int) -> bool:
        """Whether its lease's session is this one. False: use the lease for nothing."""
        return self.session == session


class KvtrunkKVCacheManager(KVCacheManager):
    """See the module. adopt() turns the scheduler's manager into one."""

    @classmethod
    def adopt(cls, manager: Any, engine: Engine) -> KvtrunkKVCacheManager:
        """Turn the scheduler's manager into one on the engine's session."""
        manager.__class__ = cls
        manager._kvt_init(engine)
        adopted: KvtrunkKVCacheManager = manager
        return adopted

    def _kvt_init(self, engine: Engine) -> None:
        self.engine = engine
        self.page_size = engine.info.page_size
        self.states: dict[str, State] = {}
        self.step = 0
        """Steps with work that this session scheduled: value of the last one's fence."""
        self.in_flight: collections.deque[int] = collections.deque()
        """Numbers of scheduled steps whose output has not come; 0: one without work."""
        self.awaited = 0
        """The last step that an operation of the ring may wait for; 0: none waits."""
        self._begun: list[State] = []
        """Requests that this schedule() began."""
        self._behind = int(engine.drafts)
        """KV of a position depends on so many tokens after its own: 1 with draft layers."""
        self._counts: collections.Counter[str] = collections.Counter()
        """Requests that found no room since the last take_refused(), by reason."""
        self._checks = 0
        self._asked: dict[int, State] = {}
        """Requests whose check is in flight, by the check's number."""
        self._usage = (0.0, 0.0)
        self.sides = Sides(self, engine) if self.num_kv_cache_groups > 1 else None
        """Side groups. None: all layers keep the same positions."""
        engine.watch.unshare = self.unshare

    # ---- admission

    def arrived(self, request: Any) -> None:
        """vLLM queues a request: let a store load its prompt meanwhile."""
        state = self._state(request)
        # Adapters are loaded between steps, at admission.
        if self.engine.is_lost or request.lora_request is not None:
            return
        with contextlib.suppress(Stalled):  # asked again when it is admitted
            self._try(self._fetch, state)

    def _fetch(self, state: State) -> None:
        """Have a store load what the pool lacks of a prompt, once. If there is a store, hold the
        request back for its answer: only then BEGIN finds the pages that it loads announced."""
        if state.asked or self.engine.ring.is_stalled():
            return
        namespace = self._namespace(state)
        state.asked = True
        if namespace is not None and self.prefix_cache_lookup_enabled(state.request):
            assert state.keys is not None
            state.ticket = self.engine.ring.fetch(namespace, self._prompt(state),
                                                  state.keys.root())

    def _namespace(self, state: State) -> Optional[int]:
        """Namespace of its keys. None: it shares nothing."""
        if state.keys is None or not state.keys.still():
            state.keys = Keys(state.request, self.page_size, self._behind)
            state.prompt = None
        if state.request.num_tokens < self.engine.min_positions or not state.keys.name_kv:
            return None
        return self.engine.namespace(state.request)

    def _prompt(self, state: State) -> array[int]:
        """Keys of all its tokens."""
        n = state.request.num_tokens - self._behind
        if state.prompt is None or len(state.prompt) != n:
            assert state.keys is not None
            state.prompt = state.keys.of(0, n)
        return state.prompt

    def _begin(self, state: State, begun: Optional[Begun]) -> None:
        """Begin, or note why not: `ticket` or `retry`. begun: late answer of an earlier BEGIN."""
        request, engine = state.request, self.engine
        engine.ring.announce(True)
        namespace = None if state.alone else self._namespace(state)
        known, no_pages = request.num_tokens, not self._is_whole(state)
        if state.sides_first and self.sides is not None and not no_pages:
            self.sides.pool.reserve(self._most_sides(request))  # its match has to give way
        if namespace is None:
            begun = begun or engine.ring.begin(
                engine.unshared(), _NO_KEYS, 0 if no_pages else known, force_miss=False, wait_ms=0,
                no_pages=no_pages, patience_s=PATIENCE_S)
            state.shared = False
        elif begun is None:
            miss = not self.prefix_cache_lookup_enabled(request)
            behind = self._behind
            assert state.keys is not None
            begun = engine.ring.begin(
                namespace, self._prompt(state), 0 if no_pages else behind, force_miss=miss,
                wait_ms=state.wait_ms, root_key=state.keys.root(), full=behind > 0,
                no_pages=no_pages, patience_s=PATIENCE_S,
                min_positions=min(self.engine.min_positions, known - behind),
                point=JUNCTION if self.sides is not None and not miss else 0)
        if begun.lease is None:
            state.ticket = begun.ticket
            if not begun.ticket:
                self._refused(state, self.engine.ring.limit)
                state.retry = time.monotonic() + RETRY_S
                state.alone = (self.sides is not None and state.sides_first and
                               self._pool_is_idle())
            return
        self._begun.append(state)
        state.begin(begun, self.page_size)
        state.prompt = None
        if begun.reusable:
            self._report(state)
        if self.sides is not None:
            state.point = Point(begun, self.page_size)
        elif state.committed and state.shared:
            self._maybe_check(state)

    def _report(self, state: State) -> None:
        """Publish events of a request's reused pages again, if it asks for that."""
        events, request = self.engine.events, state.request
        if events is None or request.kv_cache_report_mode != "full" or state.keys is None:
            return
        pages = min(state.reusable, state.keys.n_text()) // self.page_size
        if pages:
            events.report(request, pages * self.page_size)

    def _refused(self, state: State, limit: str) -> None:
        """Count a request that cannot begin for want of room, once. limit: the daemon's reason."""
        if not state.counted:
            state.counted = True
            self._counts[limit or "all_locked"] += 1

    def take_refused(self) -> dict[str, int]:
        """Requests that found no room since the last call, by reason."""
        counts, self._counts = self._counts, collections.Counter()
        return dict(counts)

    def _maybe_check(self, state: State) -> None:
        """If a check is due, put a page of our own in place of the last reused one."""
        check = self.engine.checks.replacement(self.engine.ring, state.pages[state.committed - 1])
        if check is not None:
            state.check(*check, self.page_size)

    def _ready(self, state: State) -> bool:
        """Whether a request has a usable lease. If it has none, try to begin it."""
        if state.number is not None:
            return state.alive(self.engine.session) and not state.damaged
        begun = None
        try:
            if self.engine.is_lost:
                if self.in_flight or not self.engine.recover():
                    return False
                self.step = self.awaited = 0  # as the new session's fence word
                state.session = self.engine.session
            self._fetch(state)
            if state.ticket:
                wait_ms = self.engine.ring.notice(state.ticket)
                if wait_ms is None:
                    return False
                begun = self.engine.ring.begun(state.ticket)
                state.ticket, state.wait_ms = 0, wait_ms
            if begun is None and (time.monotonic() < state.retry or self.engine.ring.is_stalled()):
                return False
            self._begin(state, begun)
        except Stalled:
            state.retry = time.monotonic() + RETRY_S
            if begun is not None and begun.lease is not None:
                self.engine.ring.end(begun.lease, None)
        except (NoSpace, QuotaExceeded) as error:  # no place for a namespace
            self.engine.warn(f"a request waits for room: {error}", f"limit {error.reason}")
            self._refused(state, error.reason)
            state.retry = time.monotonic() + RETRY_S
        except (ConnectionLost, Stale) as error:
            self._lose(error)
        return state.number is not None

    def _state(self, request: Any) -> State:
        state = self.states.get(request.request_id)
        if state is None or (state.given == 0 and not state.alive(self.engine.session)):
            state = self.states[request.request_id] = State(request, self.engine.session)
        return state

    def get_computed_blocks(self, request: Any, max_cache_hit_length: Optional[int] = None
                            ) -> tuple[KVCacheBlocks, int, int]:
        if max_cache_hit_length is not None:
            raise _not_done(max_cache_hit_length=str(max_cache_hit_length))
        state = self._state(request)
        if not self._ready(state):
            return self.empty_kv_cache_blocks, 0, 0
        blocks = self.block_pool.blocks
        main = [blocks[page] for page in state.pages[:state.reusable // self.page_size]]
        if self.sides is None:
            return self.create_kv_cache_blocks((main,)), state.reusable, 0
        assert state.point is not None
        return (self.create_kv_cache_blocks(self.sides.found(main, state.point)), state.reusable,
                self.sides.junction(state.point, request))

    def held_back(self, request: Any) -> bool:
        """Whether the scheduler shall pass this request over: it waits for another engine, a store,
        or the daemon."""
        state = self.states.get(request.request_id)
        return state is not None and state.number is None and (
            state.ticket > 0 or self.engine.is_lost)

    # ---- slots

    def allocate_slots(self, request: Any, num_new_tokens: int, num_new_computed_tokens: int = 0,
                       new_computed_blocks: Optional[KVCacheBlocks] = None,
                       num_lookahead_tokens: int = 0, num_external_computed_tokens: int = 0,
                       delay_cache_blocks: bool = False, num_encoder_tokens: int = 0,
                       full_sequence_must_fit: bool = False, reserved_blocks: int = 0,
                       has_scheduled_reqs: bool = True, skip_zeroing_group_ids: tuple[int, ...] = ()
                       ) -> Optional[KVCacheBlocks]:
        if (num_external_computed_tokens or delay_cache_blocks or num_encoder_tokens or
                reserved_blocks or skip_zeroing_group_ids):
            raise _not_done(num_external_computed_tokens=num_external_computed_tokens,
                            delay_cache_blocks=delay_cache_blocks, reserved_blocks=reserved_blocks,
                            num_encoder_tokens=num_encoder_tokens,
                            skip_zeroing_group_ids=skip_zeroing_group_ids)
        total = (request.num_computed_tokens + num_new_computed_tokens + num_new_tokens +
                 num_lookahead_tokens)
        state = self.states.get(request.request_id)
        if state is not None and total <= state.room:
            return self.empty_kv_cache_blocks
        # Do not begin a request here: vLLM was told that it reuses nothing.
        if state is None or state.number is None or self.engine.is_lost or not self._ready(state):
            return None
        kept = self.watermark_blocks if state.given == 0 and has_scheduled_reqs else 0
        need = -(-min(total, self.max_model_len) // self.page_size)
        missing = max(0, need - len(state.pages))
        if kept and self.sides is None and not self._has_free(missing + kept):
            return None
        if missing and not self._extend(state, missing):
            self._found_no_room(state)
            return None
        if self.sides is not None:
            computed = request.num_computed_tokens + num_new_computed_tokens
            return self._allocate_sides(state, computed, min(total, self.max_model_len),
                                        new_computed_blocks or self.empty_kv_cache_blocks,
                                        full_sequence_must_fit, kept)
        if need <= state.given:
            return self.empty_kv_cache_blocks
        blocks = self.block_pool.blocks
        before, state.given, state.room = state.given, need, need * self.page_size
        return KVCacheBlocks(([blocks[page] for page in state.pages[before:need]],))

    def _is_whole(self, state: State) -> bool:
        """Whether a request begins with pages for all its tokens: if vLLM wants that, or if it is
        alone and had no room, because only such a BEGIN makes its match give way."""
        return (self.engine.whole or self.sides is not None and state.sides_first and
                not self._running())

    def _found_no_room(self, state: State) -> None:
        """Note that a request had no room. If it has no block yet, count it as refused."""
        if state.given == 0:
            self._refused(state, self.engine.ring.limit)
            state.sides_first |= not self._running()

    def _has_free(self, n: int) -> bool:
        """Whether the pool has n pages that are free, evictable or in stock: --watermark."""
        found = self._try(self.engine.ring.client.counters)
        return found is not None and bool(
            found.free_pages + found.evictable_pages + self.engine.ring.stocked >= n)

    def _allocate_sides(self, state: State, computed: int, total: int, found: KVCacheBlocks,
                        whole: bool, kept: int) -> Optional[KVCacheBlocks]:
        """allocate_slots() with side pages. whole: only if the whole request has room. kept: pages
        that it must leave."""
        request, sides = state.request, self.sides
        assert sides is not None
        processed = max(0, computed - request.num_in_flight_tokens)
        try:
            sides.skip(request.request_id, processed)
            whole = whole or state.given == 0 and self._is_whole(state)
            least = self._most_sides(request) if whole and not self._running() else 0
            if ((whole or kept) and not sides.fits(request, total, found.blocks, computed, whole,
                                                   least, kept) or
                    not self._reserve(state, total, found, computed)):
                self._found_no_room(state)
                return None
        except (ConnectionLost, Stale) as error:
            self._lose(error)
            return None
        need = -(-total // self.page_size)
        before, state.given = state.given, max(state.given, need)
        # Until the steps of earlier blocks are processed, each call has sides.skip() free their blocks.
        end = -(-total // sides.block_size) * sides.block_size
        state.room = end - 1 if processed > end - sides.block_size else 0
        blocks = self.block_pool.blocks
        new = state.pages[before:need]
        made = sides.allocate(request, total, found.blocks, computed,
                              [blocks[page] for page in new],
                              new[max(0, state.reusable // self.page_size - before):])
        sides.cache(request, min(total, request.num_tokens))
        return self.create_kv_cache_blocks(made)

    def _reserve(self, state: State, total: int, found: KVCacheBlocks, computed: int) -> bool:
        assert self.sides is not None
        return (self.sides.reserve(state.request, total, found.blocks, computed) or
                self._let_go() and
                self.sides.reserve(state.request, total, found.blocks, computed))

    def _let_go(self) -> bool:
        """Let go of side pages that no request needs, by a COMMIT of nothing more now. False: there
        were none."""
        assert self.sides is not None
        unread = [state for name, state in self.states.items()
                  if self.sides.pool.unread(name, state.committed)]
        for state in unread:
            self._commit(state, 0)
        return bool(unread)

    def _most_sides(self, request: Any) -> int:
        assert self.sides is not None
        return self.sides.most(min(request.num_prompt_tokens + request.max_tokens,
                                   self.max_model_len))

    def _extend(self, state: State, n: int) -> bool:
        pages = self._try(self.engine.ring.extend, state.number, n)
        state.pages += pages or ()
        return pages is not None

    def _running(self) -> bool:
        """Whether a request of this engine was scheduled, and so will give its pages back."""
        return any(state.given for state in self.states.values())

    def _pool_is_idle(self) -> bool:
        """Whether no process holds a page: a BEGIN refused now will be refused again."""
        assert self.sides is not None
        return self.sides.pool.get_num_free_blocks() >= self.engine.info.n_pages - 1

    def _end_unscheduled(self) -> None:
        """End the leases of requests that this schedule() began and did not schedule, for want of room
        or budget: running requests of all engines may wait for their pages. They end at the fence,
        because the session gets pages of an ended request before it: steps in flight may still write
        them."""
        begun, self._begun = self._begun, []
        for state in begun:
            name = state.request.request_id
            if state.given or self.engine.is_lost or self.states.get(name) is not state:
                continue
            self._try(self._end, state, self.fence())
            if self.engine.is_lost:
                return
            fresh = self.states[name] = State(state.request, state.session)
            fresh.asked, fresh.counted, fresh.sides_first = True, state.counted, state.sides_first
            fresh.retry = time.monotonic() + RETRY_S

    # ---- publishing

    def fence(self) -> Optional[Fence]:
        """Fence after all scheduled steps. None: their output has come."""
        if self.step not in self.in_flight:
            return None
        self.awaited = self.step
        return STEP_WORD, self.step

    def scheduled(self, num_scheduled_tokens: dict[str, int]) -> list[Check]:
        """End of schedule(): commit what the step computes. Returns the checks after it."""
        checks: list[Check] = []
        self._end_unscheduled()
        self._flush()
        if not num_scheduled_tokens:
            self.in_flight.append(0)
            return checks
        self.step += 1
        self.in_flight.append(self.step)
        self._note_undrafted(num_scheduled_tokens)
        for name, n in num_scheduled_tokens.items():
            state = self.states.get(name)
            if state is None:
                continue
            tokens = state.request.num_computed_tokens + n
            if (state.theirs is not None and state.checked is None and
                    tokens >= state.committed * self.page_size):
                checks.append(self._ask(state))
            if (tokens >= (state.committed + 1) * self.page_size or self.sides is not None and
                    self.sides.pool.unread(name, state.committed)):
                self._commit(state, tokens)
        return checks

    def _ask(self, state: State) -> Check:
        """Note a check of the page that this step completes, and return it."""
        assert state.own is not None and state.theirs is not None
        self._checks += 1
        self._asked[self._checks] = state
        state.checked = Check(self._checks, state.own, state.theirs,
                              state.pages[0] if state.reusable else None, self.step)
        return state.checked

    def _flush(self) -> None:
        """Give back side pages that no request needs."""
        if self.sides is None or self.engine.is_lost:
            return
        self.sides.pool.returned(self._try(self.engine.ring.not_taken) or ())
        self._try(self.sides.pool.flush, self.fence())

    def _note_undrafted(self, num_scheduled_tokens: dict[str, int]) -> None:
        """If vLLM leaves out the draft KV of this step, publish no position of it."""
        longest = self.engine.drafts_longest
        if not longest:
            return
        states = [(self.states[name], n) for name, n in num_scheduled_tokens.items()
                  if name in self.states]
        if any(state.request.num_computed_tokens + n > longest for state, n in states):
            for state, _ in states:
                if state.drafted is None:
                    request = state.request
                    state.drafted = min(request.num_computed_tokens, request.num_tokens - 1)

    def _sides_of(self, state: State, pages: int, last: bool) -> list[tuple[int, int, int]]:
        """Side pages that a COMMIT of `pages` main pages publishes, and those that it lets go of, or
        drops if it is the last."""
        if self.sides is None or state.point is None:
            return []
        sides = self.sides.pool.noted(state.request.request_id, pages)
        return sides + (state.point.obsolete(self.sides.kinds) if last else
                        self.sides.pool.unread(state.request.request_id, pages))

    def _commit(self, state: State, computed: int, last: bool = False) -> None:
        """Publish the whole pages of the first `computed` positions, up to the accepted tokens, at
        the fence of the last scheduled step. last: no step follows."""
        request, behind = state.request, self._behind
        if request.resumable and self.engine.speculates:
            # The last token is discarded when the next input comes. Then the position before it keeps
            # that token's draft KV, and vLLM 0.32 counts tokens after a stop as computed.
            behind *= 2
            state.shared = state.shared and request.num_prompt_tokens == state.n_prompt
        tokens = min(computed, request.num_tokens - behind)
        if state.drafted is not None:
            tokens = min(tokens, state.drafted)
        pages = max(tokens // self.page_size, state.committed)
        if state.number is None or not state.shared or not state.alive(self.engine.session):
            return
        sides = self._sides_of(state, pages, last)
        if pages <= state.committed and not sides:
            return
        if state.theirs is not None:
            state.computed = max(state.computed, tokens)
            return
        assert state.keys is not None
        if not state.keys.still():
            state.shared = False
            return
        upto = pages * self.page_size
        keys = state.keys.of(state.known, upto)
        chunked = tokens + self._behind < state.request.num_prompt_tokens
        ticket = self._try(self.engine.ring.commit, state.number, upto, keys, self.fence(), chunked,
                           sides)
        if not ticket:
            return  # a later commit publishes these pages, too
        state.published(ticket, pages, len(keys))
        if sides:
            assert self.sides is not None and state.point is not None
            given = [side for side in sides if side[2] not in (0, SIDE_LET)]
            self.sides.pool.let_go(state.request.request_id, pages)
            self.sides.pool.given(state.request.request_id, given)
            state.point.publish(given, self.sides.kinds)

    def cache_blocks(self, request: Any, num_computed_tokens: int) -> None:
        state = self.states.get(request.request_id)
        if state is None:
            return
        if self.sides is not None and state.given and state.alive(self.engine.session):
            self.sides.cache(request, num_computed_tokens)
        self._commit(state, num_computed_tokens)

    def processed(self) -> None:
        """The output of the oldest step in flight came: its KV is in the pages, of all ranks. With
        a KV connector vLLM's executor returns a step's output when it has that of each worker. A
        worker sends it when it has waited for the copy of the sampled tokens, which its stream
        orders after its forward pass; with async scheduling, too. So one fence is enough."""
        step = self.in_flight.popleft() if self.in_flight else 0
        if self.engine.is_lost:
            return
        if self._asked and step:
            self.checked({number: None for number, state in self._asked.items()
                          if state.checked is not None and state.checked.step <= step})
        try:
            if step and self.awaited:
                self.engine.ring.client.raise_fence(STEP_WORD, step)
                if step >= self.awaited:
                    self.awaited = 0
            refused = self.engine.ring.reap()
        except (ConnectionLost, Stale) as error:
            self._lose(error)
            return
        for ticket, why in refused:
            for state in self.states.values():
                if state.refused(ticket, why) and state.damaged:
                    state.room = 0
            if why.reason == "damaged":
                logger.error("kvtrunk: a page that a request reads was written after it was sealed: "
                             "the request is computed again, but for the tokens that it has")
            elif not isinstance(why, Stale):
                self.engine.warn(f"a request's KV stays private: {why}")
        self._settle()

    def _settle(self) -> None:
        """If there is no request, give back side pages. If vLLM makes no step then, wait until all
        are given back."""
        if self.states:
            return
        self._flush()
        if self.engine.steps_idle or self.engine.is_lost or any(self.in_flight):
            return
        self._try(self.engine.ring.settle)
        self._flush()
        self._try(self.engine.ring.settle)

    def owes(self) -> bool:
        """Whether vLLM has to step without requests, because the session has pages to give back."""
        return not self.engine.is_lost and self.engine.ring.owes

    # ---- checks

    def checked(self, findings: Mapping[int, Optional[Finding]]) -> None:
        """Take outcomes of checks, by number. None: the worker said nothing, so the request publishes
        nothing more."""
        for number, finding in findings.items():
            state = self._asked.pop(number, None)
            if state is None or state.checked is None or not state.alive(self.engine.session):
                continue
            check, state.checked, state.theirs = state.checked, None, None
            if finding is None or finding.differs:
                state.shared = False
            try:
                if finding is None:
                    self.engine.checks.dropped(state.sealer, "no worker told what it found")
                elif finding.differs:
                    self._distrust(state, check, finding)
                self._commit(state, state.computed)
                if state.ended:
                    self._end(state, self.fence())
            except (ConnectionLost, Stale) as error:
                self._lose(error)

    def _distrust(self, found_by: State, check: Check, finding: Finding) -> None:
        """Share nothing more under this name, and compute again all that was computed under it."""
        logger.error("kvtrunk: %s", report(self.engine.ring.client, check.theirs, finding))
        self.engine.checks.dropped(found_by.sealer)
        if found_by.damaged:
            return  # another page told
        self.unshare()
        if self.engine.name is not None:
            self.engine.name.unknown()
        for state in (found_by, *self.states.values(), *self._asked.values()):
            if state.number is not None:
                state.damaged, state.room = True, 0

    def _cancel(self, state: State, why: str = "") -> None:
        """Drop its check, unless that is in flight. why: logged."""
        if state.checked is None:
            state.drop(self.engine.checks, why)

    # ---- the end

    def _end(self, state: State, fence: Optional[Fence]) -> None:
        state.end(self.engine.ring, fence)
        self._cancel(state, "its request ended before")

    def free(self, request: Any) -> None:
        state = self.states.pop(request.request_id, None)
        if state is None:
            return
        if not self.engine.is_lost and state.alive(self.engine.session):
            self._try(self._free, state)
        if self.sides is not None:
            self.sides.free(request.request_id)
        self._settle()

    def _free(self, state: State) -> None:
        request = state.request
        if state.ticket:
            self.engine.ring.give_up(state.ticket)
        self.engine.ring.announce(bool(self.states))
        # Positions of tokens that were accepted since; that of the last token is not computed.
        self._commit(state, min(request.num_computed_tokens, request.num_tokens - 1), last=True)
        if state.checked is not None:
            state.ended = True
        elif state.number is not None:
            self._end(state, self.fence())

    def pop_blocks_for_free(self, request: Any) -> list[Any]:
        self.free(request)  # END has its own fence
        return []

    def _try(self, operation: Callable[..., Any], *arguments: Any) -> Any:
        """The operation's result. None: the session is lost."""
        if self.engine.is_lost:
            return None
        try:
            return operation(*arguments)
        except (ConnectionLost, Stale) as error:
            self._lose(error)
        return None

    def _lose(self, error: Error) -> None:
        """The session is gone with all leases: let vLLM preempt everything."""
        if self.engine.is_lost:
            return
        logger.warning("kvtrunk: %s. All requests are computed again when a daemon is there.",
                       error)
        self.engine.lose(error)
        if self.sides is not None:
            self.sides.pool.forget()
        self._asked.clear()
        for state in list(self.states.values()):
            state.room = 0
            # Requests that run keep their state until vLLM frees them.
            if state.given == 0:
                self.states[state.request.request_id] = State(state.request, 0)

    # ---- what else the scheduler asks

    def get_blocks(self, request_id: str) -> KVCacheBlocks:
        state = self.states.get(request_id)
        if state is None:
            return self.empty_kv_cache_blocks
        blocks = self.block_pool.blocks
        main = [blocks[page] for page in state.pages[:state.given]]
        return self.create_kv_cache_blocks(
            (main,) if self.sides is None else self.sides.blocks(request_id, main))

    def get_block_ids(self, request_id: str) -> tuple[list[int], ...]:
        if self.sides is not None:
            return self.get_blocks(request_id).get_block_ids()
        state = self.states.get(request_id)
        return (state.pages[:state.given] if state is not None else [],)

    def estimate_cached_tokens(self, request: Any) -> int:
        state = self.states.get(request.request_id)
        return state.committed * self.page_size if state is not None else 0

    def remove_skipped_blocks(self, request_id: str, processed_computed_tokens: int,
                              num_prompt_tokens: Optional[int] = None) -> None:
        if self.sides is not None:
            self.sides.skip(request_id, processed_computed_tokens)

    def finalize_partial_tail_offloads(self, request: Any) -> list[Any]:
        return []

    def take_new_block_ids(self) -> list[int]:
        return self.sides.to_zero() if self.sides is not None else []

    def evict_blocks(self, block_ids: set[int]) -> None:
        raise NotImplementedError("kvtrunk: only failed loads of a connector evict blocks, and "
                                  "there are no loads")

    def unshare(self, adapter: Optional[int] = None) -> None:
        """Publish nothing more of the current requests, of one adapter or all: from now on they may
        compute with other weights. Those that did not run yet begin again."""
        for state in self.states.values():
            lora = state.request.lora_request
            if adapter is not None and (lora is None or lora.lora_int_id != adapter):
                continue
            if state.given:
                state.shared = False
                self._cancel(state)  # what follows may be of other weights
            elif state.ticket:
                self.engine.ring.give_up(state.ticket)
                state.ticket = 0
            state.asked = False  # under its name from now on
        self.engine.leave_spaces()

    def reset_prefix_cache(self) -> bool:
        """Find nothing that was cached so far. Other engines keep it. An engine that resets, too, or
        starts later, shares with this one again."""
        self.unshare()
        if self.engine.name is not None:
            self.engine.name.forget()
        if self.log_stats and self.prefix_cache_stats is not None:
            self.prefix_cache_stats.reset = True
        return True

    @property
    def usage(self) -> float:
        """Share of the pool that no engine could get now: private, locked, quarantined."""
        now = time.monotonic()
        if now - self._usage[0] > _USAGE_S and not self.engine.is_lost:
            found = self._try(self.engine.ring.client.counters)
            if found is not None:
                held = found.private_pages + found.protected_pages + found.quarantined_pages
                self._usage = (now, held / max(1, self.engine.info.n_pages - 1))
        return self._usage[1]
