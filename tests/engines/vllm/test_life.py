# SPDX-License-Identifier: Apache-2.0
"""Engines that are killed, pools that are full, daemons that end."""
import os
import signal

import pytest
from conftest import PAGE, geometry
from engine import all_pages_are_back, counters, prompt, until

from kvtrunk import testing


@pytest.fixture(scope="module")
def private(start):
    return start(processes=1, max_num_batched_tokens=64)


def kill_in(daemon, engine, text, ready, victims):
    """Kill processes of an engine while it is at work on a prompt."""
    engine.ask(do="generate", prompts=[text], max_tokens=400)
    until(ready, daemon)
    for name in victims:
        os.kill(engine.find(name), signal.SIGKILL)
    until(all_pages_are_back, daemon)
    assert daemon.kvtctl("audit").startswith("clean")
    engine.kill()


def test_others_continue_when_an_engine_is_killed(daemon, start, private):
    slow = {"max_num_batched_tokens": 64, "max_num_seqs": 4}
    b = start(daemon, processes=1, **slow)
    victims = [start(daemon, **slow) for _ in range(2)]
    for engine in (b, *victims):
        engine.wait()
    whole_prompt = 1500

    def in_prefill(daemon):
        return 4 <= counters(daemon).cached_pages - before.cached_pages

    def in_decode(daemon):
        return whole_prompt // PAGE + 2 <= counters(daemon).cached_pages - before.cached_pages

    for engine, ready, names in ((victims[0], in_prefill, ["EngineCore"]),
                                 (victims[1], in_decode, ["Worker"])):
        before = counters(daemon)
        text = prompt(1000 + len(names[0]), whole_prompt)
        kill_in(daemon, engine, text, ready, names)
        expected = private.generate(text, max_tokens=20)[0]["tokens"]
        answer = b.generate(text, max_tokens=20)[0]
        assert answer["tokens"] == expected
        assert answer["cached"] >= 4 * PAGE  # what the killed engine had computed
    again = start(daemon, processes=1)
    assert again.generate(text, max_tokens=20)[0]["tokens"] == expected
    assert again.generate(text, max_tokens=20)[0]["cached"] == (whole_prompt - 1) // PAGE * PAGE


def test_two_engines_finish_all_in_a_pool_too_small_for_one(start, private):
    asked = [[prompt(2000 + 100 * who + i, 150) for i in range(8)] for who in range(2)]
    said = 200
    pages_each = -(-(150 + said) // PAGE)
    n_pages = 7 * pages_each
    with testing.daemon(**geometry(n_pages=n_pages, max_private_pages=n_pages)) as small:
        engines = [start(small, processes=1, max_model_len=512) for _ in range(2)]
        for engine in engines:
            engine.wait()
        for engine, prompts in zip(engines, asked):
            engine.ask(do="generate", prompts=prompts, max_tokens=said)
        for engine, prompts in zip(engines, asked):
            expected = [answer["tokens"] for answer in private.generate(*prompts, max_tokens=said)]
            assert [answer["tokens"] for answer in engine.answer()] == expected
        until(all_pages_are_back, small)
        preemptions = 0
        for engine in engines:
            engine.ask(do="metric", name="vllm:num_preemptions")
            preemptions += engine.answer()
        assert preemptions > 0
        for engine in engines:
            engine.kill()


def test_a_daemon_that_begins_again_costs_a_computation(start, private):
    with testing.daemon(**geometry()) as lost:
        engine = start(lost, max_num_batched_tokens=64)
        text = prompt(3000, 1500)
        expected = private.generate(text, max_tokens=100)[0]["tokens"]
        assert engine.generate(text, max_tokens=100)[0]["tokens"] == expected
        other = prompt(3001, 1500)
        expected = private.generate(other, max_tokens=500)[0]["tokens"]
        with lost.connect(observe=True) as observer:
            before = observer.counters().cached_pages
            engine.ask(do="generate", prompts=[other], max_tokens=500)  # ends long after the kill
            while observer.counters().cached_pages < before + 4:  # in prefill, or later
                pass
        lost.kill()
        lost.start()
        assert engine.answer()[0]["tokens"] == expected
        assert engine.said().count("All requests are computed again") == 1
        # The first prompt is not cached any more, the second is.
        assert engine.generate(text, max_tokens=100)[0]["cached"] == 0
        assert engine.generate(other)[0]["cached"] > 0
        engine.kill()


def test_a_supervised_daemon_is_a_pause(start, private):
    with testing.daemon(supervise=True, **geometry()) as kept:
        engine = start(kept, processes=1, max_num_batched_tokens=64)
        text = prompt(4000, 1500)
        expected = private.generate(text, max_tokens=100)[0]["tokens"]
        engine.ask(do="generate", prompts=[text], max_tokens=100)
        until(lambda: counters(kept).cached_pages >= 4)
        kept.kill()
        assert engine.answer()[0]["tokens"] == expected
        assert engine.generate(text)[0]["cached"] > 0
        assert "computed again" not in engine.said()
        engine.kill()
