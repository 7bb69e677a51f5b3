# SPDX-License-Identifier: Apache-2.0
"""Stand-in for SGLang's compiled CPU kernels, which no package index has. A dense model with
--attention-backend torch_native calls one of them, and with speculative decoding those of drafts;
each other raises when it is called."""
import os

import torch
from sgl_kernel.drafts import (assign_draft_cache_locs_contiguous_cpu,  # noqa: F401
                               assign_extend_cache_locs_cpu, build_tree_kernel_efficient_cpu,
                               copy_all_layer_kv_cache_cpu, fill_accept_out_cache_loc_cpu,
                               fill_bonus_tokens_cpu, verify_tree_greedy_cpu)


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
