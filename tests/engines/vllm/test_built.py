# SPDX-License-Identifier: Apache-2.0
"""The digest of a model as it is built: whatever reaches a layer counts, and where it runs does
not."""
import collections
import enum
import functools
import threading

import numpy as np
import pytest
import torch

from kvtrunk.engine._built import ROTARY_ROWS, built_digest


class Kind(enum.Enum):
    ONE = 1
    TWO = 2


class Attention:
    """As engines keep it: no module."""

    def __init__(self):
        self.scale = 0.125
        self.window = (-1, -1)
        self.softcap = 0
        self.kv_cache_dtype = "auto"
        self.sinks = None
        self.alibi_slopes = torch.tensor([0.5, 0.25])
        self.kind = Kind.ONE
        self.method = functools.partial(max, 1)
        self.table = np.arange(3)
        self.queue = collections.deque([1, 2])


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.project = torch.nn.Linear(4, 4)
        self.impl = Attention()
        self.rotary = torch.nn.Module()
        self.rotary.register_buffer("cos_sin_cache", rows(4096), persistent=False)
        self.rotary.use_long = False
        self.register_buffer("k_scale", torch.tensor(1.0))
        self.dtype = torch.bfloat16
        self.kv_cache = torch.zeros(8)
        self.lock = threading.Lock()
        self.parts = [torch.nn.Sequential(torch.nn.Dropout(0.5))]  # no modules to torch


def rows(n, factor=1.0):
    angles = torch.arange(n)[:, None] / torch.tensor([1.0, 10.0]) / factor
    return torch.cat([angles.cos(), angles.sin()], 1)


def digest(change=lambda layer: None):
    torch.manual_seed(0)
    model = torch.nn.Sequential(Layer(), Layer())
    change(model[1])
    return built_digest(model)


def test_equal_models_have_one_digest():
    assert digest() == digest()


def cache(n, factor=1.0):
    return lambda layer: setattr(layer.rotary, "cos_sin_cache", rows(n, factor))


def swap(layer):
    layer.project = torch.nn.Linear(4, 8)


@pytest.mark.parametrize("change", [
    lambda layer: setattr(layer.impl, "scale", 0.126),
    lambda layer: setattr(layer.impl, "window", (511, 0)),
    lambda layer: setattr(layer.impl, "softcap", 30.0),
    lambda layer: setattr(layer.impl, "kv_cache_dtype", "fp8"),
    lambda layer: setattr(layer.impl, "sinks", torch.ones(2)),
    lambda layer: layer.impl.alibi_slopes.mul_(2),
    lambda layer: setattr(layer.impl, "kind", Kind.TWO),
    lambda layer: setattr(layer.impl, "method", functools.partial(max, 2)),
    lambda layer: setattr(layer.impl, "method", min),
    lambda layer: setattr(layer.impl, "another", 1),
    lambda layer: layer.impl.table.__setitem__(0, 7),
    lambda layer: setattr(layer.impl, "scale", np.float32(0.125)),
    lambda layer: layer.impl.queue.append(3),
    lambda layer: setattr(layer.rotary, "use_long", True),
    lambda layer: layer.k_scale.fill_(2),
    lambda layer: setattr(layer, "dtype", torch.float16),
    lambda layer: layer.project.to(torch.float16),
    lambda layer: setattr(layer.parts[0][0], "p", 0.25),
    swap, cache(4096, 2.0), cache(ROTARY_ROWS, 2.0)],
    ids=["scale", "window", "softcap", "KV type", "sinks", "alibi", "enum", "argument", "function",
         "one more field", "array", "number of numpy", "queue",
         "flag of a module", "buffer", "type", "type of weights",
         "module in a list", "shape",
         "rotation", "rotation of a short cache"])
def test_whatever_reaches_a_layer_counts(change):
    assert digest(change) != digest()


@pytest.mark.parametrize("change", [
    lambda layer: setattr(layer, "kv_cache", torch.ones(99)),
    lambda layer: setattr(layer, "lock", threading.Lock()),
    cache(ROTARY_ROWS), cache(2 * 4096)],
    ids=["pages", "lock", "shorter cache", "longer cache"])
def test_what_changes_no_kv_does_not_count(change):
    assert digest(change) == digest()


def test_weights_count_by_shape_only():
    """Their bytes are kvtrunk.engine._weights'."""
    assert digest(lambda layer: layer.project.weight.data.zero_()) == digest()


@pytest.mark.parametrize("name", ["W_UK_T", "w_kc"])
def test_what_is_computed_from_weights_counts_by_shape_only(name):
    """Else an engine that gets new weights of an MLA model would keep a part of the old ones' name."""
    def held(*shape):
        return digest(lambda layer: setattr(layer.impl, name, torch.rand(shape)))

    assert held(2, 3) == held(2, 3) != held(3, 2)


def test_a_wrapper_of_adapters_is_what_it_wraps():
    class Wrapper(torch.nn.Module):
        def __init__(self, base):
            super().__init__()
            self.base_layer, self.slots = base, 8

    assert digest(lambda layer: setattr(layer, "project", Wrapper(layer.project))) == digest()


def test_what_refers_to_itself_ends():
    def loop(layer):
        layer.impl.layer, layer.impl.names = layer, {"impl": layer.impl}

    assert digest(loop) == digest(loop) != digest()


def test_what_is_too_deep_to_see_is_no_other_engine_s():
    def nest(layer):
        for _ in range(100):
            layer.impl = {"impl": layer.impl}

    assert digest(nest) != digest(nest)
