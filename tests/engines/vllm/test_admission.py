# SPDX-License-Identifier: Apache-2.0
"""Requests that find no space when vLLM's scheduler looks at them."""
import json

import pytest
from conftest import PAGE, geometry
from engine import all_pages_are_back, counters, prompt, until
from measure_step import Scheduler, specs, trailing

from kvtrunk import testing
from kvtrunk.vllm import _engine, _cache


@pytest.fixture(autouse=True)
def each_step(monkeypatch):
    """However busy the machine is, a step looks at each request, and its BEGIN has an answer."""
    monkeypatch.setattr(_cache, "RETRY_S", 0.0)
    for module in _cache, _engine:
        monkeypatch.setattr(module, "PATIENCE_S", 60.0)


@pytest.fixture
def engine(folder, monkeypatch):
    with testing.daemon(**geometry()) as daemon:
        monkeypatch.setenv("KVTRUNK_SOCKET", daemon.socket)
        made = Scheduler(folder, True, pages=256)
        yield made
        made.theirs.shutdown()


def test_space_that_comes_while_a_request_is_admitted_waits_for_the_next_step(folder, monkeypatch):
    """Else vLLM would compute from the first token, on pages that others read."""
    with testing.daemon(**geometry(n_pages=12, max_private_pages=12)) as daemon:
        monkeypatch.setenv("KVTRUNK_SOCKET", daemon.socket)
        engine = Scheduler(folder, True, pages=12, max_model_len=8 * PAGE)
        manager = engine.theirs.kv_cache_manager
        engine.run([("first", prompt(1, 3 * PAGE))])
        until(all_pages_are_back, daemon)
        other = Scheduler(folder, True, pages=12, max_model_len=8 * PAGE)
        held = other.theirs.kv_cache_manager.engine.ring
        pages = []
        while (page := held.page()) is not None:
            pages.append(page)
        request = engine.request("third", prompt(1, 3 * PAGE))
        assert manager.get_computed_blocks(request)[1] == 0
        held.free(pages, None)
        held.client.stats()  # it took effect
        assert manager.allocate_slots(request, 3 * PAGE) is None
        reused = manager.get_computed_blocks(request)[1]
        assert reused and manager.allocate_slots(request, 3 * PAGE - reused, reused)
        for each in engine, other:
            each.theirs.shutdown()


def test_pages_of_a_request_that_is_not_scheduled_leave_behind_the_steps_in_flight(folder,
                                                                                   monkeypatch):
    """They may be those of a request that ended, which a step still writes."""
    with testing.daemon(**geometry(n_pages=12, max_private_pages=12)) as daemon:
        monkeypatch.setenv("KVTRUNK_SOCKET", daemon.socket)
        engine = Scheduler(folder, True, asynchronous=True, pages=12, max_model_len=8 * PAGE)
        manager = engine.theirs.kv_cache_manager
        first, other = (engine.request(name, prompt(i, n * PAGE), 1)
                        for i, (name, n) in enumerate((("first", 1), ("other", 7))))
        manager.get_computed_blocks(first)
        assert manager.allocate_slots(first, 5 * PAGE)
        manager.scheduled({"first": 5 * PAGE})
        manager.free(first)
        manager.get_computed_blocks(other)
        assert manager.states["other"].number is not None
        held = counters(daemon).private_pages
        manager.scheduled({})  # the other begins later
        assert manager.states["other"].number is None
        assert counters(daemon).private_pages == held
        manager.processed()
        until(lambda: counters(daemon).private_pages == 0)
        engine.theirs.shutdown()


@pytest.mark.parametrize("asked", [
    {"reserved_blocks": 1}, {"skip_zeroing_group_ids": (0,)}, {"delay_cache_blocks": True},
    {"num_encoder_tokens": 1}, {"num_external_computed_tokens": PAGE}], ids=lambda asked: [*asked][0])
def test_what_the_scheduler_asks_beyond_us_is_refused_and_not_dropped(engine, asked):
    manager = engine.theirs.kv_cache_manager
    request = engine.request(f"{asked}", prompt(1, PAGE))
    manager.get_computed_blocks(request)
    with pytest.raises(RuntimeError, match=f"gives its cache manager {[*asked][0]}=.*cannot obey"):
        manager.allocate_slots(request, PAGE, **asked)
    manager.free(request)


@pytest.mark.parametrize("most", [0, PAGE])
def test_a_limit_of_what_may_be_reused_is_refused(engine, most):
    """Beyond it a request would write to pages that others read."""
    manager = engine.theirs.kv_cache_manager
    with pytest.raises(RuntimeError, match=f"max_cache_hit_length={most}"):
        manager.get_computed_blocks(engine.request("limited", prompt(1, PAGE)), most)


def test_sleep_mode_is_not_supported(engine):
    assert not engine.theirs.connector.supports_sleep_mode(None)


# In 13 pages three prompts of two; in 45 five of two and two for their windows; in 57 nine of one and
# two for their states: with one more the pool has less than half of its pages.
@pytest.mark.parametrize("windows, states, pages, length, most", [
    ((), 0, 13, PAGE + 8, 3), ((40,), 0, 45, PAGE + 8, 5), ((), 2, 57, PAGE - 8, 9)],
    ids=["alone", "windows", "states"])
def test_requests_wait_while_the_pool_has_less_than_the_watermark(folder, monkeypatch, windows,
                                                                  states, pages, length, most):
    """As vLLM's own manager does: it admits none beside one that runs."""
    running, groups = {}, (PAGE, windows, states)
    for shared in False, True:
        with testing.daemon(**geometry(n_pages=pages, max_private_pages=pages,
                                       sides=trailing(*groups))) as daemon:
            monkeypatch.setenv("KVTRUNK_SOCKET", daemon.socket)
            engine = Scheduler(folder, shared, pages=pages, max_model_len=8 * PAGE, watermark=0.5,
                               sides=specs(*groups))
            for i in range(2 * most):
                engine.theirs.add_request(engine.request(f"{i}", prompt(i, length), 4))
            for _ in range(3):
                engine.finish(engine.theirs.schedule())
            running[shared] = len(engine.theirs.running)
            engine.run([])
            engine.theirs.shutdown()
    assert running == {False: most, True: most}


# The first request has 5 pages and more while it runs. The second gets 2 of its 8 pages with each step.
@pytest.mark.parametrize("whole", [True, False], ids=["whole", "in chunks"])
@pytest.mark.parametrize("windows, states, pages", [((), 0, 12), ((64,), 0, 18), ((), 2, 17)],
                         ids=["alone", "windows", "states"])
def test_a_prompt_larger_than_the_room_begins_where_stock_begins_it(folder, monkeypatch, windows,
                                                                    states, pages, whole):
    """And waits where that waits: --no-scheduler-reserve-full-isl. Once it is preempted a model with
    side pages has less room here: it locks what it published, and cannot continue behind that."""
    groups, begun = (PAGE, windows, states), {}
    for shared in False, True:
        with testing.daemon(**geometry(n_pages=pages, max_private_pages=pages,
                                       sides=trailing(*groups))) as daemon:
            monkeypatch.setenv("KVTRUNK_SOCKET", daemon.socket)
            engine = Scheduler(folder, shared, pages=pages, max_model_len=10 * PAGE,
                               sides=specs(*groups), max_num_batched_tokens=2 * PAGE,
                               scheduler_reserve_full_isl=whole)
            first, second = (engine.request(name, prompt(seed, n * PAGE), 3 * PAGE)
                             for seed, (name, n) in enumerate((("first", 4), ("second", 8))))
            engine.theirs.add_request(first)
            for _ in range(4):
                engine.finish(engine.theirs.schedule())
            engine.theirs.add_request(second)
            begun[shared] = []
            while not first.is_finished() and not (second.num_preemptions and (windows or states)):
                engine.finish(engine.theirs.schedule())
                begun[shared].append(second.num_computed_tokens)
            engine.run([])
            engine.theirs.shutdown()
    assert begun[True] == begun[False]
    assert any(begun[True]) is not whole


@pytest.mark.parametrize("groups", [(PAGE, (), 0), (PAGE, (128,), 0), (PAGE, (), 3)],
                         ids=["alone", "windows", "states"])
@pytest.mark.parametrize("whole", [True, False], ids=["whole", "in chunks"])
def test_a_prompt_of_half_the_pool_is_served_and_reused(folder, monkeypatch, groups, whole):
    pages, half = 128, 64 * PAGE
    with testing.daemon(**geometry(n_pages=pages, max_private_pages=pages,
                                   sides=trailing(*groups))) as daemon:
        monkeypatch.setenv("KVTRUNK_SOCKET", daemon.socket)
        engine = Scheduler(folder, True, pages=pages, max_model_len=half + PAGE,
                           max_num_batched_tokens=512, scheduler_reserve_full_isl=whole,
                           sides=specs(*groups))
        for i, reused in enumerate((0, half)):
            before = engine.reused
            engine.run([(f"{i}", prompt(1, half + 1), 2)])
            assert engine.reused - before == reused
        engine.theirs.shutdown()


def test_what_the_pool_has_counts_as_no_external_cache(engine):
    stats, make_stats = [], engine.theirs.make_stats
    engine.theirs.make_stats = lambda *given, **more: (
        stats.append(make_stats(*given, **more)) or stats[-1])
    engine.run([("first", prompt(1, 3 * PAGE))])
    engine.run([("second", prompt(1, 3 * PAGE))])
    assert sum(each.prefix_cache_stats.hits for each in stats) == 2 * PAGE
    assert not any(each.connector_prefix_cache_stats for each in stats)


def test_more_salts_than_places_share_one_after_another(folder, monkeypatch):
    """Beside each other, those without a place share nothing."""
    warned = []
    with testing.daemon(**geometry(max_namespaces=8)) as daemon:
        monkeypatch.setenv("KVTRUNK_SOCKET", daemon.socket)
        engine = Scheduler(folder, True, pages=256)
        monkeypatch.setattr(_engine.logger, "warning_once", lambda _, text: warned.append(text))
        for salt in range(20):
            engine.run([(f"first {salt}", prompt(1, 2 * PAGE), 1, f"{salt}")])
        assert engine.reused == 0
        engine.run([("again", prompt(1, 2 * PAGE + 1), 1, "19")])
        assert engine.reused == 2 * PAGE and not warned
        engine.run([(f"beside {salt}", prompt(2, 2 * PAGE), 4, f"{salt}") for salt in range(12)])
        assert engine.reused == 2 * PAGE and warned
        assert all("max_namespaces" in text for text in warned)
        engine.run([("later", prompt(2, 2 * PAGE + 1), 1, "0")])
        assert engine.reused == 4 * PAGE
        until(all_pages_are_back, daemon)
        engine.theirs.shutdown()


def test_a_request_that_finds_no_room_is_counted_once_by_its_reason(folder, monkeypatch):
    """However often vLLM looks at it; in vLLM's statistics, its log and its metrics."""
    with testing.daemon(**geometry(n_pages=12, max_private_pages=12)) as daemon:
        monkeypatch.setenv("KVTRUNK_SOCKET", daemon.socket)
        engine, other = (Scheduler(folder, True, pages=12, max_model_len=8 * PAGE)
                         for _ in range(2))
        stats, make_stats = [], engine.theirs.make_stats
        engine.theirs.make_stats = lambda *given, **more: (
            stats.append(make_stats(*given, **more)) or stats[-1])
        held = other.theirs.kv_cache_manager.engine.ring
        pages = []
        while (page := held.page()) is not None:
            pages.append(page)
        engine.theirs.add_request(engine.request("one", prompt(1, 3 * PAGE), 2))
        for _ in range(3):
            engine.finish(engine.theirs.schedule())
        refused = json.loads(daemon.kvtctl("--json", "status"))["refused"]
        held.free(pages, None)
        held.client.stats()  # it took effect
        engine.run([])
        told = [each.kv_connector_stats for each in stats if each.kv_connector_stats]
        assert told == [{"all_locked": 1}]
        assert {reason for each in told for reason in each} == {"all_locked"}
        assert refused["all_locked"] > 1  # attempts
        expect_told(engine.theirs.vllm_config, *told)
        for each in engine, other:
            each.theirs.shutdown()


def expect_told(config, told):
    """By vLLM's log and metrics: one request."""
    from prometheus_client import REGISTRY
    from vllm.distributed.kv_transfer.kv_connector.v1.metrics import (KVConnectorLogging,
                                                                      KVConnectorProm)
    lines, log = [], KVConnectorLogging(config.kv_transfer_config)
    metrics = KVConnectorProm(config, ["engine"], {0: ["0"]})
    log.observe(told)
    metrics.observe(told)
    log.log(lambda *line: lines.append(line[0] % line[1:]))
    assert lines == ["KV Transfer metrics: kvtrunk refused requests (all_locked)=1"]
    assert REGISTRY.get_sample_value("vllm:kvtrunk_refused_requests_total",
                                     {"engine": "0", "reason": "all_locked"}) == 1
