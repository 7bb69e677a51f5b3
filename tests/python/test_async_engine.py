# SPDX-License-Identifier: Apache-2.0
"""examples/python/engine.py works: many requests, cancellations, a store."""
import asyncio
import pathlib
import runpy
import subprocess
import sys

import pytest

import stores
from kvtrunk import testing

pytest.importorskip("numpy")
ROOT = pathlib.Path(__file__).resolve().parents[2]
ENGINE = ROOT / "examples/python/engine.py"
PROMPT = b"All work and no play makes Jack a dull boy. " * 4
PROMPTS = [list(PROMPT[:number] + b"And so on. " * (number % 5) + b"%d" % number)
           for number in range(40, 160, 8)]


@pytest.fixture
def daemon():
    with testing.daemon(n_layers=2, n_kv_heads=2, head_dim=16, kv_type="fp32", n_pages=512) as made:
        yield made


@pytest.fixture
def example():
    return runpy.run_path(str(ENGINE))


def alone(daemon, example, prompt):
    """Answer of a new engine that reuses nothing."""
    with daemon.connect() as client:
        client.namespace(model="toy").remove_all()
        return asyncio.run(example["serve"](example["Engine"](client), [prompt], 20))[0]


def test_each_of_many_requests_is_answered_as_if_it_were_alone(daemon, example):
    expected = [alone(daemon, example, prompt) for prompt in PROMPTS]
    with daemon.connect() as client:
        client.namespace(model="toy").remove_all()
        engine = example["Engine"](client)
        assert asyncio.run(example["serve"](engine, PROMPTS, 20)) == expected
        once = engine.computed
        assert asyncio.run(example["serve"](engine, PROMPTS, 20)) == expected
        assert engine.computed - once < once / 2
        assert client.stats().live_leases == 0


def test_cancelled_requests_leave_nothing_and_change_no_answer(daemon, example):
    expected = [alone(daemon, example, prompt) for prompt in PROMPTS]

    async def cancelled(engine, steps):
        tasks = [asyncio.ensure_future(engine.generate(prompt, 20)) for prompt in PROMPTS]
        for _ in range(steps):
            await asyncio.sleep(0)
        for task in tasks[::2]:
            task.cancel()
        done = await asyncio.gather(*tasks, return_exceptions=True)
        assert done[1::2] == expected[1::2]
        for answer, right in zip(done[::2], expected[::2]):
            assert answer == right or isinstance(answer, asyncio.CancelledError)

    with daemon.connect() as client:
        client.namespace(model="toy").remove_all()
        engine = example["Engine"](client)
        for steps in range(0, 30, 3):
            asyncio.run(cancelled(engine, steps))
        assert asyncio.run(example["serve"](engine, PROMPTS, 20)) == expected
        client.stats()
        assert client.stats().live_leases == client.stats().private_pages == 0


def test_a_store_brings_back_what_was_evicted(daemon, example):
    with stores.running(daemon, "4M", "--min-positions=16") as store, \
            daemon.connect(fetch_wait=60) as client:
        engine = example["Engine"](client)
        first = asyncio.run(example["serve"](engine, PROMPTS, 20))
        store.settled(client.stats().cached_pages)
        client.evict(512)
        engine.computed = 0
        assert asyncio.run(example["serve"](engine, PROMPTS, 20)) == first
        assert store.counts()["loaded_pages"] > 0
        assert engine.computed < sum(len(prompt) + 20 for prompt in PROMPTS)


def test_it_runs_as_a_program(daemon):
    said = subprocess.run([sys.executable, str(ENGINE), "--tokens=3", "one", "two"], check=True,
                          text=True, capture_output=True,
                          env={"KVTRUNK_SOCKET": daemon.socket, "PYTHONPATH": ":".join(sys.path)})
    assert said.stdout.count(": b'") + said.stdout.count(': b"') == 2
