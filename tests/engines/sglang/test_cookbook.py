# SPDX-License-Identifier: Apache-2.0
"""Rules on options, on command lines of SGLang's own cookbook: github.com/sgl-project/sgl-cookbook,
commit 7b5bd9c0, docs/autoregressive. SGLang parses and resolves each, with no --device, for a model of
that kind whose shape is in tests/tools/kvtctl/models; nothing is loaded."""
import pathlib
import shlex

import heads
import pytest
from published import shapes, write  # noqa: F401

from kvtrunk.engine._refusals import Refused
from kvtrunk.sglang import _refusals

EAGLE = ("--speculative-algorithm EAGLE --speculative-num-steps 3 --speculative-eagle-topk 1 "
         "--speculative-num-draft-tokens 4")
RANKS = "--attn-dp-size"
SERVE = "--host 0.0.0.0 --port 30000"
# Page of the cookbook: its model and options, the shape for it, and what is refused.
LINES = [
    ("DeepSeek-R1", "deepseek-ai/DeepSeek-R1-0528 --tp 8", "DeepSeek V3", None),
    ("DeepSeek-R1", "deepseek-ai/DeepSeek-R1-0528 --reasoning-parser deepseek-r1 --tp 8",
     "DeepSeek V3", None),
    ("DeepSeek-V3", "deepseek-ai/DeepSeek-V3 --reasoning-parser deepseek-v3 --tp 8", "DeepSeek V3",
     None),
    ("DeepSeek-V3", f"deepseek-ai/DeepSeek-V3 --tp 8 --dp 8 --enable-dp-attention {EAGLE} "
     "--host 0.0.0.0 --port 8000", "DeepSeek V3", RANKS),
    ("DeepSeek-V3", "deepseek-ai/DeepSeek-V3 --tp 8 --ep 8 --dp 8 --enable-dp-attention "
     "--host 0.0.0.0 --port 8000", "DeepSeek V3", RANKS),
    ("DeepSeek-V3_1", "deepseek-ai/DeepSeek-V3.1 --tp 8", "DeepSeek V3", None),
    ("DeepSeek-V3_1", "deepseek-ai/DeepSeek-V3.1-Terminus --tool-call-parser deepseekv31 "
     "--reasoning-parser deepseek-v3 --chat-template "
     "./examples/chat_template/tool_chat_template_deepseekv31.jinja --tp 8 --host 0.0.0.0 --port 8000",
     "DeepSeek V3", None),
    ("DeepSeek-V3_2", f"deepseek-ai/DeepSeek-V3.2-Exp --reasoning-parser deepseek-v3 --tp 8 {SERVE}",
     "DeepSeek V3.2", None),
    ("DeepSeek-V3_2", f"deepseek-ai/DeepSeek-V3.2-Exp --tp 8 {EAGLE} {SERVE}", "DeepSeek V3.2", None),
    ("DeepSeek-V3_2", f"deepseek-ai/DeepSeek-V3.2-Exp --tp 8 --ep 8 --dp 8 --enable-dp-attention "
     f"{SERVE}", "DeepSeek V3.2", RANKS),
    ("GLM-4.5", "zai-org/GLM-4.5 --reasoning-parser glm45 --tool-call-parser glm45 --tp 8 "
     "--host 0.0.0.0 --port 8000", "GLM-4.5", None),
    ("GLM-4.6", "zai-org/GLM-4.6 --tp 8", "GLM-4.5", None),
    ("GLM-4.7", "zai-org/GLM-4.7 --tp 8", "GLM-4.5", None),
    ("GLM-5", f"zai-org/GLM-5-FP8 --tp 8 --tool-call-parser glm47 --reasoning-parser glm45 {EAGLE} "
     f"--mem-fraction-static 0.85 {SERVE}", "GLM-5", None),
    ("GPT-OSS", "openai/gpt-oss-120b --tp 8", "gpt-oss 20B", None),
    ("GPT-OSS", "openai/gpt-oss-120b --reasoning-parser gpt-oss --tool-call-parser gpt-oss --tp 8",
     "gpt-oss 20B", None),
    ("Kimi-K2", "moonshotai/Kimi-K2-Thinking --reasoning-parser kimi_k2 --tp 8 --host 0.0.0.0 "
     "--port 8000", "Kimi K2", None),
    ("Kimi-K2", "moonshotai/Kimi-K2-Instruct --tp 8 --dp 4 --enable-dp-attention "
     "--trust-remote-code --host 0.0.0.0 --port 8000", "Kimi K2", RANKS),
    ("Kimi-K2", "moonshotai/Kimi-K2-Instruct --tp 8 --dp 4 --ep 4 --enable-dp-attention "
     "--trust-remote-code --host 0.0.0.0 --port 8000", "Kimi K2", RANKS),
    ("Kimi-K2", "moonshotai/Kimi-K2-Instruct --tp 8 --dp 4 --trust-remote-code --host 0.0.0.0 "
     "--port 8000", "Kimi K2", None),
    ("Llama3.1", "Meta-Llama/Llama-3.1-70B --tp 8", "Llama 3.1 8B", None),
    ("Llama3.3-70B", "meta-llama/Llama-3.3-70B-Instruct --tool-call-parser llama3 --tp 1 "
     f"{SERVE}", "Llama 3.1 8B", None),
    ("Llama4", "meta-llama/Llama-4-Scout-17B-16E-Instruct --tp 8 --context-length 1000000 "
     "--trust-remote-code", "Llama 4 Scout", None),
    ("MiniMax-M2", "MiniMaxAI/MiniMax-M2 --tp-size 4 --reasoning-parser minimax-append-think "
     "--trust-remote-code --mem-fraction-static 0.85", "MiniMax M2", None),
    ("MiniMax-M2.5", "MiniMaxAI/MiniMax-M2.5 --tp 8 --ep 8 --reasoning-parser "
     "minimax-append-think --trust-remote-code --mem-fraction-static 0.85 --tool-call-parser "
     "minimax-m2", "MiniMax M2", None),
    ("Qwen3", "Qwen/Qwen3-235B-A22B-Thinking-2507 --reasoning-parser qwen3 --tool-call-parser "
     "qwen25 --tp 8 --host 0.0.0.0 --port 8000", "Qwen3 30B A3B", None),
    ("Qwen3-Coder", "Qwen/Qwen3-Coder-30B-A3B-Instruct --tp 1 --context-length 8192 --page-size 32 "
     "--tool-call-parser qwen3_coder", "Qwen3 30B A3B", None),
    ("Qwen3-Coder", "Qwen/Qwen3-Coder-480B-A35B-Instruct-FP8 --tp 8 --ep 2 --context-length 8192 "
     "--page-size 32 --trust-remote-code", "Qwen3 30B A3B", None),
    ("MiniMax-M2.7", "MiniMaxAI/MiniMax-M2.7 --tp 4 --tool-call-parser minimax-m2 "
     "--reasoning-parser minimax-append-think --trust-remote-code --mem-fraction-static 0.85",
     "MiniMax M2", None),
    ("Qwen3", "Qwen/Qwen3-235B-A22B-Instruct-2507 --tp 8", "Qwen3 30B A3B", None),
]
# Options that SGLang sets itself, and the refusals.
SET = [("--tp 2 --dwdp-size 2", RANKS), ("--tp 2 --device cpu:0", None), ("--pp-size 2", "--pp-size 2"),
       ("--enable-memory-saver", "--enable-memory-saver")]


def of_any_length(fields):
    """A model that takes the longest context of the cookbook."""
    more = {"max_position_embeddings": 1 << 20}
    text = {"text_config": {**fields["text_config"], **more}} if "text_config" in fields else more
    return {**fields, **text}


@pytest.fixture(scope="module")
def resolved(tmp_path_factory):
    """A function: SGLang's own parser and resolution, of options for a model, in this process."""
    with pytest.MonkeyPatch.context() as patch:
        import torch
        from sglang.srt import runtime_context
        from sglang.srt.server_args import prepare_server_args

        # Sparse attention asks a device for its capability, on CPUs, too.
        patch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))

        def resolve(name, fields, options):
            folder = write(tmp_path_factory.mktemp("model"), name, of_any_length(fields))
            arguments = prepare_server_args([
                "--model-path", str(folder), *shlex.split(options), "--radix-cache-backend",
                "kvtrunk"])
            runtime_context.publish(arguments, role="scheduler")
            return _refusals.Resolved()

        yield resolve


def expect(options, refused):
    if refused is None:
        _refusals.check(options)
        return
    with pytest.raises(Refused, match=f"does not go with {refused}"):
        _refusals.check(options)


@pytest.mark.parametrize("page, line, shape, refused", LINES)
def test_a_line_of_the_cookbook(page, line, shape, refused, shapes, resolved):  # noqa: F811
    options = line.split(" ", 1)[1]
    expect(resolved(shape, shapes[shape][1], options), refused)


@pytest.mark.parametrize("options, refused", SET)
def test_what_sglang_resolves_counts(options, refused, shapes, resolved):  # noqa: F811
    expect(resolved("Qwen3 30B A3B", shapes["Qwen3 30B A3B"][1], options), refused)


TREE = ("--page-size 16 --speculative-algorithm {} --speculative-num-draft-tokens 6 "
        "--speculative-num-steps 3 --speculative-eagle-topk 2 --speculative-draft-model-path {}")


@pytest.mark.parametrize("algorithm, backend, says", [
    ("EAGLE", "torch_native", r"eagle_topk > 1 with page_size > 1 is only supported on"),
    ("EAGLE", "triton", None), ("EAGLE3", "triton", None), ("EAGLE", "fa3", None),
    ("NGRAM", "torch_native", r"eagle_topk\(10\) > 1 with page_size\(16\) > 1"),
    ("NGRAM", "triton", "only supported for the 'flashinfer' backend")])
def test_trees_on_pages_of_several_positions_are_sglang_s_to_refuse(
        algorithm, backend, says, shapes, resolved, tmp_path):  # noqa: F811
    options = TREE.format(algorithm, heads.eagle(tmp_path / "head"))
    options = f"{options} --attention-backend {backend}"
    shape = "Llama 3.1 8B", shapes["Llama 3.1 8B"][1]
    if says is None:
        expect(resolved(*shape, options), None)
    else:
        with pytest.raises(ValueError, match=says):
            resolved(*shape, options)
