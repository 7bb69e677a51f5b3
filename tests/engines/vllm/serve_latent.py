# SPDX-License-Identifier: Apache-2.0
"""serve.py for models with MLA. vLLM 0.32 turns prefix caching off for them on CPUs without AMX,
although their kernels read the pages of earlier steps; here it stays on. With AMX it would take a
backend for bf16 alone.

vLLM's own rotation for CPUs takes the strides of MLA's queries and keys wrong, so that a text would
depend on what is computed together. PyTorch's is taken instead.
"""
import functools

import serve
from serving import serve as answer
from vllm.platforms.cpu import CpuPlatform


CHECK = CpuPlatform.check_and_update_config.__func__


@functools.wraps(CHECK)
def check(platform, config):
    cache, scheduler = config.cache_config, config.scheduler_config
    chosen = (cache.enable_prefix_caching, scheduler.enable_chunked_prefill,
              scheduler.max_num_batched_tokens)
    CHECK(platform, config)
    (cache.enable_prefix_caching, scheduler.enable_chunked_prefill,
     scheduler.max_num_batched_tokens) = chosen


CpuPlatform.check_and_update_config = classmethod(check)  # in each process: they import this


def started(folder, options):
    return serve.started(folder, {
        **options, "block_size": 16, "attention_backend": "CPU_MLA",
        "compilation_config": {"custom_ops": ["-rotary_embedding"]}})


if __name__ == "__main__":
    answer(started, serve.OPERATIONS)
