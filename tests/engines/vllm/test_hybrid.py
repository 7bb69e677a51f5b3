# SPDX-License-Identifier: Apache-2.0
"""Engines of models with windows or states beside full attention, which keep side pages: as a gpt-oss,
a Gemma 4, a Qwen3-Next and a Granite 4 Small. Their blocks are vLLM's choice, with states no power
of two."""
import math
import random

import conftest
import faults
import model
import pytest
import storing
from engine import all_pages_are_back, expect_nothing_held, prompt, started, until
from kills import kill_at, order  # noqa: F401
from storing import PATIENT, store  # noqa: F401

from kvtrunk import testing

KINDS = {
    "gpt-oss": {"sides": "4"},
    "Gemma 4": {"sides": ",".join(["2"] * 10)},
    "Qwen3-Next": {"sides": "1,1,1", "dtype": "bfloat16"},
    "Granite 4 Small": {"sides": ",".join(["1"] * 9)},
}
"""By the name of a model, the sides that `flags` says, and in what it is computed."""
WINDOW = 128
CHUNK = 256
ROUNDING = 0.126
"""Between the logprobs of two tokens, in bf16: two steps of logits from 8 to 16, and float32's."""
HEADS = [prompt(90 + i, 700) for i in range(4)]


@pytest.fixture(scope="module", params=KINDS)
def name(request):
    return request.param


@pytest.fixture(scope="module")
def kind(name):
    return {"dtype": "float32", **KINDS[name]}


@pytest.fixture(scope="module")
def folder(name, tmp_path_factory):
    made = (model.states(name) if name in model.STATES else
            model.windows(name, sliding_window=WINDOW))
    return model.write(tmp_path_factory.mktemp("model"), **made)


@pytest.fixture(scope="module")
def options(name):
    """Options of each engine. vLLM's Mamba-2 on CPUs takes one block a step."""
    return {"max_num_batched_tokens": CHUNK,
            "block_size": CHUNK if name == "Granite 4 Small" else 32}


@pytest.fixture(scope="module")
def said(folder, options):
    """Output of `flags`: options of the daemon, and the command of an engine."""
    return conftest.flags(folder, "--block-size", str(options["block_size"]))


@pytest.fixture(scope="module")
def page(said):
    """Positions of a page. An engine that chooses another one is refused."""
    return int(said[0]["page_size"])


@pytest.fixture(scope="module")
def daemon(said, kind, page):
    said, engine = said
    assert "--disable-hybrid-kv-cache-manager" not in engine
    assert said["sides"] == kind["sides"]
    del said["pool_bytes"]
    n_pages = 3072 // page * (1 + len(kind["sides"].split(",")))
    with testing.daemon(supervise=True, coalesce_threshold=0,  # it waits for whole loads
                        **{**said, "n_pages": n_pages, "max_private_pages": n_pages}) as made:
        yield made


@pytest.fixture(scope="module")
def engines(daemon, options, order, start):  # noqa: F811
    """One with a cache of its own, one that shares the daemon's, and one that will be killed."""
    return started(start(processes=1, num_gpu_blocks_override=2048, **options),
                   start(daemon, processes=1, environment=PATIENT, **options),
                   start(daemon, environment={"KILL": str(order), **PATIENT}, **options))


def test_b_reuses_what_only_a_computed(daemon, engines, page):
    private, b, a = engines
    text = prompt(1, 600)
    expected = private.generate(text, max_tokens=40)[0]["tokens"]
    assert a.generate(text, max_tokens=40)[0] == {"tokens": expected, "cached": 0}
    whole = (len(text) - 1) // page * page
    assert b.generate(text, max_tokens=40)[0] == {"tokens": expected, "cached": whole}
    more = text + expected + prompt(2, 40)
    expected = private.generate(more, salt="cold")[0]["tokens"]
    answer = b.generate(more)[0]
    assert answer["tokens"] == expected and answer["cached"] >= whole
    expect_nothing_held(daemon)


def test_side_pages_in_a_wrong_order_give_other_tokens(daemon, engines, page):
    """So the other tests would notice them."""
    private, b, a = engines
    text = prompt(7, 600)
    expected = private.generate(text, max_tokens=40)[0]["tokens"]
    assert a.generate(text, max_tokens=40)[0]["tokens"] == expected
    whole = (len(text) - 1) // page * page
    for wrong in True, False:
        b.ask(do="misplace", wrong=wrong)
        b.answer()
        answer = b.generate(text, max_tokens=40)[0]
        assert answer["cached"] == whole and (answer["tokens"] != expected) == wrong
    expect_nothing_held(daemon)


def test_a_third_prompt_reuses_the_head_of_two(daemon, engines, page):
    """The second one leaves a known path where no point is, and makes one there."""
    private, b, a = engines
    head = prompt(3, 5 * page)
    for i, (engine, cached) in enumerate(((a, 0), (b, 0), (a, 5 * page))):
        text = head + prompt(10 + i, page + 7)
        expected = private.generate(text, salt=str(i))[0]["tokens"]
        assert engine.generate(text)[0] == {"tokens": expected, "cached": cached}
        until(all_pages_are_back, daemon)


def prompts(page, n=200):
    """Prompts with common heads: of a page and less, of whole pages, around their ends, and longer than
    a window; they leave a head inside a page, or at its end."""
    chance, made = random.Random(page), []
    for i in range(n):
        cut = chance.choice([0, page, 2 * page, 3 * page, chance.randrange(3 * page)])
        length = max(cut + 1, chance.choice([
            chance.randrange(1, page), page, 2 * page, 3 * page + 1, 4 * page - 1,
            chance.randrange(1, min(700, 5 * page))]))
        made.append(chance.choice(HEADS)[:cut] + prompt(1000 + i, length - cut))
    return made


def rounds(cold, tokens):
    """Whether the first token that differs was worth as much to the cold engine, but for rounding."""
    at = next(i for i, (own, other) in enumerate(zip(cold["tokens"], tokens)) if own != other)
    worth = dict(cold["logprobs"][at])
    return worth[cold["tokens"][at]] - worth.get(tokens[at], -math.inf) <= ROUNDING


def test_two_engines_answer_as_a_cold_one(daemon, engines, kind, page):
    """In bf16 but for rounding, or as one with vLLM's own cache: a state rounds otherwise in other
    chunks, and a layer's choice of an expert may depend on that."""
    private, *sharing = engines
    reused, wrong = 0, []
    for i, text in enumerate(prompts(page)):
        cold = private.generate(text, max_tokens=4, salt=f"cold {i}", logprobs=8)[0]
        answer = sharing[i % 2].generate(text, max_tokens=4)[0]
        right = [cold["tokens"]]
        if kind["dtype"] != "float32":
            right.append(private.generate(text, max_tokens=4)[0]["tokens"])
        if answer["tokens"] not in right and (kind["dtype"] == "float32" or
                                              not rounds(cold, answer["tokens"])):
            wrong.append((i, len(text), answer))
        reused += answer["cached"]
    assert reused > 0 and not wrong
    expect_nothing_held(daemon)


def test_both_finish_all_in_a_pool_for_two_thirds(daemon, engines, kind, page):
    private, *sharing = engines
    said, n = 60, 6
    asked = [[prompt(100 * i + j, 500) for j in range(n)] for i in (1, 2)]
    for engine, texts in zip(sharing, asked):
        engine.ask(do="generate", prompts=texts, max_tokens=said)
    for engine, texts in zip(sharing, asked):
        answers = [answer["tokens"] for answer in engine.answer()]
        expected = [answer["tokens"] for answer in private.generate(*texts, max_tokens=said)]
        if kind["dtype"] == "float32":  # others round otherwise in other batches
            assert answers == expected
        assert [len(tokens) for tokens in answers] == [said] * n
    until(all_pages_are_back, daemon)


# With its point, without which nothing would be reused.
test_what_other_traffic_evicted_is_loaded = storing.test_what_other_traffic_evicted_is_loaded


test_no_engine_writes_a_sealed_page_and_what_else_does_is_found = \
    faults.test_no_engine_writes_a_sealed_page_and_what_else_does_is_found


def test_a_kill_in_prefill(daemon, engines, order):  # noqa: F811
    kill_at("COMMIT", "EngineCore", daemon, order, engines)


def test_a_kill_between_alloc_and_commit(daemon, engines, start, kind, options, order):  # noqa: F811
    private, b, _ = engines
    a = start(daemon, environment={"KILL": str(order)}, **options)
    kill_at("ALLOC", "EngineCore", daemon, order, [private, b, a])


def test_the_daemon_is_killed_and_kept(daemon, engines, page):
    private, b, _ = engines
    text = prompt(5, 600)
    expected = private.generate(text)[0]["tokens"]
    assert b.generate(text)[0]["tokens"] == expected
    daemon.kill()
    whole = (len(text) - 1) // page * page
    assert b.generate(text)[0] == {"tokens": expected, "cached": whole}
    expect_nothing_held(daemon)
