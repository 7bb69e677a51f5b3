# SPDX-License-Identifier: Apache-2.0
"""Draft layers whose KV lies in the pages, after that of the model's own layers: EAGLE and MTP.

At position i such a layer takes the model's hidden state of i and token i + 1. vLLM drops the last
block that it finds, because the next block's tokens tell that one. Here keys are bigram_keys(), none
is dropped, and a page is published when the last token that its KV depends on was accepted.
"""
from __future__ import annotations

import json
import sys
from typing import Any

from ..engine import around, config_digest

METHODS = ("eagle", "eagle3", "mtp")


def in_pages(config: Any) -> bool:
    """Whether an engine has such layers."""
    return config.speculative_config is not None and config.speculative_config.method in METHODS


def identity(config: Any) -> list[str]:
    """Identity of the draft layers' KV, beside weights and the layers as they are built."""
    if not in_pages(config):
        return []
    draft = config.speculative_config.draft_model_config
    return [config.speculative_config.method, config_digest(draft.hf_config.to_dict()),
            str(draft.dtype), str(draft.quantization),
            json.dumps(draft.quantization_config, default=str)]


def model_of(worker: Any) -> Any:
    """A worker's draft model. None: it has none."""
    runner = worker.model_runner
    if hasattr(runner, "get_draft_model"):  # vLLM's second runner
        return runner.get_draft_model()
    return getattr(getattr(runner, "drafter", None), "model", None)


def longest(config: Any) -> int:
    """vLLM's first runner drafts for no request of a step if one of them has more positions than
    this: then the step's draft KV is not written. 0: no such limit."""
    if not in_pages(config) or config.use_v2_model_runner:
        return 0
    spec = config.speculative_config
    most: int = spec.draft_model_config.max_model_len or config.model_config.max_model_len
    return most - int(spec.num_speculative_tokens)


def hold_outputs() -> None:
    """Let a step's output come when its draft KV is written: vLLM's second runner copies sampled
    tokens while it drafts. A second call does nothing."""
    module = sys.modules.get("vllm.v1.worker.gpu.model_runner")
    if module is None:
        return
    kind = module.AsyncOutput

    def sample_tokens(original: Any, runner: Any, *args: Any, **kwargs: Any) -> Any:
        output = original(runner, *args, **kwargs)
        if isinstance(output, kind) and runner.device.type != "cpu":
            runner.output_copy_stream.wait_stream(runner.main_stream)
            output.copy_event.record(runner.output_copy_stream)
        return output

    around(module.GPUModelRunner, "sample_tokens", sample_tokens)
