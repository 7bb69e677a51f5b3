# SPDX-License-Identifier: Apache-2.0
"""A fault in the first layer of a running engine's model that nothing names: the file $PLANT says
which, "norm" or "rope", and "" takes it away."""
import gc
import os
import pathlib

import torch.nn.functional as functions

_embedding = functions.embedding
_right = {}


def plant():
    """Do what the file says."""
    fault = pathlib.Path(os.environ["PLANT"]).read_text()
    if fault in _right or (not fault and not _right):
        return
    [model] = [found for found in gc.get_objects() if type(found).__name__ == "LlamaForCausalLM"]
    layer = model.model.layers[0]
    values = {"norm": layer.input_layernorm.weight.data,
              "rope": layer.self_attn.rotary_emb.cos_sin_cache}
    for name, right in _right.items():
        values[name].copy_(right)
    _right.clear()
    if fault:
        _right[fault] = values[fault].clone()
        values[fault].copy_(values[fault] * 1.05 if fault == "norm" else values[fault].roll(1, 0))


def embedding(*arguments, **options):
    """The embedding, with which each forward pass begins: plant the fault before it."""
    plant()
    return _embedding(*arguments, **options)


functions.embedding = embedding
