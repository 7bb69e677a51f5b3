# SPDX-License-Identifier: Apache-2.0
"""The digest of a model as an engine has built it: what its configuration has become.

It has no list of flags. It takes whatever the modules hold: classes, numbers, strings, types,
tensors that are no weights, and the objects that modules keep (attention, quantisation, rotation).
Weights count by name, shape and type here, and by their bytes in _weights.

Left out is what two engines of one model differ in although their KV is equal: where they run,
what they cache, and the sizes of their scheduler. An unknown object counts, so that a mistake
separates engines and never joins them.

A rotary cache counts by its first ROTARY_ROWS rows and not by its length. An engine with a shorter
cache reaches only positions that both have, and a later row follows from the first rows and the
attributes of the module.
"""
from __future__ import annotations

import collections.abc
import enum
import functools
import hashlib
import re
import secrets
import types
from typing import Any, Iterator

import torch

from ._weights import plain_config

ROTARY_ROWS = 1024

# Objects of these packages are of a process, not of a model.
_PROCESS = ("asyncio.", "concurrent.", "ctypes.", "logging.", "multiprocessing.", "threading.",
            "_thread.", "weakref.", "torch._dynamo.", "torch._C.", "torch._functorch.",
            "torch._inductor.", "torch.cuda.", "torch.distributed.", "torch.fx.",
            "vllm.compilation.", "vllm.config.", "vllm.distributed.", "vllm.lora.",
            "vllm.v1.worker.", "sglang.srt.distributed.", "sglang.srt.mem_cache.",
            "sglang.srt.model_executor.", "sglang.srt.server_args.",
            "sglang.srt.speculative.")  # the layers that draft have a digest of their own
# Attributes of torch.nn.Module itself, and pages of KV.
_OWN = frozenset(vars(torch.nn.Module())) | {"kv_cache"}
_ROTARY = re.compile("cos_sin_cache|cos_cached|sin_cached")
# Tensors that engines compute from the weights of MLA after loading: they count as weights.
_OF_WEIGHTS = re.compile("W_UV|W_UK_T(_dcp_qrep)?|W_[KV](_scale)?|w_[kv]c(_qrep)?|w_scale(_[kv])?")
_DEPTH_MAX = 64


def _class_name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _bytes(tensor: torch.Tensor) -> Any:
    """A tensor's bytes in host memory."""
    flat = tensor.detach().to("cpu").contiguous().view(-1)
    return flat.view(torch.uint8).numpy() if flat.numel() else b""


class _Walk:
    """Everything that a model holds, in one order, into one digest."""

    def __init__(self, digest: Any, left_out: tuple[str, ...] = ()) -> None:
        """left_out: beginnings of the names of classes whose objects do not count."""
        self._digest = digest
        self._left_out = left_out
        self._seen: dict[int, int] = {}
        self._alive: list[Any] = []

    def _add(self, *words: Any) -> None:
        for word in words:
            text = str(word).encode()
            self._digest.update(b"%d:" % len(text))
            self._digest.update(text)

    def model(self, model: torch.nn.Module) -> None:
        """All modules, by their names."""
        for name, module in _modules("", model):
            self._add("module", name, _class_name(type(module)))
            for kind, tensors in (("parameter", module._parameters), ("buffer", module._buffers)):
                for key in sorted(tensors):
                    tensor = tensors[key]
                    self._add(kind, key)
                    if tensor is None:
                        self._add("none")
                    elif kind == "parameter":
                        self._shape(tensor)
                    else:
                        self._tensor(tensor, key)
            self._mapping(_fields(module), 0)

    def _shape(self, tensor: torch.Tensor) -> None:
        self._add(tuple(tensor.shape), tensor.dtype)

    def _tensor(self, tensor: torch.Tensor, name: str) -> None:
        if _ROTARY.search(name) and tensor.dim() > 1:
            self._add("rotary", tuple(tensor.shape[1:]), tensor.dtype)
            tensor = tensor[:ROTARY_ROWS]
        else:
            self._shape(tensor)
        if tensor.device.type != "meta" and not _OF_WEIGHTS.fullmatch(name):
            self._digest.update(_bytes(tensor))

    def _value(self, value: Any, name: str, depth: int) -> None:
        kind = type(value)
        if value is None or kind in (bool, int, float, complex, str, bytes):
            self._add(kind.__name__, repr(value))
        elif isinstance(value, enum.Enum):
            self._add(_class_name(kind), value.name)
        elif isinstance(value, (torch.dtype, torch.layout, torch.memory_format)):
            self._add(value)
        elif isinstance(value, torch.device):
            self._add("device", value.type)
        elif isinstance(value, type):
            self._add("class", _class_name(value))
        elif isinstance(value, types.ModuleType):  # of a release, which counts by its version
            self._add("package", value.__name__)
        elif isinstance(value, (types.FunctionType, types.BuiltinFunctionType, types.MethodType)):
            self._add("function", getattr(value, "__module__", ""), value.__qualname__)
        elif id(value) in self._seen:
            self._add("again", self._seen[id(value)])
        elif depth == _DEPTH_MAX:  # not known, so no other engine's
            self._add("deep", secrets.token_hex(16))
        else:
            self._seen[id(value)] = len(self._seen)
            self._alive.append(value)  # its id stays its own
            self._object(value, name, depth + 1)

    def _object(self, value: Any, name: str, depth: int) -> None:
        if isinstance(value, torch.nn.Parameter):
            self._shape(value)
        elif isinstance(value, torch.Tensor):
            self._tensor(value, name)
        elif isinstance(value, torch.nn.Module):
            self._add("module", _class_name(type(value)))
            self._mapping({**value._parameters, **value._buffers, **value._modules,
                           **_fields(value)}, depth)
        elif isinstance(value, functools.partial):
            self._value([value.func, value.args, value.keywords], name, depth)
        elif callable(getattr(value, "tobytes", None)):  # an array of numpy, or one of its numbers
            self._add(_class_name(type(value)), getattr(value, "dtype", ""),
                      getattr(value, "shape", ""))
            self._digest.update(value.tobytes())
        elif isinstance(value, collections.abc.Mapping):
            self._mapping(value, depth)
        elif isinstance(value, collections.abc.Sequence):
            self._add(_class_name(type(value)), len(value))
            for each in value:
                self._value(each, name, depth)
        elif isinstance(value, collections.abc.Set):
            self._add("set", *sorted(str(each) for each in value))
        elif callable(getattr(value, "to_dict", None)):  # a configuration of transformers
            self._value(plain_config(value.to_dict()), name, depth)
        else:
            self._add("object", _class_name(type(value)))
            self._mapping(_fields(value), depth)

    def _mapping(self, values: Any, depth: int) -> None:
        for key in sorted(values, key=str):
            if _class_name(type(values[key])).startswith(self._left_out):
                continue
            self._add("key", key if isinstance(key, (str, int, float)) else type(key).__name__)
            self._value(values[key], str(key), depth)


def _fields(value: Any) -> dict[str, Any]:
    found = dict(getattr(value, "__dict__", {}))
    for kind in type(value).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for name in [slots] if isinstance(slots, str) else slots:
            if hasattr(value, name) and not name.startswith("__"):
                found[name] = getattr(value, name)
    return {name: held for name, held in found.items() if name not in _OWN}


def _modules(name: str, module: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module]]:
    """A module and those in it, by name. One that an adapter wraps stands for its wrapper:
    adapters have digests of their own."""
    while isinstance(base := module._modules.get("base_layer"), torch.nn.Module):
        module = base
    yield name, module
    for key, child in module._modules.items():
        if child is not None:
            yield from _modules(f"{name}.{key}" if name else key, child)


def built_digest(model: torch.nn.Module) -> str:
    """SHA-256 of a model as it is built, after its weights were loaded. 64 hex digits."""
    digest = hashlib.sha256()
    _Walk(digest, _PROCESS).model(model)
    return digest.hexdigest()


def held_digest(value: Any) -> str:
    """SHA-256 of what any object holds, with the bytes of its tensors. 64 hex digits."""
    digest = hashlib.sha256()
    _Walk(digest)._value(value, "", 0)
    return digest.hexdigest()
