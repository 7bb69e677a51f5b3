# SPDX-License-Identifier: Apache-2.0
"""Stand-in for SGLang's compiled CPU kernels, which no package index has. A dense model with
--attention-backend torch_native calls one of them; each other raises when it is called."""
import os

import torch


def assign_req_to_token_pool_cpu(rows, req_to_token, starts, ends, slots, _stride):
    """Write each request's new slots to its row of the table: [start, end)."""
    at = 0
    for row, start, end in zip(rows.tolist(), starts.tolist(), ends.tolist()):
        count = end - start
        req_to_token[row, start:end] = slots[at:at + count].to(req_to_token.dtype)
        at += count


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*_arguments, **_options):
        raise NotImplementedError(f"sgl_kernel.{name} has no stand-in for the CPU")

    return missing


if "PLANT" in os.environ:
    import planted  # noqa: F401

if "UNPINNED" in os.environ:
    # SGLang pins memory for adapters, which takes a GPU's driver.
    torch.Tensor.pin_memory = lambda tensor, *_: tensor
    for name in ("tensor", "zeros", "empty", "full"):
        def unpinned(*arguments, _original=getattr(torch, name), **options):
            return _original(*arguments, **{**options, "pin_memory": False})
        setattr(torch, name, unpinned)
