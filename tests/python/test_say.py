# SPDX-License-Identifier: Apache-2.0
"""Log lines that would come at every step come once a minute."""
from kvtrunk import _say
from kvtrunk._say import Say


def saying(now):
    said = []
    return Say(lambda form, *words: said.append(form % words), lambda: now[0]), said


def test_a_line_is_repeated_after_a_minute_and_not_before():
    now = [5.0]
    say, said = saying(now)
    for _ in range(3):
        say("the pool is full")
        now[0] += _say.EVERY_S / 3
    assert said == ["kvtrunk: the pool is full"]
    say("the pool is full")
    assert len(said) == 2


def test_lines_of_one_kind_are_one_and_of_two_kinds_two():
    say, said = saying([0.0])
    say("3 pages are missing", "pages")
    say("4 pages are missing", "pages")
    say("4 leases are missing", "leases")
    assert said == ["kvtrunk: 3 pages are missing", "kvtrunk: 4 leases are missing"]


def test_texts_without_end_take_no_memory_without_end():
    say, said = saying([0.0])
    for n in range(1000):
        say(f"request {n} is refused")
    assert len(said) == 1000 and len(say._said) <= _say._KINDS_MAX
