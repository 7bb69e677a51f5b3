# SPDX-License-Identifier: Apache-2.0
"""A daemon that comes back and has no place for an engine: vLLM's own scheduler, with a model that
answers 7."""
import contextlib

import pytest
from conftest import PAGE, geometry
from engine import all_pages_are_back, prompt, until
from measure_step import Scheduler

import kvtrunk
from kvtrunk import testing

PLACES = 8
"""Sessions, namespaces, and members of groups."""
STEPS = 5


def sessions(daemon):
    """Open all that one user may have."""
    while True:
        yield daemon.connect(any_geometry=True)


def namespaces(daemon):
    """Open all that there are. A session may have 7 of 8."""
    for number in (1, 2):
        client = daemon.connect(any_geometry=True)
        yield client
        with contextlib.suppress(kvtrunk.QuotaExceeded):
            for i in range(PLACES):
                client.namespace(model=b"%d %d" % (number, i))


def members(daemon):
    """Groups of two until there is no place for another."""
    while True:
        client = daemon.connect(any_geometry=True)
        yield client
        client.group(2)


@contextlib.contextmanager
def taken(daemon, places):
    """Others have all places meanwhile."""
    clients = []
    with pytest.raises((kvtrunk.NoSpace, kvtrunk.QuotaExceeded)):
        clients.extend(places(daemon))
    yield
    for client in clients:
        client.close()


@pytest.fixture
def start(folder, monkeypatch):
    """Starts a daemon and an engine on it, with these options, and a request that decodes."""
    from kvtrunk.vllm import _engine as module

    monkeypatch.setattr(module, "_RETRY_S", 0.0)
    with contextlib.ExitStack() as stack:
        def made(**options):
            daemon = stack.enter_context(testing.daemon(**geometry(
                max_sessions=PLACES, max_namespaces=PLACES, max_members=PLACES)))
            monkeypatch.setenv("KVTRUNK_SOCKET", daemon.socket)
            engine = Scheduler(folder, True, pages=256, **options)
            stack.callback(engine.theirs.shutdown)
            engine.theirs.add_request(engine.request("runs", prompt(1, PAGE), PAGE))
            for _ in range(3):
                step(engine)
            assert len(engine.theirs.running) == 1
            return daemon, engine

        yield made


def step(engine):
    engine.finish(engine.theirs.schedule())


def lose(daemon, engine):
    """Start a new daemon. The engine sees it when another request comes."""
    daemon.kill()
    daemon.start()
    engine.theirs.add_request(engine.request("comes", prompt(2, 2 * PAGE), 2))
    while not engine.theirs.kv_cache_manager.engine.is_lost:
        step(engine)


def finish(daemon, engine):
    """Have all requests answered, and tell the pages that were computed."""
    while engine.theirs.has_unfinished_requests():
        step(engine)
    until(lambda: step(engine) or all_pages_are_back(daemon))


@pytest.mark.parametrize("places", [sessions, members])
def test_requests_wait_for_a_session_and_its_group(start, places):
    daemon, engine = start(distributed_executor_backend="mp")
    lose(daemon, engine)
    ours = engine.theirs.kv_cache_manager.engine
    with taken(daemon, places):
        for _ in range(STEPS):
            step(engine)
        assert ours.is_lost and engine.theirs.has_unfinished_requests()
    until(lambda: step(engine) or ours.session == 2)
    finish(daemon, engine)


def test_requests_wait_for_a_namespace(start):
    daemon, engine = start()
    lose(daemon, engine)
    manager = engine.theirs.kv_cache_manager
    with taken(daemon, namespaces):
        for _ in range(STEPS):
            step(engine)
        assert not manager.engine.is_lost and not engine.theirs.running
        assert any(state.counted for state in manager.states.values())
    finish(daemon, engine)
    with daemon.connect(observe=True) as observer:
        assert observer.counters().cached_pages
