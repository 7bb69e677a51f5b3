# SPDX-License-Identifier: Apache-2.0
"""Questions of docs/gpu.md about vLLM on a device, answered on this machine's:

    ENGINE_PYTHON=PYTHON tests/engines/run vllm tests/engines/vllm/device.py -s

PYTHON is an interpreter with vLLM, pytest and cffi. Without a device the same runs on the CPU: that
tests this file. It has run on no device. A wrong page changes a whole text; rounding, which depends
on what is computed together, changes some. So texts are counted, beside a control: a second run of
the engine alone.
"""
import functools
import random

import model
import pytest
from conftest import PAGE, flags
from engine import expect_nothing_held, prompt

from kvtrunk import testing

N, SYSTEM, SAID = 24, 256, 24


@functools.cache
def devices():
    import torch

    return torch.cuda.device_count()


def kind():
    return "bfloat16" if devices() else "float32"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return model.write(tmp_path_factory.mktemp("model"), layers=4, heads=8, kv_heads=4,
                       head_dim=128 if devices() else 64, dtype=kind())


def printed(folder, ranks):
    """Options of a daemon, and what each of three engines is started with, as `flags` prints them."""
    daemon, command = flags(folder, "--device", "cuda" if devices() else "cpu", "--engines", "3",
                            "--pool-bytes", "64M", "--tensor-parallel-size", str(ranks))
    return daemon, {"command": command}


def texts(round_):
    """Prompts that share a beginning, the same for each engine but for their order."""
    chance, system = random.Random(round_), prompt(round_, SYSTEM)
    return [system + prompt(1000 * round_ + i, chance.randrange(20, 200)) for i in range(N)]


def ask(engines, asked):
    """All of them at the same time, each in an order of its own. Returns each engine's answers."""
    orders = [random.Random(i).sample(range(N), N) for i in range(len(engines))]
    for engine, order in zip(engines, orders):
        engine.ask(do="generate", prompts=[asked[i] for i in order], max_tokens=SAID)
    answers = [engine.answer() for engine in engines]
    return [[answer[order.index(i)] for i in range(N)] for answer, order in zip(answers, orders)]


def of_others(daemon):
    """Positions that an engine found and another one computed."""
    with daemon.connect(any_geometry=True) as observer:
        return observer.stats().shared_hit_positions


def equal(answers, cold):
    return sum(a["tokens"] == b["tokens"] for a, b in zip(answers, cold))


@pytest.mark.parametrize("eager", [True, False], ids=["eager", "graphs"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_two_engines_say_what_one_alone_says(folder, start, eager, ranks):
    if ranks > 1 and devices() < ranks:
        pytest.skip(f"needs {ranks} devices")
    made, options = printed(folder, ranks)
    options["enforce_eager"] = eager
    with testing.daemon(**made) as daemon:
        # One after the other: what is free decides whether vLLM starts.
        alone = start(**options).wait()
        both = [start(daemon, **options).wait() for _ in range(2)]
        found = 0
        for round_ in range(2):
            asked = texts(round_)
            cold = ask([alone], asked)[0]
            alone.ask(do="reset")
            alone.answer()
            control = equal(ask([alone], asked)[0], cold)
            shared = ask(both, asked)
            found += sum(answer["cached"] for answers in shared for answer in answers)
            same = [equal(answers, cold) for answers in shared]
            print(f"\n{'eager' if eager else 'graphs'}, {ranks} rank(s), round {round_}: of {N} "
                  f"texts of one engine alone, equal: its own again {control}, two engines {same}; "
                  f"positions found so far {found}, of the other engine {of_others(daemon)}")
            assert min(same) >= control - N // 4
        assert found >= SYSTEM // PAGE * PAGE * N
        for line in both[0].said().splitlines():
            if "kvtrunk: session" in line:
                print(line)
        for engine in both:
            engine.kill()
        expect_nothing_held(daemon)
