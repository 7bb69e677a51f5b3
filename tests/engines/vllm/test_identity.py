# SPDX-License-Identifier: Apache-2.0
"""Identity of KV: files and configuration, never names and paths."""
import json
import shutil
import types

import model
import numpy as np
import pytest
from engine import prompt

from kvtrunk.vllm import _identity as identity


def adapter(folder, seed, rank=8, width=256):
    """A LoRA of the first layer's K projection, with random weights."""
    folder.mkdir()
    random = np.random.default_rng(seed)
    name = "base_model.model.model.layers.0.self_attn.k_proj.lora_"
    tensors = {name + "A.weight": random.normal(0, 0.3, (rank, width)).astype(np.float32),
               name + "B.weight": random.normal(0, 0.3, (128, rank)).astype(np.float32)}
    (folder / "adapter_model.safetensors").write_bytes(model.safetensors(tensors))
    (folder / "adapter_config.json").write_text(json.dumps({
        "peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank, "target_modules": ["k_proj"],
        "base_model_name_or_path": "tiny", "bias": "none", "task_type": "CAUSAL_LM"}))
    return str(folder)


def configured(**changes):
    """Parts of vLLM's configuration that count before a model is built."""
    values = {"hf": model.config(), "max_model_len": 2048, "dtype": "bfloat16", "cache": "auto",
              "quantization": None, "ranks": 1, **changes}
    return types.SimpleNamespace(
        model_config=types.SimpleNamespace(
            hf_config=types.SimpleNamespace(to_dict=lambda: dict(values["hf"])),
            dtype=values["dtype"], quantization=values["quantization"], quantization_config=None,
            max_model_len=values["max_model_len"]),
        cache_config=types.SimpleNamespace(cache_dtype=values["cache"]),
        parallel_config=types.SimpleNamespace(tensor_parallel_size=values["ranks"]))


def long_rope(limit):
    return model.config(rope_scaling={"rope_type": "longrope", "long_factor": [2.0],
                                      "original_max_position_embeddings": limit})


@pytest.mark.parametrize("changes", [
    {"hf": model.config(rope_theta=5e5)}, {"dtype": "float16"}, {"cache": "fp8"},
    {"quantization": "fp8"}, {"ranks": 2}])
def test_a_configuration_counts(changes):
    assert identity.model_digest(configured(**changes)) != identity.model_digest(configured())


def test_the_longest_request_counts_only_where_it_chooses_rope_factors():
    assert identity.model_digest(configured(max_model_len=4096)) == identity.model_digest(
        configured())
    names = [identity.model_digest(configured(hf=long_rope(4096), max_model_len=n))
             for n in (2048, 4096, 4097, 8192)]
    assert names[0] == names[1] != names[2] == names[3]


def test_an_adapter_that_no_worker_has_loaded_is_no_other_engine_s():
    one, other = identity.Adapters(), identity.Adapters()
    assert one.digest(1) == one.digest(1) != other.digest(1)
    for known in (one, other):
        known.load({2: "a digest"})
    assert one.digest(2) == other.digest(2) == "a digest" and 1 not in one
    one.clear()
    assert 2 not in one


def test_an_engine_shares_within_an_adapter_by_its_files(daemon, start, tmp_path):
    one, other = adapter(tmp_path / "one", 1), adapter(tmp_path / "other", 2)
    same = str(shutil.copytree(one, tmp_path / "same"))
    engine = start(daemon, processes=1, enable_lora=True, max_loras=3, max_lora_rank=8)
    text = prompt(6000)
    base = engine.generate(text)[0]
    first = engine.generate(text, lora=["x", 1, one])[0]
    assert (base["cached"], first["cached"]) == (0, 0) and base["tokens"] != first["tokens"]
    assert engine.generate(text, lora=["y", 2, same])[0] == {**first, "cached": 192}
    answer = engine.generate(text, lora=["z", 3, other])[0]
    assert answer["cached"] == 0 and answer["tokens"] != first["tokens"]
    assert engine.generate(text)[0] == {**base, "cached": 192}


def test_an_adapter_is_what_was_loaded_and_not_its_files_now(daemon, start, tmp_path):
    """A trainer writes the next version into the folder of the last one."""
    path = adapter(tmp_path / "one", 1)
    a = start(daemon, processes=1, enable_lora=True, max_loras=2, max_lora_rank=8)
    b = start(daemon, enable_lora=True, max_loras=2, max_lora_rank=8)
    text = prompt(6001)
    a.ask(do="load", lora=["x", 1, path])
    assert a.answer()
    b.wait()
    shutil.rmtree(path)
    adapter(tmp_path / "one", 2)
    old = a.generate(text, lora=["x", 1, path])[0]
    new = b.generate(text, lora=["x", 1, path])[0]
    assert (old["cached"], new["cached"]) == (0, 0) and old["tokens"] != new["tokens"]
    a.ask(do="load", lora=["x", 1, path], inplace=True)  # replaced
    assert a.answer()
    assert a.generate(text, lora=["x", 1, path])[0] == {**new, "cached": 192}
