# SPDX-License-Identifier: Apache-2.0
"""Common prefixes of prompts, in numbers that can be counted by hand."""
from array import array

import pytest

import kvtrunk
from kvtrunk import testing

# Pages of 2: (1,2), behind it (3,4) and (9,9), and (7,7); a token behind each prompt's last page.
PROMPTS = [[1, 2, 3, 4, 5], array("I", [1, 2, 9, 9, 9]), (7, 7, 7), [1, 2, 3, 4, 5],
           [1, 2, 9, 9, 9]]


def test_a_batch_of_five():
    batch = kvtrunk.analyze(PROMPTS, page_size=2)
    assert (batch.requests, batch.input_positions) == (5, 23)
    assert (batch.unique_positions, batch.shared_positions) == (13, 6)
    assert batch.hit_positions == 10 and batch.hit_rate == pytest.approx(10 / 23)
    assert (batch.need_pages, batch.ordered_need_pages) == (6, 4)
    assert batch.order == [0, 3, 1, 4, 2]
    assert [(pool.pages, pool.hit_positions) for pool in batch.pools] == [(4, 6), (5, 6), (6, 10)]
    assert all(pool.ordered_hit_rate == batch.hit_rate for pool in batch.pools)
    assert batch.cached_positions is None


def test_answers_take_room():
    alone = kvtrunk.analyze(PROMPTS, page_size=2, pools=[9])
    both = kvtrunk.analyze(PROMPTS, outputs=[3] * 5, page_size=2, concurrency=2)
    assert [pool.pages for pool in alone.pools] == [9]
    # Two prompts of one page in common, each with a page of its own and two that it shares with none.
    assert both.pools[0].pages == 1 + 1 + 2 * 3


def test_what_a_daemon_has():
    with testing.daemon(n_layers=2, n_kv_heads=2, head_dim=8, page_size=2) as daemon:
        with daemon.connect(any_geometry=True) as client:
            with client.namespace(salt="ours").begin(PROMPTS[0]) as seq:
                seq.commit(5)
        batch = kvtrunk.analyze(PROMPTS, socket=daemon.socket, namespace="ours")
        assert batch.cached_positions == 4 + 2 + 4 + 2
        assert batch.page_size == 2
        assert kvtrunk.analyze(PROMPTS, socket=daemon.socket).cached_positions == 0


def test_mistakes():
    with pytest.raises(kvtrunk.InvalidArgument, match="up to 4 pages"):
        kvtrunk.analyze(PROMPTS, page_size=2, pools=[3])
    with pytest.raises(kvtrunk.InvalidArgument, match="1 outputs for 5 prompts"):
        kvtrunk.analyze(PROMPTS, outputs=[1])
    with pytest.raises(kvtrunk.InvalidArgument, match="holds no request"):
        kvtrunk.analyze([])
    with pytest.raises(TypeError, match="row of integers"):
        kvtrunk.analyze(["text"])
    with pytest.raises(ValueError, match="keys are in"):
        kvtrunk.analyze([[-1]])
    with pytest.raises(kvtrunk.Error, match="cannot connect to /none/such"):
        kvtrunk.analyze(PROMPTS, socket="/none/such")
