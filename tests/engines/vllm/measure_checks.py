# SPDX-License-Identifier: Apache-2.0
"""Figures of spot checks: how near right pages come to the bounds in 10,000 checks of two engines,
in other chunks, batches and numbers of threads; and what a check and none cost.

    tests/engines/run vllm tests/engines/vllm/measure_checks.py -s
"""
import itertools
import os
import random
import statistics
import time
from array import array

import model
import pytest
from conftest import PAGE, flags, geometry
from engine import counters, prompt

from kvtrunk import testing
from kvtrunk.engine._check import Checks

CHECKS = int(os.environ.get("CHECKS", "10000"))
SECONDS = float(os.environ.get("SECONDS", "inf"))  # of a type, then it ends with fewer
SEED = os.environ.get("SEED", "0")  # of other prompts
PROMPTS, BATCH = 64, 50


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_right_pages_pass(dtype, start, tmp_path):
    folder = model.write(tmp_path / "model", layers=8, dtype=dtype)
    with testing.daemon(**flags(folder, "--pool-bytes", "256M")[0]) as daemon:
        a = start(daemon, folder=folder, processes=1)
        b = start(daemon, folder=folder, processes=1, max_num_batched_tokens=333,
                  max_num_seqs=64, environment={"KVTRUNK_CHECK_EVERY": "1", "OMP_NUM_THREADS": "2"})
        b.ask(do="remember")
        assert b.answer() is True
        chance = random.Random(f"{dtype} {SEED}")
        begin = time.monotonic()
        for round_ in itertools.count():
            if round_ % 40 == 0:  # other prompts; each is asked with many tails
                texts = [prompt(PROMPTS * round_ + i, chance.randrange(PAGE, 6 * PAGE))
                         for i in range(PROMPTS)]
                a.generate(*texts, max_tokens=1)
            b.generate(*[[*chance.choice(texts), *prompt(BATCH * round_ + i, chance.randrange(1, 24))]
                         for i in range(BATCH)], max_tokens=1)
            b.ask(do="excess")
            findings = b.answer()
            assert counters(daemon).suspected_pages == 0
            if len(findings) >= CHECKS or time.monotonic() - begin >= SECONDS:
                break
        worst, made = sorted(findings), len(findings)
        print(f"\n{dtype}: {made} checks in {time.monotonic() - begin:.0f} s, of the bound: median "
              f"{worst[made // 2]:.3g}, 99.9 % {worst[made * 999 // 1000]:.3g}, worst {worst[-1]:.3g}")
        for engine in (a, b):
            engine.kill()


@pytest.mark.parametrize("layers", [4, 32])
def test_what_a_check_costs(layers, start, tmp_path):
    """The first token of a prompt that is cached but for its last tokens, with a check and without:
    the same engine, in turns."""
    folder = model.write(tmp_path / "model", layers=layers)
    with testing.daemon(**flags(folder, "--pool-bytes", "256M")[0]) as daemon:
        a, b = start(daemon, folder=folder, processes=1), start(daemon, folder=folder, processes=1)
        b.ask(do="remember")
        assert b.answer() is True
        text = prompt(1, 32 * PAGE)
        a.generate(text, max_tokens=1)
        seconds = {0: [], 1: []}
        for i in range(60):
            b.ask(do="check_every", every=i % 2)
            b.answer()
            tail = prompt(100 + i, 8)
            begin = time.perf_counter()
            b.generate([*text, *tail], max_tokens=1)
            seconds[i % 2].append(time.perf_counter() - begin)
        b.ask(do="seconds")
        compared = b.answer()
        without, checked = (1e3 * statistics.median(seconds[every][2:]) for every in (0, 1))
        print(f"\n{layers} layers: first token of {len(text)} + 8 tokens {without:.2f} ms, with a "
              f"check {checked:.2f} ms; of it the comparison "
              f"{1e3 * statistics.median(compared):.2f} ms")
        for engine in (a, b):
            engine.kill()


def test_what_no_check_costs():
    """After a BEGIN that reused pages, when no check is due."""
    with testing.daemon(**geometry()) as daemon, daemon.connect(any_geometry=True) as a, \
            daemon.connect(any_geometry=True) as b:
        space = a.namespace(model="m")
        with space.begin(array("I", range(PAGE + 1))) as sequence:
            sequence.commit(PAGE)
            page = sequence.pages[0]
        checks = Checks(1 << 62)
        checks.due(b, page)
        n = 100_000
        begin = time.process_time()  # it waits for nothing
        for _ in range(n):
            checks.due(b, page)
        print(f"\nno check is due: {1e9 * (time.process_time() - begin) / n:.0f} ns a BEGIN")
