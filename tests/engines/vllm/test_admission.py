# SPDX-License-Identifier: Apache-2.0
"""Requests that find no space when vLLM's scheduler looks at them."""
from conftest import PAGE, geometry
from engine import prompt
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
