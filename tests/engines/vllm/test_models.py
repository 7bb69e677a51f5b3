# SPDX-License-Identifier: Apache-2.0
"""Published models: which share their KV, and why the others do not. Their shapes are those of
tests/kvtctl/models; vLLM makes its configuration of them, and builds no model."""
import json
import pathlib

import pytest
from conftest import PAGE, TRANSFER

from kvtrunk.vllm import _refuse

ROOT = pathlib.Path(__file__).resolve().parents[3]
STATE, INDEX = "keep a state", "index of sparse"
WINDOW = "--disable-hybrid-kv-cache-manager"
"""Accepted with this switch."""
# Name: architecture in vLLM, and a word of the refusal.
MODELS = {
    "Llama 3.1 8B": ("LlamaForCausalLM", ""),
    "Llama 3.2 1B": ("LlamaForCausalLM", ""),
    "Yi 34B": ("LlamaForCausalLM", ""),
    "Llama 4 Scout": ("Llama4ForConditionalGeneration", WINDOW),
    "Qwen2 7B": ("Qwen2ForCausalLM", ""),
    "Qwen2.5 72B": ("Qwen2ForCausalLM", ""),
    "Qwen3 8B": ("Qwen3ForCausalLM", ""),
    "Qwen3 30B A3B": ("Qwen3MoeForCausalLM", ""),
    "Qwen3 Next 80B": ("Qwen3NextForCausalLM", STATE),
    "Qwen3.5 35B A3B": ("Qwen3_5MoeForCausalLM", STATE),
    "Mistral 7B v0.1": ("MistralForCausalLM", ""),
    "Mistral 7B v0.3": ("MistralForCausalLM", ""),
    "Mistral Nemo 12B": ("MistralForCausalLM", ""),
    "Mixtral 8x7B": ("MixtralForCausalLM", ""),
    "Gemma 7B": ("GemmaForCausalLM", ""),
    "Gemma 2 9B": ("Gemma2ForCausalLM", WINDOW),
    "Gemma 3 4B": ("Gemma3ForConditionalGeneration", WINDOW),
    "Gemma 3 12B": ("Gemma3ForConditionalGeneration", WINDOW),
    "Gemma 3 27B": ("Gemma3ForConditionalGeneration", WINDOW),
    "Gemma 3n E4B": ("Gemma3nForConditionalGeneration", "share KV"),
    "Phi 2": ("PhiForCausalLM", ""),
    "Phi 3 mini 4k": ("Phi3ForCausalLM", ""),
    "Phi 4 14B": ("Phi3ForCausalLM", ""),
    "gpt-oss 20B": ("GptOssForCausalLM", WINDOW),
    "DeepSeek V2 Lite": ("DeepseekV2ForCausalLM", ""),
    "DeepSeek V3": ("DeepseekV3ForCausalLM", ""),
    "DeepSeek V3.2": ("DeepseekV32ForCausalLM", INDEX),
    "MiniCPM3 4B": ("MiniCPM3ForCausalLM", ""),
    "Kimi K2": ("DeepseekV3ForCausalLM", ""),
    "GLM-4 9B chat": ("ChatGLMModel", ""),
    "GLM-4.5": ("Glm4MoeForCausalLM", ""),
    "GLM-5": ("GlmMoeDsaForCausalLM", INDEX),
    "Granite 3.1 8B": ("GraniteForCausalLM", ""),
    "Granite 4 Micro": ("GraniteMoeHybridForCausalLM", ""),
    "Granite 4 Small": ("GraniteMoeHybridForCausalLM", STATE),
    "Falcon 7B": ("FalconForCausalLM", ""),
    "Falcon 40B": ("FalconForCausalLM", ""),
    "Falcon H1 34B": ("FalconH1ForCausalLM", STATE),
    "Command R": ("CohereForCausalLM", ""),
    "Command R7B": ("Cohere2ForCausalLM", WINDOW),
    "OLMo 2 13B": ("Olmo2ForCausalLM", ""),
    "OLMo 3 7B": ("Olmo3ForCausalLM", WINDOW),
    "StarCoder2 15B": ("Starcoder2ForCausalLM", ""),
    "Nemotron H 8B": ("NemotronHForCausalLM", STATE),
    "Jamba 1.5 Mini": ("JambaForCausalLM", STATE),
    "Mamba 2.8B": ("MambaForCausalLM", STATE),
    "LFM2 1.2B": ("Lfm2ForCausalLM", STATE),
    "MiniMax M2": ("MiniMaxM2ForCausalLM", ""),
    "MiMo V2 Flash": ("MiMoV2FlashForCausalLM", "differ in size"),
    "Seed OSS 36B": ("SeedOssForCausalLM", ""),
    "SmolLM3 3B": ("SmolLM3ForCausalLM", ""),
    "GPT-NeoX 20B": ("GPTNeoXForCausalLM", ""),
    "OPT 6.7B": ("OPTForCausalLM", ""),
    "BLOOM 560M": ("BloomForCausalLM", ""),
    "T5 Large": ("T5ForConditionalGeneration", "encoder-decoder"),
}


@pytest.fixture(scope="module")
def shapes():
    """Name: what kvtctl answers, and the fields of its config.json."""
    lines = (ROOT / "tests/kvtctl/models").read_text().splitlines()
    rows = (line.split(" | ", 2) for line in lines if not line.startswith("#"))
    return {name: (says, json.loads(f"{{{fields}}}")) for name, says, fields in rows}


@pytest.fixture(scope="module")
def configured(tmp_path_factory):
    """A function that makes vLLM's configuration of a model, in this process."""
    from vllm.engine.arg_utils import EngineArgs
    from vllm.model_executor.models import registry

    def make(architecture, fields):
        folder = tmp_path_factory.mktemp("model")
        (folder / "config.json").write_text(json.dumps(
            {"architectures": [architecture], "vocab_size": 512, **fields}))
        return EngineArgs(model=str(folder), skip_tokenizer_init=True, dtype="bfloat16",
                          block_size=PAGE, max_model_len=512,
                          kv_transfer_config=TRANSFER).create_engine_config()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "_run_in_subprocess", lambda function: function())
        yield make


@pytest.mark.parametrize("name", MODELS)
def test_a_published_model(name, shapes, configured):
    architecture, says = MODELS[name]
    answer, fields = shapes[name]
    config = configured(architecture, fields)
    if config.model_config.use_mla:  # as on devices whose kernels reuse its KV
        config.cache_config.enable_prefix_caching = True
    if says:
        with pytest.raises(_refuse.Refused, match=says):
            _refuse.check_config(config)
        config.scheduler_config.disable_hybrid_kv_cache_manager = True
    if says in ("", WINDOW):
        _refuse.check_config(config)
    # `flags` refuses the same models.
    assert answer[0].isdigit() == (says in ("", WINDOW))


def test_the_manual_says_the_same():
    lines = (ROOT / "docs/vllm.md").read_text().splitlines()
    rows = [line.split("|")[1:3] for line in lines if line.startswith(("| yes", "| no"))]
    shown = {name: shares.split()[0] for shares, names in rows for name in names.strip().split(", ")}
    assert {name: said.strip(",") for name, said in shown.items()} == {
        name: "yes" if says in ("", WINDOW) else "no" for name, (_, says) in MODELS.items()}
