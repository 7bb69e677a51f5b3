# SPDX-License-Identifier: Apache-2.0
"""SGLang's prefix cache interface on a tree that other processes change, too; and admission.

Waiting requests look (probe) and hold nothing. Admission begins a lease, which is the request's
tree node from then on: what it matched, and pages for the whole prompt. SGLang locks the node; with
the last lock the lease ends.
"""
from __future__ import annotations

import logging
import math
import pkgutil
import time
from http import HTTPStatus
from typing import Any, Optional

import numpy as np
import sglang
import torch
from sglang.srt.environ import envs
from sglang.srt.layers.radix_attention import RadixAttention
from sglang.srt.managers.schedule_batch import FINISH_ABORT
from sglang.srt.managers.schedule_policy import CLIP_MAX_NEW_TOKENS, AddReqResult
from sglang.srt.managers.scheduler_components.pool_stats_observer import PoolStats
from sglang.srt.mem_cache.base_prefix_cache import (BasePrefixCache, DecLockRefResult, EvictResult,
                                                    IncLockRefResult, MatchResult)
from sglang.srt.runtime_context import get_schedule

from .. import Client, Error, Namespace
from ..engine import _check, _proofs, Name, Refused, Spaces, Stalled, connected_again
from . import _compat, _drafts, _identity, _pool, _refusals, _updates
from ._events import Events
from ._keys import keys_of, root_of, shares
from ._leases import PATIENCE_S, Lease
from ._replaced import REPLACED

logger = logging.getLogger(__name__)

_NO_KEYS = np.empty(0, np.uint32)
Space = tuple[Optional[str], Optional[str], Optional[str]]
"""Name of a namespace: extra key, salt and adapter."""
_PLAIN: Space = None, None, None
_RANK_0S: Any = object()
"""The namespace of a request, where another rank has it."""


def make(ctx: Any) -> KvtrunkCache:
    """The cache of an engine, once all that it stands on is proved. Refused: in a sentence."""
    _compat.check()
    runner = ctx.tp_worker.model_runner
    for row in REPLACED:
        path, function = row.what.rsplit(".", 1)
        if not hasattr(getattr(pkgutil.resolve_name(path), function), "__wrapped__"):
            raise Refused(f"SGLang did not let kvtrunk wrap {row.what}: see its log for "
                                    "the cause; leave --radix-cache-backend out")
    pool = ctx.params.token_to_kv_pool_allocator.get_kvcache()
    _pool.prove(pool)
    for each in (runner, *_drafts.runners):
        _refusals.check_model(each.model, ctx.model_config.context_len, _pool.DTYPES[pool.dtype])
    if not _pool.follows():
        _say_unproved(runner, pool)
    files = runner.kvtrunk_files
    files.loaded(runner.load_config, runner.model)
    name = Name(_identity.engine_digest(runner, str(pool.device)), files.digest())
    cache = KvtrunkCache(ctx.params, name, files.tensors, _updates.Adapters(runner.lora_manager),
                         _pool.bounds(runner, pool))
    info = pool.kvtrunk.client.info
    logger.info("kvtrunk: KV of %d layers is on the pool of daemon %d: %d pages of %d positions, "
                "%s; session %d, %s", info.geometry.n_layers, info.daemon_pid, info.n_pages,
                info.page_size, info.geometry.kv_layout, info.session, name)
    if not _pool.follows():
        _say_policy(info.policy)
    _say_windows(runner.model)
    return cache


def _say_policy(policy: str) -> None:
    """Warn if SGLang was told to evict otherwise than the daemon does."""
    wanted = _refusals.Resolved().radix_eviction_policy.lower()
    if wanted != policy:
        logger.warning("kvtrunk: the daemon evicts by %s, and --radix-eviction-policy %s has no "
                       "effect: %s", policy, wanted, "no policy of the daemon's is like it"
                       if wanted == "tlru" else f"start the daemon with --policy={wanted}")


def _say_unproved(runner: Any, pool: Any) -> None:
    """Warn if engines like this one were not proved. Refused, if a proof is required."""
    device = str(pool.device)
    made = _proofs.made(
        "sglang", sglang.__version__,
        "cpu" if device == "cpu" else torch.cuda.get_device_name(pool.device),
        backend=type(runner.attn_backend).__name__,
        layout="latent" if _pool.is_latent(pool) else "nhd",
        dtype=str(runner.model_config.dtype).removeprefix("torch."),
        kv_dtype=str(pool.dtype).removeprefix("torch."), page_size=pool.page_size,
        ranks=_pool.ranks().world_size, fences="none" if device == "cpu" else "streams",
        drafts=_drafts.algorithm() or "none",
        graphs=_graphs(runner),
        scheduling="one step" if get_schedule().disable_overlap_schedule else "overlapped")
    try:
        unproved = _proofs.check(made, _compat.TESTED, _drafts.flags())
    except _proofs.Unproved as error:
        raise Refused(f"--radix-cache-backend kvtrunk: {error}") from None
    if unproved:
        logger.warning("kvtrunk: %s", unproved)


def _graphs(runner: Any) -> str:
    """Names of the runners that captured CUDA graphs, of prefill and of decode."""
    eager, *runners = (getattr(runner, f"{name}_runner", None)
                       for name in ("eager", "prefill_cuda_graph", "decode_cuda_graph"))
    found = [type(each).__name__ for each in runners if each is not None and each is not eager]
    return " ".join(found) or "none"


def _say_windows(model: Any) -> None:
    """Log what layers with windows cost: they keep all positions, too."""
    sizes = [module.sliding_window_size for module in model.modules()
             if isinstance(module, RadixAttention)]
    short = [size for size in sizes if size is not None and size > -1]
    if short:
        # SGLang counts without the token itself.
        logger.info("kvtrunk: %d of %d layers have a window of %d positions, and keep all of them",
                    len(short), len(sizes), min(short) + 1)


class Usage(PoolStats):
    """SGLang's log tells of the pool beside it."""

    pool_usage = 0.0
    refused = 0

    def _more(self) -> list[str]:
        refused = [f"refused requests: {self.refused}"] if self.refused else []
        return [f"pool usage: {self.pool_usage:.2f}", *refused]

    def get_prefill_usage_msg_parts(self) -> list[str]:
        """Usage of the pool beside SGLang's, for the log's line of a prefill."""
        return [*super().get_prefill_usage_msg_parts(), *self._more()]

    def get_decode_usage_msg_parts(self) -> list[str]:
        """Usage of the pool beside SGLang's, for the log's line of decodes."""
        return [*super().get_decode_usage_msg_parts(), *self._more()]


def _refused_metric(labels: dict[str, str]) -> Any:
    """The counter of refused requests, without the label `reason`. SGLang has set where it keeps
    what its processes count."""
    from prometheus_client import Counter

    return Counter("sglang:kvtrunk_refused_requests",
                   "Requests that kvtrunk's pool had no room for when they would have begun, each "
                   "once, by the daemon's first reason.", [*labels, "reason"])


def _wish(req: Any) -> int:
    """Tokens that a request may still generate."""
    return max(int(req.sampling_params.max_new_tokens) - len(req.output_ids), 0)


class KvtrunkCache(BasePrefixCache):
    """The prefix cache of one scheduler."""

    def __init__(self, params: Any, name: Name, tensors: Optional[dict[str, Any]],
                 adapters: _updates.Adapters, bounds: _check.Bounds) -> None:
        self.disable = params.disable
        self.req_to_token_pool = params.req_to_token_pool
        self.token_to_kv_pool_allocator = self.allocator = params.token_to_kv_pool_allocator
        self.page_size = params.page_size
        self.sliding_window_size = None
        self.device = self.allocator.device
        self.leases = self.allocator.leases
        self.client: Client = self.leases.ring.client
        self.root_node = Lease()
        self._name = name
        self._behind = int(_drafts.in_pages())
        """KV of a position depends on so many tokens after its own: 1 with draft layers."""
        self.adapters = adapters
        self.updates = _updates.Updates(name, tensors, self._renamed)
        self._look_again = 0.0
        self._room: Optional[int] = None
        """Pages that there were when the last request found too few."""
        self._spaces = Spaces(self.leases.ring, self._open_space, patience_s=PATIENCE_S)
        self._found: Any = _RANK_0S
        self._bounds = bounds
        self._events = None
        if params.enable_kv_cache_events:
            self._events = Events(params, _pool.socket(), self._behind > 0)
        self._refused = 0
        """Requests that found no room when they would have begun."""
        self._refused_metric: Any = None
        if params.enable_metrics:
            self.init_metrics_collector()
            self._refused_metric = _refused_metric(self.metrics_collector.labels)

    # ---- namespaces

    def _renamed(self, why: str) -> None:
        """The engine's name changed: running requests publish nothing more, later ones open
        namespaces of the new name."""
        self.leases.unshare()
        self._spaces.clear()
        if self._events is not None:
            self._events.forget()
        if not self.leases.follows:
            logger.info("kvtrunk: %s: %s", why, self._name)

    def reset(self) -> None:
        """SGLang's flush_cache: nothing runs. Forget, in this engine only: others keep it."""
        if not self.updates.keeps and self._name.forget():
            self._renamed("flush")

    def _open_space(self, name: Space) -> Namespace:
        extra_key, salt, adapter = name
        value = self._name.value(self.client)
        return self.client.namespace(extra=b"sglang\0%b\0%b" % (value, (extra_key or "").encode()),
                                     salt=salt, adapter=adapter, label=f"sglang {value.hex()[:8]}")

    def _space(self, req: Any) -> Optional[Namespace]:
        """The namespace of a request; of a request of no kind if it is None. None: there can be no
        more."""
        name, whole_key = _PLAIN, None
        if req is not None:
            extra_key = whole_key = req.extra_key or ""
            if req.lora_id is not None:  # SGLang has added it
                extra_key = extra_key.removesuffix(req.lora_id)
            name = extra_key or None, req.cache_salt or None, self.adapters.name(req.lora_id)
        return self._found if self.leases.see(self._find, name, whole_key or None) else None

    def _find(self, name: Space, extra_key: Optional[str]) -> bool:
        """extra_key: SGLang's, with the adapter's number."""
        try:
            self._found = self._spaces.find(name)
        except Stalled:
            return False
        except Error as error:
            self.leases.warn(f"requests of another salt or adapter share nothing: {error}")
            return False
        if self._events is not None:
            self._events.share(self._found, extra_key, name[1])
        return True

    # ---- looking

    def match_prefix(self, params: Any) -> MatchResult:
        key = params.key
        positions = 0
        space = None
        if params.req is not None and len(key) >= self.page_size:
            space = self._space(params.req)
        if space is not None:
            keys = keys_of(key.token_ids, self.page_size, self._behind)
            if keys is not None:
                found = self.leases.probe(self._tree(space, key.token_ids), keys[:len(key)])
                positions = min(found, len(key)) // self.page_size * self.page_size
        node = Lease(positions) if positions else self.root_node
        return MatchResult(device_prefix_len=positions, last_device_node=node, last_host_node=node,
                           best_match_node=node, full_kv_hit_length=positions)

    def dfs_weight_order(self, node_handles: Any) -> list[int]:
        """Longest prefix first: the tree is the daemon's, so there is no walk."""
        handles = list(node_handles)
        return sorted(range(len(handles)), key=lambda i: -int(handles[i].reusable))

    def path_device_indices(self, node: Any) -> Any:
        return self.allocator.slots(node, 0, node.committed * self.page_size)

    # ---- admission

    def arrived(self, req: Any) -> None:
        """SGLang queues a request: let a store load its prompt meanwhile."""
        self._fetch(req, req.origin_input_ids + req.output_ids)

    def _fetch(self, req: Any, ids: Any) -> None:
        if self.leases.is_stalled():
            return  # at admission
        req.kvtrunk_asked = self.client
        space, keys = self._named(req, ids)
        if space is not None and keys is not None:
            most = self._most(req, len(ids))
            if most >= self.page_size:
                self.leases.fetch(req.rid, space, keys[:most])

    def touch(self, req: Any) -> None:
        """A request waits: what is cached of its prompt shall still be when its turn comes."""
        ids = req.origin_input_ids + req.output_ids
        space, keys = self._named(req, ids)
        if space is not None and keys is not None:
            self.leases.touch(space, keys[:self._most(req, len(ids))])

    def _named(self, req: Any, ids: Any) -> tuple[Optional[Namespace], Any]:
        """The tree of a request, and keys of its tokens. None: there is none, they have none."""
        space = self._space(req)
        if space is None or not shares(req):
            return space, None
        return self._tree(space, ids), keys_of(ids, self.page_size, self._behind)

    def _tree(self, space: Namespace, ids: Any) -> Namespace:
        if not self._behind or space is _RANK_0S:
            return space
        return space.root(root_of(ids))

    @staticmethod
    def _most(req: Any, length: int) -> int:
        """Leading keys that may be reused, of a prompt of this length. All but the last position,
        unless logprobs of the prompt are wanted, which only what is computed gives."""
        if envs.SGLANG_RADIX_FORCE_MISS.get():
            return 0
        most = int(req._compute_max_prefix_len(length))
        return length if most == length - 1 else most

    def admit(self, adder: Any, req: Any, original: Any) -> Any:
        """PrefillAdder.add_one_req(): begin a lease, and let SGLang decide on that.

        After NO_TOKEN, SGLang looks at no waiting request until one of its own has left. Here other
        engines give room, too: look_again().
        """
        answer = self._admit(adder, req, original)
        self._room = self.leases.see(self._pages) if answer == AddReqResult.NO_TOKEN else None
        return answer

    def _count_refused(self, req: Any, refused: bool) -> None:
        """Count a request that the daemon has no room for, once."""
        if not refused or getattr(req, "kvtrunk_refused", False):
            return
        req.kvtrunk_refused = True
        self._refused += 1
        if self._refused_metric is not None and not self.leases.follows:  # rank 0 knows why
            self._refused_metric.labels(
                **self.metrics_collector.labels, reason=self.leases.ring.limit).inc()

    def look_again(self, running: Any) -> None:
        """Let SGLang look at its waiting requests if there is more room than when it stopped.
        running: its running batch."""
        if self._room is None or not running.batch_is_full:
            return
        room = self.leases.see(self._pages)
        running.batch_is_full = room <= self._room
        self._room = room

    def _pages(self) -> int:
        """Pages that a request could get."""
        reading = self.leases.reading()
        return reading.free + reading.evictable

    def _admit(self, adder: Any, req: Any, original: Any) -> Any:
        leases = self.leases
        if adder.prefill_max_requests is not None and \
                len(adder.can_run_list) >= adder.prefill_max_requests:
            return AddReqResult.OTHER
        if req.beam_group is not None:
            req.set_finish_with_abort("beam search does not go with --radix-cache-backend kvtrunk")
        alone = not adder.can_run_list and (adder.running_batch is None or
                                            adder.running_batch.is_empty())
        if leases.lost and not self._recover():
            return self._not_now(AddReqResult.NO_TOKEN, alone)
        if getattr(req, "kvtrunk_asked", None) is not self.client:  # it arrived before this daemon did
            self._fetch(req, req.full_untruncated_fill_ids)
        if leases.is_held_back(req.rid):  # the next request; this one stays in the queue
            return self._not_now(AddReqResult.CONTINUE, alone)
        if leases.is_stalled():
            return self._not_now(AddReqResult.OTHER, alone)
        length = len(req.full_untruncated_fill_ids)
        full = leases.still_full()
        if full or not alone and self._missing(adder, req, length) > 0:
            self._count_refused(req, full)
            return self._not_now(AddReqResult.NO_TOKEN, alone)
        lease = self._begin(req, length)
        if lease is None:
            held = leases.is_held_back(req.rid)
            self._count_refused(req, leases.no_room)
            return self._not_now(AddReqResult.CONTINUE if held else AddReqResult.OTHER
                                 if leases.is_stalled() else AddReqResult.NO_TOKEN, alone)
        self._adopt(req, lease, lease.reusable, length)
        # SGLang wants room for all that a request may generate, too. Other engines may never leave
        # that, so one request runs on what its lease has, and is retracted if it gets no more.
        missing = self._missing(adder, req, length)
        if alone and missing > 0:
            adder.memory_budget.total_offset -= missing
        try:
            return original()
        finally:
            if lease.locks == 0:
                leases.end(lease)  # not admitted
                self._adopt(req, self.root_node, 0, length)

    @staticmethod
    def _not_now(result: Any, alone: bool) -> Any:
        """With nothing to run until others are done, leave them the processor for a moment."""
        if alone:
            time.sleep(0.0005)
        return result

    def _missing(self, adder: Any, req: Any, length: int) -> int:
        """Positions that SGLang's own rule finds too few, for a request with its longest answer."""
        total = length - req.prefix_len + min(_wish(req), CLIP_MAX_NEW_TOKENS) + self.page_size
        return math.ceil(total - adder.rem_total_tokens + 1)

    def _recover(self) -> bool:
        """Go on with a new daemon, once every request has given back what it had of the old one."""
        now = time.monotonic()
        if not self.leases.idle or now < self._look_again:
            return False
        self._look_again = now + 1
        pool, old = self.allocator.get_kvcache(), self.client.info
        try:
            self.client = _pool.connect_again(pool)
        except Refused as error:
            logger.error("kvtrunk: the new daemon's pool is not the old one's: %s", error)
            return False
        except Error:
            return False
        self._name.forsake()
        self.leases.continue_with(self.client)
        self._spaces = Spaces(self.leases.ring, self._open_space, patience_s=PATIENCE_S)
        logger.warning("kvtrunk: %s", connected_again(old, self.client.info))
        return True

    def _begin(self, req: Any, length: int) -> Optional[Lease]:
        space, keys = self._named(req, req.full_untruncated_fill_ids)
        if self.leases.is_stalled():  # so it may have keys
            return None
        if keys is None:
            keys, space = _NO_KEYS, space or self._space(None)
            if space is None:
                return None
        # Without room for its first step it would be retracted after its prompt, and taken again.
        ahead = self.allocator.decoded(length) if _wish(req) > 1 else 0
        most = self._most(req, length)
        if most < self.page_size:  # it computes all, and publishes it
            return self.leases.begin(req.rid, space, keys, length, reuse=False, ahead=ahead)
        return self.leases.begin(req.rid, space, keys[:most], length, ahead=ahead)

    @staticmethod
    def _adopt(req: Any, node: Lease, positions: int, length: int) -> None:
        req.prefix_len = positions
        req.last_node = req.last_host_node = req.best_match_node = node
        req.host_hit_length = 0
        req.num_matched_prefix_tokens = min(positions, max(length - 1, 0))
        req.kv.cache_protected_len = positions

    def inc_lock_ref(self, node: Any) -> IncLockRefResult:
        node.locks += 1
        return IncLockRefResult(delta=0)

    def dec_lock_ref(self, node: Any, params: Any = None) -> DecLockRefResult:
        node.locks -= 1
        if node.locks == 0:
            self.leases.end(node)
        return DecLockRefResult(delta=0)

    def release_aborted_request(self, handle: Any) -> None:
        self.leases.forget(handle.rid)

    # ---- publishing

    def checkpoint(self, req: Any, *, up_to: int, **_: Any) -> None:
        lease = req.last_node
        if not isinstance(lease, Lease) or lease.number is None:
            return
        ids = req.full_untruncated_fill_ids
        last = up_to >= len(ids)
        up_to = min(up_to, len(ids) - self._behind)  # drafts that were not accepted have no tokens
        if lease.theirs is not None and up_to >= (lease.committed + 1) * self.page_size:
            self._check(req, lease)
        keys = _NO_KEYS
        if lease.shared and up_to > lease.known:
            keys = keys_of(ids, self.page_size, self._behind)
            if keys is None:
                lease.shared, keys = False, _NO_KEYS
            else:
                keys = keys[lease.known:up_to]
        if req.finished():
            self.leases.end(lease, up_to, keys)
            return
        now = self.leases.commit(lease, up_to, keys, last=last)
        req.kv.cache_protected_len = max(req.kv.cache_protected_len, now)
        req.kv.cache_inserted_len = max(req.kv.cache_inserted_len, now)

    def _check(self, req: Any, lease: Lease) -> None:
        """Compare the page that the request computed with the one that it could have reused."""
        pool, theirs = self.allocator.get_kvcache(), lease.theirs
        assert lease.own is not None and theirs is not None
        self.allocator.wait_for_launched()  # one may be writing the page
        finding = _pool.compare(pool, lease.own, theirs, self._bounds)
        if not finding.differs:
            self.leases.passed(lease)
            return
        if not self.leases.follows:
            logger.error("kvtrunk: %s", _check.report(self.client, theirs, finding))
        self._name.failed()
        self._renamed("a check failed")
        # Its first token followed from the pages before that one, too.
        aborted = FINISH_ABORT("kvtrunk: a cached page of this prompt is not what this engine "
                               "computes: send it again", HTTPStatus.SERVICE_UNAVAILABLE)
        if req.finished():
            req.finished_reason = aborted
        else:
            req.to_finish = aborted

    def take_events(self) -> list[Any]:
        """KV events of pages that requests of this engine can reuse. SGLang's publisher asks after
        prefills, every few decodes, and while it is idle."""
        if self._events is None:
            return []
        if not self.leases.lost:
            self._find(_PLAIN, None)  # before the first request, too
        return self._events.take()

    # ---- room

    def retract(self, batch: Any) -> Any:
        """ScheduleBatch.retract_decode(): give back requests that read a damaged page, else others
        until the rest has room; all of them if need be, because another engine may hold the pool.
        SGLang would abort the last one."""
        from sglang.srt.managers.scheduler_components.new_token_ratio_tracker import (
            NewTokenRatioTracker)
        keep = batch._get_decode_retraction_order(batch.reqs)
        retracted: list[Any] = []
        damaged = 0
        while keep and (not retracted or not batch.check_decode_mem(selected_indices=keep)):
            index = next((index for index in keep if batch.reqs[index].last_node.damaged), keep[-1])
            keep.remove(index)
            retracted.append(batch.reqs[index])
            damaged += batch.reqs[index].last_node.damaged
            batch.release_req(index, len(keep))
        if damaged:
            logger.error("kvtrunk: pages that requests read were written after they were sealed: %d "
                         "requests are computed again, but for the tokens that they have", damaged)
        batch.filter_batch(keep_indices=keep)
        ratio = NewTokenRatioTracker.estimate_new_token_ratio_after_retract(batch.reqs)
        return retracted, ratio, []

    def evict(self, params: Any) -> EvictResult:
        """The daemon evicts when a lease needs room."""
        return EvictResult()

    # ---- sizes, of the allocator's last reading

    def evictable_size(self) -> int:
        return int(self.allocator.reading.evictable) * self.page_size

    def protected_size(self) -> int:
        """Positions neither available nor evictable nor a row's alone: those of others, too."""
        others = self.allocator.reading.others - self.leases.spare - self.leases.rows
        return int(others) * self.page_size

    def total_size(self) -> int:
        reading = self.leases.reading()
        return int(reading.evictable) * self.page_size

    def usage(self, stats: PoolStats) -> PoolStats:
        """SGLang's statistics of its pool: what this engine's requests have of it."""
        own = Usage(**vars(stats))
        own.pool_usage = stats.full_token_usage
        own.refused = self._refused
        own.full_num_used = self.leases.held * self.page_size
        own.full_token_usage = own.full_num_used / stats.full_capacity
        return own

    def supports_prefix_sharing(self) -> bool:
        return not self.disable

    def pretty_print(self) -> None:
        print(self.available_and_evictable_str())


