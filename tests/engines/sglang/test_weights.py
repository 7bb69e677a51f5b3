# SPDX-License-Identifier: Apache-2.0
"""Engines share what equal weights computed, and nothing else: other files, updates in place, with
requests held in flight, and adapters."""
import itertools
import json
import shutil

import model
import numpy as np
import pytest
from conftest import Engine
from engine import expect_nothing_held, prompt, started
from sharing import whole

SEEDS = itertools.count(7000)
K = "model.layers.0.self_attn.k_proj.weight"
TARGETS = ["q_proj", "k_proj", "v_proj"]
V = "model.layers.1.self_attn.v_proj.weight"


def changed(folder, copy, name, by):
    """A copy of a model with one tensor changed in place."""
    shutil.copytree(folder, copy)
    path = copy / "model.safetensors"
    data = bytearray(path.read_bytes())
    n_header = int.from_bytes(data[:8], "little")
    start, end = json.loads(data[8:8 + n_header])[name]["data_offsets"]
    at = 8 + n_header
    values = np.frombuffer(data, np.float32, (end - start) // 4, at + start)
    data[at + start:at + end] = (values * np.float32(by)).tobytes()
    path.write_bytes(data)
    return str(copy)


@pytest.fixture(scope="module")
def norm(folder, tmp_path_factory):
    """The folder of a model that differs in one norm."""
    return changed(folder, tmp_path_factory.mktemp("norm") / "model",
                   "model.layers.0.input_layernorm.weight", 1.05)


@pytest.fixture(scope="module")
def engines(daemon, start, norm):
    """Two of one model, with other sizes, and one whose norm differs."""
    return started(start(daemon), start(daemon, max_running_requests=8, context_length=1024),
                   start(daemon, folder=norm))


def ask(engine, **what):
    engine.ask(**what)
    return engine.answer()


def computes(engine, text, **more):
    """An engine finds nothing of a prompt, and its tokens are those of a cold cache."""
    answer = engine.generate(text, **more)[0]
    cold = engine.generate(text, salt=f"cold {next(SEEDS)}", **more)[0]
    assert answer == {**cold, "cached": 0}
    return answer["tokens"]


def test_a_model_whose_norm_differs_shares_nothing(engines):
    a, b, other = engines
    text = prompt(next(SEEDS))
    tokens = computes(a, text)
    assert b.generate(text)[0] == {"tokens": tokens, "cached": whole(text)}
    assert computes(other, text) != tokens


def test_weights_from_disk_are_shared_with_who_loaded_the_same(engines, folder, norm):
    a, b, other = engines
    text, later = prompt(next(SEEDS)), prompt(next(SEEDS))
    tokens = computes(other, text)
    computes(a, later)
    assert ask(a, do="weights", model_path=norm) is True
    assert a.generate(text)[0] == {"tokens": tokens, "cached": whole(text)}
    assert computes(a, later)
    assert ask(a, do="weights", model_path=str(folder)) is True
    assert a.generate(later)[0]["cached"] == whole(later)  # as before


def test_weights_that_are_not_there_change_nothing(engines, tmp_path):
    a, b, _ = engines
    text = prompt(next(SEEDS))
    tokens = computes(a, text)
    assert ask(b, do="weights", model_path=str(tmp_path / "none")) is False
    assert b.generate(text)[0] == {"tokens": tokens, "cached": whole(text)}


def test_new_weights_are_seen_with_a_request_in_flight(engines, folder):
    """No cache is flushed. The request continues with K and V of the old weights. Engines find
    neither the pages that it had published, nor those that it computed since."""
    a, b, _ = engines
    text = prompt(next(SEEDS), 300)
    old = computes(a, text)
    held = prompt(next(SEEDS), 300)
    assert ask(a, do="scaled in flight", prompt=held, max_tokens=40, folder=str(folder),
               names=[K, V], factor=1.5) == [True, 40]
    assert computes(a, text) != old
    computes(a, held)
    assert b.generate(text)[0] == {"tokens": old, "cached": whole(text)}


def test_weights_of_one_version_are_shared(engines, folder):
    a, b, _ = engines
    assert ask(a, do="weights", model_path=str(folder)) is True
    text = prompt(next(SEEDS))
    computes(b, text)
    update = {"do": "scaled", "folder": str(folder), "names": [K, V], "factor": 1.5,
              "weight_version": "step 1"}
    assert ask(a, **update) is True
    new = computes(a, text)
    assert b.generate(text)[0]["tokens"] != new
    assert ask(b, **update) is True
    assert b.generate(text)[0] == {"tokens": new, "cached": whole(text)}


def test_weights_without_a_version_are_nobody_elses(engines, folder):
    a, b, _ = engines
    update = {"do": "scaled", "folder": str(folder), "names": [K], "factor": 1.25}
    assert ask(a, **update) is True and ask(b, **update) is True
    text = prompt(next(SEEDS))
    tokens = computes(a, text)
    assert a.generate(text)[0]["cached"] == whole(text)
    assert computes(b, text) == tokens


def adapter(folder, seed, rank=8, width=256):
    """A LoRA of the first layer's Q, K and V, with random weights."""
    folder.mkdir()
    random = np.random.default_rng(seed)
    tensors = {}
    for what, n in (("q", 256), ("k", 128), ("v", 128)):
        name = f"base_model.model.model.layers.0.self_attn.{what}_proj.lora_"
        tensors[name + "A.weight"] = random.normal(0, 0.3, (rank, width)).astype(np.float32)
        tensors[name + "B.weight"] = random.normal(0, 0.3, (n, rank)).astype(np.float32)
    (folder / "adapter_model.safetensors").write_bytes(model.safetensors(tensors))
    (folder / "adapter_config.json").write_text(json.dumps({
        "peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank, "target_modules": TARGETS,
        "base_model_name_or_path": "tiny", "bias": "none", "task_type": "CAUSAL_LM"}))
    return str(folder)


def test_adapters_are_shared_by_what_was_loaded(daemon, start, tmp_path):
    """Another copy is the same adapter. Other files under the same name and path are another."""
    one = adapter(tmp_path / "one", 1)
    same = str(shutil.copytree(one, tmp_path / "same"))
    engine = start(daemon, environment={"UNPINNED": "1"}, enable_lora=True, max_lora_rank=8,
                   lora_backend="torch_native", lora_target_modules=TARGETS, max_loras_per_batch=2)
    for name, path in (("x", one), ("y", same)):
        assert ask(engine, do="adapter", lora_name=name, lora_path=path) is True
    text = prompt(next(SEEDS))
    base = computes(engine, text)
    first = computes(engine, text, lora_path=["x"])
    assert first != base
    assert engine.generate(text, lora_path=["y"])[0] == {"tokens": first, "cached": whole(text)}
    shutil.rmtree(one)
    adapter(tmp_path / "one", 2)
    assert engine.generate(text, lora_path=["x"])[0]["tokens"] == first  # it is in memory
    assert ask(engine, do="no adapter", name="x") is True
    assert ask(engine, do="adapter", lora_name="x", lora_path=one) is True
    assert computes(engine, text, lora_path=["x"]) not in (first, base)
    assert engine.generate(text)[0] == {"tokens": base, "cached": whole(text)}
    expect_nothing_held(daemon)


def test_an_engine_whose_long_rope_changes_with_the_batch_is_refused(daemon, tmp_path):
    folder = model.write(tmp_path / "long", max_position_embeddings=4096, rope_scaling={
        "rope_type": "longrope", "short_factor": [1.0] * 32, "long_factor": [6.0] * 32,
        "original_max_position_embeddings": 512})
    engine = Engine(folder, tmp_path / "log", daemon, context_length=1024)
    try:
        with pytest.raises(RuntimeError, match="--context-length 512"):
            engine.wait()
    finally:
        engine.kill()
