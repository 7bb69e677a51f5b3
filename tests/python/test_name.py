# SPDX-License-Identifier: Apache-2.0
"""The name under which engines share: kvtrunk.engine._name."""
import contextlib
import json

import pytest

from kvtrunk import testing
from kvtrunk.engine._name import Name

CONFIG = b"config"


@pytest.fixture(scope="module")
def daemon():
    with testing.daemon(page_size=16, n_pages=64) as made:
        yield made


@pytest.fixture
def engine(daemon):
    """Makes engines: a name and a client of its own."""
    with contextlib.ExitStack() as stack:
        def make(files="f", config=CONFIG):
            client = stack.enter_context(daemon.connect(any_geometry=True))
            name = Name(config, files)
            name.now = lambda: name.value(client)
            name.client = client
            return name
        yield make


def test_equal_files_and_config_are_one_name(engine):
    one = engine("f1").now()
    assert engine("f1").now() == one and len(one) == 32
    assert engine("f2").now() != one
    assert engine("f1", b"other").now() != one


def test_random_weights_are_alone_until_a_version_of_a_run_is_given(engine, monkeypatch):
    """Two trainers may count their versions alike."""
    names = []
    for run in ("", "one", "one", "other"):
        monkeypatch.setenv("KVTRUNK_RUN", run)
        names.append(engine(""))
    none, a, b, other = names
    assert all(name.alone for name in names) and a.now() == a.now() != b.now()
    assert "KVTRUNK_RUN=NAME" in none.version("v1") and none.alone
    assert not any(name.version("v1") for name in (a, b, other))
    assert not a.alone and a.now() == b.now() != other.now()


def test_a_run_names_versions_of_files_too(engine, monkeypatch):
    names = []
    for run in ("", "one", "one"):
        monkeypatch.setenv("KVTRUNK_RUN", run)
        names.append(engine("f9"))
        names[-1].unknown()
        assert not names[-1].version("v1")
    none, a, b = (name.now() for name in names)
    assert none != a == b


def test_weights_that_change_are_unknown_until_they_are_known(engine):
    a, b = engine("f3"), engine("f3")
    before = a.now()
    a.unknown()
    during = a.now()
    assert during not in (before, b.now())
    a.unknown()  # the next part of them
    assert a.now() != during
    a.files("f4")
    b.unknown()
    b.files("f4")
    assert a.now() == b.now() != before
    a.files(None)
    assert a.alone


def test_unknown_weights_are_alone_whatever_version_is_given(engine):
    a = engine(None)
    assert a.alone and "files" in a.version("v1") and a.alone


def test_a_version_names_weights_with_what_they_were_made_from(engine):
    names = [engine(files) for files in ("f5", "f5", "f6")]
    for name in names:
        name.unknown()
        assert not name.version("v1")
    a, b, other = (name.now() for name in names)
    assert a == b != other
    names[0].unknown()
    names[0].version("v2")
    assert names[0].now() != a


def test_a_second_update_of_one_version_is_another_name(engine):
    """The first may have been a part of it."""
    a, b = engine("f7"), engine("f7")
    a.unknown()
    a.version("v1")
    first = a.now()
    assert not a.version("v1") and a.now() == first  # said once more, and nothing changed
    a.unknown()
    a.version("v1")
    assert a.now() != first
    for _ in range(2):
        b.unknown()
        b.version("v1")
    assert b.now() == a.now()


def test_after_a_failure_only_files_make_weights_known(engine):
    a = engine("f8")
    a.unknown()
    a.failed()
    assert a.alone and "files" in a.version("v1") and a.alone
    a.files("f8")
    assert a.now() == engine("f8").now()
    a.unknown()
    assert not a.version("v1") and not a.alone


def test_engines_that_forget_at_the_same_time_share_again(engine):
    a, b = engine("g1"), engine("g1")
    before = a.now()
    assert b.now() == before
    assert a.forget()
    assert a.now() != before and b.now() == before
    assert b.forget()
    assert b.now() == a.now()
    assert engine("g1").now() == a.now()  # started since


def test_one_that_forgets_again_is_ahead_of_the_other(engine):
    a, b = engine("g2"), engine("g2")
    first = [a.now(), b.now()]
    for name in (a, a, b):
        name.forget()
        first.append(name.now())
    # b saw nothing of a's: it is where a is now, not where a was.
    assert first[0] == first[1] != first[2] != first[3] == first[4]


def test_forgetting_after_new_weights_is_no_second_name(engine):
    """A trainer updates each engine and flushes it."""
    a, b = engine("g3"), engine("g3")
    for name in (a, b):
        name.now()
        name.unknown()
        name.files("g4")
        assert not name.forget()
        name.now()
    assert a.now() == b.now()
    assert a.forget() and a.now() != b.now()


def test_one_alone_forgets_too(engine):
    a = engine(None)
    before = a.now()
    assert a.forget() and a.alone and a.now() != before


def test_a_name_that_no_daemon_heard_forgets_at_the_next(engine, daemon):
    a = engine("g5")
    before = a.now()
    a.client.close()
    a.forget()
    a.forsake()
    with daemon.connect(any_geometry=True) as other:
        assert a.value(other) != before
        assert a.value(other) == engine("g5").now()


def test_what_was_forgotten_stays_so_under_a_daemon_that_starts_cold(engine):
    """A store may have kept it, by its name."""
    a, b = engine("f9"), engine("f9")
    old = a.now()
    for _ in range(2):
        a.forget()
        a.now()
    last = a.now()
    with testing.daemon(page_size=16, n_pages=64) as cold, \
            cold.connect(any_geometry=True) as client:
        a.forsake()
        assert a.value(client) == last != old
        b.forsake()  # which forgot nothing, and begins behind it
        assert b.value(client) == last
        a.forget()
        assert a.value(client) != last


def test_weights_of_the_past_come_back_as_they_were_forgotten(engine):
    a = engine("f10")
    a.now()
    a.forget()
    last = a.now()
    a.files("f11")
    a.now()
    with testing.daemon(page_size=16, n_pages=64) as cold, \
            cold.connect(any_geometry=True) as client:
        a.forsake()
        a.files("f10")
        assert a.value(client) == last


def test_a_name_of_the_past_leaves_no_namespace_open(engine, daemon):
    def opened():
        return sum(space["opened"] for space in json.loads(daemon.kvtctl("--json", "namespaces")))

    a = engine("g6")
    a.now()
    held = opened()
    for i in range(4):
        a.files(f"h{i}")
        a.now()
    assert opened() == held
