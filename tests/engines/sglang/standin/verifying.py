# SPDX-License-Identifier: Apache-2.0
"""A plug-in of SGLang, as its entry point says: plain torch attends for speculative decoding, too.
On CPUs SGLang has that in its backend for AMX only (IntelAMXAttnBackend)."""
import os

import torch
from torch.nn.functional import scaled_dot_product_attention

BACKEND = "sglang.srt.layers.attention.torch_native_backend.TorchNativeAttnBackend."
FACTORY = "sglang.srt.speculative.draft_utils.DraftBackendFactory."
# With $OVERLAP: what SGLang does not do on CPUs, and the one kernel of it that is for devices only.
NO_OVERLAP = "sglang.srt.arg_groups.speculative_hook._disable_overlap_schedule_for_cpu"
GATHER = "sglang.kernels.ops.speculative.gather_spec_extras.gather_spec_extras"


def register():
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    hooks = {BACKEND + "forward_extend": verify, BACKEND + "forward_decode": draft,
             FACTORY + "_create_backend": create}
    if "OVERLAP" in os.environ:
        hooks.update({NO_OVERLAP: lambda *_: None, GATHER: gather})
    for target, hook in hooks.items():
        HookRegistry.register(target, hook, HookType.AROUND)


def gather(_original, indices, *buffers):
    return tuple(buffer if buffer is None else buffer[indices] for buffer in buffers)


def attend(backend, layer, batch, q, k, v, parts):
    """Write k and v, and attend. parts: for some queries the slots of what they may see, and a mask
    of those."""
    from sglang.srt.mem_cache.memory_pool import KVWriteLoc

    pool = backend.token_to_kv_pool
    if k is not None:
        pool.set_kv_buffer(layer, KVWriteLoc(batch.out_cache_loc, None), k, v)
    q = q.reshape(-1, layer.tp_q_head_num, layer.qk_head_dim)
    keys, values = pool.get_key_buffer(layer.layer_id), pool.get_value_buffer(layer.layer_id)
    out = q.new_empty((len(q), layer.tp_q_head_num, layer.v_head_dim))
    for queries, slots, mask in parts:
        slots = slots.long()
        rows = [part.transpose(0, 1)[None] for part in (
            q[queries], keys[slots].to(q.dtype), values[slots].to(q.dtype))]
        out[queries] = scaled_dot_product_attention(
            *rows, attn_mask=mask, scale=layer.scaling,
            enable_gqa=layer.tp_q_head_num != layer.tp_k_head_num)[0].transpose(0, 1)
    return out.view(len(q), -1)


def verify(original, backend, q, k, v, layer, batch, save_kv_cache=True, **options):
    """Draft tokens see the sequence that they are behind, and those above them in their tree."""
    if not batch.forward_mode.is_target_verify():
        return original(backend, q, k, v, layer, batch, save_kv_cache, **options)
    n = batch.spec_info.draft_token_num
    trees = torch.ones(n, n, dtype=torch.bool).tril().expand(batch.batch_size, n, n)
    if batch.spec_info.tree_topk != 1:
        trees = batch.spec_info.custom_mask[:trees.numel()].bool().view(-1, n, n)
    table = backend.req_to_token_pool.req_to_token
    parts = [(slice(i * n, i * n + n), table[row, :length + n],
              torch.cat((torch.ones(n, length, dtype=torch.bool), trees[i]), 1))
             for i, (row, length) in enumerate(zip(batch.req_pool_indices.tolist(),
                                                   batch.seq_lens.tolist()))]
    return attend(backend, layer, batch, q, k if save_kv_cache else None, v, parts)


def draft(original, backend, q, k, v, layer, batch, save_kv_cache=True, **options):
    """One step of all branches."""
    branches = getattr(backend, "branches", None)
    if branches is None:
        return original(backend, q, k, v, layer, batch, save_kv_cache, **options)
    parts = [(slice(i, i + 1), slots, None) for i, slots in enumerate(branches)]
    return attend(backend, layer, batch, q, k if save_kv_cache else None, v, parts)


class Steps:
    """A backend for each step of a draft but the last."""

    def __init__(self, runner, topk, steps):
        from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend

        self.topk, self.steps = topk, steps
        self.attn_backends = [TorchNativeAttnBackend(runner) for _ in range(steps - 1)]

    def init_forward_metadata(self, batch):
        """A branch sees its sequence, and its own slots up to this step's."""
        table = self.attn_backends[0].req_to_token_pool.req_to_token
        for step, backend in enumerate(self.attn_backends, 1):
            backend.branches = [
                torch.cat((table[row, :length], table[row, first:first + step]))
                for row, length in zip(batch.req_pool_indices.tolist(), batch.seq_lens.tolist())
                for first in range(length, length + self.topk * self.steps, self.steps)]


def create(original, factory, backend_name, backends, *arguments, **options):
    """Offer torch_native, too, as what decodes drafts or as what extends them."""
    from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend

    def native():
        runner = factory.draft_model_runner
        if backend_name == "decode_attention_backend":
            return "torch_native", Steps(runner, factory.topk, factory.speculative_num_steps)
        return "torch_native", TorchNativeAttnBackend(runner)

    return original(factory, backend_name, {**backends, "torch_native": native}, *arguments,
                    **options)
