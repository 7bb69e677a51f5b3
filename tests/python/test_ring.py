# SPDX-License-Identifier: Apache-2.0
"""A scheduler's session: kvtrunk.engine._ring."""
import json
import os
import signal
from array import array

import pytest
import stores

from kvtrunk import InvalidArgument, NoSpace, QuotaExceeded, Stale, testing
from kvtrunk._limited_log import LimitedLog
from kvtrunk.engine._ring import Ring, Spaces

PAGE, WORD = 16, 3
NONE = array("I")


def keys(n, seed=0):
    return array("I", range(1000 * seed, 1000 * seed + n))


@pytest.fixture
def daemon():
    with testing.daemon(page_size=PAGE, n_pages=256) as made:
        yield made


@pytest.fixture
def ring(daemon):
    with daemon.connect(any_geometry=True, sq_entries=8, cq_entries=8) as client:
        made = Ring(client)
        made.space = client.namespace(model="ring")._id
        yield made


def stocked(client):
    """A busy one with a stock of 8."""
    made = Ring(client, stock=8)
    made.space = client.namespace(model="stock")._id
    made.announce(True)
    return made


def begin(ring, n, seed=0, **more):
    return ring.begin(ring.space, keys(n, seed), 0, **{"force_miss": False, "wait_ms": 0, **more})


def in_use(ring, now=None):
    now = now or ring.client.stats()
    return now.private_pages + now.quarantined_pages + now.protected_pages


def reap_until(ring, true):
    refused = ring.reap()
    while not true():
        refused += ring.reap()
    return refused


def test_a_single_page_is_the_session_s_until_its_fence(ring):
    page = ring.page()
    assert page > 0 and in_use(ring) == 1
    begun = begin(ring, 64)
    assert page not in begun.pages
    ring.free([page], (WORD, 1))
    ring.end(begun.lease, None)
    assert reap_until(ring, lambda: in_use(ring) == 1) == []
    ring.client.raise_fence(WORD, 1)
    assert reap_until(ring, lambda: in_use(ring) == 0) == []


def test_a_full_pool_has_no_single_page(ring):
    held = []
    while (page := ring.page()) is not None:
        held.append(page)
    assert held
    for page in held:
        ring.free([page], None)
    assert reap_until(ring, lambda: in_use(ring, ring.client.counters()) == 0) == []


def test_commit_and_end_take_effect_at_their_fence(ring):
    begun = begin(ring, 64)
    assert len(begun.pages) == 4 and begun.reusable == 0
    assert ring.commit(begun.lease, 64, NONE, (WORD, 1), False) > 0
    ring.end(begun.lease, (WORD, 2))
    assert ring.client.stats().cached_pages == 0
    ring.client.raise_fence(WORD, 1)
    assert reap_until(ring, lambda: ring.client.stats().cached_pages == 4) == []
    assert in_use(ring) == 4  # of the lease
    ring.client.raise_fence(WORD, 2)
    assert reap_until(ring, lambda: in_use(ring) == 0) == []
    assert begin(ring, 65).pages[:4] == begun.pages


def test_without_room_a_commit_says_so_and_an_end_comes_later(ring):
    leases = [begin(ring, 16, seed).lease for seed in range(20)]
    tickets = [ring.commit(lease, 16, NONE, (WORD, 1), False) for lease in leases]
    assert 0 < tickets.count(0) < 20
    for lease in leases:
        ring.end(lease, (WORD, 1), 16)
    ring.client.raise_fence(WORD, 1)
    counters = ring.client.counters  # stats() would need room for its answer
    assert reap_until(ring, lambda: in_use(ring, counters()) == 0) == []
    assert counters().cached_pages == 20


def test_a_refused_commit_is_named_by_its_ticket(ring):
    begun = begin(ring, 64)
    ticket = ring.commit(begun.lease, 64, NONE, (WORD, 1), False)
    ring.client.reset()
    ring.client.raise_fence(WORD, 1)
    refused = []
    while not refused:
        refused = ring.reap()
    (name, why), = refused
    assert name == ticket and isinstance(why, Stale)
    ring.end(begun.lease, None)


def test_what_is_computed_now_waits_for_a_notice(ring):
    first = begin(ring, 100)
    again = begin(ring, 100, wait_ms=30000)
    assert again.lease is None and again.ticket and ring.notice(again.ticket) is None
    assert ring.commit(first.lease, 96, NONE, None, False)
    while ring.notice(again.ticket) is None:
        pass
    assert begin(ring, 100, wait_ms=30000).reusable == 96


def test_a_touched_prompt_stays_and_the_next_oldest_goes(ring):
    for seed in range(3):
        begun = begin(ring, 64, seed)
        ring.commit(begun.lease, 64, NONE, None, False)
        ring.end(begun.lease, None)
    ring.touch(ring.space, keys(64, 0))
    hits = ring.client.stats().hit_positions
    begun = begin(ring, (255 - 8) * PAGE, 9)
    ring.end(begun.lease, None)
    assert ring.reap() == [] and ring.client.stats().hit_positions == hits
    assert [begin(ring, 64, seed, full=True).reusable for seed in range(3)] == [64, 0, 64]


def test_a_full_pool_is_not_a_notice(ring):
    assert begin(ring, 256 * PAGE).ticket == 0
    begun = begin(ring, 16)
    assert ring.extend(begun.lease, 300) is None and len(ring.extend(begun.lease, 3)) == 3


def test_a_begin_without_pages_takes_the_keys_that_have_slots(ring):
    """And commits bring the others."""
    half, prompt = 128, keys(128 * PAGE)
    begun = begin(ring, half * PAGE, no_pages=True)
    assert begun.pages == [] and 0 < begun.known < half * PAGE and begun.known % PAGE == 0
    assert in_use(ring) == 0 and begin(ring, 3 * PAGE, wait_ms=30000).lease  # others do not wait
    assert len(ring.extend(begun.lease, half)) == half
    assert ring.commit(begun.lease, half * PAGE, prompt[begun.known:], None, False)
    ring.end(begun.lease, None)
    assert ring.reap() == []
    again = begin(ring, half * PAGE, no_pages=True, full=True)
    assert (again.reusable, again.known, len(again.pages)) == (half * PAGE, half * PAGE, half)


def test_pages_behind_a_fence_are_the_schedulers_at_once(daemon, ring):
    with daemon.connect(any_geometry=True) as other:
        victim, runs = begin(ring, 16), begin(ring, 32, 1)
        table = victim.pages + ring.extend(victim.lease, 255 - 3)
        ring.end(victim.lease, (5, 1))
        with pytest.raises(NoSpace):
            other.alloc(1, own_stream=True)
        assert set(ring.extend(runs.lease, 2)) < set(table)
        assert set(begin(ring, 96 + 16, 2).pages) < set(table)
        with pytest.raises(NoSpace):
            ring.client.alloc(1)
        assert set(ring.client.alloc(3, own_stream=True)) < set(table)
        ring.client.raise_fence(5, 1)
        while other.counters().free_pages < 3:  # the daemon looks at fences once a turn
            pass
        assert len(other.alloc(3)) == 3


def test_a_stock_lengthens_a_table_while_the_daemon_is_stopped(daemon):
    with daemon.connect(any_geometry=True) as client:
        ring = stocked(client)
        begun = begin(ring, 64)
        table = begun.pages + ring.extend(begun.lease, 1)
        reap_until(ring, lambda: len(ring._stock) == 8)
        assert in_use(ring) == 5 + 8
        stores.freeze(client.info.daemon_pid)
        try:
            table += ring.extend(begun.lease, 3) + ring.extend(begun.lease, 2)
        finally:
            os.kill(client.info.daemon_pid, signal.SIGCONT)
        assert ring.commit(begun.lease, 64, NONE, None, False)
        again = begin(ring, 64, full=True)
        assert again.pages == table[:4]
        ring.end(again.lease, None)
        assert reap_until(ring, lambda: len(ring._stock) == 8) == []
        # Before it says that there is no space it gives the stock back.
        assert len(ring.extend(begun.lease, 255 - 10)) == 245
        assert ring.extend(begun.lease, 1) is None and in_use(ring) == 255
        ring.end(begun.lease, None)
        assert ring.reap() == []  # that the pool was full is no news
        other = begin(ring, 16, 1)
        ring.extend(other.lease, 1)
        reap_until(ring, lambda: len(ring._stock) == 8)
        assert len(begin(ring, 253 * PAGE, 2).pages) == 253
        ring.end(other.lease, None)


def test_pages_come_from_the_stock_and_go_there_while_the_daemon_is_stopped(daemon):
    with daemon.connect(any_geometry=True) as client:
        ring = Ring(client, stock=8)
        ring.announce(True)
        taken = ring.pages(3)
        assert ring.stocked == 8 and in_use(ring) == 11
        stores.freeze(client.info.daemon_pid)
        try:
            ring.free(ring.pages(2), None)
            again = ring.pages(4)
            ring.free(again, None)
            assert ring.stocked == 8 and not {*again} & {*taken}
        finally:
            os.kill(client.info.daemon_pid, signal.SIGCONT)
        ring.free(taken, None)  # more than it keeps
        assert in_use(ring) == 8
        assert len(ring.pages(255)) == 255
        assert ring.pages(1) is None
        ring.free(range(1, 256), None)
        ring.announce(False)
        assert in_use(ring) == 0 and ring.reap() == []


def test_pages_that_the_stock_keeps_cost_no_operation(daemon):
    with daemon.connect(any_geometry=True) as client:
        ring = stocked(client)
        ring.free(ring.pages(2), None)
        first = client.stats().operations
        each = client.stats().operations - first
        ring.free(ring.pages(2), None)
        assert ring.stocked == 8
        assert client.stats().operations == first + 2 * each


def test_answers_are_taken_when_their_room_is_needed(daemon, ring):
    """Without reap() between."""
    n = 24
    lease = begin(ring, n * PAGE).lease
    with daemon.connect(observe=True) as observer:
        for i in range(1, n + 1):
            assert ring.commit(lease, i * PAGE, NONE, None, False)
            while observer.counters().inserted_pages < i:
                pass
    ring.end(lease, None)


def test_pages_that_went_to_the_stock_leave_it_behind_their_fence(daemon):
    with daemon.connect(any_geometry=True) as client:
        ring = Ring(client, stock=8)
        ring.announce(True)
        ring.free(ring.pages(4), (WORD, 1))
        ring.announce(False)
        held = in_use(ring)
        client.raise_fence(WORD, 1)
        assert (held, ring.stocked) == (4 + 8, 0)
        assert reap_until(ring, lambda: in_use(ring) == 0) == []


def test_a_limit_that_holds_requests_back_is_named_once(daemon):
    with daemon.connect(any_geometry=True) as client:
        said = []
        ring = Ring(client, warn=LimitedLog(lambda form, text: said.append(text)))
        ring.space = client.namespace(model="limit")._id
        begun = begin(ring, 255 * PAGE)
        for _ in range(3):
            assert begin(ring, 16, 1).lease is None
            assert ring.extend(begun.lease, 1) is None
        assert len(said) == 1 and "begin: ENOSPC: " in said[0] and "1 page needed, 0" in said[0]
        ring.end(begun.lease, None)


@pytest.mark.parametrize("reaped", [False, True])
def test_an_idle_scheduler_has_no_stock(daemon, reaped):
    with daemon.connect(any_geometry=True) as client:
        ring = stocked(client)
        begun = begin(ring, 16)
        ring.extend(begun.lease, 1)
        if reaped:
            reap_until(ring, lambda: len(ring._stock) == 8)
        ring.end(begun.lease, None)
        ring.announce(False)
        assert ring.owes != reaped  # the answer that brings the stock
        assert reap_until(ring, lambda: not ring.owes) == []
        assert in_use(ring) == 0


def test_a_stock_is_given_back_behind_the_last_fence(daemon):
    """It may have pages of the lease that ended, which a step in flight still writes."""
    with daemon.connect(any_geometry=True) as client:
        ring = stocked(client)
        begun = begin(ring, 16)
        ring.extend(begun.lease, 1)
        reap_until(ring, lambda: len(ring._stock) == 8)
        ring.end(begun.lease, (WORD, 1))
        ring.announce(False)
        held = in_use(ring)
        client.raise_fence(WORD, 1)
        assert held == 8 + 2
        assert reap_until(ring, lambda: in_use(ring) == 0) == []


LIFE = """
import os, deadly
from array import array
from kvtrunk import testing
from kvtrunk.engine._ring import Ring, Spaces

def victim(request):
    global left
    left -= 1
    return os.getpid() if left == 0 else None

left = int(sys.stdin.readline())
client = kvtrunk.connect(socket, any_geometry=True)
ring, space = Ring(client, stock=8), client.namespace(model="ring")._id
ring.announce(True)
keys, none = array("I", range(200)), array("I")
deadly.kill(victim)
begun = ring.begin(space, keys, 0, force_miss=False, wait_ms=30000)
ring.commit(begun.lease, 64, none, (3, 1), True)
client.raise_fence(3, 1)
ring.extend(begun.lease, 4)
while not ring._stock:
    ring.reap()
ring.extend(begun.lease, 4)
ring.commit(begun.lease, 192, none, (3, 2), False)
client.raise_fence(3, 2)
while client.counters()["cached_pages"] < 12:
    pass
ring.commit(begun.lease, 200, none, None, False)
ring.end(begun.lease, (3, 3))
say("alive")
"""


@pytest.mark.parametrize("n", range(1, 10))
def test_a_kill_right_after_the_nth_operation_leaves_nothing(daemon, ring, child, n):
    """BEGIN, COMMIT, EXTEND, ALLOC, EXTEND of the stock, COMMIT, COMMIT, END; the ninth does not
    come."""
    killed = child(daemon, LIFE)
    killed.tell(str(n))
    assert killed.wait() == ("alive\n" if n == 9 else "")
    while in_use(ring):
        pass
    assert daemon.kvtctl("audit").startswith("clean")
    cached = ring.client.stats().cached_pages
    # A commit that was not answered may not have happened, nor one whose fence was not raised.
    assert cached in ((0,) if n < 3 else (0, 4) if n < 6 else (0, 4, 12) if n < 8 else (12,))
    assert begin(ring, 200).reusable == cached * PAGE


def test_a_retired_namespace_is_closed_when_it_has_no_lease(ring):
    begun = begin(ring, 64)
    ring.retire([ring.space])
    other = begin(ring, 64, 1)
    ring.end(begun.lease, None)
    ring.retire([])
    ring.end(other.lease, None)
    ring.retire([])
    with pytest.raises(InvalidArgument, match="not opened"):
        begin(ring, 64)


def test_an_engine_has_no_end_of_epochs():
    with testing.daemon(page_size=PAGE, n_pages=256, max_namespaces=4) as daemon, \
            daemon.connect(any_geometry=True) as client:
        ring = Ring(client)
        for epoch in range(20):
            ring.space = client.namespace(model=f"epoch {epoch}")._id
            begun = begin(ring, 64)
            assert begun.reusable == 0
            ring.commit(begun.lease, 64, NONE, None, False)
            ring.retire([ring.space])  # in vain, until the next time
            ring.end(begun.lease, None)


def spaces_of(ring, most):
    return Spaces(ring, lambda name: ring.client.namespace(model="ring", salt=name), most)


def opened(daemon):
    return sum(space["opened"] for space in json.loads(daemon.kvtctl("--json", "namespaces")))


def test_the_last_used_namespaces_are_open_and_all_are_cached(daemon, ring):
    spaces, before = spaces_of(ring, 4), opened(daemon)
    for i in range(10):
        ring.space = spaces.find(f"salt {i}")._id
        begun = begin(ring, 32)
        assert begun.reusable == 0
        ring.end(begun.lease, None, 32)
        assert ring.reap() == []
    assert opened(daemon) == before + 4
    ring.space = spaces.find("salt 6")._id  # the least recently used
    assert opened(daemon) == before + 4
    assert spaces.find("new") and spaces.find("salt 6")._id == ring.space  # it was used since
    for i in range(10):
        ring.space = spaces.find(f"salt {i}")._id
        begun = begin(ring, 32)
        assert begun.reusable == 32 - PAGE
        ring.end(begun.lease, None)
        assert ring.reap() == []
    spaces.clear()
    assert opened(daemon) == before


def test_a_namespace_that_is_used_again_is_not_closed(daemon, ring):
    spaces, before = spaces_of(ring, 1), opened(daemon)
    ring.space = first = spaces.find("first")._id
    begun = begin(ring, 32)
    spaces.find("second")  # it has a lease: not yet
    assert opened(daemon) == before + 2
    assert spaces.find("first")._id == first and opened(daemon) == before + 1
    ring.end(begun.lease, None)
    ring.retire([])
    assert opened(daemon) == before + 1
    ring.end(begin(ring, 32, seed=1).lease, None)
    assert reap_until(ring, lambda: in_use(ring) == 0) == []


@pytest.fixture
def few():
    """A ring whose session may open seven namespaces."""
    with testing.daemon(page_size=PAGE, n_pages=256, max_namespaces=8) as daemon, \
            daemon.connect(any_geometry=True) as client:
        yield Ring(client)


def test_many_names_share_few_places(few):
    spaces = spaces_of(few, 256)
    few.space = kept = spaces.find("kept")._id
    lease, hot = begin(few, 32).lease, spaces.find("hot")._id
    for i in range(40):
        few.space = spaces.find(f"salt {i}")._id
        few.end(begin(few, 32, seed=1).lease, None, 32)
        assert few.reap() == []
        assert spaces.find("hot")._id == hot and few.space not in (hot, kept)
    few.space = kept
    few.end(lease, None, 32)
    few.end(begin(few, 32, full=True).lease, None)
    assert reap_until(few, lambda: in_use(few) == 0) == []


def test_names_are_refused_while_leases_have_all_places(few):
    spaces, leases = spaces_of(few, 256), []
    with pytest.raises(QuotaExceeded, match="max_namespaces"):
        while len(leases) < 8:
            few.space = spaces.find(f"salt {len(leases)}")._id
            leases.append(begin(few, 16).lease)
    assert len(leases) == 7
    few.end(leases[2], None)
    found = spaces.find("new")._id
    assert found == spaces.find("new")._id
    for lease in leases[:2] + leases[3:]:
        few.end(lease, None)
    assert reap_until(few, lambda: in_use(few) == 0) == []


def test_begin_continues_behind_the_side_pages_that_commit_took():
    with testing.daemon(page_size=PAGE, n_pages=256, sides="2,1") as daemon, \
            daemon.connect(any_geometry=True) as client:
        ring = Ring(client)
        ring.space = client.namespace(model="ring")._id
        assert client.info.side_pages == (2, 1)
        first = begin(ring, 64)
        pages = [ring.page() for _ in range(4)]
        places = [(2, 0), (3, 0), (3, 1)]
        assert ring.commit(first.lease, 64, NONE, None, False,
                           [(*place, page) for place, page in zip(places, pages)])
        assert ring.commit(first.lease, 64, NONE, None, False, [(3, 1, pages[3])])
        assert reap_until(ring, lambda: client.stats().side_pages == 3) == []
        assert ring.not_taken() == [pages[3]] and ring.not_taken() == []
        second = begin(ring, 70)
        assert (second.matched, second.reusable) == (64, 64)
        assert second.sides == (pages[:2], pages[2:3])
        third = begin(ring, 48)
        assert (third.matched, third.reusable, third.sides) == (48, 0, ([], []))
        for lease in first.lease, second.lease, third.lease:
            ring.end(lease, None)
        ring.free([pages[3]], None)
        assert reap_until(ring, lambda: in_use(ring) == 0) == []


def test_settle_waits_for_the_stock_and_for_side_pages_that_are_not_taken():
    with testing.daemon(page_size=PAGE, n_pages=256, sides="1") as daemon, \
            daemon.connect(any_geometry=True) as client:
        ring = stocked(client)
        lease = begin(ring, 64).lease
        kept, spare = ring.pages(2)
        for page in kept, spare:
            assert ring.commit(lease, 64, NONE, (WORD, 1), False, [(3, 0, page)])
        ring.end(lease, (WORD, 1))
        ring.announce(False)
        client.raise_fence(WORD, 1)
        ring.settle()
        assert not ring.owes and ring.not_taken() == [spare]
        ring.free([spare], None)
        ring.settle()
        assert in_use(ring) == 0


def test_side_pages_of_a_commit_that_is_refused_are_the_session_s_again():
    with testing.daemon(page_size=PAGE, n_pages=64, sides="1") as daemon, \
            daemon.connect(any_geometry=True) as client:
        ring = Ring(client)
        ring.space = client.namespace(model="ring")._id
        lease = begin(ring, 64).lease
        assert ring.pages(64) is None
        pages = ring.pages(2)
        # The first would be a side page, but not the second, beyond what is computed.
        ticket = ring.commit(lease, 32, NONE, (WORD, 1), False,
                             [(1, 0, pages[0]), (2, 0, pages[1])])
        assert ticket and ring.not_taken() == []
        client.raise_fence(WORD, 1)
        while not (back := ring.not_taken()):
            pass
        (refused, why), = ring.reap()
        assert (refused, why.reason, back) == (ticket, "side_place", pages)
        ring.free(pages, None)
        ring.end(lease, None)
        assert reap_until(ring, lambda: in_use(ring) == 0) == []
