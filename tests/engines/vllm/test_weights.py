# SPDX-License-Identifier: Apache-2.0
"""Whole engines whose models or weights differ, or change while they run: none reads what the
others' weights made, and those with the same weights share again."""
import shutil

import model
import numpy as np
import pytest
from conftest import PAGE
from engine import prompt, started

LONG_ROPE = {"max_position_embeddings": 4096, "rope_scaling": {
    "rope_type": "longrope", "short_factor": [1.0] * 32, "long_factor": [6.0] * 32,
    "original_max_position_embeddings": 512}}


def cached(n):
    """Positions of a prompt of n that another request finds."""
    return (n - 1) // PAGE * PAGE


def do(engine, what, **more):
    engine.ask(do=what, **more)
    return engine.answer()


def ask(engine, text, **more):
    answer = engine.generate(text, **more)[0]
    return answer["tokens"], answer["cached"]


@pytest.fixture(scope="module", name="engines")
def make_engines(daemon, start):
    """Two that share, and one with a cache of its own."""
    return started(start(daemon, processes=1), start(daemon), start(processes=1))


def with_norm(folder, path):
    """The same model, but for one value of a norm."""
    path = shutil.copytree(folder, path)
    file = path / "model.safetensors"
    data = bytearray(file.read_bytes())
    ones = np.ones(256, np.float32).tobytes()
    at = data.index(ones)
    data[at:at + 4] = np.float32(3.0).tobytes()
    file.write_bytes(data)
    return path


def test_sizes_of_the_scheduler_do_not_separate_engines(daemon, engines, start):
    text = prompt(7000, 300)
    tokens, _ = ask(engines[0], text)
    other = start(daemon, processes=1, max_model_len=1024, max_num_seqs=4,
                  max_num_batched_tokens=256)
    assert ask(other, text) == (tokens, cached(300))
    other.kill()


def test_a_changed_norm_separates_engines(daemon, engines, start, folder, tmp_path):
    text = prompt(7001, 300)
    ask(engines[0], text)
    other = start(daemon, processes=1, folder=with_norm(folder, tmp_path / "model"))
    tokens, found = ask(other, text)
    assert found == 0 and ask(other, text, salt="cold") == (tokens, 0)
    other.kill()


def test_long_rope_separates_engines_by_the_factors_that_they_use(daemon, start, tmp_path):
    path = model.write(tmp_path / "model", **LONG_ROPE)
    short, short_too, long = (start(daemon, processes=1, folder=path, max_model_len=n)
                              for n in (512, 480, 1024))
    text = prompt(7002, 300)
    tokens, found = ask(short, text)
    assert found == 0 and ask(short_too, text) == (tokens, cached(300))
    tokens, found = ask(long, text)
    assert found == 0 and ask(long, text, salt="cold") == (tokens, 0)
    for engine in (short, short_too, long):
        engine.kill()


def test_a_reset_shares_again_with_another_that_resets(engines):
    a, b, _ = engines
    text = prompt(7003, 300)
    tokens, _ = ask(a, text)
    assert ask(b, text) == (tokens, cached(300))
    do(a, "reset")
    assert ask(a, text) == (tokens, 0)
    assert ask(b, text) == (tokens, cached(300))  # of before
    do(b, "reset")
    assert ask(b, text) == (tokens, cached(300))  # a's
    ask(b, prompt(7004))
    assert ask(a, prompt(7004))[1] == cached(200)


def test_engines_that_load_the_same_files_share_again(daemon, engines, start, folder, tmp_path):
    a, b, private = engines
    text = prompt(7005, 300)
    path = str(with_norm(folder, tmp_path / "model"))
    old, _ = ask(a, text)
    do(a, "reload", path=path)
    do(private, "reload", path=path)
    new, _ = ask(private, text, salt="new")
    assert new != old and ask(a, text) == (new, 0)
    assert ask(b, text) == (old, cached(300))
    do(b, "reload", path=path)
    assert ask(b, text) == (new, cached(300))
    do(a, "reset")
    do(b, "reset")
    started = start(daemon, processes=1, folder=path)
    ask(a, prompt(7006))
    assert ask(started, prompt(7006))[1] == ask(b, prompt(7006))[1] == cached(200)
    started.kill()
    for engine in engines:
        do(engine, "reload", path=str(folder))
    assert ask(a, text)[0] == old and ask(b, text) == (old, cached(300))


def test_a_request_across_an_update_publishes_nothing_of_the_new_weights(engines, folder):
    """Nobody resets a cache, and the request runs on."""
    a, b, private = engines
    text = prompt(7007, 100)
    expected = do(private, "across", prompt=text, after=40, change="reweigh", factor=1.05)
    made = do(a, "across", prompt=text, after=40, change="reweigh", factor=1.05)
    assert made == expected
    # b has the old weights: of that request it finds at most what they made.
    assert ask(b, text + made + [5])[1] < 100 + 64 - PAGE
    assert ask(b, text + made + [5], salt="cold")[0] == ask(b, text + made + [5])[0]
    new, _ = ask(private, prompt(7008), salt="new")
    assert ask(a, prompt(7008)) == (new, 0)
    assert ask(b, prompt(7008)) != (new, cached(200))
    for engine in engines:
        do(engine, "reload", path=str(folder))


def test_engines_with_one_version_share(engines, folder):
    a, b, _ = engines
    text = prompt(7009, 300)
    for engine in (a, b):
        do(engine, "zero")
    tokens, _ = ask(a, text)
    assert ask(b, text) == (tokens, 0)  # equal, but no one says so
    for engine in (a, b):
        do(engine, "version", name="step 7")
    assert ask(a, text) == (tokens, 0) and ask(b, text) == (tokens, cached(300))
    do(a, "zero")
    do(a, "version", name="step 8")
    assert ask(a, text)[1] == 0
    for engine in (a, b):
        do(engine, "reload", path=str(folder))
    assert ask(a, prompt(7010))[1] == 0 and ask(b, prompt(7010))[1] == cached(200)
