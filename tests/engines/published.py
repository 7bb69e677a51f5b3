# SPDX-License-Identifier: Apache-2.0
"""Published models, whose shapes are those of tests/tools/kvtctl/models: test_models.py of each kind of
engine says which share their KV, and why the others do not."""
import json
import pathlib

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Name: architecture in config.json.
ARCHITECTURES = {
    "Llama 3.1 8B": "LlamaForCausalLM",
    "Llama 3.2 1B": "LlamaForCausalLM",
    "Yi 34B": "LlamaForCausalLM",
    "Llama 4 Scout": "Llama4ForConditionalGeneration",
    "Qwen2 7B": "Qwen2ForCausalLM",
    "Qwen2.5 72B": "Qwen2ForCausalLM",
    "Qwen3 8B": "Qwen3ForCausalLM",
    "Qwen3 30B A3B": "Qwen3MoeForCausalLM",
    "Qwen3 Next 80B": "Qwen3NextForCausalLM",
    "Qwen3.5 35B A3B": "Qwen3_5MoeForCausalLM",
    "Mistral 7B v0.1": "MistralForCausalLM",
    "Mistral 7B v0.3": "MistralForCausalLM",
    "Mistral Nemo 12B": "MistralForCausalLM",
    "Mixtral 8x7B": "MixtralForCausalLM",
    "Gemma 7B": "GemmaForCausalLM",
    "Gemma 2 9B": "Gemma2ForCausalLM",
    "Gemma 3 4B": "Gemma3ForConditionalGeneration",
    "Gemma 3 12B": "Gemma3ForConditionalGeneration",
    "Gemma 3 27B": "Gemma3ForConditionalGeneration",
    "Gemma 3n E4B": "Gemma3nForConditionalGeneration",
    "Phi 2": "PhiForCausalLM",
    "Phi 3 mini 4k": "Phi3ForCausalLM",
    "Phi 4 14B": "Phi3ForCausalLM",
    "gpt-oss 20B": "GptOssForCausalLM",
    "DeepSeek V2 Lite": "DeepseekV2ForCausalLM",
    "DeepSeek V3": "DeepseekV3ForCausalLM",
    "DeepSeek V3.2": "DeepseekV32ForCausalLM",
    "MiniCPM3 4B": "MiniCPM3ForCausalLM",
    "Kimi K2": "DeepseekV3ForCausalLM",
    "Kimi Linear 48B": "KimiLinearForCausalLM",
    "GLM-4 9B chat": "ChatGLMModel",
    "GLM-4.5": "Glm4MoeForCausalLM",
    "GLM-5": "GlmMoeDsaForCausalLM",
    "Granite 3.1 8B": "GraniteForCausalLM",
    "Granite 4 Micro": "GraniteMoeHybridForCausalLM",
    "Granite 4 Small": "GraniteMoeHybridForCausalLM",
    "Falcon 7B": "FalconForCausalLM",
    "Falcon 40B": "FalconForCausalLM",
    "Falcon H1 34B": "FalconH1ForCausalLM",
    "Command R": "CohereForCausalLM",
    "Command R7B": "Cohere2ForCausalLM",
    "OLMo 2 13B": "Olmo2ForCausalLM",
    "OLMo 3 7B": "Olmo3ForCausalLM",
    "StarCoder2 15B": "Starcoder2ForCausalLM",
    "Nemotron H 8B": "NemotronHForCausalLM",
    "Jamba 1.5 Mini": "JambaForCausalLM",
    "Mamba 2.8B": "MambaForCausalLM",
    "LFM2 1.2B": "Lfm2ForCausalLM",
    "MiniMax M2": "MiniMaxM2ForCausalLM",
    "MiMo V2 Flash": "MiMoV2FlashForCausalLM",
    "Seed OSS 36B": "SeedOssForCausalLM",
    "SmolLM3 3B": "SmolLM3ForCausalLM",
    "GPT-NeoX 20B": "GPTNeoXForCausalLM",
    "OPT 6.7B": "OPTForCausalLM",
    "BLOOM 560M": "BloomForCausalLM",
    "T5 Large": "T5ForConditionalGeneration",
}


@pytest.fixture(scope="module")
def shapes():
    """Name: what kvtctl answers, and the fields of its config.json."""
    lines = (ROOT / "tests/tools/kvtctl/models").read_text().splitlines()
    rows = (line.split(" | ", 2) for line in lines if not line.startswith("#"))
    return {name: (says, json.loads(f"{{{fields}}}")) for name, says, fields in rows}


def write(folder, name, fields):
    """Write a model's config.json. Returns the folder."""
    (folder / "config.json").write_text(json.dumps(
        {"architectures": [ARCHITECTURES[name]], "vocab_size": 512, **fields}))
    return folder


def shown(page):
    """Name: what the table of a page in docs/ says."""
    lines = (ROOT / "docs" / page).read_text().splitlines()
    rows = [line.split("|")[1:3] for line in lines if line.startswith(("| yes", "| no"))]
    return {name: shares.strip() for shares, names in rows for name in names.strip().split(", ")}
