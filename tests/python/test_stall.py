# SPDX-License-Identifier: Apache-2.0
"""A daemon that does not answer: kvtrunk.engine._stall, and a scheduler's session beside it."""
import json
import os
import select
import signal
import threading

import pytest
import stores

from kvtrunk import ConnectionLost, testing
from kvtrunk.engine._name import Name
from kvtrunk.engine._ring import WAIT_MS, Ring, Spaces
from kvtrunk.engine._stall import LOST_S, WARN_S, Stall, Stalled, connected_again
from test_ring import begin, in_use, reap_until

SOON_S = 0.01


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def stopped(client):
    return stores.stopped(client.info.daemon_pid)


@pytest.fixture
def daemon():
    with testing.daemon(page_size=16, n_pages=64) as made:
        yield made


@pytest.fixture
def client(daemon):
    with daemon.connect(any_geometry=True) as made:
        yield made


def make(client, said, lost_s=LOST_S, socket="/no/socket"):
    clock = Clock()
    ring = Ring(client, stall=Stall(socket, lambda text, *given: said.append(text % given), lost_s,
                                    clock))
    ring.space = client.namespace(model="ring")._id
    return ring, clock


def test_a_begin_does_not_wait_for_a_stopped_daemon(client):
    said = []
    ring, _ = make(client, said)
    with stopped(client):
        begun = begin(ring, 40, patience_s=SOON_S)
        assert begun.lease is None and begun.ticket and ring.is_stalled()
        assert ring.notice(begun.ticket) is None
    reap_until(ring, lambda: not ring.is_stalled())
    assert ring.notice(begun.ticket) == WAIT_MS
    late = ring.begun(begun.ticket)
    assert len(late.pages) == 3 == in_use(ring) and ring.begun(begun.ticket) is None
    assert ring.commit(late.lease, 32, [], None, False)
    assert reap_until(ring, lambda: client.counters().cached_pages == 2) == []
    ring.end(late.lease, None)
    assert said == []


def test_a_late_begin_without_pages_tells_which_keys_it_took(client):
    ring, _ = make(client, [])
    begun = begin(ring, 32 * 16, no_pages=True)
    assert begun.known < 32 * 16  # there is no other slot
    with stopped(client):
        late = begin(ring, 16, seed=1, no_pages=True, patience_s=SOON_S)
    reap_until(ring, lambda: not ring.is_stalled())
    assert ring.notice(late.ticket) == WAIT_MS and ring.begun(late.ticket) is None
    ring.end(begun.lease, None)
    with stopped(client):
        late = begin(ring, 40, seed=1, no_pages=True, patience_s=SOON_S)
    reap_until(ring, lambda: not ring.is_stalled())
    assert ring.notice(late.ticket) == WAIT_MS and ring.begun(late.ticket).known == 40


@pytest.mark.parametrize("answered", [False, True])
def test_a_begin_that_is_given_up_holds_nothing(client, answered):
    ring, _ = make(client, [])
    with stopped(client):
        begun = begin(ring, 40, patience_s=SOON_S)
        if not answered:
            ring.give_up(begun.ticket)
    reap_until(ring, lambda: not ring.is_stalled())
    if answered:
        assert in_use(ring) == 3
        ring.give_up(begun.ticket)
    reap_until(ring, lambda: in_use(ring) == 0)


def opened(daemon):
    return sum(space["opened"] for space in json.loads(daemon.kvtctl("--json", "namespaces")))


def test_closing_namespaces_is_not_waited_for(daemon, client):
    """clear() does not wait for a stopped daemon: they close when it answers again."""
    ring, _ = make(client, [])
    spaces = Spaces(ring, lambda name: client.namespace(model=name), patience_s=SOON_S)
    for name in ("one", "two"):
        spaces.find(name)
    with stopped(client):
        spaces.clear()
        assert ring.is_stalled()
    reap_until(ring, lambda: not ring.is_stalled())
    spaces.clear()
    assert opened(daemon) == 1


def test_the_generation_of_a_name_is_not_waited_for(client):
    ring, _ = make(client, [])
    name = Name(b"model", "files")
    name.value(client)
    name.forget()
    with stopped(client):
        with pytest.raises(Stalled):
            name.value(client, lambda ask: ring.within(SOON_S, ask))
    reap_until(ring, lambda: not ring.is_stalled())
    value = name.value(client)
    assert value != name._digest(0) and value == name.value(client)


def test_a_namespace_is_not_waited_for(client):
    ring, _ = make(client, [])
    spaces = Spaces(ring, lambda name: client.namespace(model=name), patience_s=SOON_S)
    with stopped(client):
        for _ in range(2):
            with pytest.raises(Stalled):
                spaces.find("new")
            assert ring.is_stalled()
    reap_until(ring, lambda: not ring.is_stalled())
    client.set_timeout(None)
    found = client.namespace(model="new")
    assert begin(ring, 16, patience_s=0.0).lease and found._id != ring.space


def test_a_late_refusal_is_asked_again(client):
    ring, _ = make(client, [])
    with stopped(client):
        begun = begin(ring, 64 * 16, patience_s=SOON_S)
    reap_until(ring, lambda: not ring.is_stalled())
    assert ring.notice(begun.ticket) == WAIT_MS and ring.begun(begun.ticket) is None
    assert begin(ring, 64 * 16).ticket == 0  # there is no room


def test_a_stall_is_told_once_and_costs_the_session_later(daemon, client):
    said = []
    ring, clock = make(client, said, socket=daemon.socket)
    pid = client.info.daemon_pid
    with stopped(client):
        begin(ring, 16, patience_s=SOON_S)
        clock.now = WARN_S / 2
        assert ring.is_stalled() and said == []
        for clock.now in WARN_S, LOST_S / 2:
            assert ring.reap() == []
        assert len(said) == 1 and f"kvtrunkd (pid {pid}, {daemon.socket}) has not answered for 1 s" in \
            said[0]
        assert f"`kill -CONT {pid}`" in said[0]
        clock.now = LOST_S
        with pytest.raises(ConnectionLost, match="has not answered for 10 s"):
            ring.reap()
    clock.now = 12.0


def test_a_stalled_successor_is_named():
    said = []
    with testing.daemon(page_size=16, n_pages=64, supervise=True) as daemon:
        with daemon.connect(any_geometry=True) as client:
            ring, clock = make(client, said, socket=daemon.socket)
            first = client.info.daemon_pid
            daemon.kill()
            assert begin(ring, 16).lease
            successor = daemon.child
            stores.freeze(successor)
            begin(ring, 16, seed=1, patience_s=SOON_S)
            clock.now = WARN_S
            ring.reap()
            os.kill(successor, signal.SIGCONT)
            reap_until(ring, lambda: not ring.is_stalled())
    assert f"(pid {successor}, {daemon.socket})" in said[0]
    assert f"`kill -CONT {successor}`" in said[0] and successor != first


def test_a_daemon_that_ended_is_not_named():
    """Its socket still names it."""
    said = []
    with testing.daemon(page_size=16, n_pages=64, supervise=True) as daemon:
        with daemon.connect(any_geometry=True) as client:
            ring, clock = make(client, said, socket=daemon.socket)
            stores.freeze(daemon.pid)
            stores.freeze(client.info.daemon_pid)
            begin(ring, 16, patience_s=SOON_S)
            pidfd = os.pidfd_open(client.info.daemon_pid)
            os.kill(client.info.daemon_pid, signal.SIGKILL)
            select.select([pidfd], [], [])
            os.close(pidfd)
            clock.now = WARN_S
            ring._stall.look(0.0)
            os.kill(daemon.pid, signal.SIGCONT)
    assert f"kvtrunkd ({daemon.socket}) has not" in said[0] and "SIGCONT continues it" in said[0]


def test_where_a_loss_would_end_the_engine_it_waits(client):
    said = []
    ring, clock = make(client, said, None)
    with stopped(client):
        begun = begin(ring, 16, patience_s=SOON_S)
        clock.now = 100 * LOST_S
        assert ring.notice(begun.ticket) is None
    reap_until(ring, lambda: not ring.is_stalled())
    assert len(said) == 2 and "answers again, after 1000.0 s" in said[1]


def test_what_a_step_needs_is_waited_for_and_told(client, monkeypatch):
    """More pages than are in stock."""
    import kvtrunk.engine._ring as module

    monkeypatch.setattr(module, "_SLICE_NS", int(SOON_S * 1e9))
    said = []
    ring, clock = make(client, said, None)
    lease = begin(ring, 16).lease
    clock.now = 1.0
    stores.freeze(client.info.daemon_pid)
    waits = threading.Thread(target=lambda: said.append(ring.extend(lease, 2)))
    waits.start()
    clock.now = 3.0
    while not said:
        assert waits.is_alive()
    assert "has not answered for 2 s" in said[0]
    os.kill(client.info.daemon_pid, signal.SIGCONT)
    waits.join()
    assert len(said) == 3 and "answers again" in said[1] and len(said[2]) == 2


@pytest.mark.parametrize("ends, cache", [(False, "was kept"), (True, "starts empty")])
def test_a_second_session_tells_whether_the_cache_is_the_first_ones(daemon, client, ends, cache):
    if ends:
        daemon.kill()
        daemon.start()
    with daemon.connect(any_geometry=True) as again:
        said = connected_again(client.info, again.info)
    assert said.endswith(f"running requests are computed again; the cache {cache}")
