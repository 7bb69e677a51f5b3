# SPDX-License-Identifier: Apache-2.0
"""A daemon that is stopped: vLLM's own scheduler, with a model that answers 7."""
import contextlib
import os
import signal
import threading

import pytest
import stores
from conftest import PAGE, geometry
from engine import all_pages_are_back, prompt, until
from measure_step import Scheduler

from kvtrunk import testing

GIVE_UP_S = 60
"""A scheduler that waits for the daemon would wait for ever."""


@pytest.fixture
def in_caller(monkeypatch):
    """An engine in its caller's process, which steps only while there are requests."""
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")


@pytest.fixture
def stopped(folder, monkeypatch):
    """A daemon, an engine on it with a request that decodes, what it says, and a call that stops
    the daemon."""
    from kvtrunk.vllm import _engine as module

    said = []
    monkeypatch.setattr(module.logger, "warning", lambda text, *given: said.append(text % given))
    with testing.daemon(**geometry()) as daemon, contextlib.ExitStack() as stack:
        monkeypatch.setenv("KVTRUNK_SOCKET", daemon.socket)
        engine = Scheduler(folder, True, pages=256)
        engine.theirs.add_request(engine.request("runs", prompt(1, PAGE), PAGE))
        for _ in range(3):
            engine.finish(engine.theirs.schedule())
        assert len(engine.theirs.running) == 1
        late = threading.Timer(GIVE_UP_S, os.kill, (daemon.pid, signal.SIGCONT))

        def stop():
            said.clear()
            stack.enter_context(stores.stopped(daemon.pid))
            late.start()

        yield daemon, engine, said, stop
        waited = not late.is_alive()
        late.cancel()
        stack.close()
        assert not waited, "the scheduler waited for the daemon"
        until(ended, engine)  # and not before its stock is given back, which may come late
        until(all_pages_are_back, daemon)
        engine.theirs.shutdown()


def step(engine):
    engine.finish(engine.theirs.schedule())


def test_decode_does_not_wait_for_a_stopped_daemon(stopped):
    daemon, engine, said, stop = stopped
    stop()
    for name in "ab":
        engine.theirs.add_request(engine.request(name, prompt(2, 2 * PAGE), 2, salt=name))
    while engine.theirs.running:
        step(engine)
    assert sorted(engine.theirs.requests) == ["a", "b"]
    while not said:
        step(engine)
    assert len(said) == 1 and f"kvtrunkd (pid {daemon.pid}, {daemon.socket}) has not" in said[0]
    os.kill(daemon.pid, signal.SIGCONT)
    while engine.theirs.has_unfinished_requests():
        step(engine)
    assert [line for line in said if "answers again" in line] == said[1:2]
    assert engine.theirs.kv_cache_manager.engine.session == 1


def ended(engine):
    """Whether vLLM would wait for a request. If not, it steps on."""
    if engine.theirs.has_requests():
        step(engine)
    return not engine.theirs.has_requests()


def ask_for_stock(engine):
    """The pages that it asks for while it decodes come behind the end of all requests."""
    for name in "abc":
        engine.theirs.add_request(engine.request(name, prompt(2, PAGE - 2), PAGE // 2, salt=name))
    while len(engine.theirs.running) < 4:
        step(engine)


def test_an_engine_whose_last_request_ends_meanwhile_keeps_no_stock(stopped):
    daemon, engine, _, stop = stopped
    ask_for_stock(engine)
    stop()
    while engine.theirs.requests:
        step(engine)
    step(engine)
    assert engine.theirs.has_requests() and not engine.theirs.has_unfinished_requests()
    os.kill(daemon.pid, signal.SIGCONT)
    until(ended, engine)
    until(all_pages_are_back, daemon)


def test_an_engine_in_its_callers_process_waits_for_its_stock_at_the_end(in_caller, stopped,
                                                                       monkeypatch):
    daemon, engine, _, stop = stopped
    manager, waited = engine.theirs.kv_cache_manager, []

    def look(_):
        waited.append(len(manager.states))
        os.kill(daemon.pid, signal.SIGCONT)

    monkeypatch.setattr(manager.engine.ring._stall, "look", look)
    ask_for_stock(engine)
    stop()
    while engine.theirs.requests:
        step(engine)
    assert set(waited) == {0} and not manager.owes()
    until(all_pages_are_back, daemon)


def test_an_aborted_request_keeps_no_pages_that_come_late(stopped):
    from vllm.v1.request import RequestStatus

    daemon, engine, _, stop = stopped
    stop()
    engine.theirs.add_request(engine.request("goes", prompt(2, 2 * PAGE), 2))
    while engine.theirs.running:
        step(engine)
    engine.theirs.finish_requests("goes", RequestStatus.FINISHED_ABORTED)
    os.kill(daemon.pid, signal.SIGCONT)
    until(ended, engine)
    until(all_pages_are_back, daemon)


def test_a_session_is_lost_when_the_daemon_is_stopped_for_long(stopped, monkeypatch):
    """The fixture has it all finished."""
    from kvtrunk.vllm import _engine as module

    daemon, engine, said, stop = stopped
    ours = engine.theirs.kv_cache_manager.engine
    monkeypatch.setattr(module, "_HANDSHAKE_S", 0.2)
    monkeypatch.setattr(ours.ring._stall, "_lost_s", 0.5)
    stop()
    engine.theirs.add_request(engine.request("waits", prompt(2, 2 * PAGE), 2))
    while not ours.is_lost:
        step(engine)
    assert "All requests are computed again" in said[-1]
    for _ in range(3):
        step(engine)
    assert ours.is_lost and not engine.theirs.running
    os.kill(daemon.pid, signal.SIGCONT)
    while engine.theirs.has_unfinished_requests():
        step(engine)
    assert ours.session == 2
    assert said[-1].endswith("running requests are computed again; the cache was kept")


@pytest.mark.parametrize("on_loss", ["end", "wait"])
def test_an_engine_without_a_daemon_ends_or_waits(folder, monkeypatch, on_loss):
    from kvtrunk.vllm import _engine as module

    monkeypatch.setattr(module, "DAEMON_S", 0.0)
    monkeypatch.setattr(module, "_RETRY_S", 0.0)
    with testing.daemon(**geometry()) as daemon:
        monkeypatch.setenv("KVTRUNK_SOCKET", daemon.socket)
        engine = Scheduler(folder, True, pages=256, transfer={"on_loss": on_loss})
    engine.theirs.add_request(engine.request("waits", prompt(2, 2 * PAGE), 2))
    ours = engine.theirs.kv_cache_manager.engine
    while not ours.is_lost:
        step(engine)
    if on_loss == "wait":
        for _ in range(3):
            step(engine)
    else:
        with pytest.raises(RuntimeError, match="no daemon came back"):
            step(engine)
    engine.theirs.shutdown()
