# SPDX-License-Identifier: Apache-2.0
"""Log lines that would come at every step come once a minute."""
from kvtrunk import _limited_log
from kvtrunk._limited_log import LimitedLog


def saying(now):
    said = []
    return LimitedLog(lambda form, *words: said.append(form % words), lambda: now[0]), said


def test_a_line_is_repeated_after_a_minute_and_not_before():
    now = [5.0]
    warn, said = saying(now)
    for _ in range(3):
        warn("the pool is full")
        now[0] += _limited_log.EVERY_S / 3
    assert said == ["kvtrunk: the pool is full"]
    warn("the pool is full")
    assert len(said) == 2


def test_lines_of_one_kind_are_one_and_of_two_kinds_two():
    warn, said = saying([0.0])
    warn("3 pages are missing", "pages")
    warn("4 pages are missing", "pages")
    warn("4 leases are missing", "leases")
    assert said == ["kvtrunk: 3 pages are missing", "kvtrunk: 4 leases are missing"]


def test_texts_without_end_take_no_memory_without_end():
    warn, said = saying([0.0])
    for n in range(1000):
        warn(f"request {n} is refused")
    assert len(said) == 1000 and len(warn._said) <= _limited_log._KINDS_MAX
