# SPDX-License-Identifier: Apache-2.0
"""Data-parallel ranks of one server: each is an engine of its own on the pool. Those of a model with
experts compute in step, with dummy batches where a rank has no work."""
import conftest
import model
import pytest
import ranks
from conftest import PAGE, geometry
from engine import expect_nothing_held, prompt
from faults import changed, sealed_by, snapshot
from sharing import SEEDS, whole

from kvtrunk import testing

TWO = {"data_parallel_size": 2}


class Ranks(conftest.Engine):
    program = "serve_ranks.py"


@pytest.fixture(scope="module", params=[{}, model.experts()], ids=["dense", "experts"])
def shape(request):
    return request.param


@pytest.fixture(scope="module")
def folder(shape, tmp_path_factory):
    return model.write(tmp_path_factory.mktemp("model"), **shape)


@pytest.fixture(scope="module")
def daemon(shape):
    """Without room for all that both ranks are asked for at once. The last chunk of a prompt is
    waited for, too."""
    with testing.daemon(coalesce_patience_ms=30_000, coalesce_threshold=PAGE,
                        **geometry(n_pages=160)) as made:
        yield made


@pytest.fixture(scope="module")
def private(start):
    return start(processes=1)


@pytest.fixture(scope="module")
def server(daemon, folder, private, tmp_path_factory):
    log = tmp_path_factory.mktemp("logs") / "ranks.log"
    made = Ranks(folder, log, daemon, max_num_batched_tokens=128, **TWO)
    private.wait()
    yield made.wait()
    made.kill()


def test_each_rank_is_an_engine_of_its_own(daemon, server):
    assert daemon.kvtctl("clients").count("rank 1 of 2") == 2


def test_a_rank_reuses_what_only_another_computed(daemon, private, server):
    for first in (0, 1):
        text = prompt(next(SEEDS))
        expected = private.generate(text)[0]["tokens"]
        assert server.generate(text, ranks=[first])[0] == {"tokens": expected, "cached": 0}
        assert server.generate(text, ranks=[1 - first])[0] == {"tokens": expected,
                                                               "cached": whole(text)}
    expect_nothing_held(daemon)


def test_one_prompt_in_both_at_once_is_computed_once(daemon, private, server):
    text = prompt(next(SEEDS), 600)
    expected = private.generate(text)[0]["tokens"]
    answers = server.generate(text, text, ranks=[0, 1])
    assert [answer["tokens"] for answer in answers] == [expected] * 2
    assert sorted(answer["cached"] for answer in answers) == [0, whole(text)]
    expect_nothing_held(daemon)


def test_a_rank_without_work_writes_no_page(daemon, server):
    """While another one decodes: what it runs meanwhile are dummy batches, if anything."""
    pages, _ = sealed_by(daemon, server, prompt(next(SEEDS)))
    text = prompt(next(SEEDS))
    with daemon.connect(any_geometry=True) as observer:
        before = snapshot(observer)
        server.generate(text, max_tokens=100, ranks=[1])
        written = changed(before, observer)
    assert not written & set(pages)
    assert len(written) <= -(-(len(text) + 100) // PAGE)


def test_a_pool_too_small_for_both_gives_the_private_texts(daemon, private, server):
    texts = [prompt(next(SEEDS), 500 + 16 * i) for i in range(16)]
    assert sum(map(len, texts)) > 160 * PAGE
    expected = [answer["tokens"] for answer in private.generate(*texts, max_tokens=60)]
    answers = server.generate(*texts, max_tokens=60, ranks=[0, 1])
    assert [answer["tokens"] for answer in answers] == expected
    expect_nothing_held(daemon)


def test_a_killed_rank_gives_all_pages_back(daemon, private, server, shape, start):
    """An engine without ranks reads what the rank had computed. Ranks with experts do not
    share with it: their sums have another order."""
    if shape:
        pytest.skip("the dense ranks show it")
    other = start(daemon, processes=1).wait()
    ranks.kill_one(daemon, private, other, server, "EngineCore_DP0", 700)
