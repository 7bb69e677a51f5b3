# SPDX-License-Identifier: Apache-2.0
"""What makes KV equal: files and configuration, never names and paths."""
import json
import shutil

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


def test_adapters_are_told_by_their_files(tmp_path):
    known = identity.Adapters()
    path = adapter(tmp_path / "one", 1)
    first = known.digest(path)
    copied = shutil.copytree(path, tmp_path / "copy")
    assert known.digest(path) == known.digest(str(copied)) == first
    shutil.rmtree(path)
    adapter(tmp_path / "one", 2)  # the same name, other files
    assert identity.Adapters().digest(path) != first
    with pytest.raises(OSError, match="changed while this engine ran"):
        known.digest(path)
    with pytest.raises(FileNotFoundError):
        known.digest(str(tmp_path / "none"))


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
