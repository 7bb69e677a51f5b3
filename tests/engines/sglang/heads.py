# SPDX-License-Identifier: Apache-2.0
"""Layers that draft for the model of these tests, with random weights, as SGLang loads them."""
import json
import pathlib

import model
import numpy as np


def _tensors(values, prefix, width_in=1, deviation=0.05, seed=5):
    """Those of the first layer of a model, under another name. width_in: of its attention, times."""
    random, width = np.random.default_rng(seed), values["hidden_size"]
    for name, size in model.shapes(values):
        if name.startswith("model.layers.0."):
            if name.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight")):
                size = size[0], size[1] * width_in
            value = (random.normal(0, deviation, size) if len(size) == 2 or "bias" in name
                     else np.ones(size))
            yield prefix + name.removeprefix("model.layers.0."), value.astype(np.float32)


def _write(folder, values, tensors):
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(values, indent=1))
    (folder / "model.safetensors").write_bytes(model.safetensors(tensors))
    return str(folder)


def eagle(folder, **shape):
    """A head that takes a half of the model's hidden state, and the next token."""
    values = model.config(**{"layers": 1, "architectures": ["LlamaForCausalLMEagle"], **shape})
    width = values["hidden_size"]
    tensors = dict(_tensors(values, "layers.0."))
    del tensors["layers.0.input_layernorm.weight"]
    one = np.eye(width, dtype=np.float32)
    return _write(folder, values, {**tensors, "fc.weight": np.hstack([one, one / 2]),
                                   "fc.bias": np.zeros(width, np.float32)})


def eagle3(folder):
    """One that takes the hidden state behind the model's first layer."""
    values = model.config(
        layers=1, architectures=["LlamaForCausalLMEagle3"], draft_vocab_size=None,
        eagle_config={"use_aux_hidden_state": True, "eagle_aux_hidden_state_layer_ids": [0]})
    width = values["hidden_size"]
    values["target_hidden_size"] = width
    ones = np.ones(width, np.float32)
    return _write(folder, values, {
        **dict(_tensors(values, "midlayer.", width_in=2, deviation=0.08)),
        "midlayer.hidden_norm.weight": ones, "norm.weight": ones,
        "fc.weight": np.eye(width, dtype=np.float32)})


MIMO = {"architectures": ["MiMoForCausalLM"], "model_type": "qwen2", "attention_bias": True,
        "num_nextn_predict_layers": 1, "use_sliding_window": False}
"""Overrides of model.config() for a model with a layer for MTP."""


def mimo(folder, seed=0, **more):
    """Such a model, and that layer in its files."""
    values = model.config(**MIMO)
    ones, one = np.ones(values["hidden_size"], np.float32), np.eye(values["hidden_size"])
    at = "model.mtp_layers.0."
    return str(model.write(folder, seed, **more, **MIMO, tensors={
        **dict(_tensors(values, at, seed=seed + 5)),
        **{f"{at}{name}_layernorm.weight": ones for name in ("token", "hidden", "final")},
        f"{at}input_proj.weight": np.hstack([0.3 * one, one]).astype(np.float32)}))


def drafting(algorithm, folder, scratch):
    """A model, this one if layers for it can be made, and options of `flags` and `prove` with which it
    drafts."""
    options = ["--speculative-algorithm", algorithm]
    if algorithm == "NEXTN":
        folder = mimo(scratch / "model")
    if algorithm != "NGRAM":
        options += ["--speculative-draft-model-path",
                    folder if algorithm == "NEXTN" else eagle(scratch / "head")]
    return folder, options
