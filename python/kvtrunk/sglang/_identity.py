# SPDX-License-Identifier: Apache-2.0
"""What makes KV equal: two engines share only what has the same identity."""
from __future__ import annotations

import hashlib
import json
import secrets
from typing import Any

from .. import _weights

# What changes KV beside weights and the model's config.
ARGUMENTS = ("dtype", "quantization", "quantization_param_path", "kv_cache_dtype",
             "attention_backend", "prefill_attention_backend", "decode_attention_backend",
             "model_impl", "enable_deterministic_inference", "rl_on_policy_target",
             "enable_tf32_matmul", "triton_attention_reduce_in_fp32", "load_format",
             "enable_torch_compile", "bf16_gemm_backend", "fp8_gemm_runner_backend",
             "fp4_gemm_runner_backend", "moe_runner_backend")


def isa(device: str) -> str:
    """The instructions that kernels use on this machine."""
    import torch
    if device.startswith("cuda"):
        return f"sm{torch.cuda.get_device_capability()}"
    return str(torch.backends.cpu.get_cpu_capability())


def identity(server_args: Any, model_config: Any, device: str) -> bytes:
    """32 bytes: the digest of weights, effective config, types, kernels and instructions."""
    import sglang
    import torch
    if server_args.load_format == "dummy":
        return secrets.token_bytes(32)  # weights that no other engine has
    parts = {
        "engine": ["sglang", sglang.__version__, torch.__version__],
        "weights": _weights.digest_folder(_weights.model_folder(
            server_args.model_path, server_args.revision, server_args.download_dir)),
        "config": _weights.config_digest(model_config.hf_config.to_dict()),
        "dtype": str(model_config.dtype),
        "arguments": {name: str(getattr(server_args, name, None)) for name in ARGUMENTS},
        "isa": isa(device),
        "tensor_parallel": server_args.tp_size,
    }
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).digest()
