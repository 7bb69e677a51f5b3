# SPDX-License-Identifier: Apache-2.0
"""Requests that find no space when vLLM's scheduler looks at them."""
from conftest import PAGE, geometry
from engine import all_pages_are_back, counters, prompt, until
from measure_step import Scheduler

from kvtrunk import testing


def test_space_that_comes_while_a_request_is_admitted_waits_for_the_next_step(folder, monkeypatch):
    """Else vLLM would compute from the first token, on pages that others read."""
    from kvtrunk.vllm import manager as module
    monkeypatch.setattr(module, "RETRY_S", 0.0)
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
        assert manager.states["other"].lease is not None
        held = counters(daemon).private_pages
        manager.reset_prefix_cache()  # the other begins later
        assert counters(daemon).private_pages == held
        manager.processed()
        until(lambda: counters(daemon).private_pages == 0)
        engine.theirs.shutdown()
