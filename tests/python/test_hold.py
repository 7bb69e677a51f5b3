# SPDX-License-Identifier: Apache-2.0
"""A request's hold on the pool: kvtrunk.engine._hold."""
from kvtrunk import Error, Stale
from kvtrunk.engine import Hold


def holds():
    """Two that publish a page each, with tickets 1 and 2."""
    made = Hold(), Hold()
    for ticket, hold in enumerate(made, 1):
        hold.published(ticket, 1, 16)
    return made


def test_a_refused_commit_is_that_of_one_hold():
    refused, other = holds()
    assert refused.refused(1, Stale("gone")) and not other.refused(1, Stale("gone"))
    assert not refused.shared and other.shared
    assert not refused.damaged


def test_a_damaged_page_damages_the_hold_that_reads_it_and_stays():
    damaged, other = holds()
    damaged.published(3, 2, 16)
    for ticket, reason in ((1, "damaged"), (3, "none")):
        for hold in damaged, other:
            hold.refused(ticket, Error("refused", reason=reason))
    assert damaged.damaged and not other.damaged
