# SPDX-License-Identifier: Apache-2.0
"""Rules on options, on command lines of vLLM's own recipes: github.com/vllm-project/recipes, commit
8959cf64. vLLM parses and resolves each for a model of that kind whose shape is in
tests/tools/kvtctl/models, with nothing behind it but our connector; nothing is loaded. Only
--reasoning-parser is left out: its parsers read a tokenizer."""
import re
import shlex

import pytest
from published import shapes, write  # noqa: F401

from kvtrunk.engine._refusals import Refused
from kvtrunk.vllm import __main__ as ours
from kvtrunk.vllm import _groups, _plan, _refusals

MTP = "--speculative-config.method mtp --speculative-config.num_speculative_tokens 1"
TOOLS = "--enable-auto-tool-choice --tool-call-parser"
GLM = f"{TOOLS} glm47 --reasoning-parser glm45"
M2 = f"{TOOLS} minimax_m2 --reasoning-parser minimax_m2"
K2 = f"{TOOLS} kimi_k2 --reasoning-parser kimi_k2 --trust-remote-code"
INDEX, OFF, STATE = "index of sparse attention", "prefix caching is off", "that keep a state"
# Page of the recipes: its model and options, the shape for it, and a word of the refusal.
LINES = [
    ("DeepSeek-V3", "deepseek-ai/DeepSeek-R1-0528 --trust-remote-code --tensor-parallel-size 8 "
     "--enable-expert-parallel", "DeepSeek V3", None),
    ("DeepSeek-V3", "deepseek-ai/DeepSeek-R1-0528 --trust-remote-code --data-parallel-size 8 "
     "--enable-expert-parallel", "DeepSeek V3", None),
    ("DeepSeek-V3", "nvidia/DeepSeek-R1-FP4 --trust-remote-code --tensor-parallel-size 4 "
     "--enable-expert-parallel", "DeepSeek V3", None),
    ("DeepSeek-V3_1", "deepseek-ai/DeepSeek-V3.1 --enable-expert-parallel --tensor-parallel-size 8 "
     "--served-model-name ds31", "DeepSeek V3", None),
    ("DeepSeek-V3_2-Exp", "deepseek-ai/DeepSeek-V3.2-Exp -dp 8 --enable-expert-parallel",
     "DeepSeek V3.2", INDEX),
    ("DeepSeek-V3_2-Exp", "deepseek-ai/DeepSeek-V3.2-Exp -tp 8", "DeepSeek V3.2", INDEX),
    ("GLM", "zai-org/GLM-4.5-Air-FP8 --tensor-parallel-size 8 --tool-call-parser glm45 "
     "--reasoning-parser glm45 --enable-auto-tool-choice", "GLM-4.5", None),
    ("GLM", f"zai-org/GLM-4.7-FP8 --tensor-parallel-size 4 {MTP} {GLM}", "GLM-4.5", None),
    ("GLM5", "zai-org/GLM-5.1-FP8 --tensor-parallel-size 8 --chat-template-content-format=string "
     f"--served-model-name glm-5.1-fp8 {GLM}", "GLM-5", INDEX),
    ("GLM-4.7", "zai-org/GLM-4.7 --tensor-parallel-size 8 --gpu-memory-utilization 0.9 "
     "--no-enable-prefix-caching --trust-remote-code", "GLM-4.5", OFF),
    ("GPT-OSS", "openai/gpt-oss-20b", "gpt-oss 20B", None),
    ("GPT-OSS", "openai/gpt-oss-120b --tensor-parallel-size 4", "gpt-oss 20B", None),
    ("GPT-OSS", "openai/gpt-oss-120b --gpu-memory-utilization 0.95 --max-num-batched-tokens 1024",
     "gpt-oss 20B", None),
    ("GPT-OSS", "openai/gpt-oss-120b --tensor_parallel_size 8 --max-model-len 131072 "
     "--max-num-batched-tokens 10240 --max-num-seqs 128 --gpu-memory-utilization 0.85 "
     "--no-enable-prefix-caching", "gpt-oss 20B", OFF),
    ("gpt-oss-20b", "openai/gpt-oss-20b --tool-call-parser openai --enable-auto-tool-choice",
     "gpt-oss 20B", None),
    ("Kimi-K2", f"moonshotai/Kimi-K2-Thinking --tensor-parallel-size 8 {K2}", "Kimi K2", None),
    ("Kimi-K2", "moonshotai/Kimi-K2-Thinking --tensor-parallel-size 8 "
     f"--decode-context-parallel-size 8 {K2}", "Kimi K2", "context parallelism"),
    ("LFM2.5", f"LiquidAI/LFM2.5-1.2B-Instruct {TOOLS} lfm2", "LFM2 1.2B", STATE),
    ("LFM2.5", "LiquidAI/LFM2.5-1.2B-Instruct --max-model-len 32768", "LFM2 1.2B", STATE),
    ("MiMo-V2-Flash", "XiaomiMiMo/MiMo-V2-Flash --served-model-name mimo_v2_flash "
     "--tensor-parallel-size 4 --trust-remote-code --gpu-memory-utilization 0.9 "
     "--generation-config vllm", "MiMo V2 Flash", "K and V differ in size"),
    ("MiniMax-M2.7", f"MiniMaxAI/MiniMax-M2.7 --tensor-parallel-size 4 {M2} --trust-remote-code",
     "MiniMax M2", None),
    ("MiniMax-M2.7", "MiniMaxAI/MiniMax-M2.7 --tensor-parallel-size 8 --enable-expert-parallel "
     f"{M2}", "MiniMax M2", None),
    ("Qwen2.5-32B", "Qwen/Qwen2.5-32B --host 0.0.0.0 --port 8000 --tensor-parallel-size 2",
     "Qwen2.5 72B", None),
    ("Qwen3-8B", "Qwen/Qwen3-8B --max-num-batched-tokens 16384 --gpu-memory-utilization 0.8",
     "Qwen3 8B", None),
    ("Qwen3-32B", "Qwen/Qwen3-32B --host 0.0.0.0 --port 8000 --seed 42 --tensor-parallel-size 2 "
     "--data-parallel-size 1 --max-model-len 9216 --max-num-batched-tokens 4096 --max-num-seqs 135 "
     "--gpu-memory-utilization 0.98 --block-size 256 --kv-cache-dtype fp8 "
     "--no-enable-prefix-caching --async-scheduling", "Qwen3 8B", OFF),
    ("Qwen3-30B-A3B", "Qwen/Qwen3-30B-A3B --max-num-batched-tokens 16384 "
     "--gpu-memory-utilization 0.8", "Qwen3 30B A3B", None),
    ("Qwen3-Coder", "Qwen/Qwen3-Coder-480B-A35B-Instruct --max-model-len 32000 "
     f"--enable-expert-parallel --tensor-parallel-size 8 {TOOLS} qwen3_coder", "Qwen3 30B A3B", None),
    ("Qwen3-Next", "Qwen/Qwen3-Next-80B-A3B-Instruct --tensor-parallel-size 4 --served-model-name "
     "qwen3-next --enable-prefix-caching", "Qwen3 Next 80B", None),
    ("Qwen3-Next", "Qwen/Qwen3-Next-80B-A3B-Instruct-FP8 --tensor-parallel-size 4",
     "Qwen3 Next 80B", None),
    ("Qwen3-Next", "Qwen/Qwen3-Next-80B-A3B-Instruct --tensor-parallel-size 4 --max-model-len 32768 "
     "--no-enable-prefix-caching --trust-remote-code", "Qwen3 Next 80B", OFF),
    ("Seed-OSS-36B", f"ByteDance-Seed/Seed-OSS-36B-Instruct --tensor-parallel-size 8 {TOOLS} "
     "seed_oss --trust-remote-code", "Seed OSS 36B", None),
]


@pytest.fixture(scope="module")
def resolved(tmp_path_factory):
    """A function: vLLM's own parser and configuration, of options for a model, in this process."""
    import torch
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.model_executor.models import registry
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = make_arg_parser(FlexibleArgumentParser())

    def resolve(name, fields, options):
        folder = write(tmp_path_factory.mktemp("model"), name,
                       {**fields, "max_position_embeddings": 1 << 18})
        read = parser.parse_args(["--model", str(folder), *shlex.split(options),
                                  "--kv-transfer-config", ours.TRANSFER])
        return AsyncEngineArgs.from_cli_args(read).create_engine_config()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "_run_in_subprocess", lambda function: function())
        patch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)
        yield resolve


def judge(config):
    _refusals.check_config(config)
    _groups.check_kinds(_plan.plan(config).groups)


@pytest.mark.parametrize("page, line, shape, refused", LINES)
def test_a_line_of_the_recipes(page, line, shape, refused, shapes, resolved):  # noqa: F811
    options = re.sub(r" --reasoning-parser \S+", "", line).partition(" ")[2]
    config = resolved(shape, shapes[shape][1], options)
    if config.model_config.use_mla:  # as on devices whose kernels reuse its KV
        config.cache_config.enable_prefix_caching = "--no-enable-prefix-caching" not in line
    if refused is None:
        judge(config)
        return
    with pytest.raises(Refused, match=refused):
        judge(config)
